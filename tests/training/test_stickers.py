"""Every named part of the learner decides something: with noise in its place a small run ends otherwise."""

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.learning import alterations
from benchmarks.learning.markets import Alteration
from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from tests.tiny import seeded, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.forecasts.training_days import TrainingDays
from utils.config.trader import (
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    EvolutionConfig,
    LearningConfig,
    SyntheticConfig,
)

RULES = EnvironmentConfig(trading_days=40, settlement_days=10, max_holding_days=10, stake_percent=2.5)
SIZES = {"replay_capacity": 4000, "training_starts": 10, "gradient_steps": 30, "batch_size": 128, "hidden": 8}
LEARNING = LearningConfig(warm_start=False, gradient_accumulation=1, learning_rate=0.01, **SIZES)
EVOLUTION = EvolutionConfig(population_size=4)
PARTS: dict[str, Alteration | dict[str, float]] = {
    "targets": alterations.noise_in_targets,
    "bootstrap": alterations.no_bootstrap,
    "actor": alterations.noise_in_the_actors_gradient,
    "actor of its own": alterations.critic_decides,
    "replay": alterations.noise_in_replay,
    "price of capital": alterations.free_capital,
    "fitness": alterations.draw_fitness,
    "evolution": alterations.keep_genes,
    "mutation": {"mutation_share": 0.0, "mutation_strength": 0.0},
    "target networks": {"tau": 1.0},
    "exploration": {"exploration_noise": 0.0},
}


@cache
def market() -> Market:
    """One whose drifts last, of which closes tell all."""
    planted = SyntheticConfig(kind="momentum", days=1000, stocks=10)
    return built_in_market(planted, DataConfig(context_window_days=64, inputs="past"), RULES)[0]


@cache
def training_days() -> TrainingDays:
    """What all trainers share: nothing that a part changes."""
    return TrainingDays.of(market(), Portfolio.on(market(), RULES))


def changed(settings: Any, change: Alteration | dict[str, float]) -> Any:
    own = change.items() if isinstance(change, dict) else ()
    return replace(settings, **{name: value for name, value in own if hasattr(settings, name)})


def trained(part: str | None = None) -> tuple[ERLTrainer, dict[str, Any]]:
    """A trainer after a few generations, and its last record."""
    change, days = {} if part is None else PARTS[part], training_days()
    with mock.patch.object(TrainingDays, "of", lambda *_: days):
        evaluation = EvaluationConfig(fitness_windows=4, exploration_windows=2, evidence="report")
        parts = {"learning": changed(LEARNING, change), "evolution": changed(EVOLUTION, change)}
        trainer = tiny_trainer(market(), rules=RULES, evaluation=evaluation, **parts)
    if not isinstance(change, dict):
        change(trainer, seeded())
    *_, last = trainer.run(3)
    return trainer, last


@cache
def base() -> dict[str, Any]:
    return trained()[1]


@pytest.mark.parametrize("part", PARTS)
def test_noise_in_place_of_a_part_changes_what_the_agents_earn(part: str) -> None:
    """Of the actor and of what the critic learns: all of the agents' profit is lost, out of fold on training days."""
    trainer, record = trained(part)
    for name in ("profit_percent", "trading"):
        assert record[name] != base()[name], name
    assert trainer.population.updates > 0
    if part in ("actor", "targets"):
        assert record["profit_percent"] < 0.0 < 0.5 < base()["profit_percent"]
    if part == "actor of its own":
        networks = trainer.population.networks
        last = torch.cat([one.flatten(-2) for one in networks.target.critic.matrices[-3:]], dim=-1)
        torch.testing.assert_close(networks.target.actor, last)
