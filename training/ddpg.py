"""Deep deterministic policy gradient for the population (Lillicrap et al. 2016; twin critics: Fujimoto et al. 2018).

The losses are those of the papers, each with a first dimension of agents. Below them is their form for this market: a
batch is a block of days that is encoded once, and an action counts only through the orders that it causes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from data.market import MarketTensors
from environment.orders import OrderLimits, candidate_stocks, choose_orders, cut_to_cash
from models.networks import AgentNetworks, Agents, Critic, DayEncoding, StateBatch, gather_stocks
from models.replay_buffer import TransitionBatch
from training.hindsight import HindsightOrders
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, TRADING_LEFT


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """Return y = r + gamma Q'(s', mu'(s')), without the future where the episode ended, not where it was cut short."""
    return reward + gamma * next_value * ~terminated


def critic_loss(values: list[Tensor], target: Tensor) -> Tensor:
    """Return each agent's mean squared error, (A,), summed over its critics; all arguments are (A, B)."""
    return torch.stack([(value - target).square().mean(-1) for value in values]).sum(0)


def actor_loss(value: Tensor) -> Tensor:
    """Return minus the mean of Q(s, mu(s)), which the deterministic policy gradient ascends: (A, B) to (A,)."""
    return -value.mean(-1)


def clip_gradients(stacked: list[nn.Parameter], shared: list[nn.Parameter], largest: float) -> Tensor:
    """Scale each agent's gradient, and the shared part's, to a norm of at most `largest`; return the agents' norms.

    The gradient of an agent whose norm is not finite becomes zero.
    """
    gradients = [p.grad for p in stacked if p.grad is not None]
    norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
    is_finite = norms.isfinite()
    scale = (largest / (norms + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        shape = (-1, *[1] * (gradient.dim() - 1))
        gradient.mul_(scale.view(shape)).masked_fill_(~is_finite.view(shape), 0.0)
    if shared:
        nn.utils.clip_grad_norm_(shared, largest)
    return norms


@dataclass(frozen=True)
class UpdateStats:
    """One update, (A,) each; an agent's norm that is not finite means that its gradient was left out."""

    critic_loss: Tensor
    hindsight_loss: Tensor
    """Of what trades earn, by orders that were not given; 0 without hindsight."""
    actor_loss: Tensor
    gradient_norm_critic: Tensor
    gradient_norm_actor: Tensor

    @property
    def is_finite(self) -> Tensor:
        """(A,) bool: the agent's update was finite, and made."""
        return torch.stack([getattr(self, f.name).isfinite() for f in fields(self)]).all(0)


def executed_value(
    critic: Critic,
    encoding: DayEncoding,
    batch: TransitionBatch,
    state: StateBatch,
    agents: Agents,
    *,
    learns_trades: bool = True,
) -> Tensor:
    """Return Q(s, a) of the orders that were executed: (A, B)."""
    summary = _summary_at(encoding, state.day_offset)
    ordered = gather_stocks(encoding, state.day_offset, batch.order_stock)
    account, size, target = state.account, batch.order_size, batch.order_target
    orders = critic.order_value(ordered, summary, account, size, target, agents, learns_trades=learns_trades)
    orders = (orders * (batch.order_stock < encoding.stocks.shape[2])).sum(-1)
    return orders + _state_value(critic, encoding, state, summary, agents)


def _state_value(critic: Critic, encoding: DayEncoding, state: StateBatch, summary: Tensor, agents: Agents) -> Tensor:
    slots = gather_stocks(encoding, state.day_offset, state.slot_stock)
    return critic.state_value(slots, state.slot_features, summary, state.account, agents)


def hindsight_values(
    networks: AgentNetworks, encoding: DayEncoding, day_offset: Tensor, orders: HindsightOrders, agents: Agents
) -> list[Tensor]:
    """Predict by each critic what orders that were not given earn, on the (A, B) days: (A, B, m) each."""
    summary = _summary_at(encoding, day_offset)
    stocks = gather_stocks(encoding, day_offset, orders.stock)
    return [critic.trade_value(stocks, summary, orders.target_percent, agents) for critic in networks.each_critic()]


def _summary_at(encoding: DayEncoding, day_offset: Tensor) -> Tensor:
    index = day_offset.unsqueeze(-1).expand(-1, -1, encoding.summary.shape[-1])
    return encoding.summary.expand(len(day_offset), -1, -1).gather(1, index)


def policy_action(
    networks: AgentNetworks, encoding: DayEncoding, state: StateBatch, agents: Agents
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mu(s), (A, B, n, 2), and the (A, B, n, C) and (A, B, H) encodings it was computed from."""
    stocks, summary = encoding.at(state.day_offset)
    action: Tensor = networks.actor(stocks, summary, state.slot_features, state.account, agents)
    return action, stocks, summary


def may_order(market: MarketTensors, day: Tensor, state: StateBatch) -> Tensor:
    """Tell which stocks (A, B, n) an order given in that state, on that day, may buy."""
    is_trading = state.account[..., None, TRADING_LEFT] > 0
    return candidate_stocks(market.tradable[day], state.slot_stock) & is_trading


@torch.no_grad()
def target_value(
    targets: AgentNetworks,
    encoding: DayEncoding,
    state: StateBatch,
    candidates: Tensor,
    limits: OrderLimits,
    agents: Agents,
) -> Tensor:
    """Return Q'(s', mu'(s')) with the orders that the account would choose, the smaller of the critics: (A, B)."""
    action, stocks, summary = policy_action(targets, encoding, state, agents)
    coefficient, chosen = choose_orders(action[..., 0], candidates, limits.orders_per_day)
    size = cut_to_cash(coefficient / MAX_COEFFICIENT, limits.affordable_size(state.account), dim=-1)
    target = action[..., 1].gather(-1, chosen)
    ordered = stocks.gather(2, chosen.unsqueeze(-1).expand(-1, -1, -1, stocks.shape[-1]))
    values = []
    for critic in targets.each_critic():
        orders = critic.order_value(ordered, summary, state.account, size, target, agents) * (size > 0)
        values.append(orders.sum(-1) + _state_value(critic, encoding, state, summary, agents))
    return torch.stack(values).amin(0)


def policy_value(
    networks: AgentNetworks,
    encoding: DayEncoding,
    state: StateBatch,
    candidates: Tensor,
    limits: OrderLimits,
    temperature: float,
    agents: Agents,
) -> Tensor:
    """Return the first critic's value of the orders of mu(s), differentiable in mu: (A, B)."""
    action, stocks, summary = policy_action(networks, encoding, state, agents)
    values = action_values(networks.each_critic()[0], action, stocks, summary, state.account, limits, agents)
    return relaxed_choice(action, values, candidates, limits.orders_per_day, temperature)


def action_values(
    critic: Critic,
    action: Tensor,
    stocks: Tensor,
    summary: Tensor,
    account: Tensor,
    limits: OrderLimits,
    agents: Agents,
) -> Tensor:
    """Value each stock's order in an action, taken alone and cut to the cash: (A, B, n)."""
    size = torch.minimum(action[..., 0] / MAX_COEFFICIENT, limits.affordable_size(account))
    return critic.order_value(stocks, summary, account, size, action[..., 1], agents)


def relaxed_choice(
    action: Tensor, values: Tensor, candidates: Tensor, orders_per_day: int, temperature: float
) -> Tensor:
    """Value an action, (A, B), given the (A, B, n) values of its orders.

    The account orders the largest coefficient, a step function without gradient. The softmax over coefficients, with
    'nothing' at the smallest one, stands in for it: as the temperature falls it becomes the rule itself.
    """
    logits = torch.where(candidates, action[..., 0] / temperature, -torch.inf)
    nothing = torch.full_like(logits[..., :1], MIN_COEFFICIENT / temperature)
    chance = torch.cat((logits, nothing), -1).softmax(-1)[..., :-1]
    return orders_per_day * (chance * values * candidates).sum(-1)


def mean_stats(stats: list[UpdateStats]) -> dict[str, float]:
    """Average over updates and agents, and count the updates left out; empty where nothing was learned."""
    if not stats:
        return {}
    stacks = {f.name: torch.stack([getattr(s, f.name) for s in stats]) for f in fields(UpdateStats)}
    means = {name: float(stack.double().nanmean()) for name, stack in stacks.items()}
    return means | {"skipped_updates": sum(int((~update.is_finite).sum()) for update in stats)}
