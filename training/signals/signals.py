"""The next session's orders of one agent, decided at a close and filled by the environment's own rules."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.features.nine import CLOSE, HIGH, OPEN
from data.market import Market
from environment import trading_rules
from environment.basket import Basket
from environment.ledger import Bars
from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from models.ddpg_agent import DDPGAgent
from training.features.importance import moved_by
from training.signals.basket import BasketOrders, basket_orders
from training.signals.holdings import Holding, position_features
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError, DataError
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT, POSITION_FEATURES


@dataclass(frozen=True)
class Order:
    """A purchase for the next session; amounts in currency units."""

    ticker: str
    coefficient: float
    """Size in stakes, as the agent wants it."""
    value: float
    """Amount to spend before costs, cut to the available cash but not to the session's volume, which is unknown."""
    expected_percent: float
    """Expected gain until it is sold, after costs, percent of its value."""
    close: float
    """Reference: the close at which it was decided."""
    target_percent: float
    """Sale target above the price at which the order is filled."""
    target_price: float
    """Sale target if it were filled at the reference close."""
    latest_exit: str
    moved_by: str | None = None
    """The inputs that moved the forecast most, with what each added, percent; None where nobody forecasts."""


@dataclass(frozen=True)
class Signals:
    """The state of an account at a close, and the orders of its two parts: the agents' and the basket's."""

    date: str
    next_session: str
    capital: float
    cash: float
    equity: float
    orders: list[Order]
    sales: list[str]
    """Tickers of the positions that are sold at the next open."""
    positions: list[dict[str, Any]]
    """What is held already: shares, prices, sessions held, latest exit, and what becomes of it."""
    share: float
    """Of the capital that follows the agents."""
    basket: BasketOrders | None = None
    """None where all of it does."""
    is_locked: bool = False
    """Equity has fallen as far as the rules allow: there are no orders until a person says so."""


_FEWEST_BARS = 0.5
"""A session with fewer bars than this share of those of the sessions before counts as incomplete."""
_BEFORE = 20


def few_bars(market: Market, day: int) -> str:
    """Say how many tickers had bars on the sessions before one that has far fewer; empty where it does not."""
    bars = np.isfinite(market.data_array[max(0, day - _BEFORE) : day + 1, :, CLOSE]).sum(axis=1)
    usual = float(np.median(bars[:-1])) if len(bars) > 1 else 0.0
    date = market.dates[day].astype("datetime64[D]")
    return "" if bars[-1] >= _FEWEST_BARS * usual else f"some {usual:.0f} bars on {date} as before, got {bars[-1]}"


def newest_day(market: Market) -> int:
    """Return the last day; DataError where too few tickers have a bar on it to decide anything."""
    day = last = len(market.dates) - 1
    if text := few_bars(market, last):
        while few_bars(market, day):
            day -= 1
        date, full = market.dates[[last, day]].astype("datetime64[D]")
        raise DataError(
            f"expected {text} of {len(market.tickers)} tickers; give data with all of them, --date {full} for the last "
            f"full session, or --date {date} to take it as it is"
        )
    return last


def decide(
    agent: DDPGAgent,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: Sequence[Holding],
) -> tuple[list[Order], list[str]]:
    """Return the orders that an agent decides at the close of `day` in a continuing account, the best first, and the
    tickers that it sells at the next open; nothing beyond that close is read.

    The value of an order is 0 where no cash is left for it.

    Args:
        rules: sizes refer to their initial capital.
        cash: with `holdings` the account at that close.
    """
    portfolio = account_at(market, day, rules, cash, holdings)
    forecasts = agent.forecasts(market, slice(day, day + 1))
    # A position that is due, or whose target is reached, is still held at this close.
    positions = torch.zeros(portfolio.bars.stocks, POSITION_FEATURES)
    place = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
    if holdings:
        positions[[place[holding.column] for holding in holdings]] = position_features(holdings, rules)
    placed = agent.decide_one(positions, portfolio.account_features()[0], forecasts, day)
    target = placed.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT).double()
    orders = Orders(placed.stock.T.cpu(), placed.coefficient.double().T.cpu(), target.T.cpu())
    expected, keep = forecasts.score[0, day].cpu()[orders.stock] - 100 * rules.cost_rate, placed.keep[0].cpu()
    sales = [holding.ticker for holding in holdings if rules.exits == "daily" and not keep[place[holding.column]]]
    return sized_orders(portfolio, orders, expected, market, day), sales


def account_at(
    market: Market, day: int, rules: EnvironmentConfig, cash: float, holdings: Sequence[Holding]
) -> Portfolio:
    """Return an account at the close of `day`, in which the environment's rules choose and size orders.

    Its holdings count in its equity only. Arguments as in `decide`.
    """
    today = market.data_array[day, market.investable_columns]
    # In the session that is played every stock opens at this close: nothing is read of the days after. The next
    # session's volume and low are unknown, and the caller knows of locks.
    close = torch.from_numpy(today[:, CLOSE])
    open_, high = (torch.stack((torch.from_numpy(today[:, feature]), close)) for feature in (OPEN, HIGH))
    rules = replace(rules, volume_cap=0.0, stop_percent=0.0, drawdown_lock=0.0)
    portfolio = Portfolio(Bars.from_prices(open_, high, torch.stack((close, close))), rules)
    portfolio.reset(torch.tensor([0]), steps=1)
    portfolio.cash.fill_(cash)
    portfolio.equity.fill_(cash + sum(holding.shares * holding.last_price for holding in holdings))
    return portfolio


def sized_orders(portfolio: Portfolio, orders: Orders, expected: Tensor, market: Market, day: int) -> list[Order]:
    """Return what is ordered at the close of `day` in an account of `account_at`, the best first.

    Args:
        expected: (orders, 1) gains until the sale, after costs, percent.
    """
    portfolio.step_orders(orders)
    columns = (orders.stock, orders.coefficient, orders.target_percent, portfolio.ledger().value, expected)
    close, rules, decided = market.close[day], portfolio.rules, list[Order]()
    entry_day = day + (rules.fill == "next_open")
    for stock, coefficient, target, value, forecast in zip(*(part[:, 0].tolist() for part in columns), strict=True):
        if coefficient > 0:
            price = float(close[stock])
            order = Order(
                ticker=market.tickers[market.investable_columns[stock]],
                coefficient=coefficient,
                value=value,
                expected_percent=forecast,
                close=price,
                target_percent=target,
                target_price=trading_rules.target_price(price, target),
                latest_exit=session_date(market, entry_day + rules.longest_holding - 1),
            )
            decided.append(order)
    return decided


def cash_left(holdings: Sequence[Holding], rules: EnvironmentConfig) -> float:
    """Return the rest of the initial capital after buying these positions, with their dividends.

    Raises:
        ConfigError: they cost more than the capital.
    """
    left = rules.initial_capital - sum(holding.cost(rules) for holding in holdings)
    if left < 0:
        raise ConfigError(
            f"expected positions that cost at most the capital of {rules.initial_capital:,.0f}, got {-left:,.0f} more; "
            "give --capital, or --cash"
        )
    return left


def make_signals(
    agent: DDPGAgent,
    basket: Basket,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: Sequence[Holding],
    peak: float = 0.0,
) -> Signals:
    """Return the orders of a champion's agents and basket at the close of `day`, in an account that goes on.

    Sizes refer to the equity of the agents' part; `cash` and `holdings` are the account at that close, `peak` is its
    highest equity so far, at least the initial capital. A drawdown lock applies to both parts. Cash is the basket's as
    far as its part of the exposed capital is not spent, and then the agents'.

    Raises:
        DataError: the day precedes the training days.
    """
    first, dates = market.splits.train.first, market.dates
    if day < first:
        raise DataError(f"expected a day from {dates[first]} on, the first training day, got {dates[day]}")
    equity = cash + sum(holding.shares * holding.last_price for holding in holdings)
    least = max(peak, rules.initial_capital, equity) * (1 - rules.drawdown_lock / 100)
    is_locked = rules.drawdown_lock > 0 and equity <= least
    capital, share = rules.exposure * rules.initial_capital, agent.share
    kept = [holding for holding in holdings if holding.is_of_basket]
    positions = [holding for holding in holdings if not holding.is_of_basket]
    unspent = (1.0 - share) * capital - sum(holding.cost(rules) for holding in kept)
    for_basket = min(max(0.0, unspent), cash)
    own_cash = max(0.0, cash - for_basket - (rules.initial_capital - capital))
    own_equity = own_cash + sum(holding.shares * holding.last_price for holding in positions)
    own_rules = replace(rules, initial_capital=max(1.0, own_equity))
    orders, sales = decide(agent, market, day, own_rules, own_cash, positions)
    if share > 0:
        texts = moved_by(agent, market, [(day, market.tickers.index(order.ticker)) for order in orders])
        orders = [replace(order, moved_by=text) for order, text in zip(orders, texts, strict=True)]
    bought = basket_orders(basket, market, day, rules, 0.0 if is_locked else for_basket, kept) if share < 1 else None
    return Signals(
        date=str(dates[day]),
        next_session=session_date(market, day + 1),
        capital=rules.initial_capital,
        cash=cash,
        equity=equity,
        orders=[] if is_locked or share == 0 else [order for order in orders if order.value > 0],
        sales=sales,
        positions=[_position(holding, market, rules, holding.ticker in sales) for holding in positions],
        share=share,
        basket=replace(bought, orders=[]) if bought and is_locked else bought,
        is_locked=is_locked,
    )


def session_date(market: Market, day: int) -> str:
    """Return the date of a session; after the end of the data an estimate in business days, without holidays."""
    beyond = day - (len(market.dates) - 1)
    return str(market.dates[day] if beyond <= 0 else np.busday_offset(market.dates[-1], beyond, roll="backward"))


def _position(holding: Holding, market: Market, rules: EnvironmentConfig, is_sold: bool) -> dict[str, Any]:
    left, stopped, reached = rules.longest_holding - holding.sessions_held, holding.stop_day(rules), holding.target_day
    if stopped is not None and (reached is None or stopped <= reached):
        status = f"stop reached on {market.dates[stopped]}, to be closed"
    elif reached is not None:
        status = f"target reached on {market.dates[reached]}"
    elif is_sold:
        status = "to be sold at the next open"
    else:
        status = "to be closed at the next close" if holding.is_due(rules) else f"open, {left} sessions left"
    return {
        "ticker": holding.ticker,
        "shares": holding.shares,
        "close": holding.last_price,
        "unrealised_percent": 100 * (holding.last_price / holding.entry_price - 1),
        "sessions_held": holding.sessions_held,
        "target_price": holding.target_price,
        "stop_price": holding.stop_price(rules),
        "latest_exit": session_date(market, holding.entry_day + rules.longest_holding - 1),
        "status": status,
    }
