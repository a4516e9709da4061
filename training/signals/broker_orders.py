"""Orders in the forms that brokers read: a basket of Interactive Brokers' Trader Workstation, and requests to Alpaca.

Purchases are market orders at the next open. A position is sold at a limit on its sale target, or at the market at the
close of its last session. All orders are for the next session only, so none of an earlier file is open when a new one
is sent. Market-on-open and market-on-close orders take whole shares only: a fractional quantity is a day order, which
at the market fills after the open. Nothing is attached to a purchase: its target depends on its fill, and an order for
the open cannot have others attached. With stops, a position of whole shares is one order at Alpaca, the limit and the
stop, of which one cancels the other (OCO).

Column and field names: the users' guides of BasketTrader and of Alpaca's orders endpoint.
"""

import csv
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_FLOOR, ROUND_UP, Decimal
from typing import Literal

from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

IB_COLUMNS = (
    *("Action", "Quantity", "Symbol", "SecType", "Exchange", "Currency"),
    *("TimeInForce", "OrderType", "LmtPrice", "BasketTag"),
)
BROKER_NOTES = (
    "the orders are for the next session alone: write and send new files for each",
    "quantities refer to the last close, a higher open costs more; sale targets of purchases depend on their fills and "
    "are written once they are held (--positions)",
)
FRACTIONS_NOTE = (
    "%d of %d quantities have fractions of a share (%s), which orders for the open or the close (MOO, OPG, MOC) do not "
    "take: these are day orders, which at the market fill after the open; --whole-shares rounds down"
)
"""Takes the number of such orders, of all, and the tickers."""
STOPS_NOTE = (
    "Alpaca's file has the stops of positions of whole shares; set all others at the broker: those of new positions, "
    "of fractions of shares and of Interactive Brokers' basket"
)
When = Literal["open", "target", "close"]
_FORMS: dict[When, tuple[str, str, str]] = {
    "open": ("OPG", "MKT", "opg"),
    "target": ("DAY", "LMT", "day"),
    "close": ("DAY", "MOC", "cls"),
}
"""Time in force and type of an order of whole shares at Interactive Brokers, time in force at Alpaca."""
_CLASS_SHARE = re.compile(r"^([A-Z]+)[. /-]([A-Z])$")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,20}")
_TICKER = re.compile(r"[A-Za-z0-9.^][A-Za-z0-9.^/ -]*")
_SHARE_STEP = Decimal("0.0001")


@dataclass(frozen=True)
class BrokerOrder:
    """An order for the next session."""

    ticker: str
    quantity: Decimal
    when: When
    """A purchase at the open, a sale at the target, or a sale at the close."""
    limit_price: Decimal | None
    """Of a sale at the target: rounded up to a price that exchanges take."""
    order_id: str
    """Determined by the name of run or account, date, ticker and side."""
    stop_price: Decimal | None = None
    """Of a sale at the target: rounded down to such a price; None without stops."""

    @property
    def side(self) -> Literal["buy", "sell"]:
        return "buy" if self.when == "open" else "sell"

    @property
    def is_whole(self) -> bool:
        return self.quantity == self.quantity.to_integral_value()

    @property
    def digits(self) -> str:
        """The quantity without zeros at its end."""
        return f"{self.quantity.normalize():f}"


def order_id(name: str, date: str, ticker: str, side: Literal["buy", "sell"]) -> str:
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
    whole_shares: bool,
) -> list[BrokerOrder]:
    """Return the sales of the holdings, then the purchases; orders of no share are left out.

    Args:
        name: of the run or the account.
        date: session at whose close they are decided.
        purchases: shares by ticker.
        whole_shares: quantities are rounded down to whole shares, else to ten-thousandths.

    Raises:
        DataError: a ticker has characters that no broker's ticker has, and that could be read as another order.
    """
    step = Decimal(1) if whole_shares else _SHARE_STEP

    def order(
        ticker: str, shares: float, when: When, target: float | None = None, stop: float | None = None
    ) -> BrokerOrder:
        if not _TICKER.fullmatch(ticker):
            raise DataError(
                f"expected tickers of letters, digits and . ^ / - in files for brokers, got {ticker!r}; rename it in "
                "the data, or leave out --ib and --alpaca"
            )
        side: Literal["buy", "sell"] = "buy" if when == "open" else "sell"
        quantity, known = Decimal(shares).quantize(step, ROUND_FLOOR), order_id(name, date, ticker, side)
        return BrokerOrder(ticker, quantity, when, _tick(target, ROUND_UP), known, _tick(stop, ROUND_DOWN))

    sales = [
        order(held.ticker, held.shares, "close")
        if held.is_due(rules)
        else order(held.ticker, held.shares, "target", held.target_price, held.stop_price(rules))
        for held in holdings
    ]
    bought = [order(ticker, shares, "open") for ticker, shares in purchases.items()]
    return [one for one in (*sales, *bought) if one.quantity > 0]


def ib_basket(orders: Sequence[BrokerOrder]) -> str:
    """Return the orders as BasketTrader reads them: CSV under one header, US stocks on the route SMART."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(IB_COLUMNS)
    for order in orders:
        form = _FORMS[order.when][:2] if order.is_whole else ("DAY", "LMT" if order.limit_price else "MKT")
        symbol = _CLASS_SHARE.sub(r"\1 \2", order.ticker)
        places = (order.digits, symbol, "STK", "SMART", "USD", *form, order.limit_price, order.order_id)
        writer.writerow([order.side.upper(), *places])
    return text.getvalue()


def alpaca_requests(orders: Sequence[BrokerOrder]) -> str:
    """Return a JSON list of the bodies of requests to Alpaca's orders endpoint, numbers as text."""
    requests = [
        {
            "symbol": _CLASS_SHARE.sub(r"\1.\2", order.ticker),
            "qty": order.digits,
            "side": order.side,
            "type": "limit" if order.limit_price else "market",
            "time_in_force": _FORMS[order.when][2] if order.is_whole else "day",
            "client_order_id": order.order_id,
            **_prices(order),
        }
        for order in orders
    ]
    return json.dumps(requests, indent=2) + "\n"


def _prices(order: BrokerOrder) -> dict[str, object]:
    """Return the limit of a sale at the target, with its stop where Alpaca takes both: for whole shares."""
    if order.limit_price is None:
        return {}
    if order.stop_price is None or not order.is_whole:
        return {"limit_price": str(order.limit_price)}
    target, stop = {"limit_price": str(order.limit_price)}, {"stop_price": str(order.stop_price)}
    return {"order_class": "oco", "take_profit": target, "stop_loss": stop}


def _tick(price: float | None, rounding: str) -> Decimal | None:
    """Return the price, if any, rounded to cents, below 1 to hundredths of a cent, without float noise."""
    if price is None:
        return None
    exact = Decimal(f"{price:.9g}")
    return exact.quantize(Decimal("0.01") if exact >= 1 else Decimal("0.0001"), rounding)
