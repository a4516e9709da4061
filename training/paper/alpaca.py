"""Alpaca's paper account as a venue, by `alpaca-py` (requirements-alpaca.txt)."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit

import numpy as np
import requests

from training.paper.venue import Fill, NoAnswer, Order, Status
from utils.errors import ConfigError, DataError

PAPER = "https://paper-api.alpaca.markets"
KEY, SECRET, ENDPOINT = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY", "APCA_API_BASE_URL"
_HOSTS = ("paper-api.alpaca.markets", "127.0.0.1", "localhost")
_SECONDS = 10.0
_MOST_ORDERS = 500
"""That an answer of Alpaca holds."""


class AlpacaVenue:
    """Alpaca's paper account; orders carry our ids as client order ids, which Alpaca accepts once."""

    def __init__(self, key: str, secret: str, endpoint: str = PAPER) -> None:
        """Raises ConfigError where `alpaca-py` is missing, or the endpoint is not that of paper accounts."""
        if urlsplit(endpoint).hostname not in _HOSTS:
            raise ConfigError(
                f"expected {PAPER} in {ENDPOINT}, got {endpoint!r}; this program trades on paper accounts only"
            )
        try:
            from alpaca.trading.client import TradingClient
        except ImportError:
            raise ConfigError("expected alpaca-py; install it by: pip install -r requirements-alpaca.txt") from None
        self._client = TradingClient(key, secret, paper=True, url_override=endpoint)
        # Nothing is sent twice by the library: whether an order arrived is asked, not guessed.
        self._client._retry = 0
        session = self._client._session
        session.request = partial(session.request, timeout=_SECONDS)  # type: ignore[method-assign]

    @classmethod
    def of_environment(cls) -> Self:
        """Return the venue by the variables of the environment; ConfigError where a key is missing."""
        missing = [name for name in (KEY, SECRET) if not os.environ.get(name)]
        if missing:
            raise ConfigError(f"expected the keys of a paper account in {' and '.join(missing)}, got none")
        return cls(os.environ[KEY], os.environ[SECRET], os.environ.get(ENDPOINT, PAPER))

    def submit(self, order: Order) -> Status:
        """Send an order; an id that Alpaca knows already counts as accepted."""
        from alpaca.common.exceptions import APIError

        try:
            self._ask(lambda: self._client.post("/orders", order.request))
        except APIError as error:
            is_known = error.status_code == 422 and "client_order_id" in str(error)
            return "accepted" if is_known else "rejected"
        return "accepted"

    def open_orders(self) -> set[str]:
        """Return the ids of the orders that Alpaca still works on."""
        return {order["client_order_id"] for order in self._orders("open")}

    def positions(self) -> dict[str, float]:
        """Return the shares held by ticker."""
        return {one["symbol"]: float(one["qty"]) for one in self._ask(lambda: self._client.get("/positions"))}

    def cash(self) -> float:
        """Return the cash."""
        return float(self._ask(lambda: self._client.get("/account"))["cash"])

    def fills_since(self, day: np.datetime64) -> list[Fill]:
        """Return what was executed after `day`, an order's parts as one fill."""
        fills = []
        for order in self._orders("all", after=f"{day}T00:00:00Z"):
            shares, side = float(order["filled_qty"] or 0), order["side"]
            if shares > 0 and np.datetime64(order["filled_at"][:10]) > day:
                price, reason = float(order["filled_avg_price"]), "" if side == "buy" else order["type"]
                what = order["client_order_id"], order["symbol"], side, shares, price, shares * price, reason
                fills.append(Fill(*what))
        return sorted(fills, key=lambda fill: fill.id)

    def _orders(self, status: str, **query: str) -> list[dict[str, Any]]:
        asked = {"status": status, "limit": _MOST_ORDERS, **query}
        found: list[dict[str, Any]] = self._ask(lambda: self._client.get("/orders", asked))
        if len(found) == _MOST_ORDERS:
            raise DataError(f"expected fewer than {_MOST_ORDERS} orders since the last step, got more; step each day")
        return found

    def _ask(self, call: Callable[[], Any]) -> Any:
        """Return the answer; raises NoAnswer for silence and for errors of the server, which tell nothing."""
        from alpaca.common.exceptions import APIError

        try:
            return call()
        except APIError as error:
            if error.status_code in (401, 403):
                raise ConfigError(f"expected valid keys in {KEY} and {SECRET}, got {error.status_code}") from None
            if error.status_code is None or error.status_code >= 500 or error.status_code in (408, 429):
                raise NoAnswer(f"expected an answer of Alpaca, got status {error.status_code}; step again") from None
            raise
        except (requests.RequestException, ValueError) as error:
            raise NoAnswer(f"expected an answer of Alpaca, got {type(error).__name__}; step again") from None
