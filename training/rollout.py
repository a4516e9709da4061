"""Rollouts: many agents over many windows at once, as lanes of one account.

A population is evaluated on windows of training days, out of fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from environment.ledger import EXIT_REASONS, EpisodeSummary
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from environment.trading_rules import Orders
from models.ddpg_agent import DDPGAgent
from models.evolution import ranked
from models.policy import Decision, Forecasts, decide, invested_share
from models.population import Population
from training.cuda_graph import CudaGraph
from training.forecasts.training_days import TrainingDays
from utils.progress import progress
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Parts of the episode summaries that are summed per generation."""
Policy = Callable[[Portfolio, int], Orders]
"""From the environment and the step to orders."""
_TABLE_BYTES = 2**29
"""Memory that the forecasts of the agents that are played at a time may take."""


@dataclass(frozen=True)
class Rollout:
    """Finished episodes of A agents on W windows."""

    summary: EpisodeSummary
    """(A * W,) each."""
    equity: Tensor
    """(steps + 1, A, W) float64, currency units."""
    fitness: Tensor
    """(A,) mean over windows."""
    profit_percent: Tensor
    """(A,) mean profit, without penalties."""
    transitions: dict[str, Tensor]
    """(steps, A, W, ...) each, see `models.replay_buffer.AccountTransitions`; empty unless recorded."""
    by_window: Tensor
    """(A, W) profit in percent, without the exploration windows."""


class PlayInputs(NamedTuple):
    """What differs from one rollout of L lanes to the next."""

    score: Tensor
    penalty: Tensor | None
    """Of `Forecasts`."""
    agent: Tensor
    """(L,) that plays the lane."""
    hurdle: Tensor
    target: Tensor
    """(L,) of the agent."""
    noise: Tensor | None
    """(agents, windows, trading days) of exploration."""


class Recorded(NamedTuple):
    """What is recorded at each close."""

    day: Tensor
    """(steps, L) int32."""
    cash: Tensor
    """(steps, L) float32, in multiples of the capital."""


@torch.no_grad()
def roll_out(
    env: TradingEnvironment,
    forecasts: Forecasts,
    hurdles: Tensor,
    targets: Tensor,
    starts: Tensor,
    *,
    noise: Tensor | None = None,
    records: bool = False,
    safe_point: Callable[[], None] = lambda: None,
    label: str = "Evaluating agents",
    graph: CudaGraph[PlayInputs, Recorded | None] | None = None,
    lengths: tuple[int, int] | None = None,
    risk_aversion: float = 0.0,
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        hurdles, targets: (A,) prices of capital where all is invested, and sale targets, in percent.
        starts: (W,) first days of the windows, best on the CPU.
        noise: (A, E, trading days) exploration noise, percent added to scores, on the last E windows, which do not
            count towards fitness.
        records: record transitions for a replay buffer.
        safe_point: is called before every day, and may raise to stop; a launched CUDA graph plays all days at once.
        graph: of the rollouts of this environment, if they all have the same shapes.
        lengths: days of a window, and its first days on which orders are accepted; default: as the rules say.
        risk_aversion: fitness is less half of this times the squared results of trades, percent of the initial capital.
    """
    account, rules = env.account, env.rules
    steps, trading_days = lengths or (rules.episode_steps, rules.trading_days)
    agents, windows, device = len(hurdles), len(starts), account.device
    agent = torch.arange(agents, device=device).repeat_interleave(windows)
    judged = windows if noise is None else windows - noise.shape[1]
    explored: Tensor | None = None
    if noise is not None:
        explored = torch.zeros(agents, windows, trading_days, device=device)
        explored[:, judged:] = noise
    inputs = PlayInputs(forecasts.score, forecasts.penalty, agent, hurdles[agent], targets[agent], explored)
    days = partial(_play_days, env, records, label, safe_point)
    first = starts.repeat(agents)
    ends = first + steps, first + trading_days
    env.reset(start_idx=first, end_idx=ends[0], trading_end_idx=ends[1], observe=False)
    # An account that was allocated anew since the last rollout has another tensor of days.
    recorded = (graph or CudaGraph[PlayInputs, Recorded | None]("rollouts")).run(days, inputs, account.day)
    account.step_index = account.steps  # which a launch leaves as it was
    summary, fitness = account.summary(), account.summary().fitness
    if risk_aversion > 0:
        fitness = fitness - 0.5 * risk_aversion * account.entry_credited_rewards().square().sum(0)
    equity = account.equity_curve[: account.steps + 1].unflatten(1, (agents, windows)).clone()
    by_window = summary.profit_percent.view(agents, windows)[:, :judged]
    fitness = fitness.view(agents, windows)[:, :judged].mean(1)
    transitions = {} if recorded is None else _transitions(recorded, account, agents)
    return Rollout(summary, equity, fitness, by_window.mean(1), transitions, by_window)


def _play_days(
    env: TradingEnvironment,
    records: bool,
    label: str,
    safe_point: Callable[[], None],
    inputs: PlayInputs,
) -> Recorded | None:
    """Play the days of freshly reset accounts; return what is recorded."""
    account, rules = env.account, env.rules
    account.step_index = 0  # also after a capture that failed
    forecasts, seen = Forecasts(inputs.score, inputs.penalty), list[Recorded]()
    for step in progress(range(account.steps), label, "day"):
        safe_point()
        if not account.is_trading and rules.exits == "target" and not records:
            env.step(None)
            continue
        left = torch.full_like(account.cash, account.trading_steps - step)
        cash = (account.cash / account.capital).float()
        noise: Tensor | float = 0.0
        if inputs.noise is not None and account.is_trading:
            noise = inputs.noise[..., step].reshape(-1, 1)
        today, price = forecasts.at(inputs.agent, account.day), inputs.hurdle * invested_share(cash, left)
        decision = decide(today, price, cash, account.candidates(), inputs.target, rules, noise)
        if records:
            seen.append(Recorded(account.day.int(), cash))
        env.step(orders_of(decision, account))
    return Recorded(*map(torch.stack, zip(*seen, strict=True))) if seen else None


def orders_of(decision: Decision, account: Portfolio) -> Orders:
    """Return the orders that an environment would take from the action of a decision."""
    target = decision.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
    orders = Orders(decision.stock.T, decision.coefficient.T.double(), target.T.double())
    if account.rules.exits == "target":
        return orders
    held = account.open_stocks()
    moved = decision.moved_target[held].clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
    return replace(orders, sold=~decision.keep[held], moved_target=moved.double())


def _transitions(recorded: Recorded, account: Portfolio, agents: int) -> dict[str, Tensor]:
    """Join consecutive closes: see `models.replay_buffer.AccountTransitions`."""
    steps, lanes = account.steps, account.lanes
    cash = torch.cat((recorded.cash, (account.cash / account.rules.initial_capital).float()[None]))
    left = (account.trading_steps - torch.arange(steps + 1, device=cash.device)).float()[:, None].expand(-1, lanes)
    columns = {
        "day": recorded.day,
        "cash": cash[:-1],
        "left": left[:-1],
        "reward": account.rewards.float(),
        "next_cash": cash[1:],
        "next_left": left[1:],
    }
    return {name: value.unflatten(1, (agents, -1)) for name, value in columns.items()}


def purchases(env: Portfolio) -> Orders:
    """Return what the finished episodes bought, (steps, orders per day, lanes) each; size 0 where nothing."""
    book, shape = env.ledger(), (env.step_index, env.orders_per_day, -1)
    stake: Tensor | float = env.rules.stake
    if env.is_continuing:
        capital = env.equity_curve[: env.step_index].repeat_interleave(env.orders_per_day, dim=0)
        stake = capital * env.rules.stake_percent / 100
    bought = (book.stock, book.value / stake, book.target_percent)
    plan = Orders(*(part.reshape(shape).clone() for part in bought))
    # A sale at the next open ends a step later than the one that decided on it.
    decided = (book.exit_step - int(env.rules.fill == "next_open")).reshape(shape)
    reason = book.reason.reshape(shape)
    to_bound = torch.tensor([EXIT_REASONS.index(name) for name in ("", "holding", "episode_end")], device=reason.device)
    ordered = torch.arange(len(decided), device=decided.device)[:, None, None]
    # What is bought at an open can be sold at the next one.
    until = torch.where(torch.isin(reason, to_bound), -1, torch.maximum(decided, ordered + 1))
    if env.rules.exits == "target":
        return replace(plan, until=until)
    is_sold = reason == EXIT_REASONS.index("sold")
    return replace(plan, until=until, sale_step=torch.where(is_sold, decided, -1))


def step_by(env: Portfolio, policy: Policy, step: int) -> None:
    """Live through a day by a policy, which is asked only while it can do something."""
    env.step_orders(policy(env, step) if env.is_trading or env.rules.exits == "daily" else None)


@torch.no_grad()
def play(env: Portfolio, policy: Policy, starts: Tensor) -> tuple[EpisodeSummary, Tensor]:
    """Play any policy, one lane per start; return the summary and the (steps + 1, lanes) equity in currency units."""
    env.reset(starts)
    steps = env.rules.episode_steps
    for step in range(steps):
        step_by(env, policy, step)
    return env.summary(), env.equity_curve[: steps + 1].clone()


class Windows(NamedTuple):
    """The windows of an evaluation, the same for all P agents; on the last E of them agents explore."""

    starts: Tensor
    """(W,) first days."""
    noise: Tensor
    """(P, E, trading days) exploration noise, in deviations of a session's results."""


@dataclass(frozen=True)
class PopulationResults:
    """Results of A agents on W windows, on the CPU."""

    fitness: Tensor
    """(A,)"""
    profit_percent: Tensor
    by_window: Tensor
    """(A, W) profit on the windows that count towards fitness."""
    trading: dict[str, float]
    """Sums over all agents and windows of counts, penalties and costs."""


def kept_windows(days: int, windows: int, most: int) -> tuple[Tensor, Tensor]:
    """Thin the transitions of one agent to a number, evenly over days and windows.

    Returns:
        (D, 1) days and the (D, K) windows that are kept on each; every day continues with the windows after those of
        the day before.
    """
    per_day = min(windows, max(1, most // days))
    day = torch.arange(0, days, -(-days * per_day // max(1, most)))[:, None]
    window = (torch.arange(len(day))[:, None] * per_day + torch.arange(per_day)) % windows
    return day, window.sort(dim=1).values


class PopulationRollouts:
    """Plays a population on the training days of a market."""

    def __init__(
        self,
        days: TrainingDays,
        env: TradingEnvironment,
        safe_point: Callable[[], None] = lambda: None,
        risk_aversion: float = 0.0,
    ) -> None:
        """Play in this environment; `safe_point` is called before every day, and may raise to stop."""
        self.training_days, self.env, self.safe_point, self.risk_aversion = days, env, safe_point, risk_aversion
        self.graph = CudaGraph[PlayInputs, Recorded | None]("rollouts")

    def evaluate(
        self, population: Population, windows: Windows, most_transitions: int
    ) -> tuple[PopulationResults, dict[str, Tensor]]:
        """Play all agents; return their results and the (N, ...) transitions of the fittest, for the replay buffer.

        Transitions are in the order of days, elites (the fittest first) and windows.

        Args:
            most_transitions: upper limit for all elites together.
        """
        steps = torch.arange(self.env.rules.episode_steps)
        asked = torch.zeros(len(self.training_days.tradable), dtype=torch.bool)
        asked[windows.starts[:, None].cpu() + steps] = True
        rollouts = [self._roll_out(population, windows, agents, asked) for agents in self.groups(len(population))]
        fitness, profit, by_window = (
            torch.cat([getattr(part, name) for part in rollouts]).cpu()
            for name in ("fitness", "profit_percent", "by_window")
        )
        counts = {name: sum(int(getattr(part.summary, name).sum()) for part in rollouts) for name in COUNTS}
        paid = {
            name: sum(float(getattr(part.summary, name).cpu().sum()) for part in rollouts)
            for name in ("penalties", "costs")
        }
        results = PopulationResults(fitness, profit, by_window, {**counts, **paid})
        elites = ranked(fitness)[: len(population.elites)]
        recorded = [part.transitions for part in rollouts]
        joined = {name: torch.cat([part[name] for part in recorded], dim=1) for name in recorded[0]}
        return results, _thinned(joined, elites, most_transitions // len(elites))

    def groups(self, agents: int) -> list[range]:
        """Divide the agents so that the forecasts of a group fit into memory."""
        size = max(1, min(agents, _TABLE_BYTES // (4 * self.training_days.tradable.numel())))
        return [range(first, min(first + size, agents)) for first in range(0, agents, size)]

    def _roll_out(self, population: Population, windows: Windows, agents: Sequence[int], asked: Tensor) -> Rollout:
        rows = list(agents)
        unit = population.networks.scale[rows].view(-1, 1, 1)
        return roll_out(
            self.env,
            self.training_days.forecasts(population.networks.target, rows, asked),
            population.hurdles[rows],
            population.sale_targets[rows],
            windows.starts,
            noise=windows.noise[rows].to(unit) * unit,
            records=True,
            safe_point=self.safe_point,
            graph=self.graph,
            risk_aversion=self.risk_aversion,
        )


def _thinned(transitions: dict[str, Tensor], agents: Tensor, share: int) -> dict[str, Tensor]:
    """Return the transitions of some agents, thinned to each one's share."""
    days, _, windows = transitions["cash"].shape
    device = transitions["cash"].device
    day, window = (index[:, None].to(device) for index in kept_windows(days, windows, share))
    return {name: part[day, agents[:, None].to(device), window].flatten(0, 2) for name, part in transitions.items()}


def play_agent_on(
    env: TradingEnvironment,
    agent: DDPGAgent,
    forecasts: Forecasts,
    starts: Tensor,
    **how: Any,
) -> Rollout:
    """Play one agent on windows, all orders its own; `how` as in `roll_out`."""
    return roll_out(env, forecasts, agent.hurdle, agent.sale_target, starts, **{"label": "assess", **how})
