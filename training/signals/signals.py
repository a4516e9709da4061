"""Tomorrow's orders of one agent: what it would order at a close, decided by the environment's own rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.features import CLOSE, HIGH, OPEN
from data.market import Market
from environment.ledger import Bars
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from models.ddpg_agent import DDPGAgent
from training.signals.attribution import Parts, Share, attribution, parts_of
from training.signals.holdings import Holding, position_features
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError, DataError
from utils.spaces import POSITION_FEATURES


@dataclass(frozen=True)
class SessionDate:
    """A session's date; an estimate counts business days after the end of the data, knowing no holidays."""

    date: str
    is_estimate: bool

    def __str__(self) -> str:
        return self.date + (" (estimate)" if self.is_estimate else "")


@dataclass(frozen=True)
class Order:
    """A purchase for the next session; money in currency units."""

    ticker: str
    coefficient: float
    """Size in stakes, as the agent wants it."""
    value: float
    """Money to spend before costs, cut to the cash at hand, and not to a volume that nobody knows yet."""
    percent_of_capital: float
    expected_percent: float
    """What the agent expects of it after costs, percent of its value."""
    networks_percent: float | None
    """What of it the agent's networks add, beyond the mean of the day's stocks; None where there are none."""
    close: float
    """Reference: the close at which it was decided."""
    target_percent: float
    """Sale target above the price at which the order is filled."""
    target_price: float
    """Sale target if it were filled at the reference close."""
    latest_exit: SessionDate
    looks_at: list[Share]


@dataclass(frozen=True)
class OpenPosition:
    """A position that is held already."""

    ticker: str
    shares: float
    entry_date: str
    entry_price: float
    close: float
    unrealised_percent: float
    sessions_held: int
    target_price: float
    latest_exit: SessionDate
    status: str


@dataclass(frozen=True)
class Signals:
    """The state of an account at a close, and the agent's orders."""

    date: str
    next_session: SessionDate
    capital: float
    cash: float
    equity: float
    orders: list[Order]
    positions: list[OpenPosition]
    best_candidate: str | None
    """Ticker of which most is expected among those that may be ordered."""
    best_expected_percent: float | None
    """What is expected of it after costs, percent of an order's value."""


def cash_left(holdings: list[Holding], rules: EnvironmentConfig) -> float:
    """Return the rest of the initial capital after buying these positions.

    Raises:
        ConfigError: they cost more than the capital.
    """
    left = rules.initial_capital - sum(holding.value for holding in holdings) * (1 + rules.cost_rate)
    if left < 0:
        raise ConfigError(
            f"expected positions that cost at most the capital of {rules.initial_capital:,.0f}, got {-left:,.0f} more; "
            "give --capital, or --cash"
        )
    return left


def make_signals(
    agent: DDPGAgent, market: Market, day: int, rules: EnvironmentConfig, cash: float, holdings: list[Holding]
) -> Signals:
    """Ask `agent` for its orders at the close of `day`, as on the first day of an episode.

    Sizes refer to the initial capital of the rules; `cash` and `holdings` are the account at that close.

    Raises:
        DataError: the day comes before all that was learned from.
    """
    if day < market.splits.train.first:
        raise DataError(
            f"expected a day from {market.dates[market.splits.train.first]} on, the first that was learned from, got "
            f"{market.dates[day]}"
        )
    exposure = sum(holding.shares * holding.last_price for holding in holdings)
    # The account stands before a session in which every stock opens at this close: so the environment's own rules
    # choose the orders and size them, without the data of the days after.
    today = market.data_array[day, market.investable_columns]
    close = torch.from_numpy(today[:, CLOSE])
    open_, high = (torch.stack((torch.from_numpy(today[:, feature]), close)) for feature in (OPEN, HIGH))
    rules = replace(rules, volume_cap=0.0)  # the volume of a session to come is not known
    portfolio = Portfolio(Bars.from_prices(open_, high, torch.stack((close, close))), rules)
    portfolio.reset(torch.tensor([0]), steps=1, trading_steps=1)
    portfolio.cash.fill_(cash)
    portfolio.equity.fill_(cash + exposure)
    x = torch.from_numpy(agent.inputs.of(market)).to(agent.device)
    forecasts = agent.forecasts(market, x, slice(day, day + 1))
    parts = parts_of(agent, x[day], torch.isfinite(close).to(agent.device))
    # A position that is due, or whose target is reached, is still held at this close.
    positions = torch.zeros(portfolio.bars.stocks, POSITION_FEATURES)
    place = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
    if holdings:
        positions[[place[holding.column] for holding in holdings]] = position_features(holdings, rules)
    action = agent.action(positions, portfolio.account()[0], forecasts, day)
    is_free = portfolio.candidates()[0] & (positions[:, 0] == 0)
    expected = forecasts.expected[0, day].cpu() / rules.largest_order
    best = int(torch.where(is_free, expected, -torch.inf).argmax())
    has_candidate = bool(is_free[best] & expected[best].isfinite())
    portfolio.step(action[None])
    tickers = [market.tickers[column] for column in market.investable_columns]
    return Signals(
        date=str(market.dates[day]),
        next_session=session_date(market, day + 1),
        capital=rules.initial_capital,
        cash=cash,
        equity=cash + exposure,
        orders=_orders(parts, market, day, action, portfolio),
        positions=[_position(holding, market, rules) for holding in holdings],
        best_candidate=tickers[best] if has_candidate else None,
        best_expected_percent=float(expected[best]) if has_candidate else None,
    )


def session_date(market: Market, day: int) -> SessionDate:
    """Return the date of a session, which may lie after the end of the data."""
    beyond = day - (len(market.dates) - 1)
    if beyond <= 0:
        return SessionDate(str(market.dates[day]), False)
    return SessionDate(str(np.busday_offset(market.dates[-1], beyond, roll="backward")), True)


def _orders(parts: Parts, market: Market, day: int, action: Tensor, portfolio: Portfolio) -> list[Order]:
    """List the orders that the environment has filled, with what the agent expects of each and why."""
    trades = trade_ledger(portfolio, 0)
    rules = portfolio.rules
    entry_day = day + trades[0]["entry_day"] if trades else day
    expected = parts.expected / rules.largest_order
    networks = None if parts.networks is None else parts.networks / rules.largest_order
    return [
        Order(
            ticker=market.tickers[market.investable_columns[trade["stock"]]],
            coefficient=float(action[trade["stock"], 0]),
            value=trade["value"],
            percent_of_capital=100 * trade["value"] / rules.initial_capital,
            expected_percent=float(expected[trade["stock"]]),
            networks_percent=None if networks is None else float(networks[trade["stock"]]),
            close=trade["entry_price"],
            target_percent=float(action[trade["stock"], 1]),
            target_price=trade["target_price"],
            latest_exit=session_date(market, entry_day + rules.max_holding_days - 1),
            looks_at=attribution(parts, trade["stock"]),
        )
        for trade in trades
    ]


def _position(holding: Holding, market: Market, rules: EnvironmentConfig) -> OpenPosition:
    left = rules.max_holding_days - holding.sessions_held
    if holding.target_day is not None:
        status = f"target reached on {market.dates[holding.target_day]}"
    elif holding.days_without_bar >= rules.max_days_without_bar:
        status = f"no bar for {holding.days_without_bar} sessions, to be closed"
    elif left <= 0:
        status = "holding period over, to be closed"
    else:
        status = "exit due at the next close" if left == 1 else f"open, {left} sessions left"
    return OpenPosition(
        ticker=holding.ticker,
        shares=holding.shares,
        entry_date=str(market.dates[holding.entry_day]),
        entry_price=holding.entry_price,
        close=holding.last_price,
        unrealised_percent=100 * (holding.last_price / holding.entry_price - 1),
        sessions_held=holding.sessions_held,
        target_price=holding.target_price,
        latest_exit=session_date(market, holding.entry_day + rules.max_holding_days - 1),
        status=status,
    )
