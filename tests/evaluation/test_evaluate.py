"""`python main.py evaluate` as a user runs it, the holdout's ledger, and that training never reads the holdout."""

import contextlib
import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.tiny_run import TINY, frame, parameters, records, run, to_reproduce, unjudged
from training.evaluation import supervised
from training.evaluation.baselines import BENCHMARK
from training.evaluation.holdout import LEDGER
from training.evaluation.measures import METRICS

pytestmark = pytest.mark.usefixtures("small_heap")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, small_heap: None) -> Path:
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "tiny.toml").write_text(TINY)
    with unjudged():
        train(folder, "--run", "one")
    return folder / "runs"


def train(folder: Path, *flags: str) -> None:
    assert run(folder / "tiny.toml", *flags) == 0


def evaluate(runs: Path, *flags: str) -> int:
    words = ["--random-pickers", "20", "--threads", "1", *([] if "--rivals" in flags else ["--rivals", "none"])]
    return main(["evaluate", "--runs-dir", str(runs), *([] if "--run" in flags else ["--run", "one"]), *words, *flags])


def results(runs: Path, split: str, name: str = "one") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / name / f"evaluation-{split}" / "results.json").read_text())
    return found


def over_a_year(folder: Path) -> float:
    """The champion's mean daily return, percent a year."""
    equity = pd.read_csv(folder / "equity.csv")["champion"]
    return float(100 * 252 * equity.pct_change().mean())


def test_an_evaluation_leaves_report_results_trades_and_equity_and_repeats_to_the_bit(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With learned baselines and an index."""
    monkeypatch.setattr(supervised, "_ROUNDS", 3)
    folder, index = runs / "one" / "evaluation-validation", runs.parent / "index.csv"
    closes = pd.Series(np.linspace(100, 130, 300), pd.bdate_range("2000-01-03", periods=300).astype(str))
    closes.rename_axis("date").rename("close").to_csv(index)
    left = []
    assert evaluate(runs, "--rivals", "learned", "--benchmark", str(index)) == 0
    left.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert main(to_reproduce(folder / "report.html")) == 0
    left.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert left[0] == left[1]
    assert set(left[0]) == {"report.html", "results.json", "trades.csv", "positions.csv", "equity.csv"}
    found = results(runs, "validation")
    policies, sentence = found["policies"], found["verdict"]["sentence"]
    rules = {"60-day momentum", "5-day reversal", "12-1 momentum", "low volatility", "ridge", "LightGBM"}
    held = {"random picker", "equal weight", "buy and hold", "equal risk", "best agent"}
    assert set(policies) >= {"champion", "planted rule", "oracle", *rules, *held}
    assert all(set(policy) == set(METRICS) for policy in policies.values())
    assert set(found["return_percent_at_cost_bps"]["champion"]) == {"0", "5", "10", "25", "50"}
    assert found["verdict"]["trials"] == found["overfitting"]["trials"] == 1 and "trials" not in sentence
    assert found["overfitting"]["note"].startswith("Nothing was chosen on validation days")
    assert found["verdict"]["best_rival"] in {*rules, "equal risk", "index"} and found["verdict"]["rivals"] == 8
    assert set(found["information_coefficients"]) == {"champion", *rules, "planted rule", "oracle"}
    parts = found["verdict"]["percent_a_year"]
    profit = sum(parts[name]["mean"] for name in ("over_random_picker", "timing", "exposure"))
    assert profit == pytest.approx(over_a_year(folder), abs=1e-6)
    gain = closes[found["last_day"]] / closes[found["first_day"]] - 1
    assert policies["index"]["return"]["value"] == pytest.approx(100 * gain)
    assert policies["index"]["costs"]["value"] == 0
    assert "Built-in market" in found["known_biases"]
    trades, positions = (pd.read_csv(folder / f"{name}.csv") for name in ("trades", "positions"))
    assert {*trades["policy"]} == {*positions["policy"]} == {"champion"}
    assert len(positions) == policies["champion"]["positions"]["value"]
    assert trades["value"].abs().sum() == pytest.approx((positions["bought"] + positions["sold"]).sum())
    assert trades["date"].min() > found["first_day"] and found["benchmark"] == "equal weight"
    equity = pd.read_csv(folder / "equity.csv")
    growth = equity["champion"].iloc[-1] / equity["champion"].iloc[0]
    assert policies["champion"]["return"]["value"] == pytest.approx(100 * (growth - 1))
    assert (equity["date"].iloc[0], equity["date"].iloc[-1]) == (found["first_day"], found["last_day"])
    page = html.unescape((folder / "report.html").read_text())
    assert sentence[:40] in page and "Built-in market" in page


def test_each_look_at_the_holdout_is_counted_and_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another run on the same data is no free look: its champion is the second that these days judge."""
    assert not list(runs.rglob(LEDGER)), "neither training nor validation looks at it"
    with unjudged():
        train(runs.parent, "--run", "two", "--seed", "1", "--generations", "1")
    found = []
    for count, (name, champions) in enumerate((("one", 1), ("one", 1), ("two", 2)), start=1):
        assert evaluate(runs, "--run", name, "--split", "holdout", "--spend-look") == 0
        lines = [json.loads(line) for line in (runs / LEDGER).read_text().splitlines()]
        assert len(lines) == count
        assert f"by the data's fingerprint: {count}, of {champions} champions" in capsys.readouterr().out
        found.append(results(runs, "holdout", name))
        last, verdict = lines[-1], found[-1]["verdict"]
        assert last["run"] == name and last["result"] == verdict["sentence"] and verdict["trials"] == champions
        assert (last["first_day"], last["last_day"]) == (found[-1]["first_day"], found[-1]["last_day"])
        assert "evaluate" in last["command"] and "holdout" in last["command"]
        page = (runs / name / "evaluation-holdout" / "report.html").read_text()
        assert lines[0]["time"] in page and last["time"] in page
    assert found[0] == found[1], "looking again at the same champion changes nothing but the count"
    assert verdict["sentence"].endswith("; of 2 trials).")


def spoilt_from(clean: pd.DataFrame, day: int) -> pd.DataFrame:
    spoilt = clean.copy()
    is_later = (spoilt["date"] >= sorted(clean["date"].unique())[day]).to_numpy()
    noise = np.exp(np.random.default_rng(1).standard_normal(int(is_later.sum())))
    for name in ("open", "high", "low", "close"):
        spoilt.loc[is_later, name] *= noise
    return spoilt


def test_a_champion_knows_training_days_and_its_judgement_no_holdout(tmp_path: Path) -> None:
    """Other prices after training: the same champion, bit for bit; after validation: the same judgement too."""
    tiny, clean = tmp_path / "tiny.toml", frame(300, 5)
    tiny.write_text(TINY)
    for name, data in (("clean", clean), ("validated", spoilt_from(clean, 255)), ("trained", spoilt_from(clean, 210))):
        data.to_parquet(tmp_path / f"{name}.parquet")
        with unjudged() if name == "trained" else contextlib.nullcontext():
            train(tmp_path, "--run", name, "--data", str(tmp_path / f"{name}.parquet"))
    assert parameters(tiny, "clean", 2) == parameters(tiny, "trained", 2) == parameters(tiny, "validated", 2)
    assert records(tiny, "clean") == records(tiny, "validated") != records(tiny, "trained")
    kept = [[record | {"validation": None} for record in records(tiny, name)] for name in ("clean", "trained")]
    assert kept[0] == kept[1] and not (tmp_path / "runs" / LEDGER).exists()
    ends = [json.loads((tmp_path / "runs" / name / "results.json").read_text()) for name in ("clean", "validated")]
    assert all(ends[0][part] == ends[1][part] for part in ("verdict", "policies", "overfitting"))


def test_a_benchmark_of_the_users_takes_the_place_of_equal_weight(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of baselines, those that are not asked for are left out, as is an index that does not cover the days."""
    index = runs.parent / "old.csv"
    index.write_text("date,close\n1990-01-02,100\n1990-12-31,120\n")
    with unjudged():
        train(runs.parent, "--run", "other", "--generations", "1", "--benchmark-weights", "S001=1")
    assert evaluate(runs, "--run", "other", "--rivals", "none", "--benchmark", str(index)) == 0
    assert "the index is left out: expected closes from 2000" in capfd.readouterr().err
    found = results(runs, "validation", "other")
    assert found["policies"].keys().isdisjoint({"ridge", "LightGBM", "index"})
    assert found["benchmark"] == BENCHMARK and {BENCHMARK, "equal weight"} < set(found["policies"])
    assert " your benchmark (" in found["verdict"]["sentence"] and found["verdict"]["best_rival"]
    assert found["policies"][BENCHMARK]["held"]["value"] == pytest.approx(1, abs=0.05)
    assert found["policies"][BENCHMARK]["beta"]["value"] == pytest.approx(1)
