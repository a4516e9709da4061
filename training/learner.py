"""One gradient step of a whole population, cut into pieces that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from data.market import MarketTensors
from environment.orders import OrderLimits
from models.networks import AgentNetworks, DayEncoding, StateBatch
from models.population import Population
from models.replay_buffer import ReplayBuffer, TransitionBatch
from training.ddpg import (
    UpdateStats,
    actor_loss,
    clip_gradients,
    critic_loss,
    executed_value,
    hindsight_values,
    may_order,
    policy_value,
    target_value,
    td_target,
)
from training.hindsight import Hindsight, hindsight_loss
from training.rollout import even_parts
from utils.config.trader import LearningConfig

_CPU_HEAD_BYTES = 96 * 2**20
"""On a CPU larger pieces are slower, for their temporaries leave the cache."""
_CPU_ENCODER_BYTES = 1024 * 2**20
_CUDA_HEAD_SHARE, _CUDA_ENCODER_SHARE = 0.2, 0.4
"""Of the memory that is free when the learner is made; the replay, the market and the population are there already."""


class Learner:
    """The update of a population; it is the same however it is cut into pieces of agents."""

    def __init__(
        self,
        population: Population,
        replay: ReplayBuffer,
        market: MarketTensors,
        config: LearningConfig,
        limits: OrderLimits,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.population, self.replay, self.market = population, replay, market
        self.hindsight = hindsight
        self.config, self.limits = config, limits
        self.block_days = min(config.block_days, replay.last_day + 1 - replay.first_day)
        networks = population.networks
        self._critic_stack, self._critic_shared = _by_ownership(networks, "encoder.", "critics.")
        self._actor_stack, _ = _by_ownership(networks, "actor.")
        self.agents_per_head, self.agents_per_encoder = _piece_sizes(population, market, config, self.block_days)

    def update(self, generator: torch.Generator) -> UpdateStats:
        """Make one gradient step of every agent's critics and actor, on transitions of one block of days.

        With hindsight, critics learn what trades earn, and actors what to order, on other blocks, drawn among all
        training days: prices do not react, so that any account of the replay might have been held on any day. Several
        such steps are made for each one on transitions.
        """
        config, population = self.config, self.population
        first_day, batch = self.replay.sample_block(self.block_days, population.size, config.batch_size, generator)
        stacks = list(population.stacks().values())
        backup = [stack.clone() for stack in stacks]
        population.actor_optimizer.zero_grad()
        steps = config.hindsight_steps if self.hindsight is not None else 0
        trades = [self._learn_trades(batch, generator, trains_actor=step == steps - 1) for step in range(steps)]
        critic_losses, actor_losses, critic_norms = self._learn_transitions(first_day, batch)
        actor_norms = clip_gradients(self._actor_stack, [], config.max_gradient_norm)
        population.actor_optimizer.step()
        population.update_targets(config.tau)
        trade_losses = torch.zeros_like(critic_losses)
        if trades:
            trade_losses = torch.stack([losses for losses, _, _ in trades]).mean(0)
            actor_losses = trades[-1][1]
            critic_norms = torch.stack([norms for _, _, norms in trades] + [critic_norms]).mean(0)
        done = UpdateStats(critic_losses, trade_losses, actor_losses, critic_norms, actor_norms)
        _restore(stacks, backup, ~done.is_finite)
        return done

    def _learn_transitions(self, first_day: Tensor, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Step the critics on transitions; return losses of critics and actors, and norms of gradients, (A,) each.

        With hindsight what trades earn, the encoder and the actors are learned there: the far noisier gradient of the
        temporal difference would drown a faint signal in them.
        """
        networks, targets = self.population.networks, self.population.targets
        inputs = self._block_inputs(first_day, self.block_days + 1)
        learns_all = self.hindsight is None
        self.population.critic_optimizer.zero_grad()
        today = self._pieces(networks, inputs[:, :-1], trains_encoder=learns_all)
        tomorrow = self._pieces(targets, inputs[:, 1:], trains_encoder=False)
        critic_losses, actor_losses = batch.reward.new_zeros(2, self.population.size)
        for (agents, encoding), (_, next_encoding) in zip(today, tomorrow, strict=True):
            own = batch.of(agents)
            day_offset = own.day - first_day
            state = StateBatch(day_offset, own.slot_stock, own.slot_features, own.account)
            next_state = StateBatch(day_offset, own.next_slot_stock, own.next_slot_features, own.next_account)
            candidates = may_order(self.market, own.day + 1, next_state)
            next_value = target_value(targets, next_encoding, next_state, candidates, self.limits, agents)
            target = td_target(own.reward, own.terminated, next_value, self.config.gamma)
            values = [
                executed_value(critic, encoding, own, state, agents, learns_trades=learns_all)
                for critic in networks.each_critic()
            ]
            losses = critic_loss(values, target)
            losses.sum().backward()
            critic_losses[agents] = losses.detach()
            if learns_all:
                actor_losses[agents] = self._add_actor_gradient(agents, encoding, state, own.day)
        return critic_losses, actor_losses, self._step_critics()

    def _learn_trades(
        self, batch: TransitionBatch, generator: torch.Generator, *, trains_actor: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Step the critics on orders that were not given; return losses and norms as `_learn_transitions`.

        The actors, if trained, get their gradient in the accounts of a batch. Noise on the inputs keeps the encoder
        from knowing the days by heart.
        """
        assert self.hindsight is not None
        config, networks = self.config, self.population.networks
        shape = (self.population.size, config.batch_size)
        first_day, offsets, given = self.hindsight.draw_block(
            self.block_days, shape, config.hindsight_orders, generator
        )
        inputs = with_noise(self._block_inputs(first_day, self.block_days), config.input_noise, generator)
        self.population.critic_optimizer.zero_grad()
        critic_losses, actor_losses = batch.reward.new_zeros(2, self.population.size)
        for agents, encoding in self._pieces(networks, inputs, trains_encoder=True):
            day_offset, orders = offsets[agents], given.of(agents)
            losses = hindsight_loss(hindsight_values(networks, encoding, day_offset, orders, agents), orders)
            losses.sum().backward()
            critic_losses[agents] = losses.detach()
            if trains_actor:
                own = batch.of(agents)
                state = StateBatch(day_offset, own.slot_stock, own.slot_features, own.account)
                actor_losses[agents] = self._add_actor_gradient(agents, encoding, state, first_day + day_offset)
        return critic_losses, actor_losses, self._step_critics()

    def _add_actor_gradient(self, agents: slice, encoding: DayEncoding, state: StateBatch, day: Tensor) -> Tensor:
        """Add the gradients of some agents' actor losses, (agents,), in states of the (A, B) days."""
        networks = self.population.networks
        candidates = may_order(self.market, day, state)
        temperature = self.config.selection_temperature
        with _frozen(networks.critics):
            value = policy_value(networks, encoding.detach(), state, candidates, self.limits, temperature, agents)
            losses = actor_loss(value)
            losses.sum().backward()
        return losses.detach()

    def _step_critics(self) -> Tensor:
        """Move the critics, and the encoder if it was trained, by their gradients; return the agents' norms."""
        for parameter in self._critic_shared:
            if parameter.grad is not None:
                parameter.grad /= self.population.size
        norms = clip_gradients(self._critic_stack, self._critic_shared, self.config.max_gradient_norm)
        # Parameters without a gradient in this step are left alone by it, and so are their moments.
        self.population.critic_optimizer.step()
        return norms

    def _block_inputs(self, first_day: Tensor, length: int) -> Tensor:
        """Look up the inputs of `length` days from a day on, and of their context: (N, days, 10)."""
        context = self.population.networks.context_days
        days = first_day + torch.arange(1 - context, length, device=first_day.device)
        return self.market.inputs.index_select(1, days)

    def _pieces(
        self, networks: AgentNetworks, inputs: Tensor, *, trains_encoder: bool
    ) -> Iterator[tuple[slice, DayEncoding]]:
        """Encode days for a group of agents at a time, and yield the group in pieces whose heads fit in memory.

        Once the heads of a group have left their gradients on its encoding, the encoder is given its own.
        """
        for group in even_parts(0, self.population.size, self.agents_per_encoder):
            with torch.set_grad_enabled(trains_encoder):
                encoding = networks.encode_distinct(inputs, self.market.investable, group)
            # The heads see leaves, so that their pieces need not keep or repeat the encoder's graph.
            leaf = encoding.detach()
            for part in (leaf.stocks, leaf.summary):
                part.requires_grad_(trains_encoder)
            for agents in even_parts(group.start, group.stop, self.agents_per_head):
                within = slice(agents.start - group.start, agents.stop - group.start)
                yield agents, _of_each_agent(leaf.of(within), agents.stop - agents.start)
            if trains_encoder:
                torch.autograd.backward([encoding.stocks, encoding.summary], [leaf.stocks.grad, leaf.summary.grad])


def with_noise(inputs: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Add Gaussian noise to network inputs (N, days, 10) where there is a bar; the mask, the last channel, stays.

    Noise on inputs is a penalty on how fast the outputs change with them (Bishop 1995, "Training with noise is
    equivalent to Tikhonov regularization").
    """
    if std == 0:
        return inputs
    features, mask = inputs[..., :-1], inputs[..., -1:]
    noise = torch.randn(features.shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
    return torch.cat((features + std * noise * mask, mask), dim=-1)


def _of_each_agent(encoding: DayEncoding, count: int) -> DayEncoding:
    """Expand a shared encoding to one for each agent; only gradients that are finite reach the shared one."""
    if len(encoding.stocks) == count:
        return encoding
    stocks, summary = encoding.stocks.expand(count, -1, -1, -1), encoding.summary.expand(count, -1, -1)
    for own in (stocks, summary):
        if own.requires_grad:
            own.register_hook(_zero_non_finite)
    return DayEncoding(stocks, summary)


def _zero_non_finite(gradient: Tensor) -> Tensor:
    """Zero the rows of agents whose gradient is not finite."""
    is_finite = gradient.flatten(1).isfinite().all(1)
    return gradient.masked_fill(~is_finite.view(-1, *[1] * (gradient.dim() - 1)), 0.0)


@torch.no_grad()
def _restore(stacks: list[Tensor], backup: list[Tensor], is_restored: Tensor) -> None:
    """Put back the rows of some agents: without their gradient the optimiser's momentum would still move them."""
    for stack, old in zip(stacks, backup, strict=True):
        stack.copy_(torch.where(is_restored.view(-1, *[1] * (stack.dim() - 1)), old, stack))


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """Let the parameters take no gradient from what is computed inside."""
    module.requires_grad_(False)
    yield
    module.requires_grad_(True)


def _piece_sizes(
    population: Population, market: MarketTensors, config: LearningConfig, block_days: int
) -> tuple[int, int]:
    """Choose how many agents' heads, and how many encoders, fit in memory at once."""
    networks, device = population.networks, market.inputs.device
    head_memory, encoder_memory = _CPU_HEAD_BYTES, _CPU_ENCODER_BYTES
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        head_memory, encoder_memory = int(free * _CUDA_HEAD_SHARE), int(free * _CUDA_ENCODER_SHARE)
    hidden = networks.actor.hidden.weight.shape[-1]
    head_bytes = 16 * 4 * config.batch_size * market.tradable.shape[1] * hidden
    encoder_days = sum(block_days + (taps - 1) * step for taps, step in networks.encoder.layers)
    encoder_bytes = 4 * 4 * encoder_days * len(market.inputs) * networks.encoder.queries.shape[-1]
    agents_per_head = config.micro_batch_agents or max(1, head_memory // head_bytes)
    agents_per_encoder = config.micro_batch_agents or max(1, encoder_memory // encoder_bytes)
    return agents_per_head, population.size if population.is_shared else agents_per_encoder


def _by_ownership(networks: AgentNetworks, *prefixes: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split parameters into those whose rows belong to agents, and those that all agents share."""
    stacked: list[nn.Parameter] = []
    shared: list[nn.Parameter] = []
    for name, parameter in networks.named_parameters():
        if name.startswith(prefixes):
            (stacked if networks.is_stacked(name) else shared).append(parameter)
    return stacked, shared
