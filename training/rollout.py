"""Rollouts: many agents over many windows at once, as lanes of one account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial

import torch
from torch import Tensor

from environment.ledger import EpisodeSummary
from environment.orders import Orders
from environment.portfolio import Portfolio
from models.cash_value import Accounts, CashValue, Decision, accounts_in, buckets_of
from models.round_robin import RoundRobinPolicy
from models.trader import DailyOrders, Forecasts, PolicyNetworks, Traders, daily_orders
from training.cuda_graph import Tensors
from training.rollout_graph import RolloutGraph, SafePoint
from utils.progress import progress
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

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

    def where(self, is_other: Tensor, other: Rollout) -> Rollout:
        """Return this rollout with the episodes of another one for the (A,) marked agents."""
        agents = len(is_other)

        def chosen(one: Tensor, two: Tensor, dim: int) -> Tensor:
            shape = [1] * dim + [agents] + [1] * (one.dim() - dim - 1)
            return torch.where(is_other.view(shape), two, one)

        def by_lane(one: Tensor, two: Tensor) -> Tensor:
            return chosen(one.view(agents, -1), two.view(agents, -1), 0).flatten()

        summary = EpisodeSummary(**{n: by_lane(v, getattr(other.summary, n)) for n, v in vars(self.summary).items()})
        means = {n: chosen(getattr(self, n), getattr(other, n), 0) for n in ("fitness", "profit_percent", "by_window")}
        return Rollout(
            summary=summary,
            equity=chosen(self.equity, other.equity, 1),
            initial_value=chosen(self.initial_value, other.initial_value, 0),
            transitions={n: chosen(v, other.transitions[n], 1) for n, v in self.transitions.items()},
            **means,
        )


@torch.no_grad()
def roll_out(
    env: Portfolio,
    traders: Traders,
    forecasts: Forecasts,
    cash_value: CashValue,
    starts: Tensor,
    *,
    exploration_threshold: Tensor | None = None,
    records: bool = False,
    safe_point: Callable[[], None] | None = None,
    label: str = "evaluate",
    graph: RolloutGraph | None = None,
    policy: PolicyNetworks | RoundRobinPolicy | None = None,
    noise: Tensor | None = None,
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        starts: (W,) first days of the windows, best on the CPU; their length is the environment's.
        exploration_threshold: (A, E) exploration: on the last E windows, which do not count towards fitness, agents
            order only what they expect to earn more than this, in percent of an order's value. An account that always
            spends its cash would never learn what cash is worth.
        records: record transitions for a replay buffer.
        safe_point: is called before every day, and may raise to stop; once before a CUDA graph is launched.
        graph: of the rollouts of this environment, if they all have the same shapes.
        policy: the agents' networks; or round robin, by an agent without forecasts.
        noise: (A, E, trading days) exploration noise on the last E windows, see `PolicyNetworks.adjusting`.
    """
    agents, windows = traders.count, len(starts)
    agent = torch.arange(agents, device=env.device).repeat_interleave(windows)
    least = torch.zeros(agents, windows, dtype=torch.float64, device=env.device)
    judged = windows if exploration_threshold is None else windows - exploration_threshold.shape[1]
    if exploration_threshold is not None:
        least[:, judged:] = exploration_threshold
    best = forecasts.best(env.ranked)
    inputs = {"agent": agent, "least": least.flatten(), **vars(best)}
    inputs |= {"value of cash": cash_value.weights, "opportunity_knots": cash_value.opportunity_knots}
    inputs |= vars(traders.rows(agent))
    round_robin = policy if isinstance(policy, RoundRobinPolicy) else None
    if isinstance(policy, PolicyNetworks):
        inputs |= policy.tensors()
        inputs["noise"] = torch.zeros(agents, windows, env.rules.trading_days, dtype=torch.float64, device=env.device)
        if noise is not None:
            inputs["noise"][:, judged:] = noise
    if round_robin is not None:
        # An input, so that a captured graph of another kind of policy is not launched for it.
        inputs["turns"] = round_robin.turns(forecasts.expected[0].isfinite())
    days = partial(_play_days, env, cash_value, round_robin, records, label)
    recorded = (graph or RolloutGraph()).play(env, starts.repeat(agents), days, inputs, safe_point)
    summary, equity = env.summary(), env.equity_curve[: env.steps + 1].unflatten(1, (agents, windows)).clone()
    fitness, profit, value = (
        total.view(agents, windows)[:, :judged].mean(1)
        for total in (summary.fitness, summary.profit_percent, recorded["initial"])
    )
    transitions = _transitions(recorded, env, cash_value, agents)
    by_window = summary.profit_percent.view(agents, windows)[:, :judged]
    return Rollout(summary, equity, fitness, profit, value, transitions, by_window)


def _play_days(
    env: Portfolio,
    cash_value: CashValue,
    round_robin: RoundRobinPolicy | None,
    records: bool,
    label: str,
    inputs: Tensors,
    safe_point: SafePoint,
) -> dict[str, Tensor]:
    """Play the days of freshly reset accounts.

    Returns:
        `initial`, the (lanes,) value of cash on the first day; with records the parts of `Accounts` before the
        decisions of each day, the `size` of orders and the `best` results, (days, lanes, ...) each.
    """
    rules, agent = env.rules, inputs["agent"]
    traders = Traders(**{f.name: inputs[f.name] for f in fields(Traders)})
    forecasts = Forecasts(**{f.name: inputs[f.name] for f in fields(Forecasts)})
    cash_value = cash_value.with_values(inputs["value of cash"], inputs["opportunity_knots"])
    # What does not depend on accounts is computed for all days at once.
    later = torch.arange(rules.trading_days, device=env.device)[:, None]
    opportunity, left = forecasts.opportunity[agent, env.day + later], rules.trading_days - 1.0 - later.double()
    policy = PolicyNetworks.from_tensors(inputs) if "noise" in inputs else None
    slopes, left = cash_value.slopes(left, opportunity), left.expand_as(opportunity)
    buckets, days = buckets_of(env.sessions_held, rules), list[dict[str, Tensor]]()
    initial = torch.zeros_like(env.cash)
    for step in progress(range(rules.episode_steps), label, "day"):
        if safe_point is not None:
            safe_point()
        if not env.is_trading:
            env.step_orders(None)
            continue
        cash = (env.cash / rules.initial_capital).float()
        if round_robin is not None:
            env.step_orders(_orders(round_robin.daily_orders(inputs["turns"][env.day], env.candidates(), cash)))
            continue
        accounts = accounts_in(cash, env.sizes(), buckets, left[step], opportunity[step], rules)
        adjustment = None
        if policy is not None:
            adjustment = policy.adjusting(accounts, cash_value, inputs["noise"][..., step].flatten())
        # A stock without a bar has no forecast.
        stock = inputs["stock"][agent, env.day]
        expected = forecasts.expected[agent, env.day].masked_fill_(env.held().gather(1, stock), -torch.inf)
        orders = env.orders_per_day
        choice = daily_orders(
            traders, cash_value, expected, accounts, inputs["least"], orders, slopes[step], adjustment
        )
        if step == 0:
            initial = cash_value.of(accounts) if policy is None else policy.value(choice.decision, cash_value)
        if records:
            decision = choice.decision
            days.append({**vars(accounts), "day": env.day.clone(), "size": decision.size, "best": decision.best})
        env.step_orders(_orders(replace(choice, stock=stock.gather(1, choice.stock))))
    return {"initial": initial, **{name: torch.stack([day[name] for day in days]) for name in (days or [{}])[0]}}


def _orders(choice: DailyOrders) -> Orders:
    """Return the orders that an environment would place for the action."""
    target = choice.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
    coefficient = choice.coefficient.T.double()
    return Orders(choice.stock.T, coefficient, target.double().expand_as(coefficient))


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
    columns |= {"reward": env.entry_credited_rewards()[:days]}
    columns = {name: value.float() for name, value in columns.items()}
    columns |= {"day": recorded["day"][:-1].int(), "terminated": before.left[1:] <= 0}
    return {name: value.unflatten(1, (agents, -1)) for name, value in columns.items()}


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
