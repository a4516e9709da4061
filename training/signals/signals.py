"""What to trade at the next open: from cash and holdings at a close to an agent's target weights, in whole shares."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from data.features.nine import CLOSE
from data.market import Market, days_up_to
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from training.rollout import follow
from training.signals.broker_orders import LEAST_SHARE, Side, whole_shares
from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

_EXPLAINED, _REASONS = 10, 3
"""Orders, the largest, of which is told what moved their forecasts, and inputs that are named."""


@dataclass(frozen=True)
class Order:
    """An order at the market for the next open, in whole shares; amounts in currency units."""

    ticker: str
    side: Side
    shares: int
    value: float
    """Before costs, at the close."""
    close: float
    """Reference: the close at which it was decided."""
    weight_percent: float
    """What is held, percent of the equity."""
    target_percent: float
    """What is to be held."""
    expected_percent: float | None
    """Expected gain of a unit, percent, later sessions discounted; None where nobody forecasts."""
    moved_by: str | None = None
    """The inputs that moved the forecast most, with what each added, percent; of the largest orders."""


@dataclass(frozen=True)
class Signals:
    """The state of an account at a close, and its orders."""

    date: str
    next_session: str
    cash: float
    equity: float
    shrink: float
    """Share of the differences between scores that is believed; 0: the benchmark is held."""
    orders: list[Order]
    """Sales first, the largest first."""
    waiting: int
    """Stocks of which less than an order, or than a share, is lacking or too much."""
    positions: list[dict[str, Any]]
    """What is held: shares, close, weight, target weight and unrealised return."""
    is_locked: bool = False
    """Equity has fallen as far as the rules allow: nothing is bought until a person says so."""

    @property
    def by_ticker(self) -> dict[str, int]:
        """Shares that are ordered, negative: sold."""
        return {order.ticker: order.shares if order.side == "buy" else -order.shares for order in self.orders}


_FEWEST_BARS = 0.5
"""A session with fewer bars than this share of those of the sessions before counts as incomplete."""
_BEFORE = 20


def few_bars(market: Market, day: int) -> str:
    """Say how many tickers had bars on the sessions before one that has far fewer; empty where it does not."""
    bars = np.isfinite(market.data_array[max(0, day - _BEFORE) : day + 1, :, CLOSE]).sum(axis=1)
    usual = float(np.median(bars[:-1])) if len(bars) > 1 else 0.0
    is_usual = bars[-1] >= _FEWEST_BARS * usual
    return "" if is_usual else f"some {usual:.0f} bars on {market.dates[day]} as before, got {bars[-1]}"


def newest_day(market: Market) -> int:
    """Return the last day; DataError where too few tickers have a bar on it to decide anything."""
    day = last = len(market.dates) - 1
    if text := few_bars(market, last):
        while few_bars(market, day):
            day -= 1
        date, full = market.dates[[last, day]]
        raise DataError(
            f"expected {text} of {len(market.tickers)} tickers; give data with all of them, --date {full} for the last "
            f"full session, or --date {date} to take it as it is"
        )
    return last


def portfolio_at(
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    benchmark: Benchmark,
    columns: Sequence[int],
    cash: float,
    holdings: Sequence[Holding],
    device: torch.device,
) -> Portfolio:
    """Return an account at the close of `day`, beside a fresh benchmark; nothing beyond that close is in its prices.

    Args:
        columns: of its stocks: those of the benchmark, then others that it holds.
    """
    shares = {one.column: one.shares for one in holdings}
    parts = torch.nn.functional.pad(benchmark.parts, (0, len(columns) - len(benchmark.columns)))
    # Of the next session, which the account needs to decide for, nothing is known; its volume neither.
    known = replace(days_up_to(days_up_to(market, day), day + 1), volume=None)
    portfolio = Portfolio.on(known, replace(rules, volume_cap=0.0), device, Benchmark(np.array(columns), parts))
    portfolio.begin(torch.tensor([day]), steps=1)
    held = torch.tensor([[shares.get(column, 0.0) for column in columns]], dtype=torch.float64)
    portfolio.hold(held, torch.tensor([cash], dtype=torch.float64))
    return portfolio


def make_signals(
    agent: DDPGAgent,
    benchmark: Benchmark,
    market: Market,
    day: int,
    rules: EnvironmentConfig,
    cash: float,
    holdings: Sequence[Holding] = (),
    *,
    peak: float = 0.0,
    least: float | None = None,
) -> Signals:
    """Return what brings an account with this cash and these holdings at the close of `day` to an agent's weights.

    Args:
        peak: its highest equity so far, to which a drawdown lock refers; default: the equity.
        least: value of the smallest order; what is lacking below it waits for another day. Default: 0.1% of the equity.

    Raises:
        DataError: the day precedes the training days.
    """
    first, dates = market.splits.train.first, market.dates
    if day < first:
        raise DataError(f"expected a day from {dates[first]} on, the first training day, got {dates[day]}")
    rules = replace(rules, initial_capital=max(1.0, peak))
    known = benchmark.columns.tolist()
    columns = [*known, *(one.column for one in holdings if one.column not in known)]
    portfolio = portfolio_at(market, day, rules, benchmark, columns, cash, holdings, agent.device)
    account, forecasts = portfolio.account, agent.forecasts(market, slice(day, day + 1))
    target = follow(agent, forecasts)(portfolio)
    target[:, len(known) :] = 0.0  # nobody holds these
    parts = account.last, account.shares, account.orders(target), account.weights, target
    price, held, lacking, weights, aims = (part[0].cpu().numpy() for part in parts)
    equity = float(account.equity)
    least = LEAST_SHARE * equity if least is None else least
    sizes = whole_shares(lacking, price, held, cash, rules.cost_rate, least)
    names = ("ticker", "shares", "close", "weight_percent", "target_percent")
    tickers = [market.tickers[column] for column in columns]
    values = tickers, *(one.tolist() for one in (held, price, 100 * weights, 100 * aims))
    stocks = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    score = {int(one): float(s) for one, s in zip(market.investable_columns, forecasts.score[0, day], strict=True)}
    worth = sizes * price
    orders = [
        Order(
            **stocks[place] | {"shares": abs(int(sizes[place]))},
            side="buy" if sizes[place] > 0 else "sell",
            value=abs(float(worth[place])),
            expected_percent=score.get(columns[place]),
        )
        for place in sorted(np.flatnonzero(sizes).tolist(), key=lambda one: (sizes[one] > 0, -abs(worth[one])))
    ]
    told = {holding.column: holding for holding in holdings}
    return Signals(
        date=str(dates[day]),
        next_session=session_date(market, day + 1),
        cash=cash,
        equity=equity,
        shrink=agent.shrink,
        orders=_explained(orders, agent, market, day),
        waiting=int(((lacking != 0) & (sizes == 0)).sum()),
        positions=[
            {**stock, "unrealised_percent": told[column].unrealised(stock["close"])}
            for column, stock in zip(columns, stocks, strict=True)
            if column in told
        ],
        is_locked=bool(account.is_locked),
    )


def _explained(orders: Sequence[Order], agent: DDPGAgent, market: Market, day: int) -> list[Order]:
    """Say of the largest orders what moved their forecasts, where these are followed."""
    forecast = [one for one in orders if one.expected_percent is not None and np.isfinite(one.expected_percent)]
    largest = sorted(forecast, key=lambda one: -one.value)[:_EXPLAINED] if agent.shrink > 0 else []
    texts = moved_by(agent, market, [(day, market.tickers.index(order.ticker)) for order in largest])
    told = dict(zip((order.ticker for order in largest), texts, strict=True))
    return [replace(order, moved_by=told.get(order.ticker)) for order in orders]


def moved_by(agent: DDPGAgent, market: Market, places: Sequence[tuple[int, int]]) -> list[str]:
    """Return for days and columns of the market the inputs that moved the forecast most, and by how much, percent."""
    reasons = ([*one.items()][:_REASONS] for one in agent.contributions(market, places))
    return [", ".join(f"{name} {percent:+.2f}" for name, percent in one) for one in reasons]


def session_date(market: Market, day: int) -> str:
    """Return the date of a session; after the end of the data an estimate in business days, without holidays."""
    beyond = day - (len(market.dates) - 1)
    return str(market.dates[day] if beyond <= 0 else np.busday_offset(market.dates[-1], beyond, roll="backward"))
