"""The inputs of forecasts: what they are made of, from days that may be known, whatever a ticker's prices are."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.inputs import BANK, BANK_CLIP, INPUTS, TradeInputs
from data.features.nine import MACD, MACD_SIGNAL, PRICES
from data.market import Market
from tests.small_market import small_market
from utils.errors import DataError

DAYS, INVESTABLE = 260, (0, 2, 3)
LEARNED = np.arange(DAYS) < 180


@cache
def fitted(seed: int = 0) -> tuple[Market, TradeInputs, np.ndarray]:
    """A market, the inputs that are fitted to it, and their values."""
    market = small_market(seed, DAYS, investable=INVESTABLE)
    inputs = TradeInputs.fit(market, LEARNED)
    return market, inputs, inputs.of(market)


def with_closes(market: Market, factor: np.ndarray) -> Market:
    """The market with all in units of price multiplied by so much, broadcast to (days, columns)."""
    data = market.data_array.copy()
    data[:, :, [*PRICES, MACD, MACD_SIGNAL]] *= factor.astype(np.float32)[..., None]
    return replace(market, data_array=data)


def test_every_input_but_the_constant_is_in_one_group() -> None:
    market, inputs, x = fitted()
    groups = inputs.group_of_input
    assert x.shape == (DAYS, len(INVESTABLE), inputs.size) and x.dtype == np.float32
    assert (x[np.isfinite(market.close), 0] == 1).all() and inputs.size > INPUTS
    assert np.abs(x[..., 1:BANK]).max() == BANK_CLIP < np.abs(x[..., BANK:]).max()
    assert len(groups) == inputs.size - 1 and groups == sorted(groups)
    assert set(groups) == set(range(len(inputs.groups))) and len(set(inputs.groups)) == len(inputs.groups)


@given(st.integers(0, 3), st.integers(0, DAYS - 1), st.integers(1, DAYS))
@settings(max_examples=15)
def test_inputs_of_some_days_are_those_of_all(seed: int, first: int, days: int) -> None:
    (market, inputs, x), some = fitted(seed), slice(first, min(first + days, DAYS))
    np.testing.assert_array_equal(inputs.of(market, some), x[some])
    banks = (np.concatenate([x for _, x in inputs.banks(market, days)], axis=1) for days in (some, slice(0, DAYS)))
    np.testing.assert_array_equal(next(banks), next(banks)[some])


def test_rows_of_days_and_of_those_that_follow_are_rows_of_all() -> None:
    market, inputs, x = fitted()
    joined = inputs.rows_of(market, slice(20, 90)).joined(inputs.rows_of(market, slice(90, 150)))
    whole = inputs.rows_of(market, slice(20, 150))
    np.testing.assert_array_equal(joined.dense(slice(20, 150)), x[20:150])
    assert (joined.days, joined.first) == (whole.days, whole.first)
    some = torch.arange(50, len(whole.stock), 7)
    np.testing.assert_array_equal(joined.take(some), whole.take(some))
    known, anew = inputs.rows_of(market, slice(40, 90)), inputs.rows_of(replace(market), slice(40, 90))
    assert known.separate.untyped_storage().data_ptr() == whole.separate.untyped_storage().data_ptr()
    assert (known.days, known.first) == (anew.days, anew.first)
    np.testing.assert_array_equal(known.dense(slice(50, 70)), anew.dense(slice(50, 70)))
    np.testing.assert_array_equal(
        known.take(torch.arange(0, len(known.stock), 3)), anew.take(torch.arange(0, len(known.stock), 3))
    )


@pytest.mark.parametrize("column", range(5))
def test_a_price_level_says_nothing(column: int) -> None:
    (market, _, expected), factor = fitted(2), np.ones((1, 5))
    factor[0, column] = 10.0
    other = with_closes(market, factor)
    np.testing.assert_allclose(TradeInputs.fit(other, LEARNED).of(other), expected, rtol=1e-3, atol=1e-3)


def test_prices_that_never_move_teach_nothing() -> None:
    market, *_ = fitted()
    data = np.full_like(market.data_array, 7.0)
    with pytest.raises(DataError, match="expected closes that move"):
        TradeInputs.fit(replace(market, data_array=data), LEARNED)
