"""Every named part of the learner decides something: with noise in its place a small run ends otherwise."""

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any
from unittest import mock

import pytest

from benchmarks.learning import alterations
from benchmarks.learning.markets import Alteration
from data.market import Market
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from tests.tiny import seeded, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.forecasts.ridge import TrainingDays
from utils.config.trader import (
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    EvolutionConfig,
    LearningConfig,
    SyntheticConfig,
)

RULES = EnvironmentConfig(trading_days=40, settlement_days=10, max_holding_days=10, stake_percent=2.5)
LEARNING = LearningConfig(
    replay_capacity=4000, training_starts=10, gradient_steps=16, gradient_accumulation=1, batch_size=128, hidden=8
)
PARTS: dict[str, Alteration | dict[str, float]] = {
    "actor": alterations.order_at_random,
    "critic's rewards": partial(alterations.draw_last_layers, "critic.reward"),
    "critic's continuation": partial(alterations.draw_last_layers, "critic.continuation"),
    "sizes": partial(alterations.draw_last_layers, "actor.size"),
    "sale targets": alterations.no_sale_targets,
    "replay": alterations.shuffle_replay,
    "crossover": alterations.inherit_from_one,
    "mutation": alterations.do_not_mutate,
    "fitness": alterations.draw_fitness,
    "target networks": {"tau": 1.0},
    "noise": {"exploration_noise": 0.0},
}


@cache
def market(kind: Any) -> Market:
    planted = SyntheticConfig(kind=kind, days=1000, stocks=10)
    return built_in_market(planted, DataConfig(context_window_days=64), RULES)[0]


@cache
def summed_up(kind: str) -> TrainingDays:
    """What all trainers of a market share: nothing that a part changes."""
    return TrainingDays.of(market(kind), Portfolio.on(market(kind), RULES))


def trained(kind: str, part: str | None = None) -> tuple[ERLTrainer, dict[str, Any]]:
    """A trainer after a few generations, and its last record."""
    change, days = {} if part is None else PARTS[part], summed_up(kind)
    with mock.patch.object(TrainingDays, "of", lambda *_: replace(days, means=copy.copy(days.means))):
        trainer = tiny_trainer(
            market(kind),
            rules=RULES,
            learning=replace(LEARNING, **change) if isinstance(change, dict) else LEARNING,
            evolution=EvolutionConfig(population_size=4),
            evaluation=EvaluationConfig(fitness_windows=4, exploration_windows=2, evidence="report"),
        )
    if not isinstance(change, dict):
        change(trainer, seeded())
    *_, last = trainer.run(2)
    return trainer, last


@cache
def base() -> dict[str, Any]:
    return trained("agree")[1]


@pytest.mark.parametrize("part", PARTS)
def test_noise_in_place_of_a_part_changes_what_the_agents_earn(part: str) -> None:
    trainer, record = trained("agree", part)
    for name in ("profit_percent", "trading"):
        assert record[name] != base()[name], name
    assert trainer.population.updates > 0


def test_random_actors_lose_the_profit() -> None:
    """Of the champion on validation days, on a market whose drifts last."""
    random, profit = (trained("momentum", part)[1]["validation"] for part in ("actor", None))
    assert profit["champion"] > 3.0 and random["champion"] < 0.1 * profit["champion"]
    assert random["closed_form"] > 0.5 * profit["closed_form"], "the closed form beneath is whole"
