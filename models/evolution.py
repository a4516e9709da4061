"""Evolution of genes, as pure functions: first draw, selection, crossover and mutation.

Genes set the price of capital of an agent and its sale target. A population's are one tensor, (agents, genes). Each
gene lies within bounds; the sale target is one of a few.
"""

import torch
from torch import Tensor

from utils.config.trader import EvolutionConfig
from utils.spaces import TARGET_PERCENTS

GENES = ("sessions", "target")
"""Logarithm to base 2 of the sessions whose mean reward is the price of capital, and the number of the sale target."""
SESSIONS, TARGET = range(len(GENES))
_SEEN, _TOGGLED = 0.85, 0.05
"""Shares of the feature groups: that a founder's networks see, and that are toggled in a child's."""
_LOW = (0.0, 0.0)
_HIGH = (5.0, len(TARGET_PERCENTS) - 1.0)


def random_genes(agents: int, generator: torch.Generator) -> Tensor:
    """Draw genes uniformly within their bounds, (agents, genes)."""
    low, high = bounds()
    drawn = torch.rand(agents, len(GENES), generator=generator, dtype=torch.float64)
    return within_bounds(low + drawn * (high - low))


def random_feature_groups(agents: int, groups: int, generator: torch.Generator) -> Tensor:
    """Draw the feature groups of networks: (agents, groups) bool."""
    return torch.rand(agents, groups, generator=generator) < _SEEN


def ranked(fitness: Tensor) -> Tensor:
    """Rank the agents by (P,) fitness, the fittest first; those without a finite fitness come last."""
    known = torch.where(fitness.isfinite(), fitness, -torch.inf)
    return known.argsort(descending=True, stable=True)


def elite_count(config: EvolutionConfig) -> int:
    """Return the number of elites, at least one."""
    return min(config.population_size, max(1, round(config.elite_fraction * config.population_size)))


def next_generation(
    genes: Tensor, fitness: Tensor, config: EvolutionConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Breed the next generation from (P, genes) by (P,) fitness, larger is better.

    Elites keep their rows; every other row is filled by a child of two tournament winners, mutated.

    Returns:
        The genes, and the (P,) first parent of each row, whose networks it takes; an elite's is itself.
    """
    replaced = ranked(fitness)[elite_count(config) :]
    parents = torch.arange(len(genes))
    first, second = (tournament(fitness, len(replaced), config.tournament_size, generator) for _ in range(2))
    children = crossover(genes[first], genes[second], generator)
    bred = genes.clone()
    bred[replaced] = mutate(children, config.mutation_share, config.mutation_strength, generator)
    parents[replaced] = first
    return bred, parents


def tournament(fitness: Tensor, winners: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `winners` tournaments of `size` agents with replacement; (winners,) agents, the fittest of each."""
    place = torch.empty_like(fitness, dtype=torch.int64)
    place[ranked(fitness)] = torch.arange(len(fitness))
    entrants = torch.randint(len(fitness), (winners, size), generator=generator)
    return entrants.gather(1, place[entrants].argmin(dim=1, keepdim=True)).squeeze(1)


def crossover(first: Tensor, second: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform crossover: take each gene of a child from one of its two parents at random, (children, genes)."""
    return torch.where(torch.rand(first.shape, generator=generator) < 0.5, first, second)


def mutate(genes: Tensor, share: float, strength: float, generator: torch.Generator) -> Tensor:
    """Move a share of the genes by Gaussian steps of this deviation, relative to the width of their bounds."""
    low, high = bounds()
    is_moved = torch.rand(genes.shape, generator=generator) < share
    step = strength * (high - low) * torch.randn(genes.shape, generator=generator, dtype=torch.float64)
    return within_bounds(torch.where(is_moved, genes + step, genes))


def mutate_feature_groups(feature_groups: Tensor, is_child: Tensor, generator: torch.Generator) -> Tensor:
    """Toggle some feature groups of (P,) children."""
    return feature_groups ^ ((torch.rand(feature_groups.shape, generator=generator) < _TOGGLED) & is_child[:, None])


def within_bounds(genes: Tensor) -> Tensor:
    """Reflect genes at their bounds, so that they do not accumulate there; round the target."""
    low, high = bounds()
    genes = low + (genes - low).abs()
    genes = torch.maximum(high - (high - genes).abs(), low)
    genes[:, TARGET] = genes[:, TARGET].round()
    return genes


def bounds() -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest value of each gene, (genes,) each."""
    return torch.tensor(_LOW, dtype=torch.float64), torch.tensor(_HIGH, dtype=torch.float64)
