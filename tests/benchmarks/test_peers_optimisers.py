"""Searches of genes: CMA-ES finds a known optimum, elites stay and are evaluated again, budgets hold."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.learning.unseen import UnseenPaths, training_market
from benchmarks.peers.optimisers import cma_es, optimisers
from benchmarks.peers.peer import Budget
from models import evolution
from tests.benchmarks.study_cases import tiny_config
from tests.tiny import seeded, tiny_trainer
from utils.config.trader import EvolutionConfig, LearningConfig


def test_cma_es_finds_the_optimum_of_a_known_fitness() -> None:
    """A quadratic in all genes, whose best target is a whole number."""
    pytest.importorskip("cmaes")
    low, high = evolution.bounds()
    best = low + torch.linspace(0.3, 0.7, len(low), dtype=torch.float64) * (high - low)
    best[evolution.TARGET] = low[evolution.TARGET] + 0.75 * (high - low)[evolution.TARGET]
    population = SimpleNamespace(genes=evolution.random_genes(16, seeded()), elites=[], cash_value=None)
    trainer: Any = SimpleNamespace(population=population, stand_on=lambda _: None)
    cma_es(trainer, seeded())
    most = []
    for _ in range(13):
        fitness = -((population.genes - best) / (high - low)).square().sum(1)
        population.elites = fitness.argsort(descending=True)[:4].tolist()
        most.append(float(fitness.max()))
        elites = population.genes[population.elites].clone()
        trainer.evolve_population(fitness)
        assert torch.equal(population.genes[population.elites], elites)
    assert most[-1] > 0.4 * most[0]
    assert (
        abs(population.genes[population.elites[0], evolution.TARGET] - best[evolution.TARGET])
        < 0.13 * (high - low).max()
    )


def test_a_trainer_evaluates_what_was_proposed() -> None:
    pytest.importorskip("cmaes")
    settings = EvolutionConfig(population_size=8, elite_fraction=0.25)
    trainer = tiny_trainer(learning=LearningConfig(gradient_steps=0), evolution=settings)
    cma_es(trainer, seeded())
    for _ in range(3):
        trainer.run_generation()
        low, high = evolution.bounds()
        assert ((trainer.population.genes >= low) & (trainer.population.genes <= high)).all()
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
