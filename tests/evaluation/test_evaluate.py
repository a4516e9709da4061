"""`python main.py evaluate` as a user runs it, the holdout's ledger, and that training never reads the holdout."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.tiny_run import TINY, frame, parameters, records, run
from training.evaluation.holdout import LEDGER
from training.evaluation.measures import METRICS

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


WINDOW = 16


def over_a_year(folder: Path) -> float:
    """The champion's profit in percent of its initial capital a year: each window of 16 days begins anew."""
    equity = pd.read_csv(folder / "equity.csv")["champion"].to_numpy()
    ends = equity[::WINDOW]
    assert (len(equity) - 1) % WINDOW == 0
    return float(100 * (ends[1:] / ends[:-1] - 1).sum() / (len(equity) - 1) * 252)


def test_an_evaluation_leaves_report_results_trades_and_equity(runs: Path, evaluated: Path) -> None:
    folder = evaluated
    found = results(runs, "validation")
    policies, sentence = found["policies"], found["verdict"]["sentence"]
    assert set(policies) >= {
        *("champion", "random picker", "equal weight", "buy and hold", "60-day momentum", "5-day reversal"),
        *("planted rule", "oracle", "equal risk", "12-1 momentum", "low volatility", "ridge", "LightGBM"),
    }
    assert all(set(policy) == set(METRICS) for policy in policies.values())
    assert set(found["return_percent_at_cost_bps"]["champion"]) == {"0", "5", "10", "25", "50"}
    assert found["verdict"]["trials"] == found["overfitting"]["trials"] == 1 and "trials" not in sentence
    assert found["overfitting"]["note"].startswith("Nothing was chosen on validation days")
    rules = {"60-day momentum", "5-day reversal", "12-1 momentum", "low volatility", "ridge", "LightGBM"}
    assert found["verdict"]["best_rival"] in {*rules, "equal risk"} and found["verdict"]["rivals"] == 7
    assert set(found["information_coefficients"]) == {"champion", *rules, "planted rule", "oracle"}
    parts = found["verdict"]["percent_a_year"]
    profit = sum(parts[name]["mean"] for name in ("over_random_picker", "timing", "exposure"))
    assert profit == pytest.approx(over_a_year(folder), abs=1e-6)
    assert "Built-in market" in found["known_biases"]
    trades, same = pd.read_csv(folder / "trades.csv"), pd.read_parquet(folder / "trades.parquet")
    pd.testing.assert_frame_equal(trades, same, check_dtype=False)
    champion = trades[trades["policy"] == "champion"]
    assert len(champion) == policies["champion"]["trades"]["value"]
    equity = pd.read_csv(folder / "equity.csv")
    growth = equity["champion"].iloc[-1] / equity["champion"].iloc[0]
    assert policies["champion"]["return"]["value"] == pytest.approx(100 * (growth - 1))
    assert (equity["date"].iloc[0], equity["date"].iloc[-1]) == (found["first_day"], found["last_day"])
    page = (folder / "report.html").read_text()
    assert sentence[:40] in page and "Built-in market" in page


def test_baselines_may_be_left_out_and_a_benchmark_be_given(
    runs: Path, evaluated: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index = runs.parent / "index.csv"
    days = pd.bdate_range("2000-01-03", periods=300)
    pd.DataFrame({"date": days, "close": np.linspace(100, 130, 300)}).to_csv(index, index=False)
    assert evaluate(runs, "--rivals", "none", "--benchmark", str(index)) == 0
    found = results(runs, "validation")
    assert found["policies"].keys().isdisjoint({"ridge", "LightGBM"})
    assert found["policies"]["benchmark"]["return"]["value"] > 0 == found["policies"]["benchmark"]["costs"]["value"]
    assert found["verdict"]["rivals"] == 6
    index.write_text("date,close\n1990-01-02,100\n1990-12-31,120\n")
    capfd.readouterr()
    assert evaluate(runs, "--rivals", "none", "--benchmark", str(index)) == 0
    assert "the benchmark is left out: expected closes from 2000" in capfd.readouterr().err
    assert "benchmark" not in results(runs, "validation")["policies"]
    assert evaluate(runs) == 0


def test_supervised_baselines_are_refitted_on_request(runs: Path, evaluated: Path) -> None:
    once = pd.read_csv(evaluated / "equity.csv")
    assert evaluate(runs, "--rival-refit", "5") == 0
    rolling = pd.read_csv(evaluated / "equity.csv")
    assert (once["champion"] == rolling["champion"]).all()
    assert (once["ridge"] != rolling["ridge"]).any()
    assert evaluate(runs) == 0


def test_an_evaluation_repeats_to_the_bit(runs: Path, evaluated: Path) -> None:
    once = {path.name: path.read_bytes() for path in evaluated.iterdir()}
    assert evaluate(runs) == 0
    assert once == {path.name: path.read_bytes() for path in evaluated.iterdir()}
    assert set(once) == {"report.html", "results.json", "trades.csv", "trades.parquet", "equity.csv"}


def test_each_look_at_the_holdout_is_counted_and_shown(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not list(runs.rglob(LEDGER)), "neither training nor validation looks at it"
    first = []
    for count in (1, 2):
        assert evaluate(runs, "--split", "holdout") == 0
        lines = [json.loads(line) for line in (runs / LEDGER).read_text().splitlines()]
        assert len(lines) == count
        assert f"by the data's fingerprint: {count}, of 1 champions" in capsys.readouterr().err
        found, last = results(runs, "holdout"), lines[-1]
        assert last["run"] == "one" and last["result"] == found["verdict"]["sentence"]
        assert (last["first_day"], last["last_day"]) == (found["first_day"], found["last_day"])
        assert "evaluate" in last["command"] and "holdout" in last["command"]
        page = (runs / "one" / "evaluation-holdout" / "report.html").read_text()
        assert page.count(lines[0]["time"]) >= 1 and last["time"] in page
        first.append(found)
    assert first[0] == first[1], "looking again at the same champion changes nothing but the count"
    assert found["verdict"]["trials"] == 1


def test_a_new_seed_is_not_a_free_look(runs: Path) -> None:
    """Another run on the same data: its champion is the second that these days judge."""
    assert evaluate(runs, "--split", "holdout") == 0
    train(runs.parent, "--run", "two", "--seed", "1")
    assert (
        main(["evaluate", "--runs-dir", str(runs), "--run", "two", "--random-pickers", "60", "--split", "holdout"]) == 0
    )
    found = json.loads((runs / "two" / "evaluation-holdout" / "results.json").read_text())
    assert found["verdict"]["trials"] == 2
    assert found["verdict"]["sentence"].endswith("; of 2 trials).")


def spoilt_from(clean: pd.DataFrame, day: int) -> pd.DataFrame:
    """The same bars, with other prices from a day on."""
    spoilt = clean.copy()
    is_later = (spoilt["date"] >= sorted(clean["date"].unique())[day]).to_numpy()
    noise = np.exp(np.random.default_rng(1).standard_normal(int(is_later.sum())))
    for name in ("open", "high", "low", "close"):
        spoilt.loc[is_later, name] *= noise
    return spoilt


def test_a_champion_knows_training_days_and_its_judgement_no_holdout(tmp_path: Path) -> None:
    """Other prices after training: the same champion, bit for bit; after validation: the same judgement too."""
    tiny, runs = tmp_path / "tiny.toml", tmp_path / "runs"
    tiny.write_text(TINY)
    clean = frame(300, 5)
    for name, data in (
        ("clean", clean),
        ("trained", spoilt_from(clean, int(300 * 0.7))),
        ("validated", spoilt_from(clean, int(300 * 0.85))),
    ):
        (tmp_path / name).mkdir()
        data.to_parquet(tmp_path / name / "data.parquet")
        train(tmp_path, "--run", name, "--generations", "2", "--data", str(tmp_path / name / "data.parquet"))
    assert not (runs / LEDGER).exists()
    assert parameters(tiny, "clean", 2) == parameters(tiny, "trained", 2) == parameters(tiny, "validated", 2)
    assert records(tiny, "clean") == records(tiny, "validated")
    kept = [[record | {"validation": None} for record in records(tiny, name)] for name in ("clean", "trained")]
    assert kept[0] == kept[1] and records(tiny, "clean") != records(tiny, "trained")
    clean_end, trained_end, validated_end = (
        json.loads((runs / name / "summary.json").read_text())["champion"] for name in ("clean", "trained", "validated")
    )
    assert clean_end == validated_end != trained_end and "holdout" not in clean_end
    found = []
    for name in ("clean", "validated"):
        words = ("--runs-dir", str(runs), "--run", name, "--split", "holdout", "--random-pickers", "20")
        assert main(["evaluate", *words]) == 0
        found.append(json.loads((runs / name / "evaluation-holdout" / "results.json").read_text())["policies"])
    assert found[0] != found[1]
