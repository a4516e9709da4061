"""What the learner is taught, and every input, decides something: with noise in its place agents differ."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.signal import lfilter
from scipy.special import ndtri
from scipy.stats import gamma

from benchmarks.trainers import generations
from data.features.catalogue import CATALOGUE, LIBRARY
from data.features.formulas import Formulas
from data.features.grammar import Formula, Quantities
from data.features.inputs import TradeInputs
from data.features.nine import OPEN
from data.loader import StockDataLoader
from data.market import Market, build_market, with_features
from data.synthetic.built_in import built_in_market
from environment.quotes import Quotes
from models.ddpg_agent import DDPGAgent
from tests.conftest import ALL
from tests.tiny import seeded, tiny_agent, tiny_trainer
from training.commands.evaluate import explain_positions, importance
from training.commands.features import FeatureSheet, feature_sheet
from training.erl_trainer import ERLTrainer
from training.forecasts.skill import agent_scores, rank_correlation, returns_ahead
from training.forecasts.training_days import TrainingDays
from utils.config.trader import (
    DataConfig,
    EnvironmentConfig,
    EvaluationConfig,
    EvolutionConfig,
    LearningConfig,
    SyntheticConfig,
)

RULES = EnvironmentConfig(trading_days=40, settlement_days=10)
SIZES = {"replay_capacity": 4000, "training_starts": 10, "gradient_steps": 30, "batch_size": 128, "hidden": 8}
LEARNING = LearningConfig(gradient_accumulation=1, learning_rate=0.01, **SIZES)
EVOLUTION = EvolutionConfig(population_size=4)
EVALUATION = EvaluationConfig(fitness_windows=4, exploration_windows=2)
PARTS: dict[str, dict[str, float]] = {
    "outcomes": {},
    "mutation": {"mutation_share": 0.0, "mutation_strength": 0.0},
    "target networks": {"tau": 1.0},
    "exploration": {"exploration_noise": 0.0},
}
"""Of the learner, with the settings that take them away; outcomes are given to other stocks and days."""


PLANTED = {
    "gap": ("gap", "recent_gap", "intraday", "recent_intraday", "overnight_quarter", "intraday_quarter"),
    "range": ("wicks", "recent_wicks", "session_range", "recent_session_range"),
    "volume": ("turnover", "recent_turnover", "illiquidity"),
    "column": ("sentiment",),
}
"""Features that tell the drift of a kind."""
SEEN = slice(900, 910)
FORMULAS = "formulas"


@pytest.fixture(scope="module", autouse=True)
def some_formulas(all_formulas: None) -> Iterator[None]:
    """Search formulas among what is planted and a third of all else: that takes most of the time of these tests."""
    planted = {name for names in PLANTED.values() for name in names}

    def some(table: Quantities) -> list[str]:
        return [name for place, name in enumerate(ALL.func(table)) if place % 3 == 0 or name in planted]

    with mock.patch.object(Quantities, "names", property(some)):
        yield


def is_planted(name: str, kind: str) -> bool:
    """Whether an input, or what formulas are made of, is planted."""
    return name in PLANTED[kind] or name.startswith(FORMULAS)


@cache
def market(kind: str) -> Market:
    """Of drifts that last, of which something tells all: closes where the kind is momentum."""
    if kind == "momentum":
        planted = SyntheticConfig(kind=kind, days=1000, stocks=10)
        return built_in_market(planted, DataConfig(context_window_days=64, inputs="past"), RULES)[0]
    split = DataConfig(context_window_days=64)
    loader = StockDataLoader.from_frame(told_bars(kind), config=split)
    loader.load_and_prepare()
    return build_market(loader, split, RULES)


def told_bars(kind: str, days: int = 1200, stocks: int = 10) -> pd.DataFrame:
    """Bars whose drift, with a half-life of two days, overnight returns, widths of bars, volume or a column tell."""
    rng, noise, night, kept = np.random.default_rng(0), 0.015, 0.3, 0.5**0.5
    shape = days, stocks
    overnight, session = (noise * np.sqrt(part) * rng.standard_normal(shape) for part in (night, 1 - night))
    wicks, news = rng.standard_exponential((2, *shape)), rng.standard_normal(shape)
    if kind == "gap":  # whole days tell nothing
        news = (overnight * np.sqrt((1 - night) / night) - session * np.sqrt(night / (1 - night))) / noise
    elif kind == "range":
        news = ndtri(gamma(2).cdf(wicks.sum(axis=0)))
    state = lfilter([np.sqrt(1 - kept**2)], [1, -kept], news, axis=0)
    session[1:] += 0.0035 * state[:-1]
    close = 50 * np.exp((overnight + session).cumsum(axis=0))
    open_, unit = close / np.exp(session), (1 - night) * noise**2 / 2
    middle, square = np.log(open_ * close) / 2, (session / 2) ** 2
    up, down = (np.sqrt(square + unit * wick) for wick in wicks)
    bars = {"open": open_, "high": np.exp(middle + up), "low": np.exp(middle - down), "close": close}
    bars |= {"column": {"sentiment": state}, "volume": {"volume": np.exp(12 + 0.4 * state)}}.get(kind, {})
    dates = np.repeat(pd.bdate_range("2006-01-02", periods=days), stocks)
    tickers = [f"S{place}" for place in range(stocks)] * days
    return pd.DataFrame({"date": dates, "ticker": tickers, **{name: wide.ravel() for name, wide in bars.items()}})


@cache
def training_days() -> TrainingDays:
    """What all trainers share: nothing that a part changes."""
    return TrainingDays.of(market("momentum"), Quotes.on(market("momentum")), RULES)


def changed(settings: Any, part: str | None) -> Any:
    own = {} if part is None else PARTS[part]
    return replace(settings, **{name: value for name, value in own.items() if hasattr(settings, name)})


@cache
def trained(part: str | None = None) -> tuple[ERLTrainer, dict[str, Any]]:
    """A trainer after two generations, and its last record."""
    days = training_days()
    if part == "outcomes":
        reward = days.transitions.reward
        other = reward[torch.randperm(len(reward), generator=seeded())]
        days = replace(days, transitions=replace(days.transitions, reward=other))
    with mock.patch.object(TrainingDays, "of", lambda *_: days):
        parts = {"learning": changed(LEARNING, part), "evolution": changed(EVOLUTION, part)}
        trainer = tiny_trainer(market("momentum"), rules=RULES, evaluation=EVALUATION, seed=1, **parts)
    *_, last = generations(trainer, 2)
    return trainer, last


def test_outcomes_of_other_stocks_teach_nothing() -> None:
    """Most of the profit over the benchmark is lost, out of fold; selection finds what is left among scores that
    learned nothing."""
    own, other = (trained(part)[1]["fitness"]["mean"] for part in (None, "outcomes"))
    assert own > 1.0 and own > 2.5 * other and trained("outcomes")[0].population.updates > 0


def test_a_champion_is_believed_where_something_is_planted_and_not_where_outcomes_are_of_other_stocks() -> None:
    trainer, spoilt = trained()[0], trained("outcomes")[0]
    evidence, told = trainer.champion.evidence, trainer.validate_best_agent()
    assert evidence.is_significant and trainer.champion.shrink == evidence.shrink > 0.7
    assert told["champion"] > told["benchmark"] + 1.0
    assert not spoilt.champion.evidence.is_significant and spoilt.champion.shrink < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in PARTS if part != "outcomes"])
def test_other_parts_change_little(part: str) -> None:
    """They reach the agents, so that they trade otherwise, but are no large part of the profit."""
    (_, base), (trainer, record) = trained(), trained(part)
    assert record["trading"] != base["trading"] and trainer.population.updates > 0
    assert 0.0 < abs(record["profit_percent"] - base["profit_percent"]) < 2.5


@cache
def agent(kind: str) -> DDPGAgent:
    """Trained for two generations."""
    learning = replace(LEARNING, gradient_steps=40)
    trainer = tiny_trainer(
        market(kind), rules=RULES, learning=learning, evolution=EVOLUTION, evaluation=EVALUATION, seed=1
    )
    for _ in generations(trainer, 2):
        pass
    return trainer.champion


@pytest.mark.parametrize("kind", PLANTED)
def test_agents_rank_by_what_is_planted_and_by_little_else(kind: str) -> None:
    seen, span = market(kind), market(kind).splits.validation
    days = slice(span.first, span.last + 1)
    results = returns_ahead(seen.data_array[:, seen.investable_columns, OPEN].astype(np.float64), days, 5)
    worth = importance(agent(kind), seen, span.first, results)
    told = sum(lost for name, lost in worth.items() if is_planted(name, kind))
    others = [lost for name, lost in worth.items() if not is_planted(name, kind)]
    assert is_planted(next(iter(worth)), kind)
    assert {one.quantity for one in agent(kind).inputs.formulas.formulas} <= {*PLANTED[kind], "range_shock_1"}
    assert told > 0.04 and max(others) < told / 2
    assert np.nanmean(rank_correlation(agent_scores(agent(kind).forecasts(seen), days), results)) > told / 2


def test_the_largest_positions_are_told_by_what_is_planted() -> None:
    """Where the column that tells the drift is the most extreme; two of twelve are too small to be named, and another
    is of what nobody may buy."""
    seen = market("column")
    days = slice(seen.splits.validation.first, seen.splits.validation.last)
    told = np.abs(seen.columns["sentiment"][days][:, seen.investable_columns])
    extreme = [np.unravel_index(place, told.shape) for place in np.argsort(-told, axis=None)[:12]]
    held = [
        {
            "stock": int(stock),
            "first_day": days.start + int(day) + 1,
            "profit": (-1) ** rank * float(rank),
            "costs": 0.0,
        }
        for rank, (day, stock) in enumerate(extreme)
    ]
    found = explain_positions(agent("column"), seen, [*held, {**held[0], "stock": 99, "profit": 1e6}])
    assert [*found] == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert all(text.startswith(f"{FORMULAS}; ") and text.count(", ") == 2 for text in found.values()), found
    assert sum(" sentiment " in text for text in found.values()) >= 8, found
    assert {one.quantity for one in agent("column").inputs.formulas.formulas} == {"sentiment"}
    assert explain_positions(agent("column"), seen, []) == {}


@cache
def undisturbed() -> tuple[DDPGAgent, torch.Tensor]:
    """An agent that sees all, with its scores of some days of the market with volume."""
    seen = tiny_agent(market("volume"))
    seen.inputs = replace(seen.inputs, formulas=Formulas((Formula("volume_shock_5"),), ((0.1, 0.1),)))
    return seen, seen.forecasts(market("volume"), days=SEEN).score[0, SEEN]


# All stocks of the market are as old, and none has a peer.
READ = [name for name, one in CATALOGUE.items() if name != "age" and one.group not in ("peers", LIBRARY)]


@pytest.mark.parametrize("name", [*READ, "volume_shock_5"])
def test_noise_in_any_feature_is_another_forecast(name: str) -> None:
    """Of an agent that sees all: nothing is dropped on the way to its networks, nor what a formula is made of."""
    as_is, rng = market("volume"), np.random.default_rng(0)
    noise = pd.DataFrame(rng.standard_normal(as_is.data_array.shape[:2]), columns=as_is.tickers)

    def noisy(bars: Any) -> pd.DataFrame:
        return noise.loc[: len(bars.dates) - 1, bars.tickers]

    features = tuple(replace(one, of=noisy) if one.name == name else one for one in as_is.features)
    seen, before = undisturbed()
    after = seen.forecasts(replace(as_is, features=features), days=SEEN).score[0, SEEN]
    assert bool((before != after).any())


@cache
def sheet(noise_columns: int = 0) -> FeatureSheet:
    """Return the sheet of the market whose column tells the drift, with columns of noise besides, and no formulas."""
    rng, as_is = np.random.default_rng(3), market("column")
    shape = as_is.data_array.shape[:2]
    noise = {f"noise {place}": rng.standard_normal(shape).astype(np.float32) for place in range(noise_columns)}
    many = with_features(replace(as_is, columns={**as_is.columns, **noise}))
    with mock.patch.object(TradeInputs, "fit_formulas", lambda *given: [Formulas()] * len(given[-1])):
        return feature_sheet(many, TrainingDays.of(many, Quotes.on(many), RULES))


def test_the_sheet_finds_what_is_planted() -> None:
    found = sheet()
    first = found.rows[0]
    assert first.feature.name == "sentiment"
    assert first.cells["t 5"] > 8 and first.cells["lost IC"] > 0.8 * found.ic > 0.05
    assert (np.diff(first.quintiles) > 0).all()
    assert all(abs(row.cells["lost IC"]) < 0.2 * first.cells["lost IC"] for row in found.rows[1:])


def test_columns_of_noise_are_read_and_cost_little() -> None:
    assert sheet(10).rows[0].feature.name == "sentiment"
    assert sheet(10).ic > 0.8 * sheet().ic
