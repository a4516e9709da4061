"""Orders in the forms that brokers read: a basket of Interactive Brokers' Trader Workstation, and requests to Alpaca.

Purchases, and sales that are decided, are market orders at the next open. A position that is kept is sold at a limit on
its sale target, or at the market at the close of its last session. Orders for the open and the close take whole shares
only. All orders are for the next session only, so none of an earlier file is open when a new one is sent. Nothing is
attached to a purchase: its target depends on its fill, and an order for the open cannot have others attached. With
stops, a sale at Alpaca is one order, the limit and the stop, of which one cancels the other (OCO).

Column and field names: the users' guides of BasketTrader and of Alpaca's orders endpoint.
"""

import csv
import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from typing import Any, Literal

from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig
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
When = Literal["open", "target", "close"]
_FORMS: dict[When, tuple[str, str, str]] = {
    "open": ("OPG", "MKT", "opg"),
    "target": ("DAY", "LMT", "day"),
    "close": ("DAY", "MOC", "cls"),
}
"""Time in force and type of an order at Interactive Brokers, time in force at Alpaca."""
_ROUNDING = 1e-6
"""Part of a share by which a whole number may fall short after a change of price units."""
_CLASS_SHARE = re.compile(r"^([A-Z]+)[. /-]([A-Z])$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,20}")
_TICKER = re.compile(r"[A-Za-z0-9.^][A-Za-z0-9.^/ -]*")


@dataclass(frozen=True)
class BrokerOrder:
    """An order for the next session."""

    ticker: str
    side: Side
    shares: int
    when: When
    """Purchases are at the open, sales at the open, at the target or at the close."""
    order_id: str
    """Determined by the name of run or account, date, ticker and side."""
    limit_price: Decimal | None = None
    """Of a sale at the target: rounded up to a price that exchanges take."""
    stop_price: Decimal | None = None
    """Of a sale at the target: rounded down to such a price; None without stops."""


def order_id(name: str, date: str, ticker: str, side: Side) -> str:
    """Return the id of an order of a run or an account; a long or odd name is hashed, so that ids are short and plain.

    The same order has the same id whenever it is asked for.
    """
    if not _PLAIN_NAME.fullmatch(name):
        name = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:12]
    return f"{name}-{date}-{ticker.replace(' ', '.')}-{side}"


def broker_orders(
    name: str,
    date: str,
    purchases: Mapping[str, float],
    holdings: Sequence[Holding],
    rules: EnvironmentConfig,
    sales: Sequence[str] = (),
) -> list[BrokerOrder]:
    """Return the sales of the holdings, then the purchases, in whole shares; orders of no share are left out.

    Args:
        name: of the run or the account.
        date: session at whose close they are decided.
        purchases: shares by ticker.
        sales: tickers of the holdings that are sold at the open.

    Raises:
        DataError: as `for_brokers`.
    """
    orders = []
    for holding in holdings:
        when: When = "open" if holding.ticker in sales else "close" if holding.is_due(rules) else "target"
        limit = _tick(holding.target_price, ROUND_UP) if when == "target" else None
        stop = _tick(holding.stop_price(rules), ROUND_DOWN) if when == "target" else None
        orders.append(
            BrokerOrder(
                ticker=holding.ticker,
                side="sell",
                shares=math.floor(holding.shares + _ROUNDING),
                when=when,
                order_id=order_id(name, date, holding.ticker, "sell"),
                limit_price=limit,
                stop_price=stop,
            )
        )
    for ticker, size in purchases.items():
        orders.append(BrokerOrder(ticker, "buy", math.floor(size), "open", order_id(name, date, ticker, "buy")))
    return for_brokers(orders)


def netted(orders: Sequence[BrokerOrder]) -> list[BrokerOrder]:
    """Return orders, sales first, of which no two of one ticker are opposite, as brokers reject, or both at the open.

    What is bought and sold is one order at the open, for the difference. A sale target beside a purchase is left out.
    """
    found = list[BrokerOrder]()
    for ticker in dict.fromkeys(order.ticker for order in orders):
        own = [order for order in orders if order.ticker == ticker]
        if len({order.side for order in own}) > 1:
            own = [replace(order, when="open") for order in own if order.when != "target"]
        at_open = [order for order in own if order.when == "open"]
        size = sum(order.shares if order.side == "buy" else -order.shares for order in at_open)
        same = [order for order in at_open if (order.side == "buy") == (size > 0)]
        found += [order for order in own if order.when != "open"]
        found += [replace(max(same, key=lambda one: one.shares), shares=abs(size))] if size else []
    return sorted(found, key=lambda order: order.side, reverse=True)


def for_brokers(orders: Sequence[BrokerOrder]) -> list[BrokerOrder]:
    """Return the orders without those of no share.

    Raises:
        DataError: a ticker has characters that no broker's ticker has, and that could be read as another order.
    """
    for order in orders:
        require_symbol(order.ticker)
    return [order for order in orders if order.shares > 0]


def require_symbol(ticker: str) -> None:
    """Raise DataError for a ticker with characters that no broker's has, and that could be read as another order."""
    if not _TICKER.fullmatch(ticker):
        raise DataError(
            f"expected tickers of letters, digits and . ^ / - for a broker, got {ticker!r}; rename it in the data, or "
            "leave out the broker"
        )


def ib_basket(orders: Sequence[BrokerOrder]) -> str:
    """Return the orders as BasketTrader reads them: CSV under one header, US stocks on the route SMART."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(IB_COLUMNS)
    for order in orders:
        symbol, form = _CLASS_SHARE.sub(r"\1 \2", order.ticker), _FORMS[order.when][:2]
        places = (order.shares, symbol, "STK", "SMART", "USD", *form, order.limit_price, order.order_id)
        writer.writerow([order.side.upper(), *places])
    return text.getvalue()


def alpaca_symbol(ticker: str) -> str:
    """Return a ticker as Alpaca writes it: BRK.B."""
    return _CLASS_SHARE.sub(r"\1.\2", ticker)


def alpaca_requests(orders: Sequence[BrokerOrder]) -> list[dict[str, Any]]:
    """Return the bodies of requests to Alpaca's orders endpoint, numbers as text."""
    return [
        {
            "symbol": alpaca_symbol(order.ticker),
            "qty": str(order.shares),
            "side": order.side,
            "type": "limit" if order.limit_price else "market",
            "time_in_force": _FORMS[order.when][2],
            "client_order_id": order.order_id,
            **_prices(order),
        }
        for order in orders
    ]


def _prices(order: BrokerOrder) -> dict[str, object]:
    if order.limit_price is None:
        return {}
    limit: dict[str, object] = {"limit_price": str(order.limit_price)}
    stop = {"stop_price": str(order.stop_price)}
    return {"order_class": "oco", "take_profit": limit, "stop_loss": stop} if order.stop_price else limit


def _tick(price: float | None, rounding: str) -> Decimal | None:
    """Return the price, if any, rounded to cents, below 1 to hundredths of a cent, without float noise."""
    if price is None:
        return None
    exact = Decimal(f"{price:.9g}")
    return exact.quantize(Decimal("0.01") if exact >= 1 else Decimal("0.0001"), rounding)
