"""The agents' own problem by other optimisers: genes whose out-of-fold profit is largest, at as many evaluations.

Every one takes the place of breeding and nothing else. The first population is drawn at random; each generation is
played on new training windows; its fittest quarter stays, so that it is evaluated again, and the optimiser proposes the
rest. The fittest quarter of the last generation is deployed as one agent. What counts is the number of evaluations, the
population times `Config.generations`; the seconds of the budget are an upper limit only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.alterations import keep_genes, search_at_random
from benchmarks.learning.markets import Alteration, fit
from benchmarks.learning.markets import Budget as Limits
from benchmarks.learning.unseen import UnseenPath
from benchmarks.peers.peer import Array, Budget, Learned, Peer
from data.market import Market
from models import genome
from models.population import ranked
from training.erl_trainer import ERLTrainer
from training.sweep.study import require_optuna
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.spaces import TARGET_PERCENTS

Float64Array = NDArray[np.float64]
_STEP = 0.3
"""Initial standard deviation of CMA-ES, as a share of a gene's range."""
_LEAST_STEP = 0.03
"""Standard deviation below which CEM does not shrink: it would stop searching after a few generations."""
_KEPT = 0.25
"""Share of a generation to which CEM fits its distribution, and at whose mean CMA-ES starts."""


class Optimiser(Protocol):
    """A search for the largest fitness in the unit cube, a generation at a time."""

    def __call__(self, points: Float64Array, fitness: Float64Array, count: int) -> Float64Array:
        """Learn from a generation and propose (count, genes) of the next one.

        Args:
            points: (P, genes); the last ones are what was proposed before, in its order, once something was.
            fitness: (P,) larger is better.
        """


def cma_es(seed: int) -> Optimiser:
    """Return CMA-ES with margin, for the sale target is an integer (Hamano et al. 2022, "CMA-ES with margin").

    It starts at the mean of the fittest of the first generation, and learns from its own proposals only.
    """
    try:
        from cmaes import CMAwM
    except ImportError:
        raise ConfigError(
            "expected the package cmaes for CMA-ES, got none; install it with pip install -r requirements-peers.txt"
        ) from None
    search: CMAwM | None = None
    proposed: list[Float64Array] = []

    def propose(points: Float64Array, fitness: Float64Array, count: int) -> Float64Array:
        nonlocal search, proposed
        if search is None:
            size, steps = points.shape[1], np.zeros(points.shape[1])
            steps[genome.TARGET] = 1 / (len(TARGET_PERCENTS) - 1)
            cube = np.stack((np.zeros(size), np.ones(size)), axis=1)
            search = CMAwM(_fittest(points, fitness).mean(0), _STEP, cube, steps, seed=seed, population_size=count)
        else:
            search.tell([(x, -float(y)) for x, y in zip(proposed, fitness[-count:], strict=True)])
        asked = [search.ask() for _ in range(count)]
        proposed = [told for _, told in asked]
        return np.stack([played for played, _ in asked])

    return propose


def cem(seed: int) -> Optimiser:
    """Return the cross-entropy method: draw from the normal distribution of the fittest (Rubinstein 1999)."""
    draws = np.random.default_rng(seed)

    def propose(points: Float64Array, fitness: Float64Array, count: int) -> Float64Array:
        fittest = _fittest(points, fitness)
        deviation = np.maximum(fittest.std(axis=0), _LEAST_STEP)
        return np.asarray(draws.normal(fittest.mean(axis=0), deviation, (count, points.shape[1])))

    return propose


def tpe(seed: int) -> Optimiser:
    """Return Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), all genes together."""
    require_optuna()
    import optuna
    from optuna.distributions import BaseDistribution, FloatDistribution

    cube: dict[str, BaseDistribution] = {name: FloatDistribution(0.0, 1.0) for name in genome.GENES}
    cube[genome.GENES[genome.TARGET]] = FloatDistribution(0.0, 1.0, step=1 / (len(TARGET_PERCENTS) - 1))
    sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    running: list[optuna.Trial] = []

    def propose(points: Float64Array, fitness: Float64Array, count: int) -> Float64Array:
        nonlocal running
        others = len(points) - len(running)
        for point, value in zip(points[:others], fitness, strict=False):
            known = dict(zip(genome.GENES, point.tolist(), strict=True))
            study.add_trial(optuna.trial.create_trial(params=known, distributions=cube, value=float(value)))
        for trial, value in zip(running, fitness[others:], strict=True):
            study.tell(trial, float(value))
        running = [study.ask(cube) for _ in range(count)]
        return np.array([[trial.params[name] for name in genome.GENES] for trial in running])

    return propose


def _fittest(points: Float64Array, fitness: Float64Array) -> Float64Array:
    best = ranked(torch.from_numpy(fitness))[: max(2, round(_KEPT * len(points)))]
    chosen: Float64Array = points[best.tolist()]
    return chosen


def propose_by(make: Callable[[int], Optimiser], trainer: ERLTrainer, generator: torch.Generator) -> None:
    """Let an optimiser propose all agents but the elites, in place of breeding."""
    low, high = (bound.numpy() for bound in genome.bounds())
    optimiser, proposed = make(int(torch.randint(2**31, (), generator=generator))), list[int]()

    def replace_by_proposals(fitness: Tensor) -> None:
        nonlocal proposed
        population = trainer.population
        rows = [row for row in range(len(fitness)) if row not in proposed] + proposed
        replaced = [row for row in range(len(fitness)) if row not in population.elites]
        points = (population.genes[rows].numpy() - low) / (high - low)
        found = low + optimiser(points, fitness[rows].double().numpy(), len(replaced)) * (high - low)
        population.genes = population.genes.clone()
        population.genes[replaced] = genome.within_bounds(torch.from_numpy(found))
        proposed = replaced
        trainer.stand_on(population.cash_value)

    trainer.evolve_population = replace_by_proposals  # type: ignore[method-assign]


@dataclass(frozen=True)
class Population:
    """A population of the product's agents as a peer: with or without networks, evolved or searched otherwise."""

    networks: bool
    alter: Alteration | None = None
    """What takes the place of evolution; None: evolution."""

    def __call__(self, config: Config, market: Market, budget: Budget) -> Learned:
        """Train for the generations of the settings; the seconds of the budget are an upper limit."""
        if not self.networks:
            config = replace(config, learning=replace(config.learning, agent="closed-form"))
        trained = fit(config, market, Limits(budget.seconds / 60, config.generations), self.alter)
        champion, inputs = trained.trainer.champion, trained.trainer.days.inputs

        def play(path: UnseenPath) -> Array:
            profits: Array = path.play_agent(champion, inputs.of(path.market)).summary.profit_percent.numpy()
            return profits

        return Learned(play, trained.environment_steps)


def optimisers() -> dict[str, Peer]:
    """Return the product without parts of itself, and what else could search its genes."""
    return {
        "ours, no evolution": Population(networks=True, alter=keep_genes),
        "ours, random search": Population(networks=True, alter=search_at_random),
        "ours, closed form": Population(networks=False),
        "closed form, no evolution": Population(networks=False, alter=keep_genes),
        "closed form, random search": Population(networks=False, alter=search_at_random),
        "closed form, CMA-ES": Population(networks=False, alter=partial(propose_by, cma_es)),
        "closed form, CEM": Population(networks=False, alter=partial(propose_by, cem)),
        "closed form, TPE": Population(networks=False, alter=partial(propose_by, tpe)),
    }
