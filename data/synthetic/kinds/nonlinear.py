"""Agree and ring: a stock's drift is a joint function of two trends of its own, of which no weighing tells much.

`agree`: a stock rises if its short and its long trend agree, up or down, and falls if they do not. `ring`: a stock's
drift swings with the distance of the two trends from none. Moves by the drift enter the trends of later days.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # submodules are loaded when they are used: the help reads this file, too

from data.synthetic.law import PlantedKind, log_persistence, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

NONLINEAR_COMMON_SHARE = 0.7**2 / (0.7**2 + 1.5**2)
"""As 0.7% a day are to a stock's specific noise of 1.5%."""
TREND_HALF_LIVES = (16.0, 64.0)
TREND_LOG_PHI = np.array([log_persistence(half_life) for half_life in TREND_HALF_LIVES])
TREND_KEPT = np.exp(TREND_LOG_PHI)
TREND_LOADING = np.sqrt(-np.expm1(2.0 * TREND_LOG_PHI))
"""Change of the trends by a return of one specific noise; of independent noise alone, they have variance 1."""
_HISTORY = 10 * round(max(TREND_HALF_LIVES))
"""Sessions after which a thousandth is left of a trend."""
_STEP = 1.0 / 6.0
_AXIS = _STEP * np.arange(-30, 31)
"""Of the grid of trends; hardly any trend is beyond it."""
_GRID = np.stack(np.meshgrid(_AXIS, _AXIS, indexing="ij")).reshape(2, -1)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)


@dataclass(frozen=True)
class TrendDrift:
    """A drift by two exponential means of a stock's returns, its trends; returns are in specific noises."""

    shape: Callable[[Float64Array], Float64Array]
    """The next day's drift from (2, ...) trends, up to a constant."""
    mean: float
    """Its mean, taken off: on average the drift is none."""
    pull: float = 0.0
    """Added to a day's return where it moves the trends."""
    common_share: float = NONLINEAR_COMMON_SHARE
    """Share of the noise variance that is the same for all columns."""

    def kind(self) -> PlantedKind:
        """Return the kind of market that has this drift."""
        return PlantedKind(self.drift, self.summed_variance, self.rule, self.oracle, self.common_share)

    def specific_std(self, config: SyntheticConfig) -> float:
        """Return the standard deviation of the noise that is a stock's own."""
        return math.sqrt(1.0 - self.common_share) * config.daily_noise

    def next_drift(self, trends: Float64Array) -> Float64Array:
        """Return the next day's drift from (2, ...) trends."""
        return self.shape(trends) - self.mean

    def drift(self, config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the (days, columns) drifts after (days, columns) specific noise; see `PlantedKind`."""
        std, before = self.specific_std(config), generator.standard_normal((_HISTORY, specific.shape[1]))
        drift = np.zeros((_HISTORY + len(specific), specific.shape[1]))
        trends = np.zeros((2, specific.shape[1]))
        for day, noise in enumerate(np.concatenate((before, specific / std))):
            trends = updated(trends, noise + drift[day - 1] + self.pull)  # before the first day there is no drift
            drift[day] = self.next_drift(trends)
        return std * drift[_HISTORY:]

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return the (stocks,) variance that common noise sums to, and twice the logarithm of the other mean growth."""
        common = self.common_share * config.daily_noise**2 * sessions
        return np.full(config.stocks, common + 2.0 * _log_mean_growth(self, self.specific_std(config), sessions))

    def rule(self, config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        """Sum the drifts expected from the trends; the market's return is the mean of those known."""
        specific = returns - returns.mean(axis=1, keepdims=True) if self.common_share else returns
        specific = specific / self.specific_std(config) + self.pull
        trends = np.zeros((2, *specific.shape))
        trends[:, 0] = (self.pull * TREND_LOADING / (1.0 - TREND_KEPT))[:, None]  # where they are on average
        for day in range(1, len(specific)):
            trends[:, day] = updated(trends[:, day - 1], specific[day])
        later: Float64Array = _interpolation(trends.reshape(2, -1)) @ _later_drifts(self, holding_days)
        return self.specific_std(config) * (self.next_drift(trends) + later.reshape(specific.shape))

    def oracle(self, config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
        """Scale each drift to the sum that follows such a drift, by least squares.

        A drift does not tell the trends, which tell the drifts of later days: the rule may be above this oracle.
        """
        return drift * _sum_by_drift(self, holding_days)


def updated(trends: Float64Array, returns: Float64Array) -> Float64Array:
    """Return the (2, ...) trends after a day of (...) returns."""
    kept, loading = (values.reshape(2, *[1] * returns.ndim) for values in (TREND_KEPT, TREND_LOADING))
    return kept * trends + loading * returns


def _interpolation(trends: Float64Array) -> scipy.sparse.csr_array:
    """Return (n, points): its product with values on the grid is those at (2, n) trends, cubic between the points.

    Linear interpolation would add to the variance of the trends with each session.
    """
    place = np.clip((trends - _AXIS[0]) / _STEP, 0.0, len(_AXIS) - 1.0)
    first = np.clip(np.floor(place).astype(np.int64) - 1, 0, len(_AXIS) - 4)
    short, long = (_cubic_weights(offset) for offset in place - first)
    weights = short[:, :, None] * long[:, None, :]
    rows, columns = (index[:, None] + np.arange(4) for index in first)
    points = rows[:, :, None] * len(_AXIS) + columns[:, None, :]
    starts = 16 * np.arange(trends.shape[1] + 1)
    return scipy.sparse.csr_array((weights.ravel(), points.ravel(), starts), shape=(trends.shape[1], _GRID.shape[1]))


def _cubic_weights(place: Float64Array) -> Float64Array:
    """Return the (n, 4) weights of the points 0, 1, 2, 3 in the cubic through them, at (n,) places."""
    a, b, c, d = (place - point for point in range(4))
    return np.stack((-b * c * d / 6.0, a * c * d / 2.0, -a * b * d / 2.0, a * b * c / 6.0), axis=-1)


def _next_trends(law: TrendDrift, noise: float) -> Float64Array:
    """Return the (2, points) trends a day after those of the grid."""
    return updated(_GRID, law.next_drift(_GRID) + law.pull + noise)


def _transition(law: TrendDrift, noise_mean: float = 0.0) -> scipy.sparse.csr_array:
    """Return (points, points): the law of the next day's trends, the day's noise having this mean."""
    chances = _WEIGHTS / _WEIGHTS.sum()
    steps = [p * _interpolation(_next_trends(law, noise_mean + node)) for p, node in zip(chances, _NODES, strict=True)]
    return scipy.sparse.csr_array(sum(steps[1:], steps[0]))


@lru_cache(maxsize=8)
def _stationary(law: TrendDrift) -> Float64Array:
    """Return the (points,) chances of the trends on a day of no particular date."""
    back = scipy.sparse.csr_array(_transition(law).T)
    chances: Float64Array = (np.arange(_GRID.shape[1]) == _GRID.shape[1] // 2).astype(np.float64)
    for _ in range(_HISTORY):
        chances = back @ chances
    return chances


@lru_cache(maxsize=32)
def _later_drifts(law: TrendDrift, sessions: int) -> Float64Array:
    """Return the (points,) expected sum of the drifts of `sessions` days, without the first, which is known."""
    move, later = _transition(law), np.zeros(_GRID.shape[1])
    # Not from the grid, for between its points the drift may bend sharply.
    following = np.average([law.next_drift(_next_trends(law, node)) for node in _NODES], axis=0, weights=_WEIGHTS)
    for _ in range(sessions - 1):
        later = following + move @ later
    return later


@lru_cache(maxsize=32)
def _sum_by_drift(law: TrendDrift, sessions: int) -> float:
    """Return the slope of the sum of consecutive drifts on the first."""
    weighted = _stationary(law) * law.next_drift(_GRID)
    later = weighted @ _later_drifts(law, sessions) / (weighted @ law.next_drift(_GRID))
    return 1.0 + float(later)


@lru_cache(maxsize=32)
def _log_mean_growth(law: TrendDrift, std: float, sessions: int) -> float:
    """Return the logarithm of the mean growth by drift and specific noise, of a standard deviation, over sessions."""
    # Under the measure of the growth, noise has the mean of its variance: in specific noises, their standard deviation.
    move, daily = _transition(law, std), np.exp(std * law.next_drift(_GRID) + std**2 / 2.0)
    growth = np.ones(_GRID.shape[1])
    for _ in range(sessions):
        growth = daily * (move @ growth)
    return math.log(_stationary(law) @ growth)


AGREE = TrendDrift(lambda trends: 0.2 * np.tanh(1.5 * trends[0]) * np.tanh(1.5 * trends[1]), mean=0.0826)
"""Before its mean is taken off, the drift is up to 0.3% a day where a stock's specific noise is 1.5%.

A pull would hold the trends up, where the drift is close to a multiple of the short one.
"""
RING = TrendDrift(lambda trends: np.sin(2.5 * np.hypot(trends[0], trends[1])) / 3.0, mean=0.0619, pull=0.0619)
"""Before its mean is taken off, the drift is up to 0.5% a day where a stock's specific noise is 1.5%.

Without the pull, which makes up for the mean, the trends would move out to one side of the ring and stay: a weighing of
the trends would then tell half of what a trade earns.
"""
register(
    "agree",
    "a stock rises while its short and its long trend have the same sign, and falls otherwise",
    AGREE.kind(),
)
register("ring", "a stock's drift oscillates with the distance of both trends from zero", RING.kind())
