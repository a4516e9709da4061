"""Traders: the decisions of a population, agents stacked along a first dimension, and of a single agent.

An agent expects results of orders by a linear critic, and orders the best stock where that is worth more than waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.waiting import Accounts, Decision, WaitingValue
from utils.spaces import ACTION_FEATURES, MAX_COEFFICIENT, MIN_COEFFICIENT, rank_stocks

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
    """(A,) weight of the value of waiting."""

    @property
    def count(self) -> int:
        """Number of agents."""
        return len(self.weights)

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


def decide(
    traders: Traders,
    waiting: WaitingValue,
    expected: Tensor,
    accounts: Accounts,
    caution: Tensor,
    orders: int,
) -> tuple[Tensor, Tensor, Decision]:
    """Choose the orders of L accounts of A agents, agent by agent, L / A each.

    Args:
        expected: (L, n) expected results of the candidates, minus infinity for all others.
        caution: (L,) percent of an order's value that it must earn beyond what waiting is worth; 0 but to explore.
        orders: k, largest number of orders of a day.

    Returns:
        The (L, n, 2) action, the (L, k) expected results of the best candidates, and the decision.
    """
    of_agent = len(expected) // traders.count
    best, stock = rank_stocks(expected, orders)
    patience, target = (value.repeat_interleave(of_agent) for value in (traders.patience, traders.target_percent))
    decision = waiting.decide(best.double(), accounts, patience=patience, caution=caution)
    size = decision.size * MAX_COEFFICIENT
    traced = size * (1 - _TRACE * torch.arange(orders, device=size.device))
    # An order of less than the smallest coefficient is given at it, and cut to the cash.
    size = torch.where(size > 0, traced.clamp(min=MIN_COEFFICIENT), 0.0)
    action = torch.zeros(*expected.shape, ACTION_FEATURES, device=expected.device)
    action[..., 0].scatter_(1, stock, size.float())
    action[..., 1] = target.float()[:, None]
    return action, best, decision
