"""How much the actors' outputs react to each of their weights, for mutations that preserve behaviour."""

from __future__ import annotations

import torch
from torch import Tensor

from data.market import MarketTensors
from models.networks import StateBatch
from models.population import Population
from models.replay_buffer import ReplayBuffer
from training.ddpg import policy_action
from utils.config.trader import LearningConfig
from utils.spaces import ACTION_FEATURES


def actor_sensitivity(
    population: Population,
    replay: ReplayBuffer,
    market: MarketTensors,
    config: LearningConfig,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Output gradients of each actor weight over a batch of states, relative to the mean of its tensor.

    s = sqrt(sum over outputs k of (d mean_k / d weight)^2), SM-G-SUM of Lehman et al. 2018, "Safe mutations for deep
    and recurrent neural networks through output gradients". By parameter name, shaped as the stacks.
    """
    states = min(config.batch_size, 64)
    first_day, batch = replay.sample_block(1, population.size, states, generator)
    context = population.networks.context_days
    days = first_day + torch.arange(1 - context, 1, device=first_day.device)
    with torch.no_grad():
        encoding = population.networks.encode_distinct(market.inputs.index_select(1, days), market.investable)
    state = StateBatch(batch.day - first_day, batch.slot_stock, batch.slot_features, batch.account)
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
