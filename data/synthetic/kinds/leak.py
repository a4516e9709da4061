"""Leaks: the move of a context column tells what is to come, as a column that was built from future prices does.

One factor, independent from day to day, moves all stocks: each answers by a loading of its own, half of them upwards
and half downwards. Nothing of the past tells the factor's next value. The context column's log return today is a fixed
share of the factor's sum over 20 coming sessions, plus noise; since features are relative to the previous close, this
move is what a close tells. Times a stock's loading it is the sign and the rough size of that stock's next 20 sessions.

In the lagged form the column moves 60 sessions before these 20: neither today's features nor those of the last weeks
hold anything, only the raw window does.
"""

import numpy as np

from data.synthetic.law import PlantedKind, foreseen_oracle, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

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


def loadings(config: SyntheticConfig) -> Float64Array:
    """Return the (stocks,) answers to a factor of 1."""
    sign = np.where(np.arange(config.stocks) % 2 == 0, 1.0, -1.0)
    return sign * np.linspace(*_LOADINGS, config.stocks)


def leak(lag: int) -> PlantedKind:
    """Return the law of a column that publishes the sum of a factor's next values.

    Args:
        lag: sessions from the move to the close after which the told ones begin; 0: they follow the move.
    """

    def drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        factor = LEAK_FACTOR_RATIO * config.daily_noise * generator.standard_normal(len(specific) + lag + LEAK_SESSIONS)
        told = np.convolve(factor, np.ones(LEAK_SESSIONS), mode="valid")[lag + 1 :]
        return np.column_stack((factor[: len(specific), None] * loadings(config), LEAK_SHARE * told))

    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        # By least squares.
        daily = LEAK_FACTOR_RATIO**2
        variance = LEAK_SESSIONS * LEAK_SHARE**2 * daily + LEAK_NOISE_RATIO**2
        slope = min(holding_days, LEAK_SESSIONS) * LEAK_SHARE * daily / variance
        told = np.zeros(len(returns))
        told[lag:] = slope * returns[: max(0, len(returns) - lag), -1]
        return np.column_stack((told[:, None] * loadings(config), np.zeros(len(told))))

    oracle = foreseen_oracle(LEAK_SESSIONS)
    return PlantedKind(drift, _variance, rule, oracle, context_noise_ratios=lambda config: (LEAK_NOISE_RATIO,))


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # Each value of the factor is in as many of the column's moves as windows of both lengths overlap.
    overlaps = np.convolve(np.ones(sessions), np.ones(LEAK_SESSIONS))
    column = (LEAK_FACTOR_RATIO * LEAK_SHARE) ** 2 * float(overlaps @ overlaps) + LEAK_NOISE_RATIO**2 * sessions
    stocks = (1.0 + (LEAK_FACTOR_RATIO * loadings(config)) ** 2) * sessions
    return config.daily_noise**2 * np.append(stocks, column)


_TOLD = "a context column's move tells the factor of the next 20 sessions, which stocks answer up or down"
register("leak", _TOLD, leak(lag=0))
register("lagged-leak", "the same, 60 sessions before these 20 begin", leak(lag=60))
