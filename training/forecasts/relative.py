"""The networks' regression: counterfactual outcomes relative to the day's mean.

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

from models.inputs import InputRows, TradeInputs
from models.networks import ActorCritic
from models.population import Outcomes
from models.trader import day_mean, products
from training.forecasts.samples import Samples

_STOCKS = 64
"""Most stocks of a day among which an actor learns to choose at a time."""


@dataclass(frozen=True)
class RelativeOutcomes:
    """Results of every possible order of the training days, relative to their day's mean, as a regression."""

    x: InputRows
    inputs: TradeInputs
    results: Tensor
    """(targets, training days, n) float32 percent of the initial capital."""
    mean: Tensor
    """(targets, training days, 1) of the known results of a day."""
    outcomes: Outcomes
    """Their statistics."""
    learned: slice
    """Days whose results are known: all but the last of the training days."""
    held: list[slice]
    """Days of each fold."""
    folds: list[Tensor]
    """For each fold the days to learn from, counted from the first training day: no trade there overlaps one of the
    fold, and some stock has a bar."""

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
        has_orders = samples.is_known.any(axis=1)
        fitted, held = zip(*samples.folds, strict=True)
        folds = [torch.from_numpy(np.flatnonzero((own & has_orders)[days])).to(device) for own in fitted]
        outcomes = Outcomes(deviation, mean[:, x.here(learned), 0].mean(1))
        return cls(x, inputs, results, mean, outcomes, learned, [*held], folds)

    def draw(self, updates: int, rows: int, generator: torch.Generator) -> Tensor:
        """Draw orders for each fold: (updates, folds, D, S) rows, of about `rows` in each update.

        D days are drawn, and of each 64 stocks (all of a smaller market) in a row, from a random one on; where fewer
        have a bar, some are drawn again.
        """
        stocks = min(_STOCKS, self.x.has_bar.shape[1])
        shape = updates, max(1, round(rows / stocks)), len(self.folds)
        drawn = torch.rand(2, *shape, generator=generator, dtype=torch.float64).to(self.results.device)
        days = [own[(share * len(own)).long()] for own, share in zip(self.folds, drawn[0].unbind(2), strict=True)]
        day = torch.stack(days, dim=1)[..., None]
        count = self.x.counts[day]
        place = (drawn[1].transpose(1, 2)[..., None] * count).long() + torch.arange(stocks, device=day.device)
        return self.x.first_rows[day] + place % count

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the (..., inputs) of (...) rows, and (..., targets) results in standard deviations."""
        x, day, stock = self.x.take(rows)
        relative = self.results[:, day, stock] - self.mean[:, day, 0]
        y = relative / self.outcomes.deviation.view(-1, *[1] * rows.dim())
        return x, y.movedim(0, -1).contiguous()

    def relative(self, days: slice) -> Tensor:
        """Return the results of some learned days, (targets, rows) percent of the initial capital."""
        here = self.x.here(days)
        return self.x.compact(self.results[:, here] - self.mean[:, here], days)

    def judged(self, days: slice, agents: ActorCritic, ridge: Tensor, start: Tensor) -> tuple[Tensor, ...]:
        """Return what A agents think of the orders of some training days, by networks that did not learn from them.

        Args:
            ridge: (A, rows) forecasts relative to the day, percent of the initial capital.
            start: (A,) sale targets that they start from, in percent.

        Returns:
            (A, rows) each: the score beyond the ridge forecast, relative to the day; the sale target in percent; the
            rewards at the first sale target and at this one, both less the day's mean at the first.
        """
        rows, judgement = self.x.rows(days), ridge.new_empty(4, *ridge.shape)
        for fold, held in enumerate(self.held):
            tested = self.x.rows(overlap(held, days))
            here = slice(tested.start - rows.start, tested.stop - rows.start)
            seen = self.inputs.for_networks(self.x.x(overlap(held, days)))
            for agent, percent in enumerate(start.to(seen.dtype)):
                judgement[:, agent, here] = agents.judge(agent, fold, seen, percent, self.outcomes.deviation)
            judgement[0, :, here] += (agents.weights[:, fold, :1] - 1.0) * ridge[:, here]
        mean = self.x.of_day(self.x.mean(judgement[2], days), days)
        return self.x.relative(judgement[0], days), judgement[1], judgement[2] - mean, judgement[3] - mean

    def products(self, days: slice, ridge: Tensor, network: Tensor, targets: Sequence[int]) -> Tensor:
        """Return the sums of products of (A, rows) relative forecasts of some days and the results at targets."""
        results = self.relative(overlap(self.learned, days))
        y = torch.stack([results[target] for target in targets])
        return products(ridge[:, : y.shape[1]], network[:, : y.shape[1]], y)


def overlap(one: slice, other: slice) -> slice:
    """Return the days of both slices."""
    first = max(one.start, other.start)
    return slice(first, max(first, min(one.stop, other.stop)))
