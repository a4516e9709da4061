"""The certificate is fair to an account without skill, and finds one that has it."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.learning.certificate import (
    CRASHES,
    MEDIAN_SESSIONS,
    crash_careers,
    median_sessions,
    null_careers,
    sessions_to_line,
)
from tests.paper.cases import MARKET
from training.paper.certificate import (
    BETS,
    BOUND,
    LINE,
    RUIN,
    TERMS,
    bounded_result,
    capital_curves,
    finding,
    forecast_dispersion,
)


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=5), st.integers(1, 4))
def test_the_capital_is_a_fair_bet(sizes: list[float], days: int) -> None:
    """Over all orders of results that cancel out, the expected capital is 1, whatever the sizes: a martingale."""
    results = np.array([*sizes, *(-size for size in sizes)])
    paths = np.stack(np.meshgrid(*[results] * days), axis=-1).reshape(-1, days)
    assert capital_curves(paths)[:, -1].mean() == pytest.approx(1.0)
    assert capital_curves(paths).min() > 0
    by_hand = np.mean([math.prod(1 + bet * result for result in paths[0]) for bet in BETS])
    assert capital_curves(paths[0])[-1] == pytest.approx(by_hand)


@given(st.floats(0.01, 0.5), st.floats(-0.05, 0.05))
@settings(max_examples=20)
def test_a_result_does_not_depend_on_the_size(share: float, gain: float) -> None:
    """Nor is there one of an account that is its benchmark but for rounding."""
    weights = np.array([1.0, -0.6, -0.4])
    result = bounded_result(share * gain, share * weights, 0.02)
    assert result == pytest.approx(bounded_result(gain, weights, 0.02)) and -1 < result <= BOUND / RUIN
    assert bounded_result(1e-9, 1e-9 * weights, 0.02) == 0.0


def test_the_forecast_knows_the_past_alone() -> None:
    """By hand: the median over the sessions before of the standard deviation of returns."""
    bars = MARKET.data_array.copy()
    bars[61:] = np.nan
    close = MARKET.close[:61].astype(np.float64)
    found = [np.std(row[np.isfinite(row)]) for row in close[1:] / close[:-1] - 1]
    expected = forecast_dispersion(dataclasses.replace(MARKET, data_array=bars), 60)
    assert forecast_dispersion(MARKET, 60) == expected == pytest.approx(np.median(found))


def careers(count: int, days: int, skill: float, draws: np.random.Generator) -> float:
    """Share of accounts that ever reach the line: active weights anew each month, fat tails, common moves and clusters
    of volatility; `skill` is the correlation of weights with the returns of their stocks."""
    crossed = 0
    for _ in range(count):
        calm = np.exp(0.4 * draws.standard_normal(days // 21 + 1).repeat(21)[:days])
        returns = 0.01 * draws.standard_t(4, (days, 12)) * calm[:, None] + 0.01 * draws.standard_normal((days, 1))
        weights = draws.standard_normal((days // 21 + 1, 12)).repeat(21, 0)[:days]
        returns += skill * 0.014 * weights
        weights = 0.05 * (weights - weights.mean(1, keepdims=True))
        spread = returns.std(1)
        results = [
            bounded_result(float(weights[day] @ returns[day]), weights[day], float(np.median(spread[day - 63 : day])))
            for day in range(63, days)
        ]
        crossed += bool(capital_curves(np.array(results)).max() >= LINE)
    return crossed / count


def test_without_skill_the_line_is_rarely_reached_and_with_it_often() -> None:
    assert careers(60, 800, 0.0, np.random.default_rng(5)) < 0.05
    assert careers(10, 800, 0.1, np.random.default_rng(6)) > 0.8


def test_false_alarms_are_rare_and_the_table_holds() -> None:
    assert null_careers(60, 3, np.random.default_rng(1)) <= 1 / LINE
    for ratio in (6.0, 4.0):
        assert median_sessions(ratio, 300, np.random.default_rng(2)) == pytest.approx(MEDIAN_SESSIONS[ratio], rel=0.15)


@pytest.mark.parametrize(("crashes", "deviations"), CRASHES)
def test_crashes_are_no_skill(crashes: float, deviations: float) -> None:
    """Selections that gain a little on most days and lose it all at times, with a true mean of zero, or below it."""
    for yearly in (0.0, -0.5):
        draws = np.random.default_rng(4)
        crossed = crash_careers(200, 10, draws, crashes=crashes, deviations=deviations, yearly=yearly)
        assert crossed <= 1 / LINE


def test_gains_are_cut_and_losses_are_not() -> None:
    """A largest active weight that loses all takes the capital of the largest bet; what gains as much is cut."""
    weights = np.array([0.3, 0.0])
    cut, lost = (bounded_result(gain, weights, 0.001) for gain in (3.0, -0.3))
    assert (cut, lost) == (pytest.approx(0.004), -1.0)
    assert bounded_result(-0.9, weights, 0.001) == pytest.approx(-3.0)
    ruin = capital_curves(np.array([[-1.0, 0.5], [-30.0, 0.5]]))
    assert ruin[0, 0] == pytest.approx(1 - np.mean(BETS)) and ruin[1].tolist() == [0.0, 0.0]
    assert "nobody can tell" in finding([-30.0] * 30, ["2020-01-01"] * 30)
    assert "other terms" in finding([], [], {**TERMS, "bound": 3.0})


def test_the_words_are_honest() -> None:
    dates = [str(day) for day in np.datetime64("2020-01-01") + np.arange(400)]
    assert "Nothing is shown yet" in finding([], [])
    noise = np.random.default_rng(3).standard_normal(400) / 4
    for unclear in ([0.1] * 5, (noise - noise.mean() - 0.05).tolist()):
        assert "nobody can tell" in finding(unclear, dates)
    assert "until about 20" in finding((noise - noise.mean() + 0.01).tolist(), dates)
    strong = np.clip(noise + 0.3, -1, 1).tolist()
    assert f"Shown on {dates[int(sessions_to_line(np.array(strong))) - 1]}" in finding(strong, dates)
