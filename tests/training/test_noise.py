"""Every part of the learner and every input decides something: with noise in its place a run ends otherwise."""

from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest

from benchmarks.learning import alterations
from benchmarks.learning.markets import Alteration
from data.features.catalogue import CATALOGUE
from data.features.wide import WideBars
from data.market import Market, with_features
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from tests.tiny import seeded, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.features.importance import importance
from training.features.sheet import feature_sheet
from training.forecasts.skill import Array, trade_results
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


PLANTED = {
    "gap": ("gap", "recent_gap", "intraday", "recent_intraday", "overnight_quarter", "intraday_quarter"),
    "range": ("wicks", "recent_wicks", "session_range", "recent_session_range"),
    "volume": ("turnover", "recent_turnover", "illiquidity"),
    "column": ("sentiment",),
}
"""Features that tell the drift of a kind."""


@cache
def market_of(kind: str) -> Market:
    planted = SyntheticConfig(kind=kind, days=1200, stocks=10)
    return built_in_market(planted, DataConfig(context_window_days=64), RULES)[0]


@cache
def agent(kind: str) -> DDPGAgent:
    """Trained from random numbers, without a closed form."""
    evaluation = EvaluationConfig(fitness_windows=4, exploration_windows=2, evidence="report")
    learning = replace(LEARNING, gradient_steps=60)
    trainer = tiny_trainer(market_of(kind), rules=RULES, learning=learning, evolution=EVOLUTION, evaluation=evaluation)
    for _ in trainer.run(4):
        pass
    return trainer.champion


def results(market: Market) -> tuple[int, Array]:
    """Of trades on the validation days, from the first one on."""
    span = market.splits.validation
    return span.first, trade_results(Portfolio.on(market, RULES).bars, RULES, span.first, span.days)


@pytest.mark.parametrize("kind", PLANTED)
def test_agents_rank_by_what_is_planted_and_by_little_else(kind: str) -> None:
    worth = importance(agent(kind), market_of(kind), *results(market_of(kind)))
    told = sum(worth[name] for name in PLANTED[kind] if name in worth)
    others = [lost for name, lost in worth.items() if name not in PLANTED[kind]]
    assert next(iter(worth)) in PLANTED[kind]
    assert told > 0.04 and max(others) < told / 2


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name != "age"])  # all stocks of this market are as old
def test_noise_in_any_feature_is_another_forecast(name: str) -> None:
    """Of an agent that sees all: no feature is dropped on the way from the data to its networks."""
    as_is, seen, days = market_of("volume"), agent("volume"), slice(900, 910)
    drawn = np.random.default_rng(0).standard_normal(as_is.close.shape)

    def noisy(bars: WideBars) -> pd.DataFrame:
        return pd.DataFrame(drawn[: len(bars.dates), [as_is.tickers.index(ticker) for ticker in bars.tickers]])

    features = [replace(one, of=noisy) if one.name == name else one for one in as_is.features]
    before, after = (seen.forecasts(replace(as_is, features=own), days=days) for own in (as_is.features, features))
    assert bool((before.gain[0, days] != after.gain[0, days]).any())


def test_the_sheet_finds_what_is_planted() -> None:
    found = feature_sheet(
        market_of("column"), TrainingDays.of(market_of("column"), Portfolio.on(market_of("column"), RULES))
    )
    first = found.rows[0]
    assert first.feature.name == "sentiment"
    assert first.t[5] > 8 and first.lost > 0.8 * found.ic > 0.05
    assert (np.diff(first.quintiles) > 0).all()
    assert all(abs(row.lost) < 0.2 * first.lost for row in found.rows[1:])


def test_columns_of_noise_are_read_and_cost_little() -> None:
    rng, as_is = np.random.default_rng(3), market_of("column")
    columns = {f"noise {k}": rng.standard_normal(as_is.data_array.shape[:2]).astype(np.float32) for k in range(20)}
    many = with_features(replace(as_is, columns={**as_is.columns, **columns}))
    found = feature_sheet(many, TrainingDays.of(many, Portfolio.on(many, RULES)))
    assert found.rows[0].feature.name == "sentiment"
    assert found.ic > 0.8 * feature_sheet(as_is, TrainingDays.of(as_is, Portfolio.on(as_is, RULES))).ic
