"""Lead-lag and leak: what a column that may not be bought tells of stocks, honestly or not.

Lead-lag: half of the stocks answer the column's moves some sessions later. Leak: the column's move tells what is to
come, as a column that was built from future prices does. There, one factor, independent from day to day, moves all
stocks: each answers by a loading of its own, half of them upwards and half downwards. Nothing of the past tells the
factor's next value. The column's log return today is a fixed share of the factor's sum over 20 coming sessions, plus
noise; since features are relative to the previous close, this move is what a close tells. Times a stock's loading it is
the sign and the rough size of that stock's next 20 sessions.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from data.synthetic.law import PlantedKind, register, sum_ahead
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

LEAD_LAG = 15
"""Sessions between a leader's move and the answer."""
LEAD_NOISE_RATIO = 4.0
"""A leader's noise, in daily noises of a stock: it can be told from the other columns by this."""
LEAD_FACTOR_SHARE = 0.8
"""Share of a leader's variance that its followers answer to; the rest is its own."""


def leader(loading: float, followers: Callable[[int], npt.NDArray[np.int64]]) -> PlantedKind:
    """Return the law of a context column that leads some stocks.

    Args:
        loading: their answer, as a share of that part of its return.
        followers: from the number of stocks, their columns.
    """

    def drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        variance = (LEAD_NOISE_RATIO * config.daily_noise) ** 2
        spread = math.sqrt(LEAD_FACTOR_SHARE * (1.0 - LEAD_FACTOR_SHARE) * variance)
        # Drawn also for the days before the first, which followers still answer to.
        normal = generator.standard_normal(LEAD_LAG - 1 + len(specific))
        before = math.sqrt(LEAD_FACTOR_SHARE * variance) * normal[: LEAD_LAG - 1]
        factor = np.concatenate((before, LEAD_FACTOR_SHARE * specific[:, -1] + spread * normal[LEAD_LAG - 1 :]))
        answers = np.zeros(specific.shape)
        answers[:, followers(config.stocks)] = loading * factor[: len(specific), None]
        return answers

    def variance(config: SyntheticConfig, sessions: int) -> Float64Array:
        ratios, answers = np.array([*[1.0] * config.stocks, LEAD_NOISE_RATIO]), np.zeros(config.stocks + 1)
        answers[followers(config.stocks)] = loading**2 * LEAD_FACTOR_SHARE
        return config.daily_noise**2 * (ratios**2 + answers * LEAD_NOISE_RATIO**2) * sessions

    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        scores = np.zeros(returns.shape)
        answer = loading * LEAD_FACTOR_SHARE * returns[:, -1]
        due = np.concatenate((np.zeros(LEAD_LAG - 1), answer))  # row t: what is answered on day t + 1
        ahead = sum_ahead(due, min(holding_days, LEAD_LAG))[: len(returns)]
        scores[:, followers(config.stocks)] = ahead[:, None]
        return scores

    def oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
        # Those after the last day of the market are left out.
        return sum_ahead(drift, min(holding_days, LEAD_LAG))

    return PlantedKind(drift, variance, rule, oracle, context_noise_ratios=(LEAD_NOISE_RATIO,))


register(
    "lead-lag",
    "a column that may not be bought leads half of the stocks",
    leader(loading=0.3, followers=lambda stocks: np.arange((stocks + 1) // 2)),
)

LEAK_SESSIONS = 20
"""Sessions that a move of the column tells."""
LEAK_FACTOR_RATIO = 0.5
"""Standard deviation of the factor on a day, in daily noises of a stock."""
LEAK_SHARE = 0.25
"""The column's move by a coming sum of the factor of 1."""
LEAK_NOISE_RATIO = 0.2
"""The column's noise, in daily noises of a stock: an eighth of the variance of what its moves tell."""
_LOADINGS = (1.5, 0.5)
"""Sizes of the loadings of the first and the last stock."""


def _loadings(config: SyntheticConfig) -> Float64Array:
    """Return the (stocks,) answers to a factor of 1."""
    sign = np.where(np.arange(config.stocks) % 2 == 0, 1.0, -1.0)
    return sign * np.linspace(*_LOADINGS, config.stocks)


def _leak_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    factor = LEAK_FACTOR_RATIO * config.daily_noise * generator.standard_normal(len(specific) + LEAK_SESSIONS)
    told = np.convolve(factor, np.ones(LEAK_SESSIONS), mode="valid")[1:]
    return np.column_stack((factor[: len(specific), None] * _loadings(config), LEAK_SHARE * told))


def _leak_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # Each value of the factor is in as many of the column's moves as windows of both lengths overlap.
    overlaps = np.convolve(np.ones(sessions), np.ones(LEAK_SESSIONS))
    column = (LEAK_FACTOR_RATIO * LEAK_SHARE) ** 2 * float(overlaps @ overlaps) + LEAK_NOISE_RATIO**2 * sessions
    stocks = (1.0 + (LEAK_FACTOR_RATIO * _loadings(config)) ** 2) * sessions
    return config.daily_noise**2 * np.append(stocks, column)


def _leak_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    # By least squares.
    daily = LEAK_FACTOR_RATIO**2
    variance = LEAK_SESSIONS * LEAK_SHARE**2 * daily + LEAK_NOISE_RATIO**2
    slope = min(holding_days, LEAK_SESSIONS) * LEAK_SHARE * daily / variance
    told = slope * returns[:, -1]
    return np.column_stack((told[:, None] * _loadings(config), np.zeros(len(told))))


def _leak_oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    # Those after the last day of the market are left out.
    scores = sum_ahead(drift, min(holding_days, LEAK_SESSIONS))
    scores[:, -1] = 0.0
    return scores


register(
    "leak",
    "a context column's move tells the factor of the next 20 sessions, which stocks answer up or down",
    PlantedKind(_leak_drift, _leak_variance, _leak_rule, _leak_oracle, context_noise_ratios=(LEAK_NOISE_RATIO,)),
)
