"""A population of DDPG agents: parameters, targets and moments stacked, and each agent as a view of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from models import genome
from models.cash_value import FEATURES, CashValue
from models.ddpg_agent import Committee, DDPGAgent, Evidence, Learner
from models.inputs import GROUP_OF_INPUT, TradeInputs
from models.networks import Networks, NetworkSizes
from models.trader import Traders
from utils.config.trader import EnvironmentConfig, LearningConfig
from utils.spaces import TARGET_PERCENTS

UNKNOWN = Evidence(selection=1.0, timing=1.0)
"""Of an untested agent."""
_GROUP_MUTATION = 0.1
"""Share of a child's feature groups that are toggled."""


class Population:
    """The agents of a run, and their stacked networks; None where agents are closed forms only.

    The feature groups of a network are inherited with it: its weights belong to its inputs.
    """

    def __init__(self, agents: list[DDPGAgent], networks: Networks | None, feature_groups: Tensor) -> None:
        """Take agents whose networks are views of rows.

        Args:
            feature_groups: (P, groups) bool: the groups of inputs that each agent's network sees.
        """
        self.agents, self.networks, self.feature_groups = agents, networks, feature_groups

    @classmethod
    def initialize(
        cls,
        size: int,
        learning: LearningConfig,
        inputs: TradeInputs,
        rules: EnvironmentConfig,
        folds: int,
        device: torch.device,
        generator: torch.Generator,
        learner: Learner | None = None,
    ) -> Population:
        """Draw the networks of so many agents, and their feature groups."""
        feature_groups, networks = genome.random_feature_groups(size, generator), None
        if learning.gradient_steps > 0:
            sizes = NetworkSizes(learning.hidden, folds, len(TARGET_PERCENTS), FEATURES)
            networks = Networks.initialize(input_mask_of(feature_groups), sizes, learning.learning_rate, generator).to(
                device
            )
        nothing, cash_value = Traders.of_market(rules, len(GROUP_OF_INPUT)).to(device), CashValue.zero(rules, device)
        agents = [
            DDPGAgent(
                inputs,
                nothing,
                cash_value,
                rules,
                UNKNOWN,
                None if networks is None else networks.rows(slice(row, row + 1)),
                noise_scale=learning.exploration_noise,
                learner=learner,
            )
            for row in range(size)
        ]
        return cls(agents, networks, feature_groups)

    def inform(self, traders: Traders, cash_value: CashValue) -> None:
        """Give the agents the closed forms on which their networks stand: (P,) ridge regressions, one value of cash."""
        for row, agent in enumerate(self.agents):
            agent.traders, agent.cash_value = traders.rows(slice(row, row + 1)), cash_value

    def weigh(self, blend: Tensor, weights: Tensor, deviation: Tensor, target: Tensor, gate: Tensor) -> None:
        """Give each agent the blend of its forecasts: (P, ...) each, see `Committee.of`."""
        device = self.agents[0].device
        ridge = (blend[:, :1] * weights).to(device)
        # One copy to the device for all agents: the host would wait for each otherwise.
        whole = vars(Committee.of(blend, weights, deviation, target, gate, device))
        for row, agent in enumerate(self.agents):
            own = {name: part[row : row + 1] for name, part in whole.items()}
            agent.committee = Committee(**(own | {"ridge": ridge[row]}))

    @torch.no_grad()
    def inherit(self, parents: Tensor, generator: torch.Generator) -> None:
        """Give each (P,) row the networks, targets and moments of its parent; elites are their own parents.

        Some of a child's feature groups are toggled.
        """
        is_child = parents != torch.arange(len(parents))
        self.feature_groups = genome.mutate_feature_groups(
            self.feature_groups[parents], is_child, _GROUP_MUTATION, generator
        )
        if self.networks is not None:
            rows = parents.to(self.networks.input_mask.device)
            self.networks.assign({name: part[rows] for name, part in self.networks.tensors().items()})
            self.networks.input_mask.copy_(input_mask_of(self.feature_groups))
            self.networks.apply_mask()

    def state_dict(self) -> dict[str, Any]:
        """Return networks, feature groups and the last losses; nothing without networks."""
        if self.networks is None:
            return {}
        losses = [{name: list(own) for name, own in agent.losses.items()} for agent in self.agents]
        return {"feature_groups": self.feature_groups, "networks": self.networks.tensors(), "losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        if self.networks is None:
            return
        self.feature_groups = state["feature_groups"].cpu()
        self.networks.assign(state["networks"])
        for agent, losses in zip(self.agents, state["losses"], strict=True):
            for name, own in losses.items():
                agent.losses[name].clear()
                agent.losses[name].extend(own)


def input_mask_of(feature_groups: Tensor) -> Tensor:
    """Return the (P, inputs) mask of (P, groups) feature groups."""
    groups: Sequence[int] = GROUP_OF_INPUT[1:].tolist()
    return feature_groups[:, groups]
