"""Storms: drifts that last as in momentum, and noise that is calm or threefold, in all stocks at once.

Drifts are as large in storms as in calm times, so that a storm is only a risk (Moreira and Muir 2017,
"Volatility-managed portfolios"), and past returns tell less of them.
"""

import math
from dataclasses import replace

import numpy as np

from data.synthetic.kinds.drifts import MOMENTUM, momentum_space
from data.synthetic.kinds.regime import Regimes
from data.synthetic.law import PlantedKind, fading_sum, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

STORMS = Regimes(drift=1.0, sessions=100.0)
"""A storm is the rising regime; its drift is the unit of the evidence."""
_RATIO = 3.0
_DRIFT = 0.65
"""Standard deviation of drifts, in those of momentum: noise is less than momentum's in calm times."""
CALM = math.sqrt(2.0 / (1.0 + _RATIO**2))
"""Volatility in units of the market's; calm and storms are as frequent, and the mean square is 1."""


def _own(config: SyntheticConfig) -> SyntheticConfig:
    """Return the settings of the drift's law, which is that of momentum."""
    return replace(config, drift_std=_DRIFT * config.drift_std)


def _variance(config: SyntheticConfig, returns: Float64Array) -> Float64Array:
    """Return the (days,) noise variance expected on each day, by Bayes' rule on squares."""
    # What is not noise in a return is a small part of its square.
    square = (returns / (CALM * config.daily_noise)) ** 2
    evidence = square * (1.0 - _RATIO**-2) / 4.0 - math.log(_RATIO) / 2.0
    ahead = STORMS.balance(evidence.sum(axis=1), 1.0)
    now = np.clip(ahead / math.exp(STORMS.log_persistence), -1.0, 1.0)
    return (CALM * config.daily_noise) ** 2 * (1.0 + (_RATIO**2 - 1.0) * (1.0 + now) / 2.0)


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score by the Kalman filter of the drift, to which a storm's returns tell little."""
    space, noise = momentum_space(_own(config)), _variance(config, returns)
    phi, state = space.persistence, np.zeros(returns.shape)
    error = space.shock_variance / (1.0 - phi**2)
    for day in range(1, len(returns)):
        gain = error / (error + noise[day])
        state[day] = phi * (state[day - 1] + gain * (returns[day] - state[day - 1]))
        error = phi**2 * (1.0 - gain) * error + space.shock_variance
    return state * fading_sum(space.log_persistence, holding_days)


register(
    "storms",
    "drifts as in momentum, in calm times and in storms of threefold noise",
    PlantedKind(
        lambda config, specific, rng: MOMENTUM.latent_drift(_own(config), specific, rng),
        lambda config, sessions: MOMENTUM.summed_variance(_own(config), sessions),
        _rule,
        MOMENTUM.oracle,
        volatility=lambda config, rng: CALM * np.where(STORMS.directions(config.days + 1, rng) > 0, _RATIO, 1.0),
        is_drift_steady=True,
    ),
)
