"""Pairs are found, with their loadings, and nothing else is; how a stock deviates from what holds for all."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.synthetic.draw import synthetic_market
from data.synthetic.kinds.pairs import partner
from models.impulses import pairs
from models.impulses.deviations import fit_deviations
from models.impulses.pairs import HALF_LIVES, after_pairs, pair_terms
from models.impulses.terms import SESSIONS
from models.responses import Responses
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig


@pytest.mark.parametrize("kind", ["reversal", "momentum", "crowd"])
def test_own_pasts_and_leaders_make_no_pairs(kind: str) -> None:
    market = synthetic_market(SyntheticConfig(kind=kind, days=2000), 31)
    close, stocks = market.close.astype(np.float32), np.arange(market.stocks)
    assert not len(Responses.fit(close, stocks, np.ones(len(close), dtype=bool)).pair_terms)


def test_the_built_in_couples_are_found() -> None:
    market = synthetic_market(SyntheticConfig(kind="pairs", days=2400), 32)
    close, stocks = market.close.astype(np.float32), np.arange(market.stocks)
    found = Responses.fit(close, stocks, np.ones(len(close), dtype=bool))
    terms = found.pair_terms
    assert (terms[:, 1] == partner(40)[terms[:, 0]]).all() and len(terms) >= 30 and (found.pair_loadings < 0).all()


def test_slow_own_drifts_are_no_pairs() -> None:
    """Two independent slow series correlate by chance, more than independent errors tell."""
    generator, found = np.random.default_rng(5), 0
    for _ in range(6):
        drift = np.zeros((1500, 20))
        shocks = 0.1 * generator.standard_normal(drift.shape)
        for day in range(1, len(drift)):
            drift[day] = 0.97 * drift[day - 1] + shocks[day]
        found += len(pair_terms(generator.standard_normal(drift.shape) + np.sin(3.0 * drift))[0]) > 0
    assert found <= 1


def t_by_hand(left: Float64Array, past: Float64Array, one: int, two: int) -> float:
    """The absolute t-statistic of a spread, from the sums over days one by one."""
    known = (left[:, one] != 0) & (left[:, two] != 0)
    variance = [(left[:, stock] ** 2).sum() / (left[:, stock] != 0).sum() for stock in (one, two)]
    covariance = (left[:, one] * left[:, two]).sum() / known.sum()
    own, gram = [(past[:, stock] ** 2).sum() for stock in (one, two)], past[:, one] @ past[:, two]
    cross = left[:, one] @ past[:, two] + past[:, one] @ left[:, two]
    noise = variance[0] * own[1] + own[0] * variance[1] - 2 * covariance * gram
    return abs(cross) / math.sqrt(noise * (1 - gram**2 / (own[0] * own[1])))


@given(st.integers(0, 10**6), st.sampled_from(HALF_LIVES), st.floats(0.0, 0.8), st.sampled_from((1, 3, 8, 512)))
@settings(max_examples=30)
def test_partners_are_the_best_of_all_one_by_one(seed: int, half_life: int, common: float, together: int) -> None:
    """Whatever stocks have in common, where some are listed late, and in blocks of any size."""
    rng = np.random.default_rng(seed)
    moves = rng.standard_normal((900, 8)) + common / (1 - common) * rng.standard_normal((900, 1))
    moves[:300, :3] = moves[500:560] = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "_ROWS", together)
        left = pairs._surprises(moves)
        learned = (left != 0.0).any(axis=1)
        assert 800 < learned.sum() < 850
        past = pairs._pasts(moves, half_life, learned)
        found, partners = pairs._best_partners(left[learned], past, pairs._products(left[learned]))
    exact = left[learned].astype(np.float64), past.astype(np.float64)
    for stock in range(8):
        t = [t_by_hand(*exact, stock, other) if other != stock else 0.0 for other in range(8)]
        assert found[stock] == pytest.approx(max(t), rel=5e-3, abs=1e-2)
        assert t[partners[stock]] == pytest.approx(max(t), rel=5e-3, abs=1e-2)


@given(st.integers(0, 10**6), st.sampled_from(range(len(HALF_LIVES))), st.integers(1, 30))
@settings(max_examples=20)
def test_the_forecast_is_the_sum_of_the_next_moves_as_the_spread_decays(seed: int, place: int, sessions: int) -> None:
    moves, kept = np.random.default_rng(seed).standard_normal((60, 3)), 0.5 ** (1.0 / HALF_LIVES[place])
    forecast = after_pairs(moves, np.array([[2, 0, place]]), np.array([-0.4]), sessions)
    spread = sum((1.0 - kept) * kept**age * (moves[50 - age, 2] - moves[50 - age, 0]) for age in range(51))
    expected = sum(-0.4 * spread * kept**ahead for ahead in range(sessions))
    assert forecast[50, 2] == pytest.approx(expected, rel=1e-9)
    assert not forecast[:, :2].any()


DAYS, STOCKS, INPUTS, ODD = 1500, 12, 4, 7
LEARNED = np.arange(DAYS) < 1200


def panel(slope: float, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Closes, and the inputs of stocks: a constant and numbers that last a month.

    The first number raises the returns of all stocks, relative to the day's mean, and of an odd one by `slope` more.
    """
    rng = np.random.default_rng(seed)
    months = rng.standard_normal((DAYS // 20 + 1, STOCKS, INPUTS))
    x = np.repeat(months, 20, axis=0)[:DAYS]
    x[..., 0] = 1.0
    drift = 0.02 * x[..., 1]
    drift[:, ODD] += slope * x[:, ODD, 1]
    percent = np.zeros((DAYS, STOCKS))
    percent[1:] = drift[:-1] + 0.5 * rng.standard_normal((DAYS - 1, STOCKS))
    return (50 * np.exp(percent.cumsum(axis=0) / 100)).astype(np.float32), x.astype(np.float32)


def deviations_of(close: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float64]:
    halves = slice(0, 5), slice(5, STOCKS)
    return fit_deviations(close, LEARNED[None], lambda block: x[:, block], halves)[0]


def test_a_stock_that_differs_is_told_apart_and_believed_by_a_tenth() -> None:
    """Its monthly results rise by so much more with its first number; a penalty of ten keeps a tenth of that."""
    close, x = panel(slope=0.2)
    weights = deviations_of(close, x)
    assert weights.shape == (STOCKS, INPUTS)
    others = np.delete(np.abs(weights).ravel(), ODD * INPUTS + 1)
    assert weights[ODD, 1] > 2 * others.max()
    ahead = 100 * (np.log(close[SESSIONS + 1 :]) - np.log(close[1:-SESSIONS]))
    ahead -= ahead.mean(axis=1, keepdims=True)
    known = slice(LEARNED.sum() - SESSIONS - 1)
    slope = np.polyfit(x[known, ODD, 1], ahead[known, ODD], 1)[0]
    assert 0.04 * slope < weights[ODD, 1] < slope / 10


def test_noise_tells_next_to_nothing() -> None:
    """Even the largest of all weights forecasts a small part of what results vary by."""
    close, x = panel(slope=0.0)
    told = (x * deviations_of(close, x)).sum(axis=2)
    ahead = 100 * (np.log(close[SESSIONS + 1 :]) - np.log(close[1:-SESSIONS]))
    assert told.std() < 0.05 * ahead.std()


def test_closes_of_days_that_are_not_learned_are_not_read() -> None:
    close, x = panel(slope=0.2)
    other = close.copy()
    other[~LEARNED] *= 3.0
    np.testing.assert_array_equal(deviations_of(other, x), deviations_of(close, x))


def test_a_stock_without_bars_has_no_deviation() -> None:
    close, x = panel(slope=0.2)
    close[:, 3] = np.nan
    x[:, 3] = 0.0
    weights = deviations_of(close, x)
    assert not weights[3].any() and np.isfinite(weights).all() and weights[ODD, 1] > 0
