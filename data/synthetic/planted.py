"""The kinds of built-in market by name, and the scores of rule and oracle."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from data.synthetic.kinds.fading import BURSTS, EDGES, MARTINGALE, MOMENTUM, REVERSAL, VALUE
from data.synthetic.kinds.lead import CROWD, LEAD_LAG
from data.synthetic.kinds.leak import LAGGED_LEAK, LEAK
from data.synthetic.kinds.mixed import MIXED
from data.synthetic.kinds.nonlinear import AGREE, RING
from data.synthetic.kinds.pairs import PAIRS
from data.synthetic.kinds.regime import INTERACTION, REGIME
from data.synthetic.kinds.spikes import SPIKES
from data.synthetic.law import Float64Array, PlantedKind
from utils.config.trader import SyntheticConfig

PLANTED_KINDS: Mapping[str, PlantedKind] = {
    "momentum": MOMENTUM,
    "reversal": REVERSAL.kind(),
    "lead-lag": LEAD_LAG.kind(),
    "regime": REGIME,
    "value": VALUE.kind(),
    "bursts": BURSTS.kind(),
    "spikes": SPIKES,
    "edges": EDGES.kind(),
    "interaction": INTERACTION,
    "crowd": CROWD.kind(),
    "agree": AGREE.kind(),
    "ring": RING.kind(),
    "leak": LEAK.kind(),
    "lagged-leak": LAGGED_LEAK.kind(),
    "mixed": MIXED,
    "pairs": PAIRS,
    "martingale": MARTINGALE,
}


def rule_scores(config: SyntheticConfig, close: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the best simple rule, which knows the kind of market and its closes.

    Takes (days, columns) closes, NaN where there is no bar; returns (days, columns), row t from closes up to t only.
    """
    log_close = np.full(close.shape, np.nan)
    np.log(close, out=log_close, where=close > 0)
    kind = PLANTED_KINDS[config.kind]
    returns = np.diff(log_close, axis=0, prepend=np.nan) + kind.log_growth(config)
    return kind.rule(config, returns, holding_days)


def oracle_scores(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the oracle: (days, columns) from the (days, columns) latent drift."""
    return PLANTED_KINDS[config.kind].oracle(config, drift, holding_days)
