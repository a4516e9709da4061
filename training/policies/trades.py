"""Orders and fills of another backtester, which are executed again under the rules of this program."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.play import EvaluationSetup, Played
from training.policies.read import long_rows, titled
from utils.arrays import Float64Array, Int64Array
from utils.errors import DataError
from utils.tables import many

_SIDES = {"buy": 1.0, "b": 1.0, "bought": 1.0, "bot": 1.0, "sell": -1.0, "s": -1.0, "sold": -1.0, "sld": -1.0}
_SIDE_TITLES = ("side", "action", "direction", "type", "transaction", "buy/sell")
_READ = ("date", "ticker", "value", "shares", "price", *_SIDE_TITLES)
_SPLITS = np.array([1.5, *range(2, 11), 15, 20, 25, 50])
_LITTLE = 1e-4
"""Share of the capital by which prices must be better or worse to be worth a word."""
_ROUNDING, _CENT, _SCALE = 1e-4, 0.005, 0.1
"""By which a price may lie outside of a day's range, as a share and in currency units, or of prices below 1 as a share;
and by which a ratio of prices may miss that of a split."""
_CREDIT = 0.2
"""Share of the equity by which a purchase may exceed the cash that is known of: dividends are not."""
_AFTER, _PART = "after the judged days", "sale of more than is held, done in part"
_LATE = "on the day after one without a bar, done a session later"


@dataclass(frozen=True)
class Trades:
    """Orders of another backtester, as rows of `date`, `ticker`, and `value` in currency units or `shares`.

    Sales have the `side` sell, or negative amounts. An order is known at the close of its date. With a `price` rows are
    fills: of their date, at that price.
    """

    rows: pd.DataFrame
    source: str = "trades"
    """What messages call them."""
    table: pd.DataFrame = field(init=False, repr=False, compare=False)
    """A row each: `date`, `ticker`, signed `value` and `shares` (NaN: not given), `price`, and whether it `has_side`,
    `has_ticker`, or `is_contrary`, a purchase of a negative amount."""

    def __post_init__(self) -> None:
        """Read the rows. Raises DataError where none tells what is traded."""
        rows = titled(self.rows)
        amounts = [name for name in ("value", "shares") if name in rows.columns] or ["value"]
        numbers = [*amounts, *rows.columns.intersection(["price"])]
        table = long_rows(rows, numbers, self.source).reindex(columns=["date", "ticker", "value", "shares", "price"])
        if "price" in numbers:
            table["price"] = table["price"].fillna(0.0)
        table["has_side"], table["has_ticker"] = True, rows["ticker"].notna().to_numpy()
        table["is_contrary"] = False
        titles = [title for title in _SIDE_TITLES if title in rows.columns]
        sides = [(title, rows[title].astype(str).str.strip().str.lower()) for title in titles]
        # Types of orders are no sides.
        for title, side in [(t, one) for t, one in sides if t == _SIDE_TITLES[0] or one.isin(_SIDES).any()][:1]:
            if not (known := side.isin(_SIDES)).any():
                raise DataError(
                    f"expected buy or sell under {title!r} in {self.source}, got {side.iloc[0]!r}; rename them, and of "
                    "shorts give target weights"
                )
            table["has_side"], sign = known.to_numpy(), side.map(_SIDES).to_numpy()
            table["is_contrary"] = (sign > 0) & (table[amounts] < 0).any(axis=1)
            for name in amounts:
                table[name] = table[name].abs() * sign
        object.__setattr__(self, "table", table)


class GivenTrades:
    """The policy that holds the shares which orders add up to, as far as they could be bought.

    Amounts are those of an account that began with the rules' initial capital. What it held before the judged days is
    held on the first of them, as the share of its equity that it was, and later amounts are scaled alike. Sales of more
    than is held close the position.
    """

    def __init__(self, trades: Trades, setup: EvaluationSetup) -> None:
        """Check the rows, and add up the orders up to the last judged day.

        Raises DataError: nothing can be held or bought on the judged days.
        """
        self.trades, self.setup = trades, setup
        table, market = trades.table.copy(), setup.market
        table["ticker"] = table["ticker"].map(market.spelled(table["ticker"].unique()))
        self.has_prices = bool(table["price"].notna().any())
        # Sessions from a decision to its fill.
        self.late = int(setup.portfolio.rules.fill == "next_open")
        dates = market.dates
        session = np.searchsorted(dates, table["date"].to_numpy("datetime64[D]")).clip(max=len(dates) - 1)
        # An order is decided at the close of its date; a fill was decided on the session before.
        decided = session - self.has_prices * self.late - setup.first
        place = {market.tickers[column]: n for n, column in enumerate(market.investable_columns.tolist())}
        stock = table["ticker"].map(place)
        known_stock = stock.fillna(0).astype(int)
        column = market.investable_columns[known_stock]
        bars = market.data_array[session, column].astype(np.float64)
        table = table.assign(is_after=decided >= setup.steps, is_investable=stock.notna())
        why = _reasons(table, market, session, known_stock, bars)
        reason = np.select([np.asarray(where) for where in why.values()], [*why], default="")
        price = table["price"] if self.has_prices else bars[:, CLOSE]
        shares = table["shares"].fillna(table["value"] / price).to_numpy()
        self.rows = table.assign(decided=decided, stock=known_stock, amount=shares, reason=reason, at=price)
        held = np.zeros((setup.steps, len(place)))
        self.rows["amount"] = self._held(held)
        # Nothing can be ordered at a close without a bar: what was filled on the next day is filled a session later.
        before = market.data_array[(session - 1).clip(min=0), column, CLOSE]
        is_played = (decided >= 0) & (self.rows["amount"] != 0) & (self.rows["reason"] == "")
        is_late = self.has_prices & bool(self.late) & ~np.isfinite(before)
        self.rows.loc[is_late & is_played, "reason"] = _LATE
        if not (held > 0).any():
            first, last = dates[[setup.judged.start, setup.judged.stop - 1]]
            but = ", ".join(f"{count:,} {why}" for why, count in self.refused["reason"].value_counts().items())
            raise DataError(
                f"expected purchases in {trades.source} from {first} to {last}, got none{but and f': {but}'}"
            )
        capital, before = setup.portfolio.rules.initial_capital, self.rows[self.rows["decided"] < 0]
        worth = np.nan_to_num(pd.DataFrame(market.close[: setup.first + 1]).ffill().iloc[-1].to_numpy(np.float64))
        begun = np.bincount(before["stock"], before["amount"], minlength=len(place))
        equity = capital - float((before["amount"] * before["at"]).fillna(0.0).sum()) + float(begun @ worth)
        if equity <= 0:
            raise DataError(
                f"expected an account of {trades.source} that is worth something on {dates[setup.first]}, where the "
                f"judged days begin, got {equity:,.0f}; give --env.initial-capital"
            )
        # Of what it was worth when the judged days began.
        self.scale, self.first = capital / equity, setup.first
        self.shares = torch.from_numpy(self.scale * held.cumsum(axis=0))

    def _held(self, change: Float64Array) -> Any:
        """Add what is bought and sold on each day, (D, n), on the first one also what was before; return the shares of
        each row, and note what is not held, or by far not paid for."""
        done, held, rules = np.zeros(len(self.rows)), defaultdict[int, float](float), self.setup.portfolio.rules
        cash, invested, last = rules.initial_capital, 0.0, dict[int, float]()
        usable = self.rows[self.rows["reason"] == ""]
        # What is bought at a close may be sold at the same one.
        in_turn = usable.assign(sale=usable["amount"] < 0).sort_values(["decided", "sale"], kind="stable")
        for row in in_turn.itertuples():
            stock, amount = row.stock, float(row.amount)
            owned = held[stock]
            invested += owned * (row.at - last.get(stock, row.at))
            last[stock] = row.at
            if self.has_prices and amount * row.at > cash + _CREDIT * max(rules.initial_capital, cash + invested):
                self.rows.loc[row.Index, "reason"] = "purchase that the cash does not pay for"
                continue
            done[row.Index] = max(amount, -owned)
            cash, invested = cash - done[row.Index] * row.at, invested + done[row.Index] * row.at
            if amount < -owned * (1 + 1e-6):
                self.rows.loc[row.Index, "reason"] = _PART if owned > 0 else "sale of what is not held"
            held[stock] = 0.0 if amount <= -owned else owned + amount
            change[max(0, row.decided), stock] += done[row.Index]
        return done

    @property
    def refused(self) -> pd.DataFrame:
        """The rows that were left out, or done in part, numbered from 1, with the reason."""
        rows = titled(self.trades.rows)
        rows = rows.assign(row=np.arange(1, len(self.rows) + 1), reason=self.rows["reason"].to_numpy())
        return rows[rows["reason"] != ""]

    @property
    def how(self) -> str:
        """Say how the rows are played, and which of them lie on other days."""
        rows, rules = many(len(self.rows), "row"), self.setup.portfolio.rules
        said = [f"Trades of an account of {rules.initial_capital:,.0f} (--env.initial-capital), filled again here."]
        if before := int(((self.rows["decided"] < 0) & (self.rows["amount"] != 0)).sum()):
            said.append(
                f"{before:,} of {rows} lie before the judged days: the account begins with what they leave held, "
                f"scaled by {self.scale:.3g} to its capital."
            )
        if after := int((self.rows["reason"] == _AFTER).sum()):
            said.append(f"{after:,} of {rows} lie after the judged days, and are left out.")
        if unread := [str(name) for name in titled(self.trades.rows).columns if name not in _READ]:
            said.append(f"Columns that are not read: {', '.join(unread[:6])}; costs are those of --env.cost-bps.")
        return " ".join(said)

    def notes(self, played: Played) -> Sequence[str]:
        """Say which rows were left out, and how much better the prices are that are claimed than fills here."""
        said, reasons, rows = list[str](), self.rows["reason"], many(len(self.rows), "row")
        after = int((reasons == _AFTER).sum())
        if refused := int(reasons.ne("").sum()) - after:
            (reason, count), *others = reasons[~reasons.isin(["", _AFTER])].value_counts().items()
            more = f", and {refused - count:,} for other reasons" if others else ""
            said.append(f"{refused:,} of {rows} were not done as claimed, see refused.csv: {count:,} {reason}{more}.")
        if self.has_prices:
            is_judged = (self.rows["amount"] != 0) & (self.rows["decided"] >= 0)
            done, quotes = self.rows[is_judged], self.setup.portfolio.quotes
            prices, day = quotes.open if self.late else quotes.close, done["decided"] + self.first + self.late
            here = prices.cpu().numpy()[day, done["stock"]]
            better = self.scale * float(np.nansum(done["amount"] * (here - done["price"])))
            profit = float(played.curves.equity[0, -1] - played.curves.capital) + better
            share = f", {100 * abs(better) / profit:.0f}% of the profit of {profit:,.0f} at these prices" * (profit > 0)
            word = "better" if better >= 0 else "worse"
            if abs(better) > _LITTLE * played.curves.capital:
                said.append(f"The prices given are {abs(better):,.0f} {word} than fills here{share}.")
        return said

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of the shares of today."""
        account = portfolio.account
        shares = self.shares[account.day.cpu() - self.first].to(account.device)
        weights = shares * account.last[:, : shares.shape[1]].nan_to_num() / account.equity[:, None]
        # Nothing is asked of a stock without a bar: orders have a day on which it trades.
        return torch.where(account.has_bar[:, : shares.shape[1]], weights, torch.nan)


def _reasons(
    table: pd.DataFrame, market: Market, session: Int64Array, stock: "pd.Series[int]", bars: Float64Array
) -> dict[str, Any]:
    """Return by reason the rows that no account could have; of two reasons the first one counts.

    Args:
        table: also with whether a row `is_after` the judged days, and of a stock that `is_investable`.
        session, stock, bars: (rows,) of each, 0 where there is none, and its prices.
    """
    dates, date = market.dates, table["date"].to_numpy("datetime64[D]")
    closes = pd.DataFrame(market.close).ffill().to_numpy(np.float64)
    before = closes[(session - 1).clip(min=0), stock][:, None]
    repeats = (bars[:, [OPEN, HIGH, LOW, CLOSE]] == before).all(axis=1)
    price, low, high = table["price"].to_numpy(), bars[:, LOW], bars[:, HIGH]
    slack, middle = np.maximum(_ROUNDING * price, np.minimum(_CENT, _CENT * price)), np.sqrt(low * high)
    ratio = np.maximum(price / middle, middle / np.maximum(price, 1e-12))
    is_split = (np.abs(ratio[:, None] / _SPLITS - 1) < _SCALE).any(axis=1)
    is_outside = (price < low - slack) | (price > high + slack)
    amount = table["shares"].fillna(table["value"])
    return {
        "neither a purchase nor a sale": ~table["has_side"],
        "without a ticker": ~table["has_ticker"],
        "a purchase of a negative amount": table["is_contrary"],
        "without an amount other than 0": ~np.isfinite(amount) | (amount == 0),
        "with both value and shares": table["value"].notna() & table["shares"].notna(),
        "of an unknown ticker": ~table["ticker"].isin(market.tickers),
        "of a stock that may not be bought": ~table["is_investable"],
        "after the last day of the data": date > dates[-1],
        "before the first day of the data": date < dates[0],
        "on a day without session": dates[session] != date,
        _AFTER: table["is_after"],
        "on a day without a bar": ~np.isfinite(bars[:, CLOSE]),
        "without a finite price above 0": (price <= 0) | np.isinf(price),
        "on another scale than the day's prices, as before or after a split": is_outside & is_split,
        "outside of the day's range": is_outside,
        "on a frozen bar, which repeats the close before": repeats & np.isfinite(price),
    }
