"""Pairs: stocks come in couples whose spread reverts, under a common market (Gatev, Goetzmann and Rouwenhorst 2006).

Stocks of a couple share more than the market, and only the rest, by which they move apart, passes. A stock's own past
therefore tells little of what its spread tells.
"""

import math

import numpy as np

from data.synthetic.kinds.drifts import transient, transient_space
from data.synthetic.law import PlantedKind, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

COMMON_SHARE = 0.1
"""Share of the noise variance that is the same for all columns."""
CORRELATION = 0.2
"""Of the specific noises of a couple."""
_SPREAD = (0.98, 10.0, 1.0 - (1.0 - COMMON_SHARE) * (1.0 - CORRELATION) / 2.0)
"""Transient share, half-life and common share of half the spread: the own part of both stocks; all else is common."""
SPREAD = transient(*_SPREAD)


def partner(stocks: int) -> np.ndarray:
    """Return the (stocks,) partner of each stock; the last of an odd number is its own."""
    half, place = stocks // 2, np.arange(stocks)
    return np.where(place < half, place + half, np.where(place < 2 * half, place - half, place))


def _mix(specific: Float64Array, stocks: int) -> Float64Array:
    """Correlate the (..., columns) noises of couples; variances stay."""
    near, far = (np.sqrt(1.0 + CORRELATION) + sign * np.sqrt(1.0 - CORRELATION) for sign in (1.0, -1.0))
    mixed: Float64Array = (near * specific + far * specific[..., partner(stocks)]) / 2.0
    mixed[..., 2 * (stocks // 2) :] = specific[..., 2 * (stocks // 2) :]
    return mixed


def _spread(values: Float64Array) -> Float64Array:
    """Return the (days, couples) half differences of couples."""
    half = values.shape[1] // 2
    return (values[:, :half] - values[:, half : 2 * half]) / 2.0


def _of_stocks(spread: Float64Array, stocks: int) -> Float64Array:
    """Return (days, stocks): the first of each couple moves with the spread, the second against it."""
    return np.concatenate((spread, -spread, np.zeros((len(spread), stocks % 2))), axis=1)


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    variance = SPREAD.summed_variance(config, sessions)
    variance[2 * (config.stocks // 2) :] = config.daily_noise**2 * sessions
    return variance


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    space = transient_space(config, *_SPREAD)
    passing = space.filter(_spread(returns)) * math.expm1(holding_days * space.log_persistence)
    return _of_stocks(passing, config.stocks)


register(
    "pairs",
    "stocks come in unnamed couples whose spread reverts, under a common market",
    PlantedKind(
        lambda config, specific, rng: _of_stocks(SPREAD.latent_drift(config, _spread(specific), rng), config.stocks),
        _variance,
        _rule,
        SPREAD.oracle,
        COMMON_SHARE,
        mix=_mix,
    ),
)
