"""Drifts that fade: momentum, volume, reversal, value and bursts; and the martingale, which has none.

Momentum: a stock's drift is an autoregressive process of order one. Volume: it is that of the stock's volume, so that
past closes hardly tell it. Reversal and value: part of a stock's own moves
passes, within days or slowly. Bursts: the drift continues a stock's own extreme moves and fades, as prices
underreact to news (Bernard and Thomas 1989, "Post-earnings-announcement drift").
"""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
import scipy  # submodules are loaded when they are used: the help reads this file, too

from data.synthetic.law import (
    VOLUME_LOG_PHI,
    PlantedKind,
    autoregression,
    autoregressive_variance,
    fading_oracle,
    fading_sum,
    log_persistence,
    register,
)
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig


@dataclass(frozen=True)
class StateSpace:
    """A latent state x and the returns z that it foretells, all of one stock.

    x[t] = phi x[t-1] + shock, z[t] = loading x[t-1] + noise; shock and noise of a day may be correlated.
    """

    log_persistence: float
    loading: float
    shock_variance: float
    noise_variance: float
    covariance: float = 0.0

    @property
    def persistence(self) -> float:
        """The share phi of the state that is left a day later."""
        return math.exp(self.log_persistence)

    @property
    def prediction_variance(self) -> float:
        """Steady-state variance P of the error in the state, given all returns so far.

        With h the loading, q, r and c the variances and covariance of shock and noise, it solves the Riccati equation
        P = phi^2 P + q - (phi h P + c)^2 / (h^2 P + r), which is
        h^2 P^2 + (r (1 - phi^2) - q h^2 + 2 phi h c) P - (q r - c^2) = 0.
        """
        forgotten = -math.expm1(2.0 * self.log_persistence)  # 1 - phi^2, exact where phi is nearly 1
        square = self.loading**2
        slope = self.noise_variance * forgotten - self.shock_variance * square
        slope += 2.0 * self.persistence * self.loading * self.covariance
        constant = max(0.0, self.shock_variance * self.noise_variance - self.covariance**2)
        root = math.hypot(slope, 2.0 * math.sqrt(square * constant))
        # Of the two forms of the positive root, the one that subtracts no near-equal numbers.
        if slope < 0:
            return (root - slope) / (2.0 * square)
        return 2.0 * constant / (root + slope) if constant else 0.0

    @property
    def gain(self) -> float:
        """Change of the estimate of a day's state by a surprise of 1 on that day."""
        variance = self.prediction_variance
        explained = self.persistence * self.loading * variance + self.covariance
        return explained / (self.loading**2 * variance + self.noise_variance)

    def filter(self, returns: Float64Array) -> Float64Array:
        """Estimate the state at each close from (days, stocks) returns up to it, by the steady-state Kalman filter.

        Source: Kalman (1960), "A new approach to linear filtering and prediction problems".
        """
        phi, gain, state = self.persistence, self.gain, np.zeros(returns.shape)
        for day in range(1, len(returns)):
            state[day] = phi * state[day - 1] + gain * (returns[day] - self.loading * state[day - 1])
        return state


def ar_space(log_phi: float, std: float, config: SyntheticConfig) -> StateSpace:
    """Return the state space of a drift of this standard deviation that is autoregressive."""
    return StateSpace(log_phi, 1.0, -math.expm1(2.0 * log_phi) * std**2, config.daily_noise**2)


def momentum_space(config: SyntheticConfig) -> StateSpace:
    """Return the state space: the state is the drift."""
    return ar_space(log_persistence(config.drift_half_life_days), config.drift_std, config)


def _momentum_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    log_phi = log_persistence(config.drift_half_life_days)
    shock = config.drift_std * math.sqrt(-math.expm1(2.0 * log_phi))
    normal = generator.standard_normal(specific.shape)
    # The first is from the stationary distribution: no day is special.
    return autoregression(math.exp(log_phi), config.drift_std * normal[0], shock * normal)


def _momentum_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    drift = config.drift_std**2 * autoregressive_variance(log_persistence(config.drift_half_life_days), sessions)
    return np.full(config.stocks, config.daily_noise**2 * sessions + drift)


def _momentum_sum(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    return drift * fading_sum(log_persistence(config.drift_half_life_days), holding_days)


MOMENTUM = register(
    "momentum",
    "each stock's drift lasts for a time",
    PlantedKind(
        _momentum_drift,
        _momentum_variance,
        lambda config, returns, days: _momentum_sum(config, momentum_space(config).filter(returns), days),
        _momentum_sum,
    ),
)
MARTINGALE = register(
    "martingale",
    "nothing",
    PlantedKind(
        lambda config, specific, generator: np.zeros(specific.shape),
        lambda config, sessions: np.full(config.stocks, config.daily_noise**2 * sessions),
        rule=lambda config, returns, holding_days: np.zeros(returns.shape),
        oracle=lambda config, drift, holding_days: np.zeros(drift.shape),
    ),
)
VOLUME_DRIFT = 0.0035
"""Standard deviation of the drift that volume tells."""
register(
    "volume",
    "stocks rise while their volume is above its level, and fall while it is below",
    replace(
        MARTINGALE,
        summed_variance=lambda config, sessions: (
            MARTINGALE.summed_variance(config, sessions)
            + VOLUME_DRIFT**2 * autoregressive_variance(VOLUME_LOG_PHI, sessions)
        ),
        oracle=fading_oracle(VOLUME_LOG_PHI),
        volume_drift=VOLUME_DRIFT,
    ),
)


def transient_space(config: SyntheticConfig, share: float, half_life_days: float, common_share: float) -> StateSpace:
    """Return the state space: the state is the deviation from the anchor, whose decay is the drift."""
    log_phi, specific = log_persistence(half_life_days), config.daily_noise**2 * (1.0 - common_share)
    return StateSpace(log_phi, math.expm1(log_phi), share * specific, specific, share * specific)


def transient(share: float, half_life_days: float, common_share: float = 0.0) -> PlantedKind:
    """Return a law by which part of prices passes: specific noise moves a deviation from the anchor, which decays.

    Args:
        share: of the variance of a stock's specific noise that moves the deviation; the rest moves the anchor.
        common_share: of the noise variance that is the same for all columns.
    """
    log_phi = log_persistence(half_life_days)
    decay, forgotten = math.expm1(log_phi), -math.expm1(2.0 * log_phi)

    def drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        variance, persistence = config.daily_noise**2 * (1.0 - common_share), math.exp(log_phi)
        normal = generator.standard_normal((len(specific) + 1, specific.shape[1]))
        # Given a day's noise, the part that moves the deviation is normal around its share of it.
        shock = share * specific + math.sqrt(share * (1.0 - share) * variance) * normal[1:]
        spread = math.sqrt(share * variance / forgotten)
        return decay * autoregression(persistence, persistence * spread * normal[0] + shock[0], shock)

    def variance(config: SyntheticConfig, sessions: int) -> Float64Array:
        noise = config.daily_noise**2
        specific = (1.0 - common_share) * noise
        passing = -2.0 * (share * specific / forgotten) * math.expm1(sessions * log_phi)
        return np.full(config.stocks, common_share * noise * sessions + ((1.0 - share) * specific * sessions + passing))

    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        # A move that all stocks share says nothing about a stock's own deviation.
        specific = returns - returns.mean(axis=1, keepdims=True) if common_share else returns
        space = transient_space(config, share, half_life_days, common_share)
        return space.filter(specific) * math.expm1(holding_days * log_phi)

    return PlantedKind(drift, variance, rule, fading_oracle(log_phi), common_share)


register("reversal", "part of a stock's moves is undone within days", transient(share=0.7, half_life_days=4.0))
register(
    "value", "part of a stock's moves is undone within months", transient(0.9, half_life_days=20.0, common_share=0.3)
)


BURST_CHANCE = 1 / 600
"""Of a day on which a stock's specific noise is extreme, for each sign: with 40 stocks good news every 15 sessions."""
BURST_WORTH = 0.11
"""Log return that extreme noise leaves to come, with its sign."""
BURST_LOG_PHI = log_persistence(5.0)
_HISTORY = 60
"""Sessions after which nothing is left of a burst's drift."""
_LIMIT = -NormalDist().inv_cdf(BURST_CHANCE)
_FIRST_DRIFT = -BURST_WORTH * math.expm1(BURST_LOG_PHI)
"""On the day after extreme noise."""
_BACKGROUND_STD = 0.0015
"""Of the part of the drift that a hidden shock moves a little every day."""


def _bursts_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    before = config.daily_noise * generator.standard_normal((_HISTORY, specific.shape[1]))
    hidden = generator.standard_normal((_HISTORY + len(specific), specific.shape[1]))
    noise = np.concatenate((before, specific))
    is_extreme = np.abs(noise) > _LIMIT * config.daily_noise
    shocks = _FIRST_DRIFT * np.sign(noise) * is_extreme
    shocks += math.sqrt(ar_space(BURST_LOG_PHI, _BACKGROUND_STD, config).shock_variance) * hidden
    return autoregression(math.exp(BURST_LOG_PHI), _BACKGROUND_STD * hidden[0], shocks)[_HISTORY:]


def _bursts_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # Growths by the noise of independent days multiply. Extreme noise on one of these days makes growth likelier to
    # have been extreme (its chances under the growth's own measure are those of a normal of mean `daily_noise`);
    # the drift of noise before them is only inherited.
    std = config.daily_noise
    total = std**2 * sessions + _BACKGROUND_STD**2 * autoregressive_variance(BURST_LOG_PHI, sessions)
    inherited = _FIRST_DRIFT * fading_sum(BURST_LOG_PHI, sessions) * np.exp(BURST_LOG_PHI * np.arange(_HISTORY))
    within = _FIRST_DRIFT * np.array([fading_sum(BURST_LOG_PHI, left) for left in range(sessions)])
    for gain, tilt in ((inherited, 0.0), (within, std)):
        up, down = (float(scipy.special.ndtr(sign * tilt - _LIMIT)) for sign in (1.0, -1.0))
        total += 2.0 * float(np.log1p(up * np.expm1(gain) + down * np.expm1(-gain)).sum())
    return np.full(config.stocks, total)


def _bursts_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    # The Kalman gain of a surprise, and the drift of news in it by its chance.
    space, std, drift = ar_space(BURST_LOG_PHI, _BACKGROUND_STD, config), config.daily_noise, np.zeros(returns.shape)
    # Of a surprise only this share is noise, the rest the error in the drift.
    error = space.prediction_variance
    share = std**2 / (std**2 + error)
    spread = max(math.sqrt(share * error), 1e-9)
    for day in range(1, len(returns)):
        surprise = returns[day] - drift[day - 1]
        up, down = (scipy.special.ndtr((sign * share * surprise - _LIMIT * std) / spread) for sign in (1.0, -1.0))
        drift[day] = space.persistence * drift[day - 1] + (space.gain * surprise + _FIRST_DRIFT * (up - down))
    return drift * fading_sum(BURST_LOG_PHI, holding_days)


BURSTS = register(
    "bursts",
    "extreme news leaves a strong drift that fades",
    PlantedKind(_bursts_drift, _bursts_variance, _bursts_rule, fading_oracle(BURST_LOG_PHI)),
)


@dataclass(frozen=True)
class Regimes:
    """A direction, up or down, that lasts for a time and gives a daily drift its sign."""

    drift: float
    sessions: float
    """Mean length of a regime."""

    @property
    def switch_chance(self) -> float:
        """Chance of a switch on a day."""
        return 1.0 / self.sessions

    @property
    def log_persistence(self) -> float:
        """Logarithm of the share of what is known of the direction that is left a day later."""
        return math.log1p(-2.0 * self.switch_chance)

    def directions(self, days: int, generator: np.random.Generator) -> Float64Array:
        """Draw the (days,) directions, 1 or -1."""
        switches = generator.random(days) < self.switch_chance
        first = 1.0 if generator.random() < 0.5 else -1.0
        return first * np.where(np.cumsum(switches) % 2 == 0, 1.0, -1.0)

    def log_mean_growth(self, sessions: int) -> float:
        """Return the logarithm of the mean growth by the drift over consecutive sessions."""
        # The growth of all paths that end in a regime, weighted by their chances, session by session.
        stay, move_away = 1.0 - self.switch_chance, self.switch_chance
        move = np.array([[stay, move_away], [move_away, stay]])
        grow = np.exp([self.drift, -self.drift])
        paths = np.array([0.5, 0.5]) * grow
        for _ in range(sessions - 1):
            paths = (paths @ move) * grow
        return math.log(paths.sum())

    def balance(self, returns: Float64Array, variance: float) -> Float64Array:
        """Return the (days,) chance that the next day's drift is up, less that it is down, from (days,) returns.

        Args:
            variance: of the noise around the drift.

        Source: Hamilton (1989), "A new approach to the economic analysis of nonstationary time series and the business
        cycle".
        """
        kept, balance = math.exp(self.log_persistence), np.zeros(len(returns))
        evidence = np.tanh(self.drift * returns / variance)
        for day in range(1, len(returns)):
            # Bayes' rule for a difference of two chances: the sum formula of tanh.
            updated = (balance[day - 1] + evidence[day]) / (1.0 + balance[day - 1] * evidence[day])
            balance[day] = kept * updated
        return balance


REGIMES = Regimes(drift=0.005, sessions=30.0)
REGIME_COMMON_SHARE = 0.05
"""Share of the noise variance that is the same for all columns."""


def _drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    directions = REGIMES.directions(len(specific), generator)
    return np.full(specific.shape, REGIMES.drift * directions[:, None])


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    return np.full(config.stocks, config.daily_noise**2 * sessions + 2.0 * REGIMES.log_mean_growth(sessions))


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score by the chance of the rising regime, from the mean return of all stocks.

    It is a sufficient statistic, since all stocks have the same drift and exchangeable noise.
    """
    own_share = (1.0 - REGIME_COMMON_SHARE) / returns.shape[1]
    variance = config.daily_noise**2 * (REGIME_COMMON_SHARE + own_share)
    balance = REGIMES.balance(returns.mean(axis=1), variance)
    score = REGIMES.drift * balance * fading_sum(REGIMES.log_persistence, holding_days)
    return np.full(returns.shape, score[:, None])


register(
    "regime",
    "all stocks rise or all fall",
    PlantedKind(_drift, _variance, _rule, fading_oracle(REGIMES.log_persistence), REGIME_COMMON_SHARE),
)
