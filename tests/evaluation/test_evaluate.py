"""`python main.py evaluate` as a user runs it, the holdout's ledger, and that training never reads the holdout."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.tiny_run import TINY, frame, parameters, records, run
from training.evaluation.assessment import METRICS
from training.evaluation.holdout import LEDGER, Look, add_look, champions_looked_at, read_looks
from utils.charts import number
from utils.errors import ConfigError

pytestmark = pytest.mark.usefixtures("restore_process")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a finished one, called one."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "tiny.toml").write_text(TINY)
    train(folder, "--run", "one")
    return folder / "runs"


def train(folder: Path, *flags: str) -> None:
    assert run(folder / "tiny.toml", *flags) == 0


def evaluate(runs: Path, *flags: str) -> int:
    words = ["evaluate", "--runs-dir", str(runs), "--run", "one", "--random-pickers", "60", "--threads", "1"]
    return main([*words, *flags])


def results(runs: Path, split: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / "one" / f"evaluation-{split}" / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def evaluated(runs: Path) -> Path:
    """The folder of that run's evaluation on validation."""
    assert evaluate(runs) == 0
    return runs / "one" / "evaluation-validation"


def test_an_evaluation_leaves_report_results_trades_and_equity(runs: Path, evaluated: Path) -> None:
    folder = evaluated
    found = results(runs, "validation")
    policies = found["policies"]
    assert set(policies) >= {
        *("champion", "elite 1", "random picker", "equal weight", "buy and hold", "60-day momentum", "5-day reversal"),
        *("planted rule", "oracle"),
    }
    assert all(set(policy) == set(METRICS) for policy in policies.values())
    assert set(found["return_percent_at_cost_bps"]["champion"]) == {"0", "5", "10", "25", "50"}
    assert found["verdict"]["trials"] == 2 * 4 and found["verdict"]["sentence"].endswith("among 8 trials.")
    assert found["overfitting"]["trials"] == 8 and 0 <= found["overfitting"]["backtest_overfitting"] <= 1
    assert "Built-in market" in found["known_biases"] and "Chosen on these days" in found["known_biases"]
    trades, same = pd.read_csv(folder / "trades.csv"), pd.read_parquet(folder / "trades.parquet")
    pd.testing.assert_frame_equal(trades, same, check_dtype=False)
    champion = trades[trades["policy"] == "champion"]
    assert len(champion) == policies["champion"]["trades"]["value"]
    equity = pd.read_csv(folder / "equity.csv")
    growth = equity["champion"].iloc[-1] / equity["champion"].iloc[0]
    assert policies["champion"]["return"]["value"] == pytest.approx(100 * (growth - 1))
    assert (equity["date"].iloc[0], equity["date"].iloc[-1]) == (found["first_day"], found["last_day"])
    page = (folder / "report.html").read_text()
    assert found["verdict"]["sentence"][:40] in page and "Built-in market" in page


def test_an_evaluation_repeats_to_the_bit(runs: Path, evaluated: Path) -> None:
    once = {path.name: path.read_bytes() for path in evaluated.iterdir()}
    assert evaluate(runs) == 0
    assert once == {path.name: path.read_bytes() for path in evaluated.iterdir()}
    assert set(once) == {"report.html", "results.json", "trades.csv", "trades.parquet", "equity.csv"}


def test_each_look_at_the_holdout_is_counted_and_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not (runs / "one" / LEDGER).exists(), "neither training nor validation looks at it"
    first = []
    for count in (1, 2):
        assert evaluate(runs, "--split", "holdout") == 0
        looks = read_looks(runs / "one")
        assert len(looks) == count
        assert f"looks at the holdout of this run: {count}" in capsys.readouterr().err
        found = results(runs, "holdout")
        assert looks[-1].result == found["verdict"]["sentence"]
        assert (looks[-1].first_day, looks[-1].last_day) == (found["first_day"], found["last_day"])
        assert "evaluate" in looks[-1].command and "holdout" in looks[-1].command
        page = (runs / "one" / "evaluation-holdout" / "report.html").read_text()
        assert page.count(looks[0].time) >= 1 and looks[-1].time in page
        first.append(found)
    assert first[0] == first[1], "looking again at the same champion changes nothing but the count"
    assert found["verdict"]["trials"] == 1


def test_a_training_run_ends_with_the_judgement_that_its_summary_holds(runs: Path) -> None:
    """The page and summary.json say the same, with the pickers of `evaluate`: the champion's orders, other stocks."""
    page = (runs / "one" / "report.html").read_text()
    assert "one: champion on validation" in page
    champion = json.loads((runs / "one" / "summary.json").read_text())["champion"]
    for row in champion["validation"].values():
        for shown in (number(row["return %"], 1), number(row["Sharpe"], 2)):
            assert re.search(rf">{re.escape(shown)}[ <]", page), shown
    assert champion["validation"]["random picker"]["trades"] <= champion["validation"]["champion"]["trades"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--run", "two"), "expected a run in"),
        (("--split", "training"), "expected validation or holdout"),
        (("--random-pickers", "0"), "random-pickers >= 1"),
        (("--data", "missing.parquet"), "expected an existing file for --data"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    runs: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(runs, *flags) == 2
    shown = capsys.readouterr().err
    assert message in shown and "Traceback" not in shown


def look(generation: int) -> Look:
    return Look("2026-01-01T00:00:00+00:00", "evaluate", generation, "2014-01-02", "2014-11-10", 1.5, "Not better.")


def test_the_ledger_keeps_every_look_and_counts_champions(tmp_path: Path) -> None:
    assert read_looks(tmp_path) == [] and champions_looked_at([], 4) == 1
    kept = [look(3), look(3), look(9)]
    for one in kept:
        add_look(tmp_path, one)
    assert read_looks(tmp_path) == kept
    assert champions_looked_at(kept, 9) == 2 and champions_looked_at(kept, 12) == 3
    with (tmp_path / LEDGER).open("a") as file:
        file.write("torn\n")
    with pytest.raises(ConfigError, match="line 4"):
        read_looks(tmp_path)


def test_training_and_the_choice_of_the_champion_never_read_the_holdout(tmp_path: Path) -> None:
    """Other prices on every day after validation: the same metrics and champion, bit for bit."""
    (tmp_path / "tiny.toml").write_text(TINY)
    clean = frame(300, 5)
    last = sorted(clean["date"].unique())[int(300 * 0.85)]
    spoilt = clean.copy()
    is_later = (spoilt["date"] >= last).to_numpy()
    noise = np.exp(np.random.default_rng(1).standard_normal(int(is_later.sum())))
    for name in ("open", "high", "low", "close"):
        spoilt.loc[is_later, name] *= noise
    for name, data in (("clean", clean), ("spoilt", spoilt)):
        (tmp_path / name).mkdir()
        data.to_parquet(tmp_path / name / "data.parquet")
        train(tmp_path, "--run", name, "--generations", "1", "--data", str(tmp_path / name / "data.parquet"))
    tiny = tmp_path / "tiny.toml"
    assert records(tiny, "clean") == records(tiny, "spoilt")
    assert parameters(tiny, "clean", 1) == parameters(tiny, "spoilt", 1)
    assert not (tmp_path / "runs" / "clean" / LEDGER).exists()
    runs = tmp_path / "runs"
    champions = [json.loads((runs / name / "summary.json").read_text())["champion"] for name in ("clean", "spoilt")]
    assert champions[0] == champions[1] and "holdout" not in champions[0]
    found = []
    for name in ("clean", "spoilt"):
        words = ("--runs-dir", str(runs), "--run", name, "--split", "holdout", "--random-pickers", "20")
        assert main(["evaluate", *words]) == 0
        found.append(json.loads((runs / name / "evaluation-holdout" / "results.json").read_text())["policies"])
    assert found[0] != found[1]
