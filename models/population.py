"""A population of DDPG agents: genes, closed forms and stacked networks, and each agent as a view of its row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from models import risk
from models.cash_value import CashValue
from models.ddpg_agent import HISTORY, DDPGAgent, Members
from models.evidence import Evidence, Trust
from models.evolution import (
    TARGET,
    VALUE_WEIGHT,
    elite_count,
    mutate_feature_groups,
    random_feature_groups,
    random_genes,
    ranked,
)
from models.inputs import GROUP_OF_INPUT, TradeInputs
from models.networks import Networks
from models.replay_buffer import Batch
from models.trader import Blend, Stacked, Traders
from utils.config.trader import EnvironmentConfig, EvolutionConfig, LearningConfig
from utils.spaces import TARGET_PERCENTS

_OF_ACCOUNT = (".continuation", ".size")
"""Ends of the names of the networks that read the account."""
_STATE = ("genes", "elites", "founders", "examined", "updates", "fittest", "fitness")
UNKNOWN = Evidence(selection=1.0, timing=1.0)
"""Of an untested agent."""
ORIGINS = ("founders", "elites", "children")
"""Origin of an agent: drawn for the first generation, kept from the one before, or bred from it."""


@dataclass(frozen=True)
class RidgeRegressions(Stacked):
    """The ridge regressions of A agents, on the CPU."""

    weights: Tensor
    """(A, inputs) fitted to all training days."""
    by_fold: Tensor
    """(A, folds, inputs) without each fold."""
    explained: Tensor
    """(A,) share of the variance of results at the agent's target that its forecast explains out of fold."""
    timing: Tensor
    """(A,) trust in the level of a day, 0 to 1, see `training.forecasts.timing`."""
    shift: Tensor
    """(A, inputs) weights of the day's mean inputs, which take off the share of the level that is not trusted."""
    shift_by_fold: Tensor
    """(A, folds, inputs) of the regressions without each fold."""
    risk: Tensor
    """(A, numbers) weights of what the risk of orders costs, see `models.risk`; 0: nothing."""
    risk_by_fold: Tensor
    """(A, folds, numbers) fitted without each fold."""

    @classmethod
    def zero(cls, agents: int, folds: int, inputs: int) -> RidgeRegressions:
        """Return regressions that forecast nothing."""
        shapes = (inputs,), (folds, inputs), (), (), (inputs,), (folds, inputs), (risk.NUMBERS,), (folds, risk.NUMBERS)
        return cls(*(torch.zeros(agents, *shape, dtype=torch.float64) for shape in shapes))


@dataclass(frozen=True)
class Outcomes:
    """Statistics of what orders of the training days earned, at each of `TARGET_PERCENTS`: percent of the initial
    capital, (targets,) each."""

    deviation: Tensor
    """Of results less their day's mean."""
    typical: Tensor
    """Mean results."""


@dataclass(frozen=True)
class Learners:
    """A agents as an update sees them."""

    networks: Networks
    traders: Traders
    by_fold: Tensor
    """(A, folds, inputs) float32 weights of the ridge regressions."""
    cash_value: CashValue
    inputs: TradeInputs
    outcomes: Outcomes
    risk: Tensor | None = None
    """(A, folds, numbers) float32, see `models.risk`; None: no aversion to risk."""

    def risks(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the risk of orders costs, and the share of forecasts that comes true, by (folds, D, S, inputs):
        (A, folds, D, S) each. Only with aversion to risk."""
        assert self.risk is not None
        weights = self.risk[:, :, None]
        known = risk.numbers(x, self.inputs.volatility_scale)
        daily = known[..., 2:].mean(-2, keepdim=True).expand_as(known[..., 2:])
        penalty = risk.penalties(torch.cat((known[..., :2], daily), dim=-1), weights)
        return penalty, risk.shares(penalty, weights)

    def ridge(self, x: Tensor) -> Tensor:
        """Return the ridge forecasts of (folds, D, S, inputs), (A, folds, D, S), less their mean over the S stocks."""
        by_row = torch.matmul(x.flatten(1, 2), self.by_fold.movedim(0, -1))  # (folds, D * S, A)
        forecast: Tensor = by_row.movedim(-1, 0).unflatten(2, x.shape[1:3])
        if self.risk is not None:
            forecast = forecast * self.risks(x)[1]
        return forecast - forecast.mean(-1, keepdim=True)


Learn = Callable[[Learners, Batch, int], Mapping[str, Tensor]]
"""Updates agents by a batch in this number of micro-batches, see `training.ddpg`; returns (A,) losses."""


class Population:
    """All state of the agents of a run. `population[i]` is a view of one of them."""

    def __init__(
        self,
        evolution: EvolutionConfig,
        learning: LearningConfig,
        inputs: TradeInputs,
        rules: EnvironmentConfig,
        outcomes: Outcomes | None,
        folds: int,
        device: torch.device,
        generators: Mapping[str, torch.Generator],
        learn: Learn,
    ) -> None:
        """Draw genes and networks; agents without gradient steps are closed forms only."""
        size = evolution.population_size
        self.evolution, self.inputs, self.learn, self.has_risk = evolution, inputs, learn, learning.risk_aversion > 0
        self.genes = random_genes(size, generators["evolution"])
        """(P, genes)"""
        self.feature_groups = random_feature_groups(size, generators["networks"])
        """(P, groups) bool: the groups of inputs that each agent's networks see; inherited with the networks."""
        self.networks, self.outcomes = None, outcomes
        if learning.has_networks:
            mask, draws = input_mask_of(self.feature_groups), generators["networks"]
            drawn = Networks.initialize(mask, learning.hidden, folds, learning.learning_rate, draws)
            self.networks = drawn.map(lambda part: part.to(device))
        self.cash_value = CashValue.zero(rules, device)
        self.ridge = RidgeRegressions.zero(size, folds, len(GROUP_OF_INPUT))
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
        nothing = traders_of(self.genes[:1], self.ridge.weights[:1], device)
        trust = Trust.full(len(GROUP_OF_INPUT), device)
        self.agents = [DDPGAgent(inputs, nothing, self.cash_value, rules, UNKNOWN, trust) for _ in range(size)]
        for row, agent in enumerate(self.agents):
            agent.noise_scale = learning.exploration_noise
            if self.networks is not None:
                agent.networks = self.networks.rows(slice(row, row + 1))
                agent.learner = partial(self._learn_alone, row)

    def _learn_alone(self, row: int, batch: Batch, accumulate: int) -> Mapping[str, Tensor]:
        return self.learn(self.learners(slice(row, row + 1)), batch, accumulate)

    def __len__(self) -> int:
        return len(self.genes)

    def __getitem__(self, row: int) -> DDPGAgent:
        return self.agents[row]

    def stand_on(self, ridge: RidgeRegressions, cash_value: CashValue) -> None:
        """Give the agents the closed forms on which their networks stand: ridge regressions of their own, and one value
        of cash."""
        self.ridge, self.cash_value = ridge, cash_value
        self._refresh()

    @property
    def trials(self) -> int:
        """Agents among which the elites were selected out of fold, for which p-values are adjusted.

        Agents without networks are not counted.
        """
        return 1 if self.networks is None else max(self.examined, len(self))

    def _refresh(self) -> None:
        traders, members = self.traders, None if self.networks is None else self.members(slice(None))
        weights = self.ridge.risk.to(self.device) if self.has_risk else [None] * len(self)
        trust = zip(self.ridge.timing.tolist(), self.ridge.shift.to(self.device), strict=True)
        for row, (agent, (timing, shift)) in enumerate(zip(self.agents, trust, strict=True)):
            rows = slice(row, row + 1)
            agent.traders, agent.cash_value = traders.rows(rows), self.cash_value
            agent.trust = Trust(1.0, timing, shift)
            agent.members, agent.risk = members and members.rows(rows), weights[row]

    @property
    def traders(self) -> Traders:
        """The closed-form parts of the agents."""
        return traders_of(self.genes, self.ridge.weights, self.device)

    @property
    def device(self) -> torch.device:
        """Device of networks and of the value of cash."""
        return self.cash_value.weights.device

    def members(self, rows: slice | Tensor, blend: Blend | None = None) -> Members:
        """Return how some agents forecast together, by this blend or by that of their last evaluation."""
        assert self.networks is not None and self.outcomes is not None
        base = self.networks.base[rows if isinstance(rows, slice) else rows.to(self.device)].double()
        ridge, network = (base[:, 0], base[:, 1]) if blend is None else (blend.ridge, blend.network)
        numbers = torch.column_stack((self.ridge.weights[rows], target_percents(self.genes[rows]))).to(self.device)
        parts = (part.clone() for part in (numbers[:, :-1], ridge, network, numbers[:, -1]))
        return Members(*parts, *vars(self.outcomes).values())

    def learners(self, rows: slice = slice(None)) -> Learners:
        """Return some agents as an update sees them."""
        assert self.networks is not None and self.outcomes is not None
        networks = self.networks if rows == slice(None) else self.agents[rows.start].networks
        assert networks is not None
        by_fold = self.ridge.by_fold[rows].float().to(self.device)
        risk = self.ridge.risk_by_fold[rows].float().to(self.device) if self.has_risk else None
        return Learners(networks, self.traders.rows(rows), by_fold, self.cash_value, self.inputs, self.outcomes, risk)

    def evaluated(self, fitness: Tensor, blend: Blend) -> None:
        """Take the (P,) fitness of an evaluation and how agents blended their forecasts in it; choose the elites."""
        is_first = not self.examined
        self.examined += len(self) if is_first else len(self) - len(self.elites)
        self.fitness = fitness.cpu().double()
        best = ranked(self.fitness)[: len(self.elites)].tolist()
        origin = "founders" if is_first else "elites" if best[0] in self.elites else "children"
        self.fittest, self.elites = self.fittest | {origin: self.fittest[origin] + 1}, best
        if self.networks is not None:
            self.networks.base.copy_(torch.stack((blend.ridge, blend.network, blend.unit), dim=1))
            self._refresh()

    def note_losses(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        """Append the (updates, A) losses of a generation to those of the agents; return means, with gradient norms."""
        assert self.networks is not None
        on_host = {name: own.cpu() for name, own in losses.items()}
        for row, agent in enumerate(self.agents):
            for name, loss in on_host.items():
                agent.losses[name].extend(loss[:, row].tolist())
        optimizers = {"critic": self.networks.critic_optimizer, "actor": self.networks.actor_optimizer}
        return {
            **{f"{name}_loss": float(loss.mean()) for name, loss in on_host.items()},
            **{f"{name}_gradient_norm": float(own.norm.mean()) for name, own in optimizers.items()},
            "skipped_updates": float(sum(own.skipped.sum() for own in optimizers.values())),
        }

    @property
    def best_agent(self) -> DDPGAgent:
        """A clone of the fittest agent of the last evaluation."""
        return self.agents[self.elites[0]].clone()

    def committee(self, rows: Sequence[int]) -> DDPGAgent:
        """Return some agents as one, untested: the mean of their closed forms and of their actors' outputs."""
        chosen, first = torch.tensor(list(rows)), self.agents[0]
        traders = traders_of(self.genes[chosen], self.ridge.weights[chosen], "cpu").mean().to(self.device)
        ridge = self.ridge.rows(chosen)
        trust = Trust(1.0, float(ridge.timing.mean()), ridge.shift.mean(0).to(self.device))
        agent = DDPGAgent(self.inputs, traders, self.cash_value, first.rules, UNKNOWN, trust)
        agent.risk = ridge.risk.mean(0).to(self.device) if self.has_risk else None
        if self.networks is not None:
            agent = replace(agent, networks=self.networks.rows(chosen.to(self.device)), members=self.members(chosen))
        return agent

    @torch.no_grad()
    def inherit(
        self, genes: Tensor, parents: Tensor, others: Tensor, generators: Mapping[str, torch.Generator]
    ) -> None:
        """Replace genes, and give each row the networks, targets and moments of its (P,) parents; elites are their own.

        The networks that read stocks come from the first parent, those that read the account from the other one:
        networks of one origin fit together, which single weights of two networks do not. A child's actor mutates by
        noise in proportion to each layer, and some of its feature groups are toggled.
        """
        self.genes = genes
        self.founders = [self.founders[parent] for parent in parents.tolist()]
        is_child = parents != torch.arange(len(parents))
        self.feature_groups = mutate_feature_groups(self.feature_groups[parents], is_child, generators["sight"])
        if self.networks is None:
            return
        networks, rows = self.networks, {True: others.to(self.device), False: parents.to(self.device)}
        networks.assign({n: part[rows[n.endswith(_OF_ACCOUNT)]] for n, part in networks.tensors.items()})
        networks.input_mask.copy_(input_mask_of(self.feature_groups))
        networks.mask()
        self._mutate(is_child.to(self.device), generators["networks"])

    def _mutate(self, is_child: Tensor, generator: torch.Generator) -> None:
        """Add noise to the layers of children's actors and of their targets, in proportion to each layer's size."""
        assert self.networks is not None
        pairs = zip(self.networks.actor.layers, self.networks.actor_target.layers, strict=True)
        for online, target in pairs:
            flat = online.detach().flatten(1)
            scale = self.evolution.mutation_strength * is_child * flat.square().mean(1).sqrt()
            noise = torch.randn(flat.shape, generator=generator).to(flat.device) * scale[:, None]
            for part in (online.detach(), target.detach()):
                part += noise.view(part.shape)

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the closed forms, which are fitted to the genes anew."""
        state = {name: getattr(self, name) for name in _STATE}
        if self.networks is not None:
            losses = [{name: list(own) for name, own in agent.losses.items()} for agent in self.agents]
            state |= {"feature_groups": self.feature_groups, "networks": self.networks.tensors, "losses": losses}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave; the closed forms are given by `stand_on`."""
        vars(self).update({name: state[name] for name in _STATE})
        if self.networks is not None:
            self.load_networks(state)

    def load_networks(self, state: Mapping[str, Any]) -> None:
        """Restore the part of `state_dict` that belongs to networks."""
        assert self.networks is not None
        self.feature_groups = state["feature_groups"].cpu()
        self.networks.assign(state["networks"])
        for agent, losses in zip(self.agents, state["losses"], strict=True):
            agent.losses = {name: deque(own, maxlen=HISTORY) for name, own in losses.items()}


def traders_of(genes: Tensor, weights: Tensor, device: torch.device | str) -> Traders:
    """Return the agents with these (A, genes) and ridge weights."""
    largest = torch.ones(len(genes), dtype=torch.float64)
    return Traders(weights, target_percents(genes), genes[:, VALUE_WEIGHT], largest).to(device)


def target_percents(genes: Tensor) -> Tensor:
    """Return the (A,) sale targets that agents with these (A, genes) start from, in percent."""
    return torch.tensor(TARGET_PERCENTS, dtype=torch.float64)[genes[:, TARGET].long()]


def input_mask_of(feature_groups: Tensor) -> Tensor:
    """Return the (P, inputs) mask of (P, groups) feature groups."""
    groups: Sequence[int] = GROUP_OF_INPUT[1:].tolist()
    return feature_groups[:, groups]
