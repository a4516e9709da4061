"""Uploads survive a misbehaving cloud, say so where they do not, and nothing that comes back is trusted."""

import json
import logging
import os
import shutil
import time
import traceback
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.faults.cloud import BUCKET, hasty, is_download, is_upload, is_upload_of
from benchmarks.faults.proxy import FaultProxy
from utils.cloud.gcs import GcsStore
from utils.cloud.restore import restore_latest, restore_run
from utils.cloud.store import LocalStore, ObjectStore, open_cloud
from utils.cloud.sync import CloudSync, list_generations
from utils.config.settings import LATEST
from utils.errors import CloudError, ConfigError, DamagedError, MissingError
from utils.runs.checkpoint import encode_state, prune_checkpoints, save_checkpoint, verify_checkpoint
from utils.runs.find import name_to_resume

RUN = "some-run"
LONG = 250.0
"""Seconds that only a hang takes."""


@pytest.fixture
def proxy(bucket: FaultProxy) -> Iterator[FaultProxy]:
    with hasty(LONG):
        yield bucket


def gcs(below: str = "") -> ObjectStore:
    return GcsStore(BUCKET, below=below)


@pytest.fixture
def mounted(tmp_path: Path) -> LocalStore:
    (tmp_path / "volume").mkdir()
    return LocalStore(tmp_path / "volume")


@pytest.fixture(params=["mounted", "proxy"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    value = request.getfixturevalue(request.param)
    return value if isinstance(value, LocalStore) else gcs()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"seed": 1}\n')
    (folder / "metrics.jsonl").write_text('{"generation": 1}\n')
    return folder


def checkpoint(run: Path, generation: int, numbers: int = 500) -> Path:
    weights = torch.randn(numbers, generator=torch.Generator().manual_seed(generation))
    state = {"population": {"weights": weights}, "history": {"fitness": [0.5, generation]}}
    return save_checkpoint(run / "checkpoints", generation, encode_state(state), run_id=run.name, config_hash="c")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def upload(store: ObjectStore, run: Path, *generations: int, numbers: int = 500) -> None:
    with CloudSync(store, run) as sync:
        sync.submit(run / "config.json", run / "metrics.jsonl")
        for generation in generations:
            sync.submit(checkpoint(run, generation, numbers))
        sync.drain(LONG)


def assert_stored(store: ObjectStore, path: Path, tmp_path: Path) -> None:
    restored = restore_latest(store, RUN, tmp_path / "restored")
    assert restored is not None and contents(restored) == contents(path)


@pytest.mark.parametrize(
    ("provider", "bucket", "named"),
    [
        ("", "b-b", "CLOUD_PROVIDER"), ("s3", "b-b", "'s3'"), ("gcs", "", "CLOUD_BUCKET"),
        ("gcs", "gs://bucket", "'gs://bucket'"), ("local", "relative/path", "'relative/path'"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(
    provider: str, bucket: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOUD_PROVIDER", provider)
    monkeypatch.setenv("CLOUD_BUCKET", bucket)
    with pytest.raises(ConfigError, match=r"^expected [^\n]*$") as caught:
        open_cloud()
    assert named in str(caught.value)


def test_another_generation_of_the_same_number_takes_its_place(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    """In a later process, to which the name of the run belongs too, for its settings are the same."""
    upload(store, run, 1)
    upload(store, run, 1, numbers=600)
    assert_stored(store, run / "checkpoints" / "generation-000001", tmp_path)


def test_what_file_managers_leave_is_not_uploaded_and_not_restored(
    mounted: LocalStore, run: Path, tmp_path: Path
) -> None:
    path, litter = checkpoint(run, 1), (".DS_Store", "._manifest.json", "Thumbs.db", "desktop.ini")
    for name in litter:
        (path / name).write_bytes(b"\0")
    with CloudSync(mounted, run) as sync:
        sync.submit(run / "config.json", path)
        sync.drain(LONG)
    volume, kept = tmp_path / "volume", [name for name in contents(path) if name not in litter]
    names = {f"{RUN}/config.json", *(f"{RUN}/checkpoints/{path.name}/{name}" for name in kept)}
    assert {file.relative_to(volume).as_posix() for file in volume.rglob("*") if file.is_file()} == names
    for folder in (volume, *(folder for folder in volume.rglob("*") if folder.is_dir())):
        for name in litter:
            (folder / name).write_bytes(b"\0")
    assert set(mounted.list("")) == names
    restore_run(mounted, tmp_path / "restored" / RUN)
    verify_checkpoint(tmp_path / "restored" / RUN / "checkpoints" / path.name)
    assert not any(name in litter for _, _, files in os.walk(tmp_path / "restored") for name in files)


def test_names_in_a_store_below_a_prefix_do_not_carry_it(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    is_local = isinstance(store, LocalStore)
    below = LocalStore(tmp_path / "volume", "test/part") if is_local else gcs(below="test/part")
    upload(below, run, 1)
    assert name_to_resume(LATEST, tmp_path / "none", below) == RUN and list_generations(below, RUN).keys() == {1}
    below.get(f"{RUN}/config.json", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == (run / "config.json").read_bytes()
    assert set(store.list("")) == {f"test/part/{name}" for name in below.list("")}
    below.delete(f"{RUN}/config.json")
    assert f"test/part/{RUN}/config.json" not in store.list("test/")
    with pytest.raises(DamagedError):
        LocalStore(tmp_path, below="../other")


def test_a_drain_that_is_short_of_time_names_what_is_missing(proxy: FaultProxy, run: Path) -> None:
    proxy.inject("status", is_upload, float("inf"))
    with CloudSync(gcs(), run) as sync:
        sync.submit(checkpoint(run, 1))
        with pytest.raises(CloudError, match=r"generation-000001 \(not uploaded in time\)"):
            sync.drain(0.1)


def test_lacking_permissions_are_named(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud.storage import Bucket

    granted = [f"storage.objects.{action}" for action in ("create", "get", "list")]
    monkeypatch.setattr(Bucket, "test_iam_permissions", lambda *_, **__: granted)
    with pytest.raises(ConfigError, match=r"lack storage\.objects\.delete"):
        gcs().check()


def test_a_generation_on_its_way_outlives_its_removal_from_disk(
    mounted: LocalStore, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without settings the first file to come is of the generation, all of whose files are open by then.
    (run / "config.json").unlink()
    path, put = checkpoint(run, 1), mounted.put
    copy = shutil.copytree(path, tmp_path / "copy" / path.name)

    def removed_meanwhile(*arguments: Any) -> None:
        shutil.rmtree(path, ignore_errors=True)
        put(*arguments)

    monkeypatch.setattr(mounted, "put", removed_meanwhile)
    with CloudSync(mounted, run) as sync:
        sync.submit(path)
        sync.drain(LONG)
    assert_stored(mounted, copy, tmp_path)


def test_retention_follows_the_disk_and_a_manifest_comes_last_and_goes_first(proxy: FaultProxy, run: Path) -> None:
    with CloudSync(gcs(), run) as sync:
        for generation in range(1, 5):
            path = checkpoint(run, generation)
            prune_checkpoints(run / "checkpoints", 2, {1})
            sync.submit(path, prune=True)
            sync.drain(LONG)
    assert list(list_generations(gcs(), RUN)) == [1, 3, 4]
    deleted = [request.name for request, _ in proxy.requests if request.method == "DELETE"]
    assert deleted[0].endswith("generation-000002/manifest.json") and len(deleted) == 5
    stored = [request.name.endswith("manifest.json") for request, _ in proxy.requests if is_upload(request)]
    assert [is_manifest for is_manifest, _ in groupby(stored)] == [False, True] * 4


def test_nothing_is_deleted_before_a_newer_generation_is_complete(proxy: FaultProxy, run: Path) -> None:
    upload(gcs(), run, 1)
    fault = proxy.inject("status", is_upload_of("manifest.json"), float("inf"))
    with CloudSync(gcs(), run) as sync:
        shutil.rmtree(run / "checkpoints" / "generation-000001")
        with hasty():
            sync.submit(checkpoint(run, 2), prune=True)
            while not sync.status().endswith("1 failed"):
                time.sleep(0.02)
        assert "manifest.json" in list_generations(gcs(), RUN)[1]
        fault.times = 0
        sync.drain(LONG)
    assert list(list_generations(gcs(), RUN)) == [2]


def test_a_name_that_another_run_takes_meanwhile_is_left_to_it(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    store.put(f"{RUN}/config.json", b"theirs")
    with pytest.raises(CloudError, match="exists with other content"):
        upload(store, run)
    assert set(store.list("")) == {f"{RUN}/config.json"}
    store.get(f"{RUN}/config.json", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"theirs"


def test_a_cloud_out_of_reach_does_not_lose_a_generation(proxy: FaultProxy, run: Path, tmp_path: Path) -> None:
    upload(gcs(), run, 1, 2)
    proxy.inject("status", lambda request: is_download(request) and request.name.endswith(".safetensors"), float("inf"))
    with hasty(), pytest.raises(CloudError, match="503"):
        restore_latest(gcs(), RUN, tmp_path / "restored")
    assert not list((tmp_path / "restored").iterdir())


@pytest.mark.parametrize("damage", ["population.safetensors", "manifest.json", "another generation"])
def test_a_damaged_generation_gives_way_to_the_one_before(
    store: ObjectStore, run: Path, tmp_path: Path, damage: str
) -> None:
    """A bit of a file is flipped, or all files are those of the other generation."""
    upload(store, run, 1, 2)
    other, spoilt = (contents(run / "checkpoints" / f"generation-{number:06d}") for number in (1, 2))
    if damage in spoilt:
        other = {damage: spoilt[damage][:-1] + bytes([spoilt[damage][-1] ^ 1])}
    for name, data in other.items():
        store.put(f"{RUN}/checkpoints/generation-000002/{name}", data)
    path = restore_latest(store, RUN, tmp_path / "restored")
    assert path is not None and verify_checkpoint(path).generation == 1
    assert [path.name for path in (tmp_path / "restored").iterdir()] == ["generation-000001"]


def test_nothing_usable_says_so(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    assert restore_latest(store, RUN, tmp_path / "restored") is None
    with pytest.raises(ConfigError, match=f"no object {RUN}/config.json"):
        restore_run(store, tmp_path / "restored" / RUN)
    with pytest.raises(ConfigError, match="plain relative path"):
        restore_run(store, tmp_path / "restored" / "a:b")
    upload(store, run, 1)
    store.put(f"{RUN}/checkpoints/generation-000001/history.json", b"{}")
    with pytest.raises(ConfigError, match="expected a usable generation"):
        restore_run(store, tmp_path / "restored" / RUN)
    assert not (tmp_path / "restored" / RUN / "config.json").exists()


def test_objects_are_bounded_by_their_announced_size(store: ObjectStore, tmp_path: Path) -> None:
    store.put("name", bytes(1000))
    with pytest.raises(DamagedError, match="at most 999 bytes"):
        store.get("name", tmp_path / "fetched", 999)
    with pytest.raises(MissingError):
        store.get("other", tmp_path / "fetched", 999)
    assert not (tmp_path / "fetched").exists()


def test_unsafe_names_are_refused_everywhere(store: ObjectStore, tmp_path: Path) -> None:
    for name in ("../a", "/a", "a/../b", "a\\b", "..", "", "a//b", "a/", "a\0b", "a\nb", "C:/a", "./a"):
        calls = (store.put, name, b""), (store.get, name, tmp_path / "fetched", 1), (store.delete, name)
        for call, *arguments in calls:
            with pytest.raises(DamagedError):
                call(*arguments)


def test_unsafe_names_in_a_bucket_are_passed_over(proxy: FaultProxy, run: Path, tmp_path: Path) -> None:
    upload(gcs(), run, 1)
    for generation, name in enumerate(("UP", "BACK", "ROOT"), start=2):
        gcs().put(f"{RUN}/checkpoints/generation-{generation:06d}/{name}", b"evil")
    proxy.lies = {b"/UP": b"/../../manifest.json", b"/BACK": b"\\\\manifest.json", b"/ROOT": b"//manifest.json"}
    assert list(list_generations(gcs(), RUN)) == [1]
    path = restore_latest(gcs(), RUN, tmp_path / "restored")
    assert path is not None and path.name == "generation-000001"
    proxy.lies.clear()
    assert list(list_generations(gcs(), RUN)) == [1, 2, 3, 4]


def test_links_in_a_mounted_folder_are_not_followed(mounted: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "secret")
    assert mounted.list("") == {}
    with pytest.raises(DamagedError):
        mounted.get("link", tmp_path / "fetched", 100)


MARK = "TOPSECRETMARK"


@pytest.mark.parametrize("text", [f"not JSON {MARK}", json.dumps({"type": "service_account", "private_key": MARK})])
def test_a_broken_key_file_is_not_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    (tmp_path / "key.json").write_text(text)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    with pytest.raises(ConfigError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
        gcs()
    assert MARK not in "".join(traceback.format_exception(caught.value))


def test_a_key_that_is_refused_appears_nowhere(
    proxy: FaultProxy, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rsa = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.rsa")
    from cryptography.hazmat.primitives import serialization as form

    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()
    emulated = os.environ["STORAGE_EMULATOR_HOST"]
    monkeypatch.setenv("API_ENDPOINT_OVERRIDE", emulated)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    key = tmp_path / "key.json"
    parts = {"type": "service_account", "project_id": "p", "private_key_id": MARK, "private_key": pem, "client_id": "1"}
    key.write_text(json.dumps(parts | {"client_email": "a@example.com", "token_uri": f"{emulated}/token/{MARK}"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    asked = proxy.inject("status", lambda request: request.path.startswith("/token"), float("inf"), 401)
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("CLOUD_PROVIDER", "gcs")
    monkeypatch.setenv("CLOUD_BUCKET", BUCKET)
    store = open_cloud()
    assert store is not None
    with pytest.raises(ConfigError, match="401 Unauthorized") as at_start:
        store.check()
    with CloudSync(store, run) as sync:
        sync.submit(checkpoint(run, 1))
        with pytest.raises(CloudError, match="401 Unauthorized") as at_end:
            sync.drain(LONG)
    assert asked.seen
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", emulated)
    errors = [line for caught in (at_start, at_end) for line in traceback.format_exception(caught.value)]
    shown = "".join([caplog.text, repr(store), repr(sync), *errors])
    for secret in (MARK, *pem.split("\n")[1:-2]):
        assert secret not in shown
