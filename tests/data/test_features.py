"""Indicators and past returns against their formulas, and the inputs of the networks against hand-made markets."""

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.bank import HALF_LIVES, VOLATILITY, box_sums, log_returns, multi_scale_bank
from data.features import nine as f
from data.features.nine import NormalizationStats, indicators, normalization_stats, observed_features, stationary_inputs

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


def random_market(seed: int, days: int = 80, columns: int = 4, missing: float = 0.2) -> Array:
    """(days, columns, 9) float32 with days that were not traded."""
    rng = np.random.default_rng(seed)
    data = np.full((days, columns, f.NUM_FEATURES), np.nan, dtype=np.float32)
    for column in range(columns):
        traded = rng.random(days) >= missing
        data[traded, column] = compute_features(**random_bars(seed + column, int(traded.sum())))
    return data


def ema(values: list[float], period: int) -> list[float]:
    """Exponential mean whose first value is the plain mean of the first `period` values."""
    average = sum(values[:period]) / period
    averages = [average]
    for value in values[period:]:
        average += 2.0 / (period + 1) * (value - average)
        averages.append(average)
    return averages


def wilder_rsi(close: list[float], period: int = 14) -> list[float]:
    moves = [after - before for before, after in pairwise(close)]
    gain = sum(max(move, 0.0) for move in moves[:period]) / period
    loss = sum(max(-move, 0.0) for move in moves[:period]) / period
    result = [100.0 * gain / (gain + loss)]
    for move in moves[period:]:
        gain = (gain * (period - 1) + max(move, 0.0)) / period
        loss = (loss * (period - 1) + max(-move, 0.0)) / period
        result.append(100.0 * gain / (gain + loss))
    return result


def assert_tail(found: Array, expected: list[float], scale: float) -> None:
    """The last values are the expected ones, and all before them are missing."""
    start = len(found) - len(expected)
    assert np.isnan(found[:start]).all()
    np.testing.assert_allclose(found[start:], expected, rtol=1e-9, atol=1e-12 * scale)


@given(seed=st.integers(0, 10_000), bars=st.integers(60, 200))
@settings(max_examples=20, deadline=None)
def test_indicators_follow_their_formulas(seed: int, bars: int) -> None:
    prices = random_bars(seed, bars)
    close = [float(price) for price in prices["close"]]
    found = compute_features(**prices)

    assert_tail(found[:, f.RSI], wilder_rsi(close), 100.0)
    # both means of MACD start on the 26th bar, and its line is shown from the signal's first value on
    line = [fast - slow for fast, slow in zip(ema(close[14:], 12), ema(close, 26), strict=True)]
    assert_tail(found[:, f.MACD], line[8:], 50.0)
    assert_tail(found[:, f.MACD_SIGNAL], ema(line, 9), 50.0)
    triple = ema(ema(ema(close, 15), 15), 15)
    trix = [100.0 * (after / before - 1.0) for before, after in pairwise(triple)]
    assert_tail(found[:, f.TRIX], trix, 10.0)
    means = [sum(close[end - 20 : end]) / 20 for end in range(20, bars + 1)]
    differences = [100.0 * (price - mean) / mean for price, mean in zip(close[19:], means, strict=True)]
    assert_tail(found[:, f.PERCENT_TO_MA20], differences, 100.0)


@given(seed=st.integers(0, 10_000), power=st.integers(-12, 12))
@settings(max_examples=20, deadline=None)
def test_a_power_of_two_changes_no_bit_and_ten_next_to_nothing(seed: int, power: int) -> None:
    def inputs(factor: np.float64) -> tuple[Array, NormalizationStats]:
        data = random_market(7, columns=2, missing=0.0)
        bars = {name: price.astype(np.float32) * factor for name, price in random_bars(seed, 80).items()}
        data[:, 0] = compute_features(**bars)
        stats = normalization_stats(data, 79)
        return observed_features(data, stats, 8.0), stats

    plain, stats = inputs(np.float64(1.0))
    doubled, doubled_stats = inputs(np.float64(2.0**power))
    assert doubled.tobytes() == plain.tobytes()
    assert doubled_stats.std.tobytes() == stats.std.tobytes()
    np.testing.assert_allclose(inputs(np.float64(10.0))[0], plain, rtol=0, atol=1e-5)


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
@settings(max_examples=20, deadline=None)
def test_observed_features_are_standard_bounded_and_never_missing(seed: int, missing: float) -> None:
    data = random_market(seed, missing=missing)
    inputs = observed_features(data, normalization_stats(data, len(data) - 1), 3.0)
    assert inputs.dtype == np.float32 and inputs.shape == (80, 4, 10) and np.isfinite(inputs).all()
    assert np.abs(inputs[:, :, : f.MASK]).max() <= 3.0
    np.testing.assert_array_equal(inputs[:, :, f.MASK], np.isfinite(data[:, :, f.CLOSE]))
    assert not inputs[np.isnan(data[:, :, f.CLOSE])].any()
    known = inputs[:, :, f.RSI][np.isfinite(data[:, :, f.RSI])]
    if known.size > 50 and np.abs(known).max() < 3.0:
        assert known.mean() == pytest.approx(0.0, abs=1e-4)
        assert known.std() == pytest.approx(1.0, abs=1e-4)


def test_statistics_are_those_of_the_training_days() -> None:
    data = np.full((6, 1, 9), np.nan, dtype=np.float32)
    data[:, 0, f.CLOSE] = [100.0, 110.0, 99.0, 99.0, 9.0, 9000.0]
    data[:, 0, f.RSI] = [np.nan, 40.0, 60.0, 80.0, 1.0, 1.0]
    stats = normalization_stats(data, 3)
    assert stats.mean[f.CLOSE] == pytest.approx(0.0, abs=1e-7)
    assert stats.std[f.CLOSE] == pytest.approx(math.sqrt((0.01 + 0.01) / 3))
    assert stats.mean[f.RSI] == pytest.approx(60.0)
    assert stats.std[f.RSI] == pytest.approx(math.sqrt(800 / 3))
    assert stats.mean.dtype == stats.std.dtype == np.float32


def test_one_absurd_price_does_not_set_the_scale() -> None:
    data = random_market(5, days=400, missing=0.0)
    calm = normalization_stats(data, 399)
    data[200, 0, f.CLOSE] *= 10_000
    wild = normalization_stats(data, 399)
    np.testing.assert_allclose(wild.std, calm.std, rtol=0.5)


def test_a_feature_that_never_varies_gives_zeros() -> None:
    data = np.full((50, 2, 9), np.nan, dtype=np.float32)
    data[:, :, : f.RSI] = 20.0
    stats = normalization_stats(data, 49)
    np.testing.assert_array_equal(stats.std, 1.0)
    inputs = observed_features(data, stats, 8.0)
    assert not inputs[:, :, : f.MASK].any()
    assert inputs[:, :, f.MASK].all()


def closes(days: int = 60, stocks: int = 3, seed: int = 0, gaps: float = 0.1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(0.02 * generator.standard_normal((days, stocks)), axis=0))
    close[generator.random(close.shape) < gaps] = np.nan
    return close.astype(np.float32)


def test_log_returns_bridge_gaps_and_are_bounded() -> None:
    close = np.array([[np.nan, 10.0], [20.0, 10.0], [np.nan, 10.0], [40.0, 1.0], [30.0, np.nan]], dtype=np.float32)
    expected = [[0, 0], [0, 0], [0, 0], [0.5, -0.5], [math.log(0.75), 0]]
    np.testing.assert_allclose(log_returns(close), expected, atol=1e-7)


def test_bank_is_what_a_recursion_gives() -> None:
    close = closes()
    returns, bank = log_returns(close), multi_scale_bank(close)
    trades = np.isfinite(close) & (np.cumsum(np.isfinite(close), axis=0) > 1)
    for stock in range(close.shape[1]):
        for place, half_life in enumerate(HALF_LIVES):
            kept, own, market = 0.5 ** (1 / half_life), 0.0, 0.0
            for day in range(len(close)):
                own = kept * own + (1 - kept) * returns[day, stock]
                market = kept * market + (1 - kept) * (returns[day][trades[day]].mean() if trades[day].any() else 0.0)
                assert bank[day, stock, place] == pytest.approx(own, abs=1e-7)
                assert bank[day, stock, len(HALF_LIVES) + place] == pytest.approx(market, abs=1e-7)


def test_stocks_that_do_not_trade_yet_change_nothing() -> None:
    """Not the mean of the others, and not their own volatility once they begin; on the first day that of the others."""
    close = closes(gaps=0.0)
    alone = multi_scale_bank(close)
    late = np.concatenate((close, np.where(np.arange(len(close))[:, None] < 30, np.nan, close[:, :2])), axis=1)
    bank = multi_scale_bank(late.astype(np.float32))
    np.testing.assert_allclose(bank[:30, :3], alone[:30], rtol=1e-6)
    own = multi_scale_bank(close[30:, :2])
    np.testing.assert_allclose(bank[31:, 3:, VOLATILITY], own[1:, :, VOLATILITY], rtol=1e-5)
    np.testing.assert_allclose(bank[30, 3:, VOLATILITY], bank[30, :3, VOLATILITY].mean(), rtol=1e-6)


@pytest.mark.parametrize(
    ("feature", "first"), [(f.RSI, 14), (f.MACD, 33), (f.MACD_SIGNAL, 33), (f.TRIX, 43), (f.PERCENT_TO_MA20, 19)]
)
@pytest.mark.parametrize("bars", [0, 1, 2, 14, 19, 20, 33, 34, 43, 44, 50])
def test_warm_up_is_missing_for_any_number_of_bars(feature: int, first: int, bars: int) -> None:
    found = compute_features(**random_bars(3, bars))
    assert found.shape == (bars, 9)
    np.testing.assert_array_equal(np.isfinite(found[:, feature]), np.arange(bars) >= first)


def test_boxes_are_sums_of_returns() -> None:
    close = closes()
    returns, widths = log_returns(close), (1, 4, 16)
    boxes = box_sums(close, widths)
    for place, width in enumerate(widths):
        for day in (0, 3, 16, 59):
            expected = returns[max(0, day - width + 1) : day + 1].sum(axis=0)
            np.testing.assert_allclose(boxes[day, :, place], expected, atol=1e-6)
