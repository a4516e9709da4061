"""What prepared bars look like before anybody trades them: coverage, gaps, moves, stale prices, survivors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.loader import LARGE_MOVE
from data.raw.text import Float64Array
from utils.errors import DataError

Dates = npt.NDArray[np.datetime64]
IntArray = npt.NDArray[np.int64]

REVERSING_MOVE = 0.25
STALE_SESSIONS = 5
MOST_SURVIVORS = 0.95
THIN = 0.9
_NAMED = 3
"""Findings of a kind that a line names."""
BEYOND, UNDONE, BACK, LIKE_SPLIT = "beyond 50%", "undone the next day", "back from it", "like a split"
SPLITS = ((3, 2), (2, 1), (5, 2), *((shares, 1) for shares in (3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 50, 100)))
"""New shares for old ones that splits usually give, ascending; reverse splits the other way."""
_NEAR_RATIO = 0.02
_KEPT = 0.2
"""Share of a step over night that the day may change."""
_UNDONE = 0.2
"""Share of a move that is left a session later, below which it counts as reversed."""


@dataclass(frozen=True)
class Move:
    """A suspicious move of a close from one bar to the next."""

    ticker: str
    date: np.datetime64
    percent: float
    marks: tuple[str, ...]
    """Why it is suspicious."""
    split: str = ""
    """New shares for old ones of the split that would move prices so."""


@dataclass(frozen=True)
class Spell:
    """Sessions of a ticker, from one bar to another: without bars between them, or with one price."""

    ticker: str
    first: np.datetime64
    last: np.datetime64
    sessions: int


@dataclass(frozen=True)
class Survey:
    """Facts about prepared bars; lists have the worst first, and are whole."""

    years: list[dict[str, str | float]]
    """By year: sessions, tickers, rows, and the percent of sessions on which a ticker of that year traded."""
    dates: Dates
    """(sessions,)"""
    traded: IntArray
    """(sessions,) tickers that traded."""
    thin: list[tuple[np.datetime64, int, int]]
    """Sessions on which fewer than 90% of the tickers trade that do before and after: date, tickers that trade, of how
    many."""
    gaps: list[Spell]
    moves: list[Move]
    stale: list[Spell]
    widened: list[Move]
    """Rows whose high or low does not enclose open and close; the percent is by how much."""
    late: list[Spell]
    """Tickers that begin after the first session: their first and last day."""
    early: list[Spell]
    """Tickers that end before the last session."""
    tickers: int

    @property
    def survivors(self) -> float:
        """Share of tickers that trade on the last day."""
        return 1.0 - len(self.early) / self.tickers

    @property
    def survivor_line(self) -> str:
        """Return what the share of survivors means."""
        share = f"{self.tickers - len(self.early):,} of {self.tickers:,} tickers trade on the last day"
        if self.survivors >= MOST_SURVIVORS and self.tickers > 1:
            return f"Survivors only: {share}; stocks that failed seem to be missing, which flatters results"
        return f"Survivors: {share}"

    def lines(self) -> list[str]:
        """Return the findings in short, one a line."""
        marks = (BEYOND, UNDONE, LIKE_SPLIT)
        by_mark = [f"{sum(mark in move.marks for move in self.moves):,} {mark}" for mark in marks]
        found = [
            _line("Thin sessions", self.thin, lambda one: f"{one[0]} with {one[1]:,} of {one[2]:,} tickers"),
            _line("Gaps", self.gaps, lambda one: f"{one.ticker} {one.sessions:,} sessions, {one.first} to {one.last}"),
            _line("Suspicious moves", self.moves, lambda one: f"{one.ticker} {one.percent:+,.0f}% on {one.date}")
            + (f" ({', '.join(by_mark)})" if self.moves else ""),
            _line(
                f"Stale prices ({STALE_SESSIONS} or more equal bars)",
                self.stale,
                lambda one: f"{one.ticker} {one.sessions:,} bars, {one.first} to {one.last}",
            ),
            _line(
                "Rows with high or low to be widened",
                self.widened,
                lambda one: f"{one.ticker} by {one.percent:,.2f}% on {one.date}",
            ),
            _line("Tickers that begin late", self.late, lambda one: f"{one.ticker} on {one.first}"),
            _line("Tickers that end early", self.early, lambda one: f"{one.ticker} on {one.last}"),
        ]
        return [*found, self.survivor_line]


NO_SURVEY = Survey([], np.empty(0, "datetime64[D]"), np.empty(0, np.int64), [], [], [], [], [], [], [], 0)
"""Facts about no rows."""
Found = TypeVar("Found")


def _line(what: str, found: Sequence[Found], describe: Callable[[Found], str]) -> str:
    named = "; ".join(map(describe, found[:_NAMED])) + ("; ..." if len(found) > _NAMED else "")
    return f"{what}: {len(found):,}" + (f": {named}" if found else "")


def survey_of(rows: pd.DataFrame) -> Survey:
    """Return the facts about `rows`, sorted by `ticker` (a category) and `day`, as `prepare` merges them.

    Raises `DataError` if there are none.
    """
    if rows.empty:
        raise DataError("expected bars to survey, got no usable row; check the source")
    names = rows["ticker"].cat.categories.to_numpy(dtype=object)
    column = rows["ticker"].cat.codes.to_numpy().astype(np.int64)
    numbers, day = np.unique(rows["day"].to_numpy(dtype=np.int64), return_inverse=True)
    dates = numbers.astype("datetime64[D]")
    bars = _Bars(names, dates, column, day, *(rows[role].to_numpy() for role in ("open", "high", "low", "close")))
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], len(column)) - 1
    lives = [
        Spell(name, dates[day[begin]], dates[day[end]], int(day[end] - day[begin]) + 1)
        for name, begin, end in zip(names[column[first]], first, last, strict=True)
    ]
    return Survey(
        years=_years(column, day, dates, len(names)),
        dates=dates,
        traded=np.bincount(day, minlength=len(dates)),
        thin=_thin(dates, day, first, last),
        gaps=_gaps(bars),
        moves=_moves(bars),
        stale=_stale(bars),
        widened=_widened(bars),
        late=sorted((life for life in lives if life.first > dates[0]), key=lambda life: life.first, reverse=True),
        early=sorted((life for life in lives if life.last < dates[-1]), key=lambda life: life.last),
        tickers=len(names),
    )


@dataclass(frozen=True)
class _Bars:
    """Rows sorted by (column, day): indices and prices, all (rows,)."""

    names: npt.NDArray[np.object_]
    dates: Dates
    column: IntArray
    day: IntArray
    open: Float64Array
    high: Float64Array
    low: Float64Array
    close: Float64Array

    def spell(self, begin: int, end: int, sessions: int) -> Spell:
        """Return sessions of one ticker between two rows."""
        dates = self.dates[self.day[[begin, end]]]
        return Spell(self.names[self.column[begin]], dates[0], dates[1], sessions)


def _years(column: IntArray, day: IntArray, dates: Dates, tickers: int) -> list[dict[str, str | float]]:
    year_of_day = dates.astype("datetime64[Y]").astype(np.int64) + 1970
    years, sessions = np.unique(year_of_day, return_counts=True)
    place = np.searchsorted(years, year_of_day)[day]
    bars = np.bincount(place * tickers + column, minlength=len(years) * tickers).reshape(len(years), tickers)
    return [
        {
            "year": str(year),
            "sessions": int(count),
            "tickers": int((own > 0).sum()),
            "rows": int(own.sum()),
            "traded %": float(100 * own.sum() / (count * (own > 0).sum())),
        }
        for year, count, own in zip(years, sessions, bars, strict=True)
    ]


def _thin(dates: Dates, day: IntArray, first: IntArray, last: IntArray) -> list[tuple[np.datetime64, int, int]]:
    """Return thin sessions, the emptiest first; `first` and `last` are each ticker's rows."""
    traded = np.bincount(day, minlength=len(dates))
    begun = np.cumsum(np.bincount(day[first], minlength=len(dates)))
    ended = np.cumsum(np.bincount(day[last] + 1, minlength=len(dates) + 1))[:-1]
    alive = begun - ended
    found = np.flatnonzero(traded < THIN * alive)
    found = found[np.argsort(traded[found] / alive[found], kind="stable")]
    return [(dates[at], int(traded[at]), int(alive[at])) for at in found]


def _gaps(bars: _Bars) -> list[Spell]:
    missing = np.where(np.diff(bars.column) == 0, np.diff(bars.day) - 1, 0)
    found = np.flatnonzero(missing > 0)
    return [
        bars.spell(int(at), int(at) + 1, int(missing[at])) for at in found[np.argsort(-missing[found], kind="stable")]
    ]


def _moves(bars: _Bars) -> list[Move]:
    """Return moves beyond 50%, those beyond 25% that the next bar undoes, and steps that look like a missed split."""
    is_same = np.diff(bars.column) == 0
    log = np.where(is_same, np.log(bars.close[1:] / bars.close[:-1]), 0.0)
    night = np.where(is_same, np.log(bars.open[1:] / bars.close[:-1]), 0.0)
    following = np.append(log[1:], 0.0)
    percent = 100 * np.expm1(log)
    ratios, words = np.log(np.array([new / old for new, old in SPLITS])), [f"{new}:{old}" for new, old in SPLITS]
    size = np.abs(night)
    at_ratio = np.clip(np.searchsorted((ratios[1:] + ratios[:-1]) / 2, size), 0, len(ratios) - 1)
    large = np.abs(percent) > 100 * LARGE_MOVE
    is_undone = (np.abs(log) > np.log1p(REVERSING_MOVE)) & (np.abs(log + following) < _UNDONE * np.abs(log))
    is_back = np.append(False, is_undone[:-1])
    # A split is there over night, and still there at the close.
    is_ratio = (
        ~is_undone & ~is_back & (np.abs(size - ratios[at_ratio]) < _NEAR_RATIO) & (np.abs(log - night) < _KEPT * size)
    )
    found = np.flatnonzero(large | is_undone | is_ratio)
    found = found[np.argsort(-np.abs(log[found]), kind="stable")]
    result = []
    for at in found:
        split = words[at_ratio[at]] if night[at] < 0 else ":".join(reversed(words[at_ratio[at]].split(":")))
        marks = {BEYOND: large[at], UNDONE: is_undone[at], BACK: is_back[at], LIKE_SPLIT: is_ratio[at]}
        where = bars.names[bars.column[at + 1]], bars.dates[bars.day[at + 1]]
        held = tuple(mark for mark, has in marks.items() if has)
        result.append(Move(*where, float(percent[at]), held, split if is_ratio[at] else ""))
    return result


def _stale(bars: _Bars) -> list[Spell]:
    """Return runs of bars with equal opens, highs, lows and closes."""
    prices = np.stack((bars.open, bars.high, bars.low, bars.close))
    is_flat = (prices[:, 1:] == bars.close[:-1]).all(axis=0) & (np.diff(bars.column) == 0)
    edges = np.diff(np.concatenate(([False], is_flat, [False])).astype(np.int8))
    begins, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    spells = [bars.spell(int(begin), int(end), int(end - begin) + 1) for begin, end in zip(begins, ends, strict=True)]
    return sorted((one for one in spells if one.sessions >= STALE_SESSIONS), key=lambda one: -one.sessions)


def _widened(bars: _Bars) -> list[Move]:
    above = np.maximum(bars.open, bars.close) / bars.high - 1
    below = bars.low / np.minimum(bars.open, bars.close) - 1
    size = 100 * np.maximum(above, below)
    found = np.flatnonzero(size > 0)
    found = found[np.argsort(-size[found], kind="stable")]
    return [Move(bars.names[bars.column[at]], bars.dates[bars.day[at]], float(size[at]), ()) for at in found]
