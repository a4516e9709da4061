"""A run on data that have grown begins with what an earlier one found, and says so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from main import main
from tests.tiny_run import TINY, frame, records, unjudged
from tests.tiny_run import run as train
from training.run.extension import INHERITED, Inheritance
from training.run.saved import open_saved_run
from utils.errors import ConfigError
from utils.runs.checkpoint import load_latest

DAYS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on 300 days, one that has just begun, the file, and the file with 60 days more."""
    path = tmp_path_factory.mktemp("runs")
    (path / "tiny.toml").write_text(TINY)
    frame(DAYS + 60, 5).to_parquet(path / "more.parquet")
    frame(DAYS + 60, 5).head(DAYS * 5).to_parquet(path / "data.parquet")
    with unjudged():
        assert train(path / "tiny.toml", "--run", "one", "--data", str(path / "data.parquet")) == 0
    (path / "runs" / "begun").mkdir()
    shutil.copy(path / "runs" / "one" / "config.json", path / "runs" / "begun")
    return path


def extend(folder: Path, *flags: str) -> int:
    with unjudged():
        return main(["--runs-dir", str(folder / "runs"), "--extend", *flags])


def test_a_run_goes_on_with_later_days(folder: Path) -> None:
    assert extend(folder, "one", "--run", "two", "--data", str(folder / "more.parquet")) == 0
    old, new = (open_saved_run(folder / "runs", name) for name in ("one", "two"))
    assert new.extends == "one" and old.extends == ""
    for name, span in vars(new.market.splits).items():
        assert new.market.dates[span.last] > old.market.dates[getattr(old.market.splits, name).last]
    before, after = (load_latest(folder / "runs" / name / "checkpoints") for name in ("one", "two"))
    assert before is not None and after is not None
    inherited = Inheritance.of(folder / "runs" / "two")
    assert inherited is not None and inherited.generation == 2
    assert torch.equal(torch.tensor(inherited.genes, dtype=torch.float64), before.state["population"]["genes"])
    cash_value = torch.tensor(inherited.cash_value, dtype=torch.float64)
    assert torch.equal(cash_value, before.state["champion"]["cash_value"]["weights"])
    own = {tuple(row) for row in after.state["population"]["genes"].tolist()}
    assert own & {tuple(row) for row in inherited.genes}, "elites stay as they are"


def test_one_that_stopped_at_once_begins_with_the_same(folder: Path) -> None:
    """Also where the run that it extends has gone on since."""
    more = ("--data", str(folder / "more.parquet"))
    assert extend(folder, "one", "--run", "whole", *more) == 0
    assert extend(folder, "one", "--run", "cut", *more) == 0
    cut = folder / "runs" / "cut"
    for file in (*cut.glob("checkpoints/*/*"), cut / "metrics.jsonl", cut / "summary.json"):
        file.unlink()
    for generation in cut.glob("checkpoints/*"):
        generation.rmdir()
    (folder / "runs" / "one" / "checkpoints").rename(folder / "gone")
    with unjudged():
        assert main(["--runs-dir", str(folder / "runs"), "--resume", "cut"]) == 0
    (folder / "gone").rename(folder / "runs" / "one" / "checkpoints")
    assert records(folder / "tiny.toml", "cut") == records(folder / "tiny.toml", "whole")


def test_a_look_at_its_holdout_names_the_run_that_it_extends(folder: Path) -> None:
    assert extend(folder, "one", "--run", "looked", "--data", str(folder / "more.parquet")) == 0
    words = ["--runs-dir", str(folder / "runs"), "--run", "looked", "--random-pickers", "20", "--rivals", "none"]
    assert main(["evaluate", "--split", "holdout", *words]) == 0
    look = json.loads((folder / "runs" / "holdout.jsonl").read_text().splitlines()[-1])
    assert (look["run"], look["extends"]) == ("looked", "one")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("nobody", "--data", "more.parquet"), "expected a run in"),
        (("begun", "--data", "more.parquet"), "expected a complete generation of this version"),
        (("one", "--data", "data.parquet"), "expected the data of one with days after"),
        (("one", "--data", "other.parquet"), "of other data"),
        (("one", "--data", "more.parquet", "--population-size", "5"), "expected a population of 4, as that of one"),
        (("one", "--resume", "one"), "got both; leave one out"),
    ],
)
def test_mistakes_are_said_in_one_line(
    folder: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = frame(DAYS + 60, 5)
    other[["open", "high", "low", "close"]] *= 2
    other.to_parquet(folder / "other.parquet")
    words = [str(folder / word) if word.endswith(".parquet") else word for word in flags]
    assert extend(folder, *words) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "ERROR" in line or "expected" in line]
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in lines[0]


def test_a_damaged_inheritance_is_named(tmp_path: Path) -> None:
    (tmp_path / INHERITED).write_text('{"run": ')
    with pytest.raises(ConfigError, match="expected what a run inherited"):
        Inheritance.of(tmp_path)
