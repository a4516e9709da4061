"""A paper account: what `paper step` does after a close."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from data.market import Market, days_up_to
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from training.paper.book import Book, Fill, Statement
from training.paper.certificate import bounded_result, forecast_dispersion
from training.paper.decider import Decider
from training.paper.desk import Desk
from training.paper.journal import Journal, paper_command
from training.paper.known import Change, packed
from training.paper.sessions import Sessions, doubts
from training.run.market import benchmark_of
from training.signals.broker_orders import Order
from utils.arrays import Float64Array
from utils.config.trader import Config
from utils.errors import DataError

if TYPE_CHECKING:
    from training.paper.alpaca import AlpacaVenue  # which only accounts at a broker need

logger = logging.getLogger(__name__)


class Suspended(DataError):
    """A session cannot be taken into the account as the data are."""


@dataclass
class Account:
    """A paper account on a market, whose last day is the newest session known."""

    path: Path
    journal: Journal
    config: Config
    decider: Decider
    market: Market
    sessions: Sessions
    broker: AlpacaVenue | None = None
    """None: the embedded venue, an account of the environment on recorded prices, which the journalled orders rebuild.
    """
    changes: Sequence[Change] = ()
    """What the data bring besides new sessions."""
    walked: Portfolio | None = None
    """The account and its benchmark, where they are kept from session to session."""
    is_replay: bool = False
    """It walks history, which nobody watches: what a person would be asked about is written down and taken as it is."""

    @property
    def level(self) -> int:
        """Level of messages about fills and accepted orders."""
        return logging.DEBUG if self.is_replay else logging.INFO

    @cached_property
    def book(self) -> Book:
        """The account by its journal."""
        return Book(self.journal, self.market)

    @cached_property
    def desk(self) -> Desk | None:
        """That at the broker; the embedded venue needs none: it has what the journal says."""
        return None if self.broker is None else Desk(self, self.broker)

    @property
    def name(self) -> str:
        """Name of the account."""
        return str(self.journal.opening["account"])

    @property
    def order_name(self) -> str:
        """Name from which the ids of its orders derive, at a broker one that no other account has."""
        return str(self.journal.opening.get("orders", self.name))

    @cached_property
    def benchmark(self) -> Benchmark:
        """What the benchmark holds."""
        return benchmark_of(self.market, self.config)

    @cached_property
    def tickers(self) -> list[str]:
        """Tickers of the stocks that may be held."""
        return [self.market.tickers[column] for column in self.benchmark.columns.tolist()]

    def on(self, day: int, **changes: Any) -> Account:
        """Return the account after a session, as if it were the newest one, perhaps in another folder."""
        return dataclasses.replace(self, market=days_up_to(self.market, day), **changes)

    def step(self, now: datetime | None = None, *, until: str = "") -> bool:
        """Take in new sessions, decide at the newest close and send the orders; tell whether anything was new.

        Args:
            now: time in UTC, by which the newest close may be too old for orders; None: it never is.
            until: last day of the data where it is a later one; at a broker no order is given then.

        Raises:
            Suspended: a session cannot be taken in as the data are.
            NoAnswer: the venue was silent; the next step goes on where this one ended.
        """
        length, newest, book = self.journal.last.number, len(self.market.dates) - 1, self.book
        is_late = (until != "" and self.broker is not None) or (now is not None and self._is_late(now))
        self._note_changes()
        if self.desk is not None:
            self.desk.reconcile(newest, is_late=is_late)
        for day in range(book.last + 1, newest + 1):
            for key, text in doubts(book, self.sessions, day):
                self._suspend(key, text)
            before = book.date(day - 1)
            if day > book.start and before not in self.journal.of("intent"):
                self.journal.append("missed", before)
                logger.warning("%s was missed: taken in, but no order was given at its close", before)
            self._take_in(day, until or book.date(newest))
        if not is_late:
            self._decide(newest, until)
            if self.desk is not None:
                self.desk.send()
        return self.journal.last.number > length

    def _is_late(self, now: datetime) -> bool:
        """Tell whether it is too late for orders at the newest close; DataError where the clock is behind it."""
        newest, today = self.market.dates[-1], np.datetime64(now.date())
        if today < newest:
            raise DataError(f"expected a clock after {newest}, the newest bars, got {today}; set it")
        if (known := self.sessions.last_until(now)) is not None:
            opened, closed = known
            if self.sessions.is_session(newest) and newest > closed:
                raise DataError(f"expected bars of closed sessions, got those of {newest}; step after its close")
        else:
            opened = newest if self.broker is None else self.broker.last_opened(now)
        if is_late := opened > newest:
            logger.warning("stale data: they end on %s, and %s has opened; no orders, append its bars", newest, opened)
        return bool(is_late)

    def _note_changes(self) -> None:
        """Write down dividends, splits and revised bars; raise Suspended for those that nobody has accepted yet."""
        shares = self.book.session(self.book.last)["positions"] if self.journal.of("session") else {}
        for change in self.changes:
            body, ticker = change.body, change.body["ticker"]
            if change.kind == "event" and ticker in shares:
                before = shares[ticker] / self.journal.units()[ticker]
                is_cash = self.broker is not None and body["kind"] == "dividend"
                now = "held" if is_cash else f"{before / body['ratio']:.6g} now"
                body["held"] = f"; {before:.6g} shares are {now}"
            self.journal.append(change.kind, change.key, body)
            if change.kind == "event":
                logger.info("%s%s", body["text"], body.get("held", ""))
        if revised := [change for change in self.changes if change.kind == "hold"]:
            others = f" (and others of {len(revised) - 1} more tickers)" if len(revised) > 1 else ""
            self._suspend(revised[0].key, revised[0].body["text"] + others)

    def _suspend(self, key: str, text: str) -> None:
        """Write down what is doubtful; raise Suspended unless `paper go` has come after that, or nobody watches."""
        row = self.journal.append("hold", key, {"text": text})
        if not self.is_replay and self.journal.accepted_until < row.number:
            remedy = f"mend the data and step again, or accept them with `{paper_command('go', self.path)}`"
            raise Suspended(f"expected {text}; {remedy}")

    def new_portfolio(self) -> Portfolio:
        """Return account and benchmark at the close of the first session, for all days of the market."""
        opening, start = self.journal.opening, self.book.start
        rules = dataclasses.replace(self.config.env, initial_capital=float(opening["capital"]))
        days = len(self.market.dates)
        # The newest close needs a next day to decide for, of which nothing is known.
        portfolio = Portfolio.on(days_up_to(self.market, days), rules, benchmark=self.benchmark)
        portfolio.begin(torch.tensor([start]), steps=days - start, keeps_trades=True)
        return portfolio

    def _shares(self, by_ticker: Mapping[str, float]) -> Tensor:
        """Return (1, n) shares of the stocks that may be held."""
        return torch.tensor([[by_ticker.get(ticker, 0.0) for ticker in self.tickers]], dtype=torch.float64)

    def at(self, day: int) -> Portfolio:
        """Return account and benchmark at the close of a session, once it is in the journal as this states it."""
        portfolio = self.walked = self.walked or self.new_portfolio()
        account, book = portfolio.account, self.book
        for today in range(int(account.day), day):
            if self.broker is not None:
                account.shares = self._shares({})
            portfolio.fill(self._shares({} if self.broker is not None else book.ordered(today)))
            if today + 1 in book.released:
                account.release()
        if self.broker is not None and book.start <= day <= book.last:
            account.peak, account.is_locked = account.equity.new_tensor([0.0]), torch.tensor([False])
            for session in range(book.start, day + 1):
                account.mark(account.equity.new_tensor([book.equity(session)]))
                if session in book.released:
                    account.release()
            said, is_locked = book.session(day), account.is_locked
            account.hold(self._shares(said["positions"]), account.equity.new_tensor([said["cash"]]))
            account.is_locked = is_locked  # by all that is at the broker, what nobody here may buy included
        return portfolio

    def _take_in(self, day: int, until: str) -> None:
        """Write down what a session brought: fills, cash, positions, equity, the benchmark's equity and the result; a
        venue tells them as of `until`."""
        book, result = self.book, 0.0
        portfolio = self.at(max(day - 1, book.start))
        weights, before = self._active_weights(portfolio), portfolio.benchmark.equity
        statement = self._embedded(day) if self.desk is None else self.desk.statement(day, until)
        benchmark = self.at(day).benchmark.equity
        if day > book.start and book.date(day - 1) not in self.journal.in_hindsight:
            active = statement.equity / book.equity(day - 1) - float(benchmark / before)
            result = bounded_result(active, weights, forecast_dispersion(self.market, day - 1))
            # What somebody else may have earned shows no skill; what was lost counts.
            result = min(result, 0.0) if book.is_doubted(day) else result
        body = dataclasses.asdict(statement) | {"benchmark": float(benchmark), "result": result}
        self.journal.append("session", book.date(day), body | {"bars": packed(self.market, day)})
        for fill in book.as_traded(day):
            logger.log(self.level, "%s %s %g at %g %s", fill.side, fill.ticker, fill.shares, fill.price, fill.reason)
        known = [ticker for ticker in statement.positions if ticker in self.tickers]
        if silent := [ticker for ticker in known if np.isnan(book.prices(ticker, day)[-1])]:
            logger.warning("no bar on %s: %s; sold after a few sessions", book.date(day), silent)

    def _active_weights(self, portfolio: Portfolio) -> Float64Array:
        """Return the (n,) active weights of the next session, the larger ones of before and after its orders."""
        account = portfolio.account
        value = self._shares(self.book.ordered(int(account.day))) * account.last.nan_to_num()
        after = account.weights + value / account.equity - portfolio.wanted
        return np.asarray(torch.maximum((account.weights - portfolio.held).abs(), after.abs())[0])

    def _embedded(self, day: int) -> Statement:
        """Return what the account on recorded prices has become, and what it traded since the close before."""
        account, traded, fills = self.at(day).account, list[tuple[str, Tensor, Tensor]](), list[Fill]()
        if day > self.book.start:
            trades = account.trades()
            traded = [("", trades.filled, trades.price), ("no_bar", trades.closed, trades.closed_price)]
        for reason, shares, price in traded:
            for ticker, size, paid in zip(self.tickers, shares[-1, 0].tolist(), price[-1, 0].tolist(), strict=True):
                if size != 0:
                    one = Order.of(self.order_name, self.book.date(day - 1), ticker, size)
                    fills.append(Fill(one.id, ticker, one.side, one.shares, paid, one.shares * paid, reason))
        held = {one: size for one, size in zip(self.tickers, account.shares[0].tolist(), strict=True) if size != 0}
        return Statement(fills, float(account.cash), float(account.equity), held)

    def _decide(self, day: int, until: str) -> None:
        """Decide at the close of the newest session, once, and write the intent down before anything is sent; data that
        go on `until` a later day make it hindsight."""
        date, reason = self.book.date(day), self.journal.stop_reason()
        if date in self.journal.of("intent"):
            return
        portfolio = self.at(day)
        target = self.decider.policy(self.market, slice(day, day + 1))(portfolio)
        lacking = portfolio.orders(target)[0]
        lacking = lacking.clamp(max=0.0) if reason else lacking
        if self.desk is not None:
            orders = self.desk.orders(day, portfolio.account, lacking)
        else:
            pairs = zip(self.tickers, lacking.tolist(), strict=True)
            orders = [Order.of(self.order_name, date, ticker, shares) for ticker, shares in pairs if shares != 0]
        text = f"decided in hindsight, from data until {until}, and counts for no skill" if until else ""
        said = {"stopped": reason, "is_locked": bool(portfolio.account.is_locked.any()), "text": text}
        values = {"orders": [dataclasses.asdict(order) for order in orders]}
        self.journal.append("intent", date, values | {name: value for name, value in said.items() if value})
        if until:
            logger.warning("%s was %s", date, text)
