"""`python main.py report`: what runs left in their files, side by side; nothing of a holdout that was not looked at."""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.evaluation.test_evaluate import spoilt_from
from tests.evaluation.test_page import Page
from tests.tiny_run import TINY, frame, run
from training.commands.report import (
    ReportedRun,
    cautions,
    differing_settings,
    read_run,
    render,
    runs_equity_chart,
    short_table,
)
from training.evaluation.holdout import LEDGER
from training.evaluation.measures import Estimate
from utils.charts import number
from utils.runs.run_log import RunLog

pytestmark = pytest.mark.usefixtures("restore_process")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs on one market, `one` and `two`, and on files that differ in their holdout only, `clean` and `spoilt`."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "tiny.toml").write_text(TINY)
    bars = frame(300, 5)
    bars.to_parquet(folder / "clean.parquet")
    spoilt_from(bars, int(300 * 0.85)).to_parquet(folder / "spoilt.parquet")
    for name, *flags in (
        ("one",),
        ("two", "--seed", "1", "--generations", "3"),
        ("clean", "--data", str(folder / "clean.parquet")),
        ("spoilt", "--data", str(folder / "spoilt.parquet")),
    ):
        assert run(folder / "tiny.toml", "--run", name, *flags) == 0
    return folder / "runs"


@pytest.fixture
def runs(original: Path, tmp_path: Path) -> Path:
    """A copy of those runs, to be changed."""
    return Path(shutil.copytree(original, tmp_path / "runs"))


def report(runs: Path, *words: str) -> int:
    return main(["report", "--runs-dir", str(runs), *words])


def evaluate(runs: Path, name: str, split: str) -> None:
    flags = ("--random-pickers", "20", "--rivals", "none", "--threads", "1")
    assert main(["evaluate", "--runs-dir", str(runs), "--run", name, "--split", split, *flags]) == 0


def summary(runs: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((runs / name / "summary.json").read_text())
    return found


def change_summary(runs: Path, name: str, values: dict[str, Any]) -> None:
    (runs / name / "summary.json").write_text(json.dumps(values))


def read(runs: Path, *names: str) -> list[ReportedRun]:
    return [read_run(RunLog.open(runs, name)) for name in names]


def test_the_command_shows_a_table_and_writes_the_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(runs, "one", "two", "one") == 0
    shown = capsys.readouterr().err
    head, _, *rows = shown[shown.index("run ") :].splitlines()
    assert head.split()[:3] == ["run", "return", "%"] and [row.split()[0] for row in rows[:2]] == ["one", "two"]
    assert "results can be compared" in shown and f"written to {runs / 'report.html'}" in shown
    page = Page((runs / "report.html").read_text())
    assert page.all("h1")[0][1] == "2 runs side by side"
    assert report(runs, "two", "--output", str(runs / "elsewhere.html")) == 0
    assert Page((runs / "elsewhere.html").read_text()).all("h1")[0][1] == "two: report"
    assert not list(runs.glob(".*")) and not (runs / LEDGER).exists()


def test_a_run_is_named_as_in_other_commands(runs: Path) -> None:
    os.utime(runs / "two" / "metrics.jsonl", times=(4e9, 4e9))
    for words, title in (((), "two: report"), (("one", "two"), "2 runs side by side")):
        assert report(runs, *words) == 0
        assert Page((runs / "report.html").read_text()).all("h1")[0][1] == title


def test_results_are_those_that_a_run_wrote_at_its_end(runs: Path) -> None:
    (one,) = read(runs, "one")
    found = summary(runs, "one")["champion"]
    row, yearly = found["validation"]["champion"], found["verdict"]["validation"]["percent_a_year"]
    judged = one.validation
    assert judged is not None and judged.generation == 2
    assert judged.measures["return"].value == row["return %"] and judged.measures["calmar"] == Estimate(None)
    assert judged.differences["over_random_picker"].value == yearly["over_random_picker"]["mean"]
    assert judged.equity is not None
    growth = judged.equity["champion"].iloc[-1] / judged.equity["champion"].iloc[0]
    assert growth == pytest.approx(1 + row["return %"] / 100)
    text = " ".join(Page(render([one])).texts[0].split())
    for key, decimals in (("return %", 1), ("Sharpe", 2), ("drawdown %", 1), ("exposure %", 1)):
        assert number(row[key], decimals) in text
    assert found["verdict"]["validation"]["sentence"] in text


def test_an_evaluation_tells_more_and_is_taken_unless_it_is_of_an_earlier_champion(runs: Path) -> None:
    before = read(runs, "one")[0].validation
    evaluate(runs, "one", "validation")
    after = read(runs, "one")[0].validation
    assert before is not None and after is not None
    assert after.measures["return"].value == pytest.approx(before.measures["return"].value)
    assert after.measures["return"].low is not None and before.measures["return"].low is None
    pd.testing.assert_frame_equal(after.equity, before.equity)
    newer = summary(runs, "one")
    newer["champion"]["generation"] = 3
    change_summary(runs, "one", newer)
    taken = read(runs, "one")[0].validation
    assert taken is not None and taken.generation == 3 and taken.measures == before.measures


def test_settings_that_differ_are_listed_and_no_others(runs: Path) -> None:
    assert dict(differing_settings(read(runs, "one", "two"))) == {"seed": ["0", "1"], "generations": ["2", "3"]}
    assert "No setting differs" in render(read(runs, "one"))
    data = dict(differing_settings(read(runs, "one", "clean")))["data"]
    assert data[0] == "None" and data[1].endswith("clean.parquet")


def test_what_cannot_be_compared_is_said(runs: Path) -> None:
    same = cautions(read(runs, "one", "two"))
    assert same[0].endswith("results can be compared.") and "best of 2" in same[-1]
    assert "judged on different days" in cautions(read(runs, "one", "clean"))[0]
    config = json.loads((runs / "two" / "config.json").read_text())
    config["env"]["cost_bps"] = 50.0
    (runs / "two" / "config.json").write_text(json.dumps(config))
    rules = cautions(read(runs, "one", "two"))
    assert rules[0].endswith("under other trading rules.") and "env.cost_bps" in rules[1]
    assert cautions(read(runs, "one")) == []
    assert all(text in " ".join(Page(render(read(runs, "one", "two"))).texts[0].split()) for text in rules)


def test_curves_are_drawn_by_day_or_by_session(runs: Path) -> None:
    one, two, clean = read(runs, "one", "two", "clean")
    chart = runs_equity_chart([one, two], with_equal_weight=True)
    assert chart is not None and one.validation is not None
    assert list(chart.lines) == ["one", "two", "equal weight"]
    assert one.validation.equity is not None
    np.testing.assert_array_equal(chart.x, one.validation.equity.index)
    equity = one.validation.equity["champion"].to_numpy()
    np.testing.assert_allclose(chart.lines["one"], 100 * (equity / equity[0] - 1))
    frames = pd.read_csv(runs / "one" / "equity.csv")
    np.testing.assert_allclose(
        chart.lines["equal weight"], 100 * (frames["equal weight"] / frames["equal weight"][0] - 1)
    )
    apart = runs_equity_chart([one, clean], with_equal_weight=False)
    assert apart is not None and apart.x[:2].tolist() == [0, 1] and "days differ" in apart.note


def test_a_run_that_has_not_ended_is_shown_as_far_as_it_got(runs: Path) -> None:
    for name in ("summary.json", "equity.csv", "report.html"):
        (runs / "two" / name).unlink()
    one, two = read(runs, "one", "two")
    assert two.validation is None and two.peak_mb and two.seconds > 0
    assert any("two has not been judged" in text for text in cautions([one, two]))
    page = Page(render([one, two]))
    assert "Not known, until it is evaluated: two" in " ".join(page.texts[0].split())
    assert "two" in short_table([one, two])
    (runs / "two" / "market.json").unlink()
    (runs / "two" / "metrics.jsonl").unlink()
    assert Page(render(read(runs, "two"))).all("h1")


def test_a_run_that_was_trained_further_is_told(runs: Path) -> None:
    values = summary(runs, "two")
    values["champion"]["generation"] = 2
    change_summary(runs, "two", values)
    assert any(
        "judged at generation 2 and has been trained to generation 3" in text for text in cautions(read(runs, "two"))
    )


def without_times(runs: Path, name: str) -> None:
    """Take out of a run's files what differs between equal runs: seconds and memory."""
    values = summary(runs, name)
    change_summary(runs, name, values | {"peak_rss_mb": 1.0})
    path = runs / name / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        record["seconds"]["total"], record["memory"]["rss_mb"] = 1.0, 1.0
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_a_page_holds_nothing_of_a_holdout(runs: Path) -> None:
    """Other prices on the holdout days, from training on: the same page, byte for byte, after a look, too."""
    evaluate(runs, "clean", "holdout")
    pages = []
    for name in ("clean", "spoilt"):
        without_times(runs, name)
        config = json.loads((runs / name / "config.json").read_text()) | {"data": "prices.parquet"}
        (runs / name / "config.json").write_text(json.dumps(config))
        pages.append(render([dataclasses.replace(*read(runs, name), name="same")]))
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("onne",), "the nearest is 'one'"),
        (("one", "--output", "no/such/folder/page.html"), "--output: expected a file in an existing folder"),
    ],
)
def test_mistakes_get_one_line_and_exit_code_2(
    original: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str
) -> None:
    assert report(original, *words) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR ")]
    assert len(errors) == 1 and says in errors[0]
    assert not (original / "report.html").exists()


@pytest.mark.parametrize("file", ["summary.json", "market.json", "equity.csv"])
@pytest.mark.parametrize("content", ["{", '{"champion": {"generation": 1}}'])
def test_a_damaged_file_is_named(runs: Path, capsys: pytest.CaptureFixture[str], file: str, content: str) -> None:
    (runs / "one" / file).write_text(content)
    assert report(runs, "one") == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR ")]
    assert len(errors) == 1 and file in errors[0]
