"""The training days as what agents learn from and are judged by, with inputs that are cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.features.bank import relative_risk
from data.features.inputs import BANK, INPUTS, TradeInputs
from data.features.rows import InputRows
from data.market import Market
from environment.quotes import Quotes
from models.networks import ActorCritic
from models.policy import Forecasts
from training.forecasts.gains import input_gains
from training.forecasts.samples import DISCOUNTS, Samples
from training.forecasts.transitions import StockTransitions
from utils.arrays import BoolArray
from utils.config.trader import EnvironmentConfig
from utils.progress import Progress
from utils.statistics import expected_maximum

_USUAL_ROWS = 4096
"""Rows of which the usual level of scores is the mean."""


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
        with Progress("Preparing inputs", "fit") as shown:
            inputs = TradeInputs.fit(market, learned)
            rows = inputs.rows(market, slice(train.first, later.last + 1))
            training = rows.part(slice(train.first, train.last + 1))
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
