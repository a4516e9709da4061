"""The command line of paper accounts, on files that grow."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from main import main
from tests.tiny_run import frame
from training.paper.journal import JOURNAL, Journal
from utils.runs.run_log import REPORT

LEARNED = 300
FRAME = frame(320, 5)
DATES = FRAME["date"].astype(str).unique().tolist()
NUMBERS = itertools.count()


def rows_until(day: int) -> pd.DataFrame:
    return FRAME[FRAME["date"] <= np.datetime64(DATES[day], "s")].copy()


class Commands:
    """The commands about one account, which has a data file of its own beside the folder of runs."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.runs, self.name, self._capsys = home, home / "runs", f"account{next(NUMBERS)}", capsys
        self.path, self.data = self.runs / self.name, home / f"{self.name}.parquet"
        self.write(LEARNED - 1)

    def __call__(self, command: str, *words: str) -> int:
        return main(["paper", command, self.name, *words, "--runs-dir", str(self.runs)])

    def open(self, *words: str) -> int:
        return self("open", "--data", str(self.data), *words)

    def write(self, day: int) -> None:
        """Write the data file up to a day."""
        rows_until(day).to_parquet(self.data)

    @property
    def shown(self) -> str:
        """What was written since it was last asked for."""
        return "".join(self._capsys.readouterr())

    @property
    def page(self) -> str:
        return (self.path / REPORT).read_text()

    @property
    def kinds(self) -> list[str]:
        with Journal(self.path / JOURNAL) as journal:
            known = ("session", "intent", "answer", "hold", "missed", "stop", "go")
            rows = (row for kind in known for row in journal.of(kind).values())
            return [row.kind for row in sorted(rows, key=lambda row: row.number)]
