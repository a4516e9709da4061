"""Regime: all stocks rise or all fall. Interaction: stocks repeat or undo their own moves by a context column's regime.

In an interaction neither a stock's own moves nor the column's say anything alone; their product does.
"""

import math
from dataclasses import dataclass

import numpy as np

from data.synthetic.law import PlantedKind, fading_oracle, fading_sum, foreseen_oracle, register, sum_ahead
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

INTERACTION_SESSIONS = 15
"""Sessions between a move and its answer."""
INTERACTION_LOADING = 0.35
"""The answer, as a share of the stock's specific noise."""
INTERACTION_REGIMES = Regimes(drift=0.015, sessions=50.0)
"""Of the context column."""
INTERACTION_NOISE_RATIO = 2.0
"""The context column's noise, in daily noises of a stock."""


def _interaction_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    history = INTERACTION_SESSIONS - 1
    before = config.daily_noise * generator.standard_normal((history, config.stocks))
    direction = INTERACTION_REGIMES.directions(history + len(specific) + 1, generator)[:, None]
    moves = np.concatenate((before, specific[:, :-1])) * direction[:-1]
    context = INTERACTION_REGIMES.drift * direction[history + 1 :]
    return np.concatenate((INTERACTION_LOADING * moves[: len(specific)], context), axis=1)


def _interaction_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # A move and its answer are uncorrelated, since the direction is as likely either way.
    variance = np.full(config.stocks + 1, config.daily_noise**2 * sessions)
    variance[:-1] *= 1.0 + INTERACTION_LOADING**2
    variance[-1] *= INTERACTION_NOISE_RATIO**2
    variance[-1] += 2.0 * INTERACTION_REGIMES.log_mean_growth(sessions)
    return variance


def _interaction_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Sum the answers to come: a move is what a return has beyond the answer expected on its day."""
    noise = (INTERACTION_NOISE_RATIO * config.daily_noise) ** 2
    # What is known of the day itself, not of the next.
    direction = INTERACTION_REGIMES.balance(returns[:, -1], noise) / np.exp(INTERACTION_REGIMES.log_persistence)
    answer = np.zeros((len(returns) + INTERACTION_SESSIONS, config.stocks))
    for day in range(len(returns)):
        move = returns[day, :-1] - answer[day]
        answer[day + INTERACTION_SESSIONS] = INTERACTION_LOADING * direction[day] * move
    answers = np.pad(answer[1:], ((0, 0), (0, 1)))
    return sum_ahead(answers, min(holding_days, INTERACTION_SESSIONS))[: len(returns)]


register(
    "interaction",
    "stocks repeat moves made while a context column rose, and undo the others",
    PlantedKind(
        _interaction_drift,
        _interaction_variance,
        _interaction_rule,
        foreseen_oracle(INTERACTION_SESSIONS),
        context_noise_ratios=lambda config: (INTERACTION_NOISE_RATIO,),
    ),
)
