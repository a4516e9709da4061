"""The backtest of an account: the same decider on the same days, as `evaluate --continuous` plays it."""

import dataclasses
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray

from data.market import span_of
from environment.portfolio import Portfolio
from training.evaluation.play import EvaluationSetup
from training.paper.account import Account
from training.paper.venue import Fill, fills_of


@dataclass(frozen=True)
class Backtest:
    """What the account should be: by session, from its first one on."""

    equity: NDArray[np.float64]
    """Of the agents' account."""
    fills: list[list[Fill]]
    basket: NDArray[np.float64]

    def first_difference(self, account: Account, rounding: float) -> str:
        """Return the first session on which the account differs by more than a share, and in what; empty: never."""
        book = account.book
        for day, expected, equity in zip(range(book.start, book.last + 1), self.fills, self.equity, strict=True):
            fills = book.fills(day)
            pairs = zip_longest(fills, expected)
            if other := next((a or b for a, b in pairs if not (a and b and _is_same(a, b, rounding))), None):
                return f"{book.date(day)}: {other.side} {other.ticker}"
            if not np.isclose(book.equity(day), equity, rtol=rounding, atol=0.0):
                return f"{book.date(day)}: equity {book.equity(day)!r}, backtest {float(equity)!r}"
            basket = float(self.basket[day - book.start])
            if account.decider.share < 1 and book.session(day)["basket"] != basket:
                return f"{book.date(day)}: basket {book.session(day)['basket']!r}, backtest {basket!r}"
        return ""


def backtest(account: Account) -> Backtest:
    """Play the account up to its last session: its agents and its basket, each in one account that goes on."""
    book, env = account.book, account.config.env
    market, steps = span_of(account.market, 0, book.last), max(1, book.last - book.start)
    rules = dataclasses.replace(env, initial_capital=account.capitals.agents, trading_days=steps, settlement_days=0)
    # An environment begins on the first training day, for want of another one.
    padded = span_of(market, 0, max(book.start, market.splits.train.first) + steps)
    setup = EvaluationSetup(padded, Portfolio.on(padded, rules, is_continuing=True), torch.tensor([book.start]))
    played = account.decider.play(setup, market)
    filled, days = fills_of(account.name, market, 0, played.trades), range(book.start, book.last + 1)
    return Backtest(
        equity=played.curves.equity[0, 0, : len(days)],
        fills=[filled.get(day, []) for day in days],
        basket=account.held_basket()[: len(days)],
    )


def _is_same(one: Fill, other: Fill, rounding: float) -> bool:
    first, second = ((fill.shares, fill.price, fill.value) for fill in (one, other))
    return (one.id, one.reason) == (other.id, other.reason) and np.allclose(first, second, rtol=rounding, atol=0.0)
