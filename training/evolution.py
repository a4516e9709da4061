"""Selection, crossover and mutation as pure functions on stacked tensors, whose first dimension is the agents.

A stack is a mapping from names to tensors: parameters (`networks.`), their targets (`targets.`) and optimiser moments
(`exp_avg.`, `exp_avg_sq.`). Gathering rows of all of them keeps an agent's optimiser state with its owner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from utils.config.trader import EvolutionConfig

Stacks = Mapping[str, Tensor]


@dataclass(frozen=True)
class Selection:
    """Plan of the next generation: where each agent comes from, (P,) each."""

    parents: Tensor
    """int64; an elite's parent is itself."""
    mates: Tensor
    """int64; equal to the parent where there is no crossover."""
    is_elite: Tensor
    is_mutant: Tensor

    @property
    def is_child(self) -> Tensor:
        """(P,) bool: has two different parents' rows to combine."""
        return self.mates != self.parents


def counts(config: EvolutionConfig) -> tuple[int, int, int]:
    """Count elites, offspring and mutants: fractions rounded, at least one elite, never too many."""
    size = config.population_size
    elites = min(size, max(1, round(config.elite_fraction * size)))
    offspring = min(size - elites, round(config.offspring_fraction * size))
    mutants = min(size - elites - offspring, round(config.mutant_fraction * size))
    return elites, offspring, mutants


def tournament(fitness: Tensor, winners: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `winners` tournaments of `size` agents with replacement; (winners,) indices of the fittest of each.

    Agents whose fitness is minus infinity enter only if there are no others.
    """
    able = (fitness > -torch.inf).nonzero().flatten()
    able = able if len(able) else torch.arange(len(fitness))
    entrants = able[torch.randint(len(able), (winners, size), generator=generator)]
    best = fitness[entrants].argmax(dim=1, keepdim=True)
    return entrants.gather(1, best).squeeze(1)


def elite_rows(fitness: Tensor, selection: Selection) -> list[int]:
    """Return the rows of the elites, the fittest first."""
    rows = selection.is_elite.nonzero().flatten()
    known = torch.where(fitness.isnan(), -torch.inf, fitness)[rows]
    return rows[known.argsort(descending=True, stable=True)].tolist()


def plan_selection(fitness: Tensor, config: EvolutionConfig, generator: torch.Generator) -> Selection:
    """Decide the next generation by (P,) fitness, larger is better; NaN never wins.

    Elites keep their rows. The rows of the others are filled with offspring, mutants and tournament winners, in the
    order of falling fitness of those they replace.
    """
    fitness = torch.where(fitness.isnan(), -torch.inf, fitness)
    size = len(fitness)
    elites, offspring, mutants = counts(config)
    order = fitness.argsort(descending=True, stable=True)
    replaced = order[elites:]
    parents, mates = torch.arange(size), torch.arange(size)
    winners = tournament(fitness, len(replaced), config.tournament_size, generator)
    parents[replaced] = winners
    mates[replaced] = winners
    mates[replaced[:offspring]] = tournament(fitness, offspring, config.tournament_size, generator)
    is_elite = torch.zeros(size, dtype=torch.bool)
    is_elite[order[:elites]] = True
    is_mutant = torch.zeros(size, dtype=torch.bool)
    is_mutant[replaced[offspring : offspring + mutants]] = True
    return Selection(parents, mates, is_elite, is_mutant)


def inherit(stacks: Stacks, selection: Selection) -> dict[str, Tensor]:
    """Gather every row from its parent: networks, targets and optimiser moments together."""
    return {name: stack[selection.parents.to(stack.device)] for name, stack in stacks.items()}


def cross_heads(stacks: Stacks, selection: Selection) -> dict[str, Tensor]:
    """Inherit, but take a child's critics, with their optimiser state, from the mate.

    The child acts exactly as its parent did and learns from the mate's critics. Both heads must read the same encoder.
    """
    return {
        name: stack[(selection.mates if ".critics." in name else selection.parents).to(stack.device)]
        for name, stack in stacks.items()
    }


def cross_average(stacks: Stacks, selection: Selection, generator: torch.Generator) -> dict[str, Tensor]:
    """Inherit, but blend both parents' weights in a child, with one random share a child in [0, 1].

    Usually destroys what both parents knew (see PDERL, Bodnar et al. 2020); offered for comparison.
    """
    share = torch.rand(len(selection.parents), generator=generator)
    blended = {}
    for name, stack in stacks.items():
        mine, other = (stack[rows.to(stack.device)] for rows in (selection.parents, selection.mates))
        weight = share.to(stack.device, stack.dtype).view(-1, *[1] * (stack.dim() - 1))
        # lerp(x, x, w) need not equal x in floating point; only children may change.
        is_child = selection.is_child.to(stack.device).view(weight.shape)
        blended[name] = torch.where(is_child, torch.lerp(mine, other, weight), mine)
    return blended


def mutate(
    stacks: Stacks,
    is_mutant: Tensor,
    strength: float,
    generator: torch.Generator,
    sensitivity: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Add noise to the actors of the mutants; target actors move with them.

    Without sensitivities the noise is Gaussian with `strength` times each weight tensor's own scale. With them it is
    divided by how much the outputs react to each weight (safe mutation through gradients, Lehman et al. 2018; proximal
    mutation, Bodnar et al. 2020), so that behaviour moves a little wherever the weights do.

    Args:
        sensitivity: by parameter name (`actor.` ...), tensors shaped as the stacks; rows of the new generation.
    """
    mutated = dict(stacks)
    for name, stack in stacks.items():
        if not name.startswith("networks.actor."):
            continue
        noise = torch.randn(stack.shape, generator=generator, dtype=stack.dtype).to(stack.device)
        scale = stack.flatten(1).std(dim=1, correction=0).view(-1, *[1] * (stack.dim() - 1))
        if sensitivity is not None:
            scale = scale / sensitivity[name.removeprefix("networks.")].clamp(min=1.0)
        rows = is_mutant.to(stack.device).view(scale.shape[0], *[1] * (stack.dim() - 1))
        step = torch.where(rows, strength * scale * noise, 0.0)
        mutated[name] = stack + step
        target = name.replace("networks.", "targets.", 1)
        mutated[target] = stacks[target] + step
    return mutated
