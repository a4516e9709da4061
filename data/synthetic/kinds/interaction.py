"""Interaction: stocks go on while a context column rises, and turn back while it falls.

Neither a stock's own trend nor the column's says anything alone; their product does.
"""

from __future__ import annotations

import math

import numpy as np

from data.synthetic.kinds.regime import Regimes
from data.synthetic.law import (
    Float64Array,
    MarketLaw,
    PlantedKind,
    autoregression,
    autoregressive_variance,
    fading_oracle,
    fading_sum,
    log_persistence,
)
from utils.config.trader import SyntheticConfig

INTERACTION_DRIFT_STD = 0.0025
"""Standard deviation of a stock's drift: its trend, the sum of its fading noise, times the column's direction."""
INTERACTION_LOG_PHI = log_persistence(10.0)
"""Logarithm of the share of a stock's trend that is left a day later."""
INTERACTION_REGIMES = Regimes(drift=0.015, sessions=50.0)
"""Of the context column."""
INTERACTION_NOISE_RATIO = 2.0
"""The context column's noise, in daily noises of a stock."""
_LOG_PHI = INTERACTION_LOG_PHI + INTERACTION_REGIMES.log_persistence
_GAIN = math.sqrt(-math.expm1(2.0 * INTERACTION_LOG_PHI))
"""Change of a trend, of variance 1, by a noise of one standard deviation."""


def _drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    direction = INTERACTION_REGIMES.directions(len(own), generator)[:, None]
    shocks = _GAIN / config.daily_noise * own[:, :-1]
    before = math.exp(INTERACTION_LOG_PHI) * generator.standard_normal(config.stocks)
    trend = autoregression(math.exp(INTERACTION_LOG_PHI), before + shocks[0], shocks)
    return np.concatenate((INTERACTION_DRIFT_STD * trend * direction, INTERACTION_REGIMES.drift * direction), axis=1)


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    noise = np.array([*[1.0] * config.stocks, INTERACTION_NOISE_RATIO]) * config.daily_noise
    variance: Float64Array = noise**2 * sessions
    # A stock's noise and its later drifts are uncorrelated, since the direction is as likely either way.
    variance[:-1] += INTERACTION_DRIFT_STD**2 * autoregressive_variance(_LOG_PHI, sessions)
    variance[-1] += 2.0 * INTERACTION_REGIMES.log_mean_growth(sessions)
    return variance


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Multiply what the returns tell of trend and direction; the drift expected of a return is no part of a trend."""
    direction = INTERACTION_REGIMES.balance(returns[:, -1], (INTERACTION_NOISE_RATIO * config.daily_noise) ** 2)
    drift, trend = np.zeros(returns.shape), np.zeros(config.stocks)
    for day in range(1, len(returns)):
        surprise = np.nan_to_num(returns[day, :-1] - drift[day - 1, :-1])
        trend = math.exp(INTERACTION_LOG_PHI) * trend + _GAIN / config.daily_noise * surprise
        drift[day, :-1] = INTERACTION_DRIFT_STD * trend * direction[day]
    return drift * fading_sum(_LOG_PHI, holding_days)


INTERACTION = PlantedKind(
    MarketLaw(_drift, _variance, context_noise_ratios=lambda config: (INTERACTION_NOISE_RATIO,)),
    _rule,
    fading_oracle(lambda config: _LOG_PHI),
)
