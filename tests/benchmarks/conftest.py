"""Studies print their tables to standard output; what earlier tests left of the program's console is not among them."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import __main__ as learning
from tests.benchmarks.study_cases import TINY, Studied, lines_of
from tests.conftest import RESAMPLES
from utils import statistics
from utils.runs.console import setup_logging


@pytest.fixture(autouse=True)
def messages_are_no_results() -> None:
    setup_logging(results=False)


@pytest.fixture(autouse=True)
def measured(all_formulas: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search formulas and resample accounts as what is measured does, in processes of their own, too."""
    monkeypatch.setattr(statistics, "RESAMPLES", RESAMPLES)


@pytest.fixture
def studied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Studied:
    """Does a tiny study of learning, or goes on with it, and returns what it printed and the results that it keeps."""

    def study(*words: str) -> tuple[list[str], list[dict[str, Any]]]:
        learning.main([words[0], *TINY, *words[1:], "--json", str(tmp_path / "results.jsonl")])
        shown = capsys.readouterr().out.splitlines()
        assert max(map(len, shown)) <= 120
        return shown, lines_of(tmp_path / "results.jsonl")

    return study
