"""Holding the market: a policy without forecasts that buys all stocks in turn, with the capital that no agent bets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.risk import best_size
from models.trader import AccountPolicy, DailyOrders, Forecasts, coefficients, day_mean
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, rank_stocks


@dataclass(frozen=True)
class RoundRobinPolicy:
    """Buys all stocks round robin, for equal parts of the capital, except for the share that an agent bets.

    Over time every stock is held equally long, so that the result is the market's. Days are divided between the agent
    and the market in proportion to the share, as evenly as whole days can be: whose a position is follows from the day
    on which it was ordered. The agent decides as if its share were all of the capital; what the market's share still
    lacks is kept from it.
    """

    share: float
    """Of the capital, and of the days, that are the agent's: 0 to 1, below 1."""
    rules: EnvironmentConfig
    own: AccountPolicy | None = None
    """Networks by which the agent sizes its orders."""
    typical: float = 0.0
    """Mean result of the largest orders, percent of the initial capital; counts with aversion to risk only."""

    @property
    def size(self) -> float:
        """Return the market's largest order size as a share of the largest order.

        The capital is spread over the most positions: as many are open when all orders of each day are placed and held
        for the longest time.
        """
        positions = self.rules.max_new_positions_per_day * self.rules.max_holding_days
        return min(1.0, max(1 / positions / self.rules.largest_order, MIN_COEFFICIENT / MAX_COEFFICIENT))

    def sizes(self, forecasts: Forecasts) -> Tensor:
        """Return the (days,) float64 market's order sizes: with aversion to risk, at most the size at which the typical
        profit and the mean risk of the day's orders balance."""
        expected, penalty = forecasts.expected[0], forecasts.penalty
        if penalty is None:
            return torch.full(expected.shape[:1], self.size, dtype=torch.float64, device=expected.device)
        risk = day_mean(penalty[0], expected.isfinite())[:, 0].double()
        return best_size(torch.full_like(risk, self.typical), risk).clamp(max=self.size)

    @property
    def payment(self) -> float:
        """Return the cash that the largest order takes, share of the initial capital."""
        return self.rules.largest_order * self.rules.purchase_factor

    def is_own(self, day: Tensor) -> Tensor:
        """Tell on which days, by index, the agent decides."""
        return self._own_days(day + 1) > self._own_days(day)

    def _own_days(self, day: Tensor) -> Tensor:
        """Return the number of the agent's days before a day."""
        return (day.double() * self.share).floor().long()

    def turns(self, tradable: Tensor) -> Tensor:
        """Return (days, n) int64 places in the queue of the stocks with a bar; the market buys the first ones.

        The queue advances by the orders of each of the market's days.
        """
        count = tradable.sum(1, keepdim=True).clamp(min=1)
        day = torch.arange(len(tradable), device=tradable.device)[:, None]
        placed = self.rules.max_new_positions_per_day * (day - self._own_days(day))
        return (tradable.cumsum(1) - 1 - placed) % count

    def daily_orders(self, turns: Tensor, is_candidate: Tensor, cash: Tensor, largest: Tensor) -> DailyOrders:
        """Order the first candidates in the queue, as far as the cash suffices.

        Args:
            turns: (L, n) places in the queue.
            is_candidate: (L, n) bool: the stock has a bar and is not held.
            cash: (L,) share of the initial capital.
            largest: (L,) size of an order, see `sizes`.
        """
        queue = torch.where(is_candidate, -turns.float(), -torch.inf)
        best, stock = rank_stocks(queue, min(self.rules.max_new_positions_per_day, queue.shape[1]))
        left, sizes = cash.double().clamp(min=0.0), list[Tensor]()
        for place in best.unbind(1):
            size = torch.minimum(left / self.payment, largest)
            sizes.append(size * ((size >= self._smallest) & place.isfinite()))
            left = left - sizes[-1] * self.payment
        target = torch.full(stock.shape, MAX_TARGET_PERCENT, dtype=torch.float32, device=stock.device)
        return DailyOrders(stock, coefficients(torch.stack(sizes, dim=1)), target)

    @property
    def _smallest(self) -> float:
        return MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1.0 / self.payment)

    def own_account(self, cash: Tensor, size: Tensor, sessions_held: Tensor, day: Tensor) -> tuple[Tensor, Tensor]:
        """Return the agent's part of L accounts, as if its share were all of the capital.

        Args:
            cash: (L,) float32 share of the initial capital.
            size: (L, K) float32 sizes of positions at their entry, shares of the largest order; 0 where none is held.
            sessions_held: (L, K) of these positions, or (K,).
            day: (L,) index of today.

        Returns:
            (L,) its cash, (L, K) the sizes of its positions.
        """
        ordered = day[:, None] - sessions_held.long() + (self.rules.fill == "same_close")
        own = size * self.is_own(ordered)
        # Exact in float64, and so the same in any order.
        lacking = 1.0 - self.share - self.payment * (size - own).double().sum(-1)
        return ((cash - lacking.clamp(min=0.0)) / self.share).clamp(min=0.0).float(), own / self.share

    def mixed(self, own: DailyOrders, size: Tensor, market: DailyOrders, cash: Tensor, day: Tensor) -> DailyOrders:
        """Return the agent's orders where it decides, cut to its cash, else the market's.

        Args:
            own: decided in `own_account`, with this (L,) cash; of these (L, k) sizes.
            day: (L,) index of today.
        """
        left = (self.share * cash.double() / self.payment)[:, None]
        size = torch.minimum(size, (left - (size.cumsum(1) - size)).clamp(min=0.0))
        own_coefficient = coefficients(size * (size >= self._smallest))
        is_own = self.is_own(day)[:, None]
        pairs = (own.stock, market.stock), (own_coefficient, market.coefficient)
        targets = own.target_percent, market.target_percent
        return DailyOrders(*(torch.where(is_own, *pair) for pair in (*pairs, targets)))
