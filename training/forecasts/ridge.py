"""Ridge forecasts of a whole population: what orders earn, in closed form.

Each agent has its own penalties and sale target. Its regression is also fitted without each fold of the training days,
so that every training day has an out-of-fold forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models import risk
from models.evidence import Evidence
from models.evolution import TARGET
from models.inputs import BANK, GROUP_OF_INPUT, GROUPS, INPUTS, SHARED, InputRows, TradeInputs
from models.networks import ActorCritic
from models.population import RidgeRegressions
from models.trader import Blend, Forecasts, best_stocks, beyond_start, opportunity_of
from training.forecasts.relative import RelativeOutcomes, overlap
from training.forecasts.samples import Float64Array, Moments, Samples, Sums
from training.forecasts.skill import correlation, cross_fitted_mean_test
from training.forecasts.timing import DailyMeans
from utils.progress import Progress
from utils.spaces import TARGET_PERCENTS

_RISK_PENALTY = 0.1
"""Of the regression whose surprises tell the risk of orders."""
_LEAST_RISK = 0.05
"""Least of what the risk of an order costs, as a share of the mean."""
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
    apart: dict[tuple[int, int], Sums]
    """Without two folds."""
    within: list[Sums]
    """Of each fold."""
    tradable: Tensor
    """(days, n) bool: the stock has a bar."""
    later: InputRows
    """Of the validation days, as deployed: fitted to all training days."""
    means: DailyMeans
    risk: Tensor | None = None
    """(targets, folds + 1, numbers) weights of what the risk of orders costs, without each fold and with all; None:
    nothing."""

    @classmethod
    def of(cls, market: Market, env: Portfolio, risk_aversion: float = 0.0) -> TrainingDays:
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
                others = learned.copy()
                others[max(0, held.start - samples.longest) : held.stop + samples.longest] = False
                training.fill(held, inputs.forecasts(market, others, held), BANK)
                shown.update()
        moments = Moments.of(samples)
        without = [moments.over(fold) for fold, _ in samples.folds]
        within = [moments.over(held) for _, held in samples.folds]
        pairs = combinations(enumerate(fold for fold, _ in samples.folds), 2)
        apart = {(one, other): moments.over(first & second) for (one, first), (other, second) in pairs}
        total, samples = moments.over(samples.train_days), replace(samples, x=training.to(env.device))
        later = validation.to(env.device)
        found = cls(inputs, samples, total, without, apart, within, env.bars.tradable, later, DailyMeans.of(samples))
        return replace(found, risk=fit_risk(found, risk_aversion)) if risk_aversion > 0 else found

    @cached_property
    def relative(self) -> RelativeOutcomes:
        """Return the regression that networks learn."""
        return RelativeOutcomes.of(self.samples, self.inputs, self.tradable.device)

    def forecasts(
        self,
        ridge: RidgeRegressions,
        start: Tensor,
        agents: ActorCritic | None = None,
        most: int | None = None,
        seen: Callable[[slice, Tensor], None] = lambda days, scores: None,
    ) -> tuple[Forecasts, Blend]:
        """Return what A agents think of the orders of training days, by what did not learn from them; none on others.

        Args:
            ridge: their regressions.
            start: (A,) sale targets that they start from, in percent.
            agents: their networks; default: none.
            most: number of the best stocks of a day of which forecasts are kept; default: of all.
            seen: takes days and their (A, days, n) scores, block by block.
        """
        places = [TARGET_PERCENTS.index(percent) for percent in start.tolist()] if agents else []
        rows, start, sums = self.samples.x, start.to(self.tradable.device), torch.zeros((), device=self.tradable.device)
        most = self.tradable.shape[1] if most is None else most
        whole_shift = self.means.shift(ridge.shift_by_fold).to(rows.own)[..., None]
        by_block, unblended = list[tuple[slice, Forecasts]](), list[tuple[slice, Callable[[Blend], Forecasts]]]()
        for days in rows.blocks():
            forecast, shift, penalty = self.ridge(days, ridge.by_fold), whole_shift[:, rows.here(days)], None
            if self.risk is not None:
                forecast, shift, penalty = self.at_risk(days, ridge, forecast)
            if agents is None:
                score = rows.spread(forecast, days, -torch.inf)
                seen(days, score)
                parts = score + shift, self.tradable[days], start, score, most, penalty
                by_block.append((days, Forecasts.of(*parts)))
                continue
            level = rows.mean(forecast, days)
            relative = forecast - rows.of_day(level, days)
            added, target, at_start, reward = self.relative.judged(days, agents, relative, start)
            score = rows.spread(forecast + added, days, -torch.inf)
            seen(days, score)
            sums = sums + self.relative.products(days, relative, at_start, places)
            score = score if penalty is None else risk.utility(score, penalty)
            stock = best_stocks(score, most)
            kept = (score, *(rows.spread(part, days) for part in (forecast, reward, target)))
            best = [None if part is None else part.gather(2, stock) for part in (*kept, penalty)]
            unblended.append((days, partial(self._blended, start, stock, best, level[..., None], shift)))
        blend = Blend.of_ridge(len(start)) if agents is None else Blend.of_products(sums)
        by_block += [(days, blended(blend)) for days, blended in unblended]
        return Forecasts.on_days(by_block, len(self.tradable)), blend

    def _blended(
        self, start: Tensor, stock: Tensor, best: Sequence[Any], level: Tensor, shift: Tensor, blend: Blend
    ) -> Forecasts:
        """Return the forecasts of agents once the blend of ridge regression and network is known.

        Args:
            start: (A,) sale targets that they start from, in percent.
            best: what they think of the (A, days, k) best stocks: score, ridge forecast, the critic's reward, sale
                target, and what the risk of orders costs, if anything.
            level: (A, days, 1) mean ridge forecasts.
            shift: (A, days, 1) what is not trusted of them.
        """
        score, ridge, reward, target, penalty = best
        weight, network = (part.float()[:, None, None] for part in (blend.ridge, blend.network))
        # The mean over a day's stocks is the ridge regression's.
        expected = weight * ridge + network * reward + (1.0 - weight) * level + shift
        expected += beyond_start(self.relative.outcomes.typical, target, start)
        expected = expected.masked_fill(score == -torch.inf, -torch.inf)
        return Forecasts(expected, score, target, opportunity_of(expected, score, penalty), stock, penalty)

    def fit(self, genes: Tensor, trials: int = 1) -> RidgeRegressions:
        """Fit the ridge regressions of agents with these (A, genes).

        Args:
            trials: agents among which some are selected, for which the trust in timing allows.
        """
        rows, agents = genes.numpy(), np.arange(len(genes))
        penalty = np.where(GROUP_OF_INPUT < 0, 0.0, 10.0 ** rows[:, : len(GROUPS)][:, GROUP_OF_INPUT])
        target = rows[:, TARGET].astype(np.int64)
        whole, *folds = (sums.solve(penalty)[agents, :, target] for sums in (self.total, *self.without))
        error = np.zeros(len(genes))
        for sums, weights in zip(self.within, folds, strict=True):
            error += [sums.error(w, t) for w, t in zip(weights, target, strict=True)]
        gram, total, square = (
            np.sum([getattr(s, n) for s in self.within], axis=0) for n in ("gram", "product", "square")
        )
        variance = (square - total[0] ** 2 / gram[0, 0])[target]  # summed squared deviations from the mean
        regressions = replace(
            RidgeRegressions.zero(len(genes), len(folds), whole.shape[1]),
            weights=torch.from_numpy(whole),
            by_fold=torch.from_numpy(np.stack(folds, axis=1)),
            explained=torch.from_numpy(1.0 - error / variance),
        )
        apart = np.zeros((len(genes), len(folds), len(folds), whole.shape[1]))
        for (one, other), sums in self.apart.items():
            apart[:, one, other] = apart[:, other, one] = sums.solve(penalty)[agents, :, target]
        if self.risk is not None:
            risks = self.risk[torch.from_numpy(target)]
            regressions = replace(regressions, risk=risks[:, -1], risk_by_fold=risks[:, :-1])
        trust = self.means.trust(regressions, torch.from_numpy(apart), target.tolist(), trials)
        return self.means.with_trust(regressions, trust)

    def ridge(self, days: slice, by_fold: Tensor) -> Tensor:
        """Return the out-of-fold ridge forecasts of some training days, (A, rows)."""
        rows = self.samples.x
        pairs = zip(self.samples.folds, by_fold.to(rows.own.device).unbind(1), strict=True)
        return torch.cat([expectations(rows.x(overlap(held, days)), weights) for (_, held), weights in pairs], dim=1)

    def at_risk(self, days: slice, ridge: RidgeRegressions, forecast: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (A, rows) forecasts as far as they come true, their (A, days, 1) shifts, and what the risk of orders
        costs, (A, days, n)."""
        rows, (penalty, share) = self.samples.x, self.penalties(days, ridge.risk_by_fold)
        shift = rows.mean(self.ridge(days, ridge.shift_by_fold) * share, days)
        return forecast * share, shift[..., None], rows.spread(penalty, days)

    def penalties(self, days: slice, by_fold: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the risk of orders of some training days costs, and the share of forecasts that comes true, (A,
        rows) each, by (A, folds, numbers) weights."""
        rows, found = self.samples.x, list[Tensor]()
        for (_, held), weights in zip(self.samples.folds, by_fold.to(rows.own).unbind(1), strict=True):
            penalty = risk.penalties(
                risk.numbers_of_days(rows, overlap(held, days), self.inputs.volatility_scale), weights
            )
            found.append(torch.stack((penalty, risk.shares(penalty, weights))))
        penalty, share = torch.cat(found, dim=2)
        return penalty, share


def fit_risk(days: TrainingDays, risk_aversion: float) -> Tensor:
    """Fit what the risk of orders costs by least squares, (targets, folds + 1, numbers), see `models.risk`: half the
    aversion times the squared surprises of out-of-fold forecasts, and the share of these that came true."""
    samples, rows = days.samples, days.samples.x
    scale, targets = days.inputs.volatility_scale, len(samples.results)
    numbers = torch.cat([risk.numbers_of_days(rows, some, scale) for some in rows.blocks()]).double()
    by_fold = torch.from_numpy(np.stack([own.solve(_RISK_PENALTY).T for own in days.without], axis=1)).float()
    forecast = torch.cat([days.ridge(some, by_fold) for some in rows.blocks()], dim=1).double()
    results = torch.from_numpy(samples.results[:, rows.days]).to(forecast.device)
    result = rows.compact(results, rows.days).double()
    day = torch.arange(rows.days.start, rows.days.stop).repeat_interleave(rows.counts.cpu())
    found = forecast.new_zeros(targets, len(samples.folds) + 1, risk.NUMBERS)
    for place, learned in enumerate([*(own for own, _ in samples.folds), samples.train_days]):
        used = torch.from_numpy(learned)[day].to(forecast.device) & result[0].isfinite()
        for own, y, told in zip(found[:, place], result[:, used], forecast[:, used], strict=True):
            cost = 0.5 * risk_aversion * (y - told).square()
            known = numbers[used]
            own[:4] = torch.linalg.solve(known.T @ known, known.T @ cost)
            own[4] = _LEAST_RISK * cost.mean()
            told = told[:, None] * torch.stack((known[:, 0], 1.0 / risk.penalties(known, own)), dim=1)
            own[5:] = torch.linalg.solve(told.T @ told, told.T @ y)
    return found.cpu()


class SkillTest:
    """Tests of the mean agent's out-of-fold forecasts of training days, whose scores are gathered block by block.

    Selection: the mean over days of the correlation over stocks. Timing: see `DailyMeans.test`.
    """

    def __init__(
        self, days: TrainingDays, by_fold: Tensor, target: int, rows: slice | Sequence[int] = slice(None)
    ) -> None:
        """Test agents with these (A, folds, inputs) by the results at a sale target, given by its place.

        Args:
            rows: of these agents among those whose scores are given.
        """
        self.samples, self.target, self.rows = days.samples, target, rows
        self._timing = partial(days.means.test, days.means.levels(by_fold.mean(0)), target)
        self._daily: list[Float64Array] = []

    def __call__(self, days: slice, scores: Tensor) -> None:
        """Take the (P, days, n) scores of some days; the mean over the agents is tested."""
        samples, score = self.samples, scores[self.rows].mean(0).cpu().numpy().astype(np.float64)
        is_known = samples.is_known[days] & samples.train_days[days, None]
        some = is_known.any(axis=1)
        pair = [np.where(is_known, v, np.nan)[some] for v in (score, samples.results[self.target, days])]
        self._daily.append(correlation(*pair))

    def evidence(self, trials: int = 1) -> Evidence:
        """Return the p-values, which allow for two tests and for `trials` agents."""
        selection = cross_fitted_mean_test(np.concatenate(self._daily), self.samples.longest, 2 * trials)
        return Evidence(selection.p_value, self._timing(2 * trials).p_value)


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
