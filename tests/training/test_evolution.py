"""Selection, crossover and mutation of genes: who comes from whom, and what may change."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.genome import random_genes
from models.population import elite_count, ranked
from tests.tiny import seeded
from training.evolution import next_generation, tournament
from utils.config.trader import EvolutionConfig


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, EvolutionConfig, int]:
    """Genes, fitness with ties and agents without one, settings and a seed."""
    size, seed = draw(st.integers(2, 40)), draw(st.integers(0, 2**32))
    config = EvolutionConfig(
        population_size=size,
        elite_fraction=draw(st.floats(0, 1)),
        tournament_size=draw(st.integers(1, 5)),
        mutation_share=draw(st.floats(0, 1)),
        mutation_strength=draw(st.floats(0, 1)),
    )
    kinds = st.one_of(st.floats(-10, 10), st.integers(-2, 2).map(float), st.sampled_from((torch.nan, -torch.inf)))
    fitness = draw(st.lists(kinds, min_size=size, max_size=size))
    return random_genes(size, seeded(seed)), torch.tensor(fitness, dtype=torch.float64), config, seed


@given(cases())
@settings(max_examples=100)
def test_elites_are_the_fittest_and_keep_rows_and_genes(case: tuple[Tensor, Tensor, EvolutionConfig, int]) -> None:
    genes, fitness, config, seed = case
    before = genes.clone(), fitness.clone()
    bred, parents, others = next_generation(genes, fitness, config, seeded(seed))
    count = elite_count(config)
    elites = ranked(fitness)[:count]
    assert 1 <= count <= len(genes) and (abs(count - config.elite_fraction * len(genes)) <= 0.5 or count == 1)
    assert torch.equal(bred[elites], genes[elites]) and torch.equal(parents[elites], elites)
    assert torch.equal(others[elites], elites)
    known = [value if value == value else -torch.inf for value in fitness.tolist()]
    rest = [known[row] for row in range(len(genes)) if row not in elites.tolist()]
    assert min(known[row] for row in elites.tolist()) >= max(rest, default=-torch.inf)
    assert torch.equal(genes, before[0]) and torch.equal(fitness.nan_to_num(99), before[1].nan_to_num(99))
    assert bred.shape == genes.shape and parents.shape == others.shape == (len(genes),)


@given(cases())
@settings(max_examples=100)
def test_without_mutation_each_gene_of_a_child_is_that_of_a_parent(
    case: tuple[Tensor, Tensor, EvolutionConfig, int],
) -> None:
    genes, fitness, config, seed = case
    still = EvolutionConfig(
        population_size=config.population_size, elite_fraction=config.elite_fraction, mutation_share=0.0
    )
    bred, parents, others = next_generation(genes, fitness, still, seeded(seed))
    assert bool(((bred == genes[parents]) | (bred == genes[others])).all())


@given(st.integers(2, 30), st.integers(0, 2**32), st.integers(1, 4))
@settings(max_examples=60)
def test_who_has_no_fitness_never_beats_who_has_one(size: int, seed: int, entrants: int) -> None:
    generator = seeded(seed)
    fitness = torch.randn(size, generator=generator)
    fitness[torch.rand(size, generator=generator) < 0.5] = torch.nan
    fitness[0] = 1.0
    count = int(fitness.isfinite().sum())
    assert fitness[ranked(fitness)[:count]].isfinite().all()
    winners = tournament(fitness, 500, entrants, generator)
    broken = (~fitness[winners].isfinite()).double().mean()
    chance = ((size - count) / size) ** entrants  # all entrants are broken
    assert abs(float(broken) - chance) <= 5.5 * (chance * (1 - chance) / 500) ** 0.5


def test_tournaments_are_won_as_often_as_the_theory_says() -> None:
    """With replacement the best of n wins a tournament of k with chance 1 - (1 - 1/n)^k."""
    fitness = torch.tensor([0.3, -1.0, 2.0, 0.9])
    for size in (1, 2, 5):
        wins = Counter(tournament(fitness, 20_000, size, seeded(1)).tolist())
        for place, agent in enumerate((2, 3, 0, 1)):
            chance = ((4 - place) / 4) ** size - ((3 - place) / 4) ** size
            assert abs(wins[agent] / 20_000 - chance) < 0.015


def test_ties_go_to_the_lower_row() -> None:
    assert ranked(torch.tensor([1.0, 2.0, torch.nan, 2.0, torch.inf, 1.0])).tolist() == [1, 3, 0, 5, 2, 4]
