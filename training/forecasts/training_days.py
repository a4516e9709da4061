"""The training days as what agents learn from and are judged by, with inputs that are cross-fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.portfolio import Portfolio
from models import risk
from models.evidence import Evidence
from models.inputs import BANK, INPUTS, InputRows, TradeInputs
from models.networks import TIME_UNIT, ActorCritic
from models.policy import Forecasts, score_of
from training.forecasts.samples import BoolArray, Float64Array, Samples
from training.forecasts.skill import correlation, cross_fitted_mean_test
from training.forecasts.transitions import StockTransitions
from utils.progress import Progress
from utils.statistics import MeanTest

_LEAST_RISK = 0.05
"""Least of what the risk of an order costs, as a share of the mean."""
_START_ROWS = 200_000
"""Rows that the closed form learns from, evenly spaced where there are more."""
_START_PENALTY, _START_STEPS, _START_PRICE = 0.01, 40, 0.05
"""Of the closed form: ridge penalty in multiples of the rows, policy iterations, and price of capital."""


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
            samples = Samples.of(training, env, train, train.last)
            samples.require_enough()
            training.fill(training.days, inputs.banks(market, training.days))
            training.fill_features(inputs.features, market, INPUTS)
            shown.update(total=1 + len(samples.folds))
            for _, held in samples.folds:
                others = learned.copy()
                others[max(0, held.start - samples.longest) : held.stop + samples.longest] = False
                training.fill(held, inputs.forecasts(market, others, held), BANK)
                shown.update()
        samples = replace(samples, x=training.to(env.device))
        transitions = StockTransitions.of(samples, inputs, env.bars, env.rules)
        days = cls(inputs, samples, transitions, env.bars.tradable, validation.to(env.device))
        return replace(days, risk=fit_risk(days, risk_aversion)) if risk_aversion > 0 else days

    @property
    def folds(self) -> int:
        """Number of folds."""
        return len(self.samples.folds)

    def forecasts(self, networks: ActorCritic, agents: Sequence[int]) -> Forecasts:
        """Return what some agents' actors make of the training days, each by those that did not learn from its fold."""
        rows, shape = self.samples.x, (len(agents), *self.tradable.shape)
        gain = torch.full(shape, -torch.inf, device=self.tradable.device)
        time, penalty = torch.zeros_like(gain), None if self.risk is None else torch.zeros_like(gain)
        for fold, (_, held) in enumerate(self.samples.folds):
            for days in rows.blocks(held):
                x = rows.x(days)
                seen = self.inputs.for_networks(x)
                for place, agent in enumerate(agents):
                    own = rows.spread(networks.score(agent, fold, seen), days, -torch.inf)
                    gain[place, days], time[place, days] = own[0], own[1].clamp(min=0.0)
                if penalty is not None and self.risk is not None:
                    known = risk.numbers_of_days(rows, days, self.inputs.volatility_scale)
                    penalty[:, days] = rows.spread(risk.penalties(known, self.risk[fold].to(known)), days)
        return Forecasts(gain, time, penalty)

    def closed_form(self) -> Tensor:
        """Return the weights that networks start from: (folds, inputs + 1, targets, 2), of a constant and the inputs as
        networks see them, for gain and time, in units.

        Linear fitted Q-iteration (Ernst, Geurts and Wehenkel 2005, "Tree-based batch mode reinforcement learning", with
        ridge regression in place of trees) on the transitions outside of each fold.
        """
        found = [self._closed_form(self.transitions.allowed[fold]) for fold in range(self.folds)]
        return torch.stack(found).float()

    def _closed_form(self, allowed: Tensor) -> Tensor:
        known, x = self.transitions, self.samples.x
        of_day = allowed[x.days].repeat_interleave(x.counts)
        rows = of_day.nonzero()[:, 0]
        rows = rows[:: 1 + len(rows) // _START_ROWS]
        here, there = (self._seen(some) for some in (rows, known.following[rows].long()))
        reward, follows = known.reward[rows].double(), ~known.terminated[rows, None]
        penalty = _START_PENALTY * len(rows) * torch.eye(here.shape[1], dtype=torch.float64, device=here.device)
        penalty[0, 0] = 0.0
        solved = torch.linalg.solve(here.T @ here + penalty, here.T)
        gain = time = torch.zeros_like(reward)
        weights = here.new_zeros(here.shape[1], reward.shape[1], 2)
        for _ in range(_START_STEPS if bool(follows.any()) else 1):
            is_kept = (score_of(gain, time, here.new_tensor(_START_PRICE)) >= -known.cost) & follows
            total = reward + torch.where(is_kept, gain, -known.cost * follows)
            held = known.sessions[rows, None] + torch.where(is_kept, time, 0.0)
            weights = torch.stack((solved @ total, solved @ held.expand_as(total)), dim=-1)
            gain, time = there @ weights[..., 0], (there @ weights[..., 1]).clamp(min=0.0)
        return weights / weights.new_tensor([known.unit, TIME_UNIT])

    def _seen(self, rows: Tensor) -> Tensor:
        x = self.inputs.for_networks(self.samples.x.take(rows)[0])
        return torch.cat((torch.ones_like(x[:, :1]), x), dim=1).double()

    def evidence(self, forecasts: Forecasts, price: float, trials: int) -> Evidence:
        """Test the out-of-fold forecasts of one agent.

        Selection: the mean over days of the correlation over stocks of its scores with the results of trades of which
        nobody decides on the sale. Timing: whether the day's means of both rise and fall together.

        Args:
            price: of capital, at which gains and times are one score.
            trials: agents among which it was selected, for which p-values are adjusted.
        """
        days, samples = self.samples.x.days, self.samples
        score = score_of(forecasts.gain[0, days], forecasts.time[0, days], torch.tensor(price)).double().cpu().numpy()
        known = samples.is_known[days] & samples.train_days[days, None] & np.isfinite(score)
        score, result = (np.where(known, v, np.nan) for v in (score, samples.results[-1, days].astype(np.float64)))
        selection = cross_fitted_mean_test(correlation(score, result), samples.longest, 2 * trials)
        return Evidence(selection.p_value, _timing(score, result, known, samples.longest, 2 * trials).p_value)


def _timing(score: Float64Array, result: Float64Array, known: BoolArray, longest: int, trials: int) -> MeanTest:
    """Test whether the means over the known stocks of a day, (days, n), move together."""
    count = known.sum(axis=1)
    some = count > 0
    level, mean = (np.where(known, v, 0.0).sum(axis=1)[some] / count[some] for v in (score, result))
    return cross_fitted_mean_test((level - level.mean()) * (mean - mean.mean()), longest, trials)


def fit_risk(days: TrainingDays, risk_aversion: float) -> Tensor:
    """Fit what the risk of orders costs by least squares, (folds + 1, numbers), see `models.risk`: half the aversion
    times the squared results of orders."""
    samples, rows = days.samples, days.samples.x
    scale = days.inputs.volatility_scale
    numbers = torch.cat([risk.numbers_of_days(rows, some, scale) for some in rows.blocks()]).double()
    results = torch.from_numpy(samples.results[-1:, rows.days]).to(rows.own.device)
    result = rows.compact(results, rows.days).double()[0]
    day = torch.arange(rows.days.start, rows.days.stop).repeat_interleave(rows.counts.cpu())
    weights = result.new_zeros(len(samples.folds) + 1, risk.NUMBERS)
    for own, learned in zip(weights, [*(fitted for fitted, _ in samples.folds), samples.train_days], strict=True):
        used = torch.from_numpy(learned)[day].to(result.device) & result.isfinite()
        cost, known = 0.5 * risk_aversion * result[used].square(), numbers[used]
        own[:4] = torch.linalg.solve(known.T @ known, known.T @ cost)
        own[4] = _LEAST_RISK * cost.mean()
    return weights.cpu()
