"""The desk of an account at its broker: it sends orders in whole shares, and says what they became.

What the broker says it did and has is believed; what does not follow from the account's orders is doubted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from data.features.nine import HIGH, LOW
from environment.account import Account as Ledger
from training.paper.book import Fill, NoAnswer, NotNow, Statement
from training.paper.journal import paper_command
from training.signals.broker_orders import (
    LEAST_SHARE,
    Order,
    alpaca_request,
    alpaca_symbol,
    broker_orders,
    whole_shares,
)

if TYPE_CHECKING:
    from training.paper.account import Account
    from training.paper.alpaca import AlpacaVenue

logger = logging.getLogger(__name__)
_CASH = 0.01
"""Share of the account's equity from which cash that no fill explains is doubted; dividends are less in a session."""
_ROUNDING = 1e-9
"""Part of an order by which what was executed may differ after a change of price units."""
_FAR = 1.1
"""Factor by which a price beyond those of its session is doubted: a venue's opening price is not always the data's."""


class Desk:
    """Orders and statements of an account at a broker."""

    def __init__(self, account: Account, venue: AlpacaVenue) -> None:
        self._account, self._venue = account, venue
        self._book, self._journal = account.book, account.journal
        names = self._journal.renamed
        self._symbols = {one: alpaca_symbol(names.get(one, one)) for one in account.market.tickers}
        """The broker's names of the account's tickers."""

    def statement(self, day: int, until: str) -> Statement:
        """Ask the broker what was executed since the session before, and what it has as of `until`."""
        book, capital = self._book, float(self._journal.opening["capital"])
        if day == book.start:
            return Statement([], capital, capital, {})
        executed, cash = self._venue.fills_since(np.datetime64(book.date(day - 1))), self._venue.cash()
        # The broker speaks of shares of today, whichever session is taken in; a dividend changes none.
        factors = self._journal.units(book.date(day), splits_until="9999")
        ids, taken, trades = book.known_orders, book.taken_fills, list[Fill]()
        tickers = {symbol: ticker for ticker, symbol in self._symbols.items()}
        for fill in executed:
            if (fill.id, fill.side) not in taken:
                ticker = ids[fill.id].ticker if fill.id in ids else tickers.get(fill.ticker, fill.ticker)
                trades.append(replace(fill, ticker=ticker).in_units(1 / factors[ticker]))
        own = [fill for fill in trades if fill.id in ids]
        by_hand = [fill for fill in trades if fill.id not in ids]
        positions = {tickers.get(symbol, symbol): shares for symbol, shares in self._venue.positions().items()}
        positions = {ticker: shares * factors[ticker] for ticker, shares in positions.items()}
        due = book.expected(day, trades)
        split = {
            event.body["ticker"] for event in book.events(day) if not event.applied_to and event.body["kind"] == "split"
        } & due.keys()
        # What a split leaves of a share is paid in cash.
        paid = {one for one in split if abs(due[one] - positions.get(one, 0.0)) < factors[one]}
        self._compare_trades(day, own, by_hand)
        self._compare_positions(day, positions, due | {one: positions.get(one, 0.0) for one in paid})
        self._compare_cash(day, cash, trades, due, until)
        if (equity := cash + book.worth(positions, day)) <= 0 < book.equity(day - 1):
            self._doubt("equity", day, f"the account is worth {equity:,.2f}")
        return Statement(own, cash, equity, positions, [(fill.id, fill.side) for fill in by_hand], until)

    def _compare_trades(self, day: int, own: Sequence[Fill], by_hand: Sequence[Fill]) -> None:
        """Note orders that were not executed in full; doubt trades that nobody here asked for, or at odd prices."""
        book, factors = self._book, self._journal.units(self._book.date(day))
        done = {fill.id: fill.shares for fill in own}
        for order in book.orders(day - 1):
            if (size := done.get(order.id, 0.0)) < order.shares * (1 - _ROUNDING):
                parts = " of ".join(f"{shares / factors[order.ticker]:g}" for shares in (size, order.shares))
                text = f"{book.date(day)}: {order.side} {order.ticker}, {parts} executed"
                self._journal.append("unfilled", order.id, {"text": text})
                logger.warning("%s", text)
        traded = [fill.in_units(factors[fill.ticker]) for fill in by_hand]
        if said := "; ".join(f"{one.side} {one.ticker} {one.shares:g} at {one.price:g}" for one in traded):
            self._doubt("hand", day, f"the venue executed what nobody here ordered: {said}")
        for fill in own:
            low, high = (float(book.prices(fill.ticker, day, feature)[-1]) for feature in (LOW, HIGH))
            if fill.price * _FAR < low or fill.price > high * _FAR:
                paid, low, high = (price * factors[fill.ticker] for price in (fill.price, low, high))
                text = f"{fill.side} {fill.ticker} at {paid:g}, in a session at {low:g} to {high:g}"
                self._doubt(f"price {fill.ticker}", day, text)

    def _compare_positions(self, day: int, positions: Mapping[str, float], due: Mapping[str, float]) -> None:
        """Doubt an account whose positions do not follow from its fills."""
        pairs = {one: (positions.get(one, 0), due.get(one, 0)) for one in {**due, **positions}}
        differ = [f"{one} {has:g}, not {owed:g}" for one, (has, owed) in pairs.items() if not np.isclose(has, owed)]
        if differ:
            self._doubt("positions", day, f"the venue holds {'; '.join(sorted(differ))}")

    def _compare_cash(
        self, day: int, cash: float, trades: Sequence[Fill], shares: Mapping[str, float], until: str
    ) -> None:
        """Doubt an account whose cash moves without a trade, split or dividend, as by a deposit or a fee."""
        book, date, before = self._book, self._book.date(day), self._book.session(day - 1)
        moved, told = cash - before["cash"], before.get("until") or book.date(day - 1)
        moved += sum(fill.sign * fill.value for fill in trades)
        noted = {body["ticker"] for body, known in book.events(day) if not known}
        paid = sum(
            book.entitled(body, date, shares) * body["cash"]
            for body, _ in book.events(day)
            if told < body.get("pay", "") <= until
        )
        unclear = book.worth({one: shares[one] for one in noted & shares.keys()}, day)
        if abs(moved - paid) > _CASH * abs(book.equity(day - 1)) + unclear:
            self._doubt("cash", day, f"the venue's cash moved by {moved:+,.2f} without a trade")

    def _doubt(self, what: str, day: int, text: str) -> None:
        """Write down what a person has to look at before there are new orders."""
        date, go = self._book.date(day), paper_command("go", self._account.path)
        self._journal.append("doubt", f"{date} {what}", {"text": f"{date}: {text}"})
        logger.warning("doubt, no new orders until `%s`: %s: %s", go, date, text)

    def reconcile(self, newest: int, *, is_late: bool) -> None:
        """Ask about orders without an answer; those that the broker does not know are sent if it is not too late.

        An order whose session has begun lapses.
        """
        if not (unanswered := list(self._book.unanswered())):
            return
        known = self._venue.orders_since(np.datetime64(self._book.date(unanswered[0][0])))
        for day, order in unanswered:
            if order.id in known:
                self._note_answer(order, known[order.id])
            elif day < newest or is_late:
                self._journal.append("answer", order.id, {"status": "lapsed"})
                logger.warning("%s did not reach the venue in time", order.id)

    def orders(self, day: int, ledger: Ledger, lacking: Tensor) -> list[Order]:
        """Return the orders, in whole shares, for (n,) shares that are lacking at a close."""
        account, date = self._account, self._book.date(day)
        factors = self._journal.units(date)
        factor = np.array([factors[ticker] for ticker in account.tickers], dtype=np.float64)
        price, held = ledger.last[0].numpy() * factor, ledger.shares[0].numpy() / factor
        cash, least = float(ledger.cash), LEAST_SHARE * float(ledger.equity)
        sizes = whole_shares(lacking.numpy() / factor, price, held, cash, account.config.env.cost_rate, least)
        orders = broker_orders(account.order_name, date, dict(zip(account.tickers, sizes.tolist(), strict=True)))
        asked = [alpaca_request(one) | {"symbol": self._symbols[one.ticker]} for one in orders]
        return [
            replace(one, shares=one.shares * factors[one.ticker], request=request)
            for one, request in zip(orders, asked, strict=True)
        ]

    def send(self) -> None:
        """Send the orders that have no answer; under a stop its purchases are cancelled."""
        reason = self._journal.stop_reason()
        for _, order in list(self._book.unanswered()):
            if reason and order.side == "buy":
                self._journal.append("answer", order.id, {"status": "cancelled"})
                logger.warning(
                    "the purchase of %s, which the venue does not have, is cancelled: %s", order.ticker, reason
                )
                continue
            try:
                refusal = self._venue.submit(order)
            except NotNow:
                raise
            except NoAnswer:
                self._journal.append("unknown", order.id)
                raise
            self._note_answer(order, refusal)

    def _note_answer(self, order: Order, refusal: str) -> None:
        """Write down that the broker has accepted an order, or why not."""
        answer = {"status": "rejected", "reason": refusal} if refusal else {"status": "accepted"}
        self._journal.append("answer", order.id, answer)
        level, text = logging.WARNING if refusal else self._account.level, "%s %s for the next session: %s %s"
        logger.log(level, text, order.side, order.ticker, answer["status"], refusal)
