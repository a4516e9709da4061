"""Timing: how far the level of a day's forecasts is trusted, by what it told out of fold.

The level is the mean forecast over the stocks of a day: whether to order today or wait. As all trades of some weeks
overlap, it rests on few independent observations. So each agent uses the share of it that its evidence is worth:

    mean + trust x (level - mean)

The trust in a fold's forecasts comes from the other folds alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from models.population import RidgeRegressions
from training.forecasts.samples import BoolArray, Float64Array, Samples
from training.forecasts.skill import cross_fitted_mean_test
from utils.statistics import MeanTest, kelly_share

_DAYS_AT_ONCE = 64
"""Bounds the memory of large populations."""


@dataclass(frozen=True)
class DailyMeans:
    """Means over the stocks with a bar, of all training days."""

    inputs: Float64Array
    """(days, inputs), the constant left out: 0."""
    results: Float64Array
    """(targets, days) of the largest orders, percent of the initial capital; NaN where not known."""
    fold: Tensor
    """(days,) places of the folds that days belong to."""
    learned: BoolArray
    """(folds + 1, days) whether a day may be learned from where a fold must not be known; the last one: no fold."""
    longest: int
    """Sessions until the result of every order is known."""

    @classmethod
    def of(cls, samples: Samples) -> DailyMeans:
        """Average the inputs and the results of the training days."""
        rows, days = samples.x, samples.x.days
        inputs = torch.cat([rows.mean(rows.x(some).T, some) for some in rows.blocks()], dim=1).T.double().cpu()
        inputs[:, 0] = 0.0
        known = samples.is_known[days] & samples.train_days[days, None]
        count = known.sum(axis=1)
        total = np.where(known, samples.results[:, days], 0.0).sum(axis=2, dtype=np.float64)
        results = np.where(count > 0, total / np.maximum(count, 1), np.nan)
        lengths = torch.tensor([held.stop - held.start for _, held in samples.folds])
        fold = torch.arange(len(lengths)).repeat_interleave(lengths)
        learned = np.stack([*(some[days] for some, _ in samples.folds), samples.train_days[days]]) & (count > 0)
        return cls(inputs.numpy(), results, fold, learned, samples.longest)

    def levels(self, weights: Tensor) -> Float64Array:
        """Return the (days,) levels, less the constant, by an agent's (folds, inputs) weights for the days of each."""
        levels: Float64Array = (self.inputs * weights[self.fold].numpy()).sum(axis=1)
        return levels

    def test(self, level: Float64Array, target: int, trials: int, place: int = -1) -> MeanTest:
        """Test whether (days,) levels and the results at a target rise and fall together, outside of a fold."""
        used = self.learned[place]
        product = np.prod([values[used] - values[used].mean() for values in (level, self.results[target])], axis=0)
        return cross_fitted_mean_test(product, self.longest, trials)

    def trust(self, ridge: RidgeRegressions, apart: Tensor, targets: Sequence[int], trials: int) -> Tensor:
        """Return the trust in the timing of A agents, (A, folds + 1): in the forecasts of each fold, and of later days.

        Args:
            apart: (A, folds, folds, inputs) weights without two folds, by which the days of the second are forecast
                where the results of the first must not be known.
            targets: places of the sale targets whose results count.
            trials: agents among which some are selected.
        """
        weights = torch.cat((apart, ridge.by_fold[:, None]), dim=1)
        p_values = [
            [self.test(self.levels(one), target, 2 * trials, place).p_value for place, one in enumerate(own)]
            for own, target in zip(weights, targets, strict=True)
        ]
        return torch.tensor([[kelly_share(p_value) for p_value in own] for own in p_values], dtype=torch.float64)

    def with_trust(self, ridge: RidgeRegressions, trust: Tensor) -> RidgeRegressions:
        """Return the regressions of A agents that use the levels of days as far as their (A, folds + 1) trust goes."""
        mean = torch.from_numpy(np.stack([self.inputs[learned].mean(axis=0) for learned in self.learned]))
        weights = torch.cat((ridge.by_fold, ridge.weights[:, None]), dim=1)
        shift = (trust[..., None] - 1.0) * weights
        shift[..., 0] = (1.0 - trust) * (mean * weights).sum(-1)
        return replace(ridge, timing=trust[:, -1], shift=shift[:, -1], shift_by_fold=shift[:, :-1])

    def shift(self, by_fold: Tensor) -> Tensor:
        """Return what is added to the forecasts of the training days by (A, folds, inputs) shifts, (A, days)."""
        days = zip(torch.from_numpy(self.inputs).split(_DAYS_AT_ONCE), self.fold.split(_DAYS_AT_ONCE), strict=True)
        return torch.cat([(x * by_fold[:, fold]).sum(-1) + by_fold[:, fold, 0] for x, fold in days], dim=1)
