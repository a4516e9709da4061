"""What the journal and the market say together: windows, orders, positions and results of an account."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from data.features import CLOSE
from data.market import Market
from training.paper.certificate import Stake
from training.paper.journal import Journal
from training.paper.venue import Fill, Order
from training.signals.holdings import Holding
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

_ANY = ("accepted", "rejected", "lapsed")


@dataclass(frozen=True)
class Position:
    """An open position with the order that bought it."""

    holding: Holding
    order: Order
    ordered: int
    """Day at whose close it was ordered."""


class Book:
    """The account by its journal, on a market that ends with the last known session.

    The account plays windows of the rules' length one after the other, each with all that the one before it left. A
    window's first decision is made at the close on which the one before it ends, without positions.
    """

    def __init__(self, journal: Journal, market: Market, rules: EnvironmentConfig) -> None:
        """Raises DataError where the market lacks a session of the account."""
        self.journal, self.market, self._rules = journal, market, rules
        self.start = self.day_of(journal.opening["start"])
        self.stocks = {market.tickers[column]: place for place, column in enumerate(market.investable_columns.tolist())}

    def day_of(self, date: str) -> int:
        """Return the index of a session of the account."""
        day = int(np.searchsorted(self.market.dates, np.datetime64(date, "D")))
        if day >= len(self.market.dates) or self.date(day) != date:
            raise DataError(
                f"expected the session {date} of the account in the data, got data from {self.date(0)} to "
                f"{self.date(-1)} without it; give the file that has it"
            )
        return day

    def date(self, day: int) -> str:
        """Return the date of a day."""
        return str(self.market.dates[day].astype("datetime64[D]"))

    @property
    def last(self) -> int:
        """The last session in the journal; the day before the first one where there is none."""
        sessions = self.journal.of("session")
        return self.day_of(next(reversed(sessions))) if sessions else self.start - 1

    def window(self, day: int) -> int:
        """Return the first day of the window that a decision on a day belongs to."""
        return day - (day - self.start) % self._rules.episode_steps

    def rules(self, window: int) -> EnvironmentConfig:
        """Return the rules of the window that begins on a day, with its capital."""
        capital = self.journal.opening["capital"] if window == self.start else self.equity(window)
        return replace(self._rules, initial_capital=capital)

    def equity(self, day: int) -> float:
        """Return the equity at the close of a session of the journal."""
        return float(self.journal.of("session")[self.date(day)].body["equity"])

    def is_locked(self, day: int) -> bool:
        """Tell whether a drawdown has ended ordering in the window of a day."""
        peak, lock = 0.0, self._rules.drawdown_lock
        for equity in (self.equity(known) for known in range(self.window(day), day + 1)):
            peak = max(peak, equity)
            if lock > 0 and equity <= peak * (1 - lock / 100):
                return True
        return False

    def orders(self, day: int, *, status: Sequence[str] = ("accepted",)) -> list[Order]:
        """Return the orders given at a close whose answer is one of these."""
        intent, answers = self.journal.of("intent").get(self.date(day)), self.journal.of("answer")
        orders = [] if intent is None else [Order(**values) for values in intent.body["orders"]]
        return [order for order in orders if order.id in answers and answers[order.id].body["status"] in status]

    def unanswered(self) -> Iterator[tuple[int, Order]]:
        """Yield the orders without an answer, with their days."""
        for date, intent in self.journal.of("intent").items():
            for values in intent.body["orders"]:
                if values["id"] not in self.journal.of("answer"):
                    yield self.day_of(date), Order(**values)

    def fills(self, day: int) -> list[Fill]:
        """Return the fills on a session."""
        return [Fill(**values) for values in self.journal.of("session")[self.date(day)].body["fills"]]

    def shares(self, day: int) -> dict[str, float]:
        """Return the shares by ticker at the close of a session, as the venue stated them."""
        return dict(self.journal.of("session")[self.date(day)].body["positions"])

    def positions(self, day: int) -> list[Position]:
        """Return the positions at the close of a session, in the order in which they were bought."""
        held: dict[str, Position] = {}
        for entry in range(max(self.start, day - self._longest), day + 1):
            for fill in (fill for fill in self.fills(entry) if fill.side == "buy"):
                column, ordered = self.market.tickers.index(fill.ticker), entry - 1
                order = next(order for order in self.orders(ordered, status=_ANY) if order.id == fill.id)
                bars = self.market.data_array[entry : day + 1, column]
                holding = Holding(fill.ticker, column, entry, fill.price, order.target_percent, fill.shares, bars)
                held[fill.ticker] = Position(holding, order, ordered)
        # What the venue says wins.
        return [
            replace(held[ticker], holding=replace(held[ticker].holding, shares=shares))
            for ticker, shares in self.shares(day).items()
            if ticker in held
        ]

    @cached_property
    def _longest(self) -> int:
        return self._rules.max_holding_days + self._rules.max_days_without_bar

    def stakes(self, day: int) -> list[Stake]:
        """Return what the champion's own decisions have at stake in the session `day`."""
        if day == self.start:
            return []
        equity, stakes = self.equity(day - 1), []
        for position in (one for one in self.positions(day - 1) if one.order.is_own):
            share = position.holding.shares * position.holding.last_price / equity
            stock = self.stocks[position.holding.ticker]
            stakes.append(Stake(stock, share, False, self._candidates(position.ordered)))
        for order in (one for one in self.orders(day - 1) if one.is_own and one.side == "buy"):
            stakes.append(Stake(self.stocks[order.ticker], order.value / equity, True, self._candidates(day - 1)))
        return stakes

    def _candidates(self, day: int) -> NDArray[np.bool_]:
        """Tell which stocks could be ordered at the close of a session."""
        candidates: NDArray[np.bool_] = np.isfinite(self.market.data_array[day, self.market.investable_columns, CLOSE])
        candidates[[self.stocks[ticker] for ticker in self.shares(day)]] = False
        return candidates
