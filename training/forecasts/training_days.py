"""The training days as what agents learn from and are judged by, with inputs that are cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.features.bank import relative_risk
from data.features.formulas import FORECASTS as FORMULAS
from data.features.inputs import BANK, INPUTS, TradeInputs
from data.features.rows import InputRows
from data.market import Market
from environment.quotes import Quotes
from models.networks import ActorCritic
from models.policy import Forecasts
from training.forecasts.samples import DISCOUNTS, Samples
from training.forecasts.transitions import StockTransitions
from utils.arrays import BoolArray
from utils.config.trader import EnvironmentConfig
from utils.progress import Progress
from utils.statistics import expected_maximum

_START_ROWS = 200_000
"""Rows that the closed form learns from, evenly spaced where there are more."""
START_PRICE = 0.5
"""Of capital, percent of a position, in the closed form."""
_MOST_DOUBT = 10.0
"""Largest penalty of an input that tells nothing, in multiples of the rows."""
_USUAL_ROWS = 4096
"""Rows of which the usual level of scores is the mean."""
_START_PENALTY, _START_STEPS, _START_KNOTS = 0.01, 40, 4
"""Of the closed form: ridge penalty in multiples of the rows, policy iterations, and discounts."""


@dataclass(frozen=True)
class TrainingDays:
    """The training days of a market, with what is computed of them once for all agents and generations."""

    inputs: TradeInputs
    samples: Samples
    """Their inputs are cross-fitted: on the days of a fold, responses that were fitted without it."""
    transitions: StockTransitions
    tradable: Tensor
    """(days, n) bool: the stock has a bar."""
    later: InputRows
    """Of the validation days, as deployed: fitted to all training days."""
    relative_risk: Tensor
    """(days, n) float32, see `data.features.bank`."""

    @classmethod
    def of(cls, market: Market, quotes: Quotes, rules: EnvironmentConfig) -> TrainingDays:
        """Fit inputs and look up the results of all positions on a market's training days.

        Args:
            quotes: of the investable stocks.

        Raises:
            DataError: there are too few results to fit to.
        """
        train = market.splits.train
        learned = np.arange(len(market.dates)) <= train.last
        with Progress("prepare", "fit") as shown:
            inputs = TradeInputs.fit(market, learned)
            training = inputs.rows(market, slice(train.first, train.last + 1))
            samples = Samples.of(training, quotes, rules, train, train.last, DISCOUNTS[:1])
            samples.require_enough()
            training.fill(training.days, inputs.banks(market, training.days))
            training.fill_features(inputs.features, market, INPUTS)
            shown.update(total=1 + len(samples.folds))
            others = np.repeat(learned[None], len(samples.folds), axis=0)
            for known, fold in zip(others, samples.folds, strict=True):
                known[max(0, fold.test.start - samples.longest) : fold.test.stop + samples.longest] = False
            sets = samples.train_days, *(fold.fitted for fold in samples.folds)
            whole, *of_folds = inputs.fit_formulas(market, training.days, sets)
            inputs = replace(inputs, formulas=whole)
            for fold, formulas in zip(samples.folds, of_folds, strict=True):
                replace(inputs, formulas=formulas).fill_formulas(training, market, fold.test)
            for fold, refitted in zip(samples.folds, inputs.refitted(market, others), strict=True):
                training.fill(fold.test, refitted.forecasts(market, fold.test), BANK)
                shown.update()
            later = market.splits.validation
            validation = inputs.rows_of(market, slice(later.first, later.last + 1))
        samples = replace(samples, x=training.to(quotes.device))
        transitions = StockTransitions.of(samples, inputs, quotes, rules)
        risk = torch.from_numpy(relative_risk(market.close)).to(quotes.device)
        return cls(inputs, samples, transitions, quotes.close > 0, validation.to(quotes.device), risk)

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.samples.folds)

    def forecasts(self, networks: ActorCritic, agents: Sequence[int], asked: Tensor | None = None) -> Forecasts:
        """Return what some agents' actors make of the training days, each by those that did not learn from its fold.

        Args:
            asked: (days,) bool, on the CPU: blocks of days without any of these are left out; default: none.
        """
        rows, shape = self.samples.x, (len(agents), *self.tradable.shape)
        score = torch.full(shape, -torch.inf, device=self.tradable.device)
        usual, of_fold = torch.zeros(shape[:2], device=score.device), self.usual(networks, agents)
        for fold, (_, test_days) in enumerate(self.samples.folds):
            for days in rows.blocks(test_days):
                if asked is not None and not asked[days].any():
                    continue
                x = rows.x(days)
                seen = self.inputs.for_networks(x)
                usual[:, days] = of_fold[:, [fold]]
                for place, agent in enumerate(agents):
                    score[place, days] = rows.spread(networks.played_scores(agent, fold, seen), days, -torch.inf)
        return Forecasts.of(score, usual, self.relative_risk)

    def usual(self, networks: ActorCritic, agents: Sequence[int]) -> Tensor:
        """Return the (A, folds) mean scores of actors on days that they learned from."""
        x, means = self.samples.x, list[Tensor]()
        for fold in range(self.folds):
            rows = self.transitions.allowed[fold][x.days].repeat_interleave(x.counts).nonzero()[:, 0]
            seen = self.inputs.for_networks(x.take(rows[:: 1 + len(rows) // _USUAL_ROWS])[0])
            means.append(torch.stack([networks.played_scores(agent, fold, seen).mean() for agent in agents]))
        return torch.stack(means, dim=1)

    def closed_form(self, gammas: Tensor) -> Tensor:
        """Return the weights that networks start from at (A,) discounts: (folds, inputs + 1, A), of a constant and the
        inputs as networks see them, in units; between some discounts they are interpolated.

        Linear fitted Q-iteration (Ernst, Geurts and Wehenkel 2005, "Tree-based batch mode reinforcement learning", with
        ridge regression in place of trees) on the transitions outside of each fold.
        """
        horizon = (1.0 / (1.0 - gammas.double())).log2()
        low, high = (float(edge) for edge in horizon.aminmax())
        knots = torch.linspace(low, high, _START_KNOTS, dtype=torch.float64, device=horizon.device)
        at_knots = 1.0 - (-knots).exp2()
        fitted = torch.stack(
            [self._closed_form(self.transitions.allowed[fold], at_knots) for fold in range(self.folds)]
        )
        place = (horizon - low) / max(high - low, 1e-12) * (_START_KNOTS - 1)
        left = place.long().clamp(max=_START_KNOTS - 2)
        return torch.lerp(fitted[..., left], fitted[..., left + 1], place - left).float()

    def _closed_form(self, allowed: Tensor, gamma: Tensor) -> Tensor:
        known, x = self.transitions, self.samples.x
        of_day = allowed[x.days].repeat_interleave(x.counts)
        rows = of_day.nonzero()[:, 0]
        rows = rows[:: 1 + len(rows) // _START_ROWS]
        here, there = (self._seen(some) for some in (rows, known.following[rows].long()))
        reward, follows = known.reward[rows, None].double().expand(-1, len(gamma)), ~known.terminated[rows, None]
        penalty = len(rows) * torch.diag(self._doubts(here, rows))
        solved = torch.linalg.solve(here.T @ here + penalty, here.T)
        value, weights = torch.zeros_like(reward), here.new_zeros(here.shape[1], reward.shape[1])
        for _ in range(_START_STEPS if bool(follows.any()) else 1):
            is_kept = (value - START_PRICE >= -known.cost) & follows
            weights = solved @ (reward + gamma * torch.where(is_kept, value, -known.cost * follows))
            value = there @ weights
        return weights / known.reward_scale

    def _doubts(self, x: Tensor, rows: Tensor) -> Tensor:
        """Return the penalty of each of the (rows, inputs) of the closed form, in multiples of the rows.

        The weight of an input of variance 1 is shrunk by 1 - c / t^2 (James and Stein 1961, "Estimation with quadratic
        loss") of its t, by days, with what formulas leave of next rewards: of differences between stocks or of levels,
        whichever is clearer. The best of many inputs that tell nothing has a t^2 of about c (Donoho and Johnstone 1994,
        "Ideal spatial adaptation by wavelet shrinkage"). Past returns stand for one another, and have one t^2 together.
        """
        reward, first = self.transitions.reward[rows].double(), self.samples.x.first_rows
        day = torch.searchsorted(first, rows, right=True) - 1

        def by_day(values: Tensor) -> Tensor:
            return values.new_zeros(len(first), *values.shape[1:]).index_add_(0, day, values)

        count = by_day(torch.ones_like(reward)).clamp(min=1)
        level, mean = by_day(reward) / count, by_day(x) / count[:, None]
        apart, formulas = reward - level[day], x[:, -FORMULAS:] - mean[day, -FORMULAS:]
        gram = formulas.T @ formulas
        known = torch.linalg.solve(gram + torch.diag(1e-9 + _START_PENALTY * gram.diag()), formulas.T @ apart)
        left = apart - formulas @ known
        of_formulas = by_day(formulas * apart[:, None])
        both = by_day(x * left[:, None]), mean * (level - reward.mean())[:, None]
        square = torch.stack([_squared_t(products) for products in both]).amax(0)
        doubts = 1 / (square - 2 * math.log(len(square))).clamp(min=1 / _MOST_DOUBT)
        doubts[-FORMULAS:] = 1 / (_squared_t(of_formulas) - 1).clamp(min=1 / _MOST_DOUBT)
        together = max(_mean_squared_t(products[:, 1:BANK]) for products in both)
        doubts[1:BANK] = 1 / max(together - 1, 1 / _MOST_DOUBT)
        doubts += _START_PENALTY
        doubts[0] = 0.0
        return doubts

    def _seen(self, rows: Tensor) -> Tensor:
        x = self.inputs.for_networks(self.samples.x.take(rows)[0])
        return torch.cat((torch.ones_like(x[:, :1]), x), dim=1).double()

    def lead(self, forecasts: Forecasts, among: int) -> float:
        """Return the standard errors by which the best of a number of agents leads by chance: agents whose scores have
        a correlation of r differ by sqrt(1 - r) of the standard error."""
        days = self.samples.x.days
        known = self.samples.is_known[days] & self.samples.train_days[days, None]
        return expected_maximum(math.sqrt(1.0 - _likeness(forecasts.score[:, days], known)), among)


def _squared_t(products: Tensor) -> Tensor:
    """Return the squares of the t-statistics of sums of (days, inputs) products."""
    return products.sum(0).square() / products.square().sum(0).clamp(min=1e-12)


def _mean_squared_t(products: Tensor) -> float:
    """Return the statistic of a joint test (Hotelling 1931, "The generalization of Student's ratio") of sums of (days,
    inputs) products, an input."""
    products = products[:, products.square().sum(0) > 1e-12]
    square, total = products.T @ products, products.sum(0)
    return float(total @ torch.linalg.solve(square + 1e-3 * square.diag().diag(), total)) / max(len(total), 1)


def _likeness(scores: Tensor, known: BoolArray) -> float:
    """Return the mean correlation of (A, days, n) scores less their days' means, where known; 0 of a single one."""
    total, among = np.zeros(int(known.sum())), len(scores)
    for one in scores:
        centred = np.where(known, one.double().cpu().numpy(), 0.0)
        centred -= centred.sum(axis=1, keepdims=True) / known.sum(axis=1, keepdims=True).clip(min=1)
        centred = centred[known]
        centred -= centred.mean()
        if not (norm := float(np.linalg.norm(centred))) > 0:
            return 0.0
        centred /= norm
        total += centred
    # The squared length of a sum of unit vectors is their number and twice the sum of the correlations of all pairs.
    return 0.0 if among < 2 else min(1.0, max(0.0, float((total @ total - among) / (among * (among - 1)))))
