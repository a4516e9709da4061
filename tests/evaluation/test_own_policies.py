"""`python main.py evaluate` with policies of the user: what is kept, what never trades, what may be bought, names."""

import json
from pathlib import Path

import pandas as pd
import pytest

from main import main
from tests.tiny_run import frame

POLICIES = """
import numpy as np

def fair(bars):
    return np.log(bars.close).diff(5)

class Waits:
    def act(self, observation, info):
        return np.tile(np.array([0.0, 10.0], np.float32), (len(info["candidates"]), 1))
"""


@pytest.fixture
def folder(tiny: Path) -> Path:
    """A folder with settings, policies and data."""
    (tiny.parent / "mine.py").write_text(POLICIES)
    frame(300, 5).to_parquet(tiny.parent / "data.parquet")
    return tiny.parent


def evaluate(folder: Path, *words: str) -> int:
    quick = ["--random-pickers", "20", "--rivals", "none", "--threads", "1", "--device", "cpu"]
    return main(["evaluate", "--runs-dir", str(folder / "runs"), "--config", str(folder / "tiny.toml"), *quick, *words])


def judged(folder: Path, name: str) -> Path:
    return folder / "runs" / "judged" / "evaluation-validation" / name


def test_other_results_of_a_policy_are_kept_and_equal_ones_are_not(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for variants in ("1", "1", "2", "3"):
        assert evaluate(folder, "--policy", f"{folder}/mine.py:fair", "--variants", variants) == 0
        kept = [path for path in judged(folder, "fair").parent.iterdir() if path.name != "fair"]
        assert [str(path) in capsys.readouterr().out for path in sorted(kept)[-1:]] in ([], [True])
        found.append(sorted(path.name for path in kept))
    assert found == [[], [], ["fair-1"], ["fair-1", "fair-2"]]
    trials = [
        json.loads((judged(folder, name) / "results.json").read_text())["verdict"]["trials"]
        for name in ("fair-1", "fair-2", "fair")
    ]
    assert trials == [1, 2, 3]
    (judged(folder, "fair") / "notes.txt").write_text("mine")
    assert evaluate(folder, "--policy", f"{folder}/mine.py:fair", "--variants", "3") == 0
    assert (judged(folder, "fair-3") / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "name", "reason"),
    [
        (("--policy", "mine.py:Waits"), "Waits", "a coefficient of 1 or more"),
        (("--scores", "late.csv"), "late", "none of its 1 scores above 0 passed the level"),
        (("--trades", "late.csv"), "late", "windows are settled"),
    ],
)
def test_of_a_policy_that_never_trades_one_line_says_so(
    words: tuple[str, str], name: str, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No verdict and no tables; files and exit code are those of other judgements."""
    # On a day of the first window's settlement.
    (folder / "late.csv").write_text("date,ticker,score,value\n2010-11-29,T1,1,20000\n")
    assert evaluate(folder, words[0], str(folder / words[1]), "--data", str(folder / "data.parquet")) == 0
    shown = capsys.readouterr().out
    assert f"{name} never traded from 2010-11-10 to 2010-12-24: no verdict. Perhaps " in shown and reason in shown
    assert "Sharpe" not in shown and "skill" not in shown
    verdict = json.loads((judged(folder, name) / "results.json").read_text())["verdict"]
    assert not verdict["has_skill"] and f"{name} never traded" in verdict["sentence"]
    page = (judged(folder, name) / "report.html").read_text()
    assert "never traded" in page and "skill in" not in page and "Parts and differences" not in page


def test_a_list_says_what_policies_of_the_user_may_buy(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "list.txt").write_text("T1\nT3\n")
    words = ("--policy", f"{folder}/mine.py:fair", "--data", str(folder / "data.parquet"))
    assert evaluate(folder, *words, "--investable", str(folder / "list.txt")) == 0
    assert set(pd.read_csv(judged(folder, "fair") / "trades.csv")["ticker"]) == {"T1", "T3"}
    assert evaluate(folder, *words, "--investable", str(folder / "list.txt"), "--run", "one") == 2
    assert "without a run, which has its settings" in capfd.readouterr().err
