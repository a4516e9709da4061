"""What the journal and the market say together: orders, positions and results of an account."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from data.features.nine import CLOSE
from data.market import Market
from training.paper.certificate import LEAST_LOSS, WINDOW, Stake
from training.paper.journal import Journal
from training.paper.known import units
from training.paper.venue import Fill, Order
from training.signals.holdings import Holding
from utils.arrays import BoolArray, Float32Array
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError


@dataclass(frozen=True)
class Position:
    """An open position with the order that bought it."""

    holding: Holding
    order: Order
    ordered: int
    """Day at whose close it was ordered."""


class NotedEvent(NamedTuple):
    """A dividend or a split of the journal."""

    body: dict[str, Any]
    applied_to: str
    """Last session whose positions know of it; empty where it was noted since."""


class Book:
    """The account by its journal, on a market that ends with the last known session."""

    def __init__(self, journal: Journal, market: Market, rules: EnvironmentConfig) -> None:
        """Raises DataError where the market lacks a session of the account."""
        self.journal, self.market, self._rules = journal, market, rules
        self._dates = market.dates.astype("datetime64[D]").astype(str).tolist()
        self._days = {date: day for day, date in enumerate(self._dates)}
        self.start = self.day_of(journal.opening["start"])
        self.stocks = {market.tickers[column]: place for place, column in enumerate(market.investable_columns.tolist())}

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

    def last_price(self, ticker: str, day: int) -> float:
        """Return the last known close of a stock up to a day."""
        prices = self.prices(ticker, day)
        return float(prices[np.isfinite(prices)][-1])

    @property
    def last(self) -> int:
        """The last session in the journal; the day before the first one where there is none."""
        sessions = self.journal.of("session")
        return self.day_of(next(reversed(sessions))) if sessions else self.start - 1

    def session(self, day: int) -> dict[str, Any]:
        """Return a session as the venue stated it, fills, cash, equity and positions, with the champion's result."""
        return self.journal.of("session")[self.date(day)].body

    def equity(self, day: int) -> float:
        """Return the equity at the close of a session of the journal."""
        return float(self.session(day)["equity"])

    def shares(self, day: int) -> dict[str, float]:
        """Return the shares of both parts at the close of a session, as far as the venue holds them."""
        accounts = (self.session(day)[name] for name in ("positions", "basket_positions"))
        return dict(sum((Counter(part) for part in accounts), Counter[str]()))

    @property
    def released(self) -> set[int]:
        """The days at whose close `paper go` ended a lock."""
        sessions, days = self.journal.of("session").values(), set[int]()
        for go in self.journal.of("go").values():
            if before := [row.key for row in sessions if row.number < go.number]:
                days.add(self.day_of(before[-1]))
        return days

    def is_locked(self, day: int, part: str = "equity") -> bool:
        """Tell whether a drawdown has ended the orders of the agents, or of the `basket`, until a person says so."""
        lock, released = self._rules.drawdown_lock, self.released
        if lock == 0:
            return False
        peak, is_locked = 0.0, False
        for session in range(self.start, day + 1):
            equity = self.session(session)[part]
            peak = max(peak, equity)
            is_locked = is_locked or equity <= peak * (1 - lock / 100)
            if is_locked and session in released:
                peak, is_locked = equity, False
        return is_locked

    def intended(self, day: int) -> list[Order]:
        """Return the orders that were decided at a close."""
        intent = self.journal.of("intent").get(self.date(day))
        return [] if intent is None else [Order(**values) for values in intent.body["orders"]]

    def orders(self, day: int) -> list[Order]:
        """Return the orders of a close that the venue accepted."""
        answers = self.journal.of("answer")
        orders = [order for order in self.intended(day) if order.id in answers]
        return [order for order in orders if answers[order.id].body["status"] == "accepted"]

    def unanswered(self) -> Iterator[tuple[int, Order]]:
        """Yield the orders without an answer, with their days."""
        for day in map(self.day_of, self.journal.of("intent")):
            yield from ((day, one) for one in self.intended(day) if one.id not in self.journal.of("answer"))

    def fills(self, day: int) -> list[Fill]:
        """Return the fills on a session, in the units of today where a dividend or split was noted too late."""
        row, fills = self.journal.of("session")[self.date(day)], list[Fill]()
        for fill in (Fill(**values) for values in row.body["fills"]):
            late = (one for one in self.journal.of("event").values() if one.number > row.number)
            ratio = math.prod(
                one.body["ratio"] for one in late if one.body["ticker"] == fill.ticker and one.body["since"] <= row.key
            )
            fills.append(fill.in_units(1 / ratio))
        return fills

    def positions(self, day: int) -> list[Position]:
        """Return the positions at the close of a session, in the order in which they were bought."""
        stated, opened = self.session(day)["positions"], dict[str, Position]()
        open_since = dict(stated)
        # At a broker a position may outlive its longest holding: a sale is refused, or the stock is halted.
        for entry in range(day, self.start - 1, -1):
            # What was not held in between is another position: bought by hand.
            open_since = {one: shares for one, shares in open_since.items() if one in self.session(entry)["positions"]}
            if open_since.keys() <= opened.keys():
                break
            for fill in self.fills(entry):
                if fill.side != "buy" or fill.ticker in opened or fill.ticker not in open_since:
                    continue
                order = next((order for order in self.intended(entry - 1) if order.id == fill.id), None)
                if order is None or order.is_of_basket:  # None: bought by hand
                    continue
                column, shares = self.market.tickers.index(fill.ticker), stated[fill.ticker]  # what the venue says
                bars = self.market.data_array[entry : day + 1, column]
                holding = Holding(fill.ticker, column, entry, fill.price, order.target_percent, shares, bars)
                opened[fill.ticker] = Position(holding, order, entry - 1)
        return [opened[ticker] for ticker in stated if ticker in opened]

    @property
    def known_orders(self) -> dict[str, Order]:
        """All orders that were decided, by their ids."""
        days = map(self.day_of, self.journal.of("intent"))
        return {order.id: order for day in days for order in self.intended(day)}

    def worth(self, shares: Mapping[str, float], day: int) -> float:
        """Return what shares are worth at the last known closes up to a day, as far as their tickers are known."""
        known = [one for one in shares if one in self.market.tickers and np.isfinite(self.prices(one, day)).any()]
        return sum(shares[one] * self.last_price(one, day) for one in known)

    @property
    def taken_fills(self) -> set[tuple[str, str]]:
        """The trades of all sessions of the journal, by the ids of their orders and their sides."""
        sessions = [row.body for row in self.journal.of("session").values()]
        own = {(fill["id"], fill["side"]) for body in sessions for fill in body["fills"]}
        return own | {(id_, side) for body in sessions for id_, side in body.get("hand_trades", ())}

    def events(self, day: int) -> list[NotedEvent]:
        """Return the dividends and splits, with whether the positions at the close before a day know of them."""
        before = self.journal.of("session")[self.date(day - 1)]
        events = self.journal.of("event").values()
        return [NotedEvent(event.body, before.key if event.number < before.number else "") for event in events]

    def expected(self, day: int, fills: Sequence[Fill]) -> tuple[dict[str, float], dict[str, float], float]:
        """Return what a session's fills make of the close before: shares of agents and basket, and the agents' cash."""
        before, ids = self.session(day - 1), self.known_orders
        agents, basket, cash = (before[name] for name in ("positions", "basket_positions", "cash"))
        agents, basket = dict(agents), dict(basket)
        today = self.date(day)
        for body, applied_to in self.events(day):  # a dividend is paid in cash
            is_late = not applied_to and body["since"] < today  # of a split noted late the venue had new shares
            if applied_to < body["since"] <= today and (body["kind"] == "dividend" or is_late):
                for part in (agents, basket):
                    part.update({t: part[t] * body["ratio"] for t in {body["ticker"]} & part.keys()})
            if applied_to < body.get("pay", "") <= today:
                cash += self.entitled(body) * body["cash"]
        for fill in fills:
            is_of_basket = ids[fill.id].is_of_basket
            part, sign = basket if is_of_basket else agents, 1 if fill.side == "buy" else -1
            part[fill.ticker] = part.get(fill.ticker, 0.0) + sign * fill.shares
            if not is_of_basket:
                cash -= sign * fill.value
        return agents, basket, cash

    def entitled(self, dividend: Mapping[str, Any], parts: Sequence[str] = ("positions",)) -> float:
        """Return the shares of the agents, or of other parts, at the close before an ex-date, in units of that day."""
        sessions, ticker = self.journal.of("session"), dividend["ticker"]
        last = next((date for date in reversed(sessions) if date < dividend["since"]), None)
        shares = 0.0 if last is None else sum(sessions[last].body[part].get(ticker, 0.0) for part in parts)
        return float(shares * dividend["ratio"] / units(self.journal, dividend["since"])[ticker])

    def basket_holdings(self, day: int) -> list[Holding]:
        """Return what the basket holds at a broker at the close of a session, as bought on its first one."""
        positions = self.session(day)["basket_positions"]
        if not positions:
            return []
        first = next(one for one in range(self.start, day + 1) if self.session(one)["basket_positions"])
        columns = [self.market.tickers.index(ticker) for ticker in positions]
        bars = self.market.data_array[first : day + 1]
        return [
            Holding(ticker, column, first, math.nan, math.inf, shares, bars[:, column])
            for column, (ticker, shares) in zip(columns, positions.items(), strict=True)
        ]

    def basket_asked(self, day: int) -> int:
        """Return the last close before a day at which the basket gave the orders that it should, and all were sent; -1
        without one."""
        intents, answers = self.journal.of("intent"), self.journal.of("answer")
        for before in range(day - 1, self.start - 1, -1):
            intent = intents.get(self.date(before))
            if intent is None or "stopped" in intent.body or self.is_locked(before, "basket"):
                continue
            of_basket = [order.id for order in self.intended(before) if order.is_of_basket]
            if any(answers[one].body["status"] in ("lapsed", "cancelled") for one in of_basket if one in answers):
                return -1
            return before
        return -1

    def stakes(self, day: int) -> list[Stake]:
        """Return what the champion's own decisions have at stake in the session `day`."""
        if day == self.start:
            return []
        equity, stakes = self.equity(day - 1), []
        # What was sold at the open has nothing at stake in the session.
        sold = {order.ticker for order in self.orders(day - 1) if order.is_own and order.side == "sell"}
        # What was sold at its last price for want of bars is at stake until the stock trades again.
        halted = [
            position
            for known in range(max(self.start + 1, day - WINDOW), day)
            for lost in (fill.ticker for fill in self.fills(known) if fill.reason == "no_bar")
            for position in self.positions(known - 1)
            if position.holding.ticker == lost
            and np.isnan(self.market.data_array[known:day, position.holding.column, CLOSE]).all()
        ]
        open_ = (one for one in self.positions(day - 1) if one.holding.ticker not in sold)
        of_agents = (one for one in (*open_, *halted) if one.order.is_own)
        for position in of_agents:
            share = position.holding.shares * position.holding.last_price / equity
            stock, column = self.stocks[position.holding.ticker], position.holding.column
            loss = self._lost(column, day) - self._lost(column, day - 1)
            stakes.append(Stake(stock, share, False, self._candidates(position.ordered), loss))
        for order in (one for one in self.orders(day - 1) if one.is_own and one.side == "buy"):
            stakes.append(Stake(self.stocks[order.ticker], order.value / equity, True, self._candidates(day - 1)))
        return stakes

    def _lost(self, column: int, day: int) -> float:
        """Return the share of its last price that a stock has lost by a session because its bars have ended."""
        silent = int(np.isnan(self.market.data_array[day::-1, column, CLOSE]).cumprod().sum())
        is_lost = silent > self._rules.max_days_without_bar
        return max(LEAST_LOSS, self._rules.delisting_loss / 100) if is_lost else 0.0

    def _candidates(self, day: int) -> BoolArray:
        """Tell which stocks could be ordered at the close of a session."""
        candidates: BoolArray = np.isfinite(self.market.data_array[day, self.market.investable_columns, CLOSE])
        known = [self.stocks[ticker] for ticker in self.session(day)["positions"] if ticker in self.stocks]
        candidates[known] = False
        return candidates
