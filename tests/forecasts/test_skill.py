"""Information coefficients by an independent oracle; bootstrap, tests of a mean and deflated ratios: known numbers."""

import math
import statistics

import numpy as np
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
    correlation,
    cross_fitted_mean_test,
    known_share,
    overlapping_mean_test,
    rank_correlation,
    summed_up,
    trade_results,
)
from utils.arrays import Float64Array
from utils.metrics import sharpe, total_return_percent
from utils.spaces import POSITION_FEATURES
from utils.statistics import (
    bootstrap_intervals,
    expected_maximum,
    mean_block_days,
    mean_test,
    minimum_track_record_length,
    overfitting_probability,
    probabilistic_sharpe_ratio,
    psr_of_moments,
    rank_p_value,
    stationary_bootstrap,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 9))
def test_coefficients_are_those_of_scipy_day_by_day(seed: int, days: int, stocks: int) -> None:
    rng = np.random.default_rng(seed)
    scores, results = rng.integers(0, 3, (days, stocks)).astype(float), rng.standard_normal((days, stocks))
    scores[rng.random(scores.shape) < 0.2] = np.nan
    results[rng.random(scores.shape) < 0.2] = np.nan
    plain, ranked = correlation(scores, results), rank_correlation(scores, results)
    for day in range(days):
        known = np.isfinite(scores[day]) & np.isfinite(results[day])
        own, earned = scores[day, known], results[day, known]
        if known.sum() < 3 or np.ptp(own) == 0:
            assert math.isnan(plain[day]) and math.isnan(ranked[day])
            continue
        assert plain[day] == pytest.approx(stats.pearsonr(own, earned).statistic)
        assert ranked[day] == pytest.approx(stats.spearmanr(own, earned).statistic)


def test_coefficients_are_summed_up_over_the_days_that_have_one() -> None:
    daily = np.array([0.1, np.nan, 0.3, 0.2, -0.1])
    found = summed_up(daily, 2)
    assert found is not None and found.days == 4
    assert found.mean == pytest.approx(0.125)
    assert found.ratio == pytest.approx(0.125 / statistics.stdev([0.1, 0.3, 0.2, -0.1]))
    assert found.t is not None and found.t > 0
    assert summed_up(np.full(3, np.nan), 2) is None
    assert summed_up(np.full(9, 0.5), 2) is not None


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
    found = agent_scores(forecasts, slice(FIRST_DAY, FIRST_DAY + 30))
    np.testing.assert_array_equal(np.isnan(found), np.isnan(world.market.close[FIRST_DAY : FIRST_DAY + 30]))
    ordered = 0
    for day, scores in enumerate(found, start=FIRST_DAY):
        world.env.reset(torch.tensor([day]))
        nothing = torch.zeros(world.stocks, POSITION_FEATURES)
        placed = agent.decide_one(nothing, world.env.account_features()[0], forecasts, day)
        orders = placed.action(torch.zeros(1, world.stocks, dtype=torch.bool))[0, :, 0].numpy()
        is_best = (scores == np.nanmax(scores)) & (scores > cost)
        np.testing.assert_array_equal(orders > 0, is_best)
        ordered += is_best.sum()
    assert ordered > 5


def test_a_result_is_what_the_trade_earns_and_known_only_in_time() -> None:
    """Without noise a stock that rises by 1% a day earns that over the sessions held, less costs."""
    rules = tiny_rules(max_holding_days=3, cost_bps=0.0, slippage_bps=0.0)
    world = world_of(trending_panel([0.01, -0.01, 0.0], 60, noise=0.0), rules=rules)
    results = trade_results(world.env.bars, rules, slice(FIRST_DAY, FIRST_DAY + 30))
    known = np.isfinite(results).all(axis=1)
    assert results.shape == (30, 3) and known[:24].all() and not known[-2:].any()
    assert np.isfinite(results).any(axis=1)[known].all()
    assert results[0, 0] > 1e-6 > abs(results[0, 2]) and results[0, 1] < -1e-6
    scores = np.broadcast_to([1.0, -1.0, 0.0], (30, 3))
    plain, ranked = correlation(scores, results), rank_correlation(scores, results)
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


def autoregressive(persistence: float, shape: tuple[int, int], seed: int = 0) -> Float64Array:
    """Series along the last axis with unit shocks and mean zero."""
    shocks = np.random.default_rng(seed).standard_normal(shape)
    series = np.empty(shape)
    series[:, 0] = shocks[:, 0] / math.sqrt(1 - persistence**2)
    for day in range(1, shape[1]):
        series[:, day] = persistence * series[:, day - 1] + shocks[:, day]
    return series


@pytest.mark.parametrize("mean_block", [1.0, 4.0, 10.0])
def test_blocks_are_geometric_circular_and_uniform(mean_block: float) -> None:
    days = 25
    drawn = stationary_bootstrap(days, 40_000, mean_block, np.random.default_rng(0))
    assert drawn.min() == 0 and drawn.max() == days - 1
    follows = drawn[:, 1:] == (drawn[:, :-1] + 1) % days
    # A day follows the one before it by design, or by chance where it is drawn anew.
    assert follows.mean() == pytest.approx(1 - 1 / mean_block + 1 / mean_block / days, abs=0.003)
    assert np.bincount(drawn[:, -1], minlength=days) / 40_000 == pytest.approx(1 / days, abs=0.006)


@pytest.mark.parametrize("persistence", [0.0, 0.7, -0.4])
def test_the_closed_form_is_the_variance_of_the_bootstrap(persistence: float) -> None:
    days = 120
    series = autoregressive(persistence, (1, days))[0]
    drawn = stationary_bootstrap(days, 40_000, mean_block_days(days), np.random.default_rng(1))
    kept = 1 - 1 / mean_block_days(days)
    weights = sum((1 - lag / days) * kept**lag for lag in range(1, days))
    without_bias_term = mean_test(series).standard_error * math.sqrt(1 - (1 + 2 * weights) / days)
    assert float(series[drawn].mean(axis=1).std()) == pytest.approx(without_bias_term, rel=0.02)


@pytest.mark.parametrize(("days", "persistence", "least"), [(60, 0.0, 0.94), (435, 0.0, 0.94), (435, 0.3, 0.91)])
def test_intervals_cover_the_true_mean(days: int, persistence: float, least: float) -> None:
    tests = [mean_test(series) for series in autoregressive(persistence, (1500, days), seed=2)]
    covered = statistics.fmean(low <= 0 <= high for low, high in (test.interval for test in tests))
    assert least <= covered <= 0.975


@pytest.mark.parametrize("series", [[], [0.5], [0.0, 0.0, 0.0], [1.0, 1.0]])
def test_a_series_that_never_varies_proves_nothing(series: list[float]) -> None:
    test = mean_test(np.array(series))
    assert test.p_value == 1.0 and test.standard_error == 0.0


def test_bootstrap_intervals_hold_the_measure_of_the_curve_and_repeat() -> None:
    returns = 0.001 + 0.01 * np.random.default_rng(0).standard_normal(400)
    measures = {"return": total_return_percent, "sharpe": sharpe}
    found = bootstrap_intervals(returns, measures, np.random.default_rng(5))
    assert found == bootstrap_intervals(returns, measures, np.random.default_rng(5))
    curve = np.concatenate(([1.0], np.cumprod(1 + returns)))
    for name, measure in measures.items():
        low, high = found[name]
        assert low < float(measure(curve)) < high
    # The error of a yearly Sharpe ratio over T days is about sqrt(252 / T) (Lo 2002).
    assert found["sharpe"][1] - found["sharpe"][0] == pytest.approx(2 * 1.96 * math.sqrt(252 / 400), rel=0.2)


def test_the_chance_of_a_rank() -> None:
    others = np.arange(99.0)
    assert rank_p_value(98.0, others) == pytest.approx(2 / 100)
    assert rank_p_value(50.0, others) == pytest.approx(50 / 100)
    assert rank_p_value(-1.0, others) == 1.0
    assert rank_p_value(97.5, others, trials=30) == pytest.approx(30 * 2 / 100)
    assert rank_p_value(97.5, others, trials=80) == 1.0
    assert rank_p_value(1.0, np.zeros(3)) == pytest.approx(1 / 4), "others that never vary have no tail"


def test_the_published_example_of_a_deflated_ratio_ratio() -> None:
    """Bailey & Lopez de Prado (2014): 2.5 a year over 1,250 days, of 100 trials whose ratios have variance 1/2."""
    deviation, ratio = math.sqrt(0.5 / 250), 2.5 / math.sqrt(250)
    benchmark = expected_maximum(deviation, 100)
    assert benchmark == pytest.approx(0.1132, abs=5e-5)
    assert psr_of_moments(ratio, benchmark, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=5e-4)
    fewer = expected_maximum(deviation, 46)
    assert psr_of_moments(ratio, fewer, 1250, -3.0, 10.0) == pytest.approx(0.9505, abs=5e-4)
    assert psr_of_moments(ratio, expected_maximum(deviation, 88), 1250, 0.0, 3.0) == pytest.approx(0.9505, abs=5e-3), (
        "normal returns would allow 88 trials"
    )


def test_one_trial_has_nothing_to_deflate() -> None:
    assert expected_maximum(0.3, 1) == 0.0
    assert probabilistic_sharpe_ratio(np.zeros(20), 0.0) is None
    assert probabilistic_sharpe_ratio(np.array([0.1]), 0.0) is None


def test_the_published_length_of_a_track_record() -> None:
    """Bailey & Lopez de Prado (2012): a normal ratio of 2 a year is above 1 at 95% after 2.73 years of days."""
    normal = statistics.NormalDist()
    returns = np.array([normal.inv_cdf((place + 0.5) / 4_000) for place in range(4_000)])
    returns += returns.std(ddof=1) / math.sqrt(252)
    assert minimum_track_record_length(returns) == pytest.approx(2.71 * 252, rel=0.01), (
        "1 a year is above 0 as soon, nearly"
    )
    # Of a ratio that no probability below 1 can tell from zero.
    assert minimum_track_record_length(np.tile([1.5, -0.5], 218)) == 12
    assert minimum_track_record_length(-returns) is None and minimum_track_record_length(np.zeros(20)) is None


def test_a_deflated_ratio_is_the_chance_to_be_above_the_benchmark() -> None:
    """Where the true ratio is the benchmark, the probability is uniform."""
    returns = np.random.default_rng(0).standard_normal((2000, 250)) + 0.1
    found = np.array([probabilistic_sharpe_ratio(row, 0.1) for row in returns], dtype=np.float64)
    for level in (0.05, 0.5, 0.95):
        assert (found <= level).mean() == pytest.approx(level, abs=0.025)


def noise(seed: int) -> Float64Array:
    return np.random.default_rng(seed).standard_normal((20, 3, 330))


def test_overfitting_is_as_likely_as_not_among_trials_of_pure_noise() -> None:
    assert np.mean([overfitting_probability(noise(seed)) for seed in range(20)]) == pytest.approx(0.5, abs=0.1)


def test_overfitting_is_unlikely_where_one_trial_is_truly_better() -> None:
    profits = noise(0)
    profits[7] += 0.5
    assert overfitting_probability(profits) == pytest.approx(0, abs=0.01)
    profits[7, 1:] = np.nan
    assert overfitting_probability(profits) == pytest.approx(0, abs=0.1), "one seed tells, too"


def test_overfitting_is_even_for_trials_that_are_alike_and_unknown_for_one() -> None:
    assert overfitting_probability(np.ones((5, 2, 40))) == 0.5
    assert overfitting_probability(np.ones((1, 2, 40))) is None
    assert overfitting_probability(np.ones((5, 2, 15))) is None
