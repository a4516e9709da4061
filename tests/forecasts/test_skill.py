"""Information coefficients against an independent oracle, and what an agent and the market say of a day."""

import math
import statistics

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from environment.trading_rules import Orders
from tests.tiny import FIRST_DAY, random_world, tiny_agent, tiny_rules, trending_panel, world_of
from training.forecasts.skill import (
    agent_scores,
    beta,
    cross_fitted_mean_test,
    information_coefficients,
    known_share,
    overlapping_mean_test,
    trade_results,
)
from utils.spaces import POSITION_FEATURES
from utils.statistics import mean_test

Array = npt.NDArray[np.float64]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9))
def test_coefficients_are_those_of_scipy_day_by_day(seed: int, days: int, stocks: int) -> None:
    rng = np.random.default_rng(seed)
    scores, results = rng.integers(0, 3, (days, stocks)).astype(float), rng.standard_normal((days, stocks))
    scores[rng.random(scores.shape) < 0.2] = np.nan
    results[rng.random(scores.shape) < 0.2] = np.nan
    plain, ranked = information_coefficients(scores, results)
    for day in range(days):
        known = np.isfinite(scores[day]) & np.isfinite(results[day])
        own, earned = scores[day, known], results[day, known]
        if known.sum() < 3 or np.ptp(own) == 0:
            assert math.isnan(plain[day]) and math.isnan(ranked[day])
            continue
        assert plain[day] == pytest.approx(stats.pearsonr(own, earned).statistic)
        assert ranked[day] == pytest.approx(stats.spearmanr(own, earned).statistic)


@pytest.mark.parametrize("days", [435, 1000])
def test_results_that_overlap_raise_no_false_alarms(days: int) -> None:
    """Sums over 20 days, day by day, as results of trades are."""
    shocks = np.random.default_rng(0).standard_normal((1500, days + 19))
    whole = np.cumsum(np.pad(shocks, ((0, 0), (1, 0))), axis=1)
    series = whole[:, 20:] - whole[:, :-20]
    assert statistics.fmean(overlapping_mean_test(row, 20).p_value <= 0.025 for row in series) <= 0.035
    assert statistics.fmean(mean_test(row).p_value <= 0.025 for row in series) > 0.06


@pytest.mark.parametrize("inputs", [1, 8])
def test_cross_fitted_forecasts_of_noise_are_significant_as_rarely_as_the_p_value_says(inputs: int) -> None:
    rng, fold, level = np.random.default_rng(inputs), np.arange(500) // 100, 0.02
    plain, cross_fitted = list[bool](), list[bool]()
    for _ in range(1000):
        x, y = rng.standard_normal((500, inputs)), rng.standard_normal(500)
        weights = [np.linalg.lstsq(x[fold != held], y[fold != held], rcond=None)[0] for held in range(5)]
        forecast = np.concatenate([x[fold == held] @ weights[held] for held in range(5)])
        product = (forecast - forecast.mean()) * (y - y.mean())
        plain.append(overlapping_mean_test(product, 1).p_value <= level)
        cross_fitted.append(cross_fitted_mean_test(product, 1, trials=1).p_value <= level)
    assert statistics.fmean(cross_fitted) <= level + 3 * math.sqrt(level / 1000)
    assert inputs == 1 or statistics.fmean(plain) > 1.5 * level


def test_an_agent_orders_the_best_of_its_scores_on_a_fresh_account() -> None:
    """Where capital has no price yet, and the best is worth its purchase."""
    world = random_world(3, days=60)
    agent, cost = tiny_agent(world.market, rules=world.env.rules), 100 * world.env.rules.cost_rate
    forecasts = agent.forecasts(world.market)
    found = agent_scores(forecasts, FIRST_DAY, 30)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(world.market.close[FIRST_DAY : FIRST_DAY + 30]))
    ordered = 0
    for day, scores in enumerate(found, start=FIRST_DAY):
        world.env.reset(torch.tensor([day]))
        nothing = torch.zeros(world.stocks, POSITION_FEATURES)
        placed = agent.place(nothing, world.env.account()[0], forecasts, day)
        orders = placed.action(torch.zeros(1, world.stocks, dtype=torch.bool))[0, :, 0].numpy()
        is_best = (scores == np.nanmax(scores)) & (scores > cost)
        np.testing.assert_array_equal(orders > 0, is_best)
        ordered += is_best.sum()
    assert ordered > 5


def test_a_result_is_what_the_trade_earns_and_known_only_in_time() -> None:
    """Without noise a stock that rises by 1% a day earns that over the sessions held, less costs."""
    rules = tiny_rules(max_holding_days=3, cost_bps=0.0, slippage_bps=0.0)
    world = world_of(trending_panel([0.01, -0.01, 0.0], 60, noise=0.0), rules=rules)
    results = trade_results(world.env.bars, rules, FIRST_DAY, 30)
    known = np.isfinite(results).all(axis=1)
    assert results.shape == (30, 3) and known[:24].all() and not known[-2:].any()
    assert np.isfinite(results).any(axis=1)[known].all()
    assert results[0, 0] > 1e-6 > abs(results[0, 2]) and results[0, 1] < -1e-6
    plain, ranked = information_coefficients(np.broadcast_to([1.0, -1.0, 0.0], (30, 3)), results)
    assert ranked[known] == pytest.approx(1.0) and plain[known] == pytest.approx(1.0, abs=1e-2)


def test_the_known_share_never_looks_ahead() -> None:
    """By hand: two windows of three trading steps and two settlement steps, one order a day."""
    rules = tiny_rules(trading_days=3, settlement_days=2)
    size = torch.tensor([[0.0, 6.0], [3.0, 0.0], [3.0, 0.0], [0.0, 0.0], [0.0, 0.0]]).double()[:, None]
    expected = [0, 0, 1.5, 2, 2, 2, 3, 2.4, 2, 2]
    assert known_share(Orders(size, size, size), rules) == pytest.approx(np.array(expected) / 2)
    later = size.clone()
    later[1, 0, 1] = 9.0
    changed = known_share(Orders(later, later, later), rules) * later.sum().item() / 6
    assert changed[:7] == pytest.approx(np.array(expected[:7]))


def test_beta_is_the_regression_coefficient() -> None:
    rng = np.random.default_rng(0)
    market = rng.standard_normal(300)
    returns = np.stack((market, 0.5 * market + rng.standard_normal(300), np.zeros(300)))
    found = beta(returns, market)
    assert found == pytest.approx([stats.linregress(market, own).slope for own in returns])
    assert beta(returns, np.zeros(300)).tolist() == [0.0, 0.0, 0.0]
