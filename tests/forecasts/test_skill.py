"""Results of every possible order, which are the environment's own; coefficients, tests and ratios: known numbers."""

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import signal, stats
from torch import Tensor

from environment.ledger import Bars
from environment.trading_rules import Orders
from tests.tiny import FIRST_DAY, World, random_world, seeded, tiny_rules, trending_panel, world_of
from training.forecasts.hindsight import order_results
from training.forecasts.skill import (
    HORIZONS,
    beta,
    clearest,
    correlation,
    cross_fitted_mean_test,
    known_share,
    overlapping_mean_test,
    rank_coefficients,
    rank_correlation,
    returns_ahead,
    summed_up,
    trade_results,
)
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig
from utils.metrics import sharpe, total_return_percent
from utils.spaces import MAX_COEFFICIENT, TARGET_PERCENTS
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

LAST_DAY = 33


def hindsight_of(world: World, rules: EnvironmentConfig | None = None, last_day: int = LAST_DAY) -> Tensor:
    return order_results(world.env.bars, rules or world.env.rules, FIRST_DAY, last_day)


@given(
    seed=st.integers(0, 2**16),
    fill=st.sampled_from(("next_open", "same_close")),
    loss_multiplier=st.sampled_from((1.0, 2.5)),
    cost_bps=st.sampled_from((0.0, 5.0, 80.0)),
    delisting_loss=st.sampled_from((0.0, 30.0)),
    stop_percent=st.sampled_from((0.0, 5.0)),
)
@settings(max_examples=25, deadline=None)
def test_results_are_what_the_environment_pays(seed: int, **changes: Any) -> None:
    """An account that is never short of cash gives random orders; each is credited what was known in hindsight."""
    rules = tiny_rules(trading_days=20, settlement_days=4, stake_percent=0.5, exits="target", **changes)
    world = random_world(seed, days=60, rules=rules)
    # No order is kept back by what others have lost.
    hindsight = hindsight_of(world, replace(rules, drawdown_lock=0.01), last_day=59)
    generator = seeded(seed)
    lanes, portfolio = 5, world.env
    start = torch.randint(FIRST_DAY, 60 - rules.episode_steps, (lanes,), generator=generator)
    world.env.reset(start)
    given_orders: list[Tensor] = []
    for _ in range(rules.episode_steps):
        stock = torch.randint(world.stocks, (lanes,), generator=generator)
        which = torch.randint(len(TARGET_PERCENTS), (lanes,), generator=generator)
        coefficient = 1.0 + 9.0 * torch.rand(lanes, generator=generator)
        may = portfolio.candidates().gather(1, stock[:, None]).squeeze(1) & portfolio.is_trading
        given_orders.append(torch.stack((stock.double(), which.double(), coefficient * may), 1))
        target = torch.tensor(TARGET_PERCENTS)[which]
        orders = Orders(stock[None], (coefficient * may).double()[None], target.double()[None])
        portfolio.step_orders(orders if portfolio.is_trading else None)
    credited = portfolio.entry_credited_rewards()
    for step, orders_of_day in enumerate(given_orders):
        stock, which = orders_of_day[:, 0].long(), orders_of_day[:, 1].long()
        known = hindsight[which, start + step - FIRST_DAY, stock]
        size = orders_of_day[:, 2] / MAX_COEFFICIENT
        expected = torch.where(size > 0, known.double() * size, 0.0)
        can_tell = expected.isfinite() & (start + step + portfolio.slots < start + rules.episode_steps)
        torch.testing.assert_close(credited[step][can_tell], expected[can_tell], rtol=1e-5, atol=1e-6)


def test_results_are_those_of_orders_that_no_cap_cuts() -> None:
    """Only where nothing was traded does an order earn nothing, as it buys nothing."""
    rules = tiny_rules(volume_cap=5.0)
    world = random_world(5, rules=rules)
    capped, free = (hindsight_of(world, chosen) for chosen in (rules, tiny_rules()))
    volume = world.env.bars.volume
    assert volume is not None
    is_idle = volume.view(world.env.bars.days, -1)[FIRST_DAY + 1 : LAST_DAY + 2] == 0
    assert 0 < is_idle.sum() < is_idle.numel() / 2
    expected = torch.where(is_idle & free.isfinite(), 0.0, free)
    torch.testing.assert_close(capped, expected, rtol=0, atol=0, equal_nan=True)


def test_what_cannot_be_known_is_not() -> None:
    world = random_world(2)
    hindsight, tradable = hindsight_of(world), world.env.bars.tradable[FIRST_DAY : LAST_DAY + 1]
    longest = world.env.slots
    is_known = hindsight.isfinite()
    assert is_known.float().mean() > 0.4 and (hindsight[is_known] != 0).float().mean() > 0.8
    assert not is_known[:, -longest:].any()
    assert is_known[:, :-longest].all(0).equal(tradable[:-longest])


@given(seed=st.integers(0, 2**16), day=st.integers(LAST_DAY + 1, 39))
@settings(max_examples=10, deadline=None)
def test_days_after_the_training_span_are_never_read(seed: int, day: int) -> None:
    world = random_world(seed)
    bars = world.env.bars
    quotes = bars.quotes.view(bars.days, bars.stocks, 3).clone()
    quotes[day:] *= 3.0
    corrupted = Bars.from_prices(*quotes.unbind(-1))
    rules = world.env.rules
    ours, theirs = (order_results(b, rules, FIRST_DAY, LAST_DAY) for b in (bars, corrupted))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_long_spans_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_world(3)
    whole = hindsight_of(world)
    monkeypatch.setattr("training.forecasts.hindsight._DAYS_AT_ONCE", 7)
    torch.testing.assert_close(hindsight_of(world), whole, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_a_result_is_what_the_trade_earns_and_known_only_in_time() -> None:
    """Without noise a stock that rises by 1% a day earns that over the sessions held, less costs."""
    rules = tiny_rules(max_holding_days=3, cost_bps=0.0, slippage_bps=0.0)
    world = world_of(trending_panel([0.01, -0.01, 0.0], 60, noise=0.0), rules=rules)
    results = trade_results(world.env.bars, rules, slice(FIRST_DAY, FIRST_DAY + 30))
    known = np.isfinite(results).all(axis=1)
    assert results.shape == (30, 3) and known[:24].all() and not known[-2:].any()
    assert results[0, 0] > 1e-6 > abs(results[0, 2]) and results[0, 1] < -1e-6


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
        plain.append(overlapping_mean_test(product, 1).p_value <= level)
        cross_fitted.append(cross_fitted_mean_test(product, 1, trials=1).p_value <= level)
    assert statistics.fmean(cross_fitted) <= level + 3 * math.sqrt(level / 1000)
    assert statistics.fmean(plain) > 1.5 * level


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


@pytest.mark.parametrize("series", [[], [0.1], [0.0] * 20, [1.0, 1.0]])
def test_a_series_that_never_varies_proves_nothing(series: list[float]) -> None:
    returns = np.array(series)
    test = mean_test(returns)
    assert test.p_value == 1.0 and test.standard_error == 0.0
    assert probabilistic_sharpe_ratio(returns, 0.0) is minimum_track_record_length(returns) is None


def test_bootstrap_intervals_hold_the_measure_of_the_curve_and_repeat() -> None:
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
    assert clearest({}) is None
