"""Rollouts: many agents over many windows at once, as lanes of one account."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from environment.ledger import EpisodeSummary
from environment.portfolio import Portfolio
from models.trader import Outlook, Traders, decide
from models.waiting import Accounts, WaitingValue, accounts_of

Policy = Callable[[Portfolio, int], Tensor]
"""From the environment and the step to (lanes, stocks, 2) actions."""


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
    """(A,) likewise, the money without penalties."""
    initial_value: Tensor
    """(A,) mean over windows of the value of waiting on the first day."""
    transitions: dict[str, Tensor]
    """(decisions - 1, A, W, ...) each, see `models.replay_buffer.transition_fields`; empty unless asked for."""

    def transitions_of(self, agents: Tensor) -> dict[str, Tensor]:
        """Return the transitions of some agents, (N, ...) each."""
        return {name: part[:, agents].flatten(0, 2) for name, part in self.transitions.items()}


@torch.no_grad()
def roll_out(
    env: Portfolio,
    traders: Traders,
    outlook: Outlook,
    waiting: WaitingValue,
    starts: Tensor,
    *,
    caution: Tensor | None = None,
    records: bool = False,
    safe_point: Callable[[], None] | None = None,
    label: str = "evaluate",
) -> Rollout:
    """Play all agents on all windows, the same for every agent.

    Args:
        starts: (W,) first days of the windows; their length is the environment's.
        caution: (A, E) exploration: on the last E windows, which do not count, agents order only what they expect more
            of than this, in percent of an order's value. An account that spends all it has would never see what waiting
            is worth.
        records: makes transitions of the decisions, for a replay buffer.
        safe_point: is called before every day, and may raise to stop.
    """
    agents, windows, steps = traders.count, len(starts), env.rules.episode_steps
    env.reset(starts.repeat(agents).to(env.device))
    agent = torch.arange(agents, device=env.device).repeat_interleave(windows)
    least = torch.zeros(agents, windows, dtype=torch.float64, device=env.device)
    judged = windows if caution is None else windows - caution.shape[1]
    if caution is not None:
        least[:, judged:] = caution
    history: list[tuple[Accounts, Tensor, Accounts]] = []
    initial = torch.zeros(len(agent), dtype=torch.float64, device=env.device)
    for step in tqdm(range(steps), desc=label, unit="day", leave=False, disable=None, delay=1.0):
        if safe_point is not None:
            safe_point()
        if not env.is_trading:
            env.step_orders(None)
            continue
        accounts = accounts_of(env.positions().features, env.account(), outlook.opportunity[agent, env.day], env.rules)
        if step == 0:
            initial = waiting.of(accounts)
        expected = torch.where(env.candidates(), outlook.expected[agent, env.day], -torch.inf)
        action, best, decision = decide(traders, waiting, expected, accounts, least.flatten(), env.orders_per_day)
        if records:
            history.append((accounts, best, decision.after))
        env.step(action)
    summary = env.summary()
    equity = env.equity_curve[: steps + 1].view(steps + 1, agents, windows).clone()
    fitness, profit, value = (
        total.view(agents, windows)[:, :judged].mean(1) for total in (summary.fitness, summary.profit_percent, initial)
    )
    return Rollout(summary, equity, fitness, profit, value, _transitions(history, agents))


def _transitions(history: list[tuple[Accounts, Tensor, Accounts]], agents: int) -> dict[str, Tensor]:
    """Join the decisions of consecutive days: from the account after one to that before the next."""
    if len(history) < 2:
        return {}
    before, best, after = (list(parts) for parts in zip(*history, strict=True))
    columns = {f"after_{name}": [getattr(a, name) for a in after[:-1]] for name in vars(after[0])}
    columns |= {f"next_{name}": [getattr(a, name) for a in before[1:]] for name in vars(before[0])}
    columns["next_best"] = best[1:]
    return {name: torch.stack(parts).float().unflatten(1, (agents, -1)) for name, parts in columns.items()}


@torch.no_grad()
def play(env: Portfolio, policy: Policy, starts: Tensor) -> tuple[EpisodeSummary, Tensor]:
    """Play any policy, one lane a start; return the summary and the (steps + 1, lanes) equity in currency units."""
    env.reset(starts)
    steps = env.rules.episode_steps
    for step in range(steps):
        env.step(policy(env, step))
    return env.summary(), env.equity_curve[: steps + 1].clone()
