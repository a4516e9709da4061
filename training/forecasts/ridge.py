"""Ridge forecasts of a whole population: what orders earn, in closed form.

Each agent has its own penalties and sale target. Its regression is also fitted without each fold of the training days,
so that every training day has an out-of-fold forecast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models.ddpg_agent import Evidence
from models.genome import TARGET, VALUE_WEIGHT
from models.inputs import GROUP_OF_INPUT, GROUPS, TradeInputs
from models.networks import Perceptrons
from models.trader import Forecasts, Traders, day_mean, relative_to_day
from training.forecasts.relative import Blend, RelativeOutcomes
from training.forecasts.samples import Moments, Samples, Sums
from training.forecasts.skill import information_coefficients, overlapping_mean_test
from utils.progress import Progress
from utils.spaces import TARGET_PERCENTS

_TOGETHER = 16
"""Agents whose forecasts are one matrix product; a fixed number, since its shape decides the last bits."""


@dataclass(frozen=True)
class TrainingDays:
    """The training days as a regression, with statistics summed once for all agents and generations."""

    inputs: TradeInputs
    samples: Samples
    """Their inputs are cross-fitted: on the days of a fold, responses that were fitted without it."""
    total: Sums
    without: list[Sums]
    """Without each fold."""
    within: list[Sums]
    """Of each fold."""
    tradable: Tensor
    """(days, n) bool: the stock has a bar."""
    x: Tensor
    """(days, n, inputs) of the samples, on the device of the environment."""
    later: Tensor
    """As deployed, fitted to all training days; 0 on the training days themselves."""

    @classmethod
    def of(cls, market: Market, env: Portfolio) -> TrainingDays:
        """Fit inputs and sum up the results of all orders of a market's training days.

        Raises:
            DataError: there are too few results to fit to.
        """
        train = market.splits.train
        learned = np.arange(len(market.dates)) <= train.last
        with Progress("prepare", "fit") as shown:
            inputs = TradeInputs.fit(market, learned)
            samples = Samples.of(inputs.of(market), env, train, train.last)
            samples.require_enough()
            shown.update(total=1 + len(samples.folds))
            for _, held in samples.folds:
                apart = learned.copy()
                apart[max(0, held.start - samples.longest) : held.stop + samples.longest] = False
                samples.x[held] = inputs.without(samples.x, market, apart, held)
                shown.update()
        moments = Moments.of(samples)
        without = [moments.over(fold) for fold, _ in samples.folds]
        within = [moments.over(held) for _, held in samples.folds]
        x = torch.from_numpy(samples.x).to(env.device)
        later = x.clone()
        later[: train.last + 1] = 0.0
        return cls(inputs, samples, moments.over(samples.train_days), without, within, env.bars.tradable, x, later)

    def forecasts(self, by_fold: Tensor) -> Forecasts:
        """Return the ridge forecasts of training days, out of fold; none on other days."""
        return Forecasts.of(self.out_of_fold(by_fold), self.tradable)

    @cached_property
    def relative(self) -> RelativeOutcomes:
        """Return the regression that networks learn."""
        return RelativeOutcomes.of(self.samples, self.inputs, self.tradable)

    def blended(self, by_fold: Tensor, reward: Perceptrons, targets: Sequence[int]) -> tuple[Tensor, Blend]:
        """Return the out-of-fold forecasts of ridge regression and network, (A, days, n), and their blend.

        Minus infinity outside the training days. The mean over a day's stocks is the ridge regression's.
        """
        relative = self.relative
        days = slice(relative.first_day, relative.first_day + len(relative.x))
        expected = self.out_of_fold(by_fold)
        ridge, network = expected[:, days], relative.out_of_fold(reward, targets)
        blend = relative.blend(ridge, network, targets)
        selection = blend.selection(ridge, network)
        expected[:, days] = day_mean(ridge, relative.tradable) + relative_to_day(selection, relative.tradable)
        return expected, blend

    def fit(self, genes: Tensor) -> RidgeRegressions:
        """Fit the ridge regressions of agents with these (A, genes)."""
        rows, agents = genes.numpy(), np.arange(len(genes))
        penalty = np.where(GROUP_OF_INPUT < 0, 0.0, 10.0 ** rows[:, : len(GROUPS)][:, GROUP_OF_INPUT])
        target = rows[:, TARGET].astype(np.int64)
        whole, *folds = (sums.solve(penalty)[agents, :, target] for sums in (self.total, *self.without))
        error = np.zeros(len(genes))
        for sums, weights in zip(self.within, folds, strict=True):
            error += [sums.error(w, t) for w, t in zip(weights, target, strict=True)]
        variance = np.array([self._variance(t) for t in range(len(self.samples.results))])[target]
        parts = whole, np.stack(folds, axis=1), 1.0 - error / variance
        return RidgeRegressions(*(torch.from_numpy(part) for part in parts))

    def evidence(self, expected: Tensor, target: int, trials: int = 1) -> Evidence:
        """Test whether out-of-fold forecasts, (days, n), correlate with results at a target.

        Selection: the mean over days of the rank correlation over stocks. Timing: the covariance over time of the days'
        means. Both p-values allow for two tests and for `trials` agents.
        """
        samples = self.samples
        is_known = samples.is_known & samples.train_days[:, None]
        scores = expected.cpu().numpy().astype(np.float64)
        days = is_known.any(axis=1)
        pair = [np.where(is_known, values, np.nan)[days] for values in (scores, samples.results[target])]
        _, choice = information_coefficients(*pair)
        means = [np.nanmean(values, axis=1) for values in pair]
        timing = np.prod([mean - mean.mean() for mean in means], axis=0)
        tests = (overlapping_mean_test(daily, samples.longest, trials=2 * trials) for daily in (choice, timing))
        return Evidence(*(test.p_value for test in tests))

    def _variance(self, target: int) -> float:
        """Return the summed squared deviations of the results at a target from their mean, over all folds."""
        rows = sum(sums.gram[0, 0] for sums in self.within)
        total = sum(sums.product[0, target] for sums in self.within)
        return float(sum(sums.square[target] for sums in self.within) - total**2 / rows)

    def out_of_fold(self, by_fold: Tensor) -> Tensor:
        """Return the out-of-fold forecasts of (A, folds, inputs) weights: (A, days, n), minus infinity elsewhere."""
        weights = by_fold.to(self.x.device)
        expected = self.x.new_full((len(by_fold), *self.x.shape[:2]), -torch.inf)
        for fold, (_, held) in enumerate(self.samples.folds):
            expected[:, held] = expectations(self.x[held], weights[:, fold])
        return expected


@dataclass(frozen=True)
class RidgeRegressions:
    """The ridge regressions of A agents."""

    weights: Tensor
    """(A, inputs) fitted to all training days."""
    by_fold: Tensor
    """(A, folds, inputs) without each fold."""
    explained: Tensor
    """(A,) share of the variance of results at the agent's target that its forecast explains out of fold."""


def expectations(x: Tensor, weights: Tensor) -> Tensor:
    """Return the (A, days, n) float32 forecasts of (days, n, inputs) by (A, inputs) weights.

    An agent's bits do not depend on the other agents.
    """
    rows, agents = x.flatten(0, 1), len(weights)
    padded = weights.new_zeros(-agents % _TOGETHER + agents, weights.shape[1], dtype=x.dtype)
    padded[:agents] = weights
    expected = x.new_empty(len(padded), len(rows))
    for some, theirs in zip(padded.split(_TOGETHER), expected.split(_TOGETHER), strict=True):
        torch.mm(some, rows.T, out=theirs)
    return expected[:agents].view(agents, *x.shape[:2])


def traders_of(genes: Tensor, weights: Tensor, device: torch.device | str) -> Traders:
    """Return the agents with these (A, genes) and ridge weights."""
    percents = torch.tensor(TARGET_PERCENTS, dtype=torch.float64)
    largest = torch.ones(len(genes), dtype=torch.float64)
    parts = weights, percents[genes[:, TARGET].long()], genes[:, VALUE_WEIGHT], largest
    return Traders(*parts).to(device)
