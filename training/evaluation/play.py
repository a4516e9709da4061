"""Policies on the judged days: one account each, which begins with cash and goes on to the last day.

Whatever can be judged is a policy of `environment.portfolio`; what its account did is read from the account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.market import Market
from environment import portfolio as portfolios
from environment.account import Trades
from environment.benchmark import Benchmark
from environment.portfolio import Policy, Portfolio
from environment.positions import as_rows, daily_table, positions
from models.ddpg_agent import DDPGAgent
from models.policy import Forecasts
from training.evaluation.asked import Asked
from training.evaluation.baselines import (
    CASH,
    EQUAL,
    EQUAL_RISK,
    HOLD,
    INDEX,
    NEXT_CLOSE,
    RANDOM,
    SURVIVORS,
    inverse_volatility,
)
from training.evaluation.biases import LAST_DAYS
from training.evaluation.compared import PlayedPolicies
from training.evaluation.measures import EquityCurves
from training.evaluation.nulls import Active
from training.evaluation.rules import BandRule, Tuning, numbers_of
from training.forecasts.skill import HORIZONS, agent_scores, returns_ahead
from training.rollout import TABLE_BYTES, follow, roll_out
from utils.arrays import Float64Array
from utils.memory.guard import require_memory
from utils.progress import progress

COSTS_BPS = (0.0, 5.0, 10.0, 25.0, 50.0)
"""Per leg, commission and slippage together."""
_NEUTRAL = 0.1
"""Mean net weight, of either sign, below which a portfolio with shorts is dollar-neutral, and held against cash."""


@dataclass(frozen=True)
class EvaluationSetup:
    """A market, its judged days, and rules and benchmark under which policies are compared."""

    market: Market
    portfolio: Portfolio
    tuning: Tuning
    first: int
    """Day of the first decision."""
    steps: int
    columns: Sequence[int]
    """Of the market, which the portfolio holds, the investable ones first."""
    benchmark: str = EQUAL
    """Name of the portfolio's benchmark."""
    index: Float64Array | None = None
    """(steps + 1,) closes of the user's index."""
    borrow_bps: float = 50.0
    """Fee a year on what a signed account is short, and on the cash that it owes."""

    @property
    def judged(self) -> slice:
        """Days of decisions."""
        return slice(self.first, self.first + self.steps)

    @property
    def days(self) -> NDArray[np.int64]:
        """(steps + 1,) days, the last one included."""
        return np.arange(self.first, self.first + self.steps + 1)

    @property
    def start(self) -> Tensor:
        """(1,) day of the first decision."""
        return torch.tensor([self.first], device=self.portfolio.device)

    @property
    def signed(self) -> Portfolio:
        """Accounts that may be short and owe cash, beside the same benchmark; baselines are never played in them."""
        portfolio = self.portfolio
        fees = {"borrow_bps": self.borrow_bps, "financing_bps": self.borrow_bps}
        return Portfolio(portfolio.quotes, portfolio.rules, portfolio.parts, is_signed=True, **fees)

    def on(self, market: Market) -> EvaluationSetup:
        """Return the same days, rules and benchmark on other prices, without an index."""
        benchmark = Benchmark(np.array(self.columns), self.portfolio.parts)
        portfolio = Portfolio.on(market, self.portfolio.rules, self.portfolio.device, benchmark)
        tuning = Tuning.of(market, portfolio.under())
        return replace(self, market=market, portfolio=portfolio, tuning=tuning, index=None)

    def prices(self, values: Tensor) -> Float64Array:
        """Return (days, n) prices on the judged days and the last one."""
        return np.asarray(values[self.first : self.first + self.steps + 1].cpu().numpy())


@dataclass(frozen=True)
class Played:
    """What P accounts did on the judged days."""

    curves: EquityCurves
    before: Float64Array
    """(D, P, n) weights at each close on which something is decided."""
    held: Float64Array
    """(D, P, n) weights after the fills, at the prices of these closes."""
    trades: Trades | None
    scores: Float64Array | None = None
    """(D, n) by which the only account is held, NaN: none; None where it has no scores."""
    asked: Asked | None = None
    """What was asked of the only account, beside what was done."""
    is_signed: bool = False
    """Whether the account may be short, and owe cash."""

    @classmethod
    def of(cls, setup: EvaluationSetup, portfolio: Portfolio, target: Float64Array | None = None) -> Played:
        """Read the accounts of a portfolio at the end of the judged days.

        Args:
            target: (D, m) weights that the only account was asked to hold, NaN keeps; without them trades are left out.
        """
        account = portfolio.account
        trades = account.trades()
        after = (trades.filled + trades.closed).cpu().cumsum(0).to(trades.filled.device)  # on a card in no fixed order
        shares = torch.cat((torch.zeros_like(after[:1]), after[:-1]))
        close = pd.DataFrame(portfolio.quotes.close[: setup.judged.stop].cpu().numpy()).ffill().fillna(0.0)
        value = torch.tensor(close.to_numpy()[setup.judged]).to(after.device)[:, None]
        value = value / account.equity_curve[:-1, :, None]
        before, held = (np.asarray((part * value).cpu()) for part in (shares, shares + trades.filled))
        if target is None:
            return cls(EquityCurves.of(account, held), before, held, None)
        asked = Asked.of(target, before[:, 0], held[:, 0], account, setup.first)
        return cls(EquityCurves.of(account, held), before, held, trades, asked=asked, is_signed=account.is_signed)

    @property
    def is_neutral(self) -> bool:
        """Tell whether the only account is short of about as much as it holds, so that cash is its benchmark."""
        shorts, net = self.held.clip(max=0.0).sum(axis=2), self.held.sum(axis=2).mean()
        return self.is_signed and bool((shorts < -_NEUTRAL).any()) and abs(float(net)) < _NEUTRAL

    def one(self, place: int) -> Played:
        """Return one of the accounts, without its trades."""
        cells = np.s_[:, place : place + 1]
        return Played(self.curves.one(place), self.before[cells], self.held[cells], None)


def play_policy(setup: EvaluationSetup, policy: Policy, portfolio: Portfolio | None = None) -> Played:
    """Play a policy's account, in another portfolio than the setup's if one is given."""
    portfolio, targets = portfolio or setup.portfolio, list[Tensor]()

    def noted(now: Portfolio) -> Tensor:
        targets.append(policy(now))
        return targets[-1]

    portfolios.play(portfolio, noted, setup.start, steps=setup.steps, keeps_trades=True)
    return Played.of(setup, portfolio, torch.cat(targets).double().cpu().numpy())


def account_of_agent(setup: EvaluationSetup, agent: DDPGAgent, forecasts: Forecasts | None = None) -> Played:
    """Play an agent's account, by its forecasts of the judged days if they are given."""
    forecasts = forecasts or agent.forecasts(setup.market, setup.judged)
    return replace(play_policy(setup, follow(agent, forecasts)), scores=agent_scores(forecasts, setup.judged))


def play_rules(setup: EvaluationSetup, rules: Mapping[str, BandRule]) -> dict[str, Played]:
    """Play rules, side by side."""
    risk, named, played = setup.tuning.risk, [*rules.items()], dict[str, Played]()
    size = max(1, TABLE_BYTES // (64 * setup.steps * setup.portfolio.quotes.stocks))
    for some in (named[first : first + size] for first in range(0, len(named), size)):
        forecasts = Forecasts.joined([rule.forecasts(risk) for _, rule in some])
        numbers = numbers_of([rule for _, rule in some], risk.device)
        how: dict[str, Any] = {
            "starts": setup.start,
            "steps": setup.steps,
            "label": "Playing rules",
            "keeps_trades": True,
        }
        roll_out(setup.portfolio, forecasts, **numbers, **how)
        together = Played.of(setup, setup.portfolio)
        played |= {name: together.one(place) for place, (name, _) in enumerate(some)}
    return played


def play_held(setup: EvaluationSetup) -> dict[str, Played]:
    """Hold the benchmark, equal weight where that is another one, buy and hold, equal risk, and of a universe that
    changes the members that have a bar at the end of the judged days, which nobody knew before.

    Buy and hold is equal weight that is never trimmed; equal risk is in proportion to one over the volatility at the
    first close.
    """
    portfolio, market = setup.portfolio, setup.market
    parts = equal = portfolio.parts
    if setup.benchmark != EQUAL:
        equal = torch.zeros_like(parts)
        equal[: len(market.investable_columns)] = 1.0
    risk = torch.zeros_like(parts, dtype=torch.float64)
    inverse = inverse_volatility(market.close[: setup.first + 1])[-1]
    risk[: len(inverse)] = torch.from_numpy(np.nan_to_num(inverse)).to(risk.device)
    held = {setup.benchmark: parts, EQUAL: equal, HOLD: equal, EQUAL_RISK: risk}
    if market.members is not None:
        last = portfolio.quotes.close[setup.judged.stop - LAST_DAYS : setup.judged.stop + 1]
        held[SURVIVORS] = torch.where(last.isfinite().any(0), equal, 0.0)
    return {name: _hold(setup, parts, is_trimmed=name != HOLD) for name, parts in held.items()}


def _hold(setup: EvaluationSetup, parts: Tensor, *, is_trimmed: bool) -> Played:
    portfolio = Portfolio(setup.portfolio.quotes, setup.portfolio.rules, parts)
    portfolio.rebalanced = None if is_trimmed else (0,)
    portfolios.play(portfolio, lambda now: now.wanted, setup.start, steps=setup.steps, keeps_trades=True)
    return Played.of(setup, portfolio)


def replay(portfolio: Portfolio, setup: EvaluationSetup, held: Float64Array) -> EquityCurves:
    """Hold the same (D, P, n) weights again in another portfolio's account, as at another cost of a leg."""
    account = portfolio.account
    account.reset(setup.start.repeat(held.shape[1]), steps=setup.steps)
    for target in torch.from_numpy(held).to(account.device):
        account.step(target)
    return EquityCurves.of(account, held)


@dataclass(frozen=True)
class Baselines:
    """What is played beside a judged policy, the same for all that are judged on these days."""

    setup: EvaluationSetup
    rules: Mapping[str, BandRule]
    played: Mapping[str, Played]

    @classmethod
    def of(cls, setup: EvaluationSetup, rules: Mapping[str, BandRule]) -> Baselines:
        """Play all baselines."""
        return cls(setup, rules, {**play_held(setup), **play_rules(setup, rules)})

    def beside(
        self,
        name: str,
        judged: Played,
        draws: int,
        generator: torch.Generator,
        others: Mapping[str, Played] | None = None,
    ) -> PlayedPolicies:
        """Return a judged policy with all that is played beside it, under several costs.

        Args:
            draws: number of random pickers.
            others: accounts that are shown, and nothing else.
        """
        setup = self.setup
        played = {name: judged, **(others or {}), **self.played}
        curves = {policy: one.curves for policy, one in played.items()}
        at_cost = self._at_costs(played)
        if setup.portfolio.rules.fill == "next_open":
            curves[NEXT_CLOSE] = replay(self._at_close(judged.is_signed), setup, judged.held)
        if setup.index is not None:
            of_index = self._untraded(setup.index, 1.0)
            curves[INDEX] = of_index
            at_cost = {bps: {**level, INDEX: of_index} for bps, level in at_cost.items()}
        require_memory("random pickers", {"--random-pickers": draws, "days": setup.steps, "bytes": 48})
        if judged.is_neutral:
            curves[CASH] = self._untraded(np.ones(setup.steps + 1), 0.0)
        active = self._active(judged)
        drawn = np.maximum(judged.curves.daily + active.permuted(draws, generator), -100.0)
        first = {name: curves.pop(name), RANDOM: _random_curves(judged.curves, drawn)}
        trades, rules = judged.trades, setup.portfolio.rules
        assert trades is not None
        how = {"fills_at_close": rules.fill == "same_close", "is_flat_at_end": False}
        scores = {} if judged.scores is None else {name: judged.scores}
        scores |= {n: rule.scores[setup.judged].astype(np.float64) for n, rule in self.rules.items()}
        opens = setup.prices(setup.portfolio.quotes.open)[:, : len(setup.market.investable_columns)]
        last = pd.DataFrame(setup.prices(setup.portfolio.quotes.close)).ffill().iloc[-1].tolist()
        return PlayedPolicies(
            curves={**first, **curves},
            benchmark=CASH if judged.is_neutral else setup.benchmark,
            market=setup.benchmark,
            weights=judged.held[:, 0],
            asked=judged.asked,
            active_share={
                other: float(0.5 * np.abs(judged.held - one.held).sum(axis=2).mean())
                for other, one in self.played.items()
            },
            days=setup.days,
            tickers=[setup.market.tickers[column] for column in setup.columns],
            traded=daily_table(trades, 0),
            positions=[
                {**one, "value": one["shares"] * worth, "profit": one["profit"] + one["shares"] * worth}
                for one in as_rows(positions(trades, 0, setup.first, rules.cost_rate, **how))
                for worth in (last[one["stock"]],)
            ],
            selection=active.selection,
            at_cost=at_cost,
            scores=scores,
            ahead={h: returns_ahead(opens, slice(0, setup.steps), h) for h in HORIZONS},
        )

    def _at_costs(self, played: Mapping[str, Played]) -> dict[float, dict[str, EquityCurves]]:
        """Return the accounts under all costs; those that may be short are played apart from the others."""
        at_cost = dict[float, dict[str, EquityCurves]]()
        for bps in progress(COSTS_BPS, "judge", "cost level"):
            at_cost[bps] = {policy: one.curves for policy, one in played.items()}
            for is_signed in {one.is_signed for one in played.values()}:
                alike = [policy for policy, one in played.items() if one.is_signed == is_signed]
                portfolio = self.setup.signed if is_signed else self.setup.portfolio
                together = np.concatenate([played[policy].held for policy in alike], axis=1)
                again = replay(portfolio.under(cost_bps=bps, slippage_bps=0.0), self.setup, together)
                at_cost[bps] |= {policy: again.one(place) for place, policy in enumerate(alike)}
        return at_cost

    def _untraded(self, closes: Float64Array, exposure: float) -> EquityCurves:
        """Return an account that follows (D + 1,) closes without a trade."""
        path, nothing = self.setup.portfolio.rules.initial_capital * closes[None] / closes[0], np.zeros(1)
        invested = np.full((1, self.setup.steps), exposure)
        return EquityCurves.untraded(np.asarray(path, np.float64), invested, traded=nothing, costs=nothing)

    def _active(self, judged: Played) -> Active:
        """Return the weights of an account less the benchmark's, in investable stocks."""
        setup, benchmark = self.setup, self.played[self.setup.benchmark]
        some, quotes = slice(len(setup.market.investable_columns)), setup.portfolio.quotes
        less = 0.0 if judged.is_neutral else 1.0
        before, held = (
            getattr(judged, n)[:, 0, some] - less * getattr(benchmark, n)[:, 0, some] for n in ("before", "held")
        )
        prices = setup.prices(quotes.open)[:, some], setup.prices(quotes.close)[:, some]
        member = None if quotes.is_member is None else quotes.is_member[setup.judged, some].cpu().numpy()
        return Active.of(before, held, *prices, at_close=setup.portfolio.rules.fill == "same_close", member=member)

    def _at_close(self, is_signed: bool) -> Portfolio:
        """Return a portfolio in which orders are filled at the next close."""
        portfolio = (self.setup.signed if is_signed else self.setup.portfolio).under()
        quotes = replace(portfolio.quotes, open=portfolio.quotes.close)
        portfolio.quotes = portfolio.account.quotes = portfolio.benchmark.quotes = quotes
        return portfolio


def _random_curves(judged: EquityCurves, daily: Float64Array) -> EquityCurves:
    """Return the curves of (draws, D) daily returns, percent, of accounts that trade as much as the judged one."""
    draws = len(daily)
    growth = np.concatenate((np.ones((draws, 1)), 1 + daily / 100), axis=1)
    same = {name: np.repeat(getattr(judged, name), draws) for name in ("traded", "costs", "largest", "sessions")}
    exposure = np.repeat(judged.exposure, draws, axis=0)
    equity = np.asarray(judged.capital * np.cumprod(growth, axis=1), np.float64)
    return EquityCurves.untraded(equity, exposure, **same)
