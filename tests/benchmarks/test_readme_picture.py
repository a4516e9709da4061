"""The README's picture shows the current version with its default settings."""

import json
from pathlib import Path

import pytest

from benchmarks import readme_picture
from benchmarks.faults.harness import SMALL_RUN
from benchmarks.readme_picture import PICTURE, RECORD, ROOT, draw, record
from utils.config.settings import from_dict
from utils.config.trader import Config, default_settings, profile_config

DOCS = ROOT / "docs"


def test_the_picture_is_of_this_version() -> None:
    """Where this fails, run `python -m benchmarks.readme_picture`."""
    recorded = json.loads((DOCS / RECORD).read_text(encoding="utf-8"))
    assert recorded == record((DOCS / PICTURE).read_bytes())


def test_its_settings_are_those_of_the_first_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert from_dict(default_settings({}), Config) == profile_config("quick")


@pytest.mark.usefixtures("restore_process")
def test_the_command_writes_picture_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small.toml").write_text(f"generations = 1{SMALL_RUN}")
    monkeypatch.setattr(readme_picture, "draw", lambda: draw(["--config", str(tmp_path / "small.toml")]))
    readme_picture.main(["--out", str(tmp_path)])
    picture = (tmp_path / PICTURE).read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert json.loads((tmp_path / RECORD).read_text()) == record(picture)
