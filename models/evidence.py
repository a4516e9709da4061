"""What the evidence for an agent's forecasts is worth: p-values, and how far it is trusted by them."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from utils.statistics import kelly_share

SIGNIFICANCE_LEVEL = 0.001
"""Forecasts with a p-value of at most this are significant."""


def _share(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "none"


def _p_value(value: float) -> str:
    return f"p < {SIGNIFICANCE_LEVEL:g}" if value < SIGNIFICANCE_LEVEL else f"p = {value:.3f}"


@dataclass(frozen=True)
class Trust:
    """How far an agent is trusted by its evidence, 0 to 1 each."""

    orders: float
    """Share of the orders that are its own; the rest holds the market, see `models.round_robin`."""
    timing: float
    """Share of a day's level that it uses beyond the mean level; the level is its mean forecast over the stocks."""
    shift: Tensor
    """(inputs,) weights of the day's mean inputs, which take the rest of the level off its forecasts."""

    @classmethod
    def full(cls, inputs: int, device: torch.device | str = "cpu") -> Self:
        """Return full trust."""
        return cls(1.0, 1.0, torch.zeros(inputs, dtype=torch.float64, device=device))


@dataclass(frozen=True)
class Evidence:
    """P-values of an agent's forecasts, out of fold on training days: that they have no skill.

    Adjusted (Bonferroni) for both tests and for all agents among which elites were selected.
    """

    selection: float
    """Of ranking the stocks of a day."""
    timing: float
    """Of forecasting the days' means."""

    @property
    def trust(self) -> float:
        """Return the share of the capital to bet on the more significant of the two, in whole percent."""
        return round(kelly_share(self.smallest), 2)

    @property
    def is_significant(self) -> bool:
        """Tell whether either is significant."""
        return self.smallest <= SIGNIFICANCE_LEVEL

    @property
    def smallest(self) -> float:
        """Return the smaller p-value."""
        return min(self.selection, self.timing)

    def bet(self, trust: Trust) -> str:
        """Return how far the agent is trusted, and what follows, without a full stop."""
        parts = (kelly_share(self.selection), "selection", self.selection), (trust.timing, "timing", self.timing)
        worth = " and ".join(f"{_share(own)} of its {name} ({_p_value(p_value)})" for own, name, p_value in parts)
        orders = f"{trust.orders:.0%} of the orders are the agents', the rest holds the market"
        whole = {0.0: "it holds the market", 1.0: "all orders are the agents'"}
        return f"trusted for {worth}: {whole.get(trust.orders, orders)}"

    @property
    def finding(self) -> str:
        """Return the finding as a sentence without a full stop."""
        some = "" if self.is_significant else "no "
        return f"Training days show {some}significant evidence ({_p_value(self.smallest)})"
