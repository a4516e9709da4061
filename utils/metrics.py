"""Measures of daily equity curves: functions of arrays (..., days + 1), at least two points, one number per curve.

Daily returns are r_t = E_t / E_(t-1) - 1, and 0 after ruin (equity <= 0). A ratio with a vanishing denominator is 0.
"""

import math

import numpy as np
import numpy.typing as npt

from utils.arrays import Float64Array

TRADING_DAYS_PER_YEAR = 252
YEAR_ROOT = math.sqrt(TRADING_DAYS_PER_YEAR)
TAIL_SHARE = 0.05
NO_RISK = 1e-12  # a smaller deviation of daily returns is rounding


def daily_returns(equity: npt.ArrayLike) -> Float64Array:
    """Return simple returns r_t = E_t / E_(t-1) - 1, shape (..., days), as fractions."""
    curve = np.asarray(equity, dtype=np.float64)
    previous, current = curve[..., :-1], curve[..., 1:]
    alive = ~(previous <= 0)  # a NaN stays NaN
    return np.where(alive, np.maximum(current, 0) / np.where(alive, previous, 1.0) - 1.0, 0.0)


def total_return_percent(equity: npt.ArrayLike) -> Float64Array:
    """Return 100 (E_T / E_0 - 1), shape (...), percent."""
    return 100.0 * (_growth(equity) - 1.0)


def annual_return_percent(equity: npt.ArrayLike) -> Float64Array:
    """Return the compound return 100 ((E_T / E_0)^(252 / days) - 1), shape (...), percent a year."""
    days = np.shape(equity)[-1] - 1
    return np.asarray(100.0 * (_growth(equity) ** (TRADING_DAYS_PER_YEAR / days) - 1.0))


def annualised_volatility_percent(equity: npt.ArrayLike) -> Float64Array:
    """Return 100 sqrt(252) std(r), the sample deviation (n - 1), shape (...), percent a year."""
    return 100.0 * YEAR_ROOT * _deviation(daily_returns(equity))


def sharpe(equity: npt.ArrayLike) -> Float64Array:
    """Return sqrt(252) mean(r) / std(r), sample deviation, no risk-free rate (Sharpe 1994), shape (...)."""
    returns = daily_returns(equity)
    return YEAR_ROOT * _ratio(returns.mean(axis=-1), _deviation(returns))


def sortino(equity: npt.ArrayLike) -> Float64Array:
    """Return sqrt(252) mean(r) / sqrt(mean(min(r, 0)^2)) over all days (Sortino & Price 1994), 0.0 without a loss."""
    returns = daily_returns(equity)
    downside = np.sqrt((np.minimum(returns, 0.0) ** 2).mean(axis=-1))
    return YEAR_ROOT * _ratio(returns.mean(axis=-1), downside)


def max_drawdown_percent(equity: npt.ArrayLike) -> Float64Array:
    """Return 100 max_t (1 - E_t / max_(s <= t) E_s), shape (...), percent of the peak, between 0 and 100."""
    curve = np.maximum(np.asarray(equity, dtype=np.float64), 0.0)
    peaks = np.maximum.accumulate(curve, axis=-1)
    below = 1.0 - curve / np.where(peaks > 0, peaks, 1.0)
    return np.asarray(100.0 * np.max(np.where(peaks == 0, 0.0, below), axis=-1, initial=0.0))


def expected_shortfall_percent(equity: npt.ArrayLike) -> Float64Array:
    """Return the mean loss of the worst 5% of days (Acerbi & Tasche 2002), shape (...), percent; a gain is negative."""
    returns = daily_returns(equity)
    worst = TAIL_SHARE * returns.shape[-1]
    last = math.ceil(worst)
    tail = np.sort(np.partition(returns, last - 1, axis=-1)[..., :last], axis=-1)
    # A gap is sorted to the end, and stays a gap.
    gap = np.where(np.isnan(returns).any(axis=-1), np.nan, 0.0)
    return np.asarray(gap - 100.0 * (tail * np.clip(worst - np.arange(last), 0.0, 1.0)).sum(axis=-1) / worst)


def calmar(equity: npt.ArrayLike) -> Float64Array:
    """Return compound yearly return over maximum drawdown (Young 1991), shape (...). Without a drawdown: 0.0."""
    return _ratio(annual_return_percent(equity), max_drawdown_percent(equity))


def _growth(equity: npt.ArrayLike) -> Float64Array:
    return np.asarray(np.prod(1.0 + daily_returns(equity), axis=-1))


def _deviation(returns: Float64Array) -> Float64Array:
    if returns.shape[-1] < 2:
        return np.zeros(returns.shape[:-1])
    return np.asarray(returns.std(axis=-1, ddof=1))


def _ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    defined = ~(denominator <= NO_RISK)
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), 0.0)
