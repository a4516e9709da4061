"""Markets of days drawn again keep what days are like, and foretell nothing."""

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from tests.market_cases import random_panel, random_volume
from tests.small_market import market_of
from training.evaluation.permutation_nulls import redrawn


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_bars_stay_whole_and_where_they_were(seed: int) -> None:
    """With gaps, late starts and early ends; each drawn session has the range of one that was."""
    rng = np.random.default_rng(seed)
    panel = random_panel(rng, 260, 5, missing=0.1, delist=0.4)
    market = market_of(panel, volume=random_volume(rng, panel, 4e6))
    again = redrawn(market, rng)
    bars, was = (one.data_array.astype(np.float64) for one in (again, market))
    prices = [OPEN, HIGH, LOW, CLOSE]
    np.testing.assert_array_equal(np.isfinite(bars[..., prices]), np.isfinite(was[..., prices]))
    slack = 1 + 1e-5
    assert not (bars[..., [OPEN, CLOSE]].max(axis=2) > slack * bars[..., HIGH]).any()
    assert not (bars[..., [OPEN, CLOSE]].min(axis=2) < bars[..., LOW] / slack).any()
    ranges, own = (np.log(one[1:, :, HIGH] / one[1:, :, LOW]).ravel() for one in (bars, was))
    distance = np.abs(ranges[np.isfinite(ranges), None] - own[np.isfinite(own)]).min(axis=1)
    assert distance.max() < 1e-4
    assert again.volume is not None and market.volume is not None
    assert set(again.volume[np.isfinite(again.volume)]) <= set(market.volume[np.isfinite(market.volume)])


def test_what_foretold_returns_does_no_more_and_no_stock_drifts() -> None:
    """Each move is undone by half on the next day, so that blocks of days alone would keep that."""
    rng = np.random.default_rng(0)
    noise, moves = 0.01 * rng.standard_normal((3000, 4)), np.zeros((3000, 4))
    for day in range(1, 3000):
        moves[day] = noise[day] - 0.5 * moves[day - 1]
    close = 100 * np.exp(np.cumsum(moves + 0.002, axis=0))
    market = market_of(np.repeat(close[..., None], 4, axis=2))
    daily = [np.diff(np.log(one.close.astype(np.float64)), axis=0) for one in (market, redrawn(market, rng))]
    lagged = [np.corrcoef((one[1:] - one.mean(0)).ravel(), (one[:-1] - one.mean(0)).ravel())[0, 1] for one in daily]
    assert lagged[0] < -0.4 and abs(lagged[1]) < 0.1
    means, error = daily[1].mean(axis=0), daily[1].std(axis=0) / np.sqrt(len(daily[1]))
    assert (daily[0].mean(axis=0) > 5 * error).all() and (np.abs(means) < 4 * error).all()
    assert not np.array_equal(redrawn(market, rng).close, redrawn(replace(market), rng).close)
