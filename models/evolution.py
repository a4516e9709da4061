"""Evolution as pure functions: first draw, selection, crossover and mutation.

An agent has six genes, the numbers that gradients do not reach: the price of risk, the largest weight, the price of
the risk of cash, the hurdle of its trades, the horizon of its discount, and its doubt of inputs. A population's are one
tensor, (agents, genes) of logarithms to base 2, each within bounds. Beside them the weights of actors evolve, and the
groups of features that networks see. `Population.inherit` puts it all together.
"""

import torch
from torch import Tensor

from utils.config.trader import EvolutionConfig

GENES = ("risk", "largest", "exposure", "hurdle", "horizon", "doubt")
"""Price of risk, see `models.target_weights`; largest weight of a stock; price of the risk of being invested less than
the benchmark; hurdle, multiples of its cost that a trade must be worth; sessions, 1 / (1 - gamma), of the discount;
power of the gains of inputs, see `models.networks.ActorCritic`."""
RISK, LARGEST, EXPOSURE, HURDLE, HORIZON, DOUBT = range(len(GENES))
BOUNDS = ((0.004, 0.128), (0.05, 0.2), (0.002, 0.064), (0.5, 2.0), (2.5, 20.0), (0.25, 4.0))
LOW, HIGH = torch.tensor(BOUNDS, dtype=torch.float64).log2().unbind(1)
_DOUBTED = (LOW + HIGH) / 2
_DOUBTED[HURDLE] = HIGH[HURDLE]
"""Genes that nothing speaks for: the middle of the bounds, but the highest hurdle, since noise moves scores."""
_SEEN = 0.85
"""Share of the feature groups that a founder's networks see."""
_TOGGLED = 0.05
"""Share of them that are toggled in a child."""


def believed_genes(genes: Tensor, shrink: float, timing: float) -> Tensor:
    """Return (E, genes) that are as far from those that nothing speaks for, in logarithms, as evidence is believed.

    Where orders earn little out of fold, the numbers that earned most of it were selected by noise.
    """
    share = torch.full((len(GENES),), shrink, dtype=genes.dtype, device=genes.device)
    share[EXPOSURE] = timing
    doubted = _DOUBTED.to(genes)
    return torch.exp2(doubted + share * (genes.log2() - doubted))


def random_genes(agents: int, generator: torch.Generator) -> Tensor:
    """Draw genes uniformly within their bounds, (agents, genes)."""
    drawn = torch.rand(agents, len(GENES), generator=generator, dtype=torch.float64)
    return within_bounds(LOW + drawn * (HIGH - LOW))


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
    first, second = (tournament(fitness, len(replaced), config.tournament_size, generator) for _ in range(2))
    children = crossover(genes[first], genes[second], generator)
    bred, parents = genes.clone(), torch.arange(len(genes))
    bred[replaced] = mutate(children, config.mutation_share, config.mutation_strength, generator)
    parents[replaced] = first
    return bred, parents


def tournament(fitness: Tensor, winners: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw `winners` tournaments of `size` agents with replacement; (winners,) agents, the fittest of each."""
    rank = torch.empty_like(fitness, dtype=torch.int64)
    rank[ranked(fitness)] = torch.arange(len(fitness))
    entrants = torch.randint(len(fitness), (winners, size), generator=generator)
    return entrants.gather(1, rank[entrants].argmin(dim=1, keepdim=True)).squeeze(1)


def crossover(first: Tensor, second: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform crossover: take each gene of a child from one of its two parents at random, (children, genes)."""
    return torch.where(torch.rand(first.shape, generator=generator) < 0.5, first, second)


def mutate(genes: Tensor, share: float, strength: float, generator: torch.Generator) -> Tensor:
    """Move a share of the genes by Gaussian steps of this deviation, relative to the width of their bounds."""
    is_moved = torch.rand(genes.shape, generator=generator) < share
    step = strength * (HIGH - LOW) * torch.randn(genes.shape, generator=generator, dtype=torch.float64)
    return within_bounds(torch.where(is_moved, genes + step, genes))


def mutate_actors(
    online: Tensor, target: Tensor, is_child: Tensor, strength: float, generator: torch.Generator
) -> None:
    """Add noise to the (P, folds, numbers) actors of (P,) children, and the same to their targets, in place: its
    deviation is `strength` times the root mean square of an actor's numbers."""
    deviation = strength * is_child.to(online.device) * online.flatten(1).square().mean(1).sqrt()
    noise = torch.randn(online.shape, generator=generator).to(online.device) * deviation[:, None, None]
    online.add_(noise)
    target.add_(noise)


def mutate_feature_groups(feature_groups: Tensor, is_child: Tensor, generator: torch.Generator) -> Tensor:
    """Toggle some feature groups of (P,) children."""
    return feature_groups ^ ((torch.rand(feature_groups.shape, generator=generator) < _TOGGLED) & is_child[:, None])


def within_bounds(genes: Tensor) -> Tensor:
    """Reflect genes at their bounds, so that they do not accumulate there."""
    genes = torch.where(genes < LOW, 2 * LOW - genes, genes)
    return torch.maximum(torch.where(genes > HIGH, 2 * HIGH - genes, genes), LOW)
