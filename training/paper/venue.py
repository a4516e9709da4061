"""Where orders are executed: the interface to a broker, and the embedded venue `paper`."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from data.market import Market, span_of
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from environment.trading_rules import Orders
from training.signals.broker_orders import Side, order_id
from utils.config.trader import EnvironmentConfig
from utils.errors import ProgramError
from utils.spaces import MIN_TARGET_PERCENT


class NoAnswer(ProgramError):
    """A venue did not answer: what it did with a request, or holds, is unknown."""


class NotNow(NoAnswer):
    """A venue takes no such order at this hour: nothing was sent."""


@dataclass(frozen=True)
class Order:
    """An order for the next session."""

    id: str
    """Determined by account, session, ticker and side; the venue knows the order by it."""
    ticker: str
    side: Side
    value: float = 0.0
    """Amount to spend before costs, of a purchase."""
    coefficient: float = 0.0
    """Size of a purchase in stakes."""
    target_percent: float = 0.0
    is_own: bool = False
    """The agents decided it; the others are sales by the rules, or the basket's."""
    request: dict[str, Any] | None = None
    """Request to a broker, see `alpaca_requests`."""
    is_of_basket: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The values that the journal keeps."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Fill:
    """A purchase or a sale that was executed."""

    id: str
    """Of its order; a sale by the rules of the environment gets the id that an order to sell would have."""
    ticker: str
    side: Side
    shares: float
    price: float
    value: float
    """Amount paid or received, before costs."""
    reason: str
    """Why it was sold, see `environment.ledger.EXIT_REASONS`; empty for a purchase."""

    def in_units(self, factor: float) -> "Fill":
        """Return the fill in prices that are `factor` times these."""
        return replace(self, shares=self.shares / factor, price=self.price * factor)


@dataclass(frozen=True)
class Statement:
    """The account after a session's close; cash, equity and positions are those of its agents."""

    fills: list[Fill]
    """Of both parts."""
    cash: float
    equity: float
    positions: dict[str, float]
    """Shares by ticker."""
    basket: float
    """Equity of the basket."""
    whole: float
    """Equity of the account."""
    basket_positions: dict[str, float] = field(default_factory=dict)
    """Shares by ticker, at a broker: the embedded venue needs no record of them."""
    venue_cash: float | None = None
    """Of both parts and of what is in neither, at a broker."""
    hand_trades: list[tuple[str, str]] = field(default_factory=list)
    """Ids and sides of trades at a broker that no order of the account asked for."""


class Venue(Protocol):
    """A broker. Each method may raise `NoAnswer`: nothing follows from silence."""

    def submit(self, order: Order) -> str:
        """Send an order; return why it was rejected, in the venue's words, or "". One that is known is not doubled."""

    def open_orders(self) -> set[str]:
        """Return the ids of the orders that are not filled yet."""

    def positions(self) -> dict[str, float]:
        """Return the shares held by ticker."""

    def cash(self) -> float:
        """Return the cash."""

    def fills_since(self, day: np.datetime64) -> list[Fill]:
        """Return the fills on sessions after `day`."""


class PaperVenue:
    """The embedded venue: the account of the environment on recorded prices, which the orders rebuild, and its basket.

    It fills, sells and charges costs as training does. It can be rebuilt from the journal: the same orders on the same
    prices give the same account, bit for bit. An instance that is kept continues from its last day.
    """

    def __init__(
        self, account: str, market: Market, rules: EnvironmentConfig, start: int, basket: NDArray[np.float64]
    ) -> None:
        """Begin with cash at the close of `start`.

        Args:
            market: up to the last day that may be played.
            basket: equity of the basket at the closes from `start` on.
        """
        self._account, self._market, self._start, self._basket = account, market, start, basket
        self._stocks = investable_tickers(market)
        steps = max(1, len(market.dates) - 1 - start)
        self.portfolio = Portfolio.on(span_of(market, start, start + steps), rules, is_continuing=True)
        """The account of the environment after the last day that was played."""
        self.portfolio.reset(torch.tensor([0]), steps=steps, trading_steps=steps)

    def play(self, day: int, orders: Callable[[int], Sequence[Order]], released: Collection[int] = ()) -> None:
        """Go on to the close of a day.

        Args:
            orders: that the venue accepted, by the day at whose close they were given.
            released: days at whose close a lock ends.
        """
        portfolio = self.portfolio
        for ordered in range(self._start + portfolio.step_index, day):
            if ordered in released and portfolio.is_locked:
                portfolio.is_locked.zero_()
                portfolio.peak.copy_(portfolio.equity)
            given = orders(ordered)
            bought, sold = ([order for order in given if order.side == side] for side in ("buy", "sell"))
            rows = [(self._stocks.index(order.ticker), order.coefficient, order.target_percent) for order in bought]
            rows += [(0, 0.0, MIN_TARGET_PERCENT)] * (portfolio.orders_per_day - len(bought))
            stock, size, target = torch.tensor(rows, dtype=torch.float64).T.unsqueeze(-1)
            leaves = torch.tensor([self._stocks.index(order.ticker) for order in sold], dtype=torch.int64)
            placed = Orders(stock.long(), size, target, torch.isin(portfolio.open_stocks()[1], leaves))
            portfolio.step_orders(placed if given else None)

    def equity_on(self, day: int) -> tuple[float, float]:
        """Return the equity of the agents and of the basket at a close that was played."""
        return float(self.portfolio.equity_curve[day - self._start, 0]), float(self._basket[day - self._start])

    def positions(self) -> dict[str, float]:
        """Return the shares held by ticker."""
        trades = trade_ledger(self.portfolio, 0)
        return {self._stocks[one["stock"]]: one["shares"] for one in trades if one["exit_day"] is None}

    def fills_on(self, day: int) -> list[Fill]:
        """Return the fills on a day that was played, in the order of their decisions."""
        return fills_of(self._account, self._market, self._start, trade_ledger(self.portfolio, 0)).get(day, [])


def investable_tickers(market: Market) -> list[str]:
    """Return the tickers of the stocks."""
    return [market.tickers[column] for column in market.investable_columns.tolist()]


def fills_of(account: str, market: Market, start: int, trades: Sequence[Mapping[str, Any]]) -> dict[int, list[Fill]]:
    """Return the fills of trades by session, those of a session in the order of their decisions.

    Args:
        start: day from which the days of the trades are counted.
        trades: see `trade_ledger`.
    """
    fills, stocks = dict[int, list[Fill]](), investable_tickers(market)
    dates = market.dates.astype("datetime64[D]")

    def add(day: int, ordered: int, side: Side, trade: Mapping[str, Any], price: float, value: float) -> None:
        if start + day < len(dates):
            ticker = stocks[trade["stock"]]
            known = order_id(account, str(dates[start + ordered]), ticker, side)
            reason = "" if side == "buy" else trade["reason"]
            fills.setdefault(start + day, []).append(Fill(known, ticker, side, trade["shares"], price, value, reason))

    for trade in trades:
        price, day = trade["exit_price"], trade["exit_day"]
        add(trade["entry_day"], trade["order_day"], "buy", trade, trade["entry_price"], trade["value"])
        if day is not None:
            add(day, day - 1, "sell", trade, price, trade["shares"] * price)
    return dict(sorted(fills.items()))
