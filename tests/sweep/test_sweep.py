"""Sweeps: the same trials and the same best whoever finishes first and however often they are killed; mistakes."""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import psutil
import pytest

import training.commands.sweep as command
from main import main
from tests.sweep import fast_sweep
from tests.sweep.fast_sweep import DAMAGED, HELD, SPACE, STARTS
from tests.tiny_run import keep_in, tiny_in
from training.train import train_of_study
from utils.config.settings import from_dict, read_toml, settings_hash
from utils.config.trader import Config
from utils.errors import DataError
from utils.runs.run_lock import RunLock
from utils.runs.run_log import RunLog
from utils.statistics import expected_maximum, psr_of_moments

ROOT = Path(__file__).parents[2]
TRIALS, SEEDS = 12, 5


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "train_of_study", fast_sweep.learn)


def words(folder: Path, name: str, *flags: str) -> list[str]:
    files = ("--config", str(folder / "tiny.toml"), "--space", str(folder / "space.toml"))
    size = ("--trials", str(TRIALS), "--seeds", str(SEEDS))
    return ["sweep", *files, *size, "--profile", "quick", "--runs-dir", str(folder / "runs"), "--run", name, *flags]


def resume(folder: Path, *flags: str) -> list[str]:
    return ["sweep", "--runs-dir", str(folder / "runs"), "--resume", *flags]


def found(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "runs" / name / "sweep.json").read_text()) | {"sweep": ""}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished sweep of a formula."""
    path = tiny_in(tmp_path_factory.mktemp("sweep")).parent
    (path / "space.toml").write_text(SPACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "train_of_study", fast_sweep.learn)
        assert main(words(path, "whole")) == 0
    return path


def test_the_best_trial_is_the_one_of_the_highest_median(folder: Path) -> None:
    whole = found(folder, "whole")
    tried = whole["tried"]
    assert [one["number"] for one in tried] == list(range(TRIALS))
    assert {one["state"] for one in tried} == {"complete", "pruned", "fail"}, "the case has all of them"
    complete = [one for one in tried if one["state"] == "complete"]
    assert whole["best"] == max(complete, key=lambda one: statistics.median(one["profits"]))
    assert all(len(one["profits"]) == SEEDS for one in complete)
    pruned = [one["number"] for one in tried if one["state"] == "pruned"]
    assert min(pruned) >= 8, "trials of the first round have nobody to lose to"
    assert pruned == [one["number"] for one in tried if len(one["profits"]) == 4]
    for one in tried:
        assert (
            (one["state"] == "fail")
            == (one["settings"]["learning.exploration_noise"] > 2.3)
            == ("exploration" in one["error"])
        )
    starts = (folder / "runs" / "whole" / STARTS).read_text().split()
    assert len(starts) == len(set(starts)), "every run began once"
    said = (folder / "runs" / "whole" / "run.log").read_text()
    assert f"trial {whole['best']['number']} is the best of {TRIALS}" in said and whole["sentence"] in said


def test_a_sweep_whose_data_are_gone_stops_and_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that fails for want of the file has not failed by its settings; the sweep would end with the rest."""
    error = DataError("expected a readable parquet file of daily bars, got none")
    load = mock.Mock(wraps=command.load_market, side_effect=[mock.DEFAULT, error])
    with monkeypatch.context() as patch:
        patch.setattr(command, "load_market", load)
        assert main(words(folder, "gone")) == 2
    assert load.call_count == 2 and not (folder / "runs" / "gone" / "sweep.json").exists()
    assert main(resume(folder, "gone")) == 0
    assert found(folder, "gone") == found(folder, "whole")


def test_the_choice_is_judged_by_the_formulas(folder: Path) -> None:
    """The deflated ratio computed again, from the files and by the formulas of the paper."""
    whole, excess = found(folder, "whole"), dict[int, pd.Series]()
    for one in (one for one in whole["tried"] if one["profits"]):
        runs = (folder / "runs" / "whole").glob(f"trial-{one['number']:03d}-seed-*")
        daily = [pd.read_csv(run / "equity.csv", index_col="date").pct_change().dropna() for run in runs]
        assert len(daily) == len(one["profits"])
        excess[one["number"]] = sum(day["champion"] - day["equal weight"] for day in daily) / len(daily)
    ratios = {number: float(days.mean() / days.std()) for number, days in excess.items()}
    threshold = expected_maximum(statistics.stdev(ratios.values()), len(ratios))
    assert whole["expected_best_sharpe"] == pytest.approx(math.sqrt(252) * threshold)
    best = whole["best"]["number"]
    standard = (excess[best] - excess[best].mean()) / excess[best].std(ddof=0)
    moments = float((standard**3).mean()), float((standard**4).mean())
    chance = psr_of_moments(ratios[best], threshold, len(standard), *moments)
    assert whole["deflated_sharpe"] == pytest.approx(chance)
    assert whole["overfitting_probability"] < 0.2, "the formula's best is among the best on any days"


def test_a_sweep_that_is_killed_ends_as_one_that_was_not(folder: Path) -> None:
    environment = os.environ | {HELD: "44", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.sweep.fast_sweep", *words(folder, "killed", "--jobs", "2")]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        while process.poll() is None and fast_sweep.starts(folder / "runs" / "killed") < 44:
            time.sleep(0.02)
        assert process.poll() is None
        left = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert left and not psutil.wait_procs(left, timeout=60)[1]
    assert main(resume(folder, "--jobs", "1")) == 0
    assert found(folder, "killed") == found(folder, "whole")


def errors(capsys: pytest.CaptureFixture[str]) -> list[str]:
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    return [line for line in shown.splitlines() if line.startswith("ERROR ")]


def test_a_full_disk_stops_the_sweep_which_then_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DAMAGED, "trial-009-seed-2")
    assert main(words(folder, "full")) == 1
    assert "got a full one" in errors(capsys)[-1]
    monkeypatch.delenv(DAMAGED)
    trial = folder / "runs" / "full" / "trial-009-seed-2"
    trial.mkdir()
    with RunLock(trial):
        (trial / "config.json").write_text("{}")
        assert main(resume(folder, "full")) == 2
    assert f"a run that nobody else works on, got {trial}" in errors(capsys)[-1]
    assert main(resume(folder, "full")) == 0
    assert found(folder, "full") == found(folder, "whole")


def test_a_sweep_whose_trials_all_fail_says_why(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "space.toml").write_text("[learning.exploration_noise]\nlow = 3\nhigh = 4\n")
    assert main(words(folder, "failing", "--space", str(tmp_path / "space.toml"), "--seeds", "1")) == 2
    assert "expected less exploration, got 3." in errors(capsys)[-1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--resume", "whole", "--trials", "13"), "expected --trials 12, with which"),
        (("--resume", "whole", "--seed", "5"), "expected seed = 0"),
        (("--resume", "whole", "--generations", "9"), "expected generations = 2"),
        (("--resume", "whole", "--space", "{0}/other.toml"), "expected --space {"),
        (("--run", "none"), "expected --space FILE"),
        (("--run", "whole", "--space", "{0}/space.toml"), "a new name for --run"),
    ],
)
def test_mistakes_get_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], says: str
) -> None:
    (folder / "other.toml").write_text(SPACE.replace("2.5", "2.4"))
    assert main(["sweep", "--runs-dir", str(folder / "runs"), *(flag.format(folder) for flag in flags)]) == 2
    (line,) = errors(capsys)
    assert says in line and not (folder / "runs" / "none").exists()


def test_without_optuna_it_says_how_to_install_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert main(words(folder, "none")) == 2
    (line,) = errors(capsys)
    assert "pip install -r requirements-sweep.txt" in line and not (folder / "runs" / "none").exists()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a real sweep of two trials on one seed, kept in the cloud, for whose tests that stays set."""
    path = tiny_in(tmp_path_factory.mktemp("real")).parent
    (path / "space.toml").write_text(SPACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "train_of_study", train_of_study)
        keep_in(path / "volume", patch)
        assert main(words(path, "real", "--trials", "2", "--seeds", "1")) == 0
        yield path


def test_every_trial_counts_and_the_best_settings_are_those_of_the_best_one(real: Path) -> None:
    path = real / "runs" / "real"
    for results in path.glob("trial-*-seed-0/results.json"):
        verdict = json.loads(results.read_text())["verdict"]
        assert verdict["trials"] == 2 and "of 2 trials" in verdict["sentence"]
    best = RunLog.open(path, f"trial-{found(real, 'real')['best']['number']:03d}-seed-0").settings(Config)
    assert settings_hash(from_dict(read_toml(path / "best.toml"), Config)) == settings_hash(best)


def test_a_sweep_whose_disk_is_lost_goes_on(real: Path, tmp_path: Path) -> None:
    """All runs have ended in the cloud: nothing is trained, which the formula would do otherwise."""
    assert main(["sweep", "--runs-dir", str(tmp_path), "--resume"]) == 0
    for name in ("sweep.json", "best.toml", "sweep_plan.json"):
        here, kept = (real / folder / "real" / name for folder in ("runs", "volume"))
        assert (tmp_path / "real" / name).read_bytes() == here.read_bytes() == kept.read_bytes()
    assert not (tmp_path / "real" / STARTS).exists()
