"""Regime: all stocks rise or all fall."""

import math
from dataclasses import dataclass

import numpy as np

from data.synthetic.law import PlantedKind, fading_oracle, fading_sum, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig


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
    return np.repeat(REGIMES.drift * directions[:, None], specific.shape[1], axis=1)


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
    return np.repeat(score[:, None], returns.shape[1], axis=1)


register(
    "regime",
    "all stocks rise or all fall",
    PlantedKind(_drift, _variance, _rule, fading_oracle(REGIMES.log_persistence), REGIME_COMMON_SHARE),
)
