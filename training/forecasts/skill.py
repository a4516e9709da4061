"""Information coefficients of forecasts, known order sizes, and exposure to the market."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy  # submodules, which take a second to import, are loaded when they are used
import torch

from models.policy import Forecasts
from utils.arrays import Float64Array
from utils.statistics import MeanTest, mean_test

HORIZONS = (1, 5, 20)
"""Sessions from the next open on over which returns are looked at."""
DECAY = (1, 2, 3, 5, 10, 20)
"""The same where it is shown how long scores tell of returns."""
_LEAST_STOCKS, _LEAST_SHARE = 3, 0.02
_NO_VARIATION = 1e-12


@dataclass(frozen=True)
class Coefficient:
    """A daily correlation over stocks of scores with returns, summed up over days."""

    mean: float
    t: float | None
    """Mean over its standard error, which allows for returns that overlap; None where it never varies."""
    days: int


def agent_scores(forecasts: Forecasts, days: slice) -> Float64Array:
    """Return an agent's scores of stocks on some days, (days, n) percent of a position's value; NaN without a bar."""
    score = forecasts.score[0, days].double().cpu()
    return torch.where(score.isfinite(), score, torch.nan).numpy()


def correlation(x: Float64Array, y: Float64Array) -> Float64Array:
    """Return the (days,) correlations of (days, n) values over the stocks that have both.

    NaN on days with fewer than three such stocks, or where either is the same for all of them.
    """
    is_known = np.isfinite(x) & np.isfinite(y)
    known = is_known.sum(axis=1, keepdims=True)
    x, y = (np.where(is_known, values, np.nan) for values in (x, y))
    x, y = (values - np.nansum(values, axis=1, keepdims=True) / np.maximum(known, 1) for values in (x, y))
    spread = np.sqrt(np.nansum(x**2, axis=1) * np.nansum(y**2, axis=1))
    is_defined = (known[:, 0] >= _LEAST_STOCKS) & (spread > _NO_VARIATION)
    return np.asarray(np.divide(np.nansum(x * y, axis=1), spread, out=np.full(len(x), np.nan), where=is_defined))


def rank_correlation(x: Float64Array, y: Float64Array) -> Float64Array:
    """Return the (days,) correlations of ranks over the stocks that have both, as `correlation`."""
    is_known = np.isfinite(x) & np.isfinite(y)
    pair = (np.where(is_known, values, np.nan) for values in (x, y))
    return correlation(*(scipy.stats.rankdata(values, axis=1, nan_policy="omit") for values in pair))


def overlapping_mean_test(daily: Float64Array, holding_days: int) -> MeanTest:
    """Test the mean of the finite ones of (days,) values that follow from trades, which overlap while they are held.

    The mean block is one holding period, so that many blocks remain. What its weights take off the autocovariance of
    results that overlap so long, 1 - lag / holding period, is made good. With fewer than some twenty holding periods
    p-values are too small.
    """
    test = mean_test(daily[np.isfinite(daily)], mean_block=holding_days)
    lag = np.arange(1, holding_days)
    seen = 1 + 2 * float(((1 - lag / holding_days) * (1 - 1 / holding_days) ** lag).sum())
    return replace(test, standard_error=math.sqrt(holding_days / seen) * test.standard_error)


def summed_up(daily: Float64Array, holding_days: int) -> Coefficient | None:
    """Sum up (days,) correlations with returns that overlap over the holding period; None where no day has one."""
    known = daily[np.isfinite(daily)]
    if not len(known):
        return None
    test = overlapping_mean_test(known, holding_days)
    return Coefficient(test.mean, test.mean / test.standard_error if test.standard_error > 0 else None, len(known))


def returns_ahead(open_: Float64Array, days: slice, sessions: int) -> Float64Array:
    """Return the log returns from the open after each of some days over a number of sessions, (days, n); NaN where a
    bar is missing or lies after the last of the (all days, n) opens."""
    last = len(open_) - 1
    begin = np.arange(days.start, days.stop)[:, None] + 1
    first, later = (open_[np.minimum(day, last)[:, 0]] for day in (begin, begin + sessions))
    return np.where(begin + sessions <= last, np.log(later / first), np.nan)


def rank_coefficients(scores: Float64Array, ahead: Mapping[int, Float64Array]) -> dict[int, Coefficient]:
    """Return the rank correlations of (days, n) scores with the returns over some numbers of sessions, by these."""
    found = {sessions: summed_up(rank_correlation(scores, returns), sessions) for sessions, returns in ahead.items()}
    least = _LEAST_SHARE * len(scores)  # scores that hardly ever differ tell nothing
    return {sessions: one for sessions, one in found.items() if one is not None and one.days >= least}


def clearest(coefficients: Mapping[int, Coefficient]) -> int | None:
    """Return the number of sessions at which scores tell most: the largest absolute t; None where none has one."""
    by_t = {sessions: abs(one.t) for sessions, one in coefficients.items() if one.t is not None}
    return max(by_t, key=by_t.__getitem__, default=None)


def beta(returns: Float64Array, market: Float64Array) -> Float64Array:
    """Return the regression coefficients of (P, days) returns on the (days,) market's; 0 where that never varies."""
    deviation = market - market.mean()
    variance = float(deviation @ deviation)
    return returns @ deviation / variance if variance > _NO_VARIATION else np.zeros(len(returns))
