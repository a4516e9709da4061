"""Formulas of what tells of returns to come, found among all of a grammar: a quantity, in a form, under a condition, in
a state of the market, its memory, and one slope or each stock's own.

What one number tells may depend on another: returns after loud days go on, after quiet ones they turn (Llorente,
Michaely, Saar and Wang 2002, "Dynamic volume-return relation of individual stocks"), momentum holds in calm markets
(Daniel and Moskowitz 2016, "Momentum crashes"), what follows may last, and stocks may differ in their slopes (Swamy
1970, "Efficient inference in a random coefficient regression model"). Formulas are searched as signals of traders are
(Kakushadze 2016, "101 formulaic alphas"), by matching pursuit (Mallat and Zhang 1993, "Matching pursuits with
time-frequency dictionaries") on next returns: the formula with the largest t-statistic first, the next on what it
leaves. Quiet cells count for more (weighted least squares), and a formula for less the more choices it makes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from data.features.grammar import Formula, Quantities
from data.features.screen import Targets, screened
from data.features.seasons import SEASONS
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from utils.progress import in_parts

FORECASTS = 2
"""Of the next session, and of the next 20."""
_LATE = (0, 1, 2, 3)
"""Sessions until a formula counts."""
_MOST, _CHOSEN_FROM = 8, 24
"""Most formulas, and among which they are pursued."""
_LEAST = 18.0
"""Square of the least t-statistic of a plain formula."""
_RIDGE = 0.01
"""Of ridge regressions, in multiples of their squares."""
_CELLS = 2**19
"""Days times stocks on which formulas are fitted."""


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
            returns: (2, days, stocks) percent of the next session and of the next 20, less their means over all stocks
                of the market; NaN where not known.
            learned: (days,) each, on which returns may be read.
        """
        taken = _taken(market, days := returns.shape[1])
        table = Quantities(market, days, taken)
        y = Targets.of(returns[..., taken], np.stack(learned), table.deviation)
        shortlist = screened(table, y) if table.names else [list[Formula]() for _ in learned]
        scores = [dict[Formula, float]() for _ in learned]
        for formula in in_parts(sorted({one for formulas in shortlist for one in formulas}), 30):
            memory, places = formula.memory(table), [place for place, of in enumerate(shortlist) if formula in of]
            for late in _LATE:
                one = formula._replace(late=late)
                counted = one.counted(memory, table)
                for place in places:
                    scores[place][one] = _score(one, counted, y.first[place], y.learned[place])
                tells = max(scores[place][one] for place in places) >= _LEAST / 2
                if formula.by_stock and (formula.quantity in SEASONS or not tells):
                    break  # what tells nothing at once will hardly later
        found, values_of = list[Self](), cache(lambda one: one.of(table))
        for place, of_set in in_parts([*enumerate(scores)], 10):
            best = sorted(of_set, key=lambda one: -of_set[one])[:_CHOSEN_FROM]
            found.append(cls._pursued({one: values_of(one) for one in best}, y, place))
        return found

    @classmethod
    def _pursued(cls, values: Mapping[Formula, Float32Array], y: Targets, place: int) -> Self:
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
            gram += np.diag(_RIDGE * np.diag(gram) + 1e-9)
            loadings = np.linalg.solve(gram, (z @ both.T).astype(np.float64))
            left = first.copy()
            left[known] -= weight * (loadings[:, 0].astype(np.float32) @ z)
        if not taken:
            return cls()
        scale = np.maximum((loadings.T @ z).std(axis=1), 1e-9)
        return cls(tuple(taken), tuple(map(tuple, loadings.tolist())), tuple(scale.tolist()))

    def of(self, market: Market, days: slice) -> Float32Array:
        """Return (2, days, n) forecasts on some days, in deviations."""
        days = market.bounded(days)
        forecasts = np.zeros((FORECASTS, days.stop - days.start, len(market.investable_columns)), dtype=np.float32)
        table = Quantities.bought(market, days.stop)
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


def _taken(market: Market, days: int) -> Int64Array:
    """Return the stocks by which formulas are searched: those that may be bought, then others, up to some cells."""
    most, bought = max(1, _CELLS // days), len(market.investable_columns)
    others = np.arange(bought, len(market.stock_columns))
    own = np.arange(bought)[:: 1 + bought // most]
    return np.concatenate((own, others[: most - len(own)]))


def _score(formula: Formula, values: Float32Array, y: Float32Array, learned: BoolArray) -> float:
    """Return the square of its t-statistic, summed by day, less its penalty: returns of one day are correlated."""
    of_day = np.einsum("dn,dn->d", values, y)[learned].astype(np.float64)
    return float(of_day.sum() ** 2 / max((of_day**2).sum(), 1e-12)) - formula.penalty
