"""Indicators and past returns against their formulas, and the inputs of the networks against hand-made markets."""

import math

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features import nine as f
from data.features.bank import HALF_LIVES, VOLATILITY, MarketSeries, log_returns, multi_scale_bank
from data.features.nine import indicators, normalization_stats, observed_features, stationary_inputs
from tests.market_cases import random_panel
from tests.small_market import loader_of

Array = npt.NDArray[np.floating]


def random_bars(seed: int, bars: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    close = 50.0 * np.exp(np.cumsum(0.02 * rng.standard_normal(bars)))
    open_ = close * np.exp(0.01 * rng.standard_normal(bars))
    spread = np.exp(0.01 * np.abs(rng.standard_normal((2, bars))))
    high, low = np.maximum(open_, close) * spread[0], np.minimum(open_, close) / spread[1]
    return {"open": open_, "high": high, "low": low, "close": close}


def compute_features(open: Array, high: Array, low: Array, close: Array) -> Array:
    """(bars, 9) features of one ticker's own bars."""
    return np.column_stack((open, close, high, low, indicators(close)))


def smoothed(values: Array, period: int, weight: float) -> Array:
    """Exponential mean whose first value is the plain mean of the first `period` values."""
    seeded = pd.Series([values[:period].mean(), *values[period:]])
    return seeded.ewm(alpha=weight, adjust=False).mean().to_numpy()


def ema(values: Array, period: int) -> Array:
    return smoothed(values, period, 2 / (period + 1))


@given(seed=st.integers(0, 10_000), bars=st.integers(60, 200))
@settings(max_examples=20)
def test_indicators_follow_their_formulas(seed: int, bars: int) -> None:
    prices = random_bars(seed, bars)
    close, found = prices["close"], compute_features(**prices)
    gain, loss = (smoothed(np.maximum(sign * np.diff(close), 0.0), 14, 1 / 14) for sign in (1, -1))
    # both means of MACD start on the 26th bar, and its line is shown from the signal's first value on
    line = ema(close[14:], 12) - ema(close, 26)
    triple = ema(ema(ema(close, 15), 15), 15)
    means = np.convolve(close, np.full(20, 1 / 20), "valid")
    expected = {
        f.RSI: 100.0 * gain / (gain + loss),
        f.MACD: line[8:],
        f.MACD_SIGNAL: ema(line, 9),
        f.TRIX: 100.0 * (triple[1:] / triple[:-1] - 1.0),
        f.PERCENT_TO_MA20: 100.0 * (close[19:] / means - 1.0),
    }
    for feature, values in expected.items():
        warm_up = bars - len(values)
        assert np.isnan(found[:warm_up, feature]).all()
        np.testing.assert_allclose(found[warm_up:, feature], values, rtol=1e-9, atol=1e-10)


@given(seed=st.integers(0, 10_000), power=st.integers(-12, 12))
@settings(max_examples=20)
def test_a_power_of_two_changes_no_bit_and_ten_next_to_nothing(seed: int, power: int) -> None:
    def inputs(factor: float) -> Array:
        bars = {name: price.astype(np.float32) * np.float64(factor) for name, price in random_bars(seed, 80).items()}
        data = compute_features(**bars)[:, None].astype(np.float32)
        return observed_features(data, normalization_stats(data, 79), 8.0)

    plain = inputs(1.0)
    assert inputs(2.0**power).tobytes() == plain.tobytes()
    np.testing.assert_allclose(inputs(10.0), plain, rtol=0, atol=1e-5)


def test_stationary_prices_refer_to_the_last_traded_close() -> None:
    nan = np.nan
    closes = np.array([[nan, 10.0], [4.0, 11.0], [nan, nan], [5.0, nan], [6.0, 22.0]], dtype=np.float32)
    data = np.full((5, 2, 9), nan, dtype=np.float32)
    for price, factor in zip(f.PRICES, (1.25, 1.0, 1.5, 0.5), strict=True):
        data[:, :, price] = closes * np.float32(factor)
    data[:, :, f.MACD], data[:, :, f.RSI] = closes / 8, 60.0

    found = stationary_inputs(data)
    np.testing.assert_allclose(found[:, :, f.CLOSE], [[nan, nan], [nan, 0.1], [nan, nan], [0.25, nan], [0.2, 1.0]])
    np.testing.assert_allclose(found[3, 0, list(f.PRICES)], [0.5625, 0.25, 0.875, -0.375])
    np.testing.assert_allclose(found[4, :, f.MACD], [0.125, 0.125])
    np.testing.assert_array_equal(found[:, :, f.RSI], data[:, :, f.RSI])
    assert found.dtype == np.float32


@given(seed=st.integers(0, 1000), missing=st.floats(0.0, 0.9))
@settings(max_examples=20)
def test_observed_features_are_standard_bounded_and_never_missing(seed: int, missing: float) -> None:
    data = loader_of(random_panel(np.random.default_rng(seed), 80, 4, missing=missing)).data_array
    inputs = observed_features(data, normalization_stats(data, len(data) - 1), 3.0)
    assert inputs.dtype == np.float32 and inputs.shape == (80, 4, 9) and np.isfinite(inputs).all()
    assert np.abs(inputs).max() <= 3.0
    assert not inputs[np.isnan(data[:, :, f.CLOSE])].any()
    known = inputs[:, :, f.RSI][np.isfinite(data[:, :, f.RSI])]
    if known.size > 50 and np.abs(known).max() < 3.0:
        assert known.mean() == pytest.approx(0.0, abs=1e-4)
        assert known.std() == pytest.approx(1.0, abs=1e-4)


def test_statistics_are_those_of_the_training_days() -> None:
    data = np.full((6, 1, 9), np.nan, dtype=np.float32)
    data[:, 0, f.CLOSE] = [100.0, 110.0, 99.0, 99.0, 9.0, 9000.0]
    data[:, 0, f.HIGH] = [100.0, 1e6, 110.0, 99.0, 9.0, 9000.0]
    data[:, 0, f.RSI] = [np.nan, 40.0, 60.0, 80.0, 1.0, 1.0]
    data[:, 0, f.TRIX] = 20.0
    stats = normalization_stats(data, 3)
    assert stats.mean[f.CLOSE] == pytest.approx(0.0, abs=1e-7)
    assert stats.std[f.CLOSE] == pytest.approx(math.sqrt((0.01 + 0.01) / 3))
    assert stats.mean[f.HIGH] == pytest.approx(0.5 / 3), "one absurd price does not set the scale"
    assert stats.mean[f.RSI] == pytest.approx(60.0)
    assert stats.std[f.RSI] == pytest.approx(math.sqrt(800 / 3))
    assert stats.std[f.TRIX] == stats.std[f.MACD] == 1.0, "one never varies, the other has no value"
    assert stats.mean.dtype == stats.std.dtype == np.float32


def test_log_returns_bridge_gaps_and_are_bounded() -> None:
    close = np.array([[np.nan, 10.0], [20.0, 10.0], [np.nan, 10.0], [40.0, 1.0], [30.0, np.nan]], dtype=np.float32)
    expected = [[0, 0], [0, 0], [0, 0], [0.5, -0.5], [math.log(0.75), 0]]
    np.testing.assert_allclose(log_returns(close), expected, atol=1e-7)


def closes_of(days: int = 60, stocks: int = 3, **gaps: float) -> npt.NDArray[np.float32]:
    return random_panel(np.random.default_rng(0), days, stocks, **gaps)[..., 3]


def bank_of(close: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return multi_scale_bank(close, MarketSeries.of(close, [slice(None)]))


def test_bank_is_what_a_recursion_gives() -> None:
    close = closes_of(late_start=0.5)
    returns, bank = log_returns(close), bank_of(close)
    trades = np.isfinite(close) & (np.cumsum(np.isfinite(close), axis=0) > 1)
    for place, half_life in enumerate(HALF_LIVES):
        kept, own, market = 0.5 ** (1 / half_life), np.zeros(close.shape[1]), 0.0
        for day in range(len(close)):
            own = kept * own + (1 - kept) * returns[day]
            market = kept * market + (1 - kept) * (returns[day][trades[day]].mean() if trades[day].any() else 0.0)
            np.testing.assert_allclose(bank[day, :, place], own, atol=1e-7)
            np.testing.assert_allclose(bank[day, :, len(HALF_LIVES) + place], market, atol=1e-7)


def test_stocks_that_do_not_trade_yet_change_nothing() -> None:
    """Not the mean of the others, and not their own volatility once they begin; on the first day that of the others."""
    close = closes_of(missing=0, delist=0, late_start=0, halt=0)
    alone = bank_of(close)
    late = np.concatenate((close, np.where(np.arange(len(close))[:, None] < 30, np.nan, close[:, :2])), axis=1)
    bank = bank_of(late.astype(np.float32))
    np.testing.assert_allclose(bank[:30, :3], alone[:30], rtol=1e-6)
    own = bank_of(close[30:, :2])
    np.testing.assert_allclose(bank[31:, 3:, VOLATILITY], own[1:, :, VOLATILITY], rtol=1e-5)
    np.testing.assert_allclose(bank[30, 3:, VOLATILITY], bank[30, :3, VOLATILITY].mean(), rtol=1e-6)


@pytest.mark.parametrize("bars", [0, 1, 14, 15, 19, 20, 33, 34, 43, 44])
def test_warm_up_is_missing_for_any_number_of_bars(bars: int) -> None:
    first = [0, 0, 0, 0, 14, 33, 33, 43, 19]  # bar that has a value, of each feature
    known = np.isfinite(compute_features(**random_bars(3, bars)))
    np.testing.assert_array_equal(known, np.arange(bars)[:, None] >= first)
