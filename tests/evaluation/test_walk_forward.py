"""Walk-forward: folds follow one another, no champion has seen its test days, and a stopped test goes on."""

import dataclasses
import itertools
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.faults.harness import records
from data.splits import FoldPlan, consecutive_windows, make_folds
from main import main
from tests.tiny_run import TINY, frame, to_reproduce, unjudged
from training.commands import walk_forward
from training.commands.table import COMMANDS, WalkForwardArguments
from training.run.market import load_market
from training.train import train
from utils.config.cli import parse_command
from utils.config.trader import OUTCOME_SESSIONS, DataConfig, EnvironmentConfig
from utils.errors import DataError

# All orders are the agents': there are trades in every fold.
FOLDS = ("--folds", "2", "--test-windows", "2", "--validation-days", "30", "--evaluation.evidence", "report")
plans = st.builds(
    FoldPlan, st.integers(1, 4), st.integers(1, 3), st.integers(20, 60), train_days=st.sampled_from([0, 30, 80])
)
LENGTHS = {"trading_days": st.integers(1, 12), "settlement_days": st.integers(0, 6)}
rules = st.builds(EnvironmentConfig, **LENGTHS)


@settings(max_examples=100)
@given(plans, rules, st.integers(200, 500))
def test_folds_follow_one_another_and_never_overlap(plan: FoldPlan, env: EnvironmentConfig, days: int) -> None:
    split = DataConfig(context_window_days=16)
    try:
        folds = make_folds(days, plan, split, env)
    except DataError as error:
        assert str(error).startswith("expected at least")
        assume(False)
    assert len(folds) == plan.folds and folds[-1].holdout.last == days - 1
    for fold in folds:
        assert fold.train.first >= split.context_window_days
        assert plan.train_days == 0 or fold.train.days <= plan.train_days
        assert fold.validation.days == plan.validation_days
        for earlier, later in ((fold.train, fold.validation), (fold.validation, fold.holdout)):
            assert later.first - earlier.last - 1 == OUTCOME_SESSIONS
        starts = consecutive_windows(fold.holdout, env.episode_steps).tolist()
        assert starts == [fold.holdout.first + env.episode_steps * window for window in range(plan.test_windows)]
        assert starts[-1] + env.episode_steps == fold.holdout.last
    for before, after in itertools.pairwise(folds):
        assert before.holdout.last == after.holdout.first
        if plan.train_days == 0:
            assert after.train.first == before.train.first and after.train.last > before.train.last


def walk(folder: Path, *flags: str) -> int:
    return main(["walk-forward", "--runs-dir", str(folder / "runs"), *flags])


def plan_in(folder: Path) -> list[str]:
    """Flags of a test on the data and by the settings of a folder."""
    files = ["--config", str(folder / "tiny.toml"), "--data", str(folder / "data.parquet")]
    return [*files, "--profile", "quick", *FOLDS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("walk")
    (path / "tiny.toml").write_text(TINY)
    frame(400, 4).to_parquet(path / "data.parquet")
    with unjudged():
        assert walk(path, "--run", "whole", *plan_in(path)) == 0
    return path


def test_the_curve_holds_every_test_day_once_and_reinvests(folder: Path) -> None:
    path = folder / "runs" / "whole"
    equity = pd.read_csv(path / "equity.csv")
    dates = np.unique(pd.read_parquet(folder / "data.parquet")["date"].to_numpy().astype("datetime64[D]"))
    assert equity["date"].tolist() == [str(day) for day in dates[-(2 * 2 * 16 + 1) :]]
    results = json.loads((path / "results.json").read_text())
    folds = results["folds"]
    ends = [equity["date"][day] for day in (0, 32, 64)]
    assert [fold["dates"]["holdout"] for fold in folds] == [ends[:2], ends[1:]]
    champion = equity["champion"].to_numpy()
    assert champion[0] == 1_000_000.0
    returns = [100 * (champion[last] / champion[last - 32] - 1) for last in (32, 64)]
    assert [fold["return_percent"] for fold in folds] == pytest.approx(returns, abs=1e-9)
    total = results["policies"]["champion"]["return"]["value"]
    assert total == pytest.approx(100 * (champion[-1] / champion[0] - 1), abs=1e-9)
    assert results["verdict"]["trials"] == 1
    trades = pd.read_csv(path / "trades.csv")
    assert ends[0] < trades["date"].min() and trades["date"].max() <= ends[2]
    positions = pd.read_csv(path / "positions.csv")
    parts = positions.groupby(positions["first_date"] > ends[1])[["profit", "costs"]].sum()
    profit = (parts["profit"] - parts["costs"]) / 10_000
    assert profit.reindex([False, True], fill_value=0.0).tolist() == pytest.approx(returns, abs=1e-6)
    page = (path / "report.html").read_text()
    assert "walk-forward" in page and results["verdict"]["sentence"].split("; ")[0] in page
    left = (path / "equity.csv").read_bytes()
    with unjudged():
        assert main(to_reproduce(path / "report.html")) == 0 and (path / "equity.csv").read_bytes() == left


def test_training_and_validation_do_not_touch_the_test_days(folder: Path, tmp_path: Path) -> None:
    """With every price after its last validation day corrupted, the first fold becomes the same, bit for bit."""
    arguments = parse_command(["walk-forward", *plan_in(folder)], COMMANDS).arguments
    assert isinstance(arguments, WalkForwardArguments)
    config = arguments.settings
    dates = load_market(config).dates
    fold = make_folds(len(dates), FoldPlan(2, 2, 30, 0), config.split, config.env)[0]
    spoilt = pd.read_parquet(folder / "data.parquet")
    later = spoilt["date"].to_numpy() > dates[fold.validation.last]
    prices = ["open", "high", "low", "close"]
    spoilt.loc[later, prices] = np.random.default_rng(0).uniform(300, 1000, (int(later.sum()), 4))
    spoilt.to_parquet(tmp_path / "data.parquet")
    config = dataclasses.replace(config, data=tmp_path / "data.parquet", runs_dir=tmp_path, run="fold-1")
    with unjudged():
        train(config, splits=fold)
    mine, theirs = (path / "fold-1" for path in (tmp_path, folder / "runs" / "whole"))
    assert records(mine) == records(theirs) and len(records(mine)) == 2
    for part in ("population", "champion"):
        state = f"checkpoints/generation-000002/{part}.safetensors"
        assert (mine / state).read_bytes() == (theirs / state).read_bytes()


def test_another_plan_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert walk(folder, "--resume", "whole", "--folds", "3") == 2
    assert "expected --folds 2, with which" in capsys.readouterr().err
    assert walk(folder, "--resume", "whole", "--generations", "3") == 2
    assert "all its runs are trained for as many" in capsys.readouterr().err
    assert main(["--runs-dir", str(folder / "runs"), "--resume", "whole"]) == 2
    assert "a walk-forward test; go on with walk-forward --resume whole" in capsys.readouterr().err


def test_fractions_that_folds_do_not_read_are_told(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fractions = ("--split.train-fraction", "0.5", "--split.validation-fraction", "0.2")
    with unjudged(), mock.patch.object(walk_forward, "_train_folds", side_effect=DataError("enough")):
        assert walk(tmp_path, *plan_in(folder), *fractions) == 2
    assert "without effect: split.train_fraction, split.validation_fraction" in caplog.text
