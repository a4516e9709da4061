"""Ways to learn a ranking from the known results of orders: ridge regression, and boosted trees.

What is chosen on the way, a penalty or a number of trees, is what errs least on folds of the training days that were
not learned from, with a purge on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import lightgbm
import numpy as np
from numpy.typing import NDArray

from data.splits import Span
from utils.errors import DataError

BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]
Model = Callable[[Float32Array], Float64Array]
"""From (days, n, inputs) to (days, n) expected results, in percent of the initial capital at the largest size."""

_FOLDS = 5
_PENALTIES = tuple(10.0**power for power in range(-5, 3))
"""In multiples of the number of rows, for standardised inputs."""
_ROWS_PER_INPUT = 20
"""Fewest results that a regression learns from, for each of its inputs."""
_ROUNDS, _PATIENCE = 300, 15
_TREES = {
    "objective": "regression",
    "learning_rate": 0.1,
    "num_leaves": 15,
    "min_data_in_leaf": 500,
    "max_bin": 63,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}


@dataclass(frozen=True)
class Samples:
    """Inputs of all days of a market, and the known results of its orders."""

    x: Float32Array
    """(days, n, inputs)"""
    results: Float32Array
    """(targets, days, n) in percent of the initial capital, of orders of the largest size; NaN where not known."""
    train: Span
    longest: int
    """Sessions until the result of every order is known."""

    @cached_property
    def is_known(self) -> BoolArray:
        """Tell which orders, (days, n), have a known result."""
        is_known: BoolArray = np.isfinite(self.results[0])
        return is_known

    @cached_property
    def train_days(self) -> BoolArray:
        """Tell which (days,) have results that are known by the last training day."""
        return self.known_by(self.train.last)

    def known_by(self, day: int) -> BoolArray:
        """Tell which (days,), from the first training day on, have results that are known by this day's close."""
        days = np.arange(len(self.x))
        is_known: BoolArray = (days >= self.train.first) & (days <= day - self.longest)
        return is_known

    @cached_property
    def folds(self) -> list[tuple[BoolArray, slice]]:
        """Return for each fold of the training days the (days,) to learn from and the days to judge on.

        No trade of a day to learn from overlaps one of a day to judge on.
        """
        days, first, count = np.arange(len(self.x)), self.train.first, self.train.days
        folds = []
        for start, stop in pairwise(first + count * fold // _FOLDS for fold in range(_FOLDS + 1)):
            is_apart = (days < start - self.longest) | (days >= stop + self.longest)
            folds.append((self.train_days & is_apart, slice(start, stop)))
        return folds

    def require_enough(self) -> None:
        """Raise DataError where there is too little to learn from outside of a fold."""
        fewest = min(int(self.is_known[days].sum()) for days, _ in self.folds)
        least = _ROWS_PER_INPUT * self.x.shape[2]
        if fewest < least:
            raise DataError(
                f"expected the results of {least} orders outside each fifth of the training days, got {fewest}; "
                "give more training days"
            )

    def explained(self, scores: Float64Array, target: int) -> float:
        """Return the share of the variance of the results at a target that (days, n) scores explain."""
        is_scored = self.is_known & self.train_days[:, None]
        result = self.results[target][is_scored].astype(np.float64)
        return 1.0 - float(((result - scores[is_scored]) ** 2).mean() / max(result.var(), 1e-30))


@dataclass(frozen=True)
class Ranker:
    """A way to learn from samples, and the models that it gave without each fold."""

    by_fold: list[Model]
    fit: Callable[[BoolArray], Model]
    """Learns from (days,)."""

    def out_of_fold(self, samples: Samples) -> Float64Array:
        """Return (days, n) scores of the training days, each by the model that has not seen its fold; NaN elsewhere."""
        scores = np.full(samples.x.shape[:2], np.nan)
        for model, (_, held) in zip(self.by_fold, samples.folds, strict=True):
            scores[held] = model(samples.x[held])
        return scores

    def rolling(self, samples: Samples, every: int) -> Float64Array:
        """Return (days, n) scores by models that are fitted again after so many days, to all results known then."""
        x, begin = samples.x, samples.train.last + 1
        parts = [self.fit(samples.train_days)(x[:begin])]
        for first in range(begin, len(x), every):
            parts.append(self.fit(samples.known_by(first))(x[first : first + every]))
        return np.concatenate(parts)


@dataclass(frozen=True)
class _Moments:
    """Sums over each day's stocks from which the ridge regression of any days and penalty follows."""

    gram: Float64Array
    """(days, inputs, inputs)"""
    product: Float64Array
    """(days, inputs, targets) of inputs and results."""
    square: Float64Array
    """(days, targets) of the results."""

    @classmethod
    def of(cls, samples: Samples) -> Self:
        """Sum up the known results."""
        x = samples.x * samples.is_known[..., None]
        y = np.nan_to_num(samples.results).transpose(1, 2, 0)
        across = x.transpose(0, 2, 1)
        parts = across @ x, across @ y, np.square(y, dtype=np.float64).sum(axis=1)
        return cls(*(part.astype(np.float64) for part in parts))

    def solve(self, days: BoolArray, penalty: float) -> Float64Array:
        """Return the (inputs, targets) weights; the constant, input 0, bears no penalty."""
        gram = self.gram[days].sum(axis=0)
        shrinkage = np.full(len(gram), penalty * gram[0, 0])
        shrinkage[0] = 0.0
        weights: Float64Array = np.linalg.solve(gram + np.diag(shrinkage), self.product[days].sum(axis=0))
        return weights

    def error(self, days: slice, weights: Float64Array) -> Float64Array:
        """Return the (targets,) summed squared errors."""
        gram, product = self.gram[days].sum(axis=0), self.product[days].sum(axis=0)
        error: Float64Array = self.square[days].sum(axis=0)
        error += (weights * (gram @ weights - 2 * product)).sum(axis=0)
        return error


@dataclass(frozen=True)
class Ridge:
    """Ridge regressions of the results at all targets with one penalty."""

    moments: _Moments
    penalty: float
    by_fold: list[Float64Array]
    """(inputs, targets) weights without each fold."""
    error: float
    """Summed squared out-of-fold error at the largest target, by which penalty and inputs are chosen."""

    def ranker(self, target: int) -> Ranker:
        """Return the ranker of results at one target."""
        by_fold = [_linear(weights[:, target]) for weights in self.by_fold]
        return Ranker(by_fold, lambda days: _linear(self.moments.solve(days, self.penalty)[:, target]))


def _linear(weights: Float64Array) -> Model:
    return lambda x: np.asarray(x @ weights.astype(np.float32), dtype=np.float64)


def fit_ridge(samples: Samples) -> Ridge:
    """Choose the penalty with the least out-of-fold error."""
    moments = _Moments.of(samples)

    def fitted(penalty: float) -> Ridge:
        by_fold = [moments.solve(days, penalty) for days, _ in samples.folds]
        folds = zip(samples.folds, by_fold, strict=True)
        error = sum(float(moments.error(held, weights)[-1]) for (_, held), weights in folds)
        return Ridge(moments, penalty, by_fold, error)

    return min(map(fitted, _PENALTIES), key=lambda ridge: ridge.error)


def fit_trees(samples: Samples, target: int) -> Ranker:
    """Boost trees, as many as have the least out-of-fold error; raise DataError where they cannot be fitted."""
    inputs = samples.x[..., 1:]

    def data(days: BoolArray) -> lightgbm.Dataset:
        chosen = samples.is_known & days[:, None]
        return lightgbm.Dataset(inputs[chosen], samples.results[target][chosen])

    def model(booster: lightgbm.Booster, rounds: int) -> Model:
        def predict(x: Float32Array) -> Float64Array:
            rows = x[..., 1:].reshape(-1, x.shape[-1] - 1)
            return np.asarray(booster.predict(rows, num_iteration=rounds, num_threads=1)).reshape(x.shape[:-1])

        return predict

    is_used = samples.is_known & samples.train_days[:, None]
    row = np.cumsum(is_used).reshape(is_used.shape) - 1
    folds = []
    for learned, held in samples.folds:
        judged = np.zeros_like(is_used)
        judged[held] = is_used[held]
        folds.append((row[is_used & learned[:, None]], row[judged]))
    stop = lightgbm.early_stopping(_PATIENCE, verbose=False)
    try:
        found: dict[str, Any] = lightgbm.cv(
            _TREES, data(samples.train_days), _ROUNDS, folds=folds, callbacks=[stop], return_cvbooster=True
        )
    except lightgbm.basic.LightGBMError as error:
        raise DataError(f"expected results that trees can be fitted to, got: {error}") from None
    cross = found["cvbooster"]
    return Ranker(
        [model(booster, cross.best_iteration) for booster in cross.boosters],
        lambda days: model(lightgbm.train(_TREES, data(days), cross.best_iteration), cross.best_iteration),
    )
