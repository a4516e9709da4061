"""Evidence on training days: it is there where something was planted, and an agent without it holds the market."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.learning.study import study_config
from benchmarks.learning.unseen import training_market
from data.market import Market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.evidence import SIGNIFICANCE_LEVEL, Evidence
from models.round_robin import RoundRobinPolicy
from tests.tiny import random_world, regressions, rows_of, tiny_agent, tiny_rules
from training.erl_trainer import build_trainer
from training.evaluation.play import EvaluationSetup, play_agent
from training.forecasts.ridge import SkillTest, TrainingDays
from training.forecasts.timing import DailyMeans
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_TARGET_PERCENT, MIN_COEFFICIENT, TARGET_PERCENTS
from utils.statistics import kelly_share

NONE = Evidence(selection=0.4, timing=1.0)


@pytest.mark.parametrize("kind", ["momentum", "regime", "martingale"])
def test_what_was_planted_is_evidence_and_luck_is_none(kind: str) -> None:
    """Of the champion of a small population after two generations on 3,600 days of 12 stocks."""
    words = ("--synthetic.kind", kind, "--synthetic.days", "3600", "--synthetic.stocks", "12", "--seed", "3")
    config = study_config([*words, "--population-size", "4", "--evaluation.fitness-windows", "4"])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    for _ in trainer.run(2):
        pass
    found, trust = trainer.champion.evidence, trainer.champion.trust
    if kind == "martingale":
        assert not found.is_significant and found.smallest > 10 * SIGNIFICANCE_LEVEL and trust.timing == 0
    else:
        assert found.trust > 0.7 and (kind != "regime" or trust.timing > 0.5)


def test_evidence_by_hand() -> None:
    """A critic that nearly knows the results is sure in both; one that expects a constant knows nothing."""
    config = study_config(["--synthetic.kind", "momentum", "--synthetic.days", "1200", "--synthetic.stocks", "5"])
    market, _ = training_market(config)
    days = TrainingDays.of(market, Portfolio.on(market, config.env))
    samples, nothing = days.samples, torch.tensor([TARGET_PERCENTS[0]])
    inputs, span = samples.x.inputs, samples.train
    noise = 0.5 * np.random.default_rng(0).standard_normal(samples.results[2].shape)
    days_of_training = slice(span.first, span.last + 1)
    x = np.zeros((span.days, noise.shape[1], inputs), dtype=np.float32)
    x[..., 0] = 1.0
    rows = rows_of(x, span.first)
    weights = torch.zeros(5, inputs, dtype=torch.float64)

    def tell(values: NDArray[np.floating]) -> None:
        rows.own[:, 1] = torch.from_numpy(np.nan_to_num(values + noise)[days_of_training].ravel())

    tell(samples.results[2])
    weights[:, 0] = 1.0

    def found() -> Evidence:
        own = replace(samples, x=rows)
        knowing = replace(days, samples=own, means=DailyMeans.of(own))
        test = SkillTest(knowing, weights[None], target=2)
        knowing.forecasts(regressions(weights[None]), nothing, most=1, seen=test)
        return test.evidence()

    assert found() == Evidence(selection=1.0, timing=1.0)
    weights[:, 1] = 1.0
    assert max(vars(found()).values()) < 1e-3
    relative = samples.results[2] - samples.results[2].mean(axis=1, keepdims=True)
    tell(relative)
    assert found().selection < 1e-4 and found().timing > 0.1, (
        "expectations relative to the day's mean say nothing of the day"
    )


def holder(market: Market, rules: EnvironmentConfig) -> DDPGAgent:
    return replace(tiny_agent(market, rules=rules), evidence=NONE).betting(0.0)


@pytest.mark.parametrize("orders", [1, 2])
def test_without_evidence_it_holds_as_many_stocks_as_the_rules_allow(orders: int) -> None:
    rules = replace(tiny_rules(), max_new_positions_per_day=orders, max_holding_days=2, cost_bps=0.0, slippage_bps=0.0)
    world = random_world(rules=rules)
    agent = holder(world.market, rules)
    setup = EvaluationSetup(world.market, world.env, world.starts(6))
    track, trades, _ = play_agent(setup, agent)
    for trade in trades:
        assert trade["target_price"] == pytest.approx(trade["entry_price"] * (1 + MAX_TARGET_PERCENT / 100))
    most = min(1 / (orders * 2), rules.largest_order)
    sizes = np.array([trade["value"] for trade in trades]) / rules.initial_capital
    assert sizes.max() <= most + 1e-9 and np.median(sizes) > 0.8 * most
    by_stock = np.bincount([trade["stock"] for trade in trades], minlength=world.stocks)
    assert (by_stock > 0).all(), "every stock has its turn"
    assert float(track.exposure.mean()) > 0


@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 2**20))
def test_turns_go_round(stocks: int, orders: int, seed: int) -> None:
    """Where all stocks trade, each is first equally often; where some do not, only those that do have a turn."""
    orders = min(orders, stocks)
    rules = replace(tiny_rules(), max_new_positions_per_day=orders)
    policy = RoundRobinPolicy(0.0, rules)
    whole = torch.ones(stocks * 4, stocks, dtype=torch.bool)
    rich = torch.ones(len(whole))
    size = torch.full(rich.shape, policy.size, dtype=torch.float64)
    placed = policy.daily_orders(policy.turns(whole), whole, rich, size)
    assert torch.bincount(placed.stock.flatten(), minlength=stocks).unique().numel() == 1
    assert bool((placed.coefficient >= MIN_COEFFICIENT).all())
    draws = torch.Generator().manual_seed(seed)
    tradable = torch.rand(whole.shape, generator=draws) < 0.5
    placed = policy.daily_orders(policy.turns(tradable), tradable, rich, size)
    assert bool(tradable.gather(1, placed.stock)[placed.coefficient > 0].all())
    assert torch.equal((placed.coefficient > 0).sum(1), tradable.sum(1).clamp(max=orders))
    poor = policy.daily_orders(policy.turns(whole), whole, 0 * rich, size)
    assert not poor.coefficient.any()


@given(st.floats(0.0, 0.999), st.integers(1, 5), st.integers(1, 2))
def test_days_are_shared(share: float, stocks: int, orders: int) -> None:
    """Of any first days the agent has its share, rounded down; on the others the market's queue goes round."""
    orders = min(orders, stocks)
    policy = RoundRobinPolicy(share, replace(tiny_rules(), max_new_positions_per_day=orders))
    days = torch.arange(40 * stocks)
    is_own = policy.is_own(days)
    assert torch.equal(is_own.cumsum(0), ((days + 1).double() * share).floor().long())
    turns = policy.turns(torch.ones(len(days), stocks, dtype=torch.bool))
    bought = (turns[~is_own] < orders).sum(0)
    assert int(bought.max() - bought.min()) <= 1


def test_what_a_p_value_is_worth() -> None:
    worth = {1.0: 0.0, 0.5: 0.0, 1 / math.e: 0.0, 0.05: 0.421, 0.01: 0.777, 0.001: 0.963, 0.0: 1.0}
    assert {p_value: round(kelly_share(p_value), 3) for p_value in worth} == worth
    levels = np.linspace(0, 1, 1001)
    assert (np.diff([kelly_share(p_value) for p_value in levels]) <= 0).all()
    assert Evidence(1e-9, 1.0).trust == Evidence(1.0, 1e-9).trust == 1.0 and NONE.trust == 0.0
