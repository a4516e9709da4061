"""The key of the bucket: a file that is there, or the contents of one, never shown."""

import json
import os
import stat
from pathlib import Path
from unittest.mock import patch

import pytest

from utils.cloud.store import KEY, KEY_CONTENTS, open_cloud
from utils.errors import ConfigError

BUCKET = {"CLOUD_PROVIDER": "gcs", "CLOUD_BUCKET": "my-bucket"}
CONTENTS = json.dumps({"type": "authorized_user", "refresh_token": "hush", "client_id": "x", "client_secret": "hush"})


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home of its own, and a variable that is restored after the test."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(KEY, "")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")


def refusal(**variables: str) -> str:
    with patch.dict(os.environ, BUCKET | variables), pytest.raises(ConfigError) as caught:
        open_cloud()
    return str(caught.value)


@pytest.mark.parametrize("path", ["/workspace/gcs-credentials.json", "~/key.json", "./key", "gcs-credentials.json"])
def test_an_absent_file_is_named(path: str) -> None:
    assert f"got {path!r}, which is absent or unreadable" in refusal(**{KEY: path})


@pytest.mark.parametrize("text", [CONTENTS, "-----BEGIN PRIVATE KEY-----", "AIzaSyHushHushHush", "hush/Hush+hush=="])
def test_a_key_in_place_of_its_path_is_not_shown(text: str) -> None:
    shown = refusal(**{KEY: text})
    assert "got another text" in shown and "ush" not in shown and "BEGIN" not in shown and KEY_CONTENTS in shown


@pytest.mark.parametrize("named", ["", "/workspace/absent.json"])
def test_the_contents_of_a_key_become_a_private_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    caplog.set_level("DEBUG")
    for _ in range(2):
        with patch.dict(os.environ, {**BUCKET, KEY: named, KEY_CONTENTS: CONTENTS}):
            open_cloud()
            path = Path(os.environ[KEY])
    assert path.read_text() == CONTENTS and path.is_relative_to(tmp_path / "home")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert list(path.parent.iterdir()) == [path] and "hush" not in caplog.text


def test_a_file_that_is_there_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "key.json"
    path.write_text(CONTENTS)
    with patch.dict(os.environ, {**BUCKET, KEY: str(path), KEY_CONTENTS: "not used"}):
        open_cloud()
        assert os.environ[KEY] == str(path)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("text", ["{{ RUNPOD_SECRET_hush }}", "hush", '["hush"]', CONTENTS[:-1]])
def test_contents_that_are_no_key_are_refused_and_not_shown(text: str, tmp_path: Path) -> None:
    shown = refusal(**{KEY_CONTENTS: text})
    assert "not shown" in shown and "hush" not in shown and not (tmp_path / "home").exists()
