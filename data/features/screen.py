"""The screen: which of all formulas of the grammar seem to tell most of returns to come.

All are tried at once: the moments of quantities under conditions are products of matrices, stock by stock, and memory
is in the returns, which are summed up over the days to come. Slopes of each stock are scored by what they explain,
shrunken as random coefficients are, beyond one slope for all and beyond what noise explains.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple, Self

import numpy as np

from data.features.grammar import (
    CONDITIONS,
    HALF_LIVES,
    LARGEST_RETURN,
    NO_RETURN,
    PENALTIES,
    SCALES,
    STATES,
    TAILS,
    Formula,
    Quantities,
    condition,
    formed,
    remembered,
)
from data.features.seasons import SEASONS
from utils.arrays import BoolArray, Float32Array, Float64Array
from utils.progress import in_parts

SHORTLISTS = (100, 64)
"""Candidates of which t-statistics are computed exactly: with one slope for all stocks, and with one for each."""
_CELLS = 2**17
"""Days times stocks on which candidates are screened."""
_DAYS = 64
"""Of a block of the screen."""


class Targets(NamedTuple):
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
    def of(cls, returns: Float64Array, learned: BoolArray, deviation: Float32Array) -> Self:
        """Weight (2, days, n) returns by (days, n) deviations, as far as (sets, days) are learned from."""
        known: BoolArray = np.isfinite(returns).all(axis=0) & np.bitwise_or.reduce(learned)[:, None]
        units, both = np.where(known, returns, 0.0) / deviation, list[Float32Array]()
        for days in learned:
            of_set = units * days[:, None]
            bound = LARGEST_RETURN * np.sqrt((of_set**2).sum(axis=(1, 2)) / max(known[days].sum(), 1))
            both.append((of_set.clip(-bound[:, None, None], bound[:, None, None]) / deviation).astype(np.float32))
        return cls(np.stack(both, axis=1), (known / deviation**2).astype(np.float32), learned)


def screened(table: Quantities, y: Targets) -> list[list[Formula]]:
    """Return, by each set of days, those of all candidates that seem best, on some of the stocks, and all seasons."""
    step = 1 + y.weight.size // _CELLS
    some = slice(None, None, step)
    scaled = [(name, scale) for name in table.names for scale in SCALES]
    values = np.stack([table.scaled(*one, some) for one in in_parts(scaled, 10)], axis=2)
    conditions = [("", ""), *product(CONDITIONS, table.conditioning)]
    under = [condition(form, table[by][:, some]) if by else np.ones_like(values[..., 0]) for form, by in conditions]
    screen = _Screen(table.states, y.first[..., some], y.weight[:, some], y.learned)
    plain = screen.scores(values, np.stack(under, axis=2))
    parts = [(conditions, plain)] + [
        ([(tail, "")], screen.scores(values, np.ones_like(values[..., :1]), tail=tail)) for tail in TAILS
    ]
    # Where some days count for more, what stocks have in common on these would be taken for their own.
    barred = np.array([table.form(name) == "scaled" for name, _ in scaled])[:, None, None]
    found = [list[Formula]() for _ in y.learned]
    for scope, most in enumerate(SHORTLISTS):
        best = [list[tuple[float, Formula]]() for _ in y.learned]
        for names, scores in parts:
            penalty = np.where(scope & barred, np.inf, _penalties(scaled, names))
            for place, of_set in enumerate(scores[scope] - penalty):
                for at in np.argpartition(-of_set, min(most, of_set.size - 1), axis=None)[:most]:
                    state, quantity, under_it, half_life = np.unravel_index(at, of_set.shape)
                    choices = *scaled[quantity], *names[under_it], [*STATES][state], HALF_LIVES[half_life]
                    best[place].append((float(of_set.flat[at]), Formula(*choices, by_stock=bool(scope))))
        for of_set, formulas in zip(best, found, strict=True):
            formulas += [formula for _, formula in sorted(of_set, reverse=True)[:most]]
    seasons = [Formula(name, state=state, by_stock=True) for name in SEASONS for state in STATES]
    return [[*formulas, *seasons] for formulas in found]


def _penalties(scaled: Sequence[tuple[str, str]], conditions: Sequence[tuple[str, str]]) -> Float32Array:
    """Return the penalties of (states, scaled, conditions, half-lives)."""
    parts = (
        ("state", [*STATES]),
        ("scale", [scale for _, scale in scaled]),
        ("form", [form for form, _ in conditions]),
        ("half_life", HALF_LIVES),
    )
    of_choices = [np.array([PENALTIES[choice] * bool(option) for option in options]) for choice, options in parts]
    return np.asarray(sum(np.ix_(*of_choices)), dtype=np.float32)


@dataclass(frozen=True)
class _Screen:
    """Moments of candidates with returns to come."""

    holds: Float32Array
    """(1 + states, days), see `Quantities.states`."""
    y: Float32Array
    """(sets, days, n) weighted."""
    weight: Float32Array
    """(days, n)."""
    learned: BoolArray
    """(sets, days)."""

    @cached_property
    def _ahead(self) -> Float32Array:
        """(n, days, sets, 1 + states, half-lives) returns to come, as far as they are learned from and while a state
        holds, each summed up with those after it, of which half counts after some sessions."""
        backwards = (self.y[:, None] * self.holds[:, :, None])[:, :, ::-1]
        backwards = np.ascontiguousarray(np.moveaxis(backwards, (2, 3), (0, 1)))
        days, n, *sets = backwards.shape
        ahead = np.empty((n, days, *sets, len(HALF_LIVES)), dtype=np.float32)
        for place, half_life in enumerate(HALF_LIVES):
            ahead[..., place] = remembered(backwards, half_life)[::-1].swapaxes(0, 1)
        return ahead

    def scores(self, values: Float32Array, under: Float32Array, *, tail: str = "") -> Float32Array:
        """Return scores of candidates, (2, sets, states, values, conditions, half-lives): about the squares of their
        t-statistics with one slope for all stocks; and the explained variance of shrunken slopes of each stock beside
        that one, less its expectation under noise.

        Args:
            values: (days, n, values).
            under: (days, n, conditions) factors.
            tail: of values that count alone.
        """

        def z(stock: int) -> Float32Array:
            return np.ascontiguousarray(formed(values[:, stock], tail, None).T)

        days, n, count = values.shape
        states = np.array([*STATES.values()], dtype=np.float32)
        of_days, gains = self._of_days(values, under, states, tail)
        shape = (count, under.shape[2], len(self.learned))
        squares = (self.y**2).sum(axis=2)
        share = ((states @ self.holds) ** 2 @ squares.T / np.maximum(squares.sum(axis=1), 1e-9)).T
        scale = np.maximum(share[:, :, None] * gains[:, :, None, None], 1e-9)  # of memories, while a state holds
        unit = squares.sum(axis=1) / np.maximum(self.weight.sum(axis=1) @ self.learned.T, 1e-9)
        variance = np.zeros((n, *shape), dtype=np.float32)
        for stock in range(n):
            known = (unit[:, None] * self.learned * self.weight[:, stock]).T.astype(np.float32)
            right = under[:, stock, :, None] ** 2 * known[:, None]
            variance[stock] = (z(stock) ** 2 @ right.reshape(days, -1)).reshape(shape)
        both = variance.sum(axis=0)
        prior = both / n * (NO_RETURN / np.maximum(self.learned.sum(axis=1), 1))
        shrunk = (1 / np.maximum(variance + prior, 1e-9)).astype(np.float32)
        total, of_each, with_all = np.zeros((3, *shape, len(states), len(HALF_LIVES)), dtype=np.float32)
        for stock in range(n):
            right = under[:, stock, :, None] * self._ahead[stock].reshape(days, 1, -1)
            products = (z(stock) @ right.reshape(days, -1)).reshape(*shape, *self._ahead.shape[3:])
            m, by = states @ products, shrunk[stock, ..., None, None]
            total += m
            of_each += by * m**2
            with_all += by * variance[stock, ..., None, None] * m
        slope = total / np.maximum(both, 1e-9)[..., None, None]
        overlap, noise = ((shrunk * variance**power).sum(axis=0)[..., None, None] for power in (2, 1))
        own = (of_each - 2 * slope * with_all + slope**2 * overlap) / scale - noise
        own[..., -1] = -np.inf  # of long memories a stock has too few beginnings
        expected = both[..., None, None] * scale
        expected[..., 0] = of_days.reshape(expected.shape[:-1])
        of_all = total**2 / np.maximum(expected, 1e-9)
        return np.stack([np.moveaxis(part, (2, 3), (0, 1)) for part in (of_all, own)])

    def _of_days(
        self, values: Float32Array, under: Float32Array, states: Float32Array, tail: str
    ) -> tuple[Float64Array, Float32Array]:
        """Return sums over the days of the squares of what candidates without memory earn on each, for returns of one
        day are correlated, (values, conditions, sets, states); and the gains of memories, see `_gains`."""
        days, n, count = values.shape
        squares = np.zeros((count * under.shape[2] * len(self.learned), len(states)))
        weights = (states @ self.holds) ** 2
        autocovariance = np.zeros((len(HALF_LIVES), count, under.shape[2]))
        for first in range(0, days, _DAYS):
            some = slice(first, min(first + _DAYS, days))
            earlier = max(0, first - HALF_LIVES[-1])
            z_before = formed(values[earlier : some.stop], tail, None).transpose(0, 2, 1)
            z, by = z_before[first - earlier :], under[some]
            right = (by[..., None] * self.y[:, some].transpose(1, 2, 0)[:, :, None]).reshape(len(z), n, -1)
            squares += (np.matmul(z, right).reshape(len(z), -1) ** 2).T @ weights[:, some].T
            weighted = z * self.weight[some][:, None]
            for place, lag in enumerate(HALF_LIVES):
                if first >= lag:
                    before = z_before[first - earlier - lag :][: len(z)]
                    under_before = under[first - lag : some.stop - lag]
                    autocovariance[place] += np.matmul(weighted * before, by * under_before).sum(axis=0)
        return squares.reshape(count, -1, len(self.learned), len(states)), _gains(
            autocovariance, int((self.weight > 0).sum())
        )


def _gains(autocovariance: Float64Array, cells: int) -> Float32Array:
    """Return the variance of memories over that of what is remembered, (..., half-lives), from (half-lives, ...)
    autocovariances, whose lags are the half-lives, estimated from `cells` observations; autocorrelations are
    interpolated between the lags. Those within three standard errors count as 0: long memories would sum up their
    errors."""
    correlation = autocovariance / np.maximum(autocovariance[:1], 1e-9)
    correlation[np.abs(correlation) < 3 / np.sqrt(max(cells, 1))] = 0.0
    gains = np.ones((*autocovariance.shape[1:], len(HALF_LIVES)), dtype=np.float32)
    for place, half_life in enumerate(HALF_LIVES[1:], start=1):
        kept, lags = 0.5 ** (1 / half_life), np.arange(1, 6 * half_life)
        at = np.stack([np.interp(lags, HALF_LIVES, unit) for unit in np.eye(len(HALF_LIVES))])
        sums = np.tensordot((2 * kept**lags) @ at.T, correlation, axes=1)
        gains[..., place] = np.maximum((1 + sums) / (1 - kept**2), 0.05 / (1 - kept**2))
    return gains
