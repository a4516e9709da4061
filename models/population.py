"""A population of DDPG agents as one stack of parameters: created once, then only changed in place."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from models.ddpg_agent import DDPGAgent
from models.networks import AgentNetworks
from utils.config.trader import LearningConfig, NetworkConfig


class Population:
    """Networks, target networks and optimisers of all agents; agents are rows of the stacked tensors."""

    def __init__(
        self,
        size: int,
        network: NetworkConfig,
        learning: LearningConfig,
        context_days: int,
        device: torch.device | str = "cpu",
    ) -> None:
        self.size = size
        self.network_config = network
        self._learning = learning
        self.networks = AgentNetworks(size, network, context_days).to(device)
        self.targets = copy.deepcopy(self.networks).requires_grad_(False)
        # Moments live next to the parameters with the same first dimension, so that their rows stay with their agents.
        self.actor_optimizer = torch.optim.Adam(
            self.networks.actor.parameters(), lr=learning.actor_learning_rate, fused=True
        )
        # The critics learn the encoder too; the actor reads it without gradients. Queries shrink by a rate of their
        # own: flat ones mix a column that stands out with all others, so that it is never found.
        queries = self.networks.encoder.queries
        learned = (*self.networks.encoder.parameters(), *self.networks.critics.parameters())
        groups = [
            {"params": [p for p in learned if p is not queries], "weight_decay": learning.critic_weight_decay},
            {"params": [queries], "weight_decay": learning.query_weight_decay},
        ]
        self.critic_optimizer = torch.optim.AdamW(groups, lr=learning.critic_learning_rate, fused=True)

    def scale_learning_rates(self, share: float) -> None:
        """Take steps of this share of the learning rates that the settings give."""
        rates = self._learning.actor_learning_rate, self._learning.critic_learning_rate
        for optimizer, rate in zip((self.actor_optimizer, self.critic_optimizer), rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = share * rate

    @property
    def is_shared(self) -> bool:
        """True where one encoder serves all agents."""
        return self.networks.is_shared

    def stacks(self) -> dict[str, Tensor]:
        """Return every tensor whose rows belong to agents, by name: parameters, targets and optimiser moments."""
        stacks: dict[str, Tensor] = {}
        for name, parameter in self.networks.named_parameters():
            if self.networks.is_stacked(name):
                stacks[f"networks.{name}"] = parameter.data
                stacks[f"targets.{name}"] = self.targets.get_parameter(name).data
                for moment, value in self._moments(name, parameter).items():
                    stacks[f"{moment}.{name}"] = value
        return stacks

    def _moments(self, name: str, parameter: nn.Parameter) -> dict[str, Tensor]:
        optimizer = self.actor_optimizer if name.startswith("actor.") else self.critic_optimizer
        state = optimizer.state.get(parameter, {})
        return {moment: state[moment] for moment in ("exp_avg", "exp_avg_sq") if moment in state}

    def write(self, stacks: dict[str, Tensor]) -> None:
        """Replace the rows of all agents in place by those of `stacks`, named as `stacks()` names them."""
        for name, value in self.stacks().items():
            value.copy_(stacks[name])

    def agent(self, index: int) -> DDPGAgent:
        """Copy one agent into an object of its own."""
        agent = DDPGAgent(self.network_config, self.networks.context_days, device=self.device)
        self.copy_agent(index, agent)
        return agent

    @torch.no_grad()
    def copy_agent(self, index: int, agent: DDPGAgent) -> None:
        """Overwrite `agent`'s networks by those of the agent at `index`."""
        for name, parameter in self.networks.named_parameters():
            row = index if self.networks.is_stacked(name) else 0
            agent.networks.get_parameter(name)[0].copy_(parameter[row])
        agent.forget_encodings()

    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return self.networks.encoder.queries.device

    def update_targets(self, tau: float) -> None:
        """Move all target networks by a soft (Polyak) update."""
        soft_update(self.targets, self.networks, tau)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to continue exactly."""
        return {
            "networks": self.networks.state_dict(),
            "targets": self.targets.state_dict(),
            "actor_optimizer": _optimizer_state(self.actor_optimizer),
            "critic_optimizer": _optimizer_state(self.critic_optimizer),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.networks.load_state_dict(state["networks"])
        self.targets.load_state_dict(state["targets"])
        _load_optimizer_state(self.actor_optimizer, state["actor_optimizer"])
        _load_optimizer_state(self.critic_optimizer, state["critic_optimizer"])


@torch.no_grad()
def soft_update(targets: nn.Module, networks: nn.Module, tau: float) -> None:
    """Move target networks by the share `tau` towards the networks (Lillicrap et al. 2016, algorithm 1)."""
    online: list[Tensor] = list(networks.parameters())
    behind: list[Tensor] = list(targets.parameters())
    torch._foreach_lerp_(behind, online, tau)


def _optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return moments by the parameter's place; learning rates come from the settings."""
    return {str(place): dict(state) for place, state in optimizer.state_dict()["state"].items()}


def _load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    whole = optimizer.state_dict()
    whole["state"] = {int(place): moments for place, moments in state.items()}
    optimizer.load_state_dict(whole)
