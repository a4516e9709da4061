"""The trading rules as settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from utils.config.settings import require
from utils.spaces import MAX_COEFFICIENT

Fill = Literal["next_open", "same_close"]


@dataclass(frozen=True)
class EnvironmentConfig:
    """The trading rules. Money is in currency units, rates in basis points or percent as named."""

    trading_days: int = 125
    """Steps of an episode in which orders may be placed."""
    settlement_days: int = 20
    """Steps after them in which positions only close."""
    initial_capital: float = 1_000_000.0
    stake_percent: float = 1.0
    """Value of an order at coefficient 1, in percent of the initial capital."""
    max_new_positions_per_day: int = 1
    max_holding_days: int = 20
    """A position closes at the close of this session, its entry session being the first."""
    max_days_without_bar: int = 5
    """A position whose stock has no bar for this many sessions closes at its last traded price."""
    cost_bps: float = 5.0
    """Commission, basis points of the value traded, on both legs."""
    slippage_bps: float = 5.0
    """Slippage, basis points of the value traded, on both legs."""
    fill: Fill = "next_open"
    inaction_penalty: float = 0.0
    """Taken from the reward (percent of initial capital) on a day without any position."""
    loss_multiplier: float = 1.0
    """Realised losses weigh this many times in the reward; 1 leaves the money as it is."""
    zero_trades_penalty: float = 1.0
    """Taken from the fitness of an episode in which nothing was traded."""

    def __post_init__(self) -> None:
        require(self.trading_days >= 1, "trading-days >= 1", self.trading_days)
        require(self.settlement_days >= 0, "settlement-days >= 0", self.settlement_days)
        require(
            math.isfinite(self.initial_capital) and self.initial_capital > 0,
            "a finite initial-capital > 0",
            self.initial_capital,
        )
        require(0 < self.stake_percent <= 100, "0 < stake-percent <= 100", self.stake_percent)
        require(self.max_new_positions_per_day >= 1, "max-new-positions-per-day >= 1", self.max_new_positions_per_day)
        require(self.max_holding_days >= 1, "max-holding-days >= 1", self.max_holding_days)
        require(self.max_days_without_bar >= 1, "max-days-without-bar >= 1", self.max_days_without_bar)
        require(0 <= self.cost_bps < 10_000, "0 <= cost-bps < 10000", self.cost_bps)
        require(0 <= self.slippage_bps < 10_000, "0 <= slippage-bps < 10000", self.slippage_bps)
        require(self.inaction_penalty >= 0, "inaction-penalty >= 0", self.inaction_penalty)
        require(self.loss_multiplier >= 1, "loss-multiplier >= 1", self.loss_multiplier)
        require(self.zero_trades_penalty >= 0, "zero-trades-penalty >= 0", self.zero_trades_penalty)

    @property
    def episode_steps(self) -> int:
        """Steps of an episode: trading and settlement days."""
        return self.trading_days + self.settlement_days

    @property
    def cost_rate(self) -> float:
        """Costs and slippage of a leg, as a share of the value traded."""
        return (self.cost_bps + self.slippage_bps) / 10_000

    @property
    def stake(self) -> float:
        """Value of an order at coefficient 1, in currency units."""
        return self.initial_capital * self.stake_percent / 100

    @property
    def largest_order(self) -> float:
        """Value of an order at the largest coefficient, as a share of the initial capital."""
        return MAX_COEFFICIENT * self.stake_percent / 100
