"""What formulas are made of: a quantity, in a form, under a condition, in a state of the market, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
import scipy  # submodules, which take a second to import, are loaded when they are used

from data.features.bank import apart, has_return, log_returns
from data.features.forms import StockBars, feature_of, values_from
from data.features.leaders import SESSIONS, later
from data.features.nine import CLOSE, OPEN
from data.features.seasons import SEASONS, seasons_ahead
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array

SCALES = ("", "own")
"""Deviations over the stocks of the day; of the stock's own past."""
TAILS = ("high", "low", "extreme")
CONDITIONS = ("times", "after high", "after low")
_CONDITIONING = ("volume_shock_1", "move_1", "range_shock_1", "to_year_high", "own_volatility")
"""Quantities on which others are conditioned, and as many columns of the user as there are, up to a number."""
_MOST_COLUMNS = 4
_STATES = ("wild", "rising", "dispersed")
STATES: dict[str, tuple[int, ...]] = {"": (1, 0, 0, 0)}
"""Weights of formulas by state of the market, as sums of always and of each state: while it holds, while it does not,
and the reverse while it does not."""
for _place, _state in enumerate(_STATES, start=1):
    _holds = tuple(int(place == _place) for place in range(1, len(_STATES) + 1))
    STATES[_state], STATES[f"not {_state}"] = (0, *_holds), (1, *(-held for held in _holds))
    STATES[f"+-{_state}"] = (-1, *(2 * held for held in _holds))
HALF_LIVES = (0, 1, 3, 10, 40)
"""Sessions of memory; 0: none."""
_LARGEST, _TAIL, _LARGE = 4.0, 1.0, 0.7
"""Deviations to which quantities are clipped, beyond which they are extreme, and of a condition that holds."""
_FORGOTTEN = 1e-30
"""Below which memories are none: with numbers below 1e-38 a CPU multiplies many times more slowly."""
_OWN_HALF_LIFE, _LEAST_PAST = 120, 20
_KNOWN_LATER, NO_RETURN, LARGEST_RETURN = 2, 500, 5.0
"""Sessions until a next return is known, sessions without any by which own slopes are shrunk, and deviations to which
returns are clipped."""
_RISK_HALF_LIFE, _RISKS = 20, (0.3, 3.0)
"""Of the deviation of a stock's returns, and bounds on it in means of all."""
_WEEK, _TWO_WEEKS, _TREND, _YEAR = 5, 10, 60, 252
PENALTIES = {"scale": 1.0, "form": 3.0, "state": 3.0, "late": 1.0, "half_life": 1.0, "by_stock": 3.0}
"""What each choice of a formula takes from the square of its t-statistic: twice the logarithm of the choices, about
half, for these are alike."""


class Formula(NamedTuple):
    """A number of every stock and day; plain but for what is given."""

    quantity: str
    scale: str = ""
    form: str = ""
    by: str = ""
    """Quantity on which the form conditions."""
    state: str = ""
    """Of the market, in which it counts; "not x": in others; "+-x": its reverse counts in others."""
    half_life: int = 0
    """Sessions of its memory."""
    late: int = 0
    """Sessions until it counts."""
    by_stock: bool = False
    """Whether each stock's own slope on the returns known by then counts, in place of one for all."""

    def __str__(self) -> str:
        words = [self.quantity, self.scale and "against its past", f"{self.form} {self.by}".strip()]
        words += [self.state and f"in {self.state} markets", f"{self.late} late" if self.late else ""]
        words += [
            f"with half-life {self.half_life}" if self.half_life else "",
            "stock by stock" if self.by_stock else "",
        ]
        return " ".join(word for word in words if word)

    @property
    def penalty(self) -> float:
        """What its choices take from the square of its t-statistic."""
        return sum(penalty for choice, penalty in PENALTIES.items() if getattr(self, choice))

    def of(self, table: Quantities) -> Float32Array:
        """Return (days, n) values, 0 in the mean of a day but for memory; row t depends on bars up to t only."""
        return self.counted(self.memory(table), table)

    def counted(self, memory: Float32Array, table: Quantities) -> Float32Array:
        """Return the same from the values of all states as soon as they are known."""
        values = later(memory, self.late) * table.weight(self.state)
        if not self.by_stock:
            return values
        days, is_season = table.market.dates[: table.stop], self.quantity in SEASONS
        return table.by_own_slopes(values, seasons_ahead(self.quantity, days) if is_season else None)

    def memory(self, table: Quantities) -> Float32Array:
        """Return the (days, n) values of all states as soon as they are known."""
        if self.quantity in SEASONS:
            return table.has_bar.astype(np.float32)
        by = table[self.by] if self.by else None
        values = formed(table.scaled(self.quantity, self.scale), self.form, by)
        values = np.where(table.has_bar, values, np.float32(np.nan))
        # A stock's own slope is on what it has beside all stocks, not beside those that are asked for.
        return remembered(np.nan_to_num(values if self.by_stock else apart(values)), self.half_life)


@dataclass(frozen=True)
class Quantities:
    """What formulas are made of, of a market before a day: (days, stocks) in deviations over the stocks of the day."""

    market: Market
    stop: int
    taken: slice | Int64Array = field(default_factory=lambda: slice(None))
    """Stocks of which there are values, beside all: places among the market's."""
    _known: dict[str, Float32Array] = field(default_factory=dict)
    _last: dict[tuple[str, int], Float32Array] = field(default_factory=dict)
    """Quantity that was asked for last against the stock's own past."""

    @classmethod
    def bought(cls, market: Market, stop: int) -> Self:
        """Return those of the stocks that may be bought, of at least these days."""
        bought = slice(len(market.investable_columns))
        return market.known_until("quantities", stop, lambda last: cls(market, last, bought))

    @cached_property
    def names(self) -> list[str]:
        """Quantities of each stock."""
        return [one.name for one in self.market.features if one.form != "past"]

    @cached_property
    def conditioning(self) -> list[str]:
        """Quantities on which others are conditioned."""
        columns = [name for name in self.names if name in self.market.columns]
        return [*(name for name in _CONDITIONING if name in self.names), *columns[:_MOST_COLUMNS]]

    def __getitem__(self, name: str) -> Float32Array:
        if name not in self._known:
            has_bar = np.isfinite(self._close)
            values = values_from(feature_of(self.market, name), self._bars)
            values = np.where(has_bar, values, np.float32(np.nan))
            self._known[name] = _deviations(values, self.form(name))[:, self.taken]
        return self._known[name]

    def form(self, name: str) -> str:
        """Return the form of a quantity; columns of the user are events."""
        return "event" if name in self.market.columns else feature_of(self.market, name).form

    def scaled(self, name: str, scale: str, some: slice = slice(None)) -> Float32Array:
        """Return a quantity of some stocks on a scale."""
        if not scale:
            return self[name][:, some]
        if (name, some.step) not in self._last:
            values = self[name][:, some]
            past = pd.DataFrame(values).ewm(halflife=_OWN_HALF_LIFE, min_periods=_LEAST_PAST)
            spread = past.std().to_numpy()
            against = (values - past.mean().to_numpy()) / np.where(spread > 1e-6, spread, np.nan)
            self._last.clear()
            self._last[name, some.step] = np.nan_to_num(against).clip(-_LARGEST, _LARGEST).astype(np.float32)
        return self._last[name, some.step]

    def by_own_slopes(self, values: Float32Array, season: Int64Array | None) -> Float32Array:
        """Return (days, n) values times each stock's slope of next returns on them, as far as it is known on the day,
        shrunk as by some sessions without returns; less the mean of a day.

        Args:
            season: (days,) of the next session, each of which has slopes of its own.
        """
        returns, weight, known = self._next
        told, square = values * returns, values.astype(np.float64) ** 2 * weight
        for of_day in (told, square):
            if season is None:
                of_day[:] = later(of_day.cumsum(axis=0), _KNOWN_LATER)
                continue
            for one in np.unique(season):
                days = np.flatnonzero(season == one)
                before = np.searchsorted(days, days - _KNOWN_LATER, side="right")
                of_day[days] = np.pad(of_day[days].cumsum(axis=0), ((1, 0), (0, 0)))[before]
        usual = square.sum(axis=1, keepdims=True) / np.maximum(later(known, _KNOWN_LATER), 1)
        told /= np.maximum(square + NO_RETURN * usual, 1e-12)
        return np.nan_to_num(apart(np.where(self.has_bar, values * told, np.nan))).astype(np.float32)

    @cached_property
    def _next(self) -> tuple[Float64Array, Float64Array, Float64Array]:
        """(days, n) next returns times their weights, and these: the inverse of the variance of the stock's returns so
        far; 0 where not known. And (days, 1) how many are known so far."""
        returns = next_returns(self.market, slice(self.stop))[0][:, self.taken]
        deviation = pd.DataFrame(100 * np.sqrt(self._variance))
        usual = deviation.mean(axis=1)
        deviation = deviation.clip(*(bound * usual for bound in _RISKS), axis=0).to_numpy()
        weight = np.nan_to_num(np.isfinite(returns) / deviation**2)
        bound = LARGEST_RETURN * deviation
        known = (weight > 0).sum(axis=1, keepdims=True).cumsum(axis=0)
        return np.nan_to_num(returns.clip(-bound, bound)) * weight, weight, known

    @cached_property
    def states(self) -> Float32Array:
        """(4, days) always 1, and whether each state holds."""
        returns, has_bar = log_returns(self._close), np.isfinite(self._close)
        market = pd.Series(returns.sum(axis=1) / np.maximum(has_bar.sum(axis=1), 1))
        spread = pd.DataFrame(returns).where(has_bar).std(axis=1, ddof=0)
        usual = {"min_periods": _TWO_WEEKS}
        holds = (
            market.rolling(_TWO_WEEKS).std() > 1.1 * market.rolling(_YEAR, **usual).std(),
            market.rolling(_TREND, **usual).mean() > 0,
            spread.rolling(_WEEK).mean() > spread.rolling(_YEAR, **usual).mean(),
        )
        return np.stack((np.ones(self.stop), *holds)).astype(np.float32)

    def weight(self, state: str) -> Float32Array:
        """Return the (days, 1) weights of formulas of a state."""
        return (np.array(STATES[state], dtype=np.float32) @ self.states)[:, None]

    @cached_property
    def _variance(self) -> Float64Array:
        """(days, n) of the returns of each stock so far, apart from the market's; NaN where there is none yet."""
        returns = apart(np.where(np.isfinite(self._close), log_returns(self._close), np.nan))
        own = np.where(has_return(self._close), returns, np.nan)[:, self.taken]
        square = pd.DataFrame(own**2).ewm(halflife=_RISK_HALF_LIFE, min_periods=_WEEK).mean().to_numpy()
        return np.where(square > 0, square, np.nan)

    @cached_property
    def deviation(self) -> Float32Array:
        """(days, n) deviations of the returns of each stock, apart from the market's, over the mean one."""
        known = np.log(pd.DataFrame(self._variance).bfill().to_numpy()) / 2
        relative = np.exp(known - np.nanmean(known)) if np.isfinite(known).any() else np.ones_like(known)
        return np.asarray(np.nan_to_num(relative, nan=1.0).clip(*_RISKS), dtype=np.float32)

    @cached_property
    def has_bar(self) -> BoolArray:
        """(days, n)."""
        return np.isfinite(self._close[:, self.taken])

    @cached_property
    def _close(self) -> Float32Array:
        """(days, stocks) of all, NaN without a bar."""
        return self.market.data_array[: self.stop, self.market.stock_columns, CLOSE]

    @cached_property
    def _bars(self) -> StockBars:
        return StockBars(self.market, self.stop, len(self.market.stock_columns))


def _deviations(values: Float32Array, form: str) -> Float32Array:
    """Return (days, n) values in deviations over the stocks of the day; 0 where there is none.

    Of what is `scaled`, larger on some days than on others, they are those over the stocks of all days so far; of an
    `event`, of which most values are 0, those over all events so far where these are larger.
    """
    relative, known = np.nan_to_num(apart(values)), np.isfinite(values)
    spread = _root_mean_square(relative, known, so_far=form == "scaled")
    if form == "event":
        is_event = known & (values != 0)
        so_far = _root_mean_square(np.nan_to_num(values), is_event, so_far=True)
        events, cells = (part.sum(axis=1, keepdims=True).cumsum(axis=0) for part in (is_event, known))
        spread = np.maximum(spread, np.where(2 * events < cells, so_far, 0.0))
    scaled = np.divide(relative, spread, out=np.zeros_like(relative), where=spread > 1e-12)
    return scaled.clip(-_LARGEST, _LARGEST).astype(np.float32)


def _root_mean_square(values: Float32Array, known: BoolArray, *, so_far: bool) -> Float64Array:
    """Return the (days, 1) root mean squares of (days, n) values, 0 where not known, of each day or of all days so
    far."""
    square = (values.astype(np.float64) ** 2).sum(axis=1, keepdims=True)
    count = known.sum(axis=1, keepdims=True)
    if so_far:
        square, count = square.cumsum(axis=0), count.cumsum(axis=0)
    return np.asarray(np.sqrt(square / np.maximum(count, 1)))


def next_returns(market: Market, days: slice) -> Float64Array:
    """Return the log returns of some days from the next open to the one after it, and over 20 sessions, less their
    means over the stocks: (2, days, stocks) percent, NaN where one is missing or lies after these days."""
    log_open = np.log(market.data_array[days, market.stock_columns, OPEN].astype(np.float64))
    returns = np.full((2, *log_open.shape), np.nan)
    for place, sessions in enumerate((1, SESSIONS)):
        returns[place, : -sessions - 1] = 100 * (log_open[sessions + 1 :] - log_open[1:-sessions])
    return apart(returns)


def formed(values: Float32Array, form: str, by: Float32Array | None) -> Float32Array:
    """Return (days, n) values in a form, perhaps under a condition on others."""
    if form in TAILS:
        is_in = {"high": values > _TAIL, "low": values < -_TAIL, "extreme": np.abs(values) > _TAIL}[form]
        return np.where(is_in, values, np.float32(0.0))
    if by is not None:
        return values * condition(form, by)
    return values


def condition(form: str, by: Float32Array) -> Float32Array:
    """Return the (days, n) factors of values under a condition on others."""
    if form == "times":
        return by
    return ((by if form == "after high" else -by) > _LARGE).astype(np.float32)


def remembered(values: Float32Array, half_life: int) -> Float32Array:
    """Return the sums of (days, n) values so far, of which half is forgotten after some sessions; as they are by 0."""
    if not half_life:
        return values
    kept = np.float32(0.5 ** (1 / half_life))
    sums = scipy.signal.lfilter(np.ones(1, np.float32), np.array([1, -kept]), values, axis=0)
    sums[np.abs(sums) < _FORGOTTEN] = 0.0
    return np.asarray(sums, np.float32)
