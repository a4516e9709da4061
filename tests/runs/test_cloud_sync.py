"""Uploads survive a misbehaving cloud, say so where they do not, and nothing that comes back is trusted."""

import json
import logging
import os
import shutil
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.faults.cloud import hasty
from benchmarks.faults.proxy import FaultProxy, Request, emulator, running
from utils.cloud.gcs import GcsStore
from utils.cloud.restore import restore_latest, restore_run
from utils.cloud.settings import open_cloud
from utils.cloud.store import LocalStore, ObjectStore
from utils.cloud.sync import CloudSync, list_generations
from utils.config.settings import LATEST
from utils.errors import CloudError, ConfigError, ConflictError, DamagedError, MissingError
from utils.runs.checkpoint import encode_state, prune_checkpoints, save_checkpoint, verify_checkpoint
from utils.runs.find import name_to_resume

BUCKET = "the-bucket"
RUN = "some-run"
LONG = 30.0


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    pytest.importorskip("gcp_storage_emulator", reason="the storage emulator is not installed")
    with emulator(BUCKET) as port:
        yield port


@pytest.fixture
def proxy(upstream: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    proxy = FaultProxy(upstream)
    with running(proxy) as port, hasty(20.0):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        # Small parts, so that a resumable upload has several.
        monkeypatch.setattr("utils.cloud.gcs.CHUNK_BYTES", 4 << 20)
        yield proxy
        clean = gcs()
        proxy.faults.clear()
        proxy.lies.clear()
        for name in clean.list(""):
            clean.delete(name)


def gcs(below: str = "") -> ObjectStore:
    return GcsStore(BUCKET, below=below)


@pytest.fixture(params=["local", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "gcs":
        request.getfixturevalue("proxy")
        return gcs()
    (tmp_path / "volume").mkdir()
    return LocalStore(tmp_path / "volume")


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


def fetched(store: ObjectStore, name: str, target: Path) -> bytes:
    target.unlink(missing_ok=True)
    store.get(name, target, 1 << 30)
    return target.read_bytes()


def upload(store: ObjectStore, run: Path, *generations: int, seconds: float = LONG) -> str:
    with CloudSync(store, run) as sync:
        sync.submit(run / "config.json", run / "metrics.jsonl")
        for generation in generations:
            sync.submit(checkpoint(run, generation))
        return sync.drain(seconds)


def assert_stored(store: ObjectStore, run: Path, path: Path, tmp_path: Path) -> None:
    base = f"{run.name}/checkpoints/{path.name}"
    assert {Path(name).name for name in store.list(f"{base}/")} == contents(path).keys()
    for name, data in contents(path).items():
        assert fetched(store, f"{base}/{name}", tmp_path / "fetched") == data


def an_upload(request: Request) -> bool:
    return request.method in ("POST", "PUT")


def of_manifest(request: Request) -> bool:
    return an_upload(request) and request.name.endswith("manifest.json")


def a_download(request: Request) -> bool:
    return "alt=media" in request.path and request.name.endswith(".safetensors")


def test_the_store_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")
    for provider, bucket, expected in (("gcs", "my-bucket", "GcsStore"), ("local", "/mnt/volume", "LocalStore")):
        assert type(open_cloud({"CLOUD_PROVIDER": provider, "CLOUD_BUCKET": bucket})).__name__ == expected
    assert open_cloud({}) is None


@pytest.mark.parametrize(
    ("provider", "bucket", "named"),
    [
        ("", "b-b", "CLOUD_PROVIDER"), ("s3", "b-b", "'s3'"), ("gcs", "", "CLOUD_BUCKET"),
        ("gcs", "gs://bucket", "'gs://bucket'"), ("local", "relative/path", "'relative/path'"),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(provider: str, bucket: str, named: str) -> None:
    with pytest.raises(ConfigError, match=r"^expected [^\n]*$") as caught:
        open_cloud({"CLOUD_PROVIDER": provider, "CLOUD_BUCKET": bucket})
    assert named in str(caught.value)


def test_the_manifest_comes_last(proxy: FaultProxy, run: Path) -> None:
    upload(gcs(), run, 1)
    names = [request.name for request, _ in proxy.requests if an_upload(request)]
    assert [name.endswith("manifest.json") for name in names] == [False] * (len(names) - 1) + [True]


def test_other_content_under_the_name_is_a_conflict(store: ObjectStore, tmp_path: Path) -> None:
    store.put("name", b"bytes", if_absent=True)
    store.put("name", b"bytes", if_absent=True)
    with pytest.raises(ConflictError):
        store.put("name", b"other", if_absent=True)
    assert fetched(store, "name", tmp_path / "fetched") == b"bytes"


def test_another_generation_of_the_same_number_takes_its_place(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    upload(store, run, 1)
    path = checkpoint(run, 1, numbers=600)
    with CloudSync(store, run) as sync:
        sync.submit(path)
        sync.drain(LONG)
    assert_stored(store, run, path, tmp_path)


def test_names_in_a_store_below_a_prefix_do_not_carry_it(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    is_local = isinstance(store, LocalStore)
    below = LocalStore(tmp_path / "volume", "test/part") if is_local else gcs(below="test/part")
    upload(below, run, 1)
    assert name_to_resume(LATEST, tmp_path / "none", below) == RUN and list_generations(below, RUN).keys() == {1}
    assert fetched(below, f"{RUN}/config.json", tmp_path / "fetched") == (run / "config.json").read_bytes()
    assert set(store.list("")) == {f"test/part/{name}" for name in below.list("")}
    below.delete(f"{RUN}/config.json")
    assert f"test/part/{RUN}/config.json" not in store.list("test/")
    with pytest.raises(DamagedError):
        LocalStore(tmp_path, below="../other")


def test_a_drain_that_is_short_of_time_names_what_is_missing(proxy: FaultProxy, run: Path) -> None:
    proxy.inject("status", an_upload, float("inf"))
    with CloudSync(gcs(), run) as sync:
        sync.submit(checkpoint(run, 1))
        with pytest.raises(CloudError, match=r"generation-000001 \(not uploaded in time\)"):
            sync.drain(0.1)


def test_lacking_permissions_are_named(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.cloud.storage import Bucket

    def grant(*_: Any, **__: Any) -> list[str]:
        return ["storage.objects.create", "storage.objects.get", "storage.objects.list"]

    monkeypatch.setattr(Bucket, "test_iam_permissions", grant)
    with pytest.raises(ConfigError, match=r"lack storage\.objects\.delete"):
        gcs().check()


def test_a_bucket_out_of_reach_is_logged_and_the_run_starts(
    proxy: FaultProxy, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.inject("status", lambda _: True, float("inf"), 503)
    gcs().check()
    assert "503 Service Unavailable" in caplog.text


class GatedStore(LocalStore):
    def __init__(self, root: Path) -> None:
        root.mkdir()
        super().__init__(root)
        self.gate, self.reached = threading.Event(), threading.Event()

    def put(self, name: str, source: Any, *, if_absent: bool = False) -> None:
        self.reached.set()
        assert self.gate.wait(LONG)
        super().put(name, source, if_absent=if_absent)


def test_a_generation_on_its_way_outlives_its_removal_from_disk(run: Path, tmp_path: Path) -> None:
    (run / "config.json").unlink()  # so that the gate is first met once all files of the generation are open
    store = GatedStore(tmp_path / "volume")
    path = checkpoint(run, 1)
    copy = shutil.copytree(path, tmp_path / "copy" / path.name)
    with CloudSync(store, run) as sync:
        sync.submit(path)
        assert store.reached.wait(LONG)
        shutil.rmtree(path)
        store.gate.set()
        sync.drain(LONG)
    assert_stored(store, run, copy, tmp_path)


def test_retention_follows_the_disk_and_deletes_manifests_first(proxy: FaultProxy, run: Path) -> None:
    with CloudSync(gcs(), run) as sync:
        for generation in range(1, 5):
            path = checkpoint(run, generation)
            prune_checkpoints(run / "checkpoints", 2, {1})
            sync.submit(path, prune=True)
            sync.drain(LONG)
    assert list(list_generations(gcs(), RUN)) == [1, 3, 4]
    deleted = [request.name for request, _ in proxy.requests if request.method == "DELETE"]
    assert deleted[0].endswith("generation-000002/manifest.json") and len(deleted) == 5


def test_nothing_is_deleted_before_a_newer_generation_is_complete(proxy: FaultProxy, run: Path) -> None:
    upload(gcs(), run, 1)
    fault = proxy.inject("status", of_manifest, float("inf"))
    with hasty(), CloudSync(gcs(), run) as sync:
        shutil.rmtree(run / "checkpoints" / "generation-000001")
        sync.submit(checkpoint(run, 2), prune=True)
        while not sync.status().endswith("1 failed"):
            threading.Event().wait(0.02)
        assert "manifest.json" in list_generations(gcs(), RUN)[1]
        fault.times = 0
        sync.drain(LONG)
    assert list(list_generations(gcs(), RUN)) == [2]


def test_a_name_that_another_run_takes_meanwhile_is_left_to_it(run: Path, tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    store = LocalStore(tmp_path / "volume")
    store.put(f"{RUN}/config.json", b"theirs")
    with pytest.raises(CloudError, match="exists with other content"):
        upload(store, run)
    assert set(store.list("")) == {f"{RUN}/config.json"}


def test_a_cloud_out_of_reach_does_not_lose_a_generation(proxy: FaultProxy, run: Path, tmp_path: Path) -> None:
    upload(gcs(), run, 1, 2)
    proxy.inject("status", a_download, float("inf"))
    with hasty(), pytest.raises(CloudError, match="503"):
        restore_latest(gcs(), RUN, tmp_path / "restored")
    assert not list((tmp_path / "restored").iterdir())


@pytest.mark.parametrize("name", ["population.safetensors", "manifest.json"])
def test_a_damaged_generation_gives_way_to_the_one_before(
    store: ObjectStore, run: Path, tmp_path: Path, name: str
) -> None:
    upload(store, run, 1, 2)
    data = (run / "checkpoints" / "generation-000002" / name).read_bytes()
    store.put(f"{RUN}/checkpoints/generation-000002/{name}", data[:-1] + bytes([data[-1] ^ 1]))
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


def test_the_manifest_of_another_generation_is_refused(store: ObjectStore, run: Path, tmp_path: Path) -> None:
    upload(store, run, 1)
    for name, data in contents(run / "checkpoints" / "generation-000001").items():
        store.put(f"{RUN}/checkpoints/generation-000002/{name}", data)
    path = restore_latest(store, RUN, tmp_path / "restored")
    assert path is not None and path.name == "generation-000001"


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


def test_links_in_a_mounted_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "volume").mkdir()
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "volume" / "link").symlink_to(tmp_path / "secret")
    store = LocalStore(tmp_path / "volume")
    assert store.list("") == {}
    with pytest.raises(DamagedError):
        store.get("link", tmp_path / "fetched", 100)


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
    environ = {"CLOUD_PROVIDER": "gcs", "CLOUD_BUCKET": BUCKET, "GOOGLE_APPLICATION_CREDENTIALS": str(key)}
    store = open_cloud(environ)
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
