"""The networks' regression: counterfactual outcomes relative to the day's mean; and the blend of network and ridge.

A stock's return beyond the others of its day carries far less noise than the return itself: the common part is
subtracted as a control variate. Selection among stocks needs no more; the level of the day stays with the ridge
regression.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from models.input_rows import InputRows
from models.inputs import TradeInputs
from models.networks import Perceptrons
from models.trader import day_mean
from training.forecasts.samples import BoolArray, Samples


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
        return cls.of_products(products(ridge, network, results))

    @classmethod
    def of_products(cls, sums: Tensor) -> Self:
        """Fit the weights to the sums of (6, A) products over all rows."""
        aa, ab, bb, ay, by, yy = sums
        tiny = 1e-12 * yy + 1e-30
        weight = ((ay * bb - by * ab) / (aa * bb - ab**2 + tiny * aa + tiny**2)).clamp(0.0, 1.0)
        slope = ((by - weight * ab) / (bb + tiny)).clamp(min=0.0)
        # Where the slope is at its bound the other weight is solved again; without a network ridge keeps its weight 1.
        weight = torch.where(slope > 0, ((ay - slope * ab) / (aa + tiny)).clamp(0.0, 1.0), 1.0)
        error = yy - 2 * (weight * ay + slope * by) + weight**2 * aa + 2 * weight * slope * ab + slope**2 * bb
        explained = torch.stack(((2 * ay - aa), yy - error), dim=1) / (yy + tiny)[:, None]
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
        """Blend (A, rows) forecasts of ridge regressions and networks, float32."""
        return self.ridge.float()[:, None] * ridge + self.network.float()[:, None] * network


def products(ridge: Tensor, network: Tensor, results: Tensor) -> Tensor:
    """Return the sums of products of (A, rows) forecasts and results, (6, A) float64, see `Blend.of_products`."""
    a, b, y = ridge, network, results
    pairs = (a, a), (a, b), (b, b), (a, y), (b, y), (y, y)
    return torch.stack([(one * other).sum(1, dtype=torch.float64) for one, other in pairs])


@dataclass(frozen=True)
class RelativeOutcomes:
    """Results of every possible order of the training days, relative to their day's mean, as a regression."""

    x: InputRows
    inputs: TradeInputs
    results: Tensor
    """(targets, training days, n) float32 percent of the initial capital."""
    mean: Tensor
    """(targets, training days, 1) of the known results of a day."""
    deviation: Tensor
    """(targets,) standard deviations of results less their mean."""
    learned: slice
    """Days whose results are known: all but the last of the training days."""
    held: list[slice]
    """Days of each fold."""
    folds: list[tuple[range, range]]
    """For each fold the rows before and after it to learn from: no trade there overlaps one of the fold."""

    @classmethod
    def of(cls, samples: Samples, inputs: TradeInputs, device: torch.device | str = "cpu") -> Self:
        """Put the results of the training days on a device; where the inputs are, too."""
        days, x = slice(samples.train.first, samples.train.last + 1), samples.x
        known = torch.from_numpy(samples.is_known & samples.train_days[:, None])[days].to(device)
        results = torch.from_numpy(samples.results[:, days]).to(device)
        mean = torch.stack([day_mean(torch.where(known, own, 0.0), known) for own in results])
        learned = slice(days.start, days.start + int(samples.train_days[days].sum()))
        square = [torch.where(known, own - level, 0.0).square().sum() for own, level in zip(results, mean, strict=True)]
        deviation = (torch.stack(square) / known.sum()).sqrt().clamp(min=1e-6)
        assert torch.equal(known[x.here(learned)], x.has_bar[x.here(learned)])
        folds = [_rows_around(x, fitted, held) for fitted, held in samples.folds]
        return cls(x, inputs, results, mean, deviation, learned, [own for _, own in samples.folds], folds)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw training rows for each fold: (count, folds)."""
        drawn = torch.rand(len(self.folds), count, generator=generator, dtype=torch.float64).to(self.x.own.device)
        rows = []
        for (before, after), share in zip(self.folds, drawn, strict=True):
            place, many = (share * (len(before) + len(after))).long(), len(before)
            rows.append(place + torch.where(place < many, before.start, after.start - many))
        return torch.stack(rows, dim=1)

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return what networks see of (...) rows, (..., inputs), and (..., targets) results in standard deviations."""
        x, day, stock = self.x.take(rows)
        relative = self.results[:, day, stock] - self.mean[:, day, 0]
        y = relative / self.deviation.view(-1, *[1] * rows.dim())
        return self.inputs.for_networks(x), y.movedim(0, -1).contiguous()

    def relative(self, days: slice) -> Tensor:
        """Return the results of some learned days, (targets, rows) percent of the initial capital."""
        here = self.x.here(days)
        return self.x.compact(self.results[:, here] - self.mean[:, here], days)

    def out_of_fold(self, days: slice, reward: Perceptrons, targets: Sequence[int]) -> Tensor:
        """Return the out-of-fold forecasts of (A, folds) networks for some training days: (A, rows).

        Percent of the initial capital, relative to the day's mean, of orders at the agents' targets.
        """
        rows = self.x.rows(days)
        expected = self.results.new_empty(len(targets), rows.stop - rows.start)
        for fold, held in enumerate(self.held):
            own = overlap(held, days)
            here = self.x.rows(own)
            seen = self.inputs.for_networks(self.x.x(own))
            for agent, target in enumerate(targets):
                expected[agent, here.start - rows.start : here.stop - rows.start] = reward.output(
                    (agent, fold), target, seen
                )
        expected *= self.deviation[list(targets), None]
        return self.x.relative(expected, days)

    def products(self, days: slice, ridge: Tensor, network: Tensor, targets: Sequence[int]) -> Tensor:
        """Return the sums of products of (A, rows) relative forecasts of some days and the results at the targets."""
        results = self.relative(overlap(self.learned, days))
        y = torch.stack([results[target] for target in targets])
        return products(ridge[:, : y.shape[1]], network[:, : y.shape[1]], y)

    def blend(self, sums: Tensor) -> Blend:
        """Blend ridge regressions and networks by sums of `products` over all training days; ablations replace it."""
        return Blend.of_products(sums)


def overlap(one: slice, other: slice) -> slice:
    """Return the days of both slices."""
    first = max(one.start, other.start)
    return slice(first, max(first, min(one.stop, other.stop)))


def _rows_around(x: InputRows, learned: BoolArray, held: slice) -> tuple[range, range]:
    """Return the rows of the (days,) learned days before and after those that are held out."""
    days = np.flatnonzero(learned)
    parts = days[days < held.start], days[days >= held.stop]
    ends = [x.rows(slice(int(part[0]), int(part[-1]) + 1)) if len(part) else slice(0, 0) for part in parts]
    before, after = (range(rows.start, rows.stop) for rows in ends)
    return before, after
