"""A run on data that have grown begins with what an earlier one found, and says so."""

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
import torch

from main import main
from tests.tiny_run import assert_like, frame, tiny_in, unjudged
from tests.tiny_run import run as train
from training.erl_trainer import ERLTrainer
from training.run.extension import load_inherited
from training.run.saved import open_saved_run
from utils.runs.checkpoint import load_latest

DAYS = 300
PRICES = ["open", "high", "low", "close"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on 300 days, one that has just begun, the file, and the file with 60 days more."""
    path = tmp_path_factory.mktemp("runs")
    tiny = tiny_in(path)
    frame(DAYS + 60, 5).to_parquet(path / "more.parquet")
    frame(DAYS + 60, 5).head(DAYS * 5).to_parquet(path / "data.parquet")
    with unjudged():
        assert train(tiny, "--run", "one", "--data", str(path / "data.parquet")) == 0
    (path / "runs" / "begun").mkdir()
    shutil.copy(path / "runs" / "one" / "config.json", path / "runs" / "begun")
    return path


def extend(folder: Path, *flags: str) -> int:
    with unjudged():
        return main(["--runs-dir", str(folder / "runs"), "--extend", *flags])


@pytest.fixture(scope="module")
def extended(folder: Path) -> Path:
    """That folder with a run `two` of one generation, which extends the one on 300 days, and a copy of it, `whole`."""
    assert extend(folder, "one", "--run", "two", "--data", str(folder / "more.parquet"), "--generations", "1") == 0
    shutil.copytree(folder / "runs" / "two", folder / "runs" / "whole")
    return folder


def test_a_run_goes_on_with_later_days(extended: Path) -> None:
    runs = extended / "runs"
    old, new = (open_saved_run(runs, name) for name in ("one", "two"))
    assert new.extends == "one" and old.extends == ""
    for name, span in vars(new.market.splits).items():
        assert new.market.dates[span.last] > old.market.dates[getattr(old.market.splits, name).last]
    inherited, after = load_inherited(runs / "two"), load_latest(runs / "two" / "checkpoints")
    assert inherited is not None and (inherited.run_id, inherited.generation) == ("one", 2) and after is not None
    population, genes = after.state["population"], inherited.state["population"]["genes"].tolist()
    elites = [genes[row] for row in population["elites"]]
    assert elites and all(one in population["genes"].tolist() for one in elites), "the fittest stay as they are"
    words = ["--runs-dir", str(runs), "--run", "two", "--random-pickers", "20", "--rivals", "none"]
    assert main(["evaluate", "--split", "holdout", "--spend-look", *words]) == 0
    look = json.loads((runs / "holdout.jsonl").read_text().splitlines()[-1])
    assert (look["run"], look["extends"]) == ("two", "one")


def test_prices_that_were_adjusted_again_are_the_same_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each ticker has paid a dividend, or was split, since the run was trained: named ones are told, earn the same."""
    later = frame(DAYS + 60, 5)
    day, closes = later["date"].unique()[DAYS + 10], later["close"].to_numpy().reshape(-1, 5)
    paid, date = 0.005 * float(closes[DAYS + 9, 2]), str(day.date())
    rows = f"T3,{date},2,,\nT2,{date},,{paid!r},\nT1,{date},2,,\nT0,{date},4,,\n"  # that of T0 explains nothing
    (folder / "adjusted.events.csv").write_text(f"ticker,date,split,dividend,pay_date\n{rows}")
    told = (
        f"T0 (prices times 0.995), T1 (split 2:1 of {date}), T2 (dividend of {paid:g} of {date}), "
        f"T3 (split 2:1 of {date}), T4 (prices times 0.995)"
    )
    is_past, is_split = later["date"] < day, later["ticker"].isin(["T1", "T3"])
    later.loc[is_past & is_split, PRICES] *= 0.5
    later.loc[is_past & ~is_split, PRICES] *= 0.995
    later.to_parquet(folder / "adjusted.parquet")
    data = ("--data", str(folder / "adjusted.parquet"))
    assert len(begin(folder, "adjusted", *data).market.dates) == DAYS + 60
    assert f"5 tickers were adjusted again since one began: {told}\n" in capsys.readouterr().out

    def told_by(*words: str) -> bool:
        assert main([*words, "--runs-dir", str(folder / "runs"), "--run", "one"]) == 0
        return f"5 tickers were adjusted again since the run began: {told}\n" in capsys.readouterr().out

    def returns() -> dict[str, float]:
        results = json.loads((folder / "runs" / "one" / "evaluation-validation" / "results.json").read_text())
        return {name: measures["return"]["value"] for name, measures in results["policies"].items()}

    assert told_by("signals", *data) and told_by("audit", "--days", "1", *data)
    words = ("evaluate", "--random-pickers", "20", "--rivals", "none")
    assert told_by(*words, *data)
    adjusted = returns()
    assert not told_by(*words)
    assert adjusted == pytest.approx(returns(), abs=1e-3)


def test_a_ticker_with_another_past_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The new run learns from its prices as they are; what uses the old run refuses them."""
    other = frame(DAYS + 60, 5)
    other.loc[other["ticker"] == "T0", PRICES] **= 1.01
    other.to_parquet(folder / "first.parquet")
    begin(folder, "first", "--data", str(folder / "first.parquet"))
    shown = capsys.readouterr()
    assert "1 ticker has other prices than one knew, T0 the first" in shown.out + shown.err
    words = ["signals", "--runs-dir", str(folder / "runs"), "--run", "one", "--data", str(folder / "first.parquet")]
    assert main(words) == 2


def test_a_ticker_that_is_gone_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame(DAYS + 60, 5).query("ticker != 'T0'").to_parquet(folder / "fewer.parquet")
    begin(folder, "fewer", "--data", str(folder / "fewer.parquet"))
    shown = capsys.readouterr()
    assert "the data have no bars of T0, which one had" in shown.out + shown.err


def begin(folder: Path, name: str, *flags: str) -> ERLTrainer:
    """The trainer of a run that extends `one`, as its first generation begins."""
    stopped = mock.patch.object(ERLTrainer, "evaluate_population", autospec=True, side_effect=NotImplementedError)
    with stopped as met, pytest.raises(NotImplementedError):
        extend(folder, "one", "--run", name, "--data", str(folder / "more.parquet"), *flags)
    return met.call_args.args[0]


def test_it_begins_with_the_genes_of_the_other(folder: Path) -> None:
    """Genes, inputs that agents see, and how far they have come; networks begin anew, for the folds are others now."""
    trainer = begin(folder, "genes")
    parent = load_latest(folder / "runs" / "one" / "checkpoints")
    assert parent is not None and trainer.generation == 1
    population, earlier = trainer.population, parent.state["population"]
    assert population.updates == earlier["updates"] > 0
    # Agents of both runs count in the p-values.
    assert population.trials == earlier["examined"] > len(population)
    for name in ("genes", "feature_groups"):
        assert torch.equal(getattr(population, name), earlier[name]), name
    networks = population.networks
    for online, target in ((name, f"{name}_target") for name in ("critic", "actor")):
        assert torch.equal(networks.tensors[online], networks.tensors[target])
        assert not torch.equal(networks.tensors[online], earlier["networks"][online])
    for name, value in trainer.champion.state_dict()["networks"].items():
        assert torch.equal(value, networks.tensors[name][population.elites]), name


@pytest.mark.parametrize("has_inherited", [False, True])
def test_one_that_stopped_at_once_begins_with_the_same(extended: Path, has_inherited: bool) -> None:
    """Killed before it had inherited it inherits then, else the other run is not needed any more."""
    runs, left = extended / "runs", {"config.json", "config.toml", "extends.txt"}
    if has_inherited:
        left |= {"inherited", "market.json"}
        (runs / "one" / "checkpoints").rename(extended / "gone")
    for path in (runs / "two").iterdir():
        if path.name not in left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with unjudged():
        assert main(["--runs-dir", str(runs), "--resume", "two"]) == 0
    if has_inherited:
        (extended / "gone").rename(runs / "one" / "checkpoints")
    inherited = load_inherited(runs / "two")
    assert inherited is not None and inherited.run_id == "one"
    assert_like(extended / "tiny.toml", "two", "whole", 1)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("nobody", "--data", "more.parquet"), "expected a run in"),
        (("begun", "--data", "more.parquet"), "expected a complete generation of this version"),
        (("one", "--data", "data.parquet"), "expected the data of one with days after"),
        (("one", "--data", "other.parquet"), "got other data"),
        (("one", "--data", "more.parquet", "--population-size", "5"), "4 agents, got 5; leave --population-size out"),
        (("one", "--resume", "one"), "got both; leave one out"),
    ],
)
def test_mistakes_are_said_in_one_line(
    folder: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = frame(DAYS + 60, 5)
    other[PRICES] **= 1.01
    other.to_parquet(folder / "other.parquet")
    assert extend(folder, *(str(folder / word) if word.endswith(".parquet") else word for word in flags)) == 2
    shown = capsys.readouterr().err
    (line,) = (line for line in shown.splitlines() if "ERROR" in line or "expected" in line)
    assert message in line and "Traceback" not in shown
