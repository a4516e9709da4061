"""Rollouts: whole populations over many windows at once, with each day of the market encoded once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from tqdm import tqdm

from data.market import MarketTensors
from environment.ledger import EpisodeSummary, Positions
from environment.portfolio import Portfolio
from models.networks import AgentNetworks, DayEncoding
from utils.config.trader import Credit
from utils.spaces import (
    ACTION_FEATURES,
    MAX_COEFFICIENT,
    MAX_TARGET_PERCENT,
    MIN_COEFFICIENT,
    MIN_TARGET_PERCENT,
)

_DAYS_PER_PASS = 160
_AGENTS_PER_PASS = 4
_LOW = (0.0, MIN_TARGET_PERCENT)
_HIGH = (MAX_COEFFICIENT, MAX_TARGET_PERCENT)
Policy = Callable[[Portfolio, int], Tensor]
"""From the environment and the step to (lanes, stocks, 2) actions."""


@dataclass(frozen=True)
class EncodedDays:
    """Encodings of the days that some windows visit."""

    days: DayEncoding
    place: Tensor
    """(market days,) int64: where along T a day's encoding is; -1 where it was not encoded."""


@dataclass(frozen=True)
class Exploration:
    """Noise on actions, for learning only."""

    noise: float
    """Standard deviation as a share of each action's range."""
    random_order_probability: float
    lanes: int
    """Noisy lanes of each agent on each window, beside the one without noise."""
    generator: torch.Generator
    """Draws the noise, on the environment's device."""


@dataclass(frozen=True)
class Rollout:
    """Finished episodes of A agents on W windows, E lanes each; lane 0 of E is free of noise."""

    summary: EpisodeSummary
    """(A * W * E,) each."""
    equity: Tensor
    """(steps + 1, A, W, E) float64, currency units."""
    fitness: Tensor
    """(A,) mean over windows of the noise-free episodes; NaN for an agent whose actions were not finite."""
    profit_percent: Tensor
    """(A,) likewise, the money without penalties."""

    def most_profitable(self) -> tuple[float, int]:
        """Return the largest profit and its agent; minus infinity where no agent's profit is finite."""
        score, best = torch.where(self.profit_percent.isfinite(), self.profit_percent, -torch.inf).max(0)
        return float(score), int(best)

    def noise_free(self, totals: Tensor) -> Tensor:
        """Take the (A, W) values of the noise-free lanes of an (A * W * E,) total."""
        return totals.view(self.equity.shape[1:])[..., 0]


def merge_spans(starts: list[int], days: int) -> list[tuple[int, int]]:
    """Cover windows of `days` days from each start by disjoint spans [first, last], none longer than one pass."""
    unions: list[list[int]] = []
    for start in sorted(set(starts)):
        if unions and start <= unions[-1][1] + 1:
            unions[-1][1] = max(unions[-1][1], start + days - 1)
        else:
            unions.append([start, start + days - 1])
    # Each part pays for a context of its own.
    parts = [even_parts(first, last + 1, _DAYS_PER_PASS) for first, last in unions]
    return [(part.start, part.stop - 1) for cut in parts for part in cut]


def even_parts(start: int, stop: int, longest: int) -> list[slice]:
    """Cut start..stop into as few parts as `longest` allows, all of about the same length."""
    count = math.ceil((stop - start) / longest)
    edges = [start + (stop - start) * part // count for part in range(count + 1)]
    return [slice(first, last) for first, last in pairwise(edges)]


@torch.no_grad()
def encode_windows(networks: AgentNetworks, market: MarketTensors, starts: list[int], days: int) -> EncodedDays:
    """Encode every day of the windows once, for all agents."""
    encoders, context = len(networks.encoder.queries), networks.context_days
    place = torch.full((market.days,), -1, dtype=torch.int64, device=market.inputs.device)
    spans, total = [], 0
    for first, last in merge_spans(starts, days):
        inputs, length = market.inputs[:, first - context + 1 : last + 1], last - first + 1
        place[first : last + 1] = torch.arange(total, total + length, device=place.device)
        total += length
        passes = [slice(agent, agent + _AGENTS_PER_PASS) for agent in range(0, encoders, _AGENTS_PER_PASS)]
        spans.append(DayEncoding.cat([networks.encode_distinct(inputs, market.investable, p) for p in passes], 0))
    return EncodedDays(DayEncoding.cat(spans, 1), place)


@torch.no_grad()
def roll_out(
    env: Portfolio,
    networks: AgentNetworks,
    market: MarketTensors,
    starts: Tensor,
    *,
    exploration: Exploration | None = None,
    recorder: Recorder | None = None,
    safe_point: Callable[[], None] | None = None,
    label: str = "evaluate",
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        starts: (W,) first days of the windows; their length is the environment's.
        exploration: adds noisy lanes.
        recorder: records every state, to make transitions of them.
        safe_point: is called before every day, and may raise to stop.
    """
    agents, windows = networks.population, len(starts)
    lanes = 1 + (exploration.lanes if exploration else 0)
    steps = env.rules.episode_steps
    encoded = encode_windows(networks, market, starts.tolist(), steps + 1)
    env.reset(starts.repeat_interleave(lanes).repeat(agents).to(market.inputs.device))
    shape = (agents, windows, lanes)
    is_finite = torch.ones(agents, dtype=torch.bool, device=market.inputs.device)
    for step in tqdm(range(steps), desc=label, unit="day", leave=False, disable=None, delay=1.0):
        if safe_point is not None:
            safe_point()
        positions, account = env.positions(), env.account()
        if recorder is not None:
            recorder.record(positions, account)
        action = _act(networks, encoded, starts + step, positions, account, shape)
        # Actions that are not finite order nothing; without this an agent gone bad would pass for an idle one.
        is_finite &= action.view(agents, -1).isfinite().all(1)
        if exploration is not None:
            action = explore(action, shape, exploration)
        env.step(action)
    if recorder is not None:
        recorder.record(env.positions(), env.account())
    summary = env.summary()
    equity = env.equity_curve[: steps + 1].view(steps + 1, *shape).clone()
    fitness, profit = (
        torch.where(is_finite, total.view(shape)[..., 0].mean(1), torch.nan)
        for total in (summary.fitness, summary.profit_percent)
    )
    return Rollout(summary, equity, fitness, profit)


def _act(
    networks: AgentNetworks,
    encoded: EncodedDays,
    days: Tensor,
    positions: Positions,
    account: Tensor,
    shape: tuple[int, int, int],
) -> Tensor:
    """Act without noise in all lanes, (A * W * E, n, 2), on the (W,) days."""
    agents, windows, lanes = shape
    place = encoded.place[days.to(encoded.place.device)]
    day_stocks, day_summary = encoded.days.stocks[:, place], encoded.days.summary[:, place]
    action: Tensor = networks.actor(
        _repeat(day_stocks, agents, lanes),
        _repeat(day_summary, agents, lanes),
        positions.features.reshape(agents, windows * lanes, *positions.features.shape[1:]),
        account.view(agents, windows * lanes, -1),
    )
    return action.flatten(0, 1)


def _repeat(encoding: Tensor, agents: int, lanes: int) -> Tensor:
    """Repeat (A or 1, W, ...) to (A, W * lanes, ...)."""
    return encoding.expand(agents, *encoding.shape[1:]).repeat_interleave(lanes, dim=1)


def explore(action: Tensor, shape: tuple[int, int, int], exploration: Exploration) -> Tensor:
    """Add Gaussian noise in the noisy lanes, and now and then give a random order instead of the actor's.

    Noise beyond a bound is reflected, not clipped: clipping would put many stocks on the bound, where ties are decided
    by their index.
    """
    generator = exploration.generator
    noisy = action.view(*shape, *action.shape[1:])[:, :, 1:]
    low, high = action.new_tensor(_LOW), action.new_tensor(_HIGH)
    noise = torch.randn(noisy.shape, generator=generator, device=action.device)
    moved = noisy + noise * exploration.noise * (high - low)
    moved = high - (high - moved).abs()
    moved = torch.minimum(low + (moved - low).abs(), high)
    is_random = torch.rand(noisy.shape[:3], generator=generator, device=action.device)
    is_random = is_random < exploration.random_order_probability
    drawn = random_orders(noisy.shape[:3].numel(), action.shape[1], generator, action.device).view(noisy.shape)
    noisy.copy_(torch.where(is_random[..., None, None], drawn, moved))
    return action


def random_orders(lanes: int, stocks: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Draw actions that order one uniformly drawn stock at a uniform size and target: (lanes, stocks, 2)."""
    draw = torch.rand(lanes, 3, generator=generator, device=device)
    action = torch.zeros(lanes, stocks, ACTION_FEATURES, device=device)
    stock = (draw[:, 0] * stocks).long().clamp(max=stocks - 1)
    action[torch.arange(lanes, device=device), stock, 0] = MIN_COEFFICIENT + draw[:, 1] * (
        MAX_COEFFICIENT - MIN_COEFFICIENT
    )
    action[..., 1] = (MIN_TARGET_PERCENT + draw[:, 2] * (MAX_TARGET_PERCENT - MIN_TARGET_PERCENT))[:, None]
    return action


class Recorder:
    """Keeps the states of one rollout until its trades' results are known, then makes transitions of them."""

    def __init__(self) -> None:
        self._states: list[tuple[Positions, Tensor]] = []

    def record(self, positions: Positions, account: Tensor) -> None:
        """Keep the state of all lanes at a close."""
        self._states.append((positions, account))

    def transitions(self, env: Portfolio, credit: Credit) -> dict[str, Tensor]:
        """Make transitions of the finished episodes, (steps * lanes, ...) by the replay buffer's names."""
        steps, lanes, orders = env.step_index, env.lanes, env.orders_per_day
        state = {
            "slot_stock": torch.stack([p.stock.to(torch.int16) for p, _ in self._states]),
            "slot_features": torch.stack([p.features for p, _ in self._states]),
            "account": torch.stack([a for _, a in self._states]),
        }
        self._states.clear()
        book = env.ledger()
        bought = torch.where(book.value > 0, book.stock, env.bars.stocks).to(torch.int16)
        largest = env.rules.initial_capital * env.rules.largest_order
        rewards = env.entry_credited_rewards() if credit == "entry" else env.rewards[:steps]
        first = env.day - steps
        step = torch.arange(steps, device=first.device)[:, None]
        rows = {
            "day": (first + step).to(torch.int32),
            "order_stock": _by_step(bought, steps, orders),
            "order_size": _by_step(book.value / largest, steps, orders).float(),
            "order_target": _by_step(book.target_percent, steps, orders).float(),
            "reward": rewards.float(),
            "terminated": (step == steps - 1).expand(steps, lanes),
            **{name: value[:-1] for name, value in state.items()},
            **{f"next_{name}": value[1:] for name, value in state.items()},
        }
        return {name: value.flatten(0, 1) for name, value in rows.items()}


def _by_step(rows: Tensor, steps: int, orders: int) -> Tensor:
    """Reshape (steps * orders, lanes) to (steps, lanes, orders)."""
    return rows.view(steps, orders, -1).transpose(1, 2)


@torch.no_grad()
def play(env: Portfolio, policy: Policy, starts: Tensor) -> tuple[EpisodeSummary, Tensor]:
    """Play any policy, one lane a start; return the summary and the (steps + 1, lanes) equity in currency units."""
    env.reset(starts)
    steps = env.rules.episode_steps
    for step in range(steps):
        env.step(policy(env, step))
    return env.summary(), env.equity_curve[: steps + 1].clone()
