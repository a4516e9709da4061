"""Kinds with a column that may not be bought: lead-lag, leak, and mixed, which has several laws at once.

Lead-lag: half of the stocks answer the column's moves some sessions later.

Leak: the column's move tells what is to come, as a column that was built from future prices does. One factor,
independent from day to day, moves all stocks: each answers by a loading of its own, half of them upwards and half
downwards. Nothing of the past tells the factor's next value. The column's log return today is a fixed share of the
factor's sum over 20 coming sessions, plus noise; since features are relative to the previous close, this move is what a
close tells. Times a stock's loading it is the sign and the rough size of that stock's next 20 sessions.

Mixed: a third of the stocks has momentum, a third bursts, a third the drifts of `ring`. Every second stock also follows
the column. In turbulent times all moves are about twice as large as in calm ones, drifts included: in units of the
day's volatility, they have the laws of the kinds.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from data.synthetic.kinds.drifts import BURSTS, MOMENTUM, Regimes
from data.synthetic.kinds.nonlinear import RING
from data.synthetic.law import PlantedKind, register, sum_ahead
from utils.arrays import Float64Array, Int64Array
from utils.config.trader import SyntheticConfig

LEAD_LAG = 15
"""Sessions between a leader's move and the answer."""
LEAD_NOISE_RATIO = 4.0
"""A leader's noise, in daily noises of a stock: it can be told from the other columns by this."""
LEAD_FACTOR_SHARE = 0.8
"""Share of a leader's variance that its followers answer to; the rest is its own."""


def leader(loading: float, followers: Callable[[int], Int64Array]) -> PlantedKind:
    """Return the law of a context column that leads some stocks.

    Args:
        loading: their answer, as a share of that part of its return.
        followers: from the number of stocks, their columns.
    """

    def drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
        variance = (LEAD_NOISE_RATIO * config.daily_noise) ** 2
        spread = math.sqrt(LEAD_FACTOR_SHARE * (1.0 - LEAD_FACTOR_SHARE) * variance)
        # Drawn also for the days before the first, which followers still answer to.
        normal = generator.standard_normal(LEAD_LAG - 1 + len(specific))
        before = math.sqrt(LEAD_FACTOR_SHARE * variance) * normal[: LEAD_LAG - 1]
        factor = np.concatenate((before, LEAD_FACTOR_SHARE * specific[:, -1] + spread * normal[LEAD_LAG - 1 :]))
        answers = np.zeros(specific.shape)
        answers[:, followers(config.stocks)] = loading * factor[: len(specific), None]
        return answers

    def variance(config: SyntheticConfig, sessions: int) -> Float64Array:
        ratios, answers = np.array([*[1.0] * config.stocks, LEAD_NOISE_RATIO]), np.zeros(config.stocks + 1)
        answers[followers(config.stocks)] = loading**2 * LEAD_FACTOR_SHARE
        return config.daily_noise**2 * (ratios**2 + answers * LEAD_NOISE_RATIO**2) * sessions

    def rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        scores = np.zeros(returns.shape)
        answer = loading * LEAD_FACTOR_SHARE * returns[:, -1]
        due = np.concatenate((np.zeros(LEAD_LAG - 1), answer))  # row t: what is answered on day t + 1
        ahead = sum_ahead(due, min(holding_days, LEAD_LAG))[: len(returns)]
        scores[:, followers(config.stocks)] = ahead[:, None]
        return scores

    def oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
        # Those after the last day of the market are left out.
        return sum_ahead(drift, min(holding_days, LEAD_LAG))

    return PlantedKind(drift, variance, rule, oracle, context_noise_ratios=(LEAD_NOISE_RATIO,))


register(
    "lead-lag",
    "a column that may not be bought leads half of the stocks",
    leader(loading=0.3, followers=lambda stocks: np.arange((stocks + 1) // 2)),
)

LEAK_SESSIONS = 20
"""Sessions that a move of the column tells."""
LEAK_FACTOR_RATIO = 0.5
"""Standard deviation of the factor on a day, in daily noises of a stock."""
LEAK_SHARE = 0.25
"""The column's move by a coming sum of the factor of 1."""
LEAK_NOISE_RATIO = 0.2
"""The column's noise, in daily noises of a stock: an eighth of the variance of what its moves tell."""
_LOADINGS = (1.5, 0.5)
"""Sizes of the loadings of the first and the last stock."""


def _loadings(config: SyntheticConfig) -> Float64Array:
    """Return the (stocks,) answers to a factor of 1."""
    sign = np.where(np.arange(config.stocks) % 2 == 0, 1.0, -1.0)
    return sign * np.linspace(*_LOADINGS, config.stocks)


def _leak_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    factor = LEAK_FACTOR_RATIO * config.daily_noise * generator.standard_normal(len(specific) + LEAK_SESSIONS)
    told = np.convolve(factor, np.ones(LEAK_SESSIONS), mode="valid")[1:]
    return np.column_stack((factor[: len(specific), None] * _loadings(config), LEAK_SHARE * told))


def _leak_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    # Each value of the factor is in as many of the column's moves as windows of both lengths overlap.
    overlaps = np.convolve(np.ones(sessions), np.ones(LEAK_SESSIONS))
    column = (LEAK_FACTOR_RATIO * LEAK_SHARE) ** 2 * float(overlaps @ overlaps) + LEAK_NOISE_RATIO**2 * sessions
    stocks = (1.0 + (LEAK_FACTOR_RATIO * _loadings(config)) ** 2) * sessions
    return config.daily_noise**2 * np.append(stocks, column)


def _leak_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    # By least squares.
    daily = LEAK_FACTOR_RATIO**2
    variance = LEAK_SESSIONS * LEAK_SHARE**2 * daily + LEAK_NOISE_RATIO**2
    slope = min(holding_days, LEAK_SESSIONS) * LEAK_SHARE * daily / variance
    told = slope * returns[:, -1]
    return np.column_stack((told[:, None] * _loadings(config), np.zeros(len(told))))


def _leak_oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    # Those after the last day of the market are left out.
    scores = sum_ahead(drift, min(holding_days, LEAK_SESSIONS))
    scores[:, -1] = 0.0
    return scores


register(
    "leak",
    "a context column's move tells the factor of the next 20 sessions, which stocks answer up or down",
    PlantedKind(_leak_drift, _leak_variance, _leak_rule, _leak_oracle, context_noise_ratios=(LEAK_NOISE_RATIO,)),
)


MIXED_LOADING = 0.15
_LEAD = leader(MIXED_LOADING, followers=lambda stocks: np.arange(0, stocks, 2))
TURBULENCE = Regimes(drift=1.0, sessions=250.0)
"""Turbulent times are the rising regime; its drift is the unit of the evidence."""
CALM = 0.6
TURBULENT = math.sqrt(2.0 - CALM**2)
"""Volatilities in units of the market's; both are as frequent, and the mean square is 1."""
_FACTOR_RATIO = LEAD_NOISE_RATIO * math.sqrt(LEAD_FACTOR_SHARE)
_LAWS = (MOMENTUM, BURSTS, replace(RING, common_share=0.0).kind())


def _groups(columns: int) -> list[tuple[PlantedKind, slice]]:
    """Return each law and its stocks; the last column is the leading one."""
    return [(law, slice(place, columns - 1, len(_LAWS))) for place, law in enumerate(_LAWS)]


def _level(balance: Float64Array) -> Float64Array:
    """Return the expected volatility by the chance of turbulent times less that of calm ones."""
    return (TURBULENT + CALM) / 2.0 + (TURBULENT - CALM) / 2.0 * balance


def _mixed_drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    factor = _FACTOR_RATIO * config.daily_noise * generator.standard_normal(LEAD_LAG + len(specific))
    drift = np.zeros(specific.shape)
    for law, stocks in _groups(specific.shape[1]):
        drift[:, stocks] = law.latent_drift(config, specific[:, stocks], generator)
    drift[:, : config.stocks : 2] += MIXED_LOADING * factor[: len(specific), None]
    # The factor is the column's drift, and only the rest of its moves noise: it tells the oracle the coming answers.
    drift[:, -1] = factor[LEAD_LAG:]
    return drift


def _mixed_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    total = _LEAD.summed_variance(config, sessions)
    for law, stocks in _groups(len(total)):
        total[stocks] += law.summed_variance(config, sessions)[0] - config.daily_noise**2 * sessions
    return total


def _mixed_rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score returns in units of the volatility, of which all squares tell; own returns are net of expected answers."""
    square = (returns / _LEAD.noise_std(config)) ** 2
    evidence = square * (CALM**-2 - TURBULENT**-2) / 4.0 - math.log(TURBULENT / CALM) / 2.0
    # As expected at each close, by Bayes' rule.
    volatility = _level(TURBULENCE.balance(evidence.sum(axis=1), 1.0))[:, None]
    returns = returns / volatility
    specific, scores = returns.copy(), _LEAD.rule(config, returns, holding_days)
    specific[1:] -= _LEAD.rule(config, returns, 1)[:-1]
    for law, stocks in _groups(specific.shape[1]):
        scores[:, stocks] += law.rule(config, specific[:, stocks], holding_days)
    return volatility * scores


def _mixed_oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Tell a follower's own drift from its answers by the column's drift, which is what they answer to."""
    followers = slice(0, config.stocks, 2)
    answers = np.concatenate((np.zeros(LEAD_LAG), MIXED_LOADING * drift[:, -1]))
    # Times may have changed since the column moved: by the ratio that explains the followers best.
    changed = answers[: len(drift), None] * np.array([1.0, CALM / TURBULENT, TURBULENT / CALM])
    left = np.stack([np.square(drift[:, followers] - answer[:, None]).sum(axis=1) for answer in changed.T])
    specific, scores = drift.copy(), np.zeros(drift.shape)
    specific[:, followers] -= np.take_along_axis(changed, left.argmin(axis=0)[:, None], axis=1)
    for law, stocks in _groups(drift.shape[1]):
        scores[:, stocks] = law.oracle(config, specific[:, stocks], holding_days)
    for ahead in range(min(holding_days, LEAD_LAG + 1)):
        scores[:, followers] += answers[ahead : ahead + len(drift), None]
    return scores


register(
    "mixed",
    "momentum, bursts and ring for a third of the stocks each; a leading column; calm and turbulent times",
    PlantedKind(
        _mixed_drift,
        _mixed_variance,
        _mixed_rule,
        _mixed_oracle,
        context_noise_ratios=(LEAD_NOISE_RATIO * math.sqrt(1.0 - LEAD_FACTOR_SHARE),),
        volatility=lambda config, rng: _level(TURBULENCE.directions(config.days + 1, rng)),
    ),
)
