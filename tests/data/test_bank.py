"""The multi-scale bank against plain recursions, and its causality."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.bank import HALF_LIVES, VOLATILITY, box_sums, log_returns, multi_scale_bank


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


def test_boxes_are_sums_of_returns() -> None:
    close = closes()
    returns, widths = log_returns(close), (1, 4, 16)
    boxes = box_sums(close, widths)
    for place, width in enumerate(widths):
        for day in (0, 3, 16, 59):
            expected = returns[max(0, day - width + 1) : day + 1].sum(axis=0)
            np.testing.assert_allclose(boxes[day, :, place], expected, atol=1e-6)


@given(st.integers(0, 1000))
def test_the_unit_of_a_price_does_not_matter(seed: int) -> None:
    close = closes(seed=seed)
    np.testing.assert_allclose(multi_scale_bank(close), multi_scale_bank(close * np.float32(8)), atol=1e-6)
