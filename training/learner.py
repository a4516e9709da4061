"""One gradient step of a whole population, cut into pieces that fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from data.market import MarketTensors
from models.networks import AgentNetworks, DayEncoding, StateBatch
from models.population import Population
from models.replay_buffer import ReplayBuffer, TransitionBatch
from training.ddpg import (
    OrderRules,
    UpdateStats,
    actor_loss,
    candidate_stocks,
    clip_gradients,
    critic_loss,
    executed_value,
    hindsight_values,
    policy_value,
    target_value,
    td_target,
)
from training.hindsight import Hindsight, hindsight_loss
from utils.config.trader import LearningConfig

_CPU_HEAD_BYTES = 96 * 2**20
"""On a CPU larger pieces are slower, for their temporaries leave the cache."""
_CPU_ENCODER_BYTES = 1024 * 2**20
_CUDA_HEAD_SHARE, _CUDA_ENCODER_SHARE = 0.2, 0.4
"""Of the memory that is free when the learner is made; the replay, the market and the population are there already."""


class Learner:
    """Owns nothing but the way an update is cut into pieces that fit in memory; the update is the same for any cut."""

    def __init__(
        self,
        population: Population,
        replay: ReplayBuffer,
        market: MarketTensors,
        config: LearningConfig,
        rules: OrderRules,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.population, self.replay, self.market = population, replay, market
        self.hindsight = hindsight
        self.config, self.rules = config, rules
        span = replay.last_day + 1 - replay.first_day
        self.block_days = min(config.block_days, span)
        networks = population.networks
        self._critic_stack, self._critic_shared = _by_ownership(networks, "encoder.", "critics.")
        self._actor_stack, _ = _by_ownership(networks, "actor.")
        hidden = networks.actor.hidden.weight.shape[-1]
        head_memory, encoder_memory = _memory_for_pieces(market.inputs.device)
        head_bytes = 16 * 4 * config.batch_size * market.tradable.shape[1] * hidden
        encoder_days = sum(self.block_days + (taps - 1) * step for taps, step in networks.encoder.layers)
        encoder_bytes = 4 * 4 * encoder_days * len(market.inputs) * networks.encoder.queries.shape[-1]
        self.agents_per_head = config.micro_batch_agents or max(1, head_memory // head_bytes)
        self.agents_per_encoder = config.micro_batch_agents or max(1, encoder_memory // encoder_bytes)
        if population.is_shared:
            self.agents_per_encoder = population.size

    def update(self, generator: torch.Generator) -> UpdateStats:
        """One gradient step of every agent's critics and actor, on transitions of one block of days.

        With hindsight, critics learn what trades earn, and actors what to order, on other blocks, drawn among all
        training days: prices do not react, so that any account of the replay might have been held on any day. Noise
        on what they see of these days keeps the encoder from knowing them by heart. Several such steps are made for
        each one on transitions.
        """
        config, population = self.config, self.population
        first_day, batch = self.replay.sample_block(self.block_days, population.size, config.batch_size, generator)
        before = list(population.stacks().values())
        backup = [stack.clone() for stack in before]
        population.actor_optimizer.zero_grad()
        steps = config.hindsight_steps if self.hindsight is not None else 0
        looks = [self._look_back(batch, generator, teaches_actor=step == steps - 1) for step in range(steps)]
        critic_losses, actor_losses, critic_norms = self._learn_transitions(first_day, batch)
        actor_norms = clip_gradients(self._actor_stack, [], config.max_gradient_norm)
        population.actor_optimizer.step()
        population.update_targets(config.tau)
        hindsight_losses = torch.zeros_like(critic_losses)
        if looks:
            hindsight_losses = torch.stack([look[0] for look in looks]).mean(0)
            actor_losses = looks[-1][1]
            critic_norms = torch.stack([look[2] for look in looks] + [critic_norms]).mean(0)
        done = UpdateStats(critic_losses, hindsight_losses, actor_losses, critic_norms, actor_norms)
        _undo(before, backup, ~done.is_sound)
        return done

    def _learn_transitions(self, first_day: Tensor, batch: TransitionBatch) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the critics on transitions: losses of critics and actors, and norms of gradients, (A,) each.

        With hindsight what trades earn, the encoder and the actors are learned there: the far noisier gradient of the
        temporal difference would drown a faint signal in them.
        """
        inputs = self._block_inputs(first_day, self.block_days + 1)
        self.population.critic_optimizer.zero_grad()
        groups = _slices(self.population.size, self.agents_per_encoder)
        losses = [self._group_on_transitions(group, inputs, first_day, batch) for group in groups]
        critic_losses, actor_losses = torch.cat(losses, dim=1)
        return critic_losses, actor_losses, self._step_critics()

    def _group_on_transitions(self, group: slice, inputs: Tensor, first_day: Tensor, batch: TransitionBatch) -> Tensor:
        """Add the gradients of some agents' losses: (2, agents), as `_heads_on_transitions`."""
        with torch.no_grad():
            next_encoding = self.population.targets.encode_distinct(inputs[:, 1:], self.market.investable, group)

        def learn(heads: slice, encoding: DayEncoding) -> Tensor:
            following = next_encoding.agents(_within(group, heads))
            return self._heads_on_transitions(heads, encoding, following, first_day, batch.agents(heads))

        return self._through_encoder(group, inputs[:, :-1], learn, teaches_encoder=self.hindsight is None)

    def _look_back(
        self, batch: TransitionBatch, generator: torch.Generator, *, teaches_actor: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One step of the critics on days known in hindsight, from orders that were not given; actors, if taught, get
        their gradient, in the accounts of a batch: losses of critics and actors, and norms of gradients, (A,) each.
        """
        config, population, networks = self.config, self.population, self.population.networks
        assert self.hindsight is not None
        shape = (population.size, config.batch_size)
        known = self.hindsight.draw_block(self.block_days, shape, config.hindsight_orders, generator)
        clean = self._block_inputs(known.first_day, self.block_days)
        inputs = with_noise(clean, config.input_noise, generator)

        def learn(heads: slice, encoding: DayEncoding) -> Tensor:
            position, orders = known.position[heads], known.orders.agents(heads)
            losses = hindsight_loss(hindsight_values(networks, encoding, position, orders, heads), orders)
            losses.sum().backward()
            actor_losses = torch.zeros_like(losses)
            if teaches_actor:
                own = batch.agents(heads)
                state = StateBatch(position, own.slot_stock, own.slot_features, own.account)
                actor_losses = self._teach_actor(heads, encoding, state, known.first_day + position)
            return torch.stack((losses.detach(), actor_losses))

        population.critic_optimizer.zero_grad()
        groups = _slices(population.size, self.agents_per_encoder)
        losses = [self._through_encoder(group, inputs, learn, teaches_encoder=True) for group in groups]
        critic_losses, actor_losses = torch.cat(losses, dim=1)
        return critic_losses, actor_losses, self._step_critics()

    def _step_critics(self) -> Tensor:
        """Move the critics, and the encoder if it was taught, by their gradients; return the agents' norms."""
        for parameter in self._critic_shared:
            if parameter.grad is not None:
                parameter.grad /= self.population.size
        norms = clip_gradients(self._critic_stack, self._critic_shared, self.config.max_gradient_norm)
        # Parameters that a step teaches nothing have no gradient, so that it leaves them and their moments alone.
        self.population.critic_optimizer.step()
        return norms

    def _block_inputs(self, first_day: Tensor, length: int) -> Tensor:
        """Network inputs of `length` days from a day on, and of their context: (N, days, 10)."""
        context = self.population.networks.context_days
        days = first_day + torch.arange(1 - context, length, device=first_day.device)
        return self.market.inputs.index_select(1, days)

    def _through_encoder(
        self, group: slice, inputs: Tensor, learn: Callable[[slice, DayEncoding], Tensor], *, teaches_encoder: bool
    ) -> Tensor:
        """Encode days for some agents, let their heads learn in pieces, then the encoder: (losses, agents)."""
        with torch.set_grad_enabled(teaches_encoder):
            encoding = self.population.networks.encode_distinct(inputs, self.market.investable, group)
        # The heads see leaves, so that their micro-batches need not keep or repeat the encoder's graph.
        leaf = encoding.detach()
        for part in (leaf.stocks, leaf.summary):
            part.requires_grad_(teaches_encoder)
        losses = [
            learn(heads, _of_each_agent(leaf.agents(_within(group, heads)), heads))
            for heads in _slices(group.stop, self.agents_per_head, group.start)
        ]
        if teaches_encoder:
            torch.autograd.backward([encoding.stocks, encoding.summary], [leaf.stocks.grad, leaf.summary.grad])
        return torch.cat(losses, dim=1)

    def _heads_on_transitions(
        self, heads: slice, known: DayEncoding, known_next: DayEncoding, first_day: Tensor, batch: TransitionBatch
    ) -> Tensor:
        """Add the gradients of some agents' losses: (2, agents), of critics and, without hindsight, of actors."""
        networks, targets, rules = self.population.networks, self.population.targets, self.rules
        position = batch.day - first_day
        state = StateBatch(position, batch.slot_stock, batch.slot_features, batch.account)
        next_state = StateBatch(position, batch.next_slot_stock, batch.next_slot_features, batch.next_account)
        next_candidates = candidate_stocks(self.market, batch.day + 1, next_state)
        next_value = target_value(targets, known_next, next_state, next_candidates, rules, heads)
        target = td_target(batch.reward, batch.terminated, next_value, self.config.gamma)
        learns_all = self.hindsight is None
        values = [
            executed_value(critic, known, batch, state, heads, learns_trades=learns_all)
            for critic in networks.each_critic()
        ]
        losses = critic_loss(values, target)
        losses.sum().backward()
        actor_losses = self._teach_actor(heads, known, state, batch.day) if learns_all else torch.zeros_like(losses)
        return torch.stack((losses.detach(), actor_losses))

    def _teach_actor(self, heads: slice, encoding: DayEncoding, state: StateBatch, day: Tensor) -> Tensor:
        """Add the gradients of some agents' actor losses, (agents,), in states of the (A, B) days."""
        networks = self.population.networks
        candidates = candidate_stocks(self.market, day, state)
        with _frozen(networks.critics):
            losses = actor_loss(policy_value(networks, encoding.detach(), state, candidates, self.rules, heads))
            losses.sum().backward()
        return losses.detach()


def with_noise(inputs: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Network inputs (N, days, 10) with Gaussian noise where there is a bar; the mask, the last channel, stays.

    Noise on inputs is a penalty on how fast the outputs change with them (Bishop 1995, "Training with noise is
    equivalent to Tikhonov regularization").
    """
    if std == 0:
        return inputs
    features, mask = inputs[..., :-1], inputs[..., -1:]
    noise = torch.randn(features.shape, generator=generator, device=inputs.device, dtype=inputs.dtype)
    return torch.cat((features + std * noise * mask, mask), dim=-1)


def _within(group: slice, heads: slice) -> slice:
    """Where some agents of a group are along that group."""
    return slice(heads.start - group.start, heads.stop - group.start)


def _of_each_agent(encoding: DayEncoding, heads: slice) -> DayEncoding:
    """A shared encoding as each agent's own, whose gradient counts only for the agents with finite gradients."""
    count = heads.stop - heads.start
    if len(encoding.stocks) == count:
        return encoding
    stocks, summary = encoding.stocks.expand(count, -1, -1, -1), encoding.summary.expand(count, -1, -1)
    for own in (stocks, summary):
        if own.requires_grad:
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


def _memory_for_pieces(device: torch.device) -> tuple[int, int]:
    """Bytes that the heads' and the encoders' part of an update may take at once."""
    if device.type != "cuda":
        return _CPU_HEAD_BYTES, _CPU_ENCODER_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    return int(free * _CUDA_HEAD_SHARE), int(free * _CUDA_ENCODER_SHARE)


def _slices(stop: int, length: int, start: int = 0) -> Iterator[slice]:
    """Cut start..stop into as few pieces as `length` allows, all of about the same length."""
    count = math.ceil((stop - start) / length)
    edges = [start + (stop - start) * piece // count for piece in range(count + 1)]
    yield from (slice(first, last) for first, last in pairwise(edges))


def _by_ownership(networks: AgentNetworks, *prefixes: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters whose rows belong to agents, and those that all agents share."""
    stacked: list[nn.Parameter] = []
    shared: list[nn.Parameter] = []
    for name, parameter in networks.named_parameters():
        if name.startswith(prefixes):
            (stacked if networks.is_stacked(name) else shared).append(parameter)
    return stacked, shared
