"""Interaction: stocks repeat their own moves made while a context column rose, and undo those made while it fell.

Neither a stock's own moves nor the column's say anything alone; their product does.
"""

from __future__ import annotations

import numpy as np

from data.synthetic.kinds.regime import Regimes
from data.synthetic.law import Float64Array, MarketLaw, PlantedKind
from utils.config.trader import SyntheticConfig

INTERACTION_SESSIONS = 15
"""A move is answered so many sessions later."""
INTERACTION_LOADING = 0.35
"""The answer, as a share of the stock's own noise."""
INTERACTION_REGIMES = Regimes(drift=0.015, sessions=50.0)
"""Of the context column."""
INTERACTION_NOISE_RATIO = 2.0
"""The context column's noise, in daily noises of a stock."""


def _drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    history = INTERACTION_SESSIONS - 1
    before = config.daily_noise * generator.standard_normal((history, config.stocks))
    direction = INTERACTION_REGIMES.directions(history + len(own) + 1, generator)[:, None]
    moves = np.concatenate((before, own[:, :-1])) * direction[:-1]
    context = INTERACTION_REGIMES.drift * direction[history + 1 :]
    return np.concatenate((INTERACTION_LOADING * moves[: len(own)], context), axis=1)


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # A move and its answer are uncorrelated, since the direction is as likely either way.
    variance = np.full(config.stocks + 1, config.daily_noise**2 * sessions)
    variance[:-1] *= 1.0 + INTERACTION_LOADING**2
    variance[-1] *= INTERACTION_NOISE_RATIO**2
    variance[-1] += 2.0 * INTERACTION_REGIMES.log_mean_growth(sessions)
    return variance


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Sum the answers to come: a move is what a return has beyond the answer expected on its day."""
    noise = (INTERACTION_NOISE_RATIO * config.daily_noise) ** 2
    # What is known of the day itself, not of the next.
    direction = INTERACTION_REGIMES.balance(returns[:, -1], noise) / np.exp(INTERACTION_REGIMES.log_persistence)
    answer = np.zeros((len(returns) + INTERACTION_SESSIONS, config.stocks))
    for day in range(len(returns)):
        move = np.nan_to_num(returns[day, :-1] - answer[day])
        answer[day + INTERACTION_SESSIONS] = INTERACTION_LOADING * direction[day] * move
    return _next_answers(np.pad(answer[1:], ((0, 0), (0, 1))), len(returns), holding_days)


def _oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Sum the answers that past moves have set; those after the last day of the market are left out."""
    known = np.pad(drift, ((0, INTERACTION_SESSIONS), (0, 0)))
    known[:, -1] = 0.0
    return _next_answers(known, len(drift), holding_days)


def _next_answers(answers: Float64Array, days: int, holding_days: int) -> Float64Array:
    """Sum, for each of so many days, the answers of the sessions after it; row t of `answers` is that of day t + 1."""
    total = np.zeros((days, answers.shape[1]))
    for ahead in range(min(holding_days, INTERACTION_SESSIONS)):
        total += answers[ahead : ahead + days]
    return total


INTERACTION = PlantedKind(
    MarketLaw(_drift, _variance, context_noise_ratios=lambda config: (INTERACTION_NOISE_RATIO,)), _rule, _oracle
)
