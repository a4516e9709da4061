"""The first hour of a lost box: killed in the middle of a generation, it goes on elsewhere, bit for bit the same."""

import fcntl
import json
import os
import shutil
import signal
import time
from pathlib import Path
from unittest import mock

import pytest

from benchmarks.faults.harness import SMALL_RUN, flags, outcome, run_beside, whole_run
from box.supervise import LastRun, last_to_progress, to_resume
from tests.box.emulated import Box
from utils.runs.checkpoint import list_checkpoints
from utils.runs.find import files_of_runs
from utils.runs.run_lock import STALE_SECONDS

pytestmark = pytest.mark.usefixtures("small_heap", "all_formulas")
GENERATIONS = 3


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory, all_formulas: None) -> Path:
    """The `volume` of a box that was lost while its run trained in generation 3, and the `bucket` it uploaded to."""
    folder = tmp_path_factory.mktemp("lost")
    runs = folder / "volume" / "runs"
    runs.mkdir(parents=True)
    (folder / "bucket").mkdir()
    fault = {"kind": "pause", "phase": "train", "generation": 3, "marker": str(folder / "marker")}
    with mock.patch.dict(os.environ, {"CLOUD_PROVIDER": "local", "CLOUD_BUCKET": str(folder / "bucket")}):
        process = run_beside(*flags(runs), "--generations", str(GENERATIONS), "--run", "one", fault=fault)
    stored = folder / "bucket" / "one" / "checkpoints" / "generation-000002" / "manifest.json"
    while process.is_alive() and not ((folder / "marker").exists() and stored.exists()):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    (runs / "settings.toml").unlink()  # nothing but the run itself is left
    return folder


def started(box: Box, **more: str) -> str:
    """Start the container, stop it when the program in it has ended, and return what training logged."""
    container = box.start("start.sh", **more)
    while container.poll() is None and "exit code" not in box.log:
        time.sleep(0.05)
    container.terminate()
    shown = container.communicate()[0]
    assert container.returncode == 128 + signal.SIGTERM, shown
    return box.log


def test_an_empty_container_goes_on_from_the_volume_and_the_bucket(
    lost: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The volume lacks the newest generation, and the lost machine's lock has seconds to live."""
    volume, bucket = tmp_path / "volume", tmp_path / "bucket"
    for folder in (volume, bucket):
        shutil.copytree(lost / folder.name, folder)
    shutil.rmtree(volume / "runs" / "one" / "checkpoints" / "generation-000002")
    lock = volume / "runs" / "one" / "lock"
    lock.write_text(json.dumps({"pid": 1, "host": "lost"}))
    os.utime(lock, (time.time() + 1 - STALE_SECONDS,) * 2)
    cloud = {"CLOUD_PROVIDER": "local", "CLOUD_BUCKET": str(bucket)}
    log = started(Box.fresh(tmp_path / "container", volume, driver=None), **cloud)
    assert "--resume=one" in log and "restored run one from the cloud" in log
    assert "exit code 0" in log and "ERROR" not in log
    assert outcome(volume / "runs", "one") == whole_run(GENERATIONS, SMALL_RUN).outcome
    assert last_to_progress(files_of_runs(volume / "runs")) == LastRun(["--resume=one"], has_ended=True)
    assert (bucket / "one" / "summary.json").is_file()
    for name, value in cloud.items():
        monkeypatch.setenv(name, value)
    (bucket / "one" / "summary.json").unlink()
    assert to_resume(tmp_path / "new") == ["--resume=one"], "another machine finds it in the bucket"


def test_a_run_that_another_pod_trains_is_left_to_it(lost: Path, tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    shutil.copytree(lost / "volume", volume)
    lock = volume / "runs" / "one" / "lock"
    before = list_checkpoints(lock.parent / "checkpoints")
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        log = started(Box.fresh(tmp_path / "container", volume))
    assert "nobody else works on" in log and log.count("starting main.py") == 1 and "exit code 2" in log
    assert list_checkpoints(lock.parent / "checkpoints") == before
