"""Significance of daily results: block bootstrap, tests of a mean, deflated ratios, backtest overfitting.

Daily series are (days,) arrays in order of time. A trial is a policy whose result was seen before the best one was
chosen.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit, wofz

from utils.arrays import Float64Array, Int64Array

LEVEL = 0.95
"""Confidence level of every interval."""
EDGES = (50 * (1 - LEVEL), 50 * (1 + LEVEL))
"""Its percentiles."""
RESAMPLES = 2000
_ROUNDING = 1e-12
"""Part of the largest value within which values are one."""
_BLOCKS = 16
"""Of combinatorial cross-validation; the number of Bailey et al. 2017."""


def mean_block_days(days: int) -> float:
    """Return the mean block of a bootstrap, days^(1/3), the best rate for a variance (Hall, Horowitz & Jing 1995)."""
    return max(1.0, math.cbrt(days))


def stationary_bootstrap(days: int, resamples: int, mean_block: float, generator: np.random.Generator) -> Int64Array:
    """Draw the days of resampled series, (resamples, days), in blocks of geometric length (Politis & Romano 1994).

    Each day follows the one before it (circularly) with probability 1 - 1 / `mean_block`; otherwise it is drawn anew.
    """
    begins = generator.random((resamples, days)) < 1.0 / mean_block
    begins[:, :1] = True
    drawn = generator.integers(0, days, (resamples, days))
    place = np.arange(days)
    begin = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    return (np.take_along_axis(drawn, begin, axis=1) + place - begin) % days


def bootstrap_intervals(
    returns: Float64Array,
    measures: Mapping[str, Callable[[Float64Array], Float64Array]],
    generator: np.random.Generator,
) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of measures of an equity curve, by resampling its (days,) simple returns in blocks.

    A measure turns (resamples, days + 1) equity into (resamples,) values. All see the same resamples.
    """
    days = len(returns)
    chosen = stationary_bootstrap(days, RESAMPLES, mean_block_days(days), generator)
    equity = np.ones((RESAMPLES, days + 1))
    np.cumprod(1.0 + returns[chosen], axis=1, out=equity[:, 1:])
    percentiles = {name: np.percentile(measure(equity), EDGES) for name, measure in measures.items()}
    return {name: (float(low), float(high)) for name, (low, high) in percentiles.items()}


@dataclass(frozen=True)
class MeanTest:
    """A test whether the mean of a time series, the best of `trials`, is above zero."""

    mean: float
    standard_error: float
    degrees_of_freedom: float
    trials: int

    @property
    def p_value(self) -> float:
        """One-sided, times the number of trials (Bonferroni); 1 where the series never varies."""
        if self.standard_error <= 0:
            return 1.0
        tail = float(stdtr(self.degrees_of_freedom, -self.mean / self.standard_error))
        return min(1.0, self.trials * tail)

    @property
    def interval(self) -> tuple[float, float]:
        """Two-sided, and wide enough to hold for all trials together."""
        tail = (1 - LEVEL) / 2 / self.trials
        reach = -float(stdtrit(self.degrees_of_freedom, tail)) * self.standard_error
        return self.mean - reach, self.mean + reach

    @property
    def sign(self) -> int:
        """1 or -1 where the interval lies above or below zero, else 0; 0 where the series never varies."""
        if self.standard_error <= 0:
            return 0
        low, high = self.interval
        return int(low > 0) - int(high < 0)

    @property
    def cross_fitted(self) -> "MeanTest":
        """The same test of values by forecasts that were fitted, for each fold, on the other folds.

        Each pair of folds enters twice: the first is learned from where the second is forecast, and the other way
        round. So without skill the variance of the mean is twice that of independent folds, which no estimate from the
        folds alone can show (Bengio and Grandvalet 2004, "No unbiased estimator of the variance of k-fold
        cross-validation").
        """
        return replace(self, standard_error=math.sqrt(2) * self.standard_error)


def mean_test(values: Float64Array, trials: int = 1, mean_block: float | None = None) -> MeanTest:
    """Test the mean of a (days,) series that may be autocorrelated, by default in blocks of `mean_block_days`.

    The variance is that of the stationary bootstrap in closed form (Politis & Romano 1994): with c(k) the circular
    autocovariance and q = 1 - 1 / mean block, n Var = c(0) + 2 sum_k (1 - k / n) q^k c(k). It is unbiased for
    white noise, and the degrees of freedom are those of that spectral estimate, n / sum of squared weights
    (Priestley 1981), less one for the mean.
    """
    days = len(values)
    mean = float(values.mean()) if days else 0.0
    deviation = values - mean
    if days < 2 or np.abs(deviation).max() <= _ROUNDING * np.abs(values).max():
        return MeanTest(mean, 0.0, 1.0, trials)
    covariance = np.fft.irfft(np.abs(np.fft.rfft(deviation)) ** 2, n=days) / days
    lag = np.arange(1, days)
    block = mean_block_days(days) if mean_block is None else mean_block
    weight = (1 - lag / days) * (1 - 1 / block) ** lag
    variance = max(0.0, float(covariance[0] + 2 * (weight * covariance[1:]).sum()))
    lost = min(0.5, (1 + 2 * float(weight.sum())) / days)
    freedom = max(1.0, days / (1 + 2 * float((weight**2).sum())) - 1)
    return MeanTest(mean, math.sqrt(variance / (1 - lost) / days), freedom, trials)


def cauchy_posterior(estimate: float, error: float, scale: float, chance: float) -> float:
    """Return the posterior mean of an effect, estimated with a normal error: a priori 0, but with some chance drawn
    from a Cauchy law around 0 ("spike and slab", Mitchell & Beauchamp 1988, "Bayesian variable selection in linear
    regression").

    With z = (estimate + i scale) / (error sqrt 2) and the Faddeeva function w, the evidence of the Cauchy law is
    Voigt's profile V = Re w(z) / (error sqrt(2 pi)), and the mean is scale x Im w(z) / Re w(z); the evidence of 0 is
    the normal density.
    Small estimates shrink to a small part, large ones to nearly nothing less than they are.

    Args:
        error: standard error, above 0.
        chance: prior probability that the effect is not 0, above 0.
    """
    told = complex(wofz(complex(estimate, scale) / (error * math.sqrt(2))))
    share = 1 / (1 + (1 / chance - 1) * math.exp(-0.5 * (estimate / error) ** 2) / told.real)
    return share * (scale * told.imag / told.real)


def rank_p_value(value: float, others: Float64Array, trials: int = 1) -> float:
    """Return the p-value of `value` as the best of `trials` draws from the law of the (n,) `others` (Bonferroni).

    The rank among them, (1 + how many reach it) / (n + 1), is exact for one trial. Beyond the largest of them, which
    only more trials ask for, it is the tail of a normal law, by Student's t since its mean and deviation are estimated
    from `others`: too small where their tails are fat.
    """
    count = len(others)
    reached = int((others >= value).sum())
    p_value = (1 + reached) / (count + 1)
    spread = float(others.std(ddof=1)) if count > 1 else 0.0
    if reached == 0 and spread > 0:
        score = (value - float(others.mean())) / (spread * math.sqrt(1 + 1 / count))
        p_value = min(p_value, float(stdtr(count - 1, -score)))
    return min(1.0, trials * p_value)


def expected_maximum(deviation: float, trials: int) -> float:
    """Return what the best of `trials` without skill shows on average (Bailey & Lopez de Prado 2014).

    `deviation` is the standard deviation of what they show, such as a Sharpe ratio; the unit is theirs. One trial: 0.
    """
    if trials <= 1:
        return 0.0
    low, high = ndtri(1 - 1 / trials), ndtri(1 - 1 / (trials * math.e))
    return float(deviation * ((1 - np.euler_gamma) * low + np.euler_gamma * high))


def probabilistic_sharpe_ratio(returns: Float64Array, benchmark: float) -> float | None:
    """Return the probability of a true Sharpe ratio above `benchmark`, both by the day (Bailey & Lopez de Prado 2014).

    Phi((S - S0) sqrt(T - 1) / sqrt(1 - skewness S + (kurtosis - 1) / 4 S^2)), S the ratio of the (T,) returns. With
    S0 = `expected_maximum` it is their deflated Sharpe ratio; of returns less a benchmark's it is the deflated
    information ratio. None where the returns never vary.
    """
    moments = _sharpe_moments(returns)
    return None if moments is None else psr_of_moments(moments[0], benchmark, len(returns), *moments[1:])


def psr_of_moments(sharpe: float, benchmark: float, days: int, skewness: float, kurtosis: float) -> float:
    """Apply the formula of `probabilistic_sharpe_ratio` to moments; a normal law has kurtosis 3."""
    return float(ndtr((sharpe - benchmark) * math.sqrt((days - 1) / _sharpe_variance(sharpe, skewness, kurtosis))))


def _sharpe_moments(returns: Float64Array) -> tuple[float, float, float] | None:
    """Return Sharpe ratio, skewness and kurtosis; None where returns never vary."""
    deviation = float(returns.std(ddof=1)) if len(returns) > 2 else 0.0
    if deviation < 1e-12:
        return None
    standard = (returns - returns.mean()) / returns.std()
    return float(returns.mean()) / deviation, float((standard**3).mean()), float((standard**4).mean())


def _sharpe_variance(sharpe: float, skewness: float, kurtosis: float) -> float:
    """Return T - 1 times the variance of the estimate of a Sharpe ratio."""
    return max(1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2, 1e-12)


def minimum_track_record_length(returns: Float64Array) -> int | None:
    """Return the days after which a Sharpe ratio like that of (T,) returns is above zero at 95%; None where it is not
    above zero.

    The number of days at which `probabilistic_sharpe_ratio` is 0.95, all moments being equal (Bailey & Lopez de Prado
    2012, "The Sharpe ratio efficient frontier").
    """
    moments = _sharpe_moments(returns)
    if moments is None or moments[0] <= 0:
        return None
    return math.ceil(1 + _sharpe_variance(*moments) * (float(ndtri(LEVEL)) / moments[0]) ** 2)


def overfitting_probability(returns: Float64Array) -> float | None:
    """Return the probability that the best policy on some days is below the median of all of them on the others.

    Combinatorially symmetric cross-validation (Bailey, Borwein, Lopez de Prado & Zhu 2017, "The probability of backtest
    overfitting"): the days form 16 blocks; for each choice of half of them the policy that earned most there is ranked
    among all of them on the other half. Pure noise gives about 0.5, a policy that is truly better about 0. A rank at
    the median counts half, so that identical policies give 0.5.

    Args:
        returns: logarithmic, (policies, days).

    Returns:
        None for fewer than two policies, fewer days than blocks, or a return that is none.
    """
    policies, days = returns.shape
    if policies < 2 or days < _BLOCKS or not np.isfinite(returns).all():
        return None
    block = days // _BLOCKS
    # The first days are left out where the blocks do not cover all of them.
    sums = returns[:, days - _BLOCKS * block :].reshape(policies, _BLOCKS, block).sum(-1)
    # Whole numbers, so that equal sums are equal in whatever order they are added.
    sums = np.rint(sums * (2**40 / (float(np.abs(sums).max()) or 1.0))).astype(np.int64)
    halves = np.array(list(combinations(range(_BLOCKS), _BLOCKS // 2)))
    is_chosen = np.zeros((len(halves), _BLOCKS), dtype=np.int64)
    np.put_along_axis(is_chosen, halves, 1, axis=1)
    inside = sums @ is_chosen.T
    # In this order the last half is the complement of the first.
    outside = inside[:, ::-1]
    best = np.take_along_axis(outside, inside.argmax(axis=0)[None], axis=0)
    rank = (outside < best).sum(axis=0) + ((outside == best).sum(axis=0) + 1) / 2
    share = rank / (policies + 1)
    return float((share < 0.5).mean() + (share == 0.5).mean() / 2)
