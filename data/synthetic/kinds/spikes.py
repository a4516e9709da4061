"""Spikes: some falls are followed by a jump that soon passes, for the most part."""

import math
from statistics import NormalDist

import numpy as np
import scipy  # submodules are loaded when they are used: the help reads this file, too

from data.synthetic.law import PlantedKind, autoregression, log_persistence, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

SPIKE_FALL_CHANCE = 0.01
"""Chance a day that a stock's specific noise is a fall that may be followed by a jump."""
SPIKE_CHANCE = 0.5
"""That a jump follows."""
SPIKE_SESSIONS = 3
"""Sessions between a fall and its jump."""
SPIKE_SIZES = (math.log(1.08), math.log(1.15))
"""Log return of the jump, uniform between these."""
SPIKE_KEPT = 0.35
"""Share of it that lasts."""
SPIKE_LOG_PHI = log_persistence(2.0)
"""Logarithm of the share of the rest that is left a day later."""
_FALL = NormalDist().inv_cdf(SPIKE_FALL_CHANCE)
_HISTORY = 40
"""Sessions after which nothing is left of a spike."""


def _drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    before = config.daily_noise * generator.standard_normal((_HISTORY, specific.shape[1]))
    noise = np.concatenate((before, specific))
    follows, size = generator.random((2, *noise.shape))
    is_jump = (noise < _FALL * config.daily_noise) & (follows < SPIKE_CHANCE)
    jump = np.zeros(noise.shape)
    low, high = SPIKE_SIZES
    jump[SPIKE_SESSIONS - 1 :] = (is_jump * (low + (high - low) * size))[: len(noise) - SPIKE_SESSIONS + 1]
    # Part of the price at each close that will pass.
    shocks = (1.0 - SPIKE_KEPT) * np.concatenate((np.zeros_like(jump[:1]), jump[:-1]))
    excess = autoregression(math.exp(SPIKE_LOG_PHI), shocks[0], shocks)
    return (jump + math.expm1(SPIKE_LOG_PHI) * excess)[_HISTORY:]


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    """Return twice the logarithm of the mean growth: the days' noises are independent, so their growths multiply."""
    std, total = config.daily_noise, config.daily_noise**2 * sessions
    for fall in range(1 - _HISTORY, sessions + 1):  # The sessions are 1, 2, ...
        # Under the measure of the growth, a day's noise has the mean of its variance.
        chance = SPIKE_CHANCE * float(scipy.special.ndtr(_FALL - std * (fall >= 1)))
        share, (low, high) = _left(sessions, fall + SPIKE_SESSIONS), SPIKE_SIZES
        if share != 0.0:
            growth = (math.exp(share * high) - math.exp(share * low)) / (share * (high - low))
            total += 2.0 * math.log1p(chance * (growth - 1.0))
    return np.full(config.stocks, total)


def _left(sessions: int, day: int) -> float:
    """Return the share of a jump on a day that is gained over the first sessions after it."""
    if day > sessions:
        return 0.0
    if day < 1:
        return (1.0 - SPIKE_KEPT) * math.exp(-day * SPIKE_LOG_PHI) * math.expm1(sessions * SPIKE_LOG_PHI)
    return 1.0 + (1.0 - SPIKE_KEPT) * math.expm1((sessions - day) * SPIKE_LOG_PHI)


def _scores(jump: Float64Array, excess: Float64Array, holding_days: int) -> Float64Array:
    """Sum the jumps that are still to come and what will pass, over the days after each of (days, columns) excess.

    Row t of `jump` is the jump of day t + 1; there are `SPIKE_SESSIONS - 1` rows more than days.
    """
    scores = math.expm1(holding_days * SPIKE_LOG_PHI) * excess
    for ahead in range(min(SPIKE_SESSIONS, holding_days)):
        scores += _left(holding_days, ahead + 1) * jump[ahead : ahead + len(excess)]
    return scores


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Expect jumps after falls; tell by Bayes' rule, on the day that one is due, whether and how far it came."""
    std, (low, high) = config.daily_noise, SPIKE_SIZES
    due = np.zeros((len(returns) + SPIKE_SESSIONS, returns.shape[1]))  # chance of a jump on the day after
    excess = np.zeros(returns.shape)
    for day in range(1, len(returns)):
        move = returns[day] - math.expm1(SPIKE_LOG_PHI) * excess[day - 1]
        with_jump = (
            due[day - 1]
            * (scipy.special.ndtr((move - low) / std) - scipy.special.ndtr((move - high) / std))
            / (high - low)
        )
        without = (1.0 - due[day - 1]) * np.exp(-0.5 * (move / std) ** 2) / (std * math.sqrt(2.0 * math.pi))
        came = np.divide(with_jump, with_jump + without, out=np.zeros(len(move)), where=with_jump > 0)
        excess[day] = math.exp(SPIKE_LOG_PHI) * excess[day - 1]
        excess[day] += (1.0 - SPIKE_KEPT) * came * np.clip(move, low, high)
        due[day + SPIKE_SESSIONS - 1] = SPIKE_CHANCE * (move < _FALL * std)
    return _scores(due * (low + high) / 2.0, excess, holding_days)


def _oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Read the jumps that past falls have set; those after the last day of the market are left out."""
    jump, excess = np.zeros((len(drift) + SPIKE_SESSIONS, drift.shape[1])), np.zeros(drift.shape)
    passing = math.expm1(SPIKE_LOG_PHI)
    # What the first day inherits is told by its drift, unless it has a jump as well.
    excess[0] = np.minimum(drift[0], 0.0) / passing
    for day in range(len(drift)):
        jump[day] = drift[day] - passing * excess[day]
        if day + 1 < len(drift):
            excess[day + 1] = math.exp(SPIKE_LOG_PHI) * excess[day] + (1.0 - SPIKE_KEPT) * jump[day]
    return _scores(jump, excess, holding_days)


register(
    "spikes",
    "half of the sharp falls are followed by a jump of 8 to 15%, most of which is undone",
    PlantedKind(_drift, _variance, _rule, _oracle),
)
