"""Optimisers of genes: each finds a known optimum, all get as many evaluations, and elites are evaluated again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.learning.markets import Alteration
from benchmarks.learning.unseen import UnseenPaths, training_market
from benchmarks.peers.optimisers import Optimiser, Population, cem, cma_es, optimisers, propose_by, tpe
from benchmarks.peers.peer import Budget
from models import genome
from tests.benchmarks.study_cases import tiny_config
from tests.tiny import tiny_trainer
from training.erl_trainer import ERLTrainer
from training.population_rollouts import PopulationResults
from utils.config.trader import EvolutionConfig, LearningConfig
from utils.errors import ConfigError

PACKAGES = {cma_es: "cmaes", cem: "numpy", tpe: "optuna"}
MAKERS = pytest.mark.parametrize("make", PACKAGES)


def searched(optimiser: Optimiser, fitness: Callable[[np.ndarray], np.ndarray], generations: int) -> np.ndarray:
    """The points of the last generation, with a population as a trainer keeps it: elites first, then proposals."""
    points = np.random.default_rng(1).random((16, len(genome.GENES)))
    points[:, genome.TARGET] = np.round(4 * points[:, genome.TARGET]) / 4
    for _ in range(generations):
        found = fitness(points)
        proposed = optimiser(points, found, 12)
        assert proposed.shape == (12, len(genome.GENES))
        proposed = np.clip(proposed, 0, 1)
        proposed[:, genome.TARGET] = np.round(4 * proposed[:, genome.TARGET]) / 4
        points = np.concatenate((points[found.argsort()[::-1][:4]], proposed))
    return points


@MAKERS
def test_the_optimum_of_a_known_fitness_is_found(make: Callable[[int], Optimiser]) -> None:
    """A quadratic in all genes, whose best target is a whole number; random points are about 1.6 away."""
    pytest.importorskip(PACKAGES[make])
    best = np.linspace(0.3, 0.7, len(genome.GENES))
    best[genome.TARGET] = 0.75

    def fitness(points: np.ndarray) -> np.ndarray:
        return np.asarray(-np.square(points - best).sum(axis=1))

    rng = np.random.default_rng(0)
    at_random = searched(lambda points, _, count: rng.random((count, points.shape[1])), fitness, 12)
    points = searched(make(0), fitness, 12)
    assert fitness(points).max() > 0.4 * fitness(at_random).max()
    assert abs(points[fitness(points).argmax(), genome.TARGET] - 0.75) < 0.13


@MAKERS
def test_a_trainer_evaluates_what_was_proposed(make: Callable[[int], Optimiser]) -> None:
    """An optimiser is told each generation's genes with their fitness, its own proposals last, and elites stay."""
    pytest.importorskip(PACKAGES[make])
    told: list[tuple[np.ndarray, np.ndarray]] = []
    answers: list[np.ndarray] = []

    def watched(seed: int) -> Optimiser:
        optimiser = make(seed)

        def propose(points: np.ndarray, fitness: np.ndarray, count: int) -> np.ndarray:
            told.append((points, fitness))
            answers.append(optimiser(points, fitness, count))
            return answers[-1]

        return propose

    trainer = tiny_trainer(
        learning=LearningConfig(gradient_steps=0), evolution=EvolutionConfig(population_size=8, elite_fraction=0.25)
    )
    propose_by(watched, trainer, torch.Generator().manual_seed(0))
    low, high = genome.bounds()
    played: list[tuple[Tensor, Tensor]] = []
    evaluate = trainer.evaluate_population

    def note() -> PopulationResults:
        results = evaluate()
        played.append((trainer.population.genes.clone(), results.fitness.clone()))
        return results

    trainer.evaluate_population = note  # type: ignore[method-assign]
    for generation in range(3):
        elites = trainer.population.genes[trainer.population.elites].clone()
        trainer.run_generation()
        points, fitness = told[generation]
        genes = low + torch.from_numpy(points) * (high - low)
        if generation:
            proposed = low + torch.from_numpy(answers[-2]) * (high - low)
            torch.testing.assert_close(genes[2:], genome.within_bounds(proposed))
            assert {tuple(row) for row in elites.tolist()} <= {tuple(row) for row in played[-1][0].tolist()}
        for row, own in zip(genes, fitness, strict=True):
            match = (played[-1][0] - row).abs().amax(1).argmin()
            assert float((played[-1][0][match] - row).abs().max()) < 1e-9 and float(played[-1][1][match]) == own
        best = played[-1][1].argsort(descending=True)[:2]
        torch.testing.assert_close(trainer.population.genes[trainer.population.elites], played[-1][0][best])
    assert trainer.population.examined == 8 + 6 + 6


@pytest.mark.parametrize("name", optimisers())
def test_every_peer_plays_unseen_paths(name: str) -> None:
    if "CMA" in name:
        pytest.importorskip("cmaes")
    config = tiny_config("--generations", "2", "--population-size", "8")
    market, _ = training_market(config)
    learned = optimisers()[name](config, market, Budget(60))
    path = next(iter(UnseenPaths(paths=1, windows=3).each(config, market.stats)))
    profits = learned.play(path)
    assert profits.shape == (3,) and np.isfinite(profits).all()
    assert learned.environment_steps == 2 * 8 * (2 + 1) * config.env.episode_steps


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-peers\.txt"):
        cma_es(0)


def test_seconds_are_an_upper_limit() -> None:
    """A spent budget allows one generation."""
    config = tiny_config("--generations", "5")
    market, _ = training_market(config)
    seen: list[ERLTrainer] = []

    def watch(trainer: ERLTrainer, _: torch.Generator) -> None:
        seen.append(trainer)

    alter: Alteration = partial(watch)
    learned = Population(networks=False, alter=alter)(config, market, Budget(0.0))
    assert seen[0].generation == 1 and seen[0].population.networks is None
    assert learned.environment_steps == 4 * 3 * config.env.episode_steps
