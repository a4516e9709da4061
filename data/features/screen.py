"""The screen: which of all formulas of the grammar seem to tell most of returns to come.

All are tried at once: the moments of quantities under conditions are products of matrices, some days at a time, and
memory is in the returns, which are summed up over the days to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from data.features.grammar import (
    CONDITIONS,
    HALF_LIVES,
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
from utils.arrays import BoolArray, Float32Array, Float64Array

SHORTLIST = 100
"""Candidates of which t-statistics are computed exactly."""
_LARGEST_RETURN = 5.0
"""Deviations to which returns are clipped."""
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
    def of(cls, returns: Float64Array, learned: BoolArray, deviation: Float32Array) -> Targets:
        """Weight (2, days, n) returns by (days, n) deviations, as far as (sets, days) are learned from."""
        known: BoolArray = np.isfinite(returns).all(axis=0) & np.bitwise_or.reduce(learned)[:, None]
        units, both = np.where(known, returns, 0.0) / deviation, list[Float32Array]()
        for days in learned:
            of_set = units * days[:, None]
            bound = _LARGEST_RETURN * np.sqrt((of_set**2).sum(axis=(1, 2)) / max(int(known[days].sum()), 1))
            both.append((of_set.clip(-bound[:, None, None], bound[:, None, None]) / deviation).astype(np.float32))
        return cls(np.stack(both, axis=1), (known / deviation**2).astype(np.float32), learned)


def screened(table: Quantities, y: Targets) -> list[list[Formula]]:
    """Return, by each set of days, those of all candidates that seem best, on some of the stocks."""
    step = 1 + y.weight.size // _CELLS
    some = np.s_[:, ::step]
    scaled = [(name, scale) for name in table.names for scale in SCALES]
    values = np.stack([table.scaled(*one)[some] for one in scaled], axis=2)
    conditions = [("", ""), *product(CONDITIONS, table.conditioning)]
    under = [condition(form, table[by][some]) if by else np.ones_like(values[..., 0]) for form, by in conditions]
    screen = _Screen(table.states, y.first[..., ::step], y.weight[some], y.learned)
    plain = screen.scores(values, np.stack(under, axis=2))
    parts = [(conditions, plain)] + [
        ([(tail, "")], screen.scores(values, np.ones_like(values[..., :1]), tail=tail)) for tail in TAILS
    ]
    states, best = [*STATES], [list[tuple[float, Formula]]() for _ in y.learned]
    for names, scores in parts:  # (sets, states, scaled, conditions, half-lives)
        penalty = _penalties(scaled, names, states)
        for place, of_set in enumerate(scores - penalty):
            for at in np.argpartition(-of_set, min(SHORTLIST, of_set.size - 1), axis=None)[:SHORTLIST]:
                state, quantity, under_it, half_life = np.unravel_index(at, of_set.shape)
                formula = Formula(*scaled[quantity], *names[under_it], states[state], HALF_LIVES[half_life])
                best[place].append((float(of_set.flat[at]), formula))
    return [[formula for _, formula in sorted(each, reverse=True)[:SHORTLIST]] for each in best]


def _penalties(
    scaled: Sequence[tuple[str, str]], conditions: Sequence[tuple[str, str]], states: Sequence[str]
) -> Float32Array:
    """Return the penalties of (states, scaled, conditions, half-lives)."""
    parts = (
        ("state", states),
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
        """(days, n, sets, 1 + states, half-lives but none) returns to come, as far as they are learned from and while
        a state holds, each summed up with those after it, of which half counts after some sessions."""
        backwards = (self.y[:, None] * self.holds[:, :, None])[:, :, ::-1]
        backwards = np.ascontiguousarray(np.moveaxis(backwards, (2, 3), (0, 1)))
        return np.stack([remembered(backwards, half_life)[::-1] for half_life in HALF_LIVES[1:]], axis=-1)

    def scores(self, values: Float32Array, under: Float32Array, *, tail: str = "") -> Float64Array:
        """Return about the squares of the t-statistics, (sets, states, values, conditions, half-lives).

        Args:
            values: (days, n, values).
            under: (days, n, conditions) factors.
            tail: of values that count alone.
        """
        days, n, count = values.shape
        states = np.array([*STATES.values()], dtype=np.float32)
        weights, shape = states @ self.holds, (count, under.shape[2], len(self.learned))
        at_once, square = np.zeros((2, len(states), np.prod(shape)))
        ahead = np.zeros((*shape, *self._ahead.shape[3:]))
        variance = np.zeros((len(self.learned), count * under.shape[2]))
        autocovariance = np.zeros((len(HALF_LIVES), count, under.shape[2]))
        for first in range(0, days, _DAYS):
            some = slice(first, min(first + _DAYS, days))
            earlier = max(0, first - HALF_LIVES[-1])
            z_before = formed(values[earlier : some.stop], tail, None).transpose(0, 2, 1)
            z, by = z_before[first - earlier :], under[some]
            right = (by[..., None] * self.y[:, some].transpose(1, 2, 0)[:, :, None]).reshape(len(z), n, -1)
            of_day = np.matmul(z, right).reshape(len(z), -1)
            at_once += weights[:, some] @ of_day
            square += weights[:, some] ** 2 @ of_day**2
            right = by[..., None] * self._ahead[some].reshape(len(z), n, 1, -1)
            cells = z.transpose(1, 0, 2).reshape(count, -1)
            ahead += (cells @ right.reshape(cells.shape[1], -1)).reshape(ahead.shape)
            weighted = z * self.weight[some][:, None]
            squares = np.matmul(weighted * z, by**2).reshape(len(z), -1)
            variance += self.learned[:, some].astype(np.float32) @ squares
            for place, lag in enumerate(HALF_LIVES):
                if first >= lag:
                    before = z_before[first - earlier - lag :][: len(z)]
                    under_before = under[first - lag : some.stop - lag]
                    autocovariance[place] += np.matmul(weighted * before, by * under_before).sum(axis=0)
        of_set = [self.weight[known].sum() for known in self.learned]
        unit = (self.y**2).sum(axis=(1, 2)) / np.maximum(of_set, 1e-9)
        variance = unit[:, None, None] * variance.reshape(len(unit), count, -1)
        share = (weights**2).mean(axis=1)
        of_memory = variance[..., None] * _gains(autocovariance, int((self.weight > 0).sum()))
        squares = share[:, None, None, None, None] * of_memory  # (states, sets, values, conditions, half-lives)
        squares[..., 0] = np.moveaxis(square.reshape(-1, *shape), 3, 1)
        memories = np.einsum("qb,vcsbh->qsvch", states, ahead)
        total = np.concatenate((np.moveaxis(at_once.reshape(-1, *shape), 3, 1)[..., None], memories), axis=-1)
        return np.asarray((total**2 / np.maximum(squares, 1e-9)).swapaxes(0, 1))


def _gains(autocovariance: Float64Array, cells: int) -> Float64Array:
    """Return the variance of memories over that of what is remembered, (..., half-lives), from their (half-lives, ...)
    autocovariances at lags of as many sessions, over so many cells; autocorrelations are interpolated between the lags.
    Those within three standard errors count as 0: long memories would sum up their errors."""
    correlation = autocovariance / np.maximum(autocovariance[:1], 1e-9)
    correlation[np.abs(correlation) < 3 / np.sqrt(max(cells, 1))] = 0.0
    gains = np.ones((*autocovariance.shape[1:], len(HALF_LIVES)))
    for place, half_life in enumerate(HALF_LIVES[1:], start=1):
        kept, lags = 0.5 ** (1 / half_life), np.arange(1, 6 * half_life)
        at = np.stack([np.interp(lags, HALF_LIVES, unit) for unit in np.eye(len(HALF_LIVES))])
        sums = np.tensordot((2 * kept**lags) @ at.T, correlation, axes=1)
        gains[..., place] = np.maximum((1 + sums) / (1 - kept**2), 0.05 / (1 - kept**2))
    return gains
