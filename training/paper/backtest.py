"""The backtest of an account: the same decider on the same days and recorded prices, played as it is judged."""

from dataclasses import dataclass

import numpy as np

from environment.account import Account as Ledger
from training.paper.account import Account
from utils.arrays import Float64Array


@dataclass(frozen=True)
class Backtest:
    """What the account should be: by session, from its first one on."""

    equity: Float64Array
    """(sessions,) at the closes."""
    cash: Float64Array
    shares: Float64Array
    """(sessions, n)."""
    benchmark: Float64Array

    def first_difference(self, account: Account, rounding: float) -> str:
        """Return the first session on which the account differs by more than a share, and in what; empty: never."""
        book = account.book
        for place, day in enumerate(range(book.start, book.last + 1)):
            said, date = book.session(day), book.date(day)
            expected = dict(zip(account.tickers, self.shares[place].tolist(), strict=True))
            for ticker in {**expected, **said["positions"]}:
                has, due = said["positions"].get(ticker, 0.0), expected.get(ticker, 0.0)
                if not np.isclose(has, due, rtol=rounding, atol=0.0):
                    return f"{date}: {has!r} shares of {ticker}, backtest {due!r}"
            for name in ("equity", "cash", "benchmark"):
                has, due = said[name], float(getattr(self, name)[place])
                if not np.isclose(has, due, rtol=rounding, atol=rounding * said["equity"]):
                    return f"{date}: {name} {has!r}, backtest {due!r}"
        return ""


def backtest(account: Account) -> Backtest:
    """Play the account's decider from its first session to its last one; locks end where they did in the account."""
    book = account.book
    account = account.on(book.last, walked=None)
    portfolio = account.new_portfolio()
    policy, ledger = account.decider.policy(account.market, slice(book.start, None)), portfolio.account
    closes = [_close(ledger)]
    while int(ledger.day) < book.last:
        portfolio.trade(policy(portfolio))
        closes.append(_close(ledger))
        if int(ledger.day) in book.released:
            ledger.release()
    equity, cash, shares = (np.stack(part) for part in zip(*closes, strict=True))
    benchmark = portfolio.benchmark.equity_curve[: len(closes), 0].numpy()
    return Backtest(equity, cash, shares, benchmark)


def _close(ledger: Ledger) -> tuple[Float64Array, Float64Array, Float64Array]:
    return ledger.equity[0].numpy().copy(), ledger.cash[0].numpy().copy(), ledger.shares[0].numpy().copy()
