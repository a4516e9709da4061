"""Alpaca's paper account as a venue, by `alpaca-py` (requirements-alpaca.txt)."""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, time
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import numpy as np
import requests

from training.paper.book import Fill, NoAnswer, NotNow
from training.signals.broker_orders import Order
from utils.errors import ConfigError, DataError

PAPER = "https://paper-api.alpaca.markets"
KEY, SECRET, ENDPOINT = "APCA_API_KEY_ID", "APCA_API_SECRET_KEY", "APCA_API_BASE_URL"
_HOSTS = ("paper-api.alpaca.markets", "127.0.0.1", "localhost")
_SECONDS = 10.0
_MOST_ORDERS = 500
"""That an answer of Alpaca holds."""
_ENDED = ("canceled", "expired", "rejected")
_RETRIES, _RETRY_SECONDS = 20, 5
"""Of a request that is one too many: Alpaca takes 200 a minute."""
_NEW_YORK = ZoneInfo("America/New_York")
_REFUSED = time(9, 28), time(19)
"""Hours in New York, from and to, in which Alpaca refuses orders for an opening auction:
https://docs.alpaca.markets/docs/orders-at-alpaca#time-in-force."""


@contextmanager
def _understood() -> Iterator[None]:
    """Convert the errors of an answer that lacks a field, or has another value in it."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"expected an answer of Alpaca with its fields, got none for {error}; step again") from None


class AlpacaVenue:
    """Alpaca's paper account; orders carry our ids as client order ids, which Alpaca accepts once."""

    def __init__(self, key: str, secret: str, endpoint: str = PAPER) -> None:
        """Raises ConfigError where `alpaca-py` is missing, or the endpoint is not that of paper accounts."""
        split = urlsplit(endpoint)
        if split.hostname not in _HOSTS or (split.scheme != "https" and split.hostname == _HOSTS[0]):
            raise ConfigError(
                f"expected {PAPER} in {ENDPOINT}, got {endpoint!r}; this program trades on paper accounts only, and "
                "encrypted"
            )
        try:
            from alpaca.trading.client import TradingClient
        except ImportError:
            raise ConfigError("expected alpaca-py; install it by: pip install -r requirements-alpaca.txt") from None
        # Alpaca's page shows the address with the version, which the library adds.
        endpoint = endpoint.rstrip("/").removesuffix("/v2")
        self._client = TradingClient(key, secret, paper=True, url_override=endpoint)
        # Only what was refused as one too many is sent again: whether an order arrived is asked, not guessed.
        self._client._retry, self._client._retry_wait, self._client._retry_codes = _RETRIES, _RETRY_SECONDS, [429]
        session = self._client._session
        session.request = partial(session.request, timeout=_SECONDS)  # type: ignore[method-assign]

    @classmethod
    def of_environment(cls) -> Self:
        """Return the venue by the variables of the environment; ConfigError where a key is missing."""
        missing = [name for name in (KEY, SECRET) if not os.environ.get(name)]
        if missing:
            raise ConfigError(f"expected the keys of a paper account in {' and '.join(missing)}, got none")
        return cls(os.environ[KEY], os.environ[SECRET], os.environ.get(ENDPOINT, PAPER))

    def submit(self, order: Order) -> str:
        """Send an order; one that Alpaca has already counts as accepted.

        Raises:
            NotNow: at this hour Alpaca would refuse it.
            NoAnswer: it is silent.
        """
        from alpaca.common.exceptions import APIError

        request = order.request or {}
        first, last = _REFUSED
        if first <= (now := new_york().time()) < last:
            raise NotNow(
                f"expected a time outside of {first:%H:%M} to {last:%H:%M} in New York, in which Alpaca refuses orders "
                f"for the open, got {now:%H:%M}; step again after {last:%H:%M}"
            )
        try:
            self._ask(self._client.post, "/orders", request, is_order=True)
        except APIError as error:
            if error.status_code == 422 and "client_order_id" in str(error) and self._has(order.id, request):
                return ""
            return f"{error.status_code}: {_one_line(error)}"
        return ""

    @_understood()
    def _has(self, order_id: str, request: dict[str, Any]) -> bool:
        """Tell whether the order of an id is the one that was to be sent, and stands."""
        known = self._ask(self._client.get, "/orders:by_client_order_id", {"client_order_id": order_id})
        is_same = all(known[name] == request[name] for name in ("symbol", "side"))
        return is_same and not _ended(known) and float(known["qty"]) == float(request["qty"])

    @_understood()
    def orders_since(self, day: np.datetime64) -> dict[str, str]:
        """Return the ids of the orders sent since `day`, with how those ended of which nothing was executed."""
        return {order["client_order_id"]: _ended(order) for order in self._orders(day)}

    @_understood()
    def positions(self) -> dict[str, float]:
        """Return the shares held by ticker."""
        held = self._ask(self._client.get, "/positions")
        if not isinstance(held, list):
            raise TypeError("a list of positions")
        return {one["symbol"]: _finite(one["qty"]) for one in held}

    @_understood()
    def cash(self) -> float:
        """Return the cash."""
        return _finite(self._ask(self._client.get, "/account")["cash"])

    @_understood()
    def fills_since(self, day: np.datetime64) -> list[Fill]:
        """Return what was executed after `day`, an order's parts as one fill."""
        fills = list[Fill]()
        for order in self._orders(day):
            shares = _finite(order["filled_qty"] or 0)
            if shares > 0 and np.datetime64((order["filled_at"] or order["updated_at"])[:10]) > day:
                price = _finite(order["filled_avg_price"])
                value = shares * price
                fills.append(Fill(order["client_order_id"], order["symbol"], order["side"], shares, price, value))
        return sorted(fills, key=lambda fill: fill.id)

    def _orders(self, day: np.datetime64) -> list[dict[str, Any]]:
        """Return all orders since a day, page by page in the order in which they were submitted."""
        asked = {"status": "all", "limit": _MOST_ORDERS, "direction": "asc", "after": f"{day}T00:00:00Z"}
        orders = dict[str, dict[str, Any]]()
        while True:
            page, known = self._ask(self._client.get, "/orders", asked), len(orders)
            orders |= {order["id"]: order for order in page}
            if len(page) < _MOST_ORDERS or len(orders) == known:
                return [*orders.values()]
            asked["after"] = page[-1]["submitted_at"]

    def _ask(self, call: Callable[..., Any], *asked: Any, is_order: bool = False) -> Any:
        """Return the answer; raises NoAnswer for silence and for errors of the server, which tell nothing.

        A refused order raises the library's error. 403 means a refusal in answer to an order, and invalid keys
        otherwise.
        """
        from alpaca.common.exceptions import APIError

        try:
            return call(*asked)
        except APIError as error:
            if error.status_code == 401 or (error.status_code == 403 and not is_order):
                raise ConfigError(f"expected valid keys in {KEY} and {SECRET}, got {error.status_code}") from None
            if error.status_code is None or error.status_code >= 500 or error.status_code in (408, 429):
                raise NoAnswer(f"expected an answer of Alpaca, got status {error.status_code}; step again") from None
            if is_order:
                raise
            raise DataError(
                f"expected an answer of Alpaca, got {error.status_code}: {_one_line(error)}; mend it and step again"
            ) from None
        except (requests.RequestException, ValueError) as error:
            raise NoAnswer(f"expected an answer of Alpaca, got {type(error).__name__}; step again") from None

    @staticmethod
    def last_opened(now: datetime) -> np.datetime64:
        """Return the last weekday whose opening auction has begun by now, a time in UTC; a holiday counts as one."""
        local = now.astimezone(_NEW_YORK)
        day = np.datetime64(local.date()) - np.timedelta64(int(local.time() < _REFUSED[0]), "D")
        return np.datetime64(np.busday_offset(day, 0, roll="backward"))


def new_york() -> datetime:
    """Return the time in New York."""
    return datetime.now(_NEW_YORK)


def _ended(order: Mapping[str, Any]) -> str:
    """Return the status of an order that ended before anything of it was executed; empty of any other."""
    return str(order["status"]) if order["status"] in _ENDED and not float(order["filled_qty"] or 0) else ""


def _finite(number: Any) -> float:
    """Return a number of an answer; ValueError where it is none, or infinite."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"a number in {number}")
    return value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
