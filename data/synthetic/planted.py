"""All kinds of built-in market, and the scores of rule and oracle."""

import pkgutil
from importlib import import_module

import numpy as np

from data.synthetic import kinds
from data.synthetic.law import KINDS, Bars, PlantedKind
from utils.arrays import Float64Array
from utils.config.settings import hint
from utils.config.trader import SyntheticConfig
from utils.errors import ConfigError

for module in pkgutil.iter_modules(kinds.__path__, f"{kinds.__name__}."):
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
    scores = kind.rule(config, _returns(config, bars["close"]), holding_days)
    return scores if kind.signal is None else scores + kind.signal.rule(config, bars, holding_days)


def _returns(config: SyntheticConfig, close: Float64Array) -> Float64Array:
    """Return the log returns with the constant put back, 0 on the first day."""
    returns = np.diff(np.log(close), axis=0, prepend=np.nan) + planted_kind(config.kind).log_growth(config)
    returns[0] = 0.0
    return returns


def oracle_scores(config: SyntheticConfig, drift: Float64Array, holding_days: int) -> Float64Array:
    """Return the scores of the oracle: (days, columns) from the (days, columns) latent drift."""
    return planted_kind(config.kind).oracle(config, drift, holding_days)
