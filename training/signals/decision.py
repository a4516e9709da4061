"""What an agent decides at a close, in an account with some positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from data.features import CLOSE, HIGH, OPEN
from data.market import Market
from environment.ledger import Bars
from environment.orders import Orders
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.trader import DailyOrders, Forecasts
from training.signals.holdings import Holding, position_features
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT, POSITION_FEATURES


@dataclass(frozen=True)
class Decision:
    """An agent's decision at a close, and what it was made from."""

    portfolio: Portfolio
    """The account before a session in which every stock opens at this close: the environment's rules choose and size
    the orders without the data of the days after. It holds the cash alone, and one lane."""
    placed: DailyOrders
    forecasts: Forecasts
    day: int
    x: Tensor
    """(n, inputs)"""
    positions: Tensor
    """(n, POSITION_FEATURES)"""

    @property
    def orders(self) -> Orders:
        """The orders as in rollouts, the best first, (orders per day, 1) each."""
        target = self.placed.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
        parts = self.placed.stock, self.placed.coefficient.double(), target.double()
        return Orders(*(part.T.cpu() for part in parts))

    @property
    def action(self) -> Tensor:
        """The action of an environment, (n, 2)."""
        target = self.forecasts.target[:, self.day].scatter(1, self.placed.stock, self.placed.target_percent)
        return self.placed.action(target)[0].cpu()

    @property
    def candidates(self) -> Tensor:
        """(n,) bool: the stocks with a bar that are not held."""
        return self.portfolio.candidates()[0] & (self.positions[:, 0] == 0)


def decide(
    agent: DDPGAgent,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: Sequence[Holding],
    days_left: int | None = None,
) -> Decision:
    """Decide at the close of `day`; nothing of the market beyond it is read.

    Args:
        rules: sizes refer to their initial capital.
        cash: with `holdings` the account at that close.
        days_left: days on which orders are accepted, this one included; default: those of a whole episode.
    """
    today = market.data_array[day, market.investable_columns]
    close = torch.from_numpy(today[:, CLOSE])
    open_, high = (torch.stack((torch.from_numpy(today[:, feature]), close)) for feature in (OPEN, HIGH))
    # The next session's volume and low are unknown, and the caller knows of locks.
    rules = replace(rules, volume_cap=0.0, stop_percent=0.0, drawdown_lock=0.0)
    portfolio = Portfolio(Bars.from_prices(open_, high, torch.stack((close, close))), rules)
    portfolio.reset(torch.tensor([0]), steps=1, trading_steps=rules.trading_days if days_left is None else days_left)
    portfolio.cash.fill_(cash)
    portfolio.equity.fill_(cash + sum(holding.shares * holding.last_price for holding in holdings))
    days = slice(day, day + 1)
    # A copy of torch's, since products of numbers that lie elsewhere in memory may differ in the last bit.
    x = torch.from_numpy(agent.inputs.of(market, days)).clone().to(agent.device)
    forecasts = agent.forecasts(market, x, days)
    # A position that is due, or whose target is reached, is still held at this close.
    positions = torch.zeros(portfolio.bars.stocks, POSITION_FEATURES)
    place = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
    if holdings:
        positions[[place[holding.column] for holding in holdings]] = position_features(holdings, rules)
    placed = agent.place(positions, portfolio.account()[0], forecasts, day)
    return Decision(portfolio, placed, forecasts, day, x[0], positions)
