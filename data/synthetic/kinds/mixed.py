"""Mixed: several laws at once. A third of the stocks has momentum, a third bursts, a third the drifts of `ring`.

Every second stock also follows a leading column, which may not be bought. In turbulent times all moves are about twice
as large as in calm ones, drifts included: in units of the day's volatility, they have the laws of the kinds.
"""

import math
from dataclasses import replace

import numpy as np

from data.synthetic.kinds.drifts import BURSTS, MOMENTUM
from data.synthetic.kinds.lead import LEAD_FACTOR_SHARE, LEAD_LAG, LEAD_NOISE_RATIO, leader
from data.synthetic.kinds.nonlinear import RING
from data.synthetic.kinds.regime import Regimes
from data.synthetic.law import PlantedKind, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

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


def _drift(config: SyntheticConfig, specific: Float64Array, generator: np.random.Generator) -> Float64Array:
    factor = _FACTOR_RATIO * config.daily_noise * generator.standard_normal(LEAD_LAG + len(specific))
    drift = np.zeros(specific.shape)
    for law, stocks in _groups(specific.shape[1]):
        drift[:, stocks] = law.latent_drift(config, specific[:, stocks], generator)
    drift[:, : config.stocks : 2] += MIXED_LOADING * factor[: len(specific), None]
    # The factor is the column's drift, and only the rest of its moves noise: it tells the oracle the coming answers.
    drift[:, -1] = factor[LEAD_LAG:]
    return drift


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    total = _LEAD.summed_variance(config, sessions)
    for law, stocks in _groups(len(total)):
        total[stocks] += law.summed_variance(config, sessions)[0] - config.daily_noise**2 * sessions
    return total


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    """Score returns in units of the volatility, of which all squares tell; own returns are net of expected answers."""
    square = (returns / (config.daily_noise * np.array([*[1.0] * config.stocks, LEAD_NOISE_RATIO]))) ** 2
    evidence = square * (CALM**-2 - TURBULENT**-2) / 4.0 - math.log(TURBULENT / CALM) / 2.0
    # As expected at each close, by Bayes' rule.
    volatility = _level(TURBULENCE.balance(evidence.sum(axis=1), 1.0))[:, None]
    returns = returns / volatility
    specific, scores = returns.copy(), _LEAD.rule(config, returns, holding_days)
    specific[1:] -= _LEAD.rule(config, returns, 1)[:-1]
    for law, stocks in _groups(specific.shape[1]):
        scores[:, stocks] += law.rule(config, specific[:, stocks], holding_days)
    return volatility * scores


def _oracle(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
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
        _drift,
        _variance,
        _rule,
        _oracle,
        context_noise_ratios=(LEAD_NOISE_RATIO * math.sqrt(1.0 - LEAD_FACTOR_SHARE),),
        volatility=lambda config, rng: _level(TURBULENCE.directions(config.days + 1, rng)),
    ),
)
