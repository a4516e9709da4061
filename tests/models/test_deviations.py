"""Deviations: what tells one stock apart is found, as far as it is to be believed, and noise tells nothing."""

import numpy as np
from numpy.typing import NDArray

from models.impulses.deviations import fit_deviations
from models.impulses.terms import SESSIONS

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
    return fit_deviations(close, LEARNED, lambda block: x[:, block], halves)


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
