"""Holding the market: a policy without forecasts that buys all stocks in turn."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from models.trader import DailyOrders, Traders, coefficients
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, rank_stocks


@dataclass(frozen=True)
class RoundRobinPolicy:
    """Buys all stocks round robin, for equal parts of the capital.

    Over time every stock is held equally long, so that the result is the market's.
    """

    size: Tensor
    """() share of the largest order."""
    target_percent: Tensor
    """() sale target."""
    payment: float
    """Cash that the largest order takes, share of the initial capital."""
    orders_per_day: int

    @classmethod
    def of(cls, traders: Traders, rules: EnvironmentConfig) -> Self:
        """Take order size and sale target from a single agent, see `Traders.of_market`."""
        payment = rules.largest_order * rules.purchase_factor
        return cls(traders.size[0], traders.target_percent[0], payment, rules.max_new_positions_per_day)

    def turns(self, tradable: Tensor) -> Tensor:
        """Return (days, n) int64 places in the queue of the stocks with a bar; on each day the first ones are bought.

        The queue advances by the orders of a day.
        """
        count = tradable.sum(1, keepdim=True).clamp(min=1)
        day = torch.arange(len(tradable), device=tradable.device)[:, None]
        return (tradable.cumsum(1) - 1 - self.orders_per_day * day) % count

    def daily_orders(self, turns: Tensor, is_candidate: Tensor, cash: Tensor) -> DailyOrders:
        """Order the first candidates in the queue, as far as the cash suffices.

        Args:
            turns: (L, n) places in the queue.
            is_candidate: (L, n) bool: the stock has a bar and is not held.
            cash: (L,) share of the initial capital.
        """
        queue = torch.where(is_candidate, -turns.float(), -torch.inf)
        best, stock = rank_stocks(queue, min(self.orders_per_day, queue.shape[1]))
        smallest = MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1.0 / self.payment)
        left, sizes = cash.double().clamp(min=0.0), list[Tensor]()
        for place in best.unbind(1):
            size = torch.minimum(left / self.payment, self.size)
            sizes.append(size * ((size >= smallest) & place.isfinite()))
            left = left - sizes[-1] * self.payment
        target = self.target_percent.float().expand(stock.shape)
        return DailyOrders(stock, coefficients(torch.stack(sizes, dim=1)), target)
