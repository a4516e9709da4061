"""Selection, crossover and mutation of genes, as pure functions."""

import torch
from torch import Tensor

from models import genome
from models.population import elite_count, ranked
from utils.config.trader import EvolutionConfig


def tournament(fitness: Tensor, winners: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `winners` tournaments of `size` agents with replacement; (winners,) agents, the fittest of each."""
    place = torch.empty_like(fitness, dtype=torch.int64)
    place[ranked(fitness)] = torch.arange(len(fitness))
    entrants = torch.randint(len(fitness), (winners, size), generator=generator)
    return entrants.gather(1, place[entrants].argmin(dim=1, keepdim=True)).squeeze(1)


def next_generation(
    genes: Tensor, fitness: Tensor, config: EvolutionConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Breed the next generation from (P, genes) by (P,) fitness, larger is better.

    Elites keep their rows; every other row is filled by a child of two tournament winners, mutated.

    Returns:
        The genes, and both (P,) parents of each row; an elite's are itself.
    """
    elites = elite_count(config)
    replaced = ranked(fitness)[elites:]
    parents = torch.arange(len(genes)).repeat(2, 1)
    first, second = (tournament(fitness, len(replaced), config.tournament_size, generator) for _ in range(2))
    children = genome.cross(genes[first], genes[second], generator)
    bred = genes.clone()
    bred[replaced] = genome.mutate(children, config.mutation_share, config.mutation_strength, generator)
    parents[:, replaced] = torch.stack((first, second))
    return bred, *parents
