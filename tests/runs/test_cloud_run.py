"""Whole runs that keep their files in the cloud, lose the disk and go on from there."""

import os
import re
import shlex
import shutil
from pathlib import Path

import pytest

from benchmarks.faults.cloud import BUCKET, hasty
from benchmarks.faults.proxy import FaultProxy
from main import main
from tests.tiny_run import TINY, assert_like, keep_in, parameters, records, run
from training.run.results import finish
from utils.cloud.gcs import GcsStore
from utils.cloud.restore import complete_generations
from utils.cloud.store import LocalStore

pytestmark = pytest.mark.usefixtures("judge_nothing")

SHOWN = (Path(__file__).parents[2] / "docs" / "cloud.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^CLOUD_PROVIDER=gcs .*python main\.py.*$", SHOWN, flags=re.MULTILINE)


@pytest.fixture
def cut(cut: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run to whose volume the environment points."""
    keep_in(cut.parent / "volume", monkeypatch)
    return cut


def resume(tiny: Path, *flags: str) -> int:
    return main(["--runs-dir", str(tiny.parent / "runs"), "--resume", *flags, "--generations", "3"])


def files_below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_is_in_the_cloud_when_it_ends(
    tiny: Path, volume: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.train.finish", finish)
    assert run(tiny, "--run", "one", "--generations", "2", "--keep-checkpoints", "1") == 0
    here, there = files_below(tiny.parent / "runs" / "one"), files_below(volume / "one")
    assert here.pop("run.log").startswith(log := there.pop("run.log")) and b"RESULT  validation" in log
    assert there == here and any(name.startswith("tensorboard/") for name in there)
    shown = capsys.readouterr().out
    assert {"summary.json", "report.html", "learning.png", "memory.png", "market.json"} < there.keys()
    assert len(re.findall(r"Upload status: \d+ pending, \d+ done, 0 failed", shown)) == 3
    assert "Upload status: 0 pending" in shown.splitlines()[-1]


def test_a_run_whose_disk_is_lost_goes_on(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its log and its TensorBoard events, and without a warning."""
    shutil.move(cut.parent / "runs" / "whole", cut.parent / "whole")
    shutil.rmtree(cut.parent / "runs")
    assert resume(cut) == 0
    told, warned = capsys.readouterr()
    assert "restored run cut from the cloud" in told and warned.count("WARNING") == warned.count("at most 60% invested")
    log = (cut.parent / "runs" / "cut" / "run.log").read_text()
    assert all(f"Generation {one} complete" in log for one in ("1 / 2", "2 / 2", "3 / 3"))
    assert len(list((cut.parent / "runs" / "cut" / "tensorboard").iterdir())) == 2
    shutil.move(cut.parent / "whole", cut.parent / "runs" / "whole")
    assert_like(cut, "cut", "whole", 3)
    assert complete_generations(LocalStore(cut.parent / "volume"), "cut")[-1] == 3


def test_another_run_of_the_name_in_the_cloud_is_refused_before_anything_is_written(
    cut: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = cut.parent / "volume" / "cut" / "config.json"
    settings.write_text(settings.read_text().replace('"seed": 0', '"seed": 7'))
    here = cut.parent / "runs" / "cut"
    shutil.rmtree(here / "checkpoints")  # so that the cloud has later ones
    before = files_below(here)
    assert resume(cut, "cut") == 2
    assert "got another one of that name" in capsys.readouterr().err
    assert files_below(here) | {"run.log": b""} == before | {"run.log": b""}


@pytest.mark.parametrize(("length", "told"), [(-30, "is torn"), (1 << 40, "jsonl in the cloud is not used")])
def test_damaged_metrics_in_the_cloud_do_not_stop_a_restore(
    cut: Path, capsys: pytest.CaptureFixture[str], length: int, told: str
) -> None:
    """The checkpoints are whole: training goes on to the same agents, and what is lost is told."""
    shutil.rmtree(cut.parent / "runs" / "cut")
    stored = cut.parent / "volume" / "cut" / "metrics.jsonl"
    os.truncate(stored, length if length > 0 else stored.stat().st_size + length)
    assert resume(cut, "cut") == 0
    shown = "".join(capsys.readouterr())
    assert told in shown and "resumed after generation 2" in shown and "has no record of" in shown
    assert parameters(cut, "cut", 3) == parameters(cut, "whole", 3)


def test_a_run_whose_newest_checkpoint_rotted_takes_the_clouds(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As does one that went on elsewhere: the disk is behind the bucket."""
    folder = cut.parent / "runs" / "cut"
    (folder / "checkpoints" / "generation-000002" / "replay.safetensors").write_bytes(b"rotten")
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().splitlines(keepends=True)[0])
    assert resume(cut, "cut") == 0
    assert "resumed after generation 2" in capsys.readouterr().out
    assert_like(cut, "cut", "whole", 3)


def test_a_name_that_is_taken_in_the_cloud_is_refused(cut: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_below(cut.parent / "volume")
    shutil.rmtree(cut.parent / "runs")
    assert run(cut, "--run", "cut", "--seed", "5") == 2
    assert "--resume cut" in capsys.readouterr().err
    assert not (cut.parent / "runs" / "cut").exists() and files_below(cut.parent / "volume") == before


def test_a_cloud_that_is_not_there_stops_the_run_at_its_start(
    tiny: Path, volume: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    volume.rmdir()
    assert run(tiny, "--run", "one") == 2
    assert "mount it first" in capsys.readouterr().err
    assert not (tiny.parent / "runs").exists()


def test_a_run_on_disk_goes_on_while_the_cloud_is_out_of_reach(
    tiny: Path, bucket: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    """It trains to its end, names what the cloud lacks, and ends with 1; the cloud has all once it answers again."""
    assert run(tiny, "--run", "one", "--generations", "1") == 0
    bucket.inject("status", lambda _: True, float("inf"))
    with hasty():
        assert run(tiny, "--resume", "one", "--generations", "2") == 1
    shown = capsys.readouterr().err
    assert "503 Service Unavailable (gave up); the run starts nevertheless" in shown
    assert len(records(tiny, "one")) == 2 and "missing in the cloud: one/" in shown
    bucket.faults.clear()
    assert run(tiny, "--resume", "one", "--generations", "3") == 0
    assert complete_generations(GcsStore(BUCKET), "one") == [1, 2, 3]
    shutil.rmtree(tiny.parent / "runs")
    assert run(tiny, "--resume", "--generations", "3") == 0
    assert len(records(tiny, "one")) == 3


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readmes_commands(
    tmp_path: Path, bucket: FaultProxy, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(TINY)
    Path("key.json").write_text("{}")
    words = shlex.split(command)
    for setting in words[: words.index("python")]:
        monkeypatch.setenv(*setting.split("=", 1))
    monkeypatch.setenv("CLOUD_BUCKET", BUCKET)
    arguments = words[words.index("python") + 2 :]
    small = ["--config", "run.toml"]
    if "--resume" in arguments:
        assert main([*small, "--run", "NAME", "--generations", "1"]) == 0
        shutil.rmtree("runs")
        small = ["--generations", "2"]
    assert main([*arguments, *small]) == 0
    assert len(list(Path("runs").glob("*/summary.json"))) == 1
