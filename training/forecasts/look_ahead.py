"""Whether scores or columns hold returns of the future: labels, which a table of features may keep by mistake.

A label is a return over a window of later sessions, perhaps with noise. Three marks together tell it from a forecast,
however much noise there is: its correlation with the sessions of the window is flat; it is gone after the window; and
scores of different days are alike just as far as their windows overlap. A forecast knows expected returns, which are a
small part of the returns: where its correlation with later sessions lasts, its scores are far more alike than that.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.features.nine import CLOSE, OPEN
from data.market import Market, is_market_wide
from training.forecasts.skill import overlapping_mean_test
from utils.arrays import Float64Array
from utils.errors import LookAheadError

LONGEST, LATEST = 60, 5
"""Sessions of the longest windows that are looked at, and by which windows may begin late."""
MOST_IC, STRONG_IC, MOST_IN_TIME = 0.42, 0.25, 0.97
"""Rank IC with a single later session above which scores hold it, and above which they are strong: oracles of the
built-in markets reach 0.31, their latent drifts of the next session 0.39 (`benchmarks/labels.py`). The last is for
values that all stocks share, held against their mean return, which has little noise of its own."""
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, LONGEST)
_LEAST_IC, _LEAST_T = 0.15, 5.0
"""Of a window that is told by its shape."""
_FLAT, _AFTER, _OVERLAP = (0.5, 1.5), 0.5, (0.45, 2.2)
"""IC a session in halves of the window, and right after it, by that of the whole; likeness of scores of different days
by that which the overlap of their windows makes."""
_CELLS, _LEAST_DAYS = 100_000, 60
"""Scores that are looked at, the last ones, and days without which nothing is told."""


class Window(NamedTuple):
    """A window of sessions after the day of a score, and the rank IC with its return."""

    ic: float
    late: int
    """Sessions after the day's close, or the next open, at which it begins."""
    sessions: int
    from_open: bool
    error: float
    """Standard error of the IC where there is none."""

    @property
    def clear(self) -> float:
        """The absolute IC less what the largest of some hundred may be by chance."""
        return abs(self.ic) - _LEAST_T * self.error

    def __str__(self) -> str:
        first, last = self.late + 1, self.late + self.sessions
        return f"session {first}" if self.sessions == 1 else f"sessions {first} to {last}"


_NONE = Window(0.0, 0, 1, False, 1.0)


@dataclass(frozen=True)
class LookAhead:
    """What the values of stocks tell of the returns after their day."""

    session: Window
    """The single session with the largest IC, of values or of what is new in them."""
    window: Window
    """The window with the largest IC."""
    is_label: bool = False
    """Whether this window has the marks of a label."""
    persistence: float = float("nan")
    """Rank correlation of values with those of the day before."""
    most_ic: float = MOST_IC
    """IC with a single session above which the values hold it."""

    @property
    def reason(self) -> str:
        """Return why the values are a return of the future, as what follows "they"; empty where they are not."""
        if abs(self.session.ic) > self.most_ic and self.session.clear > 0:
            return (
                f"have a rank IC of {self.session.ic:.2f} with {self.session} after their day, more than knowing all "
                "expected returns would give"
            )
        if self.is_label:
            return (
                f"are a return of {self.window} after their day, with noise: a rank IC of {self.window.ic:.2f}, as "
                "large in each part of this window and gone after it, and scores as alike as such windows overlap"
            )
        return ""

    @property
    def warning(self) -> str:
        """Return a warning where values are strong, but might be honest; else nothing."""
        if self.reason or self.session.clear <= 0 or abs(self.session.ic) <= STRONG_IC + self.most_ic - MOST_IC:
            return ""
        return (
            f"A rank IC of {self.session.ic:.2f} with {self.session} after the day is as strong as an oracle's: look "
            "for values dated early, unless a delayed effect is known to be so strong."
        )

    @property
    def sentence(self) -> str:
        """Return what was found in words, with what it cannot show."""
        is_daily = math.isfinite(self.persistence)
        persistence = f"; their persistence is {self.persistence:.2f} a day" if is_daily else ""
        return (
            f"Scores without code cannot be audited, only looked at beside the future: their rank IC is at most "
            f"{abs(self.session.ic):.3f} with one of the next {LONGEST} sessions, and {abs(self.window.ic):.3f} with "
            f"{self.window} after their day{persistence}. A model that was fitted to the judged days, stocks that were "
            "chosen in hindsight, and a leak as weak as honest skill cannot be seen in this way."
        )


def look_ahead(values: Mapping[str, Float64Array], open_: Float64Array, close: Float64Array) -> dict[str, LookAhead]:
    """Look at (days, n) values by name beside the (days, n) prices after them.

    Values that all stocks share are held against the mean return of the stocks. Of many values the last are looked at.
    """
    found, by_stock, shared = dict[str, LookAhead](), dict[str, Float64Array](), dict[str, Float64Array]()
    for name, wide in values.items():
        known = np.isfinite(wide)
        if not (known.sum(axis=1) > 1).any():
            found[name] = LookAhead(_NONE, _NONE)
        elif is_market_wide(wide):
            highest = np.where(known, wide, -np.inf).max(axis=1, keepdims=True)
            shared[name] = np.where(np.isfinite(highest), highest, np.nan)
        else:
            by_stock[name] = wide
    with np.errstate(divide="ignore", invalid="ignore"):
        grids = np.log(np.stack((close, np.vstack((open_[1:], np.full_like(open_[:1], np.nan))))))
    if by_stock:
        found |= _look(by_stock, grids)
    if shared:
        moves = np.diff(grids, axis=1, prepend=np.nan)
        count = np.isfinite(moves).sum(axis=2, keepdims=True)
        found |= _look(shared, np.cumsum(np.nansum(moves, axis=2, keepdims=True) / np.maximum(count, 1), axis=1))
    return {name: found[name] for name in values}


def _look(values: Mapping[str, Float64Array], grids: Float64Array) -> dict[str, LookAhead]:
    """Look at values beside (2, days, n) logarithms of prices, at closes and at the opens after them."""
    days = max(_LEAST_DAYS + LONGEST, _CELLS // grids.shape[2])
    grids = grids[:, -days:]
    x = {name: _standardised(wide[-days:]) for name, wide in values.items()}
    likeness = {name: _likeness(one, 1) for name, one in x.items()}
    news = {name: _standardised(_news(one, likeness[name])) for name, one in x.items()}
    windows = [(late, length) for length in _LENGTHS for late in range(LATEST + 1)]
    windows += [(late, 1) for late in range(LATEST + 1, LONGEST)]
    session, window = dict.fromkeys(x, _NONE), dict.fromkeys(x, _NONE)
    for late, length in windows:
        if grids.shape[1] - late - length < _LEAST_DAYS:
            continue
        for from_open, prices in enumerate(grids):
            returns = _returns(prices, late, length)
            for name, one in x.items():
                place = late, length, bool(from_open)
                ic = Window(_ic(one, returns), *place, _error(one, returns))
                window[name] = max(window[name], ic, key=lambda some: some.clear)
                if length == 1:
                    of_news = ic._replace(ic=_ic(news[name], returns))
                    session[name] = max(session[name], ic, of_news, key=lambda some: some.clear)
    most = MOST_IC if grids.shape[2] > 1 else MOST_IN_TIME
    return {
        name: LookAhead(session[name], window[name], _is_label(one, grids, window[name]), likeness[name], most)
        for name, one in x.items()
    }


def _standardised(values: Float64Array) -> Float64Array:
    """Return (days, n) normalised ranks, of each day, or over time where there is one column; NaN where unknown."""
    axis = int(values.shape[1] > 1)
    ranks = pd.DataFrame(np.where(np.isfinite(values), values, np.nan)).rank(axis=axis).to_numpy()
    known = np.isfinite(ranks)
    count = np.maximum(known.sum(axis=axis, keepdims=True), 1)
    centred = ranks - np.where(known, ranks, 0.0).sum(axis=axis, keepdims=True) / count
    deviation = np.sqrt(np.where(known, centred**2, 0.0).sum(axis=axis, keepdims=True) / count)
    return np.asarray(np.divide(centred, deviation, out=np.full_like(centred, np.nan), where=deviation > 1e-9))


def _news(x: Float64Array, persistence: float) -> Float64Array:
    """Return what is new in values since the day before."""
    return np.vstack((np.full_like(x[:1], np.nan), x[1:] - persistence * x[:-1]))


def _returns(prices: Float64Array, late: int, length: int) -> Float64Array:
    return _standardised(prices[late + length :] - prices[late : len(prices) - length])


def _daily(x: Float64Array, returns: Float64Array) -> Float64Array:
    """Return the daily correlations of values with the returns that begin on their days; of days with both."""
    product = x[: len(returns)] * returns
    known = np.isfinite(product)
    count = known.sum(axis=1)
    return np.asarray(np.where(known, product, 0.0).sum(axis=1)[count > 0] / count[count > 0])


def _ic(x: Float64Array, returns: Float64Array) -> float:
    if x.shape[1] == 1:
        known = np.isfinite(x[: len(returns)] * returns)
        return float(np.corrcoef(x[: len(returns)][known], returns[known])[0, 1]) if known.sum() > _LEAST_DAYS else 0.0
    daily = _daily(x, returns)
    return float(daily.mean()) if daily.size else 0.0


def _error(x: Float64Array, returns: Float64Array) -> float:
    """Return the standard error of the correlation of (days, n) values with returns that they do not foretell."""
    known = np.isfinite(x[: len(returns)] * returns).sum(axis=1)
    count = np.maximum(known - (x.shape[1] > 1), 0).sum()
    return float(1 / np.sqrt(count)) if (known > 0).sum() >= _LEAST_DAYS else 1.0


def _likeness(x: Float64Array, lag: int) -> float:
    """Return the correlation of values with those of some days before; NaN where no two days are so far apart."""
    return _ic(x[:-lag], x[lag:]) if np.isfinite(x[:-lag] + x[lag:]).any() else math.nan


def _is_label(x: Float64Array, grids: Float64Array, window: Window) -> bool:
    """Tell whether a window has the marks of a label, see the module."""
    ic, late, length, from_open, _ = window
    prices, half = grids[int(from_open)], length // 2
    if length < 2 or abs(ic) < _LEAST_IC or len(prices) - late - 2 * length < _LEAST_DAYS:
        return False
    test = overlapping_mean_test(_daily(x, _returns(prices, late, length)), late + length)
    if abs(test.mean) < _LEAST_T * test.standard_error:
        return False

    def share(begin: int) -> float:
        """Return the IC of a session in half a window, by that of one in the whole."""
        return float(_ic(x, _returns(prices, begin, half)) / ic * np.sqrt(length / half))

    lags = np.arange(1, length)
    overlap = ic**2 * (1 - lags / length)
    likeness = np.nan_to_num([_likeness(x, lag) for lag in lags.tolist()])
    alike = float(overlap @ likeness / np.square(overlap).sum())
    is_flat = all(_FLAT[0] < share(begin) < _FLAT[1] for begin in (late, late + length - half))
    return is_flat and abs(share(late + length)) < _AFTER and _OVERLAP[0] < alike < _OVERLAP[1]


def require_past(values: Mapping[str, NDArray[np.floating]], market: Market, days: slice = slice(None)) -> None:
    """Raise LookAheadError for the first of (days, investable) values by name that holds returns of the future."""
    bars = market.data_array[days][:, market.investable_columns].astype(np.float64)
    wide = {name: one.astype(np.float64) for name, one in values.items()}
    for name, found in look_ahead(wide, bars[..., OPEN], bars[..., CLOSE]).items():
        if found.reason:
            raise LookAheadError(
                f"expected values of {name!r} that are known at the close of their day, but they {found.reason}; give "
                "them the day on which they are known, or leave them out"
            )
