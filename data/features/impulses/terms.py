"""What the searches for terms share: bounds on t-statistics that allow for the number of candidates, and sums."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from utils.arrays import Float64Array

SESSIONS = 20
"""Sessions that are forecast: the longest that a position is held by default."""
_SIGNIFICANCE = 0.05
"""Family-wise significance level of each kind of impulse (two-sided, Bonferroni)."""
_LAGS = 32
"""Sessions over which errors may be correlated."""


def bound(candidates: int) -> float:
    """Return the critical t-statistic of the best of several candidates."""
    return float(-ndtri(_SIGNIFICANCE / 2.0 / max(candidates, 1)))


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[Any]:
    """Divide; 0 where the denominator is 0."""
    quotient: NDArray[Any] = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0.0)
    return quotient


def last_sum(values: Float64Array, days: int) -> Float64Array:
    """Sum (days, n) values over a trailing window of days."""
    total = np.cumsum(values, axis=0)
    total[days:] -= total[:-days].copy()
    return total


def later(values: NDArray[Any], days: int) -> NDArray[Any]:
    """Return values shifted to later days, 0 before."""
    later = np.zeros_like(values)
    later[days:] = values[: len(values) - days]
    return later


def autocorrelated_t(products: Float64Array) -> float:
    """Return the t-statistic of a sum of (days,) products, whose errors may be autocorrelated.

    Source: Newey and West (1987), "A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent
    covariance matrix".
    """
    variance = products @ products
    for lag in range(1, min(_LAGS, len(products) - 1) + 1):
        variance += 2.0 * (1.0 - lag / (_LAGS + 1)) * (products[lag:] @ products[:-lag])
    return float(products.sum() / np.sqrt(variance)) if variance > 0.0 else 0.0
