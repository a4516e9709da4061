"""Regression samples of counterfactual results, purged folds of days, and ridge regression in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np

from data.features.inputs import INPUTS
from data.features.rows import InputRows
from data.splits import Span
from environment.quotes import Quotes
from training.forecasts.outcomes import discounted_returns
from utils.arrays import BoolArray, Float32Array, Float64Array, in_order
from utils.config.trader import OUTCOME_SESSIONS, EnvironmentConfig
from utils.errors import DataError

DISCOUNTS = (0.6, 0.8, 0.9, 0.95)
"""From one session to the next, at which outcomes are learned."""
_FOLDS = 5
_ROWS_PER_INPUT = 14
"""Fewest rows per input that closes tell, which a regression may be fitted to."""


class Fold(NamedTuple):
    """A fold of the training days."""

    fitted: BoolArray
    """(days,) on which its models are fitted; purged: none of their trades overlaps one of a test day."""
    test: slice
    """Days on which they are tested."""


@dataclass(frozen=True)
class Samples:
    """Inputs of days of a market, and the known results of its orders."""

    x: InputRows
    """Of all days that are learned from."""
    results: Float32Array
    """(discounts, days, n) percent that positions gain, see `outcomes.discounted_returns`; NaN where not known."""
    train: Span
    longest: int
    """Sessions until every result is known."""

    @classmethod
    def of(
        cls,
        x: InputRows,
        quotes: Quotes,
        rules: EnvironmentConfig,
        train: Span,
        last: int,
        discounts: Sequence[float] = DISCOUNTS,
    ) -> Self:
        """Look up the results of the days from the first training day to `last`."""
        results = np.full((len(discounts), *quotes.close.shape), np.nan, dtype=np.float32)
        for place, gamma in enumerate(discounts):
            results[place, train.first : last + 1] = discounted_returns(quotes, rules, train.first, last, gamma).cpu()
        return cls(x, results, train, OUTCOME_SESSIONS + rules.max_days_without_bar)

    @cached_property
    def is_known(self) -> BoolArray:
        """Tell which positions, (days, n), have a known result."""
        is_known: BoolArray = np.isfinite(self.results[0])
        return is_known

    @cached_property
    def train_days(self) -> BoolArray:
        """Tell which (days,) have results that are known by the last training day."""
        return self.known_by(self.train.last)

    def known_by(self, day: int) -> BoolArray:
        """Tell which (days,), from the first training day on, have results that are known by this day's close."""
        days = np.arange(self.results.shape[1])
        is_known: BoolArray = (days >= self.train.first) & (days <= day - self.longest)
        return is_known

    @cached_property
    def folds(self) -> list[Fold]:
        """Return the folds of the training days."""
        days, first, count = np.arange(self.results.shape[1]), self.train.first, self.train.days
        folds = []
        for start, stop in pairwise(first + count * fold // _FOLDS for fold in range(_FOLDS + 1)):
            is_apart = (days < start - self.longest) | (days >= stop + self.longest)
            folds.append(Fold(self.train_days & is_apart, slice(start, stop)))
        return folds

    def require_enough(self) -> None:
        """Raise DataError where too few results lie outside a fold."""
        fewest = min(int(self.is_known[fold.fitted].sum()) for fold in self.folds)
        least = _ROWS_PER_INPUT * min(self.x.inputs, INPUTS)
        if fewest < least:
            raise DataError(
                f"expected the results of {least} positions outside each fifth of the training days, got {fewest}; "
                "give more training days"
            )


@dataclass(frozen=True)
class Moments:
    """Sufficient statistics by day, or summed over days, from which the ridge regression with any penalty follows."""

    gram: Float64Array
    """([days,] inputs, inputs)"""
    product: Float64Array
    """([days,] inputs, targets) of inputs and results."""
    square: Float64Array
    """([days,] targets) of the results."""

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Sum up the known results of each day."""
        days, inputs, targets = len(samples.is_known), samples.x.inputs, len(samples.results)
        moments = cls(np.zeros((days, inputs, inputs)), np.zeros((days, inputs, targets)), np.zeros((targets, days)).T)

        def add(block: slice) -> None:
            x = samples.x.dense(block) * samples.is_known[block][..., None]
            y = np.nan_to_num(samples.results[:, block]).transpose(1, 2, 0)
            across = x.transpose(0, 2, 1)
            moments.gram[block], moments.product[block] = across @ x, across @ y
            moments.square[block] = np.square(y, dtype=np.float64).sum(axis=1)

        for _ in in_order(add, samples.x.blocks()):
            pass
        return moments

    def over(self, days: BoolArray | slice) -> Self:
        """Add up some days."""
        return type(self)(*(part[days].sum(axis=0) for part in (self.gram, self.product, self.square)))

    def solve(self, penalty: float | Float64Array) -> Float64Array:
        """Return the (..., inputs, targets) weights by sums, under a penalty in multiples of the number of rows.

        The penalty is one number for all inputs or (..., inputs) of them; the constant, input 0, is not penalised.
        """
        shrinkage = np.full(len(self.gram), penalty) if isinstance(penalty, float) else penalty.copy()
        shrinkage[..., 0] = 0.0
        penalised = self.gram + (shrinkage * self.gram[0, 0])[..., None] * np.eye(len(self.gram))
        return np.linalg.solve(penalised, self.product)

    def error(self, weights: Float64Array, target: int) -> float:
        """Return the summed squared error at a target of (inputs,) weights, by sums."""
        return float(self.square[target] + weights @ (self.gram @ weights - 2 * self.product[:, target]))
