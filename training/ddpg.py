"""Deep deterministic policy gradient for the population (Lillicrap et al. 2016; twin critics: Fujimoto et al. 2018).

The losses are those of the papers, each with a first dimension of agents. Below them is their form for this market: a
batch is a block of days that is encoded once, and an action counts only through the orders that it causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from data.market import MarketTensors
from models.networks import AgentNetworks, Agents, Critic, DayEncoding, StateBatch, gather_stocks
from models.population import Population
from models.replay_buffer import ReplayBuffer, TransitionBatch
from utils.config import LearningConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, TRADING_LEFT, spread_positions

_HEAD_MEMORY_BYTES = 512 * 2**20
_ENCODER_MEMORY_BYTES = 1024 * 2**20


def td_target(reward: Tensor, terminated: Tensor, next_value: Tensor, gamma: float) -> Tensor:
    """y = r + gamma Q'(s', mu'(s')), without the future where the episode has ended, with it where it was cut short."""
    return reward + gamma * next_value * ~terminated


def critic_loss(values: list[Tensor], target: Tensor) -> Tensor:
    """Mean squared error of each agent, (A,), summed over its critics; all arguments are (A, B)."""
    return torch.stack([(value - target).square().mean(-1) for value in values]).sum(0)


def actor_loss(value: Tensor) -> Tensor:
    """The deterministic policy gradient ascends Q(s, mu(s)): minus its mean, (A, B) to (A,)."""
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
class OrderRules:
    """What an action comes to: how many orders, and how much the cash allows."""

    orders_per_day: int
    size_per_cash: float
    """Size of the order, as a share of the largest, that all of the initial capital in cash would pay for."""
    temperature: float


@dataclass(frozen=True)
class UpdateStats:
    """One update, (A,) each; an agent's norm that is not finite means that its gradient was left out."""

    critic_loss: Tensor
    actor_loss: Tensor
    gradient_norm_critic: Tensor
    gradient_norm_actor: Tensor


def executed_value(
    critic: Critic,
    encoding: DayEncoding,
    batch: TransitionBatch,
    state: StateBatch,
    agents: Agents,
) -> Tensor:
    """Q(s, a) of the orders that were executed: (A, B)."""
    summary = _summary_at(encoding, state.position)
    ordered = gather_stocks(encoding, state.position, batch.order_stock)
    orders = critic.order_value(ordered, summary, state.account, batch.order_size, batch.order_target, agents)
    orders = (orders * (batch.order_stock < encoding.stocks.shape[2])).sum(-1)
    return orders + _state_value(critic, encoding, state, summary, agents)


def _state_value(critic: Critic, encoding: DayEncoding, state: StateBatch, summary: Tensor, agents: Agents) -> Tensor:
    slots = gather_stocks(encoding, state.position, state.slot_stock)
    return critic.state_value(slots, state.slot_features, summary, state.account, agents)


def _summary_at(encoding: DayEncoding, position: Tensor) -> Tensor:
    index = position.unsqueeze(-1).expand(-1, -1, encoding.summary.shape[-1])
    return encoding.summary.expand(len(position), -1, -1).gather(1, index)


def policy_action(
    networks: AgentNetworks, encoding: DayEncoding, state: StateBatch, agents: Agents
) -> tuple[Tensor, Tensor, Tensor]:
    """mu(s) with the (A, B, n, C) and (A, B, H) encodings it was computed from: the action is (A, B, n, 2)."""
    stocks, summary = encoding.at(state.position)
    action: Tensor = networks.actor(stocks, summary, state.slot_features, state.account, agents)
    return action, stocks, summary


def candidate_stocks(market: MarketTensors, day: Tensor, state: StateBatch) -> Tensor:
    """(A, B, n) bool: stocks that an order of that day may buy."""
    held = spread_positions(state.slot_stock, state.slot_features[..., :1], market.tradable.shape[1]).squeeze(-1) > 0
    return market.tradable[day] & ~held & (state.account[..., None, TRADING_LEFT] > 0)


@torch.no_grad()
def target_value(
    targets: AgentNetworks,
    encoding: DayEncoding,
    state: StateBatch,
    candidates: Tensor,
    rules: OrderRules,
    agents: Agents,
) -> Tensor:
    """Q'(s', mu'(s')) with the orders that the rules would choose, the smaller of the critics: (A, B)."""
    action, stocks, summary = policy_action(targets, encoding, state, agents)
    coefficient, chosen = (action[..., 0] * candidates).topk(rules.orders_per_day, dim=-1)
    wanted = torch.where(coefficient >= MIN_COEFFICIENT, coefficient / MAX_COEFFICIENT, 0.0)
    cash = state.account[..., :1] * rules.size_per_cash
    size = torch.minimum(wanted, (cash - (wanted.cumsum(-1) - wanted)).clamp(min=0))
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
    rules: OrderRules,
    agents: Agents,
) -> Tensor:
    """What mu(s) orders is worth to the first critic, differentiable in mu: (A, B)."""
    action, stocks, summary = policy_action(networks, encoding, state, agents)
    values = action_values(networks.each_critic()[0], action, stocks, summary, state.account, rules, agents)
    return relaxed_choice(action, values, candidates, rules)


def action_values(
    critic: Critic, action: Tensor, stocks: Tensor, summary: Tensor, account: Tensor, rules: OrderRules, agents: Agents
) -> Tensor:
    """Value of each stock's order in an action, taken alone and cut to the cash: (A, B, n)."""
    cash = (account[..., :1] * rules.size_per_cash).expand_as(action[..., 0])
    size = torch.minimum(action[..., 0] / MAX_COEFFICIENT, cash)
    return critic.order_value(stocks, summary, account, size, action[..., 1], agents)


def relaxed_choice(action: Tensor, values: Tensor, candidates: Tensor, rules: OrderRules) -> Tensor:
    """Value of what an action orders, given the (A, B, n) values of its orders: (A, B).

    Which stock is ordered is the largest coefficient, a step function without gradient. The softmax over coefficients,
    with 'nothing' at the smallest one, stands in for it: as the temperature falls it becomes the rule itself.
    """
    logits = torch.where(candidates, action[..., 0] / rules.temperature, -torch.inf)
    nothing = torch.full_like(logits[..., :1], MIN_COEFFICIENT / rules.temperature)
    chance = torch.cat((logits, nothing), -1).softmax(-1)[..., :-1]
    return rules.orders_per_day * (chance * values * candidates).sum(-1)


class Learner:
    """Owns nothing but the way an update is cut into pieces that fit in memory; the update is the same for any cut."""

    def __init__(
        self,
        population: Population,
        replay: ReplayBuffer,
        market: MarketTensors,
        config: LearningConfig,
        rules: OrderRules,
    ) -> None:
        self.population, self.replay, self.market = population, replay, market
        self.config, self.rules = config, rules
        span = replay.last_day + 1 - replay.first_day
        self.block_days = min(config.block_days, span)
        networks = population.networks
        self._critic_stack, self._critic_shared = _by_ownership(networks, "encoder.", "critics.")
        self._actor_stack, _ = _by_ownership(networks, "actor.")
        hidden = networks.actor.hidden.weight.shape[-1]
        head_bytes = 16 * 4 * config.batch_size * market.tradable.shape[1] * hidden
        encoder_days = sum(self.block_days + (taps - 1) * step for taps, step in networks.encoder.layers)
        encoder_bytes = 4 * 4 * encoder_days * len(market.inputs) * networks.encoder.queries.shape[-1]
        self.agents_per_head = config.micro_batch_agents or max(1, _HEAD_MEMORY_BYTES // head_bytes)
        self.agents_per_encoder = config.micro_batch_agents or max(1, _ENCODER_MEMORY_BYTES // encoder_bytes)
        if population.is_shared:
            self.agents_per_encoder = population.size

    def update(self, generator: torch.Generator) -> UpdateStats:
        """One gradient step of every agent's critics and actor, on transitions of one block of days."""
        config, population = self.config, self.population
        first_day, batch = self.replay.sample_block(self.block_days, population.size, config.batch_size, generator)
        inputs = self._block_inputs(first_day)
        self._zero_gradients()
        stats = [
            self._accumulate(group, inputs, first_day, batch)
            for group in _slices(population.size, self.agents_per_encoder)
        ]
        losses = torch.cat(stats, dim=1)
        for parameter in self._critic_shared:
            if parameter.grad is not None:
                parameter.grad /= population.size
        critic_norm = clip_gradients(self._critic_stack, self._critic_shared, config.max_gradient_norm)
        actor_norm = clip_gradients(self._actor_stack, [], config.max_gradient_norm)
        is_sound = critic_norm.isfinite() & actor_norm.isfinite() & losses.isfinite().all(0)
        before = population.stacks()
        backup = [stack.clone() for stack in before.values()]
        population.critic_optimizer.step()
        population.actor_optimizer.step()
        population.update_targets(config.tau)
        _undo(list(before.values()), backup, ~is_sound)
        return UpdateStats(losses[0], losses[1], critic_norm, actor_norm)

    def _zero_gradients(self) -> None:
        self.population.critic_optimizer.zero_grad(set_to_none=False)
        self.population.actor_optimizer.zero_grad(set_to_none=False)

    def _block_inputs(self, first_day: Tensor) -> Tensor:
        """Network inputs of the block, of the day after it, and of their context: (N, days, 10)."""
        context = self.population.networks.context_days
        days = first_day + torch.arange(1 - context, self.block_days + 1, device=first_day.device)
        return self.market.inputs.index_select(1, days)

    def _accumulate(self, group: slice, inputs: Tensor, first_day: Tensor, batch: TransitionBatch) -> Tensor:
        """Add the gradients of some agents; returns their (2, agents) critic and actor losses."""
        population, market = self.population, self.market
        encoding = population.networks.encode_distinct(inputs[:, :-1], market.investable, group)
        with torch.no_grad():
            next_encoding = population.targets.encode_distinct(inputs[:, 1:], market.investable, group)
        # The heads see leaves, so that their micro-batches need not keep or repeat the encoder's graph.
        leaf = DayEncoding(encoding.stocks.detach().requires_grad_(), encoding.summary.detach().requires_grad_())
        losses = [
            self._accumulate_heads(heads, group.start, leaf, next_encoding, first_day, batch)
            for heads in _slices(group.stop, self.agents_per_head, group.start)
        ]
        torch.autograd.backward([encoding.stocks, encoding.summary], [leaf.stocks.grad, leaf.summary.grad])
        return torch.cat(losses, dim=1)

    def _accumulate_heads(
        self,
        heads: slice,
        first: int,
        leaf: DayEncoding,
        next_encoding: DayEncoding,
        first_day: Tensor,
        batch: TransitionBatch,
    ) -> Tensor:
        networks, targets, rules = self.population.networks, self.population.targets, self.rules
        local = slice(heads.start - first, heads.stop - first)
        known, known_next = _of_each_agent(leaf.agents(local), heads), next_encoding.agents(local)
        batch = batch.agents(heads)
        position = batch.day - first_day
        state = StateBatch(position, batch.slot_stock, batch.slot_features, batch.account)
        next_state = StateBatch(position, batch.next_slot_stock, batch.next_slot_features, batch.next_account)
        next_candidates = candidate_stocks(self.market, batch.day + 1, next_state)
        next_value = target_value(targets, known_next, next_state, next_candidates, rules, heads)
        target = td_target(batch.reward, batch.terminated, next_value, self.config.gamma)
        values = [executed_value(critic, known, batch, state, heads) for critic in networks.each_critic()]
        critic_losses = critic_loss(values, target)
        critic_losses.sum().backward()

        candidates = candidate_stocks(self.market, batch.day, state)
        with _frozen(networks.critics):
            actor_losses = actor_loss(policy_value(networks, known.detach(), state, candidates, rules, heads))
            actor_losses.sum().backward()
        return torch.stack((critic_losses.detach(), actor_losses.detach()))


def _of_each_agent(encoding: DayEncoding, heads: slice) -> DayEncoding:
    """A shared encoding as each agent's own, whose gradient counts only for the agents with finite gradients."""
    count = heads.stop - heads.start
    if len(encoding.stocks) == count:
        return encoding
    stocks, summary = encoding.stocks.expand(count, -1, -1, -1), encoding.summary.expand(count, -1, -1)
    for own in (stocks, summary):
        own.register_hook(_drop_unsound)
    return DayEncoding(stocks, summary)


def _drop_unsound(gradient: Tensor) -> Tensor:
    """Zero the rows of agents whose gradient is not finite."""
    is_sound = gradient.flatten(1).isfinite().all(1)
    return gradient.masked_fill(~is_sound.view(-1, *[1] * (gradient.dim() - 1)), 0.0)


@torch.no_grad()
def _undo(stacks: list[Tensor], backup: list[Tensor], is_undone: Tensor) -> None:
    """Put back the rows of some agents: without their gradient the optimiser's momentum would still move them."""
    for stack, old in zip(stacks, backup, strict=True):
        stack.copy_(torch.where(is_undone.view(-1, *[1] * (stack.dim() - 1)), old, stack))


class _frozen:
    """The critics' parameters take no gradient from what is computed inside."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.module.requires_grad_(False)

    def __exit__(self, *_: object) -> None:
        self.module.requires_grad_(True)


def _slices(stop: int, length: int, start: int = 0) -> Iterator[slice]:
    for first in range(start, stop, length):
        yield slice(first, min(first + length, stop))


def _by_ownership(networks: AgentNetworks, *prefixes: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters whose rows belong to agents, and those that all agents share."""
    stacked: list[nn.Parameter] = []
    shared: list[nn.Parameter] = []
    for name, parameter in networks.named_parameters():
        if name.startswith(prefixes):
            (stacked if networks.is_stacked(name) else shared).append(parameter)
    return stacked, shared


def mean_stats(stats: list[UpdateStats]) -> dict[str, float]:
    """Means over updates and agents, and how many agents' updates were left out; empty where nothing was learned."""
    if not stats:
        return {}
    stacks = {f.name: torch.stack([getattr(s, f.name) for s in stats]) for f in fields(UpdateStats)}
    is_finite = torch.stack([stack.isfinite() for stack in stacks.values()]).all(0)
    means = {name: float(stack.double().nanmean()) for name, stack in stacks.items()}
    return means | {"skipped_updates": int((~is_finite).sum())}
