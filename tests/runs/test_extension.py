"""A run on data that have grown begins with what an earlier one found, and says so."""

import json
import shutil
from pathlib import Path
from typing import Any

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


def test_a_run_goes_on_with_later_days(folder: Path) -> None:
    assert extend(folder, "one", "--run", "two", "--data", str(folder / "more.parquet"), "--generations", "1") == 0
    old, new = (open_saved_run(folder / "runs", name) for name in ("one", "two"))
    assert new.extends == "one" and old.extends == ""
    for name, span in vars(new.market.splits).items():
        assert new.market.dates[span.last] > old.market.dates[getattr(old.market.splits, name).last]
    before, after = (load_latest(folder / "runs" / name / "checkpoints") for name in ("one", "two"))
    assert before is not None and after is not None
    inherited = load_inherited(folder / "runs" / "two")
    assert inherited is not None and (inherited.run_id, inherited.generation) == ("one", 2)
    genes = inherited.state["population"]["genes"]
    assert torch.equal(genes, before.state["population"]["genes"])
    own = {tuple(row) for row in after.state["population"]["genes"].tolist()}
    elites = [tuple(genes[row].tolist()) for row in after.state["population"]["elites"]]
    assert elites and own >= set(elites), "the fittest of those who were inherited stay as they are"
    words = ["--runs-dir", str(folder / "runs"), "--run", "two", "--random-pickers", "20", "--rivals", "none"]
    assert main(["evaluate", "--split", "holdout", "--spend-look", *words]) == 0
    look = json.loads((folder / "runs" / "holdout.jsonl").read_text().splitlines()[-1])
    assert (look["run"], look["extends"]) == ("two", "one")


def test_prices_that_were_adjusted_again_are_the_same_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each ticker has paid a dividend, or was split, since the run was trained: named ones are told, earn the same."""
    later, prices = frame(DAYS + 60, 5), ["open", "high", "low", "close"]
    day, closes = later["date"].unique()[DAYS + 10], later["close"].to_numpy().reshape(-1, 5)
    paid, date = 0.005 * float(closes[DAYS + 9, 2]), str(day.date())
    rows = f"T3,{date},2,,\nT2,{date},,{paid!r},\nT1,{date},2,,\nT0,{date},4,,\n"  # that of T0 explains nothing
    (folder / "adjusted.events.csv").write_text(f"ticker,date,split,dividend,pay_date\n{rows}")
    told = (
        f"T0 (prices times 0.995), T1 (split 2:1 of {date}), T2 (dividend of {paid:g} of {date}), "
        f"T3 (split 2:1 of {date}), T4 (prices times 0.995)"
    )
    ratio = later["ticker"].map(
        {ticker: (0.995, 0.5)[place % 2] for place, ticker in enumerate(later["ticker"].unique())}
    )
    is_past = later["date"] < day
    later.loc[is_past, prices] = later.loc[is_past, prices].mul(ratio[is_past], axis=0)
    later.to_parquet(folder / "adjusted.parquet")
    data = ("--data", str(folder / "adjusted.parquet"))
    trainer = begin(folder, monkeypatch, "adjusted", *data)
    assert len(trainer.market.dates) == DAYS + 60
    assert f"5 tickers were adjusted again since one began: {told}\n" in capsys.readouterr().out
    evaluations = [
        ("evaluate", "--random-pickers", "20", "--rivals", "none", *flags) for flags in ((), ("--continuous",))
    ]
    for words in (("signals",), *evaluations, ("audit", "--days", "1")):
        results = []
        for source in (data, ()) if words in evaluations else (data,):
            assert main([*words, "--runs-dir", str(folder / "runs"), "--run", "one", *source]) == 0
            shown = capsys.readouterr().out
            assert (f"5 tickers were adjusted again since the run began: {told}\n" in shown) == bool(source)
            if words in evaluations:
                file = folder / "runs" / "one" / "evaluation-validation" / "results.json"
                policies = json.loads(file.read_text())["policies"]
                results.append({name: measures["return"]["value"] for name, measures in policies.items()})
        assert not results or results[0] == pytest.approx(results[1], abs=1e-3)


def test_a_ticker_with_another_past_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The new run learns from its prices as they are; what uses the old run refuses them."""
    other, is_first = frame(DAYS + 60, 5), frame(DAYS + 60, 5)["ticker"] == "T0"
    other.loc[is_first, ["open", "high", "low", "close"]] **= 1.01
    other.to_parquet(folder / "first.parquet")
    begin(folder, monkeypatch, "first", "--data", str(folder / "first.parquet"))
    shown = capsys.readouterr()
    assert "1 tickers have other prices than one knew, T0 the first" in shown.out + shown.err
    words = ["signals", "--runs-dir", str(folder / "runs"), "--run", "one", "--data", str(folder / "first.parquet")]
    assert main(words) == 2


class Begun(Exception):
    """A trainer that is about to run its first generation."""


def begin(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *flags: str) -> ERLTrainer:
    """The trainer of a run that extends `one`, as it is before its first generation."""
    met: list[ERLTrainer] = []

    def stop(self: ERLTrainer) -> None:
        met.append(self)
        raise Begun

    with monkeypatch.context() as patch:
        patch.setattr(ERLTrainer, "run_generation", stop)
        with pytest.raises(Begun):
            extend(folder, "one", "--run", name, "--data", str(folder / "more.parquet"), *flags)
    return met[0]


def test_it_begins_with_the_genes_of_the_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Genes, inputs that agents see, and how far they have come; networks begin anew, for the folds are others now."""
    trainer = begin(folder, monkeypatch, "genes")
    parent = load_latest(folder / "runs" / "one" / "checkpoints")
    assert parent is not None and trainer.generation == 0
    population, earlier = trainer.population, parent.state["population"]
    assert population.updates == earlier["updates"] > 0
    # Agents of both runs count in the p-values.
    assert population.trials == earlier["examined"] > len(population)
    for name in ("genes", "feature_groups", "reward_rate"):
        assert torch.equal(getattr(population, name), earlier[name]), name
    networks = population.networks
    for online, target in ((name, f"{name}_target") for name in ("critic", "actor")):
        assert torch.equal(networks.tensors[online], networks.tensors[target])
        assert not torch.equal(networks.tensors[online], earlier["networks"][online])
    for name, value in trainer.champion.state_dict()["networks"].items():
        assert torch.equal(value, networks.tensors[name][population.elites]), name


def test_one_that_was_killed_before_it_inherited_inherits_when_it_goes_on(folder: Path) -> None:
    """It would begin at random otherwise, without a word."""
    more = ("--data", str(folder / "more.parquet"), "--generations", "1")
    assert extend(folder, "one", "--run", "killed", *more) == 0
    killed, whole = folder / "runs" / "killed", folder / "runs" / "unkilled"
    shutil.copytree(killed, whole)
    for path in killed.iterdir():
        if path.name not in ("config.json", "config.toml", "extends.txt"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with unjudged():
        assert main(["--runs-dir", str(folder / "runs"), "--resume", "killed"]) == 0
    names = ("inherited", "checkpoints")
    states = [load_latest(path / name) for name in names for path in (killed, whole)]
    assert states[0] is not None and states[1] is not None and states[0].run_id == states[1].run_id == "one"
    assert states[2] is not None and states[3] is not None
    assert torch.equal(*(one.state["population"]["genes"] for one in states[2:] if one is not None))


def test_one_that_stopped_at_once_begins_with_the_same(folder: Path) -> None:
    more = ("--data", str(folder / "more.parquet"), "--generations", "1")
    assert extend(folder, "one", "--run", "whole", *more) == 0
    assert extend(folder, "one", "--run", "cut", *more) == 0
    cut = folder / "runs" / "cut"  # of which is left what one has that was stopped in its first generation
    shutil.rmtree(cut / "checkpoints")
    for name in ("metrics.jsonl", "summary.json"):
        (cut / name).unlink()
    (folder / "runs" / "one" / "checkpoints").rename(folder / "gone")
    with unjudged():
        assert main(["--runs-dir", str(folder / "runs"), "--resume", "cut"]) == 0
    (folder / "gone").rename(folder / "runs" / "one" / "checkpoints")
    assert_like(folder / "tiny.toml", "cut", "whole", 1)


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
    other[["open", "high", "low", "close"]] **= 1.01
    other.to_parquet(folder / "other.parquet")
    words = [str(folder / word) if word.endswith(".parquet") else word for word in flags]
    assert extend(folder, *words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "ERROR" in line or "expected" in line]
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in lines[0]
