"""Fills and statements, and what an account's journal and market say together: orders, positions and results."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from data.features.nine import CLOSE
from data.market import Market
from training.paper.journal import Journal, Row
from training.signals.broker_orders import Deal, Order
from utils.arrays import Float32Array
from utils.errors import DataError, ProgramError


class NoAnswer(ProgramError):
    """A venue did not answer: what it did with a request, or holds, is unknown."""


class NotNow(NoAnswer):
    """A venue takes no such order at this hour: nothing was sent."""


@dataclass(frozen=True)
class Fill(Deal):
    """A purchase or a sale that was executed; a sale by the rules gets the id that an order to sell would have."""

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
    until: str = ""
    """Day as of which a broker told its cash, later than the session where this was caught up with."""


class NotedEvent(NamedTuple):
    """A dividend or a split of the journal."""

    body: dict[str, Any]
    applied_to: str
    """Last session whose positions know of it; empty where it was noted since."""


class Book:
    """The account by its journal, on a market that ends with the last known session."""

    def __init__(self, journal: Journal, market: Market) -> None:
        """Raises DataError where the market lacks a session of the account."""
        self.journal, self.market = journal, market
        self._dates = market.dates.astype(str).tolist()
        self._days = {date: day for day, date in enumerate(self._dates)}
        self.start = self.day_of(journal.opening["start"])

    def day_of(self, date: str) -> int:
        """Return the index of a session of the account."""
        if date not in self._days:
            raise DataError(
                f"expected the account's session {date} in the data, got none; give the file that has it (`prepare "
                "--append` keeps the bars of a file)"
            )
        return int(self._days[date])

    def date(self, day: int) -> str:
        """Return the date of a day."""
        return str(self._dates[day])

    def prices(self, ticker: str, day: int, feature: int = CLOSE) -> Float32Array:
        """Return the prices of a stock up to a day, NaN without a bar."""
        return self.market.data_array[: day + 1, self.market.tickers.index(ticker), feature]

    @property
    def last(self) -> int:
        """The last session in the journal; the day before the first one where there is none."""
        sessions = self.journal.of("session")
        return self.day_of(next(reversed(sessions))) if sessions else self.start - 1

    def session(self, day: int) -> dict[str, Any]:
        """Return a session as the venue stated it, fills, cash, equity and positions, with benchmark and result."""
        return self.journal.of("session")[self.date(day)].body

    def equity(self, day: int) -> float:
        """Return the equity at the close of a session of the journal."""
        return float(self.session(day)["equity"])

    def is_doubted(self, day: int) -> bool:
        """Tell whether what a broker said of a session was doubted."""
        return any(key.startswith(self.date(day)) for key in self.journal.of("doubt"))

    @property
    def released(self) -> set[int]:
        """The days at whose close, before the decision of the day, `paper go` had ended a lock."""
        sessions, intents, days = self.journal.of("session").values(), self.journal.of("intent"), set[int]()
        for go in self.journal.of("go").values():
            if before := [row.key for row in sessions if row.number < go.number]:
                has_decided = before[-1] in intents and intents[before[-1]].number < go.number
                days.add(self.day_of(before[-1]) + has_decided)
        return days

    def _late(self, row: Row, ticker: str) -> float:
        """Return by what a ticker's shares of a row are multiplied, where a dividend or split until it was noted after
        it."""
        late = (one.body for one in self.journal.of("event").values() if one.number > row.number)
        return math.prod(float(body["ratio"]) for body in late if body["ticker"] == ticker and body["since"] <= row.key)

    def intended(self, day: int) -> list[Order]:
        """Return the orders that were decided at a close, in the units that `fills` has."""
        if (intent := self.journal.of("intent").get(self.date(day))) is None:
            return []
        orders = [Order(**values) for values in intent.body["orders"]]
        return [replace(one, shares=one.shares * self._late(intent, one.ticker)) for one in orders]

    def orders(self, day: int) -> list[Order]:
        """Return the orders of a close that the venue accepted; the embedded one has those that were decided."""
        if self.journal.opening["venue"] == "paper":
            return self.intended(day)
        accepted = {id_ for id_, row in self.journal.of("answer").items() if row.body["status"] == "accepted"}
        return [order for order in self.intended(day) if order.id in accepted]

    def ordered(self, day: int) -> dict[str, float]:
        """Return by ticker the shares of these orders, negative: sold."""
        return {one.ticker: one.sign * one.shares for one in self.orders(day)}

    def unanswered(self) -> Iterator[tuple[int, Order]]:
        """Yield a broker's orders without an answer, with their days."""
        for day in map(self.day_of, self.journal.of("intent")):
            yield from ((day, one) for one in self.intended(day) if one.id not in self.journal.of("answer"))

    def fills(self, day: int) -> list[Fill]:
        """Return the fills on a session, in the units of today where a dividend or split was noted too late."""
        row = self.journal.of("session")[self.date(day)]
        fills = [Fill(**values) for values in self.session(day)["fills"]]
        return [fill.in_units(1 / self._late(row, fill.ticker)) for fill in fills]

    def as_traded(self, day: int) -> list[Fill]:
        """Return the fills on a session at its own prices."""
        factors = self.journal.units(self.date(day))
        return [fill.in_units(factors[fill.ticker]) for fill in self.fills(day)]

    @property
    def known_orders(self) -> dict[str, Order]:
        """All orders that were decided, by their ids."""
        days = map(self.day_of, self.journal.of("intent"))
        return {order.id: order for day in days for order in self.intended(day)}

    def worth(self, shares: Mapping[str, float], day: int) -> float:
        """Return what shares are worth at the last known closes up to a day, as far as their tickers are known."""
        closes = {one: self.prices(one, day) for one in shares if one in self.market.tickers}
        last = {one: known[np.isfinite(known)][-1:] for one, known in closes.items()}
        return sum(shares[one] * float(price) for one, prices in last.items() for price in prices)

    @property
    def taken_fills(self) -> set[tuple[str, str]]:
        """The trades of all sessions of the journal, by the ids of their orders and their sides."""
        sessions = [row.body for row in self.journal.of("session").values()]
        own = {(fill["id"], fill["side"]) for body in sessions for fill in body["fills"]}
        return own | {(id_, side) for body in sessions for id_, side in body["hand_trades"]}

    def events(self, day: int) -> list[NotedEvent]:
        """Return the dividends and splits, with whether the positions at the close before a day know of them."""
        before = self.journal.of("session")[self.date(day - 1)]
        events = self.journal.of("event").values()
        return [NotedEvent(event.body, before.key if event.number < before.number else "") for event in events]

    def expected(self, day: int, fills: Sequence[Fill]) -> dict[str, float]:
        """Return the shares that a session's fills make of those at the close before."""
        shares, today = dict(self.session(day - 1)["positions"]), self.date(day)
        for body, applied_to in self.events(day):  # a dividend is paid in cash
            is_late = not applied_to and body["since"] < today  # of a split noted late the venue had new shares
            if applied_to < body["since"] <= today and (body["kind"] == "dividend" or is_late):
                shares.update({t: shares[t] * body["ratio"] for t in {body["ticker"]} & shares.keys()})
        for fill in fills:
            shares[fill.ticker] = shares.get(fill.ticker, 0.0) + fill.sign * fill.shares
        return shares

    def entitled(self, dividend: Mapping[str, Any], today: str, shares: Mapping[str, float]) -> float:
        """Return the shares at the close before an ex-date, in units of that day; after `today` those of today."""
        sessions, since, ticker = self.journal.sessions, dividend["since"], dividend["ticker"]
        last = next((date for date in reversed(sessions) if date < since), None)
        held = shares if today < since else sessions[last]["positions"] if last else {}
        return float(held.get(ticker, 0.0) * dividend["ratio"] / self.journal.units(since)[ticker])
