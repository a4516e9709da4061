"""Genes: the penalties of an agent's ridge forecasts, its sale target and the weight of its value of cash.

A population's genes are one tensor, (agents, genes). Each gene lies within bounds; the sale target is one of a few.
"""

import torch
from torch import Tensor

from models.inputs import GROUPS
from utils.spaces import TARGET_PERCENTS

DECISIONS = ("target", "value_weight")
GENES = (*GROUPS, *DECISIONS)
"""Logarithms to base 10 of the penalties on the groups of inputs, the number of the sale target, and the weight of the
value of cash."""
TARGET, VALUE_WEIGHT = (GENES.index(name) for name in DECISIONS)
_SEEN = 0.75
"""Share of the feature groups that a founder's network sees."""
_LOW = (*(-4.0 for _ in GROUPS), 0.0, 0.0)
_HIGH = (*(2.0 for _ in GROUPS), len(TARGET_PERCENTS) - 1.0, 1.25)


def random_genes(agents: int, generator: torch.Generator) -> Tensor:
    """Draw genes uniformly within their bounds, (agents, genes)."""
    low, high = bounds()
    drawn = torch.rand(agents, len(GENES), generator=generator, dtype=torch.float64)
    return within_bounds(low + drawn * (high - low))


def cross(first: Tensor, second: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform crossover: take each gene of a child from one of its two parents at random, (children, genes)."""
    is_first = torch.rand(first.shape, generator=generator) < 0.5
    return torch.where(is_first, first, second)


def mutate(genes: Tensor, share: float, strength: float, generator: torch.Generator) -> Tensor:
    """Move a share of the genes by Gaussian steps of this deviation, relative to the width of their bounds."""
    low, high = bounds()
    is_moved = torch.rand(genes.shape, generator=generator) < share
    step = strength * (high - low) * torch.randn(genes.shape, generator=generator, dtype=torch.float64)
    return within_bounds(torch.where(is_moved, genes + step, genes))


def random_feature_groups(agents: int, generator: torch.Generator) -> Tensor:
    """Draw the feature groups of networks: (agents, groups) bool."""
    return torch.rand(agents, len(GROUPS), generator=generator) < _SEEN


def mutate_feature_groups(feature_groups: Tensor, is_child: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Toggle a share of the feature groups of (P,) children."""
    return feature_groups ^ ((torch.rand(feature_groups.shape, generator=generator) < share) & is_child[:, None])


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
