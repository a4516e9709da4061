"""Momentum: each stock's drift is an autoregressive process of order one; and the martingale, without drift."""

from __future__ import annotations

import math

import numpy as np

from data.synthetic.law import (
    Float64Array,
    MarketLaw,
    PlantedKind,
    autoregression,
    autoregressive_variance,
    fading_oracle,
    fading_sum,
    log_persistence,
)
from data.synthetic.state_space import StateSpace
from utils.config.trader import SyntheticConfig


def momentum_space(config: SyntheticConfig) -> StateSpace:
    """Return the state space: the state is the drift."""
    log_phi = log_persistence(config.drift_half_life_days)
    shock = -math.expm1(2.0 * log_phi) * config.drift_std**2
    return StateSpace(log_phi, 1.0, shock, config.daily_noise**2)


def _drift(config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
    log_phi = log_persistence(config.drift_half_life_days)
    shock = config.drift_std * math.sqrt(-math.expm1(2.0 * log_phi))
    normal = generator.standard_normal(own.shape)
    # The first is from the stationary distribution: no day is special.
    return autoregression(math.exp(log_phi), config.drift_std * normal[0], shock * normal)


def _variance(config: SyntheticConfig, sessions: int) -> Float64Array:
    drift = config.drift_std**2 * autoregressive_variance(log_persistence(config.drift_half_life_days), sessions)
    return np.full(config.stocks, config.daily_noise**2 * sessions + drift)


def _rule(config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
    space = momentum_space(config)
    return space.filter(returns) * fading_sum(space.log_persistence, holding_days)


def _nothing(config: SyntheticConfig, values: Float64Array, holding_days: int) -> Float64Array:
    return np.zeros(values.shape)


MOMENTUM = PlantedKind(
    MarketLaw(_drift, _variance), _rule, fading_oracle(lambda config: log_persistence(config.drift_half_life_days))
)
MARTINGALE = PlantedKind(
    MarketLaw(
        lambda config, own, generator: np.zeros(own.shape),
        lambda config, sessions: np.full(config.stocks, config.daily_noise**2 * sessions),
    ),
    _nothing,
    _nothing,
)
