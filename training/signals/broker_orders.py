"""Orders in the forms that brokers read: a basket of Interactive Brokers' Trader Workstation, and requests to Alpaca.

All are market orders in whole shares for the next open alone, one a stock, sales first: none of an earlier file is open
when a new one is sent.

Column and field names: the users' guides of BasketTrader and of Alpaca's orders endpoint.
"""

import csv
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from utils.arrays import Float64Array, Int64Array
from utils.errors import DataError

IB_COLUMNS = (
    "Action",
    "Quantity",
    "Symbol",
    "SecType",
    "Exchange",
    "Currency",
    "TimeInForce",
    "OrderType",
    "LmtPrice",
    "BasketTag",
)
Side = Literal["buy", "sell"]
LEAST_SHARE = 0.001
"""Value of the smallest order, as a share of the equity, unless somebody says another one: trading less often costs
less where a broker takes a fee for each order."""
_ROUNDING = 1e-6
"""Part of a share by which a whole number may be missed after a change of price units."""
_CLASS_SHARE = re.compile(r"^([A-Z]+)[. /-]([A-Z])$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,20}")
_TICKER = re.compile(r"[A-Za-z0-9.^][A-Za-z0-9.^/ -]*")


@dataclass(frozen=True)
class Deal:
    """A purchase or a sale, ordered or executed."""

    id: str
    """Of its order, determined by the name of run or account, session, ticker and side; a broker knows it by this."""
    ticker: str
    side: Side
    shares: float
    """Whole ones at a broker; of a paper account in the account's units."""

    @property
    def sign(self) -> int:
        """1 of a purchase, -1 of a sale."""
        return 1 if self.side == "buy" else -1


@dataclass(frozen=True)
class Order(Deal):
    """An order at the market for the next open."""

    request: dict[str, Any] | None = None
    """What a paper account asks of its broker, see `alpaca_request`."""

    @classmethod
    def of(cls, name: str, date: str, ticker: str, shares: float) -> Self:
        """Order shares, negative: to sell, for a run or an account at the close of a session.

        The same order has the same id whenever it is asked for; a long or odd name is hashed, so that ids are short and
        plain.
        """
        side: Side = "buy" if shares > 0 else "sell"
        if not _PLAIN_NAME.fullmatch(name):
            name = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
        return cls(f"{name}-{date}-{ticker.replace(' ', '.')}-{side}", ticker, side, abs(shares))


def whole_shares(
    lacking: Float64Array, price: Float64Array, held: Float64Array, cash: float, cost_rate: float, least: float
) -> Int64Array:
    """Return the whole shares to buy, negative: to sell, for (n,) shares that are lacking at some prices.

    Sales are rounded to the nearest share that is held. Purchases never take more than the cash and what sales leave
    after costs: they are cut by one factor if they have to be, and then rounded down, and what that leaves of the money
    buys one share more of each stock, by largest remainder. What is worth less than `least`, or is then, waits.
    """
    price = np.nan_to_num(price)
    lacking = np.where(np.abs(lacking) * price >= max(least, _ROUNDING), np.nan_to_num(lacking), 0.0)
    sold = np.minimum(np.floor(np.maximum(-lacking, 0.0) + 0.5), np.floor(held + _ROUNDING))
    free = max(0.0, cash + float(sold @ price) * (1 - cost_rate)) * (1 - 1e-12)
    wanted, unit = np.maximum(lacking, 0.0), price * (1 + cost_rate)
    while True:
        cut = wanted * min(1.0, free / max(float(wanted @ unit), 1e-300))
        worth = np.where(cut > 0, cut * price, np.inf)
        if not worth.size or worth.min() >= least:
            break
        wanted[worth.argmin()] = 0.0
    wanted = cut
    bought = np.floor(wanted)
    left = min(free, float(wanted @ unit)) - float(bought @ unit)
    for stock in np.argsort(bought - wanted, kind="stable"):
        if wanted[stock] > bought[stock] + _ROUNDING and unit[stock] <= left:
            bought[stock] += 1
            left -= unit[stock]
    return np.asarray(bought - sold, dtype=np.int64)


def broker_orders(name: str, date: str, shares: Mapping[str, int]) -> list[Order]:
    """Return the orders for whole shares by ticker, negative: to sell, which come first; none of no share.

    Args:
        name: of the run or the account.
        date: session at whose close they are decided.

    Raises:
        DataError: a ticker has characters that no broker's ticker has, and that could be read as another order.
    """
    orders = list[Order]()
    for ticker, size in sorted(shares.items(), key=lambda one: one[1] > 0):
        require_symbol(ticker)
        if size:
            orders.append(Order.of(name, date, ticker, size))
    return orders


def require_symbol(ticker: str) -> None:
    """Raise DataError for a ticker with characters that no broker's has, and that could be read as another order."""
    if not _TICKER.fullmatch(ticker):
        raise DataError(
            f"expected tickers of letters, digits and . ^ / - for a broker, got {ticker!r}; rename it in the data, or "
            "leave out the broker"
        )


def ib_basket(orders: Sequence[Order]) -> str:
    """Return the orders as BasketTrader reads them: CSV under one header, US stocks on the route SMART."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(IB_COLUMNS)
    for order in orders:
        symbol = _CLASS_SHARE.sub(r"\1 \2", order.ticker)
        places = (order.shares, symbol, "STK", "SMART", "USD", "OPG", "MKT", None, order.id)
        writer.writerow([order.side.upper(), *places])
    return text.getvalue()


def alpaca_symbol(ticker: str) -> str:
    """Return a ticker as Alpaca writes it: BRK.B."""
    return _CLASS_SHARE.sub(r"\1.\2", ticker)


def alpaca_request(order: Order) -> dict[str, Any]:
    """Return the body of a request to Alpaca's orders endpoint, numbers as text."""
    return {
        "symbol": alpaca_symbol(order.ticker),
        "qty": str(order.shares),
        "side": order.side,
        "type": "market",
        "time_in_force": "opg",
        "client_order_id": order.id,
    }
