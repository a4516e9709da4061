"""What the evidence for an agent's forecasts is worth: p-values, and what it bets by them."""

from dataclasses import dataclass

from utils.statistics import kelly_share

SIGNIFICANCE_LEVEL = 0.001
"""Forecasts with a p-value of at most this are significant."""


def _p_value(value: float) -> str:
    return f"p < {SIGNIFICANCE_LEVEL:g}" if value < SIGNIFICANCE_LEVEL else f"p = {value:.3f}"


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

    def bet(self, share: float) -> str:
        """Return what an agent bets that has a share of the orders for itself, without a full stop."""
        named = ("selection", self.selection), ("timing", self.timing)
        worth = " and ".join(f"{name} {_p_value(p_value)}" for name, p_value in named)
        orders = f"{share:.0%} of the orders are the agents', the rest holds the market"
        whole = {0.0: "it holds the market", 1.0: "all orders are the agents'"}
        return f"evidence: {worth}; {whole.get(share, orders)}"

    @property
    def finding(self) -> str:
        """Return the finding as a sentence without a full stop."""
        some = "" if self.is_significant else "no "
        return f"Training days show {some}significant evidence ({_p_value(self.smallest)})"
