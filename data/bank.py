"""The multi-scale bank: features of a stock's past returns at all time scales, for a linear model.

Exponentially weighted means at dyadic half-lives span the smooth weightings of past returns: momentum, reversal, slow
value and the state of the market are linear in them.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.signal import lfilter

Float32Array = NDArray[np.float32]
Float64Array = NDArray[np.float64]

HALF_LIVES = tuple(2**power for power in range(8))
"""Days, 1 to 128."""
VOLATILITY = 2 * len(HALF_LIVES)
"""Index of the volatility in the bank, the last one."""
_VOLATILITY_HALF_LIFE = 32
_LARGEST_RETURN = 0.5
"""Bound on daily log returns: one error in the data would stay in a slow mean for months."""
_LEAST_VOLATILITY = 1e-4


def log_returns(close: Float32Array) -> Float64Array:
    """Return the daily log returns of (days, n) closes, bounded, 0 on a day without a bar.

    The first bar after a gap carries the whole change over it.
    """
    log_close = pd.DataFrame(np.log(close.astype(np.float64))).ffill().to_numpy()
    change = np.diff(log_close, axis=0, prepend=np.nan)
    bounded: Float64Array = np.clip(np.nan_to_num(change, nan=0.0), -_LARGEST_RETURN, _LARGEST_RETURN)
    return bounded


def multi_scale_bank(close: Float32Array) -> Float32Array:
    """Return features of past returns, (days, n, 17) from (days, n) closes; row t depends on closes up to t only.

    Exponentially weighted means of a stock's own daily log returns at half-lives of 1, 2, 4, ... 128 days; the same of
    the mean return of the stocks that trade; the logarithm of the stock's volatility, the mean of the others' on its
    first day.
    """
    own, is_move = log_returns(close), has_return(close)
    market = own.sum(axis=1, keepdims=True) / np.maximum(is_move.sum(axis=1, keepdims=True), 1)
    bank = np.empty((*own.shape, VOLATILITY + 1), dtype=np.float32)
    for place, half_life in enumerate(HALF_LIVES):
        bank[..., place] = exponential_mean(own, half_life)
        bank[..., len(HALF_LIVES) + place] = exponential_mean(market, half_life)
    weight = exponential_mean(is_move.astype(np.float64), _VOLATILITY_HALF_LIFE)
    is_known = weight > 0
    variance = np.divide(
        exponential_mean(own**2, _VOLATILITY_HALF_LIFE), weight, out=np.zeros_like(own), where=is_known
    )
    volatility = np.log(np.maximum(variance, _LEAST_VOLATILITY**2)) / 2
    others = (volatility * is_known).sum(axis=1, keepdims=True) / np.maximum(is_known.sum(axis=1, keepdims=True), 1)
    bank[..., VOLATILITY] = np.where(is_known, volatility, others)
    return bank


def has_return(close: Float32Array) -> NDArray[np.bool_]:
    """Return (days, n) whether a stock has a bar on a day and had one before, from closes."""
    has_bar = np.isfinite(close)
    had_bar = np.zeros_like(has_bar)
    had_bar[1:] = np.logical_or.accumulate(has_bar, axis=0)[:-1]
    both: NDArray[np.bool_] = has_bar & had_bar
    return both


def exponential_mean(values: Float64Array, half_life: float) -> Float64Array:
    """Return the exponentially weighted means of (days, n) values, those before the first day being 0."""
    kept = 0.5 ** (1.0 / half_life)
    mean: Float64Array = lfilter([1.0 - kept], [1.0, -kept], values, axis=0)
    return mean


def box_sums(close: Float32Array, widths: Sequence[int]) -> Float32Array:
    """Return (days, n, widths) sums of the daily log returns of (days, n) closes over the last so many days."""
    total = np.cumsum(log_returns(close), axis=0)
    sums = np.repeat(total.astype(np.float32)[..., None], len(widths), axis=-1)
    for place, width in enumerate(widths):
        sums[width:, :, place] = total[width:] - total[:-width]
    return sums
