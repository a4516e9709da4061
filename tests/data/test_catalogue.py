"""Features of the catalogue by hand, and as inputs: standardised, ranked, against their past, or missing."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from data.features.forms import FeatureInputs, values_of
from data.features.nine import CLOSE, HIGH, LOW, OPEN, RSI
from data.market import Market, with_features
from tests.market_cases import random_panel, with_another_future
from tests.small_market import market_of
from utils.errors import DataError

DAYS, STOCKS = 400, 6


def market(seed: int = 0) -> Market:
    """Six stocks with gaps, volume, a column of each stock and one of the market."""
    rng = np.random.default_rng(seed)
    panel = random_panel(rng, DAYS, STOCKS)
    volume = np.exp(rng.normal(10, 1, (DAYS, STOCKS))).astype(np.float32)
    found = market_of(panel, investable=(0, 1, 3, 4, 5), volume=volume)
    own = rng.standard_normal((DAYS, STOCKS)).astype(np.float32)
    own[rng.random(own.shape) < 0.1] = np.nan
    rate = np.repeat(rng.standard_normal((DAYS, 1)).cumsum(axis=0), STOCKS, axis=1).astype(np.float32)
    return with_features(replace(found, columns={"own": own, "rate": rate, "same": np.ones_like(own)}))


MARKET = market()
LEARNED = np.isfinite(MARKET.close) & (np.arange(DAYS) < 300)[:, None]
INPUTS = FeatureInputs.fit(MARKET, LEARNED)


def inputs_of(market: Market, days: slice) -> npt.NDArray[np.float32]:
    """Return the (days, n, inputs) of some days."""
    return np.stack([values for _, values in INPUTS.columns(market, days)], axis=2)


X = inputs_of(MARKET, slice(None))


@settings(max_examples=15)
@given(st.integers(0, DAYS - 2), st.integers(0, 1000))
def test_no_input_depends_on_a_later_day(day: int, seed: int) -> None:
    other = with_another_future(MARKET, day, np.random.default_rng(seed))
    found = inputs_of(other, slice(0, day + 1))
    np.testing.assert_array_equal(found, X[: day + 1])
    np.testing.assert_array_equal(inputs_of(MARKET, slice(day, day + 1)), X[day : day + 1])


def test_features_by_hand() -> None:
    data, shares = MARKET.data_array[:, 0].astype(np.float64), MARKET.volume
    assert shares is not None
    close, money = data[:, CLOSE], data[:, CLOSE] * shares[:, 0]
    traded = np.flatnonzero(np.isfinite(close))
    before, day = next(pair for pair in pairwise(traded[200:]) if np.diff(pair) > 1)
    bar, last = data[day], close[before]
    moves = np.full(DAYS, np.nan)
    moves[traded[1:]] = np.abs(np.diff(close[traded]) / close[traded][:-1])
    expected = {
        "gap": bar[OPEN] / last - 1,
        "intraday": bar[CLOSE] / bar[OPEN] - 1,
        "session_range": np.log(bar[HIGH] / bar[LOW] - 1),
        "place_in_range": (bar[CLOSE] - bar[LOW]) / (bar[HIGH] - bar[LOW]),
        "rsi": bar[RSI],
        "age": np.log1p((traded <= day).sum()),
        "turnover": np.log(money[day] / np.nanmean(money[day - 62 : day + 1])),
        "illiquidity": np.log(np.nanmean((moves / money)[day - 20 : day + 1])),
    }
    for name, value in expected.items():
        assert values_of(MARKET, name, slice(None))[day, 0] == pytest.approx(value, rel=1e-4), name


def test_forms_by_hand() -> None:
    own = values_of(MARKET, "own", slice(None))
    place = {(one.name, one.form): column for column, one in enumerate(INPUTS.inputs)}
    day = 300
    known = np.isfinite(own[day])
    ranks = rankdata(own[day][known])
    expected = (ranks - ranks.mean()) * np.sqrt(12) / known.sum()
    np.testing.assert_allclose(X[day, known, place["own", "rank"]], expected, rtol=1e-5)
    assert (X[day, ~known, place["own", "rank"]] == 0).all()
    np.testing.assert_array_equal(X[..., place["own", "known"]], np.isfinite(own) - 1.0)
    rate = values_of(MARKET, "rate", slice(None))[:, 0].astype(np.float64)
    past = rate[day - 251 : day + 1]
    expected = np.full(5, np.clip((rate[day] - past.mean()) / past.std(ddof=1), -6, 6))
    np.testing.assert_allclose(X[day, :, place["rate", "past"]], expected, rtol=1e-4)
    learned = X[:300, :, place["gap", "level"]][LEARNED[:300]].astype(np.float64)
    assert abs(learned.mean()) < 0.05 and 0.8 < learned.std() <= 1.01  # outliers are clipped
    assert "same" not in {one.name for one in INPUTS.inputs}  # what never varies tells nothing


def test_what_varies_by_rounding_alone_tells_nothing() -> None:
    """Ranges of bars that were made of their closes: the same but for the last bits of a price."""
    array = MARKET.data_array.copy()
    for feature, times in ((OPEN, 1.0), (HIGH, 1.01), (LOW, 0.99)):
        array[..., feature] = array[..., CLOSE] * np.float32(times)
    made = FeatureInputs.fit(with_features(replace(MARKET, data_array=array)), LEARNED)
    names, kept = ({one.name for one in inputs} for inputs in (INPUTS.inputs, made.inputs))
    assert {"session_range", "place_in_range"} <= names - kept and "gap" in kept


def test_a_market_without_a_feature_is_refused() -> None:
    bare = with_features(replace(MARKET, columns={"owns": MARKET.columns["own"]}))
    with pytest.raises(DataError, match=r"expected data with 'own'.*the nearest is 'owns'"):
        inputs_of(bare, slice(None))
