"""The next session's orders of one agent, decided at a close and filled by the environment's own rules."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from data.features import CLOSE, HIGH, OPEN
from data.market import Market
from environment.ledger import Bars
from environment.orders import Orders
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from models.ddpg_agent import DDPGAgent
from models.trader import DailyOrders, Forecasts
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
    percent_of_capital: float
    expected_percent: float | None
    """Expected result after costs, percent of its value; None on days on which the orders hold the market."""
    close: float
    """Reference: the close at which it was decided."""
    target_percent: float
    """Sale target above the price at which the order is filled."""
    target_price: float
    """Sale target if it were filled at the reference close."""
    latest_exit: str


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
    stop_price: float | None
    """None where the rules have no stop."""
    latest_exit: str
    status: str


@dataclass(frozen=True)
class Signals:
    """The state of an account at a close, and the agent's orders."""

    date: str
    next_session: str
    capital: float
    cash: float
    equity: float
    orders: list[Order]
    positions: list[OpenPosition]
    best_candidate: str | None
    """Ticker with the highest score among those that may be ordered."""
    best_expected_percent: float | None
    """Its forecast after costs, percent of an order's value."""
    is_forecast: bool
    """The agent decides on this day; on the others the orders hold the market round robin."""
    is_locked: bool = False
    """Equity has fallen as far as the rules allow: there are no orders until a person says so."""


@dataclass(frozen=True)
class Decision:
    """An agent's decision at a close."""

    portfolio: Portfolio
    """The account before a session in which every stock opens at this close: the environment's rules choose and size
    the orders without the data of the days after. It holds the cash alone, and one lane."""
    placed: DailyOrders
    forecasts: Forecasts
    day: int
    positions: Tensor
    """(n, POSITION_FEATURES)"""

    @property
    def orders(self) -> Orders:
        """The orders as in rollouts, the best first, (orders per day, 1) each."""
        target = self.placed.target_percent.clamp(MIN_TARGET_PERCENT, MAX_TARGET_PERCENT)
        parts = self.placed.stock, self.placed.coefficient.double(), target.double()
        return Orders(*(part.T.cpu() for part in parts))


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
    forecasts = agent.forecasts(market, days=slice(day, day + 1))
    # A position that is due, or whose target is reached, is still held at this close.
    positions = torch.zeros(portfolio.bars.stocks, POSITION_FEATURES)
    place = {column: stock for stock, column in enumerate(market.investable_columns.tolist())}
    if holdings:
        positions[[place[holding.column] for holding in holdings]] = position_features(holdings, rules)
    placed = agent.place(positions, portfolio.account()[0], forecasts, day)
    return Decision(portfolio, placed, forecasts, day, positions)


def cash_left(holdings: list[Holding], rules: EnvironmentConfig) -> float:
    """Return the rest of the initial capital after buying these positions.

    Raises:
        ConfigError: they cost more than the capital.
    """
    left = rules.initial_capital - sum(holding.value for holding in holdings) * rules.purchase_factor
    if left < 0:
        raise ConfigError(
            f"expected positions that cost at most the capital of {rules.initial_capital:,.0f}, got {-left:,.0f} more; "
            "give --capital, or --cash"
        )
    return left


def make_signals(
    agent: DDPGAgent,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: list[Holding],
    peak: float = 0.0,
) -> Signals:
    """Return the orders of `agent` at the close of `day`, as on the first day of an episode.

    Sizes refer to the initial capital of the rules; `cash` and `holdings` are the account at that close, `peak` is its
    highest equity so far, at least the initial capital. A drawdown lock applies to them.

    Raises:
        DataError: the day precedes the training days.
    """
    if day < market.splits.train.first:
        raise DataError(
            f"expected a day from {market.dates[market.splits.train.first]} on, the first training day, got "
            f"{market.dates[day]}"
        )
    decision = decide(agent, market, day, rules, cash, holdings)
    portfolio, forecasts, placed = decision.portfolio, decision.forecasts, decision.placed
    tickers = [market.tickers[column] for column in market.investable_columns]
    target = forecasts.target[:, day].scatter(1, placed.stock, placed.target_percent)
    action, is_forecast, equity = placed.action(target).cpu(), agent.decides_on(day), float(portfolio.equity)
    is_locked = rules.drawdown_lock > 0 and equity <= max(peak, rules.initial_capital, equity) * (
        1 - rules.drawdown_lock / 100
    )
    expected = forecasts.expected[0, day].cpu() / rules.largest_order
    is_free = portfolio.candidates()[0] & (decision.positions[:, 0] == 0)
    best = int(torch.where(is_free, forecasts.score[0, day].cpu(), -torch.inf).argmax())
    has_candidate = bool(is_free[best] & expected[best].isfinite())
    portfolio.step(torch.zeros_like(action) if is_locked else action)
    return Signals(
        date=str(market.dates[day]),
        next_session=session_date(market, day + 1),
        capital=rules.initial_capital,
        cash=cash,
        equity=equity,
        orders=[
            Order(
                ticker=tickers[trade["stock"]],
                coefficient=float(action[0, trade["stock"], 0]),
                value=trade["value"],
                percent_of_capital=100 * trade["value"] / rules.initial_capital,
                expected_percent=float(expected[trade["stock"]]) if is_forecast else None,
                close=trade["entry_price"],
                target_percent=float(action[0, trade["stock"], 1]),
                target_price=trade["target_price"],
                latest_exit=session_date(market, day + trade["entry_day"] + rules.max_holding_days - 1),
            )
            for trade in trade_ledger(portfolio, 0)
        ],
        positions=[_position(holding, market, rules) for holding in holdings],
        best_candidate=tickers[best] if has_candidate else None,
        best_expected_percent=float(expected[best]) if has_candidate else None,
        is_forecast=is_forecast,
        is_locked=is_locked,
    )


def session_date(market: Market, day: int) -> str:
    """Return the date of a session; after the end of the data an estimate in business days, without holidays."""
    beyond = day - (len(market.dates) - 1)
    return str(market.dates[day] if beyond <= 0 else np.busday_offset(market.dates[-1], beyond, roll="backward"))


def _position(holding: Holding, market: Market, rules: EnvironmentConfig) -> OpenPosition:
    left, stopped, reached = rules.max_holding_days - holding.sessions_held, holding.stop_day(rules), holding.target_day
    if stopped is not None and (reached is None or stopped <= reached):
        status = f"stop reached on {market.dates[stopped]}, to be closed"
    elif reached is not None:
        status = f"target reached on {market.dates[reached]}"
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
        stop_price=holding.stop_price(rules),
        latest_exit=session_date(market, holding.entry_day + rules.max_holding_days - 1),
        status=status,
    )
