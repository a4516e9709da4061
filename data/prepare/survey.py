"""What was read and written, and the quality of prepared bars: coverage, gaps, suspicious moves, survivors."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utils.arrays import DateArray, Int64Array

LARGE_LOG_MOVE, REVERSING_MOVE = 0.4, 0.22
"""Absolute log returns of a close that are suspicious, up by a half or down by a third, and that are if undone."""
_UNDONE = 0.2
"""Share of a move left a session later, below which the move counts as undone."""
MOST_SURVIVORS = 0.95
"""Share of the tickers that trade to the end from which on those that failed seem to be missing."""
_NAMED = 3
"""Findings of a kind listed on a line."""
_LISTED = 20
"""Lines of details that are printed."""


@dataclass(frozen=True)
class Survey:
    """Facts about prepared bars; lists of named tuples, complete and the worst first."""

    years: list[dict[str, str | float]]
    """By year: sessions, tickers, rows, and the percent of sessions on which a ticker of that year traded."""
    dates: DateArray
    """(sessions,)"""
    traded: Int64Array
    """(sessions,) tickers that traded."""
    gaps: list[Any]
    """`ticker`, the bars before and after (`first`, `last`) and the `sessions` between them."""
    moves: list[Any]
    """`ticker`, `date`, `percent` of the move of a close, `undone`: whether the next bar undoes it."""
    early: list[Any]
    """Tickers that end before the last session: `ticker`, `first`, `last` day, `sessions`."""
    tickers: int

    @property
    def survivor_line(self) -> str:
        """Return the share of survivors with a warning if it is suspiciously high."""
        share = f"{self.tickers - len(self.early):,} of {self.tickers:,} tickers trade on the last day"
        if len(self.early) <= (1.0 - MOST_SURVIVORS) * self.tickers and self.tickers > 1:
            return f"Survivors only: {share}; stocks that failed seem to be missing, which flatters results"
        return f"Survivors: {share}"

    def lines(self) -> list[str]:
        """Return a summary, one line per kind of finding."""
        undone = f"Suspicious moves ({sum(one.undone for one in self.moves):,} undone the next day)"
        return [
            _line("Gaps", [f"{one.ticker} {one.sessions:,} sessions, {one.first} to {one.last}" for one in self.gaps]),
            _line(undone, [f"{one.ticker} {one.percent:+,.0f}% on {one.date}" for one in self.moves]),
            _line("Tickers that end early", [f"{one.ticker} on {one.last}" for one in self.early]),
            self.survivor_line,
        ]


@dataclass
class PrepareSummary:
    """Counts of what was read, kept and dropped, and why; filled in by `prepare`."""

    target: Path
    files_read: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(file, reason) of each file without usable rows."""
    rows_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows dropped, by reason."""
    examples: dict[str, str] = field(default_factory=dict)
    """By reason, the cells of the first row that was dropped for it."""
    tickers: int = 0
    first_date: date = date.min
    last_date: date = date.min
    notes: list[str] = field(default_factory=list)
    """What was adjusted, and assumptions made where a file is ambiguous."""
    closes_only: int = 0
    """Files without open, high and low."""
    benchmark: Path | None = None
    """CSV file of the index removed from the data."""
    appended: int | None = None
    """Bars that were appended to those of an earlier file; None where there was none."""
    readjusted: int = 0
    """Tickers of an earlier file whose bars were multiplied."""
    survey: Survey = field(init=False)

    def lines(self) -> list[str]:
        """Return the summary as lines to print."""
        details = [
            *(f"  dropped {rows}: {reason}" for reason, rows in sorted(self.dropped.items())),
            *(f"  skipped {name}: {reason}" for name, reason in self.skipped),
            *(f"Note: {note}" for note in self.notes),
        ]
        again = f", but for {self.readjusted} tickers that were adjusted for an event" if self.readjusted else ""
        appended = f"Appended: {self.appended} bars; all earlier ones are as they were{again}"
        return [
            f"Wrote {self.target}: {self.tickers} tickers, {self.first_date} to {self.last_date}",
            *([] if self.appended is None else [appended]),
            *([f"Wrote {self.benchmark}, for --benchmark; not among the tickers"] if self.benchmark else []),
            f"Files: {self.files_read} read, {len(self.skipped)} skipped",
            f"Rows: {self.rows_kept} kept, {self.dropped.total()} dropped",
            *details[:_LISTED],
            *([f"  and {len(details) - _LISTED} lines more, on the page"] if len(details) > _LISTED else []),
        ]


def _line(what: str, items: list[str]) -> str:
    named = "; ".join(items[:_NAMED]) + ("; ..." if len(items) > _NAMED else "")
    return f"{what}: {len(items):,}" + (f": {named}" if items else "")


def survey_of(rows: pd.DataFrame) -> Survey:
    """Return the facts about `rows`, sorted by `ticker` (a category) and `day`, as `prepare` merges them."""
    dates, session = np.unique(rows["day"].to_numpy().astype("datetime64[D]"), return_inverse=True)
    bars = pd.DataFrame({"ticker": rows["ticker"].to_numpy(object), "session": session, "last": dates[session]})
    bars["first"] = bars.groupby("ticker")["last"].shift()
    is_first = bars["first"].isna()
    move = pd.Series(np.log(rows["close"].to_numpy())).diff().mask(is_first)
    size, undone = move.abs(), (move + move.shift(-1)).abs() < _UNDONE * move.abs()
    moves = bars[["ticker"]].assign(date=bars["last"], percent=100 * np.expm1(move), undone=undone, size=size)
    gaps = bars[["ticker", "first", "last"]].assign(sessions=(bars["session"].diff() - 1).mask(is_first))
    lives = bars.groupby("ticker")["session"].agg(["first", "last"]).reset_index()
    sessions = lives["last"] - lives["first"] + 1
    lives = lives.assign(sessions=sessions, first=dates[lives["first"]], last=dates[lives["last"]])
    year = (dates.astype("datetime64[Y]").astype(np.int64) + 1970)[session]
    years = bars.groupby(year).agg(
        sessions=("session", "nunique"), tickers=("ticker", "nunique"), rows=("last", "size")
    )
    years["traded %"] = 100 * years["rows"] / (years["sessions"] * years["tickers"])
    return Survey(
        years=[{"year": str(year), **counts} for year, counts in years.to_dict("index").items()],
        dates=dates,
        traded=np.bincount(session, minlength=len(dates)),
        gaps=_listed(gaps[gaps["sessions"] > 0].astype({"sessions": np.int64}), "sessions"),
        moves=_listed(moves[(size > LARGE_LOG_MOVE) | (size > REVERSING_MOVE) & undone], "size"),
        early=_listed(lives[lives["last"] < dates[-1]], "last", ascending=True),
        tickers=len(lives),
    )


def _listed(table: pd.DataFrame, by: str, *, ascending: bool = False) -> list[Any]:
    """Return rows as named tuples in the order of a column, their days as dates."""
    table = table.sort_values(by, ascending=ascending, kind="stable")
    days = {name: table[name].dt.date.astype(object) for name in table.columns.intersection(["date", "first", "last"])}
    return list(table.assign(**days).itertuples(index=False))
