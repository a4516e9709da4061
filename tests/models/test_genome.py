"""Genes: they stay within their bounds, children take them from their parents, and mutations leave the others alone."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import genome
from models.genome import GENES, TARGET, cross, mutate, random_genes, within_bounds

seeds = st.integers(0, 2**32)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def reach() -> tuple[Tensor, Tensor]:
    """The least and the largest of each gene among many."""
    genes = random_genes(20_000, seeded(0))
    return genes.min(0).values, genes.max(0).values


LOW, HIGH = reach()


def are_within_bounds(genes: Tensor) -> bool:
    slack = 1e-2 * (HIGH - LOW)
    is_whole = bool((genes[:, TARGET] == genes[:, TARGET].round()).all())
    return is_whole and bool(((genes >= LOW - slack) & (genes <= HIGH + slack)).all())


@settings(max_examples=60)
@given(seeds, st.floats(0, 1), st.floats(0, 3), st.integers(1, 40))
def test_no_draw_leaves_the_bounds(seed: int, share: float, strength: float, agents: int) -> None:
    generator = seeded(seed)
    genes = random_genes(agents, generator)
    assert genes.shape == (agents, len(GENES)) and are_within_bounds(genes)
    for _ in range(3):
        genes = mutate(genes, share, strength, generator)
        assert are_within_bounds(genes)


@settings(max_examples=60)
@given(seeds)
def test_a_step_beyond_a_bound_comes_back_from_it(seed: int) -> None:
    """So that genes do not gather at the bounds; where they are already within, nothing moves."""
    generator = seeded(seed)
    genes = random_genes(50, generator)
    assert torch.equal(within_bounds(genes.clone()), genes)
    low, high = (bound.expand_as(genes) for bound in genome.bounds())
    for far in (-1e9, 1e9):
        assert are_within_bounds(within_bounds(torch.full_like(genes, far)))
    step = 0.4 * (high - low) * torch.rand(genes.shape, generator=generator, dtype=torch.float64)
    step[:, TARGET] = step[:, TARGET].round()
    torch.testing.assert_close(within_bounds(low - step), low + step)
    torch.testing.assert_close(within_bounds(high + step), high - step)


@settings(max_examples=60)
@given(seeds, st.integers(1, 40))
def test_each_gene_of_a_child_is_one_of_its_parents(seed: int, children: int) -> None:
    generator = seeded(seed)
    first, second = random_genes(children, generator), random_genes(children, generator)
    before = first.clone(), second.clone()
    child = cross(first, second, generator)
    assert bool(((child == first) | (child == second)).all())
    assert torch.equal(first, before[0]) and torch.equal(second, before[1])


@settings(max_examples=30)
@given(seeds, st.floats(0.05, 0.5))
def test_mutation_moves_the_share_that_is_asked_for(seed: int, share: float) -> None:
    generator = seeded(seed)
    genes = random_genes(2000, generator)
    before = genes.clone()
    assert torch.equal(mutate(genes, 0.0, 1.0, generator), genes)
    assert torch.equal(mutate(genes, 1.0, 0.0, generator), genes)
    free = [gene for gene in range(len(GENES)) if gene != TARGET]
    moved = (mutate(genes, share, 0.1, generator) != genes)[:, free].double().mean(0)
    assert (moved - share).abs().max() < 5.5 * (share * (1 - share) / 2000) ** 0.5
    assert torch.equal(genes, before)
