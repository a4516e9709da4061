"""The networks' regression: counterfactual outcomes relative to the day's mean; and the blend of network and ridge.

A stock's return beyond the others of its day carries far less noise than the return itself: the common part is
subtracted as a control variate. Selection among stocks needs no more; the level of the day stays with the ridge
regression.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from models.inputs import TradeInputs
from models.networks import Perceptrons
from models.trader import relative_to_day
from training.forecasts.samples import Samples


@dataclass(frozen=True)
class Blend:
    """How the forecasts of A agents are made of ridge regression and network, both relative to the day's mean."""

    ridge: Tensor
    """(A,) weight of the ridge regression, 0 to 1."""
    network: Tensor
    """(A,) weight of the network, at least 0: the slope of results on what it expects."""
    explained: Tensor
    """(A, 2) share of the variance of relative results that is explained out of fold: by ridge regression, by both."""

    @classmethod
    def of(cls, ridge: Tensor, network: Tensor, results: Tensor) -> Self:
        """Fit the weights by least squares to (A, rows) out-of-fold forecasts and results, all relative to the day."""
        (a, b, y), dot = (part.double() for part in (ridge, network, results)), lambda u, v: (u * v).sum(1)
        aa, ab, bb, ay, by = dot(a, a), dot(a, b), dot(b, b), dot(a, y), dot(b, y)
        tiny = 1e-12 * dot(y, y) + 1e-30
        weight = ((ay * bb - by * ab) / (aa * bb - ab**2 + tiny * aa + tiny**2)).clamp(0.0, 1.0)
        slope = ((by - weight * ab) / (bb + tiny)).clamp(min=0.0)
        # Where the slope is at its bound the other weight is solved again; without a network ridge keeps its weight 1.
        weight = torch.where(slope > 0, ((ay - slope * ab) / (aa + tiny)).clamp(0.0, 1.0), 1.0)
        error = dot(y, y) - 2 * (weight * ay + slope * by) + weight**2 * aa + 2 * weight * slope * ab + slope**2 * bb
        explained = torch.stack(((2 * ay - aa), dot(y, y) - error), dim=1) / (dot(y, y) + tiny)[:, None]
        return cls(weight, slope, explained)

    @property
    def weights(self) -> Tensor:
        """Return both weights, (A, 2)."""
        return torch.stack((self.ridge, self.network), dim=1)

    @classmethod
    def of_ridge(cls, agents: int) -> Self:
        """Return the blend of agents without networks."""
        one = torch.ones(agents, dtype=torch.float64)
        return cls(one, 0 * one, torch.zeros(agents, 2, dtype=torch.float64))

    def selection(self, ridge: Tensor, network: Tensor) -> Tensor:
        """Blend (A, ...) forecasts of ridge regressions and networks, float32."""
        shape = (-1, *[1] * (ridge.dim() - 1))
        return self.ridge.float().view(shape) * ridge + self.network.float().view(shape) * network


@dataclass(frozen=True)
class RelativeOutcomes:
    """Results of every possible order of the training days, relative to their day's mean, as a regression."""

    x: Tensor
    """(training days, n, inputs) float32, see `TradeInputs.for_networks`."""
    y: Tensor
    """(training days, n, targets) float32, in standard deviations; 0 where not known."""
    deviation: Tensor
    """(targets,) standard deviations, percent of the initial capital."""
    is_known: Tensor
    """(training days, n) bool"""
    tradable: Tensor
    """(training days, n) bool: the stock has a bar."""
    first_day: int
    held: list[slice]
    """Training days of each fold."""
    folds: list[Tensor]
    """For each fold the places among days and stocks to learn from: no trade there overlaps one of the fold."""

    @classmethod
    def of(cls, samples: Samples, inputs: TradeInputs, tradable: Tensor) -> Self:
        """Put the results of the training days on the device of `tradable`, (days, n)."""
        first, last, device = samples.train.first, samples.train.last, tradable.device
        days = slice(first, last + 1)
        known = torch.from_numpy(samples.is_known & samples.train_days[:, None])[days].to(device)
        results = torch.from_numpy(samples.results[:, days]).to(device)
        y = torch.where(known, relative_to_day(torch.where(known, results, 0.0), known), 0.0)
        deviation = (y.square().sum((1, 2)) / known.sum()).sqrt().clamp(min=1e-6)
        held = [slice(own.start - first, own.stop - first) for _, own in samples.folds]
        learned = [torch.from_numpy(own[days]).to(device)[:, None] & known for own, _ in samples.folds]
        x = inputs.for_networks(torch.from_numpy(samples.x[days]).to(device))
        y = (y / deviation[:, None, None]).permute(1, 2, 0).contiguous()
        folds = [own.flatten().nonzero()[:, 0] for own in learned]
        return cls(x, y, deviation, known, tradable[days], first, held, folds)

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Return inputs and results as (rows, ...), flat over days and stocks."""
        return self.x.flatten(0, 1), self.y.flatten(0, 1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw training rows for each fold: (count, folds)."""
        drawn = torch.rand(len(self.folds), count, generator=generator, dtype=torch.float64).to(self.x.device)
        return torch.stack([own[(part * len(own)).long()] for own, part in zip(self.folds, drawn, strict=True)], dim=1)

    def out_of_fold(self, reward: Perceptrons, targets: Sequence[int]) -> Tensor:
        """Return the out-of-fold forecasts of (A, folds) networks: (A, training days, n).

        Percent of the initial capital, relative to the day's mean, of orders at the agents' targets.
        """
        expected = self.x.new_zeros(len(targets), *self.x.shape[:2])
        for agent, target in enumerate(targets):
            for fold, held in enumerate(self.held):
                own = reward.output((agent, fold), target, self.x[held].flatten(0, 1))
                expected[agent, held] = own.view(-1, self.x.shape[1])
            expected[agent] *= self.deviation[target]
        return relative_to_day(expected, self.tradable)

    def blend(self, ridge: Tensor, network: Tensor, targets: Sequence[int]) -> Blend:
        """Blend (A, training days, n) out-of-fold forecasts at the agents' targets by least squares."""
        results = (self.y * self.deviation)[:, :, list(targets)].permute(2, 0, 1)
        own, other = (relative_to_day(part, self.is_known)[:, self.is_known] for part in (ridge, network))
        return Blend.of(own, other, results[:, self.is_known])
