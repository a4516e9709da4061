"""Crossover and mutation that preserve behaviour (PDERL; Bodnar, Day and Lio 2020).

A child learns, state by state, the better of its parents' actions, judged by both parents' critics, since here every
agent has its own. A mutant's noise is scaled down where its outputs are sensitive to a weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from data.market import MarketTensors
from environment.orders import OrderLimits
from models.networks import AgentNetworks, DayEncoding, StateBatch
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.ddpg import action_values, may_order, policy_action, relaxed_choice
from training.evolution import Selection
from utils.spaces import ACTION_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT

_STATES = 64
_BLOCK_DAYS = 16


@dataclass(frozen=True)
class DistillationBatch:
    """States of each child with the actions to learn."""

    stocks: Tensor
    """(children, B, n, C) encodings by the parent's encoder, which the child inherits."""
    summary: Tensor
    positions: Tensor
    account: Tensor
    action: Tensor
    """(children, B, n, 2)."""


@torch.no_grad()
def distillation_batches(
    population: Population,
    selection: Selection,
    replay: ReplayBuffer,
    market: MarketTensors,
    limits: OrderLimits,
    temperature: float,
    steps: int,
    generator: torch.Generator,
) -> list[DistillationBatch]:
    """Draw a batch for each gradient step of the children; call it while the parents are still in place."""
    rows = selection.is_child.nonzero().flatten()
    if not len(rows):
        return []
    networks = population.networks
    parents, mates = (index[rows].to(population.device) for index in (selection.parents, selection.mates))

    def draw() -> DistillationBatch:
        encoding, day, state = _sample_states(networks, replay, market, _BLOCK_DAYS, (len(rows), _STATES), generator)
        acted = [(agents, *policy_action(networks, encoding.of(agents), state, agents)) for agents in (parents, mates)]
        critic, candidates, values = networks.each_critic()[0], may_order(market, day, state), []
        for _, action, _, _ in acted:
            judged = [
                action_values(critic, action, stocks, summary, state.account, limits, judge)
                for judge, _, stocks, summary in acted
            ]
            value = torch.stack(judged).sum(0)
            values.append(relaxed_choice(action, value, candidates, limits.orders_per_day, temperature))
        (_, own, stocks, summary), (_, other, _, _) = acted
        better = torch.where((values[1] > values[0])[..., None, None], other, own)
        return DistillationBatch(stocks, summary, state.slot_features, state.account, better)

    return [draw() for _ in range(steps)]


def distill(
    population: Population, selection: Selection, batches: list[DistillationBatch], learning_rate: float
) -> None:
    """Fit the children's actors to their batches; nobody else's weights move, optimiser moments stay as inherited."""
    children = selection.is_child.nonzero().flatten().to(population.device)
    actor = population.networks.actor
    # Rows without a gradient have zero moments in a fresh Adam, which leaves them as they are, bit for bit.
    optimizer = torch.optim.Adam(actor.parameters(), lr=learning_rate)
    scale = torch.tensor((MAX_COEFFICIENT, MAX_TARGET_PERCENT), device=population.device)
    for batch in batches:
        optimizer.zero_grad()
        with torch.enable_grad():
            action = actor(batch.stocks, batch.summary, batch.positions, batch.account, children)
            loss = ((action - batch.action) / scale).square().mean(dim=(1, 2, 3)).sum()
        loss.backward()
        optimizer.step()


@torch.enable_grad()
def actor_sensitivity(
    population: Population, replay: ReplayBuffer, market: MarketTensors, states: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Measure how the outputs react to each actor weight over a batch of states, relative to its tensor's mean.

    s = sqrt(sum over outputs k of (d mean_k / d weight)^2), SM-G-SUM of Lehman et al. 2018, "Safe mutations for deep
    and recurrent neural networks through output gradients". By parameter name, shaped as the stacks.
    """
    shape = (population.size, min(states, _STATES))
    encoding, _, state = _sample_states(population.networks, replay, market, 1, shape, generator)
    action, _, _ = policy_action(population.networks, encoding, state, slice(None))
    names, parameters = zip(*population.networks.actor.named_parameters(), strict=True)
    squares = [torch.zeros_like(p) for p in parameters]
    for output in range(ACTION_FEATURES):
        mean = action[..., output].mean(dim=(1, 2)).sum()
        gradients = torch.autograd.grad(mean, parameters, retain_graph=output + 1 < ACTION_FEATURES)
        for square, gradient in zip(squares, gradients, strict=True):
            square += gradient.square()
    return {f"actor.{name}": _relative(square.sqrt()) for name, square in zip(names, squares, strict=True)}


def _relative(sensitivity: Tensor) -> Tensor:
    mean = sensitivity.flatten(1).mean(dim=1).view(-1, *[1] * (sensitivity.dim() - 1))
    return sensitivity / mean.clamp(min=1e-12)


@torch.no_grad()
def _sample_states(
    networks: AgentNetworks,
    replay: ReplayBuffer,
    market: MarketTensors,
    block_days: int,
    shape: tuple[int, int],
    generator: torch.Generator,
) -> tuple[DayEncoding, Tensor, StateBatch]:
    """Draw (A, B) states from one block of days: encodings of the block by all agents, the states' days, the states."""
    first_day, batch = replay.sample_block(block_days, *shape, generator)
    days = first_day + torch.arange(1 - networks.context_days, block_days, device=first_day.device)
    inputs = market.inputs.index_select(1, days.clamp(max=market.days - 1))
    encoding = networks.encode_distinct(inputs, market.investable)
    state = StateBatch(batch.day - first_day, batch.slot_stock, batch.slot_features, batch.account)
    return encoding, batch.day, state
