"""What is told by something other than closes is read from there: without its values the agents rank at random."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data.features.catalogue import CATALOGUE
from data.market import Market, with_features
from data.synthetic.built_in import built_in_market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from tests.tiny import tiny_agent, tiny_trainer
from tests.training.test_stickers import EVOLUTION, LEARNING, RULES
from training.features.importance import explain_trades, importance
from training.features.sheet import FeatureSheet, feature_sheet
from training.forecasts.skill import trade_results
from training.forecasts.training_days import TrainingDays
from utils.arrays import Float64Array
from utils.config.trader import DataConfig, EvaluationConfig, SyntheticConfig

PLANTED = {
    "gap": ("gap", "recent_gap", "intraday", "recent_intraday", "overnight_quarter", "intraday_quarter"),
    "range": ("wicks", "recent_wicks", "session_range", "recent_session_range"),
    "volume": ("turnover", "recent_turnover", "illiquidity"),
    "column": ("sentiment",),
}
"""Features that tell the drift of a kind."""


@cache
def market(kind: str) -> Market:
    planted = SyntheticConfig(kind=kind, days=1200, stocks=10)
    return built_in_market(planted, DataConfig(context_window_days=64), RULES)[0]


@cache
def agent(kind: str) -> DDPGAgent:
    """Trained from random numbers, without a closed form."""
    evaluation = EvaluationConfig(fitness_windows=4, exploration_windows=2, evidence="report")
    learning = replace(LEARNING, gradient_steps=40)
    trainer = tiny_trainer(market(kind), rules=RULES, learning=learning, evolution=EVOLUTION, evaluation=evaluation)
    for _ in trainer.run(3):
        pass
    return trainer.champion


def results(market: Market) -> tuple[int, Float64Array]:
    """Of trades on the validation days, from the first one on."""
    span = market.splits.validation
    return span.first, trade_results(Portfolio.on(market, RULES).bars, RULES, slice(span.first, span.last + 1))


@pytest.mark.parametrize("kind", PLANTED)
def test_agents_rank_by_what_is_planted_and_by_little_else(kind: str) -> None:
    worth = importance(agent(kind), market(kind), *results(market(kind)))
    told = sum(worth[name] for name in PLANTED[kind] if name in worth)
    others = [lost for name, lost in worth.items() if name not in PLANTED[kind]]
    assert next(iter(worth)) in PLANTED[kind]
    assert told > 0.04 and max(others) < told / 2


def test_the_largest_trades_are_told_by_what_is_planted() -> None:
    """Where the column that tells the drift is the most extreme; two of twelve trades are too small to be named."""
    seen = market("column")
    days = slice(seen.splits.validation.first, seen.splits.validation.last)
    told = np.abs(seen.columns["sentiment"][days][:, seen.investable_columns])
    extreme = [np.unravel_index(place, told.shape) for place in np.argsort(-told, axis=None)[:12]]
    trades = [
        {"stock": int(stock), "order_day": days.start + int(day), "profit": (-1) ** rank * float(rank), "costs": 0.0}
        for rank, (day, stock) in enumerate(extreme)
    ]
    found = explain_trades(agent("column"), seen, trades)
    assert [*found] == [11, 10, 9, 8, 7, 6, 5, 4, 3, 2]
    assert all(text.startswith("sentiment ") and text.count(", ") == 2 for text in found.values()), found
    assert explain_trades(agent("column"), seen, []) == {}


@pytest.mark.parametrize("name", CATALOGUE)
def test_noise_in_any_feature_is_another_forecast(name: str) -> None:
    """Of an agent that sees all: no feature is dropped on the way from the data to its networks."""
    as_is, rng = market("volume"), np.random.default_rng(0)
    noise = pd.DataFrame(rng.standard_normal(as_is.data_array.shape[:2]), columns=as_is.tickers)

    def noisy(bars: Any) -> pd.DataFrame:
        return noise.loc[: len(bars.dates) - 1, bars.tickers]

    features = tuple(replace(one, of=noisy) if one.name == name else one for one in as_is.features)
    seen, days = tiny_agent(as_is), slice(900, 910)
    if name not in {own.name for own in seen.inputs.features.inputs}:
        assert name == "age"  # all stocks of this market are as old
        return
    before, after = (
        seen.forecasts(one, days=days).score[0, days] for one in (as_is, replace(as_is, features=features))
    )
    assert bool((before != after).any())


@cache
def sheet(noise_columns: int = 0) -> FeatureSheet:
    """Return the sheet of the market whose column tells the drift, with columns of noise besides."""
    rng, as_is = np.random.default_rng(3), market("column")
    shape = as_is.data_array.shape[:2]
    noise = {f"noise {place}": rng.standard_normal(shape).astype(np.float32) for place in range(noise_columns)}
    many = with_features(replace(as_is, columns={**as_is.columns, **noise}))
    return feature_sheet(many, TrainingDays.of(many, Portfolio.on(many, RULES)))


def test_the_sheet_finds_what_is_planted() -> None:
    found = sheet()
    first = found.rows[0]
    assert first.feature.name == "sentiment"
    assert first.t[5] > 8 and first.lost > 0.8 * found.ic > 0.05
    assert (np.diff(first.quintiles) > 0).all()
    assert all(abs(row.lost) < 0.2 * first.lost for row in found.rows[1:])


def test_columns_of_noise_are_read_and_cost_little() -> None:
    assert sheet(20).rows[0].feature.name == "sentiment"
    assert sheet(20).ic > 0.8 * sheet().ic
