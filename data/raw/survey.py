"""Quality of prepared bars: coverage, gaps, suspicious moves, stale prices, survivors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.bars import LARGE_MOVE

Dates = npt.NDArray[np.datetime64]
IntArray = npt.NDArray[np.int64]

REVERSING_MOVE = 0.25
STALE_SESSIONS = 5
MOST_SURVIVORS = 0.95
_NAMED = 3
"""Findings of a kind listed on a line."""
BEYOND, UNDONE, BACK, LIKE_SPLIT = "beyond 50%", "undone the next day", "back from it", "like a split"
SPLITS = ((3, 2), (2, 1), (5, 2), *((shares, 1) for shares in (3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)))
"""Usual split ratios (new shares for old ones), ascending; reverse splits are their inverses."""
_NEAR_RATIO = 0.02
_KEPT = 0.2
"""Share of an overnight step by which the day may change it."""
_UNDONE = 0.2
"""Share of a move left a session later, below which the move counts as reversed."""


@dataclass(frozen=True)
class Survey:
    """Facts about prepared bars; lists of named tuples, complete and the worst first."""

    years: list[dict[str, str | float]]
    """By year: sessions, tickers, rows, and the percent of sessions on which a ticker of that year traded."""
    dates: Dates
    """(sessions,)"""
    traded: IntArray
    """(sessions,) tickers that traded."""
    gaps: list[Any]
    """`ticker`, the bars before and after (`first`, `last`) and the `sessions` between them."""
    moves: list[Any]
    """`ticker`, `date`, `percent` of the move of a close, `marks`: why it is suspicious, `split` that explains it."""
    stale: list[Any]
    """`ticker`, `first` and `last` bar of a run of one price, and its `sessions`."""
    widened: list[Any]
    """Rows whose high or low does not enclose open and close: `ticker`, `date`, `percent` by which."""
    late: list[Any]
    """Tickers that begin after the first session: `ticker`, `first`, `last` day, `sessions`."""
    early: list[Any]
    """Tickers that end before the last session."""
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
        marks = (BEYOND, UNDONE, LIKE_SPLIT)
        by_mark = [f"{sum(mark in move.marks for move in self.moves):,} {mark}" for mark in marks]
        stale = f"Stale prices ({STALE_SESSIONS} or more equal bars)"
        return [
            _line("Gaps", [f"{one.ticker} {one.sessions:,} sessions, {one.first} to {one.last}" for one in self.gaps]),
            _line("Suspicious moves", [f"{one.ticker} {one.percent:+,.0f}% on {one.date}" for one in self.moves])
            + (f" ({', '.join(by_mark)})" if self.moves else ""),
            _line(stale, [f"{one.ticker} {one.sessions:,} bars, {one.first} to {one.last}" for one in self.stale]),
            _line(
                "Rows with high or low to be widened",
                [f"{one.ticker} by {one.percent:,.2f}% on {one.date}" for one in self.widened],
            ),
            _line("Tickers that begin late", [f"{one.ticker} on {one.first}" for one in self.late]),
            _line("Tickers that end early", [f"{one.ticker} on {one.last}" for one in self.early]),
            self.survivor_line,
        ]


def _line(what: str, found: Sequence[str]) -> str:
    named = "; ".join(found[:_NAMED]) + ("; ..." if len(found) > _NAMED else "")
    return f"{what}: {len(found):,}" + (f": {named}" if found else "")


def survey_of(rows: pd.DataFrame) -> Survey:
    """Return the facts about `rows`, sorted by `ticker` (a category) and `day`, as `prepare` merges them."""
    numbers, session = np.unique(rows["day"].to_numpy(dtype=np.int64), return_inverse=True)
    dates = numbers.astype("datetime64[D]")
    bars = rows.assign(session=session, ticker=rows["ticker"].astype(object)).reset_index(drop=True)
    bars["previous"] = bars.groupby("ticker")["session"].shift()
    lives = bars.groupby("ticker")["session"].agg(["first", "last"]).reset_index()
    lives["sessions"] = lives["last"] - lives["first"] + 1
    return Survey(
        years=_years(bars, dates),
        dates=dates,
        traded=np.bincount(session, minlength=len(dates)),
        gaps=_listed(_gaps(bars), "sessions", dates),
        moves=_listed(_moves(bars), "size", dates),
        stale=_listed(_stale(bars), "sessions", dates),
        widened=_listed(_widened(bars), "percent", dates),
        late=_listed(lives[lives["first"] > 0], "first", dates),
        early=_listed(lives[lives["last"] < len(dates) - 1], "last", dates, ascending=True),
        tickers=len(lives),
    )


def _listed(found: pd.DataFrame, by: str, dates: Dates, *, ascending: bool = False) -> list[Any]:
    """Return rows as named tuples in the order of a column, their sessions as dates."""
    found = found.sort_values(by, ascending=ascending, kind="stable")
    for name in found.columns.intersection(["date", "first", "last"]):
        found[name] = pd.Series(list(dates[found[name].astype(np.int64)]), found.index, dtype=object)
    return list(found.itertuples(index=False))


def _years(bars: pd.DataFrame, dates: Dates) -> list[dict[str, str | float]]:
    year = (dates.astype("datetime64[Y]").astype(np.int64) + 1970)[bars["session"]]
    found = bars.groupby(year).agg(sessions=("session", "nunique"), tickers=("ticker", "nunique"), rows=("day", "size"))
    found["traded %"] = 100 * found["rows"] / (found["sessions"] * found["tickers"])
    return [{"year": str(year), **own} for year, own in found.to_dict("index").items()]


def _gaps(bars: pd.DataFrame) -> pd.DataFrame:
    found = bars[["ticker"]].assign(first=bars["previous"], last=bars["session"])
    found["sessions"] = found["last"] - found["first"] - 1
    return found[found["sessions"] > 0].astype({"sessions": np.int64})


def _moves(bars: pd.DataFrame) -> pd.DataFrame:
    """Return moves beyond 50%, those beyond 25% that the next bar undoes, and steps that look like a missed split."""
    before = bars["close"].shift().where(bars["previous"].notna())
    log, night = (np.log(bars[price] / before).fillna(0.0).to_numpy() for price in ("close", "open"))
    percent, size = 100 * np.expm1(log), np.abs(night)
    ratios = np.log([new / old for new, old in SPLITS])
    at_ratio = np.clip(np.searchsorted((ratios[1:] + ratios[:-1]) / 2, size), 0, len(ratios) - 1)
    following = np.append(log[1:], 0.0)
    is_undone = (np.abs(log) > np.log1p(REVERSING_MOVE)) & (np.abs(log + following) < _UNDONE * np.abs(log))
    is_back = np.append(False, is_undone[:-1])
    # A split shows over night and persists at the close.
    is_ratio = (
        ~is_undone & ~is_back & (np.abs(size - ratios[at_ratio]) < _NEAR_RATIO) & (np.abs(log - night) < _KEPT * size)
    )
    marks = {BEYOND: np.abs(percent) > 100 * LARGE_MOVE, UNDONE: is_undone, BACK: is_back, LIKE_SPLIT: is_ratio}
    found = np.flatnonzero(marks[BEYOND] | is_undone | is_ratio)
    splits = [":".join(map(str, SPLITS[at_ratio[at]][:: 1 if night[at] < 0 else -1])) for at in found]
    return pd.DataFrame(
        {
            "ticker": bars["ticker"].to_numpy()[found],
            "date": bars["session"].to_numpy()[found],
            "percent": percent[found],
            "marks": [tuple(mark for mark, has in marks.items() if has[at]) for at in found],
            "split": np.where(is_ratio[found], splits, ""),
            "size": np.abs(log[found]),
        }
    )


def _stale(bars: pd.DataFrame) -> pd.DataFrame:
    """Return runs of bars with equal opens, highs, lows and closes."""
    is_repeated = bars[["open", "high", "low", "close"]].eq(bars["close"].shift(), axis=0).all(axis=1)
    run = (~(is_repeated & bars["previous"].notna())).cumsum()
    found = bars.groupby(run).agg(
        ticker=("ticker", "first"), first=("session", "first"), last=("session", "last"), sessions=("day", "size")
    )
    return found[found["sessions"] >= STALE_SESSIONS]


def _widened(bars: pd.DataFrame) -> pd.DataFrame:
    body = bars[["open", "close"]]
    excess = np.maximum(body.max(axis=1) / bars["high"], bars["low"] / body.min(axis=1)) - 1
    return bars[["ticker"]].assign(date=bars["session"], percent=100 * excess)[excess > 0]
