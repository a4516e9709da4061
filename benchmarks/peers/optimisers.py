"""The agents' own problem by other searches: genes whose out-of-fold profit is largest, at as many evaluations.

Each takes the place of breeding and nothing else. The first population is drawn at random; each generation is played on
new training windows; its fittest quarter stays, so that it is evaluated again, and the search proposes the rest. The
fittest quarter of the last generation is deployed as one agent. What counts is the number of evaluations, the
population times `Config.generations`; the seconds of the budget are an upper limit only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from benchmarks.learning.alterations import keep_genes
from benchmarks.learning.markets import Alteration, fit
from benchmarks.learning.markets import Budget as Limits
from benchmarks.learning.unseen import UnseenPath
from benchmarks.peers.peer import Array, Budget, Learned, Peer
from data.market import Market
from models import evolution
from training.erl_trainer import ERLTrainer
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.spaces import TARGET_PERCENTS

if TYPE_CHECKING:
    from cmaes import CMAwM

_STEP = 0.3
"""Initial standard deviation of CMA-ES, as a share of a gene's range."""


def cma_es(trainer: ERLTrainer, generator: torch.Generator) -> None:
    """Let CMA-ES with margin propose all agents but the elites, in place of breeding (Hamano et al. 2022).

    The margin is for the sale target, which is an integer. It starts at the mean of the first elites, and learns from
    its own proposals only. Raises ConfigError without the package.
    """
    try:
        from cmaes import CMAwM
    except ImportError:
        raise ConfigError(
            "expected the package cmaes for CMA-ES, got none; install it with pip install -r requirements-peers.txt"
        ) from None
    low, high = (bound.numpy() for bound in evolution.bounds())
    steps = np.zeros(len(low))
    steps[evolution.TARGET] = 1 / (len(TARGET_PERCENTS) - 1)
    cube = np.stack((np.zeros(len(low)), np.ones(len(low))), axis=1)
    seed = int(torch.randint(2**31, (), generator=generator))
    search: CMAwM | None = None
    proposed: dict[int, Array] = {}
    """What the search calls its proposals, by row."""

    def replace_by_proposals(fitness: Tensor) -> None:
        nonlocal search, proposed
        population = trainer.population
        replaced = [row for row in range(len(fitness)) if row not in population.elites]
        if search is None:
            start = ((population.genes[population.elites].numpy() - low) / (high - low)).mean(0)
            search = CMAwM(start, _STEP, cube, steps, seed=seed, population_size=len(replaced))
        else:
            search.tell([(told, -float(fitness[row])) for row, told in proposed.items()])
        asked = [search.ask() for _ in replaced]
        proposed = {row: told for row, (_, told) in zip(replaced, asked, strict=True)}
        genes = low + np.stack([played for played, _ in asked]) * (high - low)
        population.genes = population.genes.clone()
        population.genes[replaced] = evolution.within_bounds(torch.from_numpy(genes))

    trainer.evolve_population = replace_by_proposals  # type: ignore[method-assign]


@dataclass(frozen=True)
class Population:
    """A population of the product's agents as a peer: evolved or searched otherwise."""

    alter: Alteration | None = None
    """What takes the place of evolution; None: evolution."""

    def __call__(self, config: Config, market: Market, budget: Budget) -> Learned:
        """Train for the generations of the settings; the seconds of the budget are an upper limit."""
        trained = fit(config, market, Limits(budget.seconds / 60, config.generations), self.alter)
        champion, inputs = trained.trainer.champion, trained.trainer.days.inputs

        def play(path: UnseenPath) -> Array:
            profits: Array = path.play_agent(champion, inputs.of(path.market)).summary.profit_percent.numpy()
            return profits

        return Learned(play, trained.environment_steps)


def optimisers() -> dict[str, Peer]:
    """Return the product without evolution, and with another search of its genes."""
    return {"ours, no evolution": Population(keep_genes), "ours, CMA-ES": Population(cma_es)}
