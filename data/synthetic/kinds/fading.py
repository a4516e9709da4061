"""Drifts that fade: momentum, reversal, value, bursts and edges; and the martingale, which has none.

Momentum: a stock's drift is an autoregressive process of order one. Reversal and value: part of a stock's own moves
passes, within days or slowly. Bursts and edges: the drift continues a stock's own extreme moves and fades, as prices
underreact to news (Bernard and Thomas 1989, "Post-earnings-announcement drift").
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import scipy  # its parts are loaded when they are used: the help reads this file, too

from data.synthetic.law import (
    Float64Array,
    PlantedKind,
    autoregression,
    autoregressive_variance,
    fading_oracle,
    fading_sum,
    log_persistence,
    mean_return,
    register,
)
from utils.config.trader import SyntheticConfig

_HISTORY_HALF_LIVES = 12
"""Half-lives after which nothing is left of a drift."""


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

        A day without a return (NaN) only predicts. Source: Kalman (1960), "A new approach to linear filtering and
        prediction problems".
        """
        phi, gain = self.persistence, self.gain
        state = np.zeros(returns.shape)
        for day in range(1, len(returns)):
            surprise = returns[day] - self.loading * state[day - 1]
            state[day] = phi * state[day - 1] + gain * np.where(np.isfinite(surprise), surprise, 0.0)
        return state


def momentum_space(config: SyntheticConfig) -> StateSpace:
    """Return the state space: the state is the drift."""
    log_phi = log_persistence(config.drift_half_life_days)
    shock = -math.expm1(2.0 * log_phi) * config.drift_std**2
    return StateSpace(log_phi, 1.0, shock, config.daily_noise**2)


def _drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    log_phi = log_persistence(config.drift_half_life_days)
    shock = config.drift_std * math.sqrt(-math.expm1(2.0 * log_phi))
    normal = generator.standard_normal(own.shape)
    # The first is from the stationary distribution: no day is special.
    return autoregression(math.exp(log_phi), config.drift_std * normal[0], shock * normal)


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    drift = config.drift_std**2 * autoregressive_variance(log_persistence(config.drift_half_life_days), sessions)
    return np.full(config.stocks, config.daily_noise**2 * sessions + drift)


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    space = momentum_space(config)
    return space.filter(returns) * fading_sum(space.log_persistence, holding_days)


def _zeros(config: SyntheticConfig, values: Float64Array, holding_days: int) -> Float64Array:
    return np.zeros(values.shape)


MOMENTUM = register(
    "momentum",
    "each stock's drift lasts for a time",
    PlantedKind(_drift, _variance, _rule, fading_oracle(lambda config: log_persistence(config.drift_half_life_days))),
)
register(
    "martingale",
    "nothing",
    PlantedKind(
        lambda config, own, generator: np.zeros(own.shape),
        lambda config, sessions: np.full(config.stocks, config.daily_noise**2 * sessions),
        _zeros,
        _zeros,
    ),
)


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

    def kind(self) -> PlantedKind:
        """Return the kind of market that consists of this part."""
        oracle = fading_oracle(lambda config: self.log_persistence)
        return PlantedKind(self.drift, self.summed_variance, self.rule, oracle, self.common_share)

    def space(self, config: SyntheticConfig) -> StateSpace:
        """Return the state space: the state is the deviation, whose decay is the drift."""
        own = config.daily_noise**2 * (1.0 - self.common_share)
        moved = self.share * own
        return StateSpace(self.log_persistence, math.expm1(self.log_persistence), moved, own, moved)

    def drift(self, config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the (days, columns) decay of the deviations that own noise moves; see `PlantedKind`."""
        variance = config.daily_noise**2 * (1.0 - self.common_share)
        normal = generator.standard_normal((len(own) + 1, own.shape[1]))
        # Given a day's noise, the part that moves the deviation is normal around its share of it.
        shock = self.share * own + math.sqrt(self.share * (1.0 - self.share) * variance) * normal[1:]
        spread = math.sqrt(self.share * variance / -math.expm1(2.0 * self.log_persistence))
        persistence = math.exp(self.log_persistence)
        deviation = autoregression(persistence, persistence * spread * normal[0] + shock[0], shock)
        return math.expm1(self.log_persistence) * deviation

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return the (stocks,) variance of the sum of consecutive log returns: lower than that of as many noises."""
        noise = config.daily_noise**2
        own = (1.0 - self.common_share) * noise
        deviation = self.share * own / -math.expm1(2.0 * self.log_persistence)
        passing = -2.0 * deviation * math.expm1(sessions * self.log_persistence)
        own_sum = (1.0 - self.share) * own * sessions + passing
        return np.full(config.stocks, self.common_share * noise * sessions + own_sum)

    def rule(self, config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        """Return what the estimated deviations will have passed."""
        # A move that all stocks share says nothing about a stock's own deviation.
        own = returns - mean_return(returns)[:, None] if self.common_share else returns
        return self.rule_of_own(config, own, holding_days)

    def rule_of_own(self, config: SyntheticConfig, own: Float64Array, holding_days: int) -> Float64Array:
        """Return the same from (days, columns) returns without what is common."""
        return self.space(config).filter(own) * math.expm1(holding_days * self.log_persistence)


REVERSAL = Transient(share=0.7, half_life_days=4.0)
register("reversal", "part of a stock's moves is undone within days", REVERSAL.kind())
VALUE = Transient(share=0.9, half_life_days=20.0, common_share=0.3)
register("value", "part of a stock's moves is undone within months", VALUE.kind())


@dataclass(frozen=True)
class News:
    """A fading drift that extreme own noise moves much, and a hidden shock every day a little."""

    chance: float
    """Of a day on which a stock's own noise is extreme, for each sign."""
    worth: float
    """Log return that extreme noise leaves to come, with its sign."""
    half_life_days: float
    background_std: float
    """Standard deviation of the part of the drift that hidden shocks move."""

    @property
    def log_persistence(self) -> float:
        """Logarithm of the share of a drift that is left a day later."""
        return log_persistence(self.half_life_days)

    @property
    def limit(self) -> float:
        """Daily noises beyond which noise is extreme."""
        return -NormalDist().inv_cdf(self.chance)

    @property
    def first_drift(self) -> float:
        """Drift on the day after extreme noise."""
        return -self.worth * math.expm1(self.log_persistence)

    def kind(self) -> PlantedKind:
        """Return the kind of market that has this drift."""
        oracle = fading_oracle(lambda config: self.log_persistence)
        return PlantedKind(self.drift, self.summed_variance, self.rule, oracle)

    def background(self, config: SyntheticConfig) -> StateSpace:
        """Return the state space of the part that hidden shocks move."""
        shock = -math.expm1(2.0 * self.log_persistence) * self.background_std**2
        return StateSpace(self.log_persistence, 1.0, shock, config.daily_noise**2)

    def drift(self, config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the (days, columns) drift that extreme (days, columns) noise and hidden shocks move."""
        history = math.ceil(_HISTORY_HALF_LIVES * self.half_life_days)
        before = config.daily_noise * generator.standard_normal((history, own.shape[1]))
        hidden = generator.standard_normal((history + len(own), own.shape[1]))
        noise = np.concatenate((before, own))
        is_extreme = np.abs(noise) > self.limit * config.daily_noise
        shocks = self.first_drift * np.sign(noise) * is_extreme
        shocks += math.sqrt(self.background(config).shock_variance) * hidden
        return autoregression(math.exp(self.log_persistence), self.background_std * hidden[0], shocks)[history:]

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return twice the logarithm of the mean growth: the days' noises are independent, so their growths multiply.

        Extreme noise on one of these days makes growth likelier to have been extreme (its chances under the growth's
        own measure are those of a normal of mean `daily_noise`); the drift of noise before them is only inherited.
        """
        std, log_phi = config.daily_noise, self.log_persistence
        total = std**2 * sessions + self.background_std**2 * autoregressive_variance(log_phi, sessions)
        ages = np.arange(math.ceil(_HISTORY_HALF_LIVES * self.half_life_days))
        inherited = self.first_drift * fading_sum(log_phi, sessions) * np.exp(log_phi * ages)
        within = self.first_drift * np.array([fading_sum(log_phi, left) for left in range(sessions)])
        for gain, tilt in ((inherited, 0.0), (within, std)):
            up, down = (float(scipy.special.ndtr(sign * tilt - self.limit)) for sign in (1.0, -1.0))
            total += 2.0 * float(np.log1p(up * np.expm1(gain) + down * np.expm1(-gain)).sum())
        return np.full(config.stocks, total)

    def rule(self, config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        """Follow the drift day by day: the Kalman gain of a surprise, and the drift of news in it by its chance."""
        space, std = self.background(config), config.daily_noise
        # Of a surprise only this share is noise, the rest the error in the drift.
        error = space.prediction_variance
        share = std**2 / (std**2 + error)
        spread = max(math.sqrt(share * error), 1e-9)
        drift = np.zeros(returns.shape)
        for day in range(1, len(returns)):
            surprise = np.nan_to_num(returns[day] - drift[day - 1])
            up, down = (
                scipy.special.ndtr((sign * share * surprise - self.limit * std) / spread) for sign in (1.0, -1.0)
            )
            shock = space.gain * surprise + self.first_drift * (up - down)
            drift[day] = space.persistence * drift[day - 1] + shock
        return drift * fading_sum(self.log_persistence, holding_days)


BURSTS = News(chance=1 / 600, worth=0.11, half_life_days=5.0, background_std=0.0015)
"""With 40 stocks good news comes every 15 sessions."""
register(
    "bursts",
    "extreme news leaves a strong drift that fades; two positions fill the account, so that cash must be kept for it",
    BURSTS.kind(),
    {"env.stake_percent": 5.0},
)
EDGES = News(chance=1 / 300, worth=0.12, half_life_days=5.0, background_std=0.002)
"""With 40 stocks good news comes every 7 or 8 sessions, among weak drifts of most stocks."""
register(
    "edges",
    "strong and weak drifts at once, which compete for the cash",
    EDGES.kind(),
    {"env.max_new_positions_per_day": 5},
)
