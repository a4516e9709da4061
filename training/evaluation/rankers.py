"""Ways to learn a ranking from the known results of orders: ridge regression, and boosted trees.

What is chosen on the way, a penalty or a number of trees, is what errs least on folds of the training days that were
not learned from, with a purge on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np

from training.forecasts.samples import BoolArray, Float32Array, Float64Array, Moments, Samples
from utils.errors import DataError

Model = Callable[[Float32Array], Float64Array]
"""From (days, n, inputs) to (days, n) expected results, in percent of the initial capital at the largest size."""

_PENALTIES = tuple(10.0**power for power in range(-5, 3))
"""In multiples of the number of rows, for standardised inputs."""
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
class Ridge:
    """Ridge regressions of the results at all targets with one penalty."""

    moments: Moments
    penalty: float
    by_fold: list[Float64Array]
    """(inputs, targets) weights without each fold."""
    error: float
    """Summed squared out-of-fold error at the largest target, by which penalty and inputs are chosen."""

    def ranker(self, target: int) -> Ranker:
        """Return the ranker of results at one target."""
        by_fold = [_linear(weights[:, target]) for weights in self.by_fold]
        return Ranker(by_fold, lambda days: _linear(self.moments.over(days).solve(self.penalty)[:, target]))


def _linear(weights: Float64Array) -> Model:
    return lambda x: np.asarray(x @ weights.astype(np.float32), dtype=np.float64)


def fit_ridge(samples: Samples) -> Ridge:
    """Choose the penalty with the least out-of-fold error."""
    moments = Moments.of(samples)

    def fitted(penalty: float) -> Ridge:
        by_fold = [moments.over(days).solve(penalty) for days, _ in samples.folds]
        folds = zip(samples.folds, by_fold, strict=True)
        error = sum(moments.over(held).error(weights[:, -1], -1) for (_, held), weights in folds)
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
    for booster in cross.boosters:
        # Written and read again it predicts the same, without the rows that it learned from.
        booster.model_from_string(booster.model_to_string()).free_dataset()
    return Ranker(
        [model(booster, cross.best_iteration) for booster in cross.boosters],
        lambda days: model(lightgbm.train(_TREES, data(days), cross.best_iteration), cross.best_iteration),
    )
