"""Walk-forward tests whose folds are jobs: the same wherever they run, are stopped or lost; stored in the cloud."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.faults.harness import records, tensors
from main import main
from tests.tiny_run import frame, keep_in, tiny_in, unjudged
from utils.errors import ConfigError
from utils.runs import run_lock

pytestmark = pytest.mark.usefixtures("judge_nothing")

ROOT = Path(__file__).parents[2]
FOLDS = ("--folds", "2", "--test-windows", "2", "--validation-days", "30")


def words(folder: Path, *flags: str) -> list[str]:
    return ["walk-forward", "--runs-dir", str(folder / "runs"), *flags]


def begin(folder: Path, name: str, *flags: str) -> list[str]:
    files = ("--config", str(folder / "tiny.toml"), "--data", str(folder / "data.parquet"))
    return words(folder, *files, "--profile", "quick", "--run", name, *FOLDS, *flags)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data file, a finished walk-forward test of it and the volume on which that is stored."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("folds")
    tiny_in(path)
    frame(360, 6).to_parquet(path / "data.parquet")
    with unjudged(), pytest.MonkeyPatch.context() as patch:
        keep_in(path / "volume", patch)
        assert main(begin(path, "whole")) == 0
    return path


def assert_alike(found: Path, whole: Path) -> None:
    for name in ("equity.csv", "trades.csv"):
        assert (found / name).read_bytes() == (whole / name).read_bytes()
    for fold in ("fold-1", "fold-2"):
        assert records(found / fold) == records(whole / fold)
        last = Path("checkpoints") / "generation-000002"
        assert tensors(found / fold / last) == tensors(whole / fold / last)


def test_folds_side_by_side_that_are_stopped_go_on_elsewhere(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal once a generation is stored: exit code 143, no process left, and equal results without the disk."""
    keep_in(tmp_path, monkeypatch)
    command = [sys.executable, str(ROOT / "main.py"), *begin(folder, "cut", "--jobs", "2")]
    path = folder / "runs" / "cut"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and not any(tmp_path.glob("cut/fold-*/checkpoints/*/manifest.json")):
            time.sleep(0.02)
        left = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        shown, _ = process.communicate(timeout=200)
    assert process.returncode == 143
    assert left and not psutil.wait_procs(left, timeout=60)[1]
    assert "stopped by SIGTERM" in shown and "walk-forward --resume" in shown and "Traceback" not in shown
    assert shown.count("running") == 2 and (path / "jobs" / "fold-1.log").is_file()
    shutil.rmtree(path)
    assert main(words(folder, "--resume", "cut")) == 0
    assert_alike(path, folder / "runs" / "whole")
    assert (tmp_path / "cut" / "fold-2" / "checkpoints" / "generation-000002").is_dir()


def test_a_finished_test_whose_disk_is_gone_is_restored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained again: the folds' last generations come from the bucket."""
    keep_in(folder / "volume", monkeypatch)
    there = words(tmp_path, "--data", str(folder / "data.parquet"), "--resume", "whole")
    assert main(there) == 0
    assert_alike(tmp_path / "runs" / "whole", folder / "runs" / "whole")
    for fold in ("whole/fold-1", "whole/fold-2"):
        summaries = [(place / "runs" / fold / "summary.json").read_bytes() for place in (tmp_path, folder)]
        assert summaries[0] == summaries[1], "its times are those of the first training"


def test_the_lock_of_a_lost_machine_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its owner has not renewed it for long enough; a lock of this machine is not waited for."""
    lock = tmp_path / run_lock.LOCK
    lock.write_text(json.dumps({"pid": 1, "host": "lost"}))
    with pytest.raises(ConfigError, match="process 1 on lost holds"), run_lock.RunLock(tmp_path):
        pass
    monkeypatch.setattr(run_lock, "STALE_SECONDS", 1.5)
    run_lock.wait_for_lost_owner(tmp_path)
    assert time.time() - lock.stat().st_mtime >= 1.5
    with run_lock.RunLock(tmp_path), monkeypatch.context() as patch:
        patch.setattr(time, "sleep", lambda _: pytest.fail("waited for itself"))
        run_lock.wait_for_lost_owner(tmp_path)
    run_lock.wait_for_lost_owner(tmp_path)
