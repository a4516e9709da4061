"""Selection, crossover and mutation of genes: who comes from whom, what may change, and within which bounds."""

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.evolution import (
    GENES,
    TARGET,
    bounds,
    elite_count,
    mutate,
    next_generation,
    random_genes,
    ranked,
    tournament,
    within_bounds,
)
from tests.tiny import seeded
from utils.config.trader import EvolutionConfig

seeds = st.integers(0, 2**32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, EvolutionConfig, int]:
    """Genes, fitness with ties and agents without one, settings and a seed."""
    size, seed = draw(st.integers(2, 40)), draw(seeds)
    mutation = {"mutation_share": draw(st.just(0.0) | st.floats(0, 1)), "mutation_strength": draw(st.floats(0, 1))}
    chosen = {"elite_fraction": draw(st.floats(0, 1)), "tournament_size": draw(st.integers(1, 5))}
    config = EvolutionConfig(population_size=size, **chosen, **mutation)
    kinds = st.one_of(st.floats(-10, 10), st.integers(-2, 2).map(float), st.sampled_from((torch.nan, -torch.inf)))
    fitness = draw(st.lists(kinds, min_size=size, max_size=size))
    return random_genes(size, seeded(seed)), torch.tensor(fitness, dtype=torch.float64), config, seed


@given(cases())
@settings(max_examples=100)
def test_elites_are_the_fittest_and_stay_and_children_have_genes_of_their_parents(
    case: tuple[Tensor, Tensor, EvolutionConfig, int],
) -> None:
    genes, fitness, config, seed = case
    before = genes.clone(), fitness.clone()
    bred, parents = next_generation(genes, fitness, config, seeded(seed))
    count = elite_count(config)
    elites = ranked(fitness)[:count]
    assert 1 <= count <= len(genes) and (abs(count - config.elite_fraction * len(genes)) <= 0.5 or count == 1)
    assert torch.equal(bred[elites], genes[elites])
    assert torch.equal(parents[elites], elites)
    known = [value if value == value else -torch.inf for value in fitness.tolist()]
    rest = [known[row] for row in range(len(genes)) if row not in elites.tolist()]
    assert min(known[row] for row in elites.tolist()) >= max(rest, default=-torch.inf)
    assert torch.equal(genes, before[0]) and torch.equal(fitness.nan_to_num(99), before[1].nan_to_num(99))
    if config.mutation_share == 0 or config.mutation_strength == 0:
        assert all(bool((bred[:, [gene]] == genes[:, gene]).any(1).all()) for gene in range(len(GENES)))


def test_tournaments_are_won_as_often_as_the_theory_says() -> None:
    """With replacement the best of n wins a tournament of k with chance 1 - (1 - 1/n)^k; no fitness never wins."""
    fitness = torch.tensor([0.3, torch.nan, 2.0, 0.9])
    for size in (1, 2, 5):
        wins = Counter(tournament(fitness, 20_000, size, seeded(1)).tolist())
        for place, agent in enumerate((2, 3, 0, 1)):
            chance = ((4 - place) / 4) ** size - ((3 - place) / 4) ** size
            assert abs(wins[agent] / 20_000 - chance) < 0.015


def test_ties_go_to_the_lower_row() -> None:
    assert ranked(torch.tensor([1.0, 2.0, torch.nan, 2.0, torch.inf, 1.0])).tolist() == [1, 3, 0, 5, 2, 4]


def are_within_bounds(genes: Tensor) -> bool:
    low, high = bounds()
    is_whole = bool((genes[:, TARGET] == genes[:, TARGET].round()).all())
    return is_whole and bool(((genes >= low) & (genes <= high)).all())


@given(seeds, st.floats(0, 1), st.floats(0, 3), st.integers(1, 40))
@settings(max_examples=60)
def test_no_draw_leaves_the_bounds(seed: int, share: float, strength: float, agents: int) -> None:
    """A step beyond a bound comes back from it, so that genes do not gather there."""
    generator, (low, high) = seeded(seed), bounds()
    genes = random_genes(agents, generator)
    assert genes.shape == (agents, len(GENES)) and are_within_bounds(genes)
    assert torch.equal(within_bounds(genes.clone()), genes)
    step = 0.4 * (high - low) * torch.rand(genes.shape, generator=generator, dtype=torch.float64)
    step[:, TARGET] = step[:, TARGET].round()
    torch.testing.assert_close(within_bounds(low - step), low + step)
    torch.testing.assert_close(within_bounds(high + step), high - step)
    assert are_within_bounds(mutate(genes, share, strength, generator))


@given(seeds, st.floats(0.05, 0.5))
@settings(max_examples=30)
def test_mutation_moves_the_share_that_is_asked_for(seed: int, share: float) -> None:
    generator = seeded(seed)
    genes = random_genes(2000, generator)
    free = [gene for gene in range(len(GENES)) if gene != TARGET]
    moved = (mutate(genes, share, 0.1, generator) != genes)[:, free].double().mean(0)
    assert (moved - share).abs().max() < 5.5 * (share * (1 - share) / 2000) ** 0.5
