"""Orders and fills of another backtester, executed again under the rules of this program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.play import EvaluationSetup, Played
from training.policies.read import long_rows
from utils.arrays import Float64Array
from utils.errors import DataError
from utils.tables import many

_SIDES = {"buy": 1.0, "sell": -1.0}
_SPLITS = np.array([1.5, *range(2, 11), 15, 20, 25, 50])
_ROUNDING, _CENT, _SCALE = 1e-4, 0.005, 0.1
"""By which a price may lie outside of a day's range, as a share and in currency units; and by which a ratio of prices
may miss that of a split."""
_PART = "sale of more than is held, done in part"


@dataclass(frozen=True)
class Trades:
    """Orders of another backtester, as rows of `date`, `ticker`, and `value` in currency units or `shares`.

    Sales have the `side` sell, or negative amounts. An order is known at the close of its date. With a `price` rows are
    fills: of their date, at that price.
    """

    rows: pd.DataFrame
    source: str = "trades"
    """What messages call them."""

    def table(self) -> pd.DataFrame:
        """Return `date`, `ticker`, signed `value` and `shares` (NaN: not given) and `price`, a row each.

        Raises DataError where a row does not tell them.
        """
        amounts = [name for name in ("value", "shares") if name in self.rows.columns] or ["value"]
        numbers = [*amounts, *self.rows.columns.intersection(["price"])]
        table = long_rows(self.rows, numbers, self.source).reindex(
            columns=["date", "ticker", "value", "shares", "price"]
        )
        if "price" in numbers:
            table["price"] = table["price"].fillna(0.0)
        amount = table["shares"].fillna(table["value"])
        if (bad := table["date"].isna() | ~np.isfinite(amount) | (amount == 0)).any():
            raise DataError(
                f"expected a date and a {' or '.join(amounts)} other than 0 in each row of {self.source}, got "
                f"{many(int(bad.sum()), 'row')} without; fill or drop them"
            )
        if "side" in self.rows.columns:
            side = self.rows["side"].astype(str).str.strip().str.lower()
            if not (known := side.isin(_SIDES)).all():
                raise DataError(
                    f"expected buy or sell as the side in {self.source}, got {side[~known].iloc[0]!r}; of shorts give "
                    "target weights"
                )
            for name in amounts:
                table[name] = table[name].abs() * side.map(_SIDES).to_numpy()
        return table


class GivenTrades:
    """The policy that holds the shares which orders add up to, as far as they could be bought.

    Amounts are those of an account that begins with the rules' initial capital. Of a stock of which nothing was
    ordered yet nothing is asked; sales of more than is held close the position.
    """

    def __init__(self, trades: Trades, setup: EvaluationSetup) -> None:
        """Check the rows, and add up the orders of the judged days.

        Raises DataError: nothing can be bought on these days.
        """
        self.trades, self.setup = trades, setup
        table, market = trades.table(), setup.market
        self.has_prices = "price" in trades.rows.columns
        fills_next = setup.portfolio.rules.fill == "next_open"
        dates = market.dates.astype("datetime64[D]")
        session = np.searchsorted(dates, table["date"].to_numpy("datetime64[D]")).clip(max=len(dates) - 1)
        # An order is decided at the close of its date; a fill was decided on the session before.
        decided = session - (self.has_prices and fills_next) - setup.first
        place = {market.tickers[column]: n for n, column in enumerate(market.investable_columns.tolist())}
        stock = table["ticker"].map(place)
        bars = market.data_array[session, market.investable_columns[stock.fillna(0).astype(int)]].astype(np.float64)
        table = table.assign(is_judged=(decided >= 0) & (decided < setup.steps))
        why = _reasons(table, market, session, stock, bars)
        reason = np.select([np.asarray(where) for where in why.values()], [*why], default="")
        price = table["price"] if self.has_prices else bars[:, CLOSE]
        shares = table["shares"].fillna(table["value"] / price).to_numpy()
        self.rows = table.assign(decided=decided, stock=stock, amount=shares, reason=reason)
        held = np.zeros((setup.steps, len(place)))
        self.rows["amount"] = self._held(held)
        if not (self.rows["amount"] > 0).any():
            first, last = dates[[setup.judged.start, setup.judged.stop - 1]]
            but = f": {self.counted}" if self.refused.size else ""
            raise DataError(f"expected purchases in {trades.source} from {first} to {last}, got none{but}")
        self.shares, self.first = torch.from_numpy(held.cumsum(axis=0)), setup.first

    def _held(self, change: Float64Array) -> Any:
        """Add what is bought and sold on each day, (D, n); return the shares of each row, and note what is not held."""
        done, held = np.zeros(len(self.rows)), dict[int, float]()
        usable = self.rows[self.rows["reason"] == ""]
        # What is bought at a close may be sold at the same one.
        in_turn = usable.assign(sale=usable["amount"] < 0).sort_values(["decided", "sale"], kind="stable")
        for row in in_turn.itertuples():
            stock, amount, owned = int(row.stock), float(row.amount), held.get(int(row.stock), 0.0)
            done[row.Index] = max(amount, -owned)
            if amount < -owned * (1 + 1e-6):
                self.rows.loc[row.Index, "reason"] = _PART if owned > 0 else "sale of what is not held"
            held[stock] = 0.0 if amount <= -owned else owned + amount
            change[row.decided, stock] += done[row.Index]
        return done

    @property
    def refused(self) -> pd.DataFrame:
        """The rows that were left out, or done in part, numbered from 1, with the reason."""
        rows = self.trades.rows.assign(row=np.arange(1, len(self.rows) + 1), reason=self.rows["reason"].to_numpy())
        return rows[rows["reason"] != ""]

    @property
    def counted(self) -> str:
        """Say how many rows have which reason."""
        counts = self.refused["reason"].value_counts()
        return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())

    def notes(self, played: Played) -> Sequence[str]:
        """Say which rows were left out, and how much better the prices are that are claimed than fills here."""
        said, refused = list[str](), len(self.refused)
        if refused:
            share = f"{refused:,} of {many(len(self.rows), 'row')}"
            said.append(f"{share} were not done as claimed, see refused.csv: {self.counted}.")
        if self.has_prices:
            done, quotes = self.rows[self.rows["amount"] != 0], self.setup.portfolio.quotes
            fills_next = self.setup.portfolio.rules.fill == "next_open"
            prices, day = quotes.open if fills_next else quotes.close, done["decided"] + self.first + int(fills_next)
            here = prices.cpu().numpy()[day, done["stock"].astype(int)]
            better = float(np.nansum(done["amount"] * (here - done["price"])))
            profit = float(played.curves.equity[0, -1] - played.curves.capital) + better
            share = f", {100 * better / profit:.0f}% of the profit of {profit:,.0f} that they claim" * (profit > 0)
            word = "better" if better >= 0 else "worse"
            said.append(f"The prices given are {abs(better):,.0f} {word} than fills here{share}.")
        return said

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of the shares of today."""
        account = portfolio.account
        shares = self.shares[account.day.cpu() - self.first].to(account.device)
        return shares * account.last[:, : shares.shape[1]].nan_to_num() / account.equity[:, None]


def _reasons(
    table: pd.DataFrame, market: Market, session: NDArray[np.int64], stock: "pd.Series[float]", bars: Float64Array
) -> dict[str, Any]:
    """Return by reason the rows that no account could have; of two reasons the first one counts.

    Args:
        session, stock, bars: (rows,) of each, 0 where there is none, and its prices.
    """
    dates, date = market.dates.astype("datetime64[D]"), table["date"].to_numpy("datetime64[D]")
    closes = pd.DataFrame(market.close).ffill().to_numpy(np.float64)
    before = closes[(session - 1).clip(min=0), stock.fillna(0).astype(int)][:, None]
    repeats = (bars[:, [OPEN, HIGH, LOW, CLOSE]] == before).all(axis=1)
    price, low, high = table["price"].to_numpy(), bars[:, LOW], bars[:, HIGH]
    slack, middle = np.maximum(_ROUNDING * price, _CENT), np.sqrt(low * high)
    ratio = np.maximum(price / middle, middle / np.maximum(price, 1e-12))
    is_split = (np.abs(ratio[:, None] / _SPLITS - 1) < _SCALE).any(axis=1)
    is_outside = (price < low - slack) | (price > high + slack)
    return {
        "with both value and shares": table["value"].notna() & table["shares"].notna(),
        "of an unknown ticker": ~table["ticker"].isin(market.tickers),
        "of a stock that may not be bought": stock.isna(),
        "after the last day of the data": date > dates[-1],
        "before the first day of the data": date < dates[0],
        "on a day without session": dates[session] != date,
        "outside of the judged days": ~table["is_judged"],
        "on a day without a bar": ~np.isfinite(bars[:, CLOSE]),
        "without a price above 0": (price <= 0) | np.isinf(price),
        "on another scale than the day's prices, as before or after a split": is_outside & is_split,
        "outside of the day's range": is_outside,
        "on a frozen bar, which repeats the close before": repeats & np.isfinite(price),
    }
