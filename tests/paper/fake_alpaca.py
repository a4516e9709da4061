"""A server on this machine that answers like Alpaca's paper account, with acknowledgements lost, late and doubled.

Nothing waits for a clock: what comes late is an answer that the client's session throws away as if its time were over.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import requests

from data.features.nine import OPEN
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import Walk
from training.paper.alpaca import AlpacaVenue
from training.signals.broker_orders import alpaca_symbol

LATE = "X-Late"
"""Header of an answer that comes late."""


class FakeAlpaca:
    """An account whose orders are filled when `fill` is called, served until the end of the test."""

    servers: ClassVar[list[ThreadingHTTPServer]] = []

    def __init__(self, cash: float = 12_345.67) -> None:
        self.cash, self.orders, self.held = cash, list[dict[str, Any]](), dict[str, float]()
        self.faults: list[str] = []
        """Of the next orders, one each: `lost before`, `lost`, `late`, `doubled`, `503`, a status with which it is
        rejected, or `fine`; `silent` answers nothing at all while it is there, and `hangs` only once `hung` is set."""
        self.most = dict[str, float]()
        """Shares of a symbol up to which an order is executed, where it is not in full."""
        self.refused = dict[str, int]()
        """Status with which questions are answered, by the end of their path."""
        self.asked, self.hung = 0, threading.Event()
        self.servers.append(ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)))
        self.address = f"http://127.0.0.1:{self.servers[-1].server_port}"
        threading.Thread(target=self.servers[-1].serve_forever, args=(0.01,), daemon=True).start()

    @property
    def venue(self) -> AlpacaVenue:
        venue = AlpacaVenue("key", "secret", self.address)
        venue._client._retry_wait, ask = 0, venue._client._session.request

        def in_time(*words: Any, **named: Any) -> requests.Response:
            if LATE in (answer := ask(*words, **named)).headers:
                raise requests.ReadTimeout
            return answer

        venue._client._session.request = in_time  # type: ignore[method-assign]
        return venue

    def fill(self, date: str, prices: dict[str, float]) -> None:
        """Execute all open orders at prices; those without one expire."""
        for order in self.orders:
            if order["status"] != "new":
                continue
            if (price := prices.get(order["symbol"])) is None:
                order["status"] = "expired"
                continue
            filled = min(float(order["qty"]), self.most.get(order["symbol"], float("inf")))
            shares = filled * (1 if order["side"] == "buy" else -1)
            self.held[order["symbol"]] = self.held.get(order["symbol"], 0.0) + shares
            self.held = {symbol: qty for symbol, qty in self.held.items() if qty}
            self.cash -= shares * price
            order |= {"status": "filled", "filled_qty": str(filled), "filled_avg_price": str(price)}
            order["filled_at"] = f"{date}T14:30:00Z"

    def post(self, body: dict[str, Any]) -> tuple[int, Any]:
        """Take an order; one whose client id is known is refused."""
        if any(order["client_order_id"] == body["client_order_id"] for order in self.orders):
            return 422, {"code": 40010001, "message": "client_order_id must be unique"}
        known = {"id": str(len(self.orders)), "status": "new", "filled_qty": "0", "filled_avg_price": None}
        self.orders.append({**body, **known, "filled_at": None, "submitted_at": f"{len(self.orders):09d}"})
        return 200, self.orders[-1]

    def by_hand(self, date: str, symbol: str, shares: float, price: float) -> None:
        """Buy or sell as a person does at the venue's page."""
        self.post(market_order(f"hand-{len(self.orders)}", symbol, shares))
        others, self.orders = self.orders[:-1], self.orders[-1:]
        self.fill(date, {symbol: price})
        self.orders = [*others, *self.orders]

    def get(self, path: str, query: dict[str, list[str]]) -> Any:
        if path.endswith("/account"):
            return {"cash": str(self.cash)}
        if path.endswith("by_client_order_id"):
            (asked,) = query["client_order_id"]
            return next(order for order in self.orders if order["client_order_id"] == asked)
        if path.endswith("/positions"):
            return [{"symbol": symbol, "qty": str(qty)} for symbol, qty in self.held.items()]
        after = query.get("after", [""])[0]
        after = after if after.isdigit() else ""  # a time stamp of the past
        return [order for order in self.orders if order["submitted_at"] > after][: int(query["limit"][0])]


def market_order(order_id: str, symbol: str, shares: float) -> dict[str, Any]:
    side = "buy" if shares > 0 else "sell"
    return {"client_order_id": order_id, "symbol": symbol, "qty": str(abs(shares)), "side": side, "type": "market"}


def at_broker(folder: Path, agent: DDPGAgent, *days: int, **options: Any) -> tuple[FakeAlpaca, Walk]:
    """A fresh account at the server, and its walk up to some sessions."""
    account = FakeAlpaca()
    return account, stepped(Walk(folder, agent, broker=account.venue, **options), account, *days)


def stepped(walk: Walk, account: FakeAlpaca, *days: int) -> Walk:
    """The account after some more sessions, each with the orders of the one before filled at its opens."""
    for day in days:
        opens = zip(map(alpaca_symbol, walk.market.tickers), walk.market.data_array[day, :, OPEN].tolist(), strict=True)
        account.fill(str(walk.market.dates[day]), {symbol: price for symbol, price in opens if price > 0})
        walk.step(day)
    return walk


def _handler(account: FakeAlpaca) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Log nothing."""

        def do_GET(self) -> None:
            account.asked += 1
            if "silent" in account.faults:
                return self.close()
            split = urlsplit(self.path)
            for path, status in account.refused.items():
                if split.path.endswith(path):
                    return self.answer(status, {"message": f"no {path}"})
            return self.answer(200, account.get(split.path, parse_qs(split.query)))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = account.faults.pop(0) if account.faults and account.faults[0] != "silent" else "fine"
            if "silent" in account.faults or fault == "lost before":
                return self.close()
            if fault.isdigit():
                return self.answer(int(fault), {"code": int(fault) * 10**5 + 10000, "message": f"no, by {fault}"})
            code, found = account.post(body)
            if fault == "doubled":  # on the way, by the network
                account.post(body)
            if fault == "lost":
                return self.close()
            if fault == "hangs":
                account.hung.wait()
            return self.answer(code, found, is_late=fault == "late")

        def close(self) -> None:
            self.close_connection = True
            self.connection.close()

        def answer(self, code: int, found: Any, *, is_late: bool = False) -> None:
            content = json.dumps(found).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            if is_late:
                self.send_header(LATE, "yes")
            self.end_headers()
            self.wfile.write(content)

    return Handler
