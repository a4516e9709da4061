"""A paper account: what `paper step` does after a close."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from data.market import Market, span_of
from environment.basket import Basket
from training.paper.book import Book
from training.paper.certificate import bounded_result
from training.paper.decider import Decider
from training.paper.journal import Journal
from training.paper.known import Change, names, packed, units
from training.paper.sessions import Sessions, doubts
from training.paper.venue import Fill, NoAnswer, NotNow, Order, PaperVenue, Statement, Venue
from training.signals.basket import BasketOrder, basket_at_broker, basket_orders
from training.signals.broker_orders import alpaca_requests, alpaca_symbol, broker_orders, order_id
from utils.config.trader import Config
from utils.errors import DataError

logger = logging.getLogger(__name__)
_LONGEST_PAUSE = np.timedelta64(5, "D")
"""Without a calendar, data older than this are stale."""
_CASH = 0.01
"""Share of the account's equity from which cash that no fill explains is doubted; dividends are less in a session."""
_DUST = 1e-9
"""Share of a position that is rounding."""


class Suspended(DataError):
    """A session cannot be taken into the account as the data are."""


class Parts(NamedTuple):
    """An amount of money for each part of an account."""

    agents: float
    basket: float


@dataclass
class Account:
    """A paper account on a market, whose last day is the newest session known.

    It consists of the agents' account and a basket. At the embedded venue each trades the whole capital as if it were
    alone, and the account is worth a weighted sum of the two. At a broker each has its part of the capital.
    """

    path: Path
    journal: Journal
    config: Config
    decider: Decider
    market: Market
    sessions: Sessions
    broker: Venue | None = None
    """None: the embedded venue."""
    changes: Sequence[Change] = ()
    """What the data bring besides new sessions."""
    embedded: PaperVenue | None = None
    """The embedded venue, where it is kept from session to session."""
    level: int = logging.INFO
    """Level of messages about fills and accepted orders."""
    is_replay: bool = False
    """It walks history, which nobody watches: what a person would be asked about is written down and taken as it is."""

    @cached_property
    def book(self) -> Book:
        """The account by its journal."""
        return Book(self.journal, self.market, self.config.env)

    @property
    def name(self) -> str:
        """Name of the account, from which the ids of its orders derive."""
        return str(self.journal.opening["account"])

    @property
    def capital(self) -> float:
        """Capital at the opening."""
        return float(self.journal.opening["capital"])

    @property
    def _exposed(self) -> Parts:
        """Capital at the opening that each part may use."""
        exposed = self.config.env.exposure * self.capital
        return Parts(exposed * self.decider.share, exposed * (1.0 - self.decider.share))

    @property
    def capitals(self) -> Parts:
        """Capital with which each part begins: at the embedded venue all of it, at a broker its own part."""
        is_embedded = self.journal.opening["venue"] == "paper"
        parts = Parts(self.capital, self.capital) if is_embedded else self._exposed
        return Parts(max(1.0, parts.agents), max(1.0, parts.basket))

    def on(self, day: int, **changes: Any) -> Account:
        """Return the account after a session, as if it were the newest one, perhaps in another folder."""
        return dataclasses.replace(self, market=span_of(self.market, 0, day), **changes)

    def step(self, now: datetime | None = None, *, catches_up: bool = False) -> bool:
        """Take in new sessions, decide at the newest close and send the orders; tell whether anything was new.

        Args:
            now: time in UTC, by which the newest close may be too old for orders; None: it never is.
            catches_up: at a broker no order is given: later sessions are known.

        Raises:
            Suspended: a session cannot be taken in as the data are.
            NoAnswer: the venue was silent; the next step goes on where this one ended.
        """
        length, newest, book = self.journal.last.number, len(self.market.dates) - 1, self.book
        is_late = (catches_up and self.broker is not None) or (now is not None and self._is_late(now))
        self._note_changes()
        self._reconcile(newest, is_late=is_late)
        for day in range(book.last + 1, newest + 1):
            for key, text in doubts(book, self.sessions, day, self._hidden_basket):
                self._suspend(key, text)
            if day > book.start and book.date(day - 1) not in self.journal.of("intent"):
                self.journal.append("missed", book.date(day - 1))
                logger.warning("%s was missed: taken in, but no order was given at its close", book.date(day - 1))
            self._take_in(day)
        if not is_late:
            self._decide(newest)
            self._send()
        return self.journal.last.number > length

    def _is_late(self, now: datetime) -> bool:
        """Tell whether it is too late for orders at the newest close; DataError where the clock is behind it."""
        newest, today = self.market.dates[-1].astype("datetime64[D]"), np.datetime64(now.date())
        if today < newest:
            raise DataError(f"expected a clock after {newest}, the newest bars, got {today}; set it")
        if (known := self.sessions.last_until(now)) is not None:
            opened, closed = known
            if self.sessions.is_session(newest) and newest > closed:
                raise DataError(f"expected bars of closed sessions, got those of {newest}; step after its close")
        else:
            opened = newest if self.broker is None else today - _LONGEST_PAUSE
        if is_late := opened > newest:
            logger.warning("stale data: they end on %s, and %s has opened; no orders, append its bars", newest, opened)
        return bool(is_late)

    def _note_changes(self) -> None:
        """Write down dividends, splits and revised bars; raise Suspended for those that nobody has accepted yet."""
        shares = self.book.shares(self.book.last) if self.journal.of("session") else {}
        for change in self.changes:
            body, ticker = change.body, change.body["ticker"]
            if change.kind == "event" and ticker in shares:
                before = shares[ticker] / units(self.journal)[ticker]
                body["held"] = f"; {before:.6g} shares are {before / body['ratio']:.6g} now"
            self.journal.append(change.kind, change.key, body)
            if change.kind == "event":
                logger.info("%s%s", body["text"], body.get("held", ""))
        if revised := [change for change in self.changes if change.kind == "hold"]:
            others = f" (and others of {len(revised) - 1} more tickers)" if len(revised) > 1 else ""
            self._suspend(revised[0].key, revised[0].body["text"] + others)

    def _suspend(self, key: str, text: str) -> None:
        """Write down what is doubtful; raise Suspended unless `paper go` has come after that, or nobody watches."""
        row = self.journal.append("hold", key, {"text": text})
        if not self.is_replay and not any(go.number > row.number for go in self.journal.of("go").values()):
            remedy = f"mend the data and step again, or accept them with `paper go {self.name}`"
            raise Suspended(f"expected {text}; {remedy}")

    def _name(self, ticker: str) -> str:
        return names(self.journal).get(ticker, ticker)

    def new_venue(self) -> PaperVenue:
        """Return the embedded venue before its first session, for all days of the market."""
        rules = dataclasses.replace(self.config.env, initial_capital=self.capitals.agents)
        return PaperVenue(self.name, self.market, rules, self.book.start, self.held_basket())

    def _take_in(self, day: int) -> None:
        """Write down what a session brought: fills, cash, positions, equity and the decider's result."""
        book = self.book
        statement = self._embedded(day) if self.broker is None else self._at_broker(day, self.broker)
        result = bounded_result(self.market, day, book.stakes(day))
        body = dataclasses.asdict(statement) | {"result": result, "bars": packed(self.market, day)}
        self.journal.append("session", book.date(day), body)
        for fill in statement.fills:
            logger.log(self.level, "%s %s %g at %g %s", fill.side, fill.ticker, fill.shares, fill.price, fill.reason)
        known = [ticker for ticker in statement.positions if ticker in book.stocks]
        if silent := [ticker for ticker in known if np.isnan(self.book.prices(ticker, day)[-1])]:
            logger.warning("no bar on %s: %s; sold at the last price after a few sessions", book.date(day), silent)

    @property
    def basket(self) -> Basket:
        """What is held with the capital that does not follow the agents."""
        return Basket.of(self.market, self.config.evaluation.basket, self.config.seed)

    @cached_property
    def _hidden_basket(self) -> list[str]:
        """Tickers of the basket where the journal does not show what it holds: at the embedded venue."""
        if self.broker is not None or self.decider.share == 1:
            return []
        return [self.market.tickers[column] for column in self.basket.columns.tolist()]

    def held_basket(self) -> NDArray[np.float64]:
        """Return the equity of the basket at recorded prices, at the closes from the first session to the last day."""
        start, sessions = self.book.start, len(self.market.dates) - 1 - self.book.start
        rules = dataclasses.replace(self.config.env, initial_capital=self.capitals.basket)
        released = {day - start for day in self.book.released}
        account = self.basket.hold(rules, torch.tensor([start]), sessions, is_sold=False, released=released)
        return np.asarray(account.equity[0].numpy())

    def whole(self, agents: Any, basket: Any) -> Any:
        """Return the account's equity by those of its two parts."""
        capitals, exposed = self.capitals, self._exposed
        unexposed = self.capital - (exposed.agents + exposed.basket)
        return agents * (exposed.agents / capitals.agents) + basket * (exposed.basket / capitals.basket) + unexposed

    def _embedded(self, day: int) -> Statement:
        venue = self.embedded = self.embedded or self.new_venue()
        venue.play(day, self.book.orders, self.book.released)
        equity, basket = venue.equity_on(day)
        whole = self.whole(equity, basket)
        return Statement(venue.fills_on(day), float(venue.portfolio.cash), equity, venue.positions(), basket, whole)

    def _at_broker(self, day: int, venue: Venue) -> Statement:
        """Ask the broker, and tell the agents' part from the basket's.

        The basket holds what it bought, and the agents the other positions. The agents' cash is what their fills have
        left, and what a split leaves of a share; what else comes in, as dividends, is the basket's, if there is one.
        """
        book, (agents, others) = self.book, self._exposed
        if day == book.start:
            return Statement([], agents, agents, {}, others, self.capital, venue_cash=self.capital)
        trades, cash = venue.fills_since(np.datetime64(book.date(day - 1))), venue.cash()
        # The broker speaks of shares of today, whichever session is taken in; a dividend changes none.
        factors = units(self.journal, book.date(day), splits_until="9999")
        ids, taken = book.known_orders, book.taken_fills
        trades = [fill for fill in trades if (fill.id, fill.side) not in taken]
        fills = [dataclasses.replace(fill, ticker=ids[fill.id].ticker) for fill in trades if fill.id in ids]
        fills = [fill.in_units(1 / factors[fill.ticker]) for fill in fills]
        tickers = {alpaca_symbol(self._name(ticker)): ticker for ticker in self.market.tickers}
        positions = {tickers.get(symbol, symbol): shares for symbol, shares in venue.positions().items()}
        positions = {ticker: shares * factors[ticker] for ticker, shares in positions.items()}
        due, basket, own_cash = book.expected(day, fills)
        both = {one: due.get(one, 0.0) + basket.get(one, 0.0) for one in due | basket}
        split = {
            event.body["ticker"] for event in book.events(day) if not event.applied_to and event.body["kind"] == "split"
        } & both.keys()
        paid = {one for one in split if abs(both[one] - positions.get(one, 0.0)) < factors[one]}

        self._compare(day, positions, both | {one: positions.get(one, 0.0) for one in paid})
        self._compare_cash(day, cash, trades, both)
        basket = {one: min(shares, positions[one]) for one, shares in basket.items() if one in positions and shares > 0}
        rest = {one: count - basket.get(one, 0.0) for one, count in positions.items()}
        rest = {one: shares for one, shares in rest.items() if abs(shares) > _DUST * positions[one]}
        own_cash += book.worth({one: due.get(one, 0.0) - rest.get(one, 0.0) for one in paid}, day)
        unexposed = self.capital - agents - others
        own_cash = own_cash if others > 0 else cash - unexposed
        equity, whole = own_cash + book.worth(rest, day), cash + book.worth(positions, day)
        by_hand: list[tuple[str, str]] = [(trade.id, trade.side) for trade in trades if trade.id not in ids]
        return Statement(fills, own_cash, equity, rest, whole - unexposed - equity, whole, basket, cash, by_hand)

    def _compare(self, day: int, positions: Mapping[str, float], expected: Mapping[str, float]) -> None:
        """Doubt an account whose positions do not follow from its fills; what the venue says is taken all the same."""
        pairs = {one: (positions.get(one, 0), expected.get(one, 0)) for one in {**expected, **positions}}
        differ = [f"{one} {has:g}, not {due:g}" for one, (has, due) in pairs.items() if not np.isclose(has, due)]
        if differ:
            self._doubt(f"positions {day}", f"{self.book.date(day)}: the venue holds {'; '.join(sorted(differ))}")

    def _compare_cash(self, day: int, cash: float, trades: Sequence[Fill], shares: Mapping[str, float]) -> None:
        """Doubt an account whose cash moves without a trade, split or dividend, as by a deposit or a fee."""
        book, date = self.book, self.book.date(day)
        before = book.session(day - 1).get("venue_cash", math.nan)  # older accounts lack it
        moved = cash - before + sum(fill.value if fill.side == "buy" else -fill.value for fill in trades)
        noted = {body["ticker"] for body, known in book.events(day) if not known}
        paid = sum(
            book.entitled(body, ("positions", "basket_positions")) * body["cash"]
            for body, known in book.events(day)
            if known < body.get("pay", "") <= book.date(-1)
        )
        unclear = book.worth({one: shares[one] for one in noted & shares.keys()}, day)
        if abs(moved - paid) > _CASH * book.session(day - 1)["whole"] + unclear:
            self._doubt(f"cash {day}", f"{date}: the venue's cash moved by {moved:+,.2f} without a trade")

    def _doubt(self, key: str, text: str) -> None:
        """Write down what a person has to look at before there are new orders."""
        self.journal.append("doubt", key, {"text": text})
        logger.warning("doubt, no new orders until `paper go %s`: %s", self.name, text)

    def _reconcile(self, newest: int, *, is_late: bool) -> None:
        """Ask the broker about orders without an answer; those that it does not know are sent if it is not too late.

        An order whose session has begun lapses. The embedded venue knows of an order what the journal says.
        """
        unanswered, known = list(self.book.unanswered()), set[str]()
        if unanswered and self.broker is not None:
            since = np.datetime64(self.book.date(unanswered[0][0]))
            known = self.broker.open_orders() | {fill.id for fill in self.broker.fills_since(since)}
        for day, order in unanswered:
            if order.id in known:
                self.journal.append("answer", order.id, {"status": "accepted"})
            elif day < newest or is_late:
                self.journal.append("answer", order.id, {"status": "lapsed"})
                logger.warning("%s did not reach the venue in time", order.id)

    def _decide(self, day: int) -> None:
        """Decide at the close of the newest session, once, and write the intent down before anything is sent."""
        book = self.book
        if book.date(day) in self.journal.of("intent"):
            return
        reason = self.journal.stop_reason()
        orders, sales = self._decided(day)
        if reason or book.is_locked(day):
            orders = []
        orders = [*sales, *orders]
        if self.broker is not None:
            is_idle = reason or self.decider.share == 1 or book.is_locked(day, "basket")
            orders = self._for_broker(day, orders, [] if is_idle else self._of_basket(day))
        values = {"orders": [order.values for order in orders], **({"stopped": reason} if reason else {})}
        self.journal.append("intent", book.date(day), values)
        if reason:
            logger.warning("no new orders: %s", reason)

    def _of_basket(self, day: int) -> list[BasketOrder]:
        """Return the basket's orders at a close, of the cash that is its part."""
        holdings, basket = self.book.basket_holdings(day), self.basket
        cash = self.book.session(day)["basket"] - sum(one.shares * one.last_price for one in holdings)
        asked = self.book.basket_asked(day)
        return basket_orders(basket, self.market, day, self.config.env, cash, holdings, asked).orders

    def _for_broker(self, day: int, orders: Sequence[Order], basket: Sequence[BasketOrder]) -> list[Order]:
        """Return sales of the positions, and the purchases, in whole shares as a broker is asked for them."""
        date, known = self.book.date(day), {order.id: order for order in orders}
        factors, sales = units(self.journal, date), [order.ticker for order in orders if order.side == "sell"]
        shares = {
            order.ticker: order.value / (float(self.book.prices(order.ticker, day)[-1]) * factors[order.ticker])
            for order in orders
            if order.side == "buy"
        }
        positions = [position.holding for position in self.book.positions(day)]
        holdings = [holding.in_units(factors[holding.ticker]) for holding in positions]
        forms = broker_orders(self.name, date, shares, holdings, self.config.env, sales)
        of_basket = [dataclasses.replace(one, shares=one.shares / factors[one.ticker]) for one in basket]
        placed = [known.get(form.order_id) or Order(form.order_id, form.ticker, "sell") for form in forms]
        values, trades = {one.ticker: one.value for one in basket}, basket_at_broker(self.name, date, of_basket)
        placed += [
            Order(form.order_id, form.ticker, form.side, value=values[form.ticker], is_of_basket=True)
            for form in trades
        ]
        requests = alpaca_requests([*forms, *trades])
        return [
            dataclasses.replace(order, request=request | {"symbol": alpaca_symbol(self._name(order.ticker))})
            for order, request in zip(placed, requests, strict=True)
        ]

    def _decided(self, day: int) -> tuple[list[Order], list[Order]]:
        book, date, cash = self.book, self.book.date(day), float(self.book.session(day)["cash"])
        rules = dataclasses.replace(self.config.env, initial_capital=max(1.0, book.equity(day)))  # sizes refer to it
        holdings = [position.holding for position in book.positions(day)]
        bought, sold = self.decider.decide(self.market, day, rules, cash, holdings)
        purchases = [
            Order(
                id=order_id(self.name, date, one.ticker, "buy"),
                ticker=one.ticker,
                side="buy",
                value=one.value,
                coefficient=one.coefficient,
                target_percent=one.target_percent,
                is_own=True,
            )
            for one in bought
        ]
        sales = [Order(order_id(self.name, date, ticker, "sell"), ticker, "sell", is_own=True) for ticker in sold]
        return purchases, sales

    def _send(self) -> None:
        """Send the newest close's orders that have no answer; under a stop its purchases are cancelled."""
        reason = self.journal.stop_reason()
        for _, order in list(self.book.unanswered()):
            if reason and order.side == "buy":
                self.journal.append("answer", order.id, {"status": "cancelled"})
                logger.warning(
                    "the purchase of %s, which the venue does not have, is cancelled: %s", order.ticker, reason
                )
                continue
            try:
                refusal = "" if self.broker is None else self.broker.submit(order)
            except NotNow:
                raise
            except NoAnswer:
                self.journal.append("unknown", order.id)
                raise
            answer = {"status": "rejected", "reason": refusal} if refusal else {"status": "accepted"}
            self.journal.append("answer", order.id, answer)
            level, text = logging.WARNING if refusal else self.level, "%s %s for the next session: %s %s"
            logger.log(level, text, order.side, order.ticker, answer["status"], refusal)
