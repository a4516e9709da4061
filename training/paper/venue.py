"""Where orders are executed: the interface to a broker. The embedded venue is an account of the environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from training.signals.broker_orders import Side
from utils.errors import ProgramError


class NoAnswer(ProgramError):
    """A venue did not answer: what it did with a request, or holds, is unknown."""


class NotNow(NoAnswer):
    """A venue takes no such order at this hour: nothing was sent."""


@dataclass(frozen=True)
class Order:
    """An order at the market for the next open."""

    id: str
    """Determined by account, session, ticker and side; the venue knows the order by it."""
    ticker: str
    side: Side
    shares: float = 0.0
    """In the account's units."""
    request: dict[str, Any] | None = None
    """Request to a broker, see `alpaca_requests`."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Order":
        """Read what the journal keeps."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})


@dataclass(frozen=True)
class Fill:
    """A purchase or a sale that was executed."""

    id: str
    """Of its order; a sale by the rules gets the id that an order to sell would have."""
    ticker: str
    side: Side
    shares: float
    price: float
    value: float
    """Amount paid or received, before costs."""
    reason: str = ""
    """`no_bar`: sold by the rules, since it has none; empty for an order's."""

    def in_units(self, factor: float) -> "Fill":
        """Return the fill in prices that are `factor` times these."""
        return replace(self, shares=self.shares / factor, price=self.price * factor)


@dataclass(frozen=True)
class Statement:
    """The account after a session's close."""

    fills: list[Fill]
    cash: float
    equity: float
    positions: dict[str, float]
    """Shares by ticker."""
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
