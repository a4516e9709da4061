"""The training days as what agents learn from and are judged by, with inputs that are cross-fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models import order_size
from models.evidence import Bet, Evidence
from models.inputs import BANK, INPUTS, InputRows, TradeInputs
from models.networks import ActorCritic
from models.policy import Forecasts
from training.forecasts.samples import Samples
from training.forecasts.skill import (
    HORIZONS,
    correlation,
    cross_fitted_mean_test,
    rank_correlation,
    returns_ahead,
)
from training.forecasts.transitions import StockTransitions
from utils.arrays import BoolArray, Float64Array
from utils.config.trader import EnvironmentConfig
from utils.progress import Progress
from utils.spaces import MAX_TARGET_PERCENT, TARGET_PERCENTS
from utils.statistics import expected_maximum

_LEAST_RISK = 0.05
"""Least of what the risk of an order costs, as a share of the mean."""
_START_ROWS = 200_000
"""Rows that the closed form learns from, evenly spaced where there are more."""
START_PRICE = 0.5
"""Of capital, percent of a position, in the closed form."""
_START_PENALTY, _START_STEPS = 0.01, 40
"""Of the closed form: ridge penalty in multiples of the rows, and policy iterations."""


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
    rules: EnvironmentConfig
    opens: Float64Array
    """(days, n) of the market up to the last training day, NaN without a bar."""
    risk: Tensor | None = None
    """(folds + 1, numbers) weights of what the risk of orders costs, without each fold and with all; None: nothing."""

    @classmethod
    def of(cls, market: Market, env: Portfolio, risk_aversion: float = 0.0) -> TrainingDays:
        """Fit inputs and look up the results of all orders of a market's training days.

        Raises:
            DataError: there are too few results to fit to.
        """
        train = market.splits.train
        learned = np.arange(len(market.dates)) <= train.last
        with Progress("prepare", "fit") as shown:
            inputs = TradeInputs.fit(market, learned)
            training = inputs.rows(market, slice(train.first, train.last + 1))
            later = market.splits.validation
            validation = inputs.rows_of(market, slice(later.first, later.last + 1))
            # With daily exits all that is read of orders is what they earn where nobody decides on the sale.
            targets = TARGET_PERCENTS if env.rules.exits == "target" else (MAX_TARGET_PERCENT,)
            samples = Samples.of(training, env, train, train.last, targets)
            samples.require_enough()
            training.fill(training.days, inputs.banks(market, training.days))
            training.fill_features(inputs.features, market, INPUTS)
            shown.update(total=1 + len(samples.folds))
            others = np.repeat(learned[None], len(samples.folds), axis=0)
            for known, fold in zip(others, samples.folds, strict=True):
                known[max(0, fold.test.start - samples.longest) : fold.test.stop + samples.longest] = False
            for fold, refitted in zip(samples.folds, inputs.refitted(market, others), strict=True):
                training.fill(fold.test, refitted.forecasts(market, fold.test), BANK)
                shown.update()
        samples = replace(samples, x=training.to(env.device))
        transitions = StockTransitions.of(samples, inputs, env.bars, env.rules)
        opens = env.bars.quotes.view(-1, env.bars.stocks, 3)[: train.last + 1, :, 0].double().cpu().numpy()
        days = cls(inputs, samples, transitions, env.bars.tradable, validation.to(env.device), env.rules, opens)
        return replace(days, risk=fit_risk(days, risk_aversion)) if risk_aversion > 0 else days

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
        penalty = None if self.risk is None else torch.zeros_like(score)
        for fold, (_, test_days) in enumerate(self.samples.folds):
            for days in rows.blocks(test_days):
                if asked is not None and not asked[days].any():
                    continue
                x = rows.x(days)
                seen = self.inputs.for_networks(x)
                for place, agent in enumerate(agents):
                    score[place, days] = rows.spread(networks.played_scores(agent, fold, seen), days, -torch.inf)
                if penalty is not None and self.risk is not None:
                    known = order_size.numbers_of_days(rows, days, self.inputs.volatility_scale)
                    penalty[:, days] = rows.spread(order_size.penalties(known, self.risk[fold].to(known)), days)
        return Forecasts(score, penalty)

    def closed_form(self, gamma: float) -> Tensor:
        """Return the weights that networks start from: (folds, inputs + 1, targets), of a constant and the inputs as
        networks see them, in units.

        Linear fitted Q-iteration (Ernst, Geurts and Wehenkel 2005, "Tree-based batch mode reinforcement learning", with
        ridge regression in place of trees) on the transitions outside of each fold.
        """
        weights = [self._closed_form(self.transitions.allowed[fold], gamma) for fold in range(self.folds)]
        return torch.stack(weights).float()

    def _closed_form(self, allowed: Tensor, gamma: float) -> Tensor:
        known, x = self.transitions, self.samples.x
        of_day = allowed[x.days].repeat_interleave(x.counts)
        rows = of_day.nonzero()[:, 0]
        rows = rows[:: 1 + len(rows) // _START_ROWS]
        here, there = (self._seen(some) for some in (rows, known.following[rows].long()))
        reward, follows = known.reward[rows].double(), ~known.terminated[rows, None]
        penalty = _START_PENALTY * len(rows) * torch.eye(here.shape[1], dtype=torch.float64, device=here.device)
        penalty[0, 0] = 0.0
        solved = torch.linalg.solve(here.T @ here + penalty, here.T)
        value, weights = torch.zeros_like(reward), here.new_zeros(here.shape[1], reward.shape[1])
        for _ in range(_START_STEPS if bool(follows.any()) else 1):
            is_kept = (value - START_PRICE >= -known.cost) & follows
            weights = solved @ (reward + gamma * torch.where(is_kept, value, -known.cost * follows))
            value = there @ weights
        return weights / known.reward_scale

    def _seen(self, rows: Tensor) -> Tensor:
        x = self.inputs.for_networks(self.samples.x.take(rows)[0])
        return torch.cat((torch.ones_like(x[:, :1]), x), dim=1).double()

    def evidence(self, forecasts: Forecasts, trials: int, among: int = 1) -> Evidence:
        """Test the out-of-fold forecasts of a committee, and tell what betting on them is worth.

        Selection: the mean over days of the correlation over stocks of its scores with the results of trades of which
        nobody decides on the sale. Timing: whether the day's means of both rise and fall together.

        Args:
            forecasts: of its members, out of fold; its own scores are their means.
            trials: agents among which they were selected so far, for which p-values are adjusted.
            among: agents among which they were selected last. Estimates are reduced by the lead of the best by chance:
                agents whose scores have a correlation of r differ by sqrt(1 - r) of the standard error.
        """
        samples, days = self.samples, self.samples.x.days
        scores = forecasts.score[:, days]
        known = samples.is_known[days] & samples.train_days[days, None]
        score_sums, result_sums = list[Float64Array](), list[Float64Array]()
        correlations, deviations = list[Float64Array](), list[Float64Array]()
        ranked: dict[int, list[Float64Array]] = {sessions: [] for sessions in HORIZONS}
        for some in samples.x.blocks():  # block by block: on a large market all days together take a gigabyte
            here = samples.x.here(some)
            total = sum((member[here].double() for member in scores), torch.zeros((), dtype=torch.float64))
            score = total.cpu().numpy() / len(scores)
            result = samples.results[-1, some].astype(np.float64) / (100 * self.rules.largest_order)
            known[here] &= np.isfinite(score)
            score, result = (np.where(known[here], values, np.nan) for values in (score, result))
            score_sums.append(np.nansum(score, axis=1))
            result_sums.append(np.nansum(result, axis=1))
            correlations.append(correlation(score, result))
            for sessions, daily in ranked.items():
                daily.append(rank_correlation(score, returns_ahead(self.opens, some, sessions)))
            deviations.append(np.nanstd(result[known[here].sum(axis=1) > 1], axis=1))
        count = known.sum(axis=1)
        has_stocks = count > 0
        score_level = np.concatenate(score_sums)[has_stocks] / count[has_stocks]
        result_level = np.concatenate(result_sums)[has_stocks] / count[has_stocks]
        score_level -= score_level.mean()
        result_level -= result_level.mean()
        selection = cross_fitted_mean_test(np.concatenate(correlations), samples.longest, 2 * trials)
        timing = cross_fitted_mean_test(score_level * result_level, samples.longest, 2 * trials)

        # What betting on them is worth, with what the best of several agents leads by chance taken off.
        lead = expected_maximum(math.sqrt(1.0 - _likeness(scores, known)), among)  # in standard errors
        unit = float(score_level.std() * result_level.std()) or 1.0
        of_days = np.concatenate(deviations)
        stocks = Bet.on_stocks(
            estimate=selection.mean - lead * selection.standard_error,
            error=selection.standard_error,
            spread=float(of_days.mean()) if of_days.size else 0.0,
            stocks=float(count[has_stocks].mean()),
        )
        by_day = Bet.on_days(
            estimate=(timing.mean - lead * timing.standard_error) / unit,
            error=timing.standard_error / unit,
            spread=float(result_level.std()),
            variance=stocks.variance,
        )
        evidence = Evidence.of(selection.p_value, timing.p_value, stocks, by_day, 2 * self.rules.cost_rate)
        tests = {h: cross_fitted_mean_test(np.concatenate(daily), h, 1) for h, daily in ranked.items()}
        by_t = {h: test.mean / test.standard_error for h, test in tests.items() if test.standard_error > 0}
        clearest = max(by_t, key=by_t.__getitem__, default=0)
        if not clearest:
            return evidence
        return replace(evidence, sessions=float(clearest), rank_ic=tests[clearest].mean, t=by_t[clearest])


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


def fit_risk(days: TrainingDays, risk_aversion: float) -> Tensor:
    """Fit what the risk of orders costs by least squares, (folds + 1, numbers), see `models.order_size`: half the
    aversion times the squared results of orders."""
    samples, rows = days.samples, days.samples.x
    scale = days.inputs.volatility_scale
    numbers = torch.cat([order_size.numbers_of_days(rows, some, scale) for some in rows.blocks()]).double()
    results = torch.from_numpy(samples.results[-1:, rows.days]).to(rows.separate.device)
    result = rows.compact(results, rows.days).double()[0]
    day = torch.arange(rows.days.start, rows.days.stop).repeat_interleave(rows.counts.cpu())
    weights = result.new_zeros(len(samples.folds) + 1, order_size.NUMBERS)
    for row, learned in zip(weights, [*(fitted for fitted, _ in samples.folds), samples.train_days], strict=True):
        used = torch.from_numpy(learned)[day].to(result.device) & result.isfinite()
        cost, known = 0.5 * risk_aversion * result[used].square(), numbers[used]
        row[:4] = torch.linalg.solve(known.T @ known, known.T @ cost)
        row[4] = _LEAST_RISK * cost.mean()
    return weights.cpu()
