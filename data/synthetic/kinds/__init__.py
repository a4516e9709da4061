"""All kinds of built-in market, and the scores of rule and oracle."""

import pkgutil
from importlib import import_module

import numpy as np

from data.synthetic.law import KINDS, VOLUME_LOG_PHI, VOLUME_STD, Bars, PlantedKind, fading_sum, volume_level
from utils.arrays import Float64Array
from utils.config.settings import hint
from utils.config.trader import SyntheticConfig
from utils.errors import ConfigError

for module in pkgutil.iter_modules(__path__, f"{__name__}."):
    import_module(module.name)  # registers its kinds
PLANTED_KINDS = KINDS


def planted_kind(name: str) -> PlantedKind:
    """Return a kind of market. Raises ConfigError for an unknown name."""
    if name not in PLANTED_KINDS:
        known = ", ".join(PLANTED_KINDS)
        raise ConfigError(f"expected synthetic.kind to be one of {known}, got {name!r}{hint(name, PLANTED_KINDS)}")
    return PLANTED_KINDS[name]


def rule_scores(config: SyntheticConfig, bars: Bars, holding_days: int) -> Float64Array:
    """Return the scores of the best simple rule, which knows the kind of market and its bars."""
    kind = planted_kind(config.kind)
    returns = np.diff(np.log(bars["close"]), axis=0, prepend=np.nan) + kind.log_growth(config)
    returns[0] = 0.0
    scores = kind.rule(config, returns, holding_days)
    if kind.volume_drift:
        busy = (np.log(bars["volume"]) - volume_level(bars["volume"].shape[1])) / VOLUME_STD
        scores = scores + kind.volume_drift * fading_sum(VOLUME_LOG_PHI, holding_days) * busy
    return scores


def oracle_scores(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the oracle: (days, columns) from the (days, columns) latent drift."""
    return planted_kind(config.kind).oracle(config, drift, holding_days)
