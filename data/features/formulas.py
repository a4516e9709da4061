"""Formulas of what tells of returns to come, found among all of a grammar: a quantity, in a form, under a condition, in
a state of the market, and its memory.

What one number tells may depend on another: returns after loud days go on, after quiet ones they turn (Llorente,
Michaely, Saar and Wang 2002, "Dynamic volume-return relation of individual stocks"), momentum holds in calm markets
(Daniel and Moskowitz 2016, "Momentum crashes"), and what follows may last. Formulas are searched as signals of traders
are (Kakushadze 2016, "101 formulaic alphas"), by matching pursuit (Mallat and Zhang 1993, "Matching pursuits with
time-frequency dictionaries") on next returns: the formula with the largest t-statistic first, the next on what it
leaves. Quiet cells count for more (weighted least squares), and a formula for less the more choices it makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
import scipy  # submodules, which take a second to import, are loaded when they are used

from data.features.bank import apart, has_return, log_returns
from data.features.forms import StockBars, feature_of, values_from
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array

FORECASTS = 2
"""Of the next session, and of the next 20."""
_SCALES = ("", "own")
"""Deviations over the stocks of the day; of the stock's own past."""
_TAILS = ("high", "low", "extreme")
_CONDITIONS = ("times", "after high", "after low")
_CONDITIONING = ("volume_shock_1", "move_1", "range_shock_1", "to_year_high", "own_volatility")
"""Quantities on which others are conditioned, and as many columns of the user as there are, up to a number."""
_MOST_COLUMNS = 4
_STATES = ("wild", "rising", "dispersed")
_HALF_LIVES = (0, 1, 3, 10, 40)
"""Sessions of memory; 0: none."""
_LATE = (0, 1, 2, 3)
_LARGEST, _TAIL, _LARGE = 4.0, 1.0, 0.7
"""Deviations to which quantities are clipped, beyond which they are extreme, and of a condition that holds."""
_LARGEST_RETURN = 5.0
"""Deviations to which returns are clipped."""
_OWN_HALF_LIFE, _LEAST_PAST = 120, 20
_RISK_HALF_LIFE, _RISKS = 20, (0.3, 3.0)
"""Of the deviation of a stock's returns, and bounds on it in means of all."""
_WEEK, _TWO_WEEKS, _TREND, _YEAR = 5, 10, 60, 252
_MOST, _SHORTLIST, _CHOSEN_FROM = 8, 100, 24
"""Most formulas; candidates of which t-statistics are computed exactly; and among which formulas are pursued."""
_LEAST = 18.0
"""Square of the least t-statistic of a plain formula."""
_PRICES = {"scale": 1.0, "form": 3.0, "state": 3.0, "late": 1.0, "half_life": 1.0}
"""What each choice of a formula takes from the square of its t-statistic: twice the logarithm of the choices, about
half, for these are alike."""
_PENALTY = 0.01
"""Of ridge regressions, in multiples of their squares."""
_SCREEN_CELLS, _CELLS = 2**17, 2**19
"""Days times stocks on which candidates are screened, and on which formulas are fitted."""
_DAYS = 64
"""Of a block of the screen."""


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

    def __str__(self) -> str:
        words = [self.quantity, self.scale and "against its past", f"{self.form} {self.by}".strip()]
        words += [self.state and f"in {self.state} markets", f"{self.late} late" if self.late else ""]
        words += [f"with half-life {self.half_life}" if self.half_life else ""]
        return " ".join(word for word in words if word)

    @property
    def price(self) -> float:
        """What its choices take from the square of its t-statistic."""
        return sum(price for choice, price in _PRICES.items() if getattr(self, choice))

    def of(self, table: Quantities) -> Float32Array:
        """Return (days, n) values, 0 in the mean of a day but for memory; row t depends on bars up to t only."""
        by = table[self.by] if self.by else None
        formed = _formed(table.scaled(self.quantity, self.scale), self.form, by)
        values = np.nan_to_num(apart(np.where(table.has_bar, formed, np.float32(np.nan))))
        return _later(_remembered(values * table.states[self.state][:, None], self.half_life), self.late)


@dataclass(frozen=True)
class Quantities:
    """What formulas are made of, of a market before a day: (days, n) in deviations over the stocks of the day."""

    market: Market
    stop: int
    _known: dict[str, Float32Array] = field(default_factory=dict)

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
            values = np.where(self.has_bar, values_from(feature_of(self.market, name), self._bars), np.float32(np.nan))
            self._known[name] = _deviations(values, _events(values) if name in self.market.columns else 0.0)
        return self._known[name]

    def scaled(self, name: str, scale: str) -> Float32Array:
        """Return a quantity on a scale."""
        values = self[name]
        if scale == "own":
            past = pd.DataFrame(values).ewm(halflife=_OWN_HALF_LIFE, min_periods=_LEAST_PAST)
            spread = past.std().to_numpy()
            against = (values - past.mean().to_numpy()) / np.where(spread > 1e-6, spread, np.nan)
            return np.asarray(np.nan_to_num(against).clip(-_LARGEST, _LARGEST), dtype=np.float32)
        return values

    @cached_property
    def states(self) -> dict[str, Float32Array]:
        """(days,) weights of formulas by state of the market."""
        market = pd.Series(self.returns.sum(axis=1) / np.maximum(self.has_bar.sum(axis=1), 1))
        spread = pd.DataFrame(self.returns).where(self.has_bar).std(axis=1, ddof=0)
        usual = {"min_periods": _TWO_WEEKS}
        holds = (
            market.rolling(_TWO_WEEKS).std() > 1.1 * market.rolling(_YEAR, **usual).std(),
            market.rolling(_TREND, **usual).mean() > 0,
            spread.rolling(_WEEK).mean() > spread.rolling(_YEAR, **usual).mean(),
        )
        weights = {"": np.ones(self.stop, dtype=np.float32)}
        for name, held in zip(_STATES, holds, strict=True):
            holding = held.to_numpy().astype(np.float32)
            weights |= {name: holding, f"not {name}": 1 - holding, f"+-{name}": 2 * holding - 1}
        return weights

    @cached_property
    def deviation(self) -> Float32Array:
        """(days, n) deviations of the returns of each stock, apart from the market's, over the mean one."""
        own = np.where(has_return(self.close), apart(np.where(self.has_bar, self.returns, np.nan)), np.nan)
        square = pd.DataFrame(own**2).ewm(halflife=_RISK_HALF_LIFE, min_periods=_WEEK).mean().bfill().to_numpy()
        known = np.log(np.where(square > 0, square, np.nan)) / 2
        relative = np.exp(known - np.nanmean(known)) if np.isfinite(known).any() else np.ones_like(known)
        return np.nan_to_num(relative, nan=1.0).clip(*_RISKS).astype(np.float32)

    @cached_property
    def close(self) -> Float32Array:
        """(days, n), NaN without a bar."""
        return self.market.close[: self.stop]

    @cached_property
    def has_bar(self) -> BoolArray:
        """(days, n)."""
        return np.isfinite(self.close)

    @cached_property
    def returns(self) -> Float64Array:
        """(days, n) log returns."""
        return log_returns(self.close)

    @cached_property
    def _bars(self) -> StockBars:
        return StockBars(self.market, self.stop)


@dataclass(frozen=True)
class Formulas:
    """Formulas by which forecasts are made."""

    formulas: tuple[Formula, ...] = ()
    loadings: tuple[tuple[float, ...], ...] = ()
    """(formulas, 2) percent of the next session and of the next 20, for a value of 1."""
    scale: tuple[float, ...] = (1.0,) * FORECASTS
    """Deviations of these forecasts on the days of the fit."""

    @classmethod
    def fit(cls, market: Market, returns: Float64Array, learned: Sequence[BoolArray]) -> list[Self]:
        """Search by each of some sets of days.

        Args:
            returns: (2, days, n) percent of the next session and of the next 20, less their means over the stocks; NaN
                where not known.
            learned: (days,) each, on which returns may be read.
        """
        days = returns.shape[1]
        step = 1 + market.close[:days].size // _CELLS
        some = replace(market, investable_columns=market.investable_columns[::step])
        table = Quantities(some, days)
        y = _Targets.of(returns[..., ::step], np.stack(learned), table.deviation)
        shortlist = _screened(table, y) if table.names else [list[Formula]() for _ in learned]
        scores = [dict[Formula, float]() for _ in learned]
        for formula in dict.fromkeys(one for formulas in shortlist for one in formulas):
            values = formula.of(table)
            for late in _LATE:
                one, shifted = formula._replace(late=late), _later(values, late)
                for place, formulas in enumerate(shortlist):
                    if formula in formulas:
                        scores[place][one] = _score(one, shifted, y.first[place], y.learned[place])
        found, values_of = list[Self](), cache(lambda one: one.of(table))
        for place, of_set in enumerate(scores):
            best = sorted(of_set, key=lambda one: -of_set[one])[:_CHOSEN_FROM]
            found.append(cls._pursued({one: values_of(one) for one in best}, y, place))
        return found

    @classmethod
    def _pursued(cls, values: Mapping[Formula, Float32Array], y: _Targets, place: int) -> Self:
        known = y.learned[place][:, None] & (y.weight > 0)
        weight, first, left = y.weight[known], y.first[place], y.first[place]
        taken, z = list[Formula](), np.zeros((0, known.sum()), dtype=np.float32)
        loadings, both = np.zeros((0, FORECASTS)), y.both[:, place][:, known]
        while len(taken) < _MOST:
            scores = {one: _score(one, value, left, y.learned[place]) for one, value in values.items()}
            best = max(scores, key=lambda one: scores[one], default=None)
            if best is None or best in taken or scores[best] < _LEAST:
                break
            taken.append(best)
            z = np.vstack((z, values[best][known]))
            gram = ((z * weight) @ z.T).astype(np.float64)
            gram += np.diag(_PENALTY * np.diag(gram) + 1e-9)
            loadings = np.linalg.solve(gram, (z @ both.T).astype(np.float64))
            left = first.copy()
            left[known] -= weight * (loadings[:, 0].astype(np.float32) @ z)
        if not taken:
            return cls()
        scale = np.maximum((loadings.T @ z).std(axis=1), 1e-9)
        return cls(tuple(taken), tuple(map(tuple, loadings.tolist())), tuple(scale.tolist()))

    def of(self, market: Market, days: slice) -> Float32Array:
        """Return (2, days, n) forecasts on some days, in deviations."""
        days = slice(*days.indices(len(market.dates)))
        forecasts = np.zeros((FORECASTS, days.stop - days.start, len(market.investable_columns)), dtype=np.float32)
        table = Quantities(market, days.stop)
        for formula, loadings in zip(self.formulas, self.loadings, strict=True):
            values = formula.of(table)[days]
            for forecast, loading, scale in zip(forecasts, loadings, self.scale, strict=True):
                forecast += np.float32(loading / scale) * values
        return forecasts

    def __iter__(self) -> Iterator[str]:
        """Yield formulas in words, with what a value of 1 tells of the next session."""
        for formula, loadings in zip(self.formulas, self.loadings, strict=True):
            yield f"{formula} {loadings[0]:+.3f}%"

    def state(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Self:
        """Restore what `state` gave."""
        loadings = tuple(tuple(each) for each in state["loadings"])
        return cls(tuple(Formula(*one) for one in state["formulas"]), loadings, tuple(state["scale"]))


class _Targets(NamedTuple):
    """Next returns, weighted by the inverse of the variance of the stock's returns."""

    both: Float32Array
    """(2, sets, days, n), 0 where not learned from."""
    weight: Float32Array
    """(days, n), 0 where the returns are not known."""
    learned: BoolArray
    """(sets, days)."""

    @property
    def first(self) -> Float32Array:
        """(sets, days, n) of the next session."""
        first: Float32Array = self.both[0]
        return first

    @classmethod
    def of(cls, returns: Float64Array, learned: BoolArray, deviation: Float32Array) -> _Targets:
        known: BoolArray = np.isfinite(returns).all(axis=0) & np.bitwise_or.reduce(learned)[:, None]
        units, both = np.where(known, returns, 0.0) / deviation, list[Float32Array]()
        for days in learned:
            of_set = units * days[:, None]
            bound = _LARGEST_RETURN * np.sqrt((of_set**2).sum(axis=(1, 2)) / max(int(known[days].sum()), 1))
            both.append((of_set.clip(-bound[:, None, None], bound[:, None, None]) / deviation).astype(np.float32))
        return cls(np.stack(both, axis=1), (known / deviation**2).astype(np.float32), learned)


def _deviations(values: Float32Array, least: Float64Array | float) -> Float32Array:
    """Return (days, n) values in deviations over the stocks of the day, at least of some size; 0 where there is none.

    Args:
        least: (days, 1).
    """
    relative, known = np.nan_to_num(apart(values)), np.isfinite(values)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    spread = np.maximum(np.sqrt((relative**2).sum(axis=1, keepdims=True) / count), least)
    scaled = np.divide(relative, spread, out=np.zeros_like(relative), where=spread > 1e-12)
    return np.asarray(scaled.clip(-_LARGEST, _LARGEST), dtype=np.float32)


def _events(values: Float32Array) -> Float64Array:
    """Return the (days, 1) root mean squares of (days, n) values so far that are not 0, if most are; else 0."""
    known = np.isfinite(values)
    square = np.where(known, values, 0.0).astype(np.float64) ** 2
    total, events, count = (part.sum(axis=1, keepdims=True).cumsum(axis=0) for part in (square, square > 0, known))
    return np.where(2 * events < count, np.sqrt(total / np.maximum(events, 1)), 0.0)


def _formed(values: Float32Array, form: str, by: Float32Array | None) -> Float32Array:
    if form in _TAILS:
        is_in = {"high": values > _TAIL, "low": values < -_TAIL, "extreme": np.abs(values) > _TAIL}[form]
        return np.where(is_in, values, np.float32(0.0))
    if by is not None:
        return values * _condition(form, by)
    return values


def _condition(form: str, by: Float32Array) -> Float32Array:
    if form == "times":
        return by
    return ((by if form == "after high" else -by) > _LARGE).astype(np.float32)


def _remembered(values: Float32Array, half_life: int) -> Float32Array:
    """Return the sums of (days, n) values so far, of which half is forgotten after some sessions; as they are by 0."""
    if not half_life:
        return values
    kept = np.float32(0.5 ** (1 / half_life))
    return np.asarray(scipy.signal.lfilter(np.ones(1, np.float32), np.array([1, -kept]), values, axis=0), np.float32)


def _later(values: Float32Array, late: int) -> Float32Array:
    """Return (days, n) values some sessions later, 0 before."""
    return np.vstack((np.zeros_like(values[:late]), values[: len(values) - late]))


def _score(formula: Formula, values: Float32Array, y: Float32Array, learned: BoolArray) -> float:
    """Return the square of its t-statistic, summed by day, less its price: returns of one day are correlated."""
    of_day = np.einsum("dn,dn->d", values, y)[learned].astype(np.float64)
    return float(of_day.sum() ** 2 / max((of_day**2).sum(), 1e-12)) - formula.price


def _screened(table: Quantities, y: _Targets) -> list[list[Formula]]:
    """Return, by each set of days, those of all candidates that seem best, on some of the stocks.

    All are tried at once: the moments of quantities under conditions are products of matrices, a day at a time; memory
    is in the returns, which are summed up over the days to come.
    """
    step = 1 + y.weight.size // _SCREEN_CELLS
    some = np.s_[:, ::step]
    scaled = [(name, scale) for name in table.names for scale in _SCALES]
    values = np.stack([table.scaled(*one)[some] for one in scaled], axis=2)
    conditions = [("", ""), *product(_CONDITIONS, table.conditioning)]
    under = [_condition(form, table[by][some]) if by else np.ones_like(values[..., 0]) for form, by in conditions]
    screen = _Screen(np.stack([*table.states.values()]), y.first[..., ::step], y.weight[some], y.learned)
    plain = screen.scores(values, np.stack(under, axis=2))
    parts = [(conditions, plain)] + [
        ([(tail, "")], screen.scores(values, np.ones_like(values[..., :1]), tail=tail)) for tail in _TAILS
    ]
    states, best = [*table.states], [list[tuple[float, Formula]]() for _ in y.learned]
    for names, scores in parts:  # (sets, states, scaled, conditions, half-lives)
        price = _prices(scaled, names, states)
        for place, of_set in enumerate(scores - price):
            for at in np.argpartition(-of_set, min(_SHORTLIST, of_set.size - 1), axis=None)[:_SHORTLIST]:
                state, quantity, condition, half_life = np.unravel_index(at, of_set.shape)
                formula = Formula(*scaled[quantity], *names[condition], states[state], _HALF_LIVES[half_life])
                best[place].append((float(of_set.flat[at]), formula))
    return [[formula for _, formula in sorted(each, reverse=True)[:_SHORTLIST]] for each in best]


def _prices(
    scaled: Sequence[tuple[str, str]], conditions: Sequence[tuple[str, str]], states: Sequence[str]
) -> Float32Array:
    """Return the prices of (states, scaled, conditions, half-lives)."""
    parts = (
        ("state", states),
        ("scale", [scale for _, scale in scaled]),
        ("form", [form for form, _ in conditions]),
        ("half_life", _HALF_LIVES),
    )
    of_choices = [np.array([_PRICES[choice] * bool(option) for option in options]) for choice, options in parts]
    return np.asarray(sum(np.ix_(*of_choices)), dtype=np.float32)


@dataclass(frozen=True)
class _Screen:
    """Moments of candidates with returns to come."""

    states: Float32Array
    """(states, days)."""
    y: Float32Array
    """(sets, days, n) weighted."""
    weight: Float32Array
    """(days, n)."""
    learned: BoolArray
    """(sets, days)."""

    @cached_property
    def _ahead(self) -> Float32Array:
        """(days, n, sets, half-lives) returns to come, as far as they are learned from, each summed up with those after
        it, of which half counts after some sessions."""
        of_sets = [[_remembered(y[::-1], half_life)[::-1] for half_life in _HALF_LIVES] for y in self.y]
        ahead = np.empty((*self.weight.shape, len(self.y), len(_HALF_LIVES)), dtype=np.float32)
        np.stack([np.stack(each, axis=-1) for each in of_sets], axis=2, out=ahead)
        return ahead

    def scores(self, values: Float32Array, under: Float32Array, *, tail: str = "") -> Float64Array:
        """Return about the squares of the t-statistics, (sets, states, values, conditions, half-lives).

        Args:
            values: (days, n, values).
            under: (days, n, conditions) factors.
            tail: of values that count alone.
        """
        days, n, count = values.shape
        shape = count, under.shape[2], len(self.learned), len(_HALF_LIVES)
        total, square = np.zeros((len(self.states), np.prod(shape))), np.zeros((len(self.states), *shape[:3]))
        variance = np.zeros((len(self.learned), count * under.shape[2]))
        lagged = np.zeros((len(_HALF_LIVES), count, under.shape[2]))
        for first in range(0, days, _DAYS):
            some = slice(first, min(first + _DAYS, days))
            earlier = max(0, first - _HALF_LIVES[-1])
            z_before = _formed(values[earlier : some.stop], tail, None).transpose(0, 2, 1)
            z, by = z_before[first - earlier :], under[some]
            right = (by[..., None, None] * self._ahead[some][:, :, None]).reshape(len(z), n, -1)
            of_day = np.matmul(z, right).reshape(len(z), -1)
            total += self.states[:, some] @ of_day
            at_once = of_day.reshape(len(z), *shape)[..., 0]
            square += np.tensordot(self.states[:, some] ** 2, at_once**2, axes=1)
            weighted = z * self.weight[some][:, None]
            squares = np.matmul(weighted * z, by**2).reshape(len(z), -1)
            variance += self.learned[:, some].astype(np.float32) @ squares
            for place, lag in enumerate(_HALF_LIVES):
                if first >= lag:
                    before = z_before[first - earlier - lag :][: len(z)]
                    under_before = under[first - lag : some.stop - lag]
                    lagged[place] += np.matmul(weighted * before, by * under_before).sum(axis=0)
        of_set = [self.weight[known].sum() for known in self.learned]
        unit = (self.y**2).sum(axis=(1, 2)) / np.maximum(of_set, 1e-9)
        variance = unit[:, None, None] * variance.reshape(len(unit), count, -1)
        share = (self.states**2).mean(axis=1)
        of_memory = share[:, None, None, None, None] * (
            variance[..., None] * _gains(lagged, int((self.weight > 0).sum()))
        )
        top = total.reshape(len(self.states), *shape).transpose(0, 3, 1, 2, 4)
        of_memory[..., 0] = square.transpose(0, 3, 1, 2)
        return np.asarray((top**2 / np.maximum(of_memory, 1e-9)).transpose(1, 0, 2, 3, 4))


def _gains(lagged: Float64Array, cells: int) -> Float64Array:
    """Return the variance of memories over that of what is remembered, (..., half-lives), from the (half-lives, ...)
    products of values with those of as many sessions before, over so many cells; between these correlations are
    interpolated. Those within three standard errors count as 0: long memories would sum up their errors."""
    correlation = lagged / np.maximum(lagged[:1], 1e-9)
    correlation[np.abs(correlation) < 3 / np.sqrt(max(cells, 1))] = 0.0
    gains = np.ones((*lagged.shape[1:], len(_HALF_LIVES)))
    for place, half_life in enumerate(_HALF_LIVES[1:], start=1):
        kept, lags = 0.5 ** (1 / half_life), np.arange(1, 6 * half_life)
        at = np.stack([np.interp(lags, _HALF_LIVES, unit) for unit in np.eye(len(_HALF_LIVES))])
        sums = np.tensordot((2 * kept**lags) @ at.T, correlation, axes=1)
        gains[..., place] = np.maximum((1 + sums) / (1 - kept**2), 0.05 / (1 - kept**2))
    return gains
