"""The kinds of built-in market: the latent drift of each, and the constant that keeps its prices fair.

The log return of day t + 1 is the drift at the close of day t, plus noise, less that constant. A kind's other numbers
are chosen so that its best simple rule earns some tens of percent in an episode of the default rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from utils.config.trader import SyntheticConfig

Float64Array = npt.NDArray[np.float64]

FAIR_SESSIONS = 20
"""Holding a stock this long from a random day on earns nothing on average, before costs."""
LEAD_SESSIONS = 15
"""The followers of the leading column answer its moves this many sessions later."""
LEAD_NOISE_RATIO = 4.0
"""Its noise, in daily noises of a stock: it can be told from the others by this."""
LEAD_FACTOR_SHARE = 0.8
"""Share of its variance that its followers answer to; the rest is its own."""
LEAD_LOADING = 0.3
"""Their answer, as a share of that part of its return."""
REGIME_DRIFT = 0.005
"""Daily drift of all stocks, up or down by the regime."""
REGIME_SESSIONS = 30.0
"""Mean length of a regime."""
REGIME_SWITCH_CHANCE = 1.0 / REGIME_SESSIONS
"""On a day."""
REGIME_COMMON_SHARE = 0.05
"""Share of the noise variance that is the same for all columns."""
LatentDrift = Callable[[SyntheticConfig, Float64Array, np.random.Generator], Float64Array]


def log_persistence(half_life_days: float) -> float:
    """Return the logarithm of the share that is left after a day of decay with this half-life."""
    return -math.log(2.0) / half_life_days


@dataclass(frozen=True)
class Transient:
    """A part of prices that passes: own noise moves a deviation from the stock's anchor, which then decays."""

    share: float
    """Share of the variance of a stock's own noise that moves the deviation; the rest moves the anchor."""
    half_life_days: float
    common_share: float = 0.0
    """Share of the noise variance that is the same for all columns."""

    @property
    def log_persistence(self) -> float:
        """Logarithm of the share of a deviation that is left a day later."""
        return log_persistence(self.half_life_days)

    def drift(self, config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the (days, columns) decay of the deviations that (days, columns) own noise moves; see `MarketLaw`."""
        variance = config.daily_noise**2 * (1.0 - self.common_share)
        normal = generator.standard_normal((len(own) + 1, own.shape[1]))
        # Given a day's noise, the part that moves the deviation is normal around its share of it.
        shock = self.share * own + math.sqrt(self.share * (1.0 - self.share) * variance) * normal[1:]
        spread = math.sqrt(self.share * variance / -math.expm1(2.0 * self.log_persistence))
        persistence = math.exp(self.log_persistence)
        deviation = _autoregression(persistence, persistence * spread * normal[0] + shock[0], shock)
        return math.expm1(self.log_persistence) * deviation

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return the (stocks,) variance of the sum of consecutive log returns: lower than that of as many noises."""
        noise = config.daily_noise**2
        own = (1.0 - self.common_share) * noise
        deviation = self.share * own / -math.expm1(2.0 * self.log_persistence)
        passing = -2.0 * deviation * math.expm1(sessions * self.log_persistence)
        own_sum = (1.0 - self.share) * own * sessions + passing
        return np.full(config.stocks, self.common_share * noise * sessions + own_sum)


REVERSAL = Transient(share=0.7, half_life_days=4.0)
VALUE = Transient(share=0.9, half_life_days=20.0, common_share=0.3)


@dataclass(frozen=True)
class MarketLaw:
    """The law of a kind of market. Columns are the stocks, then the context columns.

    `latent_drift(config, own_noise, generator)` returns (days, columns) from the (days, columns) noise that is each
    column's own; row t may depend on rows 0..t of the noise only. `summed_variance(config, sessions)` is (columns,):
    the variance of the sum of consecutive log returns where that is normal; in general twice the logarithm of their
    mean growth before the constant is taken off.
    """

    latent_drift: LatentDrift
    summed_variance: Callable[[SyntheticConfig, int], Float64Array]
    common_share: float = 0.0
    """Share of the noise variance that is the same for all columns."""
    context_noise_ratios: tuple[float, ...] = ()
    """For each column that may not be bought, its noise in daily noises of a stock."""

    def noise_std(self, config: SyntheticConfig) -> Float64Array:
        """Return the (columns,) standard deviation of the noise in a daily log return."""
        return config.daily_noise * np.array([*[1.0] * config.stocks, *self.context_noise_ratios])

    def log_growth(self, config: SyntheticConfig) -> Float64Array:
        """Return the (columns,) constant taken from each log return, so that prices grow by nothing on average.

        Where drifts last, the variance of a sum of returns does not grow as their number, and no constant is right for
        all horizons: this one is right over `FAIR_SESSIONS`.
        """
        return self.summed_variance(config, FAIR_SESSIONS) / (2.0 * FAIR_SESSIONS)


def followers(config: SyntheticConfig) -> int:
    """Return the number of stocks, the first ones, that follow the leading column."""
    return (config.stocks + 1) // 2


def _momentum_drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    log_phi = log_persistence(config.drift_half_life_days)
    shock = config.drift_std * math.sqrt(-math.expm1(2.0 * log_phi))
    normal = generator.standard_normal(own.shape)
    # The first is from the stationary distribution: no day is special.
    return _autoregression(math.exp(log_phi), config.drift_std * normal[0], shock * normal)


def _momentum_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # The covariance of two days' drifts is drift_std^2 phi^lag, and `sessions - lag` pairs lie a lag apart.
    lag = np.arange(1, sessions)
    pairs = float(np.sum((sessions - lag) * np.exp(log_persistence(config.drift_half_life_days) * lag)))
    drift = config.drift_std**2 * (sessions + 2.0 * pairs)
    return np.full(config.stocks, config.daily_noise**2 * sessions + drift)


def _lead_drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    """Return the followers' answers to the leading column's factor, `LEAD_SESSIONS` after it moved."""
    variance = (LEAD_NOISE_RATIO * config.daily_noise) ** 2
    spread = math.sqrt(LEAD_FACTOR_SHARE * (1.0 - LEAD_FACTOR_SHARE) * variance)
    # Drawn also for the days before the first, which its followers still answer to.
    normal = generator.standard_normal(len(own) + LEAD_SESSIONS - 1)
    before = math.sqrt(LEAD_FACTOR_SHARE * variance) * normal[: LEAD_SESSIONS - 1]
    factor = LEAD_FACTOR_SHARE * own[:, -1] + spread * normal[LEAD_SESSIONS - 1 :]
    drift = np.zeros(own.shape)
    drift[:, : followers(config)] = LEAD_LOADING * np.concatenate((before, factor))[: len(own), None]
    return drift


def _lead_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    noise = config.daily_noise**2
    variance = np.full(config.stocks + 1, noise)
    variance[: followers(config)] += LEAD_LOADING**2 * LEAD_FACTOR_SHARE * LEAD_NOISE_RATIO**2 * noise
    variance[-1] = LEAD_NOISE_RATIO**2 * noise
    return variance * sessions


def _regime_drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    switches = generator.random(len(own)) < REGIME_SWITCH_CHANCE
    first = 1.0 if generator.random() < 0.5 else -1.0
    direction = first * np.where(np.cumsum(switches) % 2 == 0, 1.0, -1.0)
    return np.repeat(REGIME_DRIFT * direction[:, None], own.shape[1], axis=1)


def _regime_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # The growth of all paths that end in a regime, weighted by their chances, session by session.
    stay, move_away = 1.0 - REGIME_SWITCH_CHANCE, REGIME_SWITCH_CHANCE
    move = np.array([[stay, move_away], [move_away, stay]])
    grow = np.exp([REGIME_DRIFT, -REGIME_DRIFT])
    paths = np.array([0.5, 0.5]) * grow
    for _ in range(sessions - 1):
        paths = (paths @ move) * grow
    return np.full(config.stocks, config.daily_noise**2 * sessions + 2.0 * math.log(paths.sum()))


def _autoregression(persistence: float, first: Float64Array, shocks: Float64Array) -> Float64Array:
    """Return (days, columns): row t is persistence times row t - 1 plus shocks[t]; row 0 is given."""
    values = np.empty(shocks.shape)
    values[0] = first
    for day in range(1, len(values)):
        values[day] = persistence * values[day - 1] + shocks[day]
    return values


MARKET_LAWS: Mapping[str, MarketLaw] = {
    "momentum": MarketLaw(_momentum_drift, _momentum_variance),
    "reversal": MarketLaw(REVERSAL.drift, REVERSAL.summed_variance),
    "lead-lag": MarketLaw(_lead_drift, _lead_variance, context_noise_ratios=(LEAD_NOISE_RATIO,)),
    "regime": MarketLaw(_regime_drift, _regime_variance, REGIME_COMMON_SHARE),
    "value": MarketLaw(VALUE.drift, VALUE.summed_variance, VALUE.common_share),
    "martingale": MarketLaw(
        lambda config, own, generator: np.zeros(own.shape),
        lambda config, sessions: np.full(config.stocks, config.daily_noise**2 * sessions),
    ),
}
"""Momentum: each stock's drift is an autoregressive process of order one. Reversal: most of a stock's own noise passes
within days. Lead-lag: half of the stocks do what a column that may not be bought did before. Regime: all stocks rise or
all fall. Value: as reversal, but slowly, and hidden by moves that all stocks share. Martingale: there is no drift."""
