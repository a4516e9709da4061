"""`python main.py report`: what runs left in their files, side by side; nothing of a holdout that was not looked at."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from main import main
from tests.evaluation.test_page import Page
from tests.tiny_run import TINY, run
from training.commands.report import ReportedRun, cautions, differing_settings, read_run, render, short_table
from training.evaluation.holdout import LEDGER
from utils.charts import number
from utils.runs.run_log import RunLog

pytestmark = pytest.mark.usefixtures("small_heap")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run `one`, and runs like it: `two` with other settings, `later` with other days."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "tiny.toml").write_text(TINY)
    assert run(folder / "tiny.toml", "--run", "one") == 0
    runs = folder / "runs"
    for name in ("two", "later"):
        shutil.copytree(runs / "one", runs / name)
    change(runs / "two" / "config.json", seed=1, generations=3)
    equity = pd.read_csv(runs / "later" / "equity.csv", parse_dates=["date"])
    equity.assign(date=equity["date"] + pd.Timedelta(days=7)).to_csv(runs / "later" / "equity.csv", index=False)
    (runs / "later" / "market.json").unlink()
    return runs


@pytest.fixture
def runs(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "runs"))


def report(runs: Path, *words: str) -> int:
    return main(["report", "--runs-dir", str(runs), *words])


def change(path: Path, **changes: Any) -> dict[str, Any]:
    """Return what a file of JSON holds, after these changes of it."""
    found: dict[str, Any] = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(found))
    return found


def results(runs: Path, name: str, **changes: Any) -> dict[str, Any]:
    return change(runs / name / "results.json", **changes)


def read(runs: Path, *names: str) -> list[ReportedRun]:
    return [read_run(RunLog.open(runs, name)) for name in names]


def test_the_command_shows_a_table_and_writes_the_page(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(runs, "one", "two", "one") == 0
    shown = capsys.readouterr().out
    head, _, *rows = shown[shown.index("run ") :].splitlines()
    assert head.split()[:2] == ["run", "Return"] and [row.split()[0] for row in rows[:2]] == ["one", "two"]
    assert "results can be compared" in shown and f"written to {runs / 'report.html'}" in shown
    page = Page((runs / "report.html").read_text())
    assert page.all("h1")[0][1] == "2 runs side by side"
    assert report(runs, "two", "--output", str(runs / "elsewhere.html")) == 0
    assert Page((runs / "elsewhere.html").read_text()).all("h1")[0][1] == "two: report"
    assert not list(runs.glob(".*")) and not (runs / LEDGER).exists()


def test_results_are_those_that_a_run_wrote_at_its_end(runs: Path) -> None:
    (one,) = read(runs, "one")
    found = one.results
    assert found == results(runs, "one") and found["champion_generation"] == 2 and one.equity is not None
    measures = found["policies"]["champion"]
    growth = one.equity["champion"].iloc[-1] / one.equity["champion"].iloc[0]
    assert growth == pytest.approx(1 + measures["return"]["value"] / 100)
    text = " ".join(Page(render([one])).texts[0].split())
    for key, decimals in (("return", 1), ("sharpe", 2), ("max_drawdown", 1), ("exposure", 1)):
        assert number(measures[key]["value"], decimals) in text
    assert found["verdict"]["sentence"] in text.replace("\N{MINUS SIGN}", "-").replace("±", "+-")


def test_an_evaluation_is_taken_and_that_of_an_earlier_champion_left_or_told(runs: Path) -> None:
    results(runs, "two", run="evaluated")
    shutil.copytree(runs / "two", runs / "one" / "evaluation-validation")
    assert read(runs, "one")[0].results["run"] == "evaluated"
    results(runs, "one", champion_generation=4)
    assert read(runs, "one")[0].results["run"] == "one"
    results(runs, "two", champion_generation=1)
    assert any("judged at generation 1 and trained to generation 2" in text for text in cautions(read(runs, "two")))


def test_settings_that_differ_are_listed_and_no_others(runs: Path) -> None:
    assert {*differing_settings(read(runs, "one", "two"))} == {("seed", "0", "1"), ("generations", "2", "3")}
    assert "No setting differs" in render(read(runs, "one"))


def test_what_cannot_be_compared_is_said(runs: Path) -> None:
    same = cautions(read(runs, "one", "two"))
    assert same[0].endswith("results can be compared.") and "best of 2" in same[-1]
    assert "judged on different days" in cautions(read(runs, "one", "later"))[0]
    path = runs / "two" / "config.json"
    change(path, env=json.loads(path.read_text())["env"] | {"cost_bps": 50.0})
    rules = cautions(read(runs, "one", "two"))
    assert rules[0].endswith("of the same data: results cannot be compared.") and "env.cost_bps" in rules[1]
    assert cautions(read(runs, "one")) == []
    assert all(text in " ".join(Page(render(read(runs, "one", "two"))).texts[0].split()) for text in rules)


def test_a_run_that_has_not_ended_is_shown_as_far_as_it_got(runs: Path) -> None:
    for name in ("summary.json", "results.json", "equity.csv", "report.html"):
        (runs / "two" / name).unlink()
    one, two = read(runs, "one", "two")
    assert not two.results and two.seconds > 0
    assert any("two is not judged" in text for text in cautions([one, two]))
    assert "two" in short_table([one, two]) and "two" in Page(render([one, two])).texts[0]
    (runs / "two" / "market.json").unlink()
    (runs / "two" / "metrics.jsonl").unlink()
    assert Page(render(read(runs, "two"))).all("h1")


def test_mistakes_and_damaged_files_are_named_in_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*words: str) -> str:
        assert report(runs, *words) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR ")]
        return line

    assert "the nearest is 'one'" in error("onne")
    assert "--output: expected a file in an existing folder" in error("one", "--output", "no/such/folder/page.html")
    for name in ("results.json", "market.json", "equity.csv"):
        path = runs / "one" / name
        whole = path.read_bytes()
        for damaged in ("{", '{"champion_generation": 1}'):
            path.write_text(damaged)
            assert name in error("one")
        path.write_bytes(whole)
    assert not (runs / "report.html").exists()
