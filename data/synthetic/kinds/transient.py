"""Reversal and value: a part of a stock's own moves passes, within days or slowly."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from data.synthetic.law import (
    Float64Array,
    MarketLaw,
    PlantedKind,
    autoregression,
    fading_oracle,
    log_persistence,
    mean_return,
)
from data.synthetic.state_space import StateSpace
from utils.config.trader import SyntheticConfig


@dataclass(frozen=True)
class Transient:
    """A part of prices that passes: own noise moves a deviation from the stock's anchor, which then decays."""

    share: float
    """Share of the variance of a stock's own noise that moves the deviation; the rest moves the anchor."""
    half_life_days: float
    common_share: float = 0.0
    """Share of the noise variance that is the same for all columns."""

    @property
    def log_persistence(self) -> float:
        """Logarithm of the share of a deviation that is left a day later."""
        return log_persistence(self.half_life_days)

    def kind(self) -> PlantedKind:
        """Return the kind of market that consists of this part."""
        law = MarketLaw(self.drift, self.summed_variance, self.common_share)
        return PlantedKind(law, self.rule, fading_oracle(lambda config: self.log_persistence))

    def space(self, config: SyntheticConfig) -> StateSpace:
        """Return the state space: the state is the deviation, whose decay is the drift."""
        own = config.daily_noise**2 * (1.0 - self.common_share)
        moved = self.share * own
        return StateSpace(self.log_persistence, math.expm1(self.log_persistence), moved, own, moved)

    def drift(self, config: SyntheticConfig, own: Float64Array, generator: np.random.Generator) -> Float64Array:
        """Return the (days, columns) decay of the deviations that (days, columns) own noise moves; see `MarketLaw`."""
        variance = config.daily_noise**2 * (1.0 - self.common_share)
        normal = generator.standard_normal((len(own) + 1, own.shape[1]))
        # Given a day's noise, the part that moves the deviation is normal around its share of it.
        shock = self.share * own + math.sqrt(self.share * (1.0 - self.share) * variance) * normal[1:]
        spread = math.sqrt(self.share * variance / -math.expm1(2.0 * self.log_persistence))
        persistence = math.exp(self.log_persistence)
        deviation = autoregression(persistence, persistence * spread * normal[0] + shock[0], shock)
        return math.expm1(self.log_persistence) * deviation

    def summed_variance(self, config: SyntheticConfig, sessions: int) -> Float64Array:
        """Return the (stocks,) variance of the sum of consecutive log returns: lower than that of as many noises."""
        noise = config.daily_noise**2
        own = (1.0 - self.common_share) * noise
        deviation = self.share * own / -math.expm1(2.0 * self.log_persistence)
        passing = -2.0 * deviation * math.expm1(sessions * self.log_persistence)
        own_sum = (1.0 - self.share) * own * sessions + passing
        return np.full(config.stocks, self.common_share * noise * sessions + own_sum)

    def rule(self, config: SyntheticConfig, returns: Float64Array, holding_days: int) -> Float64Array:
        """Return what the estimated deviations will have passed."""
        # A move that all stocks share says nothing about a stock's own deviation.
        own = returns - mean_return(returns)[:, None] if self.common_share else returns
        return self.space(config).filter(own) * math.expm1(holding_days * self.log_persistence)


REVERSAL = Transient(share=0.7, half_life_days=4.0)
VALUE = Transient(share=0.9, half_life_days=20.0, common_share=0.3)
