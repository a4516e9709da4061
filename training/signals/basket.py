"""The basket's orders for the next session: one purchase of many stocks, and a rebalancing once a year."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from data.market import Market
from environment.basket import REBALANCING_SESSIONS, Basket, rebalancing
from training.signals.broker_orders import BrokerOrder, Side, for_brokers, order_id
from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig


@dataclass(frozen=True)
class BasketOrder:
    """An order for a stock of the basket, at the market at the next open; amounts in currency units."""

    ticker: str
    side: Side
    shares: float
    value: float
    """Before costs, at the reference close."""
    close: float


@dataclass(frozen=True)
class BasketOrders:
    """The basket as it will be, and the orders that make it so."""

    stocks: int
    value: float
    """At the closes of the decision."""
    orders: list[BasketOrder]

    @property
    def line(self) -> str:
        """Return a summary in one line."""
        return f"basket: {self.stocks} stocks, {self.value:,.0f}{'' if self.orders else ', held: no order'}"


def basket_orders(
    basket: Basket,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: Sequence[Holding],
    asked: int | None = None,
) -> BasketOrders:
    """Return the orders at the close of `day` of an account that holds a part of a basket, with cash for it.

    There are some where nothing is held yet, and once a year from the first purchase on.

    Args:
        asked: last close before at which orders were given where they were due; default: the one before.
    """
    place = {column: stock for stock, column in enumerate(basket.columns.tolist())}
    shares, last = torch.zeros(2, 1, basket.bars.stocks, dtype=torch.float64)
    for holding in holdings:
        shares[0, place[holding.column]], last[0, place[holding.column]] = holding.shares, holding.last_price
    has_bar = basket.bars.tradable[None, day].cpu()
    close = basket.bars.quotes.view(-1, basket.bars.stocks, 3)[None, day, :, 2].double().cpu()
    first = min((holding.entry_day for holding in holdings), default=day + 1)
    traded = torch.zeros_like(shares)
    asked = day - 1 if asked is None else asked
    if not holdings or (day + 1 - first) // REBALANCING_SESSIONS > (asked + 1 - first) // REBALANCING_SESSIONS:
        money = torch.tensor([cash], dtype=torch.float64)
        traded = rebalancing(rules, torch.ones_like(shares), close, shares, money)
    worth = (shares + traded) * torch.where(has_bar, close, last)
    orders = [
        BasketOrder(
            ticker=market.tickers[column],
            side="buy" if size > 0 else "sell",
            shares=abs(size),
            value=abs(size) * price,
            close=price,
        )
        for column, size, price in zip(basket.columns.tolist(), traded[0].tolist(), close[0].tolist(), strict=True)
        if size != 0
    ]
    return BasketOrders(int((worth > 0).sum()), float(worth.sum()), orders)


def basket_at_broker(name: str, date: str, orders: Sequence[BasketOrder]) -> list[BrokerOrder]:
    """Return the basket's orders in whole shares at the open, as `broker_orders` does those of the agents.

    Their ids are the basket's own: both parts may order a stock.
    """
    return for_brokers(
        [
            BrokerOrder(
                ticker=one.ticker,
                side=one.side,
                shares=math.floor(one.shares),
                when="open",
                order_id=order_id(f"{name}-basket", date, one.ticker, one.side),
            )
            for one in sorted(orders, key=lambda one: one.side, reverse=True)  # sales first: they pay
        ]
    )
