"""A planted market of your own: every stock has a season, a drift that swings with a period of 60 sessions.

python -m examples.own_kind
"""

import numpy as np

from data.synthetic.built_in import synthetic_market
from data.synthetic.kinds import oracle_scores, rule_scores
from data.synthetic.law import PlantedKind, register
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

PERIOD, SWING, HOLDING_DAYS = 60, 0.004, 20
ANGLE = 2 * np.pi / PERIOD


def season(config: SyntheticConfig, specific_noise: Float64Array, generator: np.random.Generator) -> Float64Array:
    """Return the latent drift (days, columns): each column starts its season at a random phase."""
    days, columns = specific_noise.shape
    drift: Float64Array = SWING * np.cos(ANGLE * np.arange(days)[:, None] + 2 * np.pi * generator.random(columns))
    return drift


def summed_variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    """Return the variance (columns,) of the sum of consecutive returns: of noise, and of a season at a random phase."""
    swing = SWING * np.sin(ANGLE * sessions / 2) / np.sin(ANGLE / 2)
    return np.full(config.stocks, config.daily_noise**2 * sessions + swing**2 / 2)


def forecast(values: Float64Array, lag: int, holding_days: int) -> Float64Array:
    """Fit each column's season to its values so far and sum the next `holding_days` drifts; nothing is read ahead."""
    days = np.arange(len(values))[:, None]
    amplitude = 2 * np.cumsum(np.nan_to_num(values) * np.exp(-1j * ANGLE * (days - lag)), axis=0) / (days + 1)
    ahead = np.exp(1j * ANGLE * np.arange(holding_days)).sum()
    summed: Float64Array = (amplitude * np.exp(1j * ANGLE * days) * ahead).real
    return summed


SEASONS = PlantedKind(
    season,
    summed_variance,
    rule=lambda config, returns, holding_days: forecast(returns, 1, holding_days),
    oracle=lambda config, drift, holding_days: forecast(drift, 0, holding_days),
)
# In a file of data/synthetic/kinds/ this is all it takes for --synthetic.kind seasons, its help and its tests.
register("seasons", "each stock's drift swings with a period of 60 sessions", SEASONS)

if __name__ == "__main__":
    config = SyntheticConfig(kind="seasons", days=2000, stocks=20)
    market = synthetic_market(config, seed=1)
    rule, oracle = rule_scores(config, market.bars, HOLDING_DAYS), oracle_scores(config, market.drift, HOLDING_DAYS)
    agreement = np.corrcoef(rule[1000:].ravel(), oracle[1000:].ravel())[0, 1]
    print(f"correlation of the rule's scores with the oracle's after 1,000 sessions: {agreement:.2f}")
