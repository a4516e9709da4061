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
from models.networks import Networks
from models.policy import Forecasts
from models.round_robin import RoundRobinPolicy
from tests.small_market import TINY_RULES
from tests.tiny import learnable_market, random_world, seeded, tiny_agent, tiny_rules
from training.erl_trainer import build_trainer
from training.evaluation.play import EvaluationSetup, play_agent
from training.forecasts.training_days import TrainingDays
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_TARGET_PERCENT, MIN_COEFFICIENT
from utils.statistics import kelly_share

Array = NDArray[np.floating]
NONE = Evidence(selection=0.4, timing=1.0)


@pytest.mark.parametrize("kind", ["momentum", "regime", "martingale"])
def test_what_was_planted_is_evidence_and_luck_is_none(kind: str) -> None:
    """Of the champion of a small population after two generations on 3,600 days of 12 stocks."""
    words = ("--synthetic.kind", kind, "--synthetic.days", "3600", "--synthetic.stocks", "12", "--seed", "3")
    small = ("--population-size", "4", "--evaluation.fitness-windows", "4", "--learning.gradient-steps", "20")
    config = study_config([*words, *small])
    trainer = build_trainer(config, training_market(config)[0], torch.device("cpu"))
    for _ in trainer.run(2):
        pass
    champion = trainer.champion
    if kind == "martingale":
        assert not champion.evidence.is_significant and champion.evidence.smallest > 10 * SIGNIFICANCE_LEVEL
    else:
        assert champion.share > 0.7
    assert champion.share == champion.evidence.trust


@pytest.fixture(scope="module")
def days() -> TrainingDays:
    """Of a market with a hundred days of each of some stocks, which are as good as noise."""
    return TrainingDays.of(*market_and_account(0))


def market_and_account(seed: int) -> tuple[Market, Portfolio]:
    market = learnable_market(seed)
    return market, Portfolio.on(market, TINY_RULES)


def evidence_of(days: TrainingDays, gain: Array, trials: int = 1) -> Evidence:
    """Of (days, n) gains, whatever the time that they take."""
    forecasts = Forecasts.of(torch.from_numpy(gain).float()[None], torch.zeros(1, *gain.shape), days.tradable)
    return days.evidence(forecasts, 0.1, trials)


def mean_of_day(values: Array) -> Array:
    """Of the known ones, (days, 1); 0 where there are none."""
    return np.nansum(values, axis=1, keepdims=True) / np.isfinite(values).sum(axis=1, keepdims=True).clip(min=1)


def test_evidence_by_hand(days: TrainingDays) -> None:
    """Who nearly knows the results is sure in both; who expects a constant knows nothing; who knows them relative to
    the day's mean alone knows nothing of the day."""
    results = days.samples.results[-1]
    noisy = results + np.nanstd(results) * np.random.default_rng(0).standard_normal(results.shape)
    assert evidence_of(days, np.zeros_like(results)) == Evidence(selection=1.0, timing=1.0)
    knowing = evidence_of(days, noisy)
    assert max(vars(knowing).values()) < 1e-3
    relative = evidence_of(days, noisy - mean_of_day(noisy))
    assert relative.selection < 1e-3 and relative.timing > 0.01
    level = evidence_of(days, mean_of_day(results) + np.zeros_like(results))
    assert level.selection == 1.0 and level.timing < 1e-3
    opposite = evidence_of(days, -noisy)
    assert opposite.selection > 0.99 and opposite.smallest == min(opposite.selection, opposite.timing)


def test_the_price_of_capital_is_in_the_score_and_trials_in_the_p_values(days: TrainingDays) -> None:
    gain, time = 0.3 * torch.randn(2, 1, *days.tradable.shape, generator=seeded(1))
    forecasts = Forecasts.of(gain, time.abs(), days.tradable)
    one, score = days.evidence(forecasts, 0.5, 1), gain[0] - 0.5 * time[0].abs()
    assert one == evidence_of(days, score.numpy()) != days.evidence(forecasts, 0.0, 1)
    many = days.evidence(forecasts, 0.5, 7)
    for name, p_value in vars(one).items():
        assert getattr(many, name) == pytest.approx(min(1.0, 7 * p_value), rel=0.05), name


def test_results_after_training_and_before_are_not_looked_at(days: TrainingDays) -> None:
    """Nor those that are known after the last training day only."""
    samples = days.samples
    results, gain = samples.results.copy(), np.random.default_rng(1).standard_normal(samples.results.shape[1:])
    results[:, ~samples.train_days] = 1e6
    spoilt = replace(days, samples=replace(samples, results=results))
    gain[~samples.train_days] = 1e6
    other = np.random.default_rng(1).standard_normal(gain.shape)
    assert evidence_of(spoilt, gain) == evidence_of(days, other)


def test_closed_forms_that_found_noise_are_no_evidence() -> None:
    """Out of fold, on markets without structure: small p-values are about as rare as they say."""
    found = []
    for seed in range(16):
        market, account = market_and_account(seed)
        days = TrainingDays.of(market, account)
        mask = torch.ones(1, days.inputs.size - 1, dtype=torch.bool)
        networks = Networks.initialize(mask, 2, days.folds, 0.0, seeded(seed))
        networks.start_from(days.closed_form()[None, :, :, -1])
        found.append(days.evidence(days.forecasts(networks.targets, [0]), 0.05, 1).smallest)
    assert min(found) > SIGNIFICANCE_LEVEL and sum(p_value < 0.1 for p_value in found) <= 4


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
    placed = policy.hold(policy.turns(whole), whole, rich)
    assert torch.bincount(placed.stock.flatten(), minlength=stocks).unique().numel() == 1
    assert bool((placed.coefficient >= MIN_COEFFICIENT).all())
    draws = torch.Generator().manual_seed(seed)
    tradable = torch.rand(whole.shape, generator=draws) < 0.5
    placed = policy.hold(policy.turns(tradable), tradable, rich)
    assert bool(tradable.gather(1, placed.stock)[placed.coefficient > 0].all())
    assert torch.equal((placed.coefficient > 0).sum(1), tradable.sum(1).clamp(max=orders))
    assert bool(placed.keep.all()), "it sells nothing"
    assert not policy.hold(policy.turns(whole), whole, 0 * rich).coefficient.any()


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
