"""Quality of prepared bars: coverage, gaps, suspicious moves, stale prices, survivors."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.bars import LARGE_MOVE
from utils.errors import DataError

Dates = npt.NDArray[np.datetime64]
IntArray = npt.NDArray[np.int64]

REVERSING_MOVE = 0.25
STALE_SESSIONS = 5
MOST_SURVIVORS = 0.95
THIN = 0.9
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
class Move:
    """A suspicious move of a close from one bar to the next."""

    ticker: str
    date: np.datetime64
    percent: float
    marks: tuple[str, ...]
    """Why it is suspicious."""
    split: str = ""
    """Ratio of a split that would explain the move."""


@dataclass(frozen=True)
class Spell:
    """Sessions of a ticker between two bars: a gap, a run of one price, or its whole history."""

    ticker: str
    first: np.datetime64
    last: np.datetime64
    sessions: int


@dataclass(frozen=True)
class Survey:
    """Facts about prepared bars; complete lists, the worst first."""

    years: list[dict[str, str | float]]
    """By year: sessions, tickers, rows, and the percent of sessions on which a ticker of that year traded."""
    dates: Dates
    """(sessions,)"""
    traded: IntArray
    """(sessions,) tickers that traded."""
    thin: list[tuple[np.datetime64, int, int]]
    """Sessions on which fewer than 90% of the tickers alive trade: date, tickers that trade, tickers alive."""
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
        """Return the share of survivors with a warning if it is suspiciously high."""
        share = f"{self.tickers - len(self.early):,} of {self.tickers:,} tickers trade on the last day"
        if self.survivors >= MOST_SURVIVORS and self.tickers > 1:
            return f"Survivors only: {share}; stocks that failed seem to be missing, which flatters results"
        return f"Survivors: {share}"

    def lines(self) -> list[str]:
        """Return a summary, one line per kind of finding."""
        marks = (BEYOND, UNDONE, LIKE_SPLIT)
        by_mark = [f"{sum(mark in move.marks for move in self.moves):,} {mark}" for mark in marks]
        stale = f"Stale prices ({STALE_SESSIONS} or more equal bars)"
        return [
            _line("Thin sessions", [f"{day} with {traded:,} of {of:,} tickers" for day, traded, of in self.thin]),
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


NO_SURVEY = Survey([], np.empty(0, "datetime64[D]"), np.empty(0, np.int64), [], [], [], [], [], [], [], 0)
"""Facts about an empty table."""


def _line(what: str, found: Sequence[str]) -> str:
    named = "; ".join(found[:_NAMED]) + ("; ..." if len(found) > _NAMED else "")
    return f"{what}: {len(found):,}" + (f": {named}" if found else "")


def survey_of(rows: pd.DataFrame) -> Survey:
    """Return the facts about `rows`, sorted by `ticker` (a category) and `day`, as `prepare` merges them.

    Raises `DataError` if there are none.
    """
    if rows.empty:
        raise DataError("expected bars to survey, got no usable row; check the source")
    numbers, session = np.unique(rows["day"].to_numpy(dtype=np.int64), return_inverse=True)
    dates = numbers.astype("datetime64[D]")
    bars = rows.assign(session=session, ticker=rows["ticker"].astype(object)).reset_index(drop=True)
    bars["previous"] = bars.groupby("ticker")["session"].shift()
    lives = bars.groupby("ticker")["session"].agg(["first", "last"])
    begins = _spells(dates, lives.sort_values("first", ascending=False, kind="stable").reset_index())
    ends = _spells(dates, lives.sort_values("last", kind="stable").reset_index())
    return Survey(
        years=_years(bars, dates),
        dates=dates,
        traded=np.bincount(session, minlength=len(dates)),
        thin=_thin(dates, session, lives),
        gaps=_gaps(bars, dates),
        moves=_moves(bars, dates),
        stale=_stale(bars, dates),
        widened=_widened(bars, dates),
        late=[one for one in begins if one.first > dates[0]],
        early=[one for one in ends if one.last < dates[-1]],
        tickers=len(lives),
    )


def _spells(dates: Dates, found: pd.DataFrame) -> list[Spell]:
    """Return spells from rows of ticker, first and last session, and optionally a number of sessions."""
    counts = found["sessions"] if "sessions" in found else found["last"] - found["first"] + 1
    columns = (found["ticker"], found["first"].astype(np.int64), found["last"], counts)
    return [
        Spell(ticker, dates[first], dates[last], int(count))
        for ticker, first, last, count in zip(*columns, strict=True)
    ]


def _years(bars: pd.DataFrame, dates: Dates) -> list[dict[str, str | float]]:
    year = (dates.astype("datetime64[Y]").astype(np.int64) + 1970)[bars["session"]]
    found = bars.groupby(year).agg(sessions=("session", "nunique"), tickers=("ticker", "nunique"), rows=("day", "size"))
    found["traded %"] = 100 * found["rows"] / (found["sessions"] * found["tickers"])
    return [{"year": str(year), **own} for year, own in found.to_dict("index").items()]


def _thin(dates: Dates, session: IntArray, lives: pd.DataFrame) -> list[tuple[np.datetime64, int, int]]:
    """Return thin sessions, the emptiest first."""
    traded = np.bincount(session, minlength=len(dates))
    begun = np.cumsum(np.bincount(lives["first"], minlength=len(dates)))
    ended = np.cumsum(np.bincount(lives["last"] + 1, minlength=len(dates) + 1))[:-1]
    alive = begun - ended
    found = np.flatnonzero(traded < THIN * alive)
    found = found[np.argsort(traded[found] / alive[found], kind="stable")]
    return [(dates[at], int(traded[at]), int(alive[at])) for at in found]


def _gaps(bars: pd.DataFrame, dates: Dates) -> list[Spell]:
    found = bars.assign(first=bars["previous"], last=bars["session"], sessions=bars["session"] - bars["previous"] - 1)
    return _spells(dates, found[found["sessions"] > 0].sort_values("sessions", ascending=False, kind="stable"))


def _moves(bars: pd.DataFrame, dates: Dates) -> list[Move]:
    """Return moves beyond 50%, those beyond 25% that the next bar undoes, and steps that look like a missed split."""
    before = bars["close"].shift().where(bars["previous"].notna())
    log, night = (np.log(bars[price] / before).fillna(0.0).to_numpy() for price in ("close", "open"))
    percent, size = 100 * np.expm1(log), np.abs(night)
    ratios, words = np.log(np.array([new / old for new, old in SPLITS])), [f"{new}:{old}" for new, old in SPLITS]
    at_ratio = np.clip(np.searchsorted((ratios[1:] + ratios[:-1]) / 2, size), 0, len(ratios) - 1)
    large = np.abs(percent) > 100 * LARGE_MOVE
    following = np.append(log[1:], 0.0)
    is_undone = (np.abs(log) > np.log1p(REVERSING_MOVE)) & (np.abs(log + following) < _UNDONE * np.abs(log))
    is_back = np.append(False, is_undone[:-1])
    # A split shows over night and persists at the close.
    is_ratio = (
        ~is_undone & ~is_back & (np.abs(size - ratios[at_ratio]) < _NEAR_RATIO) & (np.abs(log - night) < _KEPT * size)
    )
    found = np.flatnonzero(large | is_undone | is_ratio)
    tickers, days, result = bars["ticker"].to_numpy(), dates[bars["session"]], []
    for at in found[np.argsort(-np.abs(log[found]), kind="stable")]:
        split = words[at_ratio[at]] if night[at] < 0 else ":".join(reversed(words[at_ratio[at]].split(":")))
        marks = {BEYOND: large[at], UNDONE: is_undone[at], BACK: is_back[at], LIKE_SPLIT: is_ratio[at]}
        held = tuple(mark for mark, has in marks.items() if has)
        result.append(Move(tickers[at], days[at], float(percent[at]), held, split if is_ratio[at] else ""))
    return result


def _stale(bars: pd.DataFrame, dates: Dates) -> list[Spell]:
    """Return runs of bars with equal opens, highs, lows and closes, the longest first."""
    is_repeated = bars[["open", "high", "low", "close"]].eq(bars["close"].shift(), axis=0).all(axis=1)
    run = (~(is_repeated & bars["previous"].notna())).cumsum()
    found = bars.groupby(run).agg(
        ticker=("ticker", "first"), first=("session", "first"), last=("session", "last"), sessions=("day", "size")
    )
    found = found[found["sessions"] >= STALE_SESSIONS]
    return _spells(dates, found.sort_values("sessions", ascending=False, kind="stable"))


def _widened(bars: pd.DataFrame, dates: Dates) -> list[Move]:
    body = bars[["open", "close"]]
    excess = np.maximum(body.max(axis=1) / bars["high"], bars["low"] / body.min(axis=1)) - 1
    found = bars.assign(percent=100 * excess)[excess > 0].sort_values("percent", ascending=False, kind="stable")
    columns = (found["ticker"], found["session"], found["percent"])
    return [Move(ticker, dates[at], float(percent), ()) for ticker, at, percent in zip(*columns, strict=True)]
