"""Rollouts: many agents over many windows at once, as lanes of one account.

A population is evaluated on windows of training days, by what did not learn from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from data.splits import Span
from environment.ledger import EpisodeSummary
from environment.orders import Orders
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.cash_value import Accounts, CashValue, Decision, accounts_in, buckets_of
from models.evolution import ranked
from models.networks import ActorCritic
from models.population import Population, target_percents
from models.round_robin import RoundRobinPolicy
from models.trader import AccountPolicy, Blend, DailyOrders, Forecasts, Traders, daily_orders
from training.cuda_graph import CudaGraph, Tensors
from training.forecasts.ridge import TrainingDays
from utils.progress import progress
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

COUNTS = ("trades", "wins", "losses", "positions_opened", "days_with_positions", "days_without_positions")
"""Parts of the episode summaries that are summed per generation."""
Policy = Callable[[Portfolio, int], Orders]
"""From the environment and the step to orders."""


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
    initial_value: Tensor
    """(A,) mean over windows of the value of cash on the first day."""
    transitions: dict[str, Tensor]
    """(decisions - 1, A, W, ...) each, see `models.replay_buffer.transition_fields`; empty unless recorded."""

    by_window: Tensor
    """(A, W) profit in percent, without the exploration windows."""
    bought: Tensor
    """(steps, orders per day, A, W) stocks that were bought on these windows; -1: none."""
    size: Tensor
    """Of these purchases, in stakes."""

    def departed(self, other: Rollout) -> Tensor:
        """Return the (A,) share of orders that differ in stock or size from those of another rollout."""
        is_order = (self.bought >= 0) | (other.bought >= 0)
        differs = is_order & ((self.bought != other.bought) | (self.size != other.size))
        return differs.sum((0, 1, 3)) / is_order.sum((0, 1, 3)).clamp(min=1)


@torch.no_grad()
def roll_out(
    env: TradingEnvironment,
    traders: Traders,
    forecasts: Forecasts,
    cash_value: CashValue,
    starts: Tensor,
    *,
    exploration_threshold: Tensor | None = None,
    records: bool = False,
    safe_point: Callable[[], None] = lambda: None,
    label: str = "evaluate",
    graph: CudaGraph | None = None,
    policy: AccountPolicy | RoundRobinPolicy | None = None,
    noise: Tensor | None = None,
    lengths: tuple[int, int] | None = None,
    risk_aversion: float = 0.0,
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        starts: (W,) first days of the windows, best on the CPU.
        exploration_threshold: (A, E) exploration: on the last E windows, which do not count towards fitness, agents
            order only what they expect to earn more than this, in percent of an order's value. An account that always
            spends its cash would never learn what cash is worth.
        records: record transitions for a replay buffer.
        safe_point: is called before every day, and may raise to stop; a launched CUDA graph plays all days at once.
        graph: of the rollouts of this environment, if they all have the same shapes and the networks stay in place.
        policy: the agents' networks; or round robin with a share of the days.
        noise: (A, E, trading days) exploration noise on the last E windows, see `AccountPolicy.adjusting`.
        risk_aversion: fitness is less half of this times the squared surprises of recorded orders.
        lengths: days of a window, and its first days on which orders are accepted; default: as the rules say.
    """
    account, rules = env.account, env.rules
    steps, trading_days = lengths or (rules.episode_steps, rules.trading_days)
    agents, windows, device = traders.count, len(starts), account.device
    agent = torch.arange(agents, device=device).repeat_interleave(windows)
    least = torch.zeros(agents, windows, dtype=torch.float64, device=device)
    judged = windows if exploration_threshold is None else windows - exploration_threshold.shape[1]
    if exploration_threshold is not None:
        least[:, judged:] = exploration_threshold
    inputs = {"agent": agent, "least": least.flatten()}
    inputs |= {name: part for name, part in vars(forecasts.best(account.ranked)).items() if part is not None}
    inputs |= {"value of cash": cash_value.weights, "opportunity_knots": cash_value.opportunity_knots}
    inputs |= vars(traders.rows(agent))
    market, networks = (policy, policy.own) if isinstance(policy, RoundRobinPolicy) else (None, policy)
    if networks is not None:
        inputs["noise"] = torch.zeros(agents, windows, trading_days, dtype=torch.float64, device=device)
        if noise is not None:
            inputs["noise"][:, judged:] = noise
    if market is not None:
        # An input, so that a captured graph of another kind of policy is not launched for it.
        inputs |= {"turns": market.turns(forecasts.expected[0].isfinite()), "market_size": market.sizes(forecasts)}
    days = partial(_play_days, env, cash_value, networks, market, records, label, safe_point)
    first = starts.repeat(agents)
    ends = first + steps, first + trading_days
    env.reset(start_idx=first, end_idx=ends[0], trading_end_idx=ends[1], observe=False)
    # An account that was allocated anew since the last rollout has another tensor of days.
    recorded = (graph or CudaGraph("rollouts")).run(days, inputs, account.day)
    account.step_index = account.steps  # which a launch leaves as it was
    summary = account.summary()
    equity = account.equity_curve[: account.steps + 1].unflatten(1, (agents, windows)).clone()
    utility = summary.fitness
    if risk_aversion > 0 and records:
        utility = utility - 0.5 * risk_aversion * _surprises(recorded, account).square().sum(0)
    fitness, profit, value = (
        total.view(agents, windows)[:, :judged].mean(1)
        for total in (utility, summary.profit_percent, recorded["initial"])
    )
    transitions = _transitions(recorded, account, cash_value, agents)
    by_window = summary.profit_percent.view(agents, windows)[:, :judged]
    orders = purchases(account)
    stock, size = (part.unflatten(2, (agents, windows))[..., :judged] for part in (orders.stock, orders.coefficient))
    bought = torch.where(size > 0, stock, -1)
    return Rollout(summary, equity, fitness, profit, value, transitions, by_window, bought, size)


def _play_days(
    env: TradingEnvironment,
    cash_value: CashValue,
    policy: AccountPolicy | None,
    market: RoundRobinPolicy | None,
    records: bool,
    label: str,
    safe_point: Callable[[], None],
    inputs: Tensors,
) -> dict[str, Tensor]:
    """Play the days of freshly reset accounts.

    Returns:
        `initial`, the (lanes,) value of cash on the first day; with records the parts of `Accounts` before the
        decisions of each day, the `size` of orders and the `best` results, (days, lanes, ...) each.
    """
    account, rules, agent = env.account, env.rules, inputs["agent"]
    account.step_index = 0  # also after a capture that failed
    traders = Traders(**{f.name: inputs[f.name] for f in fields(Traders)})
    forecasts = Forecasts(**{f.name: inputs[f.name] for f in fields(Forecasts) if f.name in inputs})
    cash_value = cash_value.with_values(inputs["value of cash"], inputs["opportunity_knots"])
    # What does not depend on accounts is computed for all days at once.
    later = torch.arange(account.trading_steps, device=account.device)[:, None]
    opportunity, left = forecasts.opportunity[agent, account.day + later], account.trading_steps - 1.0 - later.double()
    slopes, left = cash_value.slopes(left, opportunity), left.expand_as(opportunity)
    buckets, days = buckets_of(account.sessions_held, rules), list[dict[str, Tensor]]()
    initial = torch.zeros_like(account.cash)
    for step in progress(range(account.steps), label, "day"):
        safe_point()
        if not account.is_trading:
            env.step(None)
            continue
        cash, size = (account.cash / rules.initial_capital).float(), account.sizes()
        if market is not None:
            turns, largest = (inputs[name][account.day] for name in ("turns", "market_size"))
            held = market.daily_orders(turns, account.candidates(), cash, largest)
            if market.share == 0:
                env.step(_orders(held))
                continue
            cash, size = market.own_account(cash, size, account.sessions_held, account.day)
        accounts = accounts_in(cash, size, buckets, left[step], opportunity[step], rules)
        adjustment = None
        if policy is not None:
            adjustment = policy.adjusting(accounts, cash_value, inputs["noise"][..., step].flatten())
        today, stock = forecasts.at(agent, account.day), inputs["stock"][agent, account.day]
        # A stock without a bar has no forecast.
        is_out = account.held().gather(1, stock) | account.is_locked[:, None]
        today, orders = replace(today, score=today.score.masked_fill(is_out, -torch.inf)), account.orders_per_day
        parts = traders, cash_value, today, accounts, inputs["least"], orders, slopes[step], adjustment
        choice, decision = daily_orders(*parts)
        if step == 0:
            initial = cash_value.of(accounts) if policy is None else policy.value(decision, cash_value)
        if records:
            days.append({**vars(accounts), "size": decision.size, "best": decision.best})
            days[-1] |= {} if decision.penalty is None else {"penalty": decision.penalty}
        choice = replace(choice, stock=stock.gather(1, choice.stock))
        env.step(_orders(choice if market is None else market.mixed(choice, decision.size, held, cash, account.day)))
    return {"initial": initial, **{name: torch.stack([day[name] for day in days]) for name in (days or [{}])[0]}}


def _orders(choice: DailyOrders) -> Orders:
    """Return the orders that an environment would place for the action."""
    target = choice.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
    return Orders(choice.stock.T, choice.coefficient.T.double(), target.T.double())


def _transitions(recorded: Tensors, env: Portfolio, cash_value: CashValue, agents: int) -> dict[str, Tensor]:
    """Join the decisions of consecutive days: see `models.replay_buffer.Transitions`."""
    if len(recorded.get("size", ())) < 2:
        return {}
    before, days = Accounts(**{f.name: recorded[f.name] for f in fields(Accounts)}), len(recorded["size"]) - 1
    orders = cash_value.largest_order, cash_value.purchase_factor
    after = Decision(recorded["size"], recorded["best"], before, *orders).after
    columns = {f"state_{name}": value[:-1] for name, value in vars(before).items()}
    columns |= {f"after_{name}": value[:-1] for name, value in vars(after).items()}
    columns |= {f"next_{name}": value[1:] for name, value in vars(before).items()} | {"next_best": recorded["best"][1:]}
    columns |= {"action": recorded["size"][:-1], "best": recorded["best"][:-1]}
    if "penalty" in recorded:
        columns |= {"penalty": recorded["penalty"][:-1], "next_penalty": recorded["penalty"][1:]}
    columns |= {"reward": env.entry_credited_rewards()[:days]}
    columns = {name: value.float() for name, value in columns.items()}
    columns |= {"terminated": before.left[1:] <= 0}
    return {name: value.unflatten(1, (agents, -1)) for name, value in columns.items()}


def _surprises(recorded: Tensors, env: Portfolio) -> Tensor:
    """Return what the orders of each day earned beyond what was expected, (days, lanes) percent of the capital."""
    expected = torch.where(recorded["size"] > 0, recorded["size"] * recorded["best"], 0.0).sum(-1)
    return env.entry_credited_rewards()[: len(expected)] - expected


def purchases(env: Portfolio) -> Orders:
    """Return what the finished episodes bought, (steps, orders per day, lanes) each; size 0 where nothing."""
    book, shape = env.ledger(), (env.step_index, env.orders_per_day, -1)
    bought = (book.stock, book.value / env.rules.stake, book.target_percent)
    return Orders(*(part.reshape(shape).clone() for part in bought))


def step_by(env: Portfolio, policy: Policy, step: int) -> None:
    """Live through a day by a policy, which is asked only while orders are accepted."""
    env.step_orders(policy(env, step) if env.is_trading else None)


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
    drawn: Tensor
    """(P, E) uniform numbers that set the exploration thresholds."""
    noise: Tensor
    """(P, E, trading days) exploration noise, as a share of the largest order; (P, E, 0): none."""


@dataclass(frozen=True)
class PopulationResults:
    """Results of A agents on W windows, on the CPU."""

    fitness: Tensor
    """(A,)"""
    profit_percent: Tensor
    initial_value: Tensor
    by_window: Tensor
    """(A, W) profit on the windows that count towards fitness."""
    plain: Tensor
    """(A, W) that of the agents' closed forms; its own without networks."""
    departed: Tensor
    """(A,) share of orders on these windows that differ from those of the closed form in stock or size."""
    blend: Blend
    """How ridge regression and critic are blended; of ridge regressions alone without networks."""
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
        train: Span,
        safe_point: Callable[[], None] = lambda: None,
        risk_aversion: float = 0.0,
    ) -> None:
        """Play in this environment; `safe_point` is called before every day, and may raise to stop."""
        self.days, self.env, self.train, self.safe_point = days, env, train, safe_point
        self.risk_aversion = risk_aversion
        self.graphs = CudaGraph("rollouts"), CudaGraph("rollouts of closed forms")

    def evaluate(
        self,
        population: Population,
        windows: Windows,
        most_transitions: int,
        known: tuple[Forecasts, Blend] | None = None,
    ) -> tuple[PopulationResults, dict[str, Tensor]]:
        """Play all agents; return their results and the (N, ...) transitions of the fittest, for the replay buffer.

        Transitions are in the order of days, elites (the fittest first) and windows.

        Args:
            most_transitions: upper limit for all elites together.
            known: out-of-fold forecasts of the agents and their blend, where they have been computed before.
        """
        networks = None if population.networks is None else population.networks.targets
        closed, most = (population.ridge, target_percents(population.genes)), self.env.account.ranked
        forecasts, blend = known or self.days.forecasts(*closed, networks, most)
        rollout = plain = self._rollout(population, windows, forecasts, networks)
        if networks is not None:
            plain = self._rollout(population, windows, self.days.forecasts(*closed, most=most)[0], None)
        counts = torch.stack([getattr(rollout.summary, name).sum() for name in COUNTS]).tolist()
        paid = {name: float(getattr(rollout.summary, name).cpu().sum()) for name in ("penalties", "costs")}
        results = PopulationResults(
            rollout.fitness.cpu(),
            rollout.profit_percent.cpu(),
            rollout.initial_value.cpu(),
            rollout.by_window.cpu(),
            plain.by_window.cpu(),
            rollout.departed(plain).double().cpu(),
            blend.to("cpu"),
            dict(zip(COUNTS, counts, strict=True)) | paid,
        )
        elites = ranked(results.fitness)[: len(population.elites)]
        return results, self._transitions(rollout, elites, most_transitions // len(elites))

    def _rollout(
        self, population: Population, windows: Windows, forecasts: Forecasts, networks: ActorCritic | None
    ) -> Rollout:
        device = self.env.account.device
        # The average of what the best orders of each day are expected to earn sets the scale of the thresholds.
        best = forecasts.opportunity[:, self.train.first : self.train.last].clamp(min=0).mean(1)
        typical = best / self.env.rules.largest_order
        return roll_out(
            self.env,
            population.traders,
            forecasts,
            population.cash_value,
            windows.starts,
            exploration_threshold=-typical[:, None] * torch.log1p(-windows.drawn.to(device)),
            records=networks is not None or population.networks is None,
            safe_point=self.safe_point,
            graph=self.graphs[networks is None],
            policy=None if networks is None else AccountPolicy.of(networks),
            noise=None if networks is None else windows.noise.to(device),
            risk_aversion=self.risk_aversion,
        )

    def _transitions(self, rollout: Rollout, agents: Tensor, share: int) -> dict[str, Tensor]:
        """Return the transitions of some agents, thinned to each one's share."""
        if not rollout.transitions:
            return {}
        days, _, windows = next(iter(rollout.transitions.values())).shape[:3]
        device = self.env.account.device
        agents = agents.to(device)
        day, window = (index[:, None].to(device) for index in kept_windows(days, windows, share))
        return {name: part[day, agents[:, None], window].flatten(0, 2) for name, part in rollout.transitions.items()}
