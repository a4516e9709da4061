"""The training days as what agents learn from and are judged by, with inputs that are cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.features.bank import relative_risk
from data.features.formulas import FORECASTS
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
from utils.progress import PART, Progress, in_parts
from utils.statistics import expected_maximum

_USUAL_ROWS = 4096
"""Rows of which the usual level of scores is the mean."""
_GAIN_ROWS = 200_000
"""Most rows that gains are read from, evenly spaced where there are more."""
_LEAST = 0.1
"""Least evidence of an input: what tells nothing by itself may tell together with others."""
_RIDGE = 0.01
"""Of the regression on forecasts of formulas, in multiples of their squares."""


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
    gains: Tensor
    """(folds, inputs) float32, see `input_gains`."""

    @classmethod
    def of(cls, market: Market, quotes: Quotes, rules: EnvironmentConfig) -> TrainingDays:
        """Fit inputs and look up the results of all positions on a market's training days.

        Args:
            quotes: of the investable stocks.

        Raises:
            DataError: there are too few results to fit to.
        """
        train, later = market.splits.train, market.splits.validation
        learned = np.arange(len(market.dates)) <= train.last
        with Progress("Preparing inputs", PART, 100):  # of about the same time on small markets and on large ones
            inputs = TradeInputs.fit(market, learned)
            rows = inputs.rows(market, slice(train.first, later.last + 1))
            training = rows.part(slice(train.first, train.last + 1))
            samples = Samples.of(training, quotes, rules, train, train.last, DISCOUNTS[:1])
            samples.require_enough()
            training.fill(training.days, inputs.banks(market, training.days))
            training.fill_features(inputs.features, market, INPUTS)
            others = np.repeat(learned[None], len(samples.folds), axis=0)
            for known, fold in zip(others, samples.folds, strict=True):
                known[max(0, fold.test.start - samples.longest) : fold.test.stop + samples.longest] = False
            sets = samples.train_days, *(fold.fitted for fold in samples.folds)
            whole, *of_folds = inputs.fit_formulas(market, training.days, sets)
            inputs = replace(inputs, formulas=whole)
            for fold, formulas in zip(samples.folds, of_folds, strict=True):
                replace(inputs, formulas=formulas).fill_formulas(training, market, fold.test)
            for fold, refitted in zip(in_parts(samples.folds, 14), inputs.refitted(market, others), strict=True):
                training.fill(fold.test, refitted.forecasts(market, fold.test), BANK)
            validation = inputs.rows_of(market, slice(train.last + 1, later.last + 1), rows)
            validation = validation.part(slice(later.first, later.last + 1))
        samples = replace(samples, x=training.to(quotes.device))
        transitions = StockTransitions.of(samples, inputs, quotes, rules)
        risk = torch.from_numpy(relative_risk(market.close)).to(quotes.device)
        later_rows = validation.to(quotes.device)
        return cls(inputs, samples, transitions, quotes.close > 0, later_rows, risk, input_gains(transitions))

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.samples.folds)

    def forecasts(self, networks: ActorCritic, agents: Sequence[int], asked: Tensor | None = None) -> Forecasts:
        """Return what some agents' actors make of the training days, each by those that did not learn from its fold.

        Args:
            asked: (days,) bool, on the CPU: blocks of days without any of these are left out; default: none.
        """
        rows, days, stocks = self.samples.x, *self.tradable.shape
        blocks = [
            (fold, block)
            for fold, (_, test_days) in enumerate(self.samples.folds)
            for block in rows.blocks(test_days)
            if asked is None or asked[block].any()
        ]
        first = 0 if asked is None else min(block.start for _, block in blocks)
        days = days if asked is None else max(block.stop for _, block in blocks)
        score = torch.full((len(agents), days - first, stocks), -torch.inf, device=self.tradable.device)
        usual, of_fold = torch.zeros(score.shape[:2], device=score.device), self.usual(networks, agents)
        for fold, block in blocks:
            seen, at = self.inputs.for_networks(rows.x(block)), slice(block.start - first, block.stop - first)
            usual[:, at] = of_fold[:, [fold]]
            for place, agent in enumerate(agents):
                score[place, at] = rows.spread(networks.played_scores(agent, fold, seen), block)
        return Forecasts.of(score, usual, self.relative_risk, first)

    def usual(self, networks: ActorCritic, agents: Sequence[int]) -> Tensor:
        """Return the (A, folds) mean scores of actors on days that they learned from."""
        x, means = self.samples.x, list[Tensor]()
        for fold in range(self.folds):
            rows = self.transitions.allowed[fold][x.days].repeat_interleave(x.counts).nonzero()[:, 0]
            seen = self.inputs.for_networks(x.take(rows[:: 1 + len(rows) // _USUAL_ROWS]))
            means.append(torch.stack([networks.played_scores(agent, fold, seen).mean() for agent in agents]))
        return torch.stack(means, dim=1)

    def lead(self, forecasts: Forecasts, among: int) -> float:
        """Return the standard errors by which the best of a number of agents leads by chance: agents whose scores have
        a correlation of r differ by sqrt(1 - r) of the standard error."""
        days = self.samples.x.days
        known = self.samples.is_known[days] & self.samples.train_days[days, None]
        return expected_maximum(math.sqrt(1.0 - _likeness(forecasts.score[:, days], known)), among)


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


def input_gains(known: StockTransitions) -> Tensor:
    """Return the (folds, inputs) float32 factors of inputs as networks see them, each by days outside of a fold."""
    return torch.stack([_gains(known, allowed) for allowed in known.allowed]).float()


def _gains(known: StockTransitions, allowed: Tensor) -> Tensor:
    """Return (inputs,) factors.

    A weight of t-statistic t is best shrunk by about 1 - 1 / t^2 (James and Stein 1961, "Estimation with quadratic
    loss"); here t is by days, with what formulas leave of next rewards: of differences between stocks or of levels,
    whichever is clearer. The best of many inputs that tell nothing has a t^2 of some twice the logarithm of their
    number (Donoho and Johnstone 1994, "Ideal spatial adaptation by wavelet shrinkage"): only what lies above it is
    evidence. Past returns stand for one another, and have one t^2 together.
    """
    rows = allowed[known.x.days].repeat_interleave(known.x.counts).nonzero()[:, 0]
    rows = rows[:: 1 + len(rows) // _GAIN_ROWS]
    x, reward = known.inputs.for_networks(known.x.take(rows)).double(), known.reward[rows].double()
    first = known.x.first_rows
    day = torch.searchsorted(first, rows, right=True) - 1

    def by_day(values: Tensor) -> Tensor:
        return values.new_zeros(len(first), *values.shape[1:]).index_add_(0, day, values)

    count = by_day(torch.ones_like(reward)).clamp(min=1)
    level, mean = by_day(reward) / count, by_day(x) / count[:, None]
    apart, formulas = reward - level[day], x[:, -FORECASTS:] - mean[day, -FORECASTS:]
    gram = formulas.T @ formulas
    loadings = torch.linalg.solve(gram + torch.diag(1e-9 + _RIDGE * gram.diag()), formulas.T @ apart)
    left = apart - formulas @ loadings
    both = by_day(x * left[:, None]), mean * (level - reward.mean())[:, None]
    evidence = torch.stack([_squared_t(products) for products in both]).amax(0) - 2 * math.log(x.shape[1])
    evidence[-FORECASTS:] = _squared_t(by_day(formulas * apart[:, None])) - 1
    evidence[: BANK - 1] = max(_mean_squared_t(products[:, : BANK - 1]) for products in both) - 1
    evidence = evidence.clamp(min=_LEAST)
    return evidence / (1 + evidence)


def _squared_t(products: Tensor) -> Tensor:
    """Return the squares of the t-statistics of sums of (days, inputs) products."""
    return products.sum(0).square() / products.square().sum(0).clamp(min=1e-12)


def _mean_squared_t(products: Tensor) -> float:
    """Return the statistic of a joint test (Hotelling 1931, "The generalization of Student's ratio") of sums of (days,
    inputs) products, an input."""
    products = products[:, products.square().sum(0) > 1e-12]
    square, total = products.T @ products, products.sum(0)
    return float(total @ torch.linalg.solve(square + 1e-3 * square.diag().diag(), total)) / max(len(total), 1)
