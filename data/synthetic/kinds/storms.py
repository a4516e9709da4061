"""Storms: drifts that last as in momentum, and noise that is calm or threefold, in all stocks at once.

Drifts are as large in storms as in calm times, so that a storm is only a risk. A rule that weighs profit against its
variance sizes orders by the inverse variance (Moreira and Muir 2017, "Volatility-managed portfolios").
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


def _variances(config: SyntheticConfig, returns: Float64Array) -> tuple[Float64Array, Float64Array]:
    """Return the (days,) noise variance expected on each day, and on the day after, by Bayes' rule on squares."""
    # What is not noise in a return is a small part of its square.
    square = (returns / (CALM * config.daily_noise)) ** 2
    evidence = square * (1.0 - _RATIO**-2) / 4.0 - math.log(_RATIO) / 2.0
    ahead = STORMS.balance(evidence.sum(axis=1), 1.0)
    now = np.clip(ahead / math.exp(STORMS.log_persistence), -1.0, 1.0)
    calm = (CALM * config.daily_noise) ** 2
    first, second = (calm * (1.0 + (_RATIO**2 - 1.0) * (1.0 + balance) / 2.0) for balance in (now, ahead))
    return first, second


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score by the Kalman filter of the drift, to which a storm's returns tell little."""
    space, (noise, _) = momentum_space(_own(config)), _variances(config, returns)
    phi, state = space.persistence, np.zeros(returns.shape)
    error = space.shock_variance / (1.0 - phi**2)
    for day in range(1, len(returns)):
        gain = error / (error + noise[day])
        state[day] = phi * (state[day - 1] + gain * (returns[day] - state[day - 1]))
        error = phi**2 * (1.0 - gain) * error + space.shock_variance
    return state * fading_sum(space.log_persistence, holding_days)


def _sizes(config: SyntheticConfig, returns: Float64Array) -> Float64Array:
    """Size by the inverse variance of the next day's noise, calm times fully."""
    _, ahead = _variances(config, returns)
    share = (CALM * config.daily_noise) ** 2 / ahead
    return np.repeat(share[:, None], returns.shape[1], axis=1)


register(
    "storms",
    "drifts as in momentum, in calm times and in storms of threefold noise; sizes decide the risk",
    PlantedKind(
        lambda config, specific, rng: MOMENTUM.latent_drift(_own(config), specific, rng),
        lambda config, sessions: MOMENTUM.summed_variance(_own(config), sessions),
        _rule,
        MOMENTUM.oracle,
        volatility=lambda config, rng: CALM * np.where(STORMS.directions(config.days + 1, rng) > 0, _RATIO, 1.0),
        is_drift_steady=True,
        sizes=_sizes,
    ),
)
