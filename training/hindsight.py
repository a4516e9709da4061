"""Results of orders that nobody gave.

Prices do not react to orders, so that once they are known the result of every order is known, not only of the few that
were given: a market is exogenous (Sinclair et al. 2023, "Hindsight learning for MDPs with exogenous inputs"). From the
results of many orders a day a critic learns what a trade earns with far less noise than from those of one. The results
are those of the environment itself, on training days only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from environment.ledger import Bars
from environment.orders import Orders
from environment.portfolio import Portfolio
from utils.config.trader import EnvironmentConfig, LearningConfig, NetworkConfig
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

_TARGETS = 5
"""Sale targets tried, evenly spaced over their range; a critic sees its target as a number and fills the gaps."""
_DAYS_AT_ONCE = 256
_STAKE_PERCENT = 0.001
"""So small a stake that no order is ever cut to the cash at hand, or to a share of the day's volume."""


@dataclass(frozen=True)
class HindsightOrders:
    """m orders in each of B states of A agents, and their results."""

    stock: Tensor
    """(A, B, m) int64."""
    target_percent: Tensor
    """(A, B, m)."""
    reward: Tensor
    """(A, B, m) reward that the largest order would have been credited with; 0 where it is not known."""
    is_known: Tensor
    """(A, B, m) bool."""

    def of(self, agents: slice) -> HindsightOrders:
        """Return the orders of some agents."""
        return HindsightOrders(*(value[agents] for value in vars(self).values()))


@dataclass(frozen=True)
class Hindsight:
    """Results of every order of the largest size on every training day."""

    first_day: int
    targets: Tensor
    """(targets,) sale targets in percent."""
    rewards: Tensor
    """(targets, days, stocks) float32 from `first_day` on, percent of the initial capital; NaN where not known."""

    def draw_block(
        self, block_days: int, shape: tuple[int, int], orders: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, HindsightOrders]:
        """Draw a block among all training days, (A, B) of its days, and orders for each of them.

        A replay buffer holds only the days of the last few generations' episodes.

        Returns:
            The block's first day, a 0-dimensional int64 tensor, the (A, B) days since then, and their orders.
        """
        device, days = self.rewards.device, self.rewards.shape[1]
        length = min(block_days, days)
        first_day = torch.randint(days - length + 1, (), generator=generator, device=device) + self.first_day
        day_offset = torch.randint(length, shape, generator=generator, device=device)
        return first_day, day_offset, self.draw(first_day + day_offset, orders, generator)

    def draw(self, day: Tensor, orders: int, generator: torch.Generator) -> HindsightOrders:
        """Draw `orders` uniformly random stocks and targets for each of the (A, B) days."""
        targets, days, stocks = self.rewards.shape
        shape = (2, *day.shape, orders)
        # Float64, whose numbers below 1 stay below the count when multiplied by it.
        draw = torch.rand(shape, generator=generator, device=day.device, dtype=torch.float64)
        which, stock = (draw[0] * targets).long(), (draw[1] * stocks).long()
        row = (day - self.first_day).clamp(0, days - 1).unsqueeze(-1)
        reward = self.rewards[which, row, stock]
        is_known = reward.isfinite()
        return HindsightOrders(stock, self.targets[which], torch.where(is_known, reward, 0.0), is_known)


def hindsight_loss(values: list[Tensor], orders: HindsightOrders) -> Tensor:
    """Return each agent's mean squared error over the known orders, (A,), summed over its critics' (A, B, m) values."""
    known = orders.is_known.flatten(1).sum(1).clamp(min=1)
    errors = torch.stack([(value - orders.reward).square() for value in values]) * orders.is_known
    return errors.flatten(2).sum((0, 2)) / known


def uses_hindsight(network: NetworkConfig, learning: LearningConfig) -> bool:
    """Tell whether critics learn from orders that were not given.

    Only a structured critic tells apart what a trade itself earns, which is its reward only if credited by trade.
    """
    return network.critic == "structured" and learning.credit == "entry" and learning.hindsight_orders > 0


def order_results(bars: Bars, rules: EnvironmentConfig, first_day: int, last_day: int) -> Hindsight:
    """Give every order of days first_day..last_day to an account that can pay for all of them, and note its result.

    A result is known where the longest possible trade ends by `last_day`. Orders for stocks without a bar that day
    cannot be given; one that finds no price to be filled at earns nothing, nor does one without any volume under a
    volume cap. The results are those of orders that no cap cuts: a trade's result is in proportion to its size, and
    critics see the size that was filled.
    """
    targets = torch.linspace(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT, _TARGETS, device=bars.quotes.device)
    affordable = replace(
        rules,
        stake_percent=_STAKE_PERCENT,
        max_new_positions_per_day=1,
        inaction_penalty=0.0,
        initial_capital=1.0,
    )
    portfolio = Portfolio(bars, affordable)
    longest, days = portfolio.slots, last_day - first_day + 1
    rewards = torch.full((_TARGETS, days, bars.stocks), torch.nan, device=bars.quotes.device)
    for first in range(0, days - longest, _DAYS_AT_ONCE):
        count = min(_DAYS_AT_ONCE, days - longest - first)
        credited = _credited(portfolio, first_day + first, count, count + longest - 1, targets)
        rewards[:, first : first + count] = credited * (rules.stake_percent / _STAKE_PERCENT)
    rewards.masked_fill_(~bars.tradable[first_day : last_day + 1], torch.nan)
    return Hindsight(first_day, targets, rewards)


def _credited(portfolio: Portfolio, first_day: int, days: int, steps: int, targets: Tensor) -> Tensor:
    """Give the largest orders every day, one lane a stock and target: (targets, days, stocks) rewards."""
    stocks = portfolio.bars.stocks
    lanes = stocks * len(targets)
    portfolio.reset(torch.full((lanes,), first_day), steps=steps, trading_steps=days)
    stock = torch.arange(stocks, device=targets.device).repeat(len(targets))
    target = targets.double().repeat_interleave(stocks)
    orders = Orders(stock[None], torch.full_like(target, MAX_COEFFICIENT)[None], target[None])
    for step in range(steps):
        portfolio.step_orders(orders if step < days else None)
    rewards = portfolio.entry_credited_rewards()[:days]
    return rewards.float().view(days, len(targets), stocks).transpose(0, 1)
