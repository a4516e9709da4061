"""Holding the market: a policy without forecasts that buys all stocks in turn, with the capital that no agent bets."""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.policy import Decision, Forecasts, coefficients, decide, invested_share
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, rank_stocks


@dataclass(frozen=True)
class RoundRobinPolicy:
    """Buys all stocks round robin, for equal parts of the capital, except for the share that an agent bets.

    Days are divided between the agent and the market in proportion to the share, as evenly as whole days can be: whose
    a position is follows from the day on which it was ordered. The agent decides as if its share were all of the
    capital, and sells its own positions only; what the market's share still lacks is kept from it.
    """

    share: float
    """Of the capital, and of the days, that are the agent's: 0 to 1, below 1."""
    rules: EnvironmentConfig

    @property
    def size(self) -> float:
        """Return the market's order size as a share of the largest order: all capital is spent over some weeks."""
        positions = self.rules.max_new_positions_per_day * self.rules.trade_sessions
        return min(1.0, max(1 / positions / self.rules.largest_order, MIN_COEFFICIENT / MAX_COEFFICIENT))

    @property
    def payment(self) -> float:
        """Return the cash that the largest order takes, share of the initial capital."""
        return self.rules.largest_order * self.rules.purchase_factor

    def is_own(self, day: Tensor) -> Tensor:
        """Tell on which days, by index, the agent decides on purchases."""
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

    def hold(self, turns: Tensor, is_candidate: Tensor, cash: Tensor) -> Decision:
        """Buy the first candidates in the queue, as far as the cash suffices, and sell nothing.

        Args:
            turns: (L, n) places in the queue.
            is_candidate: (L, n) bool: the stock has a bar and is not held.
            cash: (L,) share of the initial capital.
        """
        queue = torch.where(is_candidate, -turns.float(), -torch.inf)
        best, stock = rank_stocks(queue, min(self.rules.max_new_positions_per_day, queue.shape[1]))
        left, sizes = cash.double().clamp(min=0.0), list[Tensor]()
        for place in best.unbind(1):
            size = (left / self.payment).clamp(max=self.size)
            sizes.append(size * ((size >= self._smallest) & place.isfinite()))
            left = left - sizes[-1] * self.payment
        target = torch.full_like(queue, MAX_TARGET_PERCENT)
        coefficient = coefficients(torch.stack(sizes, dim=1))
        return Decision(stock, coefficient, target[:, : stock.shape[1]], torch.ones_like(is_candidate), target)

    @property
    def _smallest(self) -> float:
        return MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1.0 / self.payment)

    def belongs(self, sessions_held: Tensor, day: Tensor) -> Tensor:
        """Tell which positions, (L, K) by the sessions for which they have been held, are the agent's on (L,) days."""
        ordered = day[:, None] - sessions_held.long() + (self.rules.fill == "same_close")
        return self.is_own(ordered)

    def own_cash(self, cash: Tensor, size: Tensor, is_own: Tensor) -> Tensor:
        """Return the (L,) cash that is the agent's, as if its share were all of the capital.

        Args:
            cash: (L,) share of the initial capital.
            size: (L, K) float32 sizes of positions at their entry, shares of the largest order; 0 where none is held.
            is_own: (L, K) bool of these positions.
        """
        # Exact in float64, and so the same in any order.
        lacking = 1.0 - self.share - self.payment * (size * ~is_own).double().sum(-1)
        return ((cash - lacking.clamp(min=0.0)) / self.share).clamp(min=0.0).float()

    def mixed(self, own: Decision, market: Decision, own_cash: Tensor, is_own: Tensor, day: Tensor) -> Decision:
        """Return the agent's purchases where it decides, cut to its cash, else the market's; sales are the agent's.

        Args:
            own: decided with this (L,) cash of its own.
            is_own: (L, n) bool: a position in the stock would be the agent's.
        """
        left = (self.share * own_cash.double() / self.payment)[:, None]
        size = own.coefficient.double() / MAX_COEFFICIENT
        size = torch.minimum(size, (left - (size.cumsum(1) - size)).clamp(min=0.0))
        cut = coefficients(size * (size >= self._smallest))
        decides = self.is_own(day)[:, None]
        return Decision(
            stock=torch.where(decides, own.stock, market.stock),
            coefficient=torch.where(decides, cut, market.coefficient),
            target_percent=torch.where(decides, own.target_percent, market.target_percent),
            keep=own.keep | ~is_own,
            moved_target=torch.where(is_own, own.moved_target, market.moved_target),
        )


@dataclass(frozen=True)
class Accounts:
    """What a decision depends on in L accounts at a close, besides the day's forecasts."""

    cash: Tensor
    """(L,) float32 share of the initial capital."""
    left: Tensor
    """(L,) days on which purchases are accepted, today included; 0 or less: none."""
    candidate: Tensor
    """(L, n) bool: the stock has a bar and is not held."""
    day: Tensor
    """(L,) index of today."""
    size: Tensor | None = None
    """(L, n) float32 sizes of positions at their entry, shares of the largest order; read beside a market's share."""
    sessions_held: Tensor | None = None
    """(L, n) sessions since the entry of positions; read beside a market's share."""


def act(
    forecasts: Forecasts,
    rate: Tensor,
    target_percent: Tensor,
    accounts: Accounts,
    rules: EnvironmentConfig,
    market: RoundRobinPolicy | None = None,
    turns: Tensor | None = None,
    noise: Tensor | float = 0.0,
) -> Decision:
    """Decide in L accounts at a close, wherever agents act: the only way from what is known to orders.

    Args:
        forecasts: of their day, (L, n).
        rate: (L,) prices of capital where all is invested, percent a session.
        target_percent: (L,) sale targets.
        market: holds the market with the share of the capital that the agent does not bet.
        turns: (L, n) places in its queue.
        noise: (L, 1) percent added to all scores, to explore.
    """
    cash, candidate = accounts.cash, accounts.candidate
    if market is None:
        price = rate * invested_share(cash, accounts.left)
        return decide(forecasts, price, cash, candidate, target_percent, rules, noise)
    assert turns is not None
    held = market.hold(turns, candidate, cash)
    if market.share == 0:
        return held
    assert accounts.size is not None and accounts.sessions_held is not None
    is_own = market.belongs(accounts.sessions_held, accounts.day)
    own_cash = market.own_cash(cash, accounts.size, is_own)
    price = rate * invested_share(own_cash, accounts.left)
    own = decide(forecasts, price, own_cash, candidate, target_percent, rules, noise)
    return market.mixed(own, held, own_cash, is_own, accounts.day)
