"""Files of bars that tests write, prepare and read back, and what a refusal of one must be."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest

from data.prepare.prepare import prepare
from data.prepare.survey import PrepareSummary
from utils.config.prepare import Choices
from utils.errors import LookAheadError, ProgramError

PRICES = ["open", "high", "low", "close"]
LENIENT = Choices(max_bad_row_share=0.99)


def written(path: Path, content: str | bytes | pd.DataFrame) -> Path:
    """Write text, bytes or a frame as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = content.to_csv(index=False) if isinstance(content, pd.DataFrame) else content
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def prepared(source: Path, target: Path, choices: Choices | None = None) -> tuple[PrepareSummary, pd.DataFrame]:
    summary = prepare(source, target, choices=choices)
    assert summary.target == target
    assert {path.name for path in target.parent.iterdir()} - {f"{target.stem}.events.csv"} == {target.name}
    rows = pd.read_parquet(target).astype({"ticker": str})
    assert len(rows) == summary.rows_kept
    return summary, rows


def run(
    folder: Path, files: dict[str, str | bytes], only: str | None = None, choices: Choices | None = None
) -> tuple[PrepareSummary, pd.DataFrame]:
    for name, content in files.items():
        written(folder / "source" / name, content)
    return prepared(folder / "source" / (only or ""), folder / "made" / "bars.parquet", choices)


def bars(rows: pd.DataFrame) -> list[tuple[str, str, float, float, float, float]]:
    return [(row.ticker, row.date.isoformat(), *(getattr(row, name) for name in PRICES)) for row in rows.itertuples()]


@contextmanager
def refused(words: str) -> Iterator[None]:
    """Require an error in one line of these words, which says what was expected."""
    with pytest.raises(ProgramError, match=words) as caught:
        yield
    assert "\n" not in str(caught.value) and "expected" in str(caught.value)
    assert caught.value.exit_code == (4 if isinstance(caught.value, LookAheadError) else 2)


@contextmanager
def read_or_refused() -> Iterator[None]:
    """Allow an error in one line that says what was expected."""
    try:
        yield
    except ProgramError as error:
        assert "\n" not in str(error) and "expected" in str(error)
