"""Accounts of a champion and of what it must beat, over windows that follow one another, under the same rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch import Tensor

from data.features import OPEN
from data.market import Market, MarketTensors
from data.synthetic.built_in import PlantedScores
from environment.orders import Orders
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from models.ddpg_agent import DDPGAgent
from training.evaluation.baselines import ScoreRule, equal_weight_equity, score_policy, tune_rule
from training.rollout import roll_out
from utils import metrics

Array = npt.NDArray[np.float64]
CHAMPION, RANDOM, EQUAL, HOLD = "champion", "random picker", "equal weight", "buy and hold"
RULE, ORACLE = "planted rule", "oracle"
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
COSTS_BPS = (0.0, 5.0, 10.0, 25.0, 50.0)
"""A leg, commission and slippage together."""
_PICKERS_AT_COST = 100


@dataclass(frozen=True)
class Track:
    """Accounts of P policies over W windows of D days; each window begins with the initial capital.

    All but `equity` are (P, W); money is in currency units, NaN where a policy has no trades of its own.
    """

    equity: Array
    """(P, W, D + 1)"""
    exposure: Array
    """Mean share of equity that is invested at the closes."""
    trades: Array
    wins: Array
    sessions: Array
    """Sessions held, summed over trades."""
    traded: Array
    """Value bought and sold."""
    costs: Array

    @property
    def capital(self) -> float:
        """Return the initial capital."""
        return float(self.equity[0, 0, 0])

    @property
    def daily_profit(self) -> Array:
        """Return (P, W * D) percent of the initial capital; sums, since each window begins anew."""
        profit = 100 / self.capital * np.diff(self.equity, axis=2)
        return profit.reshape(len(profit), -1)

    @property
    def mean_return_percent(self) -> float:
        """Return the mean over policies of the stitched accounts' returns."""
        return float(metrics.total_return_percent(self.stitched).mean())

    @property
    def stitched(self) -> Array:
        """Return the (P, W * D + 1) equity of one account that takes the windows one after the other and reinvests."""
        growth = self.equity / self.equity[:, :, :1]
        before = np.cumprod(np.concatenate((np.ones((len(growth), 1)), growth[:, :-1, -1]), axis=1), axis=1)
        days = (before[..., None] * growth[..., 1:]).reshape(len(growth), -1)
        return self.capital * np.concatenate((np.ones((len(growth), 1)), days), axis=1)


@dataclass(frozen=True)
class Ground:
    """A market, its windows and the trading rules under which policies are compared."""

    market: Market
    tensors: MarketTensors
    env: Portfolio
    starts: Tensor
    """(W,) first days of windows of the rules' length, on the environment's device."""

    def at_cost(self, cost_bps: float) -> Ground:
        """Return the same ground with these costs a leg, in place of commission and slippage."""
        rules = replace(self.env.rules, cost_bps=cost_bps, slippage_bps=0.0)
        return replace(self, env=Portfolio(self.env.bars, rules))


def play_agent(ground: Ground, agent: DDPGAgent) -> tuple[Track, list[dict[str, Any]], Orders]:
    """Play an agent without noise.

    Returns:
        Its account, every trade (see `trade_ledger`) with its `window`, and its purchases: (steps, orders a day,
        windows) each, the size 0 where nothing was bought.
    """
    env, invested = ground.env, list[Tensor]()
    roll_out(
        env,
        agent.networks,
        ground.tensors,
        ground.starts,
        safe_point=lambda: invested.append(_invested_share(env)),
        label="assess",
    )
    trades = [{"window": window, **trade} for window in range(env.lanes) for trade in trade_ledger(env, window)]
    book, shape = env.ledger(), (env.step_index, env.orders_per_day, -1)
    bought = (book.stock, book.value / env.rules.stake, book.target_percent)
    return _account(env, invested, 1), trades, Orders(*(part.reshape(shape).clone() for part in bought))


def play_rule(ground: Ground, rule: ScoreRule) -> Track:
    """Play a rule under the agents' limits and costs."""
    policy = score_policy(rule, ground.starts.device)
    return _play_days(ground, 1, lambda step: ground.env.step(policy(ground.env, step)))


def play_pickers(ground: Ground, plan: Orders, pickers: int, generator: torch.Generator) -> Track:
    """Play random pickers that buy when and as much as a plan says, but stocks drawn by lot among their candidates.

    An order is cut to the picker's own cash, and left out where nothing is left to buy or no cash.
    """

    def draw(orders: Orders) -> Orders:
        candidates = ground.env.candidates()
        # Above 0, so that every candidate may be drawn.
        score = (1.0 - torch.rand(candidates.shape, generator=generator, device=candidates.device)) * candidates
        best, stock = score.topk(len(orders.stock), dim=1)
        return replace(orders, stock=stock.T, coefficient=orders.coefficient * (best.T > 0))

    return _play_plan(ground, plan, pickers, draw)


def replay(ground: Ground, plan: Orders) -> Track:
    """Give the same orders again, under the rules of this ground."""
    return _play_plan(ground, plan, 1, lambda orders: orders)


def _play_plan(ground: Ground, plan: Orders, copies: int, choose: Callable[[Orders], Orders]) -> Track:
    def order(step: int) -> None:
        parts = (part[step].repeat(1, copies) for part in (plan.stock, plan.coefficient, plan.target_percent))
        is_ordering = bool((plan.coefficient[step] > 0).any())
        ground.env.step_orders(choose(Orders(*parts)) if is_ordering else None)

    return _play_days(ground, copies, order)


def _play_days(ground: Ground, policies: int, act: Callable[[int], object]) -> Track:
    """Play all windows for so many policies; `act` orders on each day and ends it."""
    env, invested = ground.env, []
    env.reset(ground.starts.repeat(policies))
    for step in range(env.rules.episode_steps):
        invested.append(_invested_share(env))
        act(step)
    return _account(env, invested, policies)


def play_equal_weight(ground: Ground) -> Track:
    """Hold every stock equally: bought at each window's first open, sold at its last close."""
    steps, starts = ground.env.rules.episode_steps, ground.starts.tolist()
    return _held(ground, np.stack([_hold(ground, start, steps) for start in starts]), np.ones((2, len(starts))))


def play_buy_and_hold(ground: Ground) -> Track:
    """Buy every stock equally at the first open of all windows, sell at the last close of all."""
    rules, windows = ground.env.rules, len(ground.starts)
    steps = windows * rules.episode_steps
    whole = _hold(ground, int(ground.starts[0]), steps)
    parts = np.stack([whole[first : first + rules.episode_steps + 1] for first in range(0, steps, rules.episode_steps)])
    legs = np.zeros((2, windows))
    legs[0, 0] = legs[1, -1] = 1
    return _held(ground, rules.initial_capital * parts / parts[:, :1], legs)


def _hold(ground: Ground, start: int, steps: int) -> Array:
    market = ground.market
    open_ = market.data_array[:, market.investable_columns, OPEN]
    return equal_weight_equity(market.close, open_, start, steps, ground.env.rules)


def _held(ground: Ground, equity: Array, legs: Array) -> Track:
    """Return the track of one invested account from (W, D + 1) equity; (2, W) `legs` are 1 at purchase and sale."""
    rate = ground.env.rules.cost_rate
    traded = (legs[0] * equity[:, 0] / (1 + rate) + legs[1] * equity[:, -1] / (1 - rate))[None]
    none = np.full_like(traded, np.nan)
    return Track(equity[None], np.ones_like(traded), none, none, none, traded, rate * traded)


def simple_rules(market: Market) -> dict[str, ScoreRule]:
    """Buy what rose most in 60 days; buy what fell most in 5 (Jegadeesh & Titman 1993; Jegadeesh 1990)."""
    close = pd.DataFrame(np.log(market.close.astype(np.float64)))
    return {MOMENTUM: ScoreRule(close.diff(60).to_numpy()), REVERSAL: ScoreRule(-close.diff(5).to_numpy())}


def tune_planted(env: Portfolio, scores: PlantedScores, starts: Tensor) -> dict[str, ScoreRule]:
    """Give the rule and the oracle, by name, as `tune_rule` leaves them on (training) windows.

    They know what is planted: their scores are the expected returns of a trade, and what would earn less than a round
    trip costs is not ordered.
    """
    round_trip = 2 * env.rules.cost_rate
    return {
        name: tune_rule(env, known, round_trip, starts)
        for name, known in ((RULE, scores.rule), (ORACLE, scores.oracle))
    }


@dataclass(frozen=True)
class Played:
    """The accounts of all policies that are compared, by policy."""

    tracks: Mapping[str, Track]
    """The champion first; the random pickers are the one track of many policies."""
    trades: Mapping[str, list[dict[str, Any]]]
    """Trades of the agents."""
    days: npt.NDArray[np.int64]
    """(W, D + 1) day indices of the windows."""
    at_cost: Mapping[float, Mapping[str, Track]]
    """Tracks under other costs, by basis points a leg: the same orders, and the baselines."""


def play_all(
    ground: Ground,
    agents: Mapping[str, DDPGAgent],
    score_rules: Mapping[str, ScoreRule],
    *,
    pickers: int,
    generator: torch.Generator,
) -> Played:
    """Play the agents, the champion first, and all baselines; and again under other costs, without the elites."""
    played = {name: play_agent(ground, agent) for name, agent in agents.items()}
    champion, (_, _, plan) = next(iter(played.items()))
    tracks = {name: track for name, (track, _, _) in played.items()}
    tracks |= _play_baselines(ground, plan, score_rules, pickers, generator)
    at_cost = {}
    for bps in COSTS_BPS:
        other = ground.at_cost(bps)
        baselines = _play_baselines(other, plan, score_rules, min(pickers, _PICKERS_AT_COST), generator)
        at_cost[bps] = {champion: replay(other, plan), **baselines}
    days = ground.starts.cpu().numpy()[:, None] + np.arange(ground.env.rules.episode_steps + 1)
    return Played(tracks, {name: trades for name, (_, trades, _) in played.items()}, days, at_cost)


def _play_baselines(
    ground: Ground, plan: Orders, score_rules: Mapping[str, ScoreRule], pickers: int, generator: torch.Generator
) -> dict[str, Track]:
    return {
        RANDOM: play_pickers(ground, plan, pickers, generator),
        EQUAL: play_equal_weight(ground),
        HOLD: play_buy_and_hold(ground),
        **{name: play_rule(ground, rule) for name, rule in score_rules.items()},
    }


def join(parts: Sequence[Played]) -> Played:
    """Join what the same policies played on windows that follow one another, perhaps by another champion each."""
    tracks = {name: _joined([part.tracks[name] for part in parts]) for name in parts[0].tracks}
    at_cost = {
        bps: {name: _joined([part.at_cost[bps][name] for part in parts]) for name in levels}
        for bps, levels in parts[0].at_cost.items()
    }
    trades: dict[str, list[dict[str, Any]]] = {name: [] for name in parts[0].trades}
    windows = 0
    for part in parts:
        for name, made in trades.items():
            made += [{**trade, "window": windows + trade["window"]} for trade in part.trades[name]]
        windows += len(part.days)
    return Played(tracks, trades, np.concatenate([part.days for part in parts]), at_cost)


def _joined(tracks: Sequence[Track]) -> Track:
    return Track(
        **{f.name: np.concatenate([getattr(track, f.name) for track in tracks], axis=1) for f in fields(Track)}
    )


def _invested_share(env: Portfolio) -> Tensor:
    """Return the (lanes,) shares of equity that were invested at the last close."""
    equity = env.equity
    return (equity - env.cash) / equity.clamp(min=1e-9)


def _account(env: Portfolio, invested: list[Tensor], policies: int) -> Track:
    """Return the finished episodes of (policies * windows) lanes, policy by policy; shares invested are one a day."""
    summary, book = env.summary(), env.ledger()
    closed = book.exit_step > 0
    decided = torch.arange(len(book.value), device=book.value.device) // env.orders_per_day
    # The entry session counts as the first one held; filled at the close, that is the session of the decision.
    sessions = book.exit_step - decided[:, None] + (env.rules.fill == "same_close")
    traded = book.value + book.shares * book.last_price * closed

    def by_policy(total: Tensor) -> Array:
        return np.asarray(total.double().view(policies, -1).cpu().numpy())

    # Cloned, since the next episode writes into the same curve.
    curve = env.equity_curve[: env.steps + 1].T.clone()
    return Track(
        equity=curve.view(policies, -1, env.steps + 1).cpu().numpy(),
        exposure=by_policy(reduce(torch.add, invested) / env.steps),
        trades=by_policy(summary.trades),
        wins=by_policy(summary.wins),
        sessions=by_policy((sessions * closed).sum(0)),
        traded=by_policy(traded.sum(0)),
        costs=by_policy(summary.costs),
    )
