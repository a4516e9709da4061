"""What a person at a terminal reads of a run, and what a file, a pipe and `run.log` have instead."""

import re
from pathlib import Path

import pytest

from tests.tiny_run import run
from utils import VERSION

BEGINNING = ("Initializing persistent evaluation environment...", "Initializing persistent validation environment...")
LINES = ("Generation 1 / 2\n", "Evaluating agents...", "Evolving population: 1 -> 2...", "Training range: days")
"""Lines that watchers of a log look for, of which a terminal shows the first two."""


@pytest.mark.parametrize("is_verbose", [False, True])
def test_a_terminal_shows_a_table_and_the_answer_or_everything(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_verbose: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert run(tiny, "--run", "one", *(["--verbose"] if is_verbose else [])) == 0
    shown, log = capsys.readouterr().out, (tiny.parent / "runs" / "one" / "run.log").read_text()
    for text in BEGINNING:
        assert text in log and text in shown, text
    for text in LINES:
        assert text in log and (text in shown) == is_verbose, text
    assert ("verdict: " in shown) == is_verbose and "RESULT  validation" in shown
    growth, judging, after = (log.index(text) for text in ("memory growth", "judging the", "memory of judging"))
    assert growth < judging < after, "judging is no growth"
    if is_verbose:
        return
    assert re.match(rf"ERL trader {VERSION.rpartition('.')[0]}, run\s+\S+runs/one:\s+2\s+generations\s+of\s+4", shown)
    for text in ("SYNTHETIC", "profit per episode", "agents add"):
        assert text in shown and text not in log, text
    rows = [line.split() for line in shown.splitlines() if line[:4].strip() in ("1", "2") and "agents" not in line]
    assert [row[0] for row in rows] == ["1", "2"] and all("p" in row for row in rows)
    assert re.findall(r"\n +RAM \d+\.\d\d GB, environments 2, agents 5, buffer (48|80) / 80\n", shown) == ["48", "80"]
    for line in shown.splitlines():
        assert len(line) <= 80 or " runs" in line or str(tiny.parent) in line, line
