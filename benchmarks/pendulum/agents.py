"""DDPG agents for flat observations and actions, made of the trader's own layers, losses and target updates.

Actions inside are in [-1, 1]. Shapes: A agents, B states; the agents' parameters are rows of stacked tensors.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from models.networks import StackedLinear
from models.population import soft_update
from training.ddpg import actor_loss, clip_gradients, critic_loss, td_target


@dataclass(frozen=True)
class DDPGConfig:
    """Settings of one DDPG agent; the discount fits short episodes."""

    hidden: tuple[int, ...] = (64, 64)
    gamma: float = 0.98
    tau: float = 0.005
    actor_learning_rate: float = 5e-4
    critic_learning_rate: float = 1e-3
    batch_size: int = 128
    max_gradient_norm: float = float("inf")
    exploration_noise: float = 0.1
    """Standard deviation of Gaussian noise on actions in [-1, 1]."""


@dataclass(frozen=True)
class Batch:
    """A minibatch for each agent: (A, B, numbers) observations and actions, (A, B) rewards and terminations.

    An episode that was cut short has not terminated.
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    terminated: Tensor


class Networks(nn.Module):
    """An actor and a critic for each agent: perceptrons with rectified hidden layers."""

    def __init__(self, agents: int, observation: int, action: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.actor = _perceptrons(agents, (observation, *hidden, action))
        self.critic = _perceptrons(agents, (observation + action, *hidden, 1))

    def act(self, observation: Tensor) -> Tensor:
        """Map (A, B, observation) to actions in [-1, 1], (A, B, action)."""
        return cast(Tensor, self.actor(observation)).tanh()

    def value(self, observation: Tensor, action: Tensor) -> Tensor:
        """Return Q(s, a) of B states and actions, (A, B)."""
        return cast(Tensor, self.critic(torch.cat((observation, action), -1))).squeeze(-1)


def _perceptrons(agents: int, sizes: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [StackedLinear(agents, inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Agents:
    """Networks, targets and optimisers of A agents; every update moves all of them by one step."""

    def __init__(
        self, count: int, observation: int, action: int, config: DDPGConfig, device: torch.device | str = "cpu"
    ) -> None:
        self.count, self.config = count, config
        self.networks = Networks(count, observation, action, config.hidden).to(device)
        self.targets = copy.deepcopy(self.networks).requires_grad_(False)
        rates = {"actor": config.actor_learning_rate, "critic": config.critic_learning_rate}
        self.optimizers = {
            part: torch.optim.Adam(self.networks.get_submodule(part).parameters(), lr=rate, fused=True)
            for part, rate in rates.items()
        }

    def update(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Make one step (Lillicrap et al. 2016, algorithm 1); critic and actor losses before it, (A,) each."""
        networks, targets = self.networks, self.targets
        with torch.no_grad():
            next_value = targets.value(batch.next_observation, targets.act(batch.next_observation))
        target = td_target(batch.reward, batch.terminated, next_value, self.config.gamma)
        critic_losses = critic_loss([networks.value(batch.observation, batch.action)], target)
        self._step("critic", critic_losses)
        networks.critic.requires_grad_(False)
        actor_losses = actor_loss(networks.value(batch.observation, networks.act(batch.observation)))
        networks.critic.requires_grad_(True)
        self._step("actor", actor_losses)
        soft_update(targets, networks, self.config.tau)
        return critic_losses.detach(), actor_losses.detach()

    def _step(self, part: str, losses: Tensor) -> None:
        optimizer, parameters = self.optimizers[part], list(self.networks.get_submodule(part).parameters())
        optimizer.zero_grad()
        losses.sum().backward()
        clip_gradients(parameters, [], self.config.max_gradient_norm)
        optimizer.step()

    def stacks(self) -> dict[str, Tensor]:
        """Return every tensor whose rows belong to agents, named as `training.evolution` expects them."""
        stacks: dict[str, Tensor] = {}
        for name, parameter in self.networks.named_parameters():
            stacks[f"networks.{name}"] = parameter.data
            stacks[f"targets.{name}"] = self.targets.get_parameter(name).data
            moments = self.optimizers[name.partition(".")[0]].state.get(parameter, {})
            stacks |= {f"{moment}.{name}": moments[moment] for moment in ("exp_avg", "exp_avg_sq") if moment in moments}
        return stacks
