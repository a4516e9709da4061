"""Ridge forecasts of a whole population: what orders earn, in closed form.

Each agent has its own penalties and sale target. Its regression is also fitted without each fold of the training days,
so that every training day has an out-of-fold forecast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models.ddpg_agent import Evidence
from models.genome import TARGET, VALUE_WEIGHT
from models.input_rows import InputRows
from models.inputs import BANK, GROUP_OF_INPUT, GROUPS, INPUTS, SHARED, TradeInputs
from models.networks import Perceptrons
from models.trader import Forecasts, Traders
from training.forecasts.relative import Blend, RelativeOutcomes, overlap
from training.forecasts.samples import Float64Array, Moments, Samples, Sums
from training.forecasts.skill import overlapping_mean_test, rank_correlation
from utils.progress import Progress
from utils.spaces import TARGET_PERCENTS
from utils.threads import in_order

ExpectedBlocks = Iterable[tuple[slice, Tensor]]
"""Days, and the (A, days, n) results that agents expect of orders on them."""
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
    later: InputRows
    """Of the validation days, as deployed: fitted to all training days."""

    @classmethod
    def of(cls, market: Market, env: Portfolio) -> TrainingDays:
        """Fit inputs and sum up the results of all orders of a market's training days.

        Raises:
            DataError: there are too few results to fit to.
        """
        train, bars = market.splits.train, env.bars.tradable.cpu().numpy()
        learned = np.arange(len(market.dates)) <= train.last
        with Progress("prepare", "fit") as shown:
            inputs = TradeInputs.fit(market, learned)
            training, validation = (
                InputRows(slice(span.first, span.last + 1), bars, INPUTS, SHARED)
                for span in (train, market.splits.validation)
            )
            validation.fill(validation.days, inputs.blocks(market, validation.days))
            samples = Samples.of(training, env, train, train.last)
            samples.require_enough()
            training.fill(training.days, inputs.banks(market, training.days))
            shown.update(total=1 + len(samples.folds))
            for _, held in samples.folds:
                apart = learned.copy()
                apart[max(0, held.start - samples.longest) : held.stop + samples.longest] = False
                training.fill(held, inputs.forecasts(market, apart, held), BANK)
                shown.update()
        moments = Moments.of(samples)
        without = [moments.over(fold) for fold, _ in samples.folds]
        within = [moments.over(held) for _, held in samples.folds]
        total, samples = moments.over(samples.train_days), replace(samples, x=training.to(env.device))
        return cls(inputs, samples, total, without, within, env.bars.tradable, validation.to(env.device))

    def forecasts(self, by_fold: Tensor, most: int | None = None) -> Forecasts:
        """Return the ridge forecasts of training days, out of fold; none on other days.

        Args:
            most: number of the best stocks of a day of which forecasts are kept; default: of all.
        """
        return self.joined(self.out_of_fold(by_fold), most)

    def joined(self, blocks: ExpectedBlocks, most: int | None = None) -> Forecasts:
        """Join expected results, (A, days, n) each, of blocks of days."""
        most = self.tradable.shape[1] if most is None else most
        parts = ((days, Forecasts.of(expected, self.tradable[days], most)) for days, expected in blocks)
        return Forecasts.on_days(parts, len(self.tradable))

    def joining(self, blocks: ExpectedBlocks, most: int, parts: list[tuple[slice, Forecasts]]) -> ExpectedBlocks:
        """Yield the blocks, and append to `parts` what `joined` joins."""
        for days, expected in blocks:
            parts.append((days, Forecasts.of(expected, self.tradable[days], most)))
            yield days, expected

    @cached_property
    def relative(self) -> RelativeOutcomes:
        """Return the regression that networks learn."""
        return RelativeOutcomes.of(self.samples, self.inputs, self.tradable.device)

    def blended(self, by_fold: Tensor, reward: Perceptrons, targets: Sequence[int]) -> tuple[ExpectedBlocks, Blend]:
        """Return the out-of-fold forecasts of ridge regression and network, (A, days, n) by block of training days, and
        their blend.

        The mean over a day's stocks is the ridge regression's.
        """
        relative, rows = self.relative, self.samples.x
        network = relative.results.new_empty(len(targets), rows.first[-1])
        level = network.new_empty(len(targets), len(rows.has_bar))
        sums = torch.zeros(())
        for days in rows.blocks():
            own, ridge = relative.out_of_fold(days, reward, targets), self.ridge(days, by_fold)
            network[:, rows.rows(days)] = own
            level[:, rows.here(days)] = rows.mean(ridge, days)
            ridge -= rows.of_day(level[:, rows.here(days)], days)
            sums = sums.to(own.device) + relative.products(days, ridge, own, targets)
        blend = relative.blend(sums)
        kept = level * (1.0 - blend.ridge.float())[:, None]

        def blocks() -> ExpectedBlocks:
            for days in rows.blocks():
                selection = blend.selection(self.ridge(days, by_fold), network[:, rows.rows(days)])
                # Its mean over the day's stocks is the ridge regression's, for the network's is 0.
                selection += rows.of_day(kept[:, rows.here(days)], days)
                yield days, rows.spread(selection, days, -torch.inf)

        return blocks(), blend

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

    def evidence(self, blocks: ExpectedBlocks, target: int, trials: int = 1) -> Evidence:
        """Test whether out-of-fold forecasts correlate with results at a target.

        Selection: the mean over days of the rank correlation over stocks. Timing: the covariance over time of the days'
        means. Both p-values allow for two tests and for `trials` agents.

        Args:
            blocks: (A, days, n) by block of days; the mean over agents is tested.
        """
        samples = self.samples

        def of_days(part: tuple[slice, Float64Array]) -> tuple[Float64Array, ...]:
            """Return (days,) rank correlations, and means of forecasts and results."""
            days, scores = part
            is_known = samples.is_known[days] & samples.train_days[days, None]
            some = is_known.any(axis=1)
            pair = [np.where(is_known, v, np.nan)[some] for v in (scores, samples.results[target, days])]
            return rank_correlation(*pair), *(np.nanmean(values, axis=1) for values in pair)

        scores = ((days, expected.mean(0).cpu().numpy().astype(np.float64)) for days, expected in blocks)
        choice, *means = (np.concatenate(parts) for parts in zip(*in_order(of_days, scores), strict=True))
        timing = np.prod([mean - mean.mean() for mean in means], axis=0)
        tests = (overlapping_mean_test(daily, samples.longest, trials=2 * trials) for daily in (choice, timing))
        return Evidence(*(test.p_value for test in tests))

    def _variance(self, target: int) -> float:
        """Return the summed squared deviations of the results at a target from their mean, over all folds."""
        rows = sum(sums.gram[0, 0] for sums in self.within)
        total = sum(sums.product[0, target] for sums in self.within)
        return float(sum(sums.square[target] for sums in self.within) - total**2 / rows)

    def out_of_fold(self, by_fold: Tensor) -> ExpectedBlocks:
        """Return the out-of-fold forecasts of (A, folds, inputs) weights, (A, days, n) by block of training days."""
        rows = self.samples.x
        return ((days, rows.spread(self.ridge(days, by_fold), days, -torch.inf)) for days in rows.blocks())

    def ridge(self, days: slice, by_fold: Tensor) -> Tensor:
        """Return likewise those of some training days, (A, rows)."""
        rows = self.samples.x
        weights, parts = by_fold.to(rows.own.device), list[Tensor]()
        for fold, (_, held) in enumerate(self.samples.folds):
            own = overlap(held, days)
            parts.append(expectations(rows.x(own), weights[:, fold]))
        return torch.cat(parts, dim=1)


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
    """Return the (A, rows) float32 forecasts of (rows, inputs) by (A, inputs) weights.

    An agent's bits do not depend on the other agents.
    """
    agents = len(weights)
    padded = weights.new_zeros(-agents % _TOGETHER + agents, weights.shape[1], dtype=x.dtype)
    padded[:agents] = weights
    expected = x.new_empty(len(padded), len(x))
    for some, theirs in zip(padded.split(_TOGETHER), expected.split(_TOGETHER), strict=True):
        torch.mm(some, x.T, out=theirs)
    return expected[:agents]


def traders_of(genes: Tensor, weights: Tensor, device: torch.device | str) -> Traders:
    """Return the agents with these (A, genes) and ridge weights."""
    percents = torch.tensor(TARGET_PERCENTS, dtype=torch.float64)
    largest = torch.ones(len(genes), dtype=torch.float64)
    parts = weights, percents[genes[:, TARGET].long()], genes[:, VALUE_WEIGHT], largest
    return Traders(*parts).to(device)
