"""Coefficients, tests and ratios: known numbers."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats

from training.forecasts.skill import (
    HORIZONS,
    beta,
    clearest,
    correlation,
    overlapping_mean_test,
    rank_coefficients,
    rank_correlation,
    returns_ahead,
    summed_up,
)
from utils.arrays import Float64Array
from utils.metrics import sharpe, total_return_percent
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


@settings(max_examples=60)
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
    assert found.t is not None and found.t > 0
    assert summed_up(np.full(3, np.nan), 2) is None
    constant = summed_up(np.full(9, 0.5), 2)
    assert constant is not None and constant.t is None


def test_results_that_overlap_raise_no_false_alarms() -> None:
    """Sums over 20 days, day by day, as results of trades are."""
    shocks = np.random.default_rng(0).standard_normal((1500, 435 + 19))
    whole = np.cumsum(np.pad(shocks, ((0, 0), (1, 0))), axis=1)
    series = whole[:, 20:] - whole[:, :-20]
    assert statistics.fmean(overlapping_mean_test(row, 20).p_value <= 0.025 for row in series) <= 0.035
    assert statistics.fmean(mean_test(row).p_value <= 0.025 for row in series) > 0.06


def test_cross_fitted_forecasts_of_noise_are_significant_as_rarely_as_the_p_value_says() -> None:
    rng, fold, level = np.random.default_rng(8), np.arange(500) // 100, 0.02
    plain, cross_fitted = list[bool](), list[bool]()
    for _ in range(1000):
        x, y = rng.standard_normal((500, 8)), rng.standard_normal(500)
        weights = [np.linalg.lstsq(x[fold != held], y[fold != held], rcond=None)[0] for held in range(5)]
        forecast = np.concatenate([x[fold == held] @ weights[held] for held in range(5)])
        product = (forecast - forecast.mean()) * (y - y.mean())
        test = overlapping_mean_test(product, 1)
        plain.append(test.p_value <= level)
        cross_fitted.append(test.cross_fitted.p_value <= level)
    assert statistics.fmean(cross_fitted) <= level + 3 * math.sqrt(level / 1000)
    assert statistics.fmean(plain) > 1.5 * level


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
    shocks[:, 0] /= math.sqrt(1 - persistence**2)
    return np.asarray(signal.lfilter([1.0], [1.0, -persistence], shocks))


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


@pytest.mark.parametrize("series", [[], [0.1], [0.0] * 20, [0.1] * 20, [1.0, 1.0]])
def test_a_series_that_never_varies_proves_nothing(series: list[float]) -> None:
    returns = np.array(series)
    test = mean_test(returns)
    assert test.p_value == 1.0 and test.standard_error == 0.0 == test.sign
    assert probabilistic_sharpe_ratio(returns, 0.0) is minimum_track_record_length(returns) is None


def test_who_gains_a_little_and_loses_much_is_called_better_too_often() -> None:
    """Returns as skewed as an exponential law to the left, with a mean of 0: the docs say so."""
    rng = np.random.default_rng(0)
    for days in (20, 145):
        tests = [mean_test(1 - rng.exponential(size=days)) for _ in range(4000)]
        assert 0.04 < statistics.fmean(test.p_value <= 0.025 for test in tests) < 0.07


def test_bootstrap_intervals_hold_the_measure_of_the_curve_and_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.statistics.RESAMPLES", 2000)
    returns = 0.001 + 0.01 * np.random.default_rng(0).standard_normal(400)
    measures = {"return": total_return_percent, "sharpe": sharpe}
    found, again = (bootstrap_intervals(returns, measures, np.random.default_rng(5)) for _ in range(2))
    assert found == again
    curve = np.concatenate(([1.0], np.cumprod(1 + returns)))
    assert all(found[name][0] < float(measure(curve)) < found[name][1] for name, measure in measures.items())
    # The error of a yearly Sharpe ratio over T days is about sqrt(252 / T) (Lo 2002).
    assert found["sharpe"][1] - found["sharpe"][0] == pytest.approx(2 * 1.96 * math.sqrt(252 / 400), rel=0.2)


def test_the_chance_of_a_rank() -> None:
    others = np.arange(99.0)
    assert rank_p_value(98.0, others) == pytest.approx(2 / 100)
    assert rank_p_value(-1.0, others) == 1.0
    assert rank_p_value(97.5, others, trials=30) == pytest.approx(30 * 2 / 100)
    assert rank_p_value(97.5, others, trials=80) == 1.0
    assert rank_p_value(1.0, np.zeros(3)) == pytest.approx(1 / 4), "others that never vary have no tail"


def test_the_published_example_of_a_deflated_ratio() -> None:
    """Bailey & Lopez de Prado (2014): 2.5 a year over 1,250 days, of 100 trials whose ratios have variance 1/2."""
    deviation, ratio = math.sqrt(0.5 / 250), 2.5 / math.sqrt(250)
    benchmark = expected_maximum(deviation, 100)
    assert benchmark == pytest.approx(0.1132, abs=5e-5)
    assert psr_of_moments(ratio, benchmark, 1250, -3.0, 10.0) == pytest.approx(0.9004, abs=5e-4)
    fewer, normal = expected_maximum(deviation, 46), expected_maximum(deviation, 88)
    assert psr_of_moments(ratio, fewer, 1250, -3.0, 10.0) == pytest.approx(0.9505, abs=5e-4)
    assert psr_of_moments(ratio, normal, 1250, 0.0, 3.0) == pytest.approx(0.9505, abs=5e-3)
    assert expected_maximum(0.3, 1) == 0.0, "one trial has nothing to deflate"


def test_the_published_length_of_a_track_record() -> None:
    """Bailey & Lopez de Prado (2012): a normal ratio of 2 a year is above 1 at 95% after 2.73 years of days."""
    normal = statistics.NormalDist()
    returns = np.array([normal.inv_cdf((place + 0.5) / 4_000) for place in range(4_000)])
    returns += returns.std(ddof=1) / math.sqrt(252)
    # 1 a year is above 0 as soon, nearly.
    assert minimum_track_record_length(returns) == pytest.approx(2.71 * 252, rel=0.01)
    # Of a ratio that no probability below 1 can tell from zero.
    assert minimum_track_record_length(np.tile([1.5, -0.5], 218)) == 12
    assert minimum_track_record_length(-returns) is None


def noise(seed: int) -> Float64Array:
    return np.random.default_rng(seed).standard_normal((20, 330))


def test_overfitting_is_as_likely_as_not_among_policies_of_pure_noise() -> None:
    assert np.mean([overfitting_probability(noise(seed)) for seed in range(20)]) == pytest.approx(0.5, abs=0.1)


def test_overfitting_is_unlikely_where_one_policy_is_truly_better() -> None:
    profits = noise(0)
    profits[7] += 0.5
    assert overfitting_probability(profits) == pytest.approx(0, abs=0.01)


def test_overfitting_is_even_for_policies_that_are_alike_and_unknown_for_one() -> None:
    for alike in (np.ones((5, 40)), np.repeat(noise(0)[:1], 3, axis=0)):
        assert overfitting_probability(alike) == 0.5
    assert overfitting_probability(np.full((5, 40), np.nan)) is None
    assert overfitting_probability(np.ones((1, 40))) is None
    assert overfitting_probability(np.ones((5, 15))) is None


def test_returns_ahead_are_those_of_opens_and_the_clearest_horizon_is_that_of_the_effect() -> None:
    """A score that foretells the fifth session from now, and no other, is clearest at five sessions."""
    rng = np.random.default_rng(4)
    score, moves = rng.standard_normal((2, 300, 20))
    moves[6:] += 0.5 * score[:-6]
    open_ = np.exp(np.cumsum(0.01 * moves, axis=0))
    ahead = {sessions: returns_ahead(open_, slice(10, 290), sessions) for sessions in HORIZONS}
    for sessions, returns in ahead.items():
        assert returns.shape == (280, 20)
        np.testing.assert_allclose(returns[7], np.log(open_[18 + sessions] / open_[18]))
        assert np.isfinite(returns).all(axis=1).sum() == min(280, 300 - 11 - sessions)
    found = rank_coefficients(score[10:290], ahead)
    assert clearest(found) == 5 and found[5].mean > 0.15 > abs(found[1].mean)
    score[12:290] = np.nan
    assert clearest(rank_coefficients(score[10:290], ahead)) is None, "two days of 280 tell nothing"
    assert clearest({}) is None
