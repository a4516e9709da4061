"""Bursts and edges: a stock that moved extremely by itself goes on, and the drift fades (underreaction to news).

Source of the effect: Bernard and Thomas (1989), "Post-earnings-announcement drift".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr

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
from data.synthetic.state_space import StateSpace
from utils.config.trader import SyntheticConfig

_HISTORY_HALF_LIVES = 12
"""So many half-lives later nothing is left of a drift."""


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
        return PlantedKind(MarketLaw(self.drift, self.summed_variance), self.rule, oracle)

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
            up, down = (float(ndtr(sign * tilt - self.limit)) for sign in (1.0, -1.0))
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
            up, down = (ndtr((sign * share * surprise - self.limit * std) / spread) for sign in (1.0, -1.0))
            shock = space.gain * surprise + self.first_drift * (up - down)
            drift[day] = space.persistence * drift[day - 1] + shock
        return drift * fading_sum(self.log_persistence, holding_days)


BURSTS = News(chance=1 / 600, worth=0.11, half_life_days=5.0, background_std=0.0015)
"""With 40 stocks good news comes every 15 sessions."""
EDGES = News(chance=1 / 300, worth=0.12, half_life_days=5.0, background_std=0.002)
"""With 40 stocks good news comes every 7 or 8 sessions, among weak drifts of most stocks."""
