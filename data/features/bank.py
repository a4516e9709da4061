"""The multi-scale bank: features of a stock's past returns at all time scales, for a linear model.

Exponentially weighted means at dyadic half-lives span the smooth weightings of past returns: momentum, reversal, slow
value and the state of the market are linear in them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
import pandas as pd
import scipy  # submodules, which take a second to import, are loaded when they are used

from utils.arrays import BoolArray, Float32Array, Float64Array, in_order

FloatArray = TypeVar("FloatArray", Float32Array, Float64Array)
HALF_LIVES = tuple(2**power for power in range(8))
"""Days, 1 to 128."""
VOLATILITY = 2 * len(HALF_LIVES)
"""Index of the volatility in the bank, the last one."""
_VOLATILITY_HALF_LIFE = 32
_LARGEST_RETURN = 0.5
"""Bound on daily log returns: one error in the data would stay in a slow mean for months."""
_LEAST_VOLATILITY = 1e-4
_CELLS = 2**19
"""Days times stocks of a block: of a large market only a few blocks are in memory at a time."""


def stock_blocks(days: int, stocks: int) -> list[slice]:
    """Divide stocks into blocks, in order. The size is fixed, so that sums over blocks have one order."""
    size = max(1, _CELLS // max(days, 1))
    return [slice(first, min(first + size, stocks)) for first in range(0, stocks, size)]


def log_returns(close: Float32Array) -> Float64Array:
    """Return the daily log returns of (days, n) closes, bounded, 0 on a day without a bar.

    The first bar after a gap carries the whole change over it.
    """
    log_close = pd.DataFrame(np.log(close.astype(np.float64))).ffill().to_numpy()
    change = np.diff(log_close, axis=0, prepend=np.nan)
    bounded: Float64Array = np.clip(np.nan_to_num(change, nan=0.0), -_LARGEST_RETURN, _LARGEST_RETURN)
    return bounded


@dataclass(frozen=True)
class MarketSeries:
    """What the banks of all stocks of a market share, (days, 1) each."""

    returns: Float64Array
    """Mean daily log return of the stocks that trade."""
    volatility: Float64Array
    """Mean logarithm of the stocks' volatilities."""

    @classmethod
    def of(cls, close: Float32Array, blocks: Sequence[slice]) -> Self:
        """Take the means over the stocks of (days, n) closes; row t depends on closes up to t only.

        Args:
            blocks: of stocks, the order of the sums.
        """
        sums = np.zeros((4, len(close), 1))

        def sums_of(block: slice) -> list[Float64Array]:
            returns, is_move = log_returns(close[:, block]), has_return(close[:, block])
            one, is_known = _log_volatility(returns, is_move)
            parts = returns, is_move, one * is_known, is_known
            return [part.sum(axis=1, dtype=np.float64, keepdims=True) for part in parts]

        for block_sums in in_order(sums_of, blocks):
            sums += block_sums
        total, moves, volatility, known = sums
        return cls(total / np.maximum(moves, 1), volatility / np.maximum(known, 1))


def multi_scale_bank(close: Float32Array, market: MarketSeries) -> Float32Array:
    """Return features of past returns, (days, n, 17) from (days, n) closes; row t depends on closes up to t only.

    Exponentially weighted means of a stock's own daily log returns at half-lives of 1, 2, 4, ... 128 days; the same of
    the mean return of the stocks that trade; the logarithm of the stock's volatility, the mean of the others' on its
    first day.

    Args:
        market: of all stocks, of which these are some.
    """
    returns, is_move = log_returns(close), has_return(close)
    bank = np.empty((*returns.shape, VOLATILITY + 1), dtype=np.float32)
    for place, half_life in enumerate(HALF_LIVES):
        bank[..., place] = exponential_mean(returns, half_life)
        bank[..., len(HALF_LIVES) + place] = exponential_mean(market.returns, half_life)
    volatility, is_known = _log_volatility(returns, is_move)
    bank[..., VOLATILITY] = np.where(is_known, volatility, market.volatility)
    return bank


def _log_volatility(returns: Float64Array, is_move: BoolArray) -> tuple[Float64Array, BoolArray]:
    """Return the logarithm of the volatility of (days, n) returns, and where there is one."""
    weight = exponential_mean(is_move.astype(np.float64), _VOLATILITY_HALF_LIFE)
    is_known = weight > 0
    variance = np.divide(
        exponential_mean(returns**2, _VOLATILITY_HALF_LIFE), weight, out=np.zeros_like(returns), where=is_known
    )
    return np.log(np.maximum(variance, _LEAST_VOLATILITY**2)) / 2, is_known


def has_return(close: Float32Array) -> BoolArray:
    """Return (days, n) whether a stock has a bar on a day and had one before, from closes."""
    has_bar = np.isfinite(close)
    had_bar = np.zeros_like(has_bar)
    had_bar[1:] = np.logical_or.accumulate(has_bar, axis=0)[:-1]
    return has_bar & had_bar


def apart(values: FloatArray) -> FloatArray:
    """Return (..., days, n) values less the mean of each day's that are known; NaN: it is not."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=-1, keepdims=True, dtype=np.float64)
    less: FloatArray = (values - total / np.maximum(known.sum(axis=-1, keepdims=True), 1)).astype(values.dtype)
    return less


def exponential_mean(values: Float64Array, half_life: float) -> Float64Array:
    """Return the exponentially weighted means of (days, n) values, those before the first day being 0."""
    kept = 0.5 ** (1.0 / half_life)
    mean: Float64Array = scipy.signal.lfilter([1.0 - kept], [1.0, -kept], values, axis=0)
    return mean


_RISK_HALF_LIFE, _LEAST_RISK, _MOST_RISK = 60, 0.2, 5.0


def relative_risk(close: Float32Array) -> Float32Array:
    """Return the variance of each stock's daily log returns apart from the mean stock's, over that of the mean stock:
    (days, n) within 1/5 and 5, known at the day's close; 1 where nothing is known yet."""
    has_bar = np.isfinite(close)
    count = np.maximum(has_bar.sum(axis=1, keepdims=True), 1)
    own = apart(np.where(has_bar, log_returns(close), np.nan))
    variance = pd.DataFrame(own**2).ewm(halflife=_RISK_HALF_LIFE, ignore_na=True).mean().to_numpy()
    mean = np.nan_to_num(np.nansum(np.where(has_bar, variance, 0.0), axis=1, keepdims=True) / count)
    ratio = np.divide(variance, mean, out=np.ones_like(variance), where=(mean > 0) & np.isfinite(variance))
    return np.asarray(np.clip(ratio, _LEAST_RISK, _MOST_RISK), dtype=np.float32)
