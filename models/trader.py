"""Traders: the decisions of a population, agents stacked along a first dimension, and of a single agent.

An agent expects results of orders by a linear critic, and orders the best stock where that is worth more than waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.cash_value import Accounts, CashValue, Decision
from utils.config.trader import EnvironmentConfig
from utils.spaces import ACTION_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, rank_stocks

_BEST = 5
"""Stocks over whose expected results the opportunities of a day are the mean."""
_TRACE = 1e-6
"""Share by which each order of a day is smaller than the better one, so that the best is bought first."""


@dataclass(frozen=True)
class Traders:
    """What A agents decide by."""

    weights: Tensor
    """(A, inputs) of their critics."""
    target_percent: Tensor
    """(A,) sale target of all orders."""
    patience: Tensor
    """(A,) weight of the value of cash."""
    size: Tensor
    """(A,) share of the largest order that an order has, if the cash suffices."""

    @property
    def count(self) -> int:
        """Number of agents."""
        return len(self.weights)

    @classmethod
    def of_market(cls, rules: EnvironmentConfig, inputs: int) -> Traders:
        """Return the one agent that expects nothing of any stock, and buys what keeps its capital in the most of them.

        That many positions are open where each day's orders are given, one of a stock, and held for the longest time.
        """
        share = 1 / (rules.max_new_positions_per_day * rules.max_holding_days) / rules.largest_order
        numbers = (MAX_TARGET_PERCENT, 0.0, min(1.0, max(share, MIN_COEFFICIENT / MAX_COEFFICIENT)))
        weights = torch.zeros(1, inputs, dtype=torch.float64)
        return cls(weights, *(torch.tensor([number], dtype=torch.float64) for number in numbers))

    def to(self, device: torch.device | str) -> Traders:
        """Return the agents on a device, in one copy."""
        numbers = torch.column_stack((self.weights, self.target_percent, self.patience, self.size)).to(device)
        return Traders(*(part.clone() for part in (numbers[:, :-3], *numbers[:, -3:].unbind(1))))

    def rows(self, rows: Tensor | slice) -> Traders:
        """Return some of the agents."""
        return Traders(**{name: value[rows] for name, value in vars(self).items()})

    def mean(self) -> Traders:
        """Return the one agent whose every number is the mean of these: the ensemble of linear critics is a critic."""
        return Traders(**{name: value.mean(0, keepdim=True) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Outlook:
    """What A agents expect of the orders of each day."""

    expected: Tensor
    """(A, days, n) float32 results of the largest orders, percent of the initial capital; minus infinity: not known."""
    opportunity: Tensor
    """(A, days) mean of the largest ones of the day."""

    @classmethod
    def of(cls, expected: Tensor, tradable: Tensor) -> Outlook:
        """Build from (A, days, n) expected results; an order for a stock without a bar, (days, n), cannot be given."""
        expected = torch.where(tradable & expected.isfinite(), expected, -torch.inf)
        best = expected.topk(min(_BEST, expected.shape[2]), dim=2).values
        count = best.isfinite().sum(2)
        total = torch.where(best.isfinite(), best, 0.0).sum(2)
        return cls(expected, torch.where(count > 0, total / count.clamp(min=1), 0.0).double())

    @classmethod
    def in_turn(cls, tradable: Tensor, orders: int) -> Outlook:
        """Expect next to nothing, of the stocks whose turn it is a trace more: (days, n) with a bar, orders a day.

        In time each stock is held as long as any other, so that only the market decides about the result.
        """
        count = tradable.sum(1, keepdim=True).clamp(min=1)
        day = torch.arange(len(tradable), device=tradable.device)[:, None]
        turn = (tradable.cumsum(1) - 1 - orders * day) % count
        return cls.of((_TRACE * (1.0 - turn / count)).float()[None], tradable)


@dataclass(frozen=True)
class Choice:
    """The orders of L accounts on a day, best first."""

    stock: Tensor
    """(L, k)"""
    coefficient: Tensor
    """(L, k) float32; 0: none."""
    target_percent: Tensor
    """(L,) float32"""
    decision: Decision

    def action(self, stocks: int) -> Tensor:
        """Return it as the (L, n, 2) action of an environment."""
        action = self.coefficient.new_zeros(len(self.stock), stocks, ACTION_FEATURES)
        action[..., 0].scatter_(1, self.stock, self.coefficient)
        action[..., 1] = self.target_percent[:, None]
        return action


def decide(
    traders: Traders,
    cash_value: CashValue,
    expected: Tensor,
    accounts: Accounts,
    caution: Tensor,
    orders: int,
    slopes: Tensor | None = None,
) -> Choice:
    """Choose the orders of L accounts, one row of traders each.

    Args:
        expected: (L, n) expected results of the candidates, minus infinity for all others.
        caution: (L,) percent of an order's value that it must earn beyond what waiting is worth; 0 but to explore.
        orders: k, largest number of orders of a day.
        slopes: of the value of cash, where they are known.
    """
    best, stock = rank_stocks(expected, orders)
    decision = cash_value.decide(
        best.double(), accounts, patience=traders.patience, caution=caution, largest=traders.size, slopes=slopes
    )
    last = MAX_COEFFICIENT * (1 - _TRACE * (orders - 1))
    largest = torch.linspace(MAX_COEFFICIENT, last, orders, dtype=torch.float64, device=expected.device)
    # An order of less than the smallest coefficient is given at it, and cut to the cash.
    coefficient = (decision.size * largest).clamp(min=MIN_COEFFICIENT) * (decision.size > 0)
    return Choice(stock, coefficient.float(), traders.target_percent.float(), decision)
