"""A population of DDPG agents: genes and stacked networks, and each agent as a view of its row."""

import copy
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from data.features.inputs import TradeInputs
from models.ddpg_agent import HISTORY, DDPGAgent
from models.evidence import Evidence
from models.evolution import (
    DOUBT,
    HORIZON,
    elite_count,
    mutate_actors,
    mutate_feature_groups,
    random_feature_groups,
    random_genes,
    ranked,
)
from models.networks import Networks
from utils.config.trader import EnvironmentConfig, EvolutionConfig, LearningConfig
from utils.memory_guard import require_memory

_STATE = ("genes", "feature_groups", "gains", "elites", "founders", "examined", "updates", "fittest", "fitness")
UNKNOWN = Evidence()
"""Of an untested agent."""
ORIGINS = ("founders", "elites", "children")
"""Origin of an agent: drawn for the first generation, kept from the one before, or bred from it."""


class Population:
    """All state of the agents of a run. `population[i]` is a view of one of them."""

    def __init__(
        self,
        evolution: EvolutionConfig,
        learning: LearningConfig,
        inputs: TradeInputs,
        rules: EnvironmentConfig,
        device: torch.device,
        generators: Mapping[str, torch.Generator],
        *,
        gains: Tensor,
        scale: float,
    ) -> None:
        """Draw genes and networks.

        Args:
            gains: (folds, inputs) of all inputs, see `ActorCritic`.
            scale: percent in a unit of what networks tell.
        """
        size, units, inputs_seen = evolution.population_size, learning.hidden, len(inputs.group_of_input)
        weights = {"--population-size": size, "--learning.hidden": units, "weights": (units + inputs_seen) * len(gains)}
        # With targets, gradients, moments, and the copies of a generation and a checkpoint.
        require_memory("networks", {**weights, "bytes": 60})
        self.evolution, self.inputs, self.rules, self.device = evolution, inputs, rules, device
        self.noise_scale = learning.exploration_noise
        self.genes = random_genes(size, generators["evolution"])
        """(P, genes)"""
        self.feature_groups = random_feature_groups(size, len(inputs.groups), generators["networks"])
        """(P, groups) bool: the groups of inputs that each agent's networks see; inherited with the networks."""
        self.gains = gains.cpu()
        """(folds, inputs) of agents that see all inputs."""
        drawn = Networks.initialize(
            self.gains_of_agents, learning.hidden, learning.learning_rate, generators["networks"], scale
        )
        self.networks = drawn.map(lambda part: part.to(device))
        self.elites = list(range(elite_count(evolution)))
        """Rows of the fittest agents of the last evaluation, the fittest first."""
        self.founders = list(range(size))
        """For each agent its ancestor in the first generation, by first parents."""
        self.examined = 0
        """Agents that were evaluated so far, also in runs that this one extends; elites count once."""
        self.updates = 0
        """Gradient steps of all agents so far."""
        self.fitness = torch.full((size,), torch.nan, dtype=torch.float64)
        """(P,) of the last evaluation."""
        self.fittest = dict.fromkeys(ORIGINS, 0)
        """Number of generations by the origin of their fittest agent."""
        self._views = [self._agent(slice(row, row + 1)) for row in range(size)]

    def __len__(self) -> int:
        return len(self.genes)

    def __getitem__(self, row: int) -> DDPGAgent:
        agent = self._views[row]
        agent.genes = self.values[[row]]
        return agent

    def committee(self, rows: Sequence[int]) -> DDPGAgent:
        """Return some agents as one, untested."""
        return self._agent(torch.tensor(rows, device=self.device))

    def _agent(self, rows: slice | Tensor) -> DDPGAgent:
        networks, genes = self.networks.rows(rows), self.values[rows].clone()  # a view would hold the genes of all
        return DDPGAgent(self.inputs, networks, genes, self.rules, UNKNOWN, noise_scale=self.noise_scale)

    @property
    def values(self) -> Tensor:
        """(P, genes) float64 genes as they are read, not their logarithms."""
        return (2.0**self.genes).to(self.device)

    @property
    def gammas(self) -> Tensor:
        """(P,) float32 discounts from one decision to the next."""
        return (1.0 - 1.0 / self.values[:, HORIZON]).float()

    @property
    def gains_of_agents(self) -> Tensor:
        """(P, folds, inputs) float32, 0 of inputs that an agent's networks do not see."""
        powers = (2.0 ** self.genes[:, DOUBT, None, None]).float()
        return self.gains**powers * self.feature_groups[:, None, self.inputs.group_of_input]

    @property
    def trials(self) -> int:
        """Agents among which the elites were selected out of fold, for which p-values are adjusted."""
        return max(self.examined, len(self))

    @property
    def fittest_agent(self) -> DDPGAgent:
        """A clone of the fittest agent of the last evaluation."""
        return self[self.elites[0]].clone()

    def select_elites(self, fitness: Tensor) -> None:
        """Take the (P,) fitness of an evaluation; choose the elites."""
        is_first = not self.examined
        self.examined += len(self) if is_first else len(self) - len(self.elites)
        self.fitness = fitness.cpu().double()
        best = ranked(self.fitness)[: len(self.elites)].tolist()
        origin = "founders" if is_first else "elites" if best[0] in self.elites else "children"
        self.fittest, self.elites = self.fittest | {origin: self.fittest[origin] + 1}, best

    def note_losses(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        """Append the (updates, P) losses of a generation to those of the agents; return means, with gradient norms."""
        on_host = {name: one.cpu() for name, one in losses.items()}
        for row, agent in enumerate(self._views):
            for name, loss in on_host.items():
                agent.losses[name].extend(loss[:, row].tolist())
        optimizers = self.networks.optimizers
        return {
            **{f"{name}_loss": float(loss.mean()) for name, loss in on_host.items()},
            **{f"{name}_gradient_norm": float(one.norm.mean()) for name, one in optimizers.items()},
            "skipped_updates": float(sum(one.skipped.sum() for one in optimizers.values())),
        }

    @torch.no_grad()
    def inherit(self, genes: Tensor, parents: Tensor, generators: Mapping[str, torch.Generator]) -> None:
        """Replace genes, and give each row the networks, targets and moments of its (P,) parent; elites are their own.

        A child's actor mutates by noise in proportion to its size, and some of its feature groups are toggled.
        """
        self.genes = genes
        self.founders = [self.founders[parent] for parent in parents.tolist()]
        is_child = parents != torch.arange(len(parents))
        self.feature_groups = mutate_feature_groups(self.feature_groups[parents], is_child, generators["sight"])
        rows = parents.to(self.device)
        self.networks.assign({name: part[rows] for name, part in self.networks.tensors.items()})
        self.networks.gains.copy_(self.gains_of_agents)
        online, target = self.networks.tensors["actor"], self.networks.tensors["actor_target"]
        mutate_actors(online, target, is_child, self.evolution.mutation_strength, generators["networks"])
        self.networks.mask()
        for optimizer in self.networks.optimizers.values():
            optimizer.skipped[is_child.to(self.device)] = 0.0  # a parent's are counted in its own row
        losses = [copy.deepcopy(self[parent].losses) for parent in parents.tolist()]
        for row, of_parent in enumerate(losses):
            self[row].losses = of_parent

    def state_dict(self) -> dict[str, Any]:
        """Return everything."""
        state = {name: getattr(self, name) for name in _STATE}
        losses = [{name: list(values) for name, values in agent.losses.items()} for agent in self._views]
        return state | {"networks": self.networks.tensors, "losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        vars(self).update({name: state[name] for name in _STATE})
        self.feature_groups, self.gains = self.feature_groups.cpu(), self.gains.cpu()
        self.networks.assign(state["networks"])
        for agent, losses in zip(self._views, state["losses"], strict=True):
            agent.losses = {name: deque(values, maxlen=HISTORY) for name, values in losses.items()}
