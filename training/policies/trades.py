"""Orders of another backtester, executed again under the rules of this program."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from environment.portfolio import Portfolio
from training.evaluation.play import EvaluationSetup
from training.policies.read import aligned, long_rows
from utils.errors import DataError

_SIDES = {"buy": 1.0, "sell": -1.0}


@dataclass(frozen=True)
class Trades:
    """Orders of another backtester, as rows of `date`, `ticker`, and `value` in currency units or `shares`.

    Sales have the `side` sell, or negative amounts. An order is known at the close of its date.
    """

    rows: pd.DataFrame
    source: str = "trades"
    """What messages call them."""

    @property
    def unit(self) -> str:
        """Column of amounts."""
        return "shares" if "shares" in self.rows.columns and "value" not in self.rows.columns else "value"

    def net(self) -> pd.DataFrame:
        """Return what is bought (above 0) and sold on balance, days by tickers; NaN: nothing.

        Raises DataError for rows that do not tell it.
        """
        long = long_rows(self.rows, self.unit, self.source)
        if (bad := long.isna().any(axis=1) | ~np.isfinite(long["value"]) | (long["value"] == 0)).any():
            raise DataError(
                f"expected a date and a {self.unit} other than 0 in each row of {self.source}, got "
                f"{bad.sum():,} rows without; fill or drop them"
            )
        if "side" in self.rows.columns:
            side = self.rows["side"].astype(str).str.strip().str.lower()
            if not (known := side.isin(_SIDES)).all():
                raise DataError(
                    f"expected buy or sell as the side in {self.source}, got {side[~known].iloc[0]!r}; accounts are "
                    "never short, so that covers are left out too"
                )
            long["value"] = long["value"].abs() * side.map(_SIDES).to_numpy()
        return long.groupby(["date", "ticker"])["value"].sum().unstack()


class GivenTrades:
    """The policy that holds the shares which orders add up to, as far as they could be bought; it notes what it asked.

    Amounts are those of an account that begins with the rules' initial capital. Of a stock of which nothing was
    ordered yet nothing is asked; sales of more than is held close the position.
    """

    def __init__(self, name: str, trades: Trades, setup: EvaluationSetup) -> None:
        """Add up the orders of the judged days. Raises DataError: nothing is bought on these days."""
        net, close = trades.net(), setup.prices(setup.portfolio.quotes.close)[:-1]
        close = close[:, : len(setup.market.investable_columns)]
        orders = np.nan_to_num(aligned(name, net, setup.market)[setup.judged])
        first, last = setup.market.dates[[setup.judged.start, setup.judged.stop - 1]].astype("datetime64[D]")
        if not (net.loc[pd.Timestamp(first) : pd.Timestamp(last)].to_numpy() > 0).any():
            raise DataError(f"expected purchases in {trades.source} from {first} to {last}, got none; give those days")
        shares = orders if trades.unit == "shares" else np.nan_to_num(orders / close)
        held = np.zeros_like(shares)
        for day, order in enumerate(shares):
            held[day] = np.maximum((held[day - 1] if day else 0.0) + order, 0.0)
        self.shares, self.first, self.asked = torch.from_numpy(held), setup.first, list[Tensor]()

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of the shares of today."""
        account = portfolio.account
        shares = self.shares[account.day.cpu() - self.first].to(account.device)
        worth = shares * account.last[:, : shares.shape[1]].nan_to_num() / account.equity[:, None]
        self.asked.append(worth)
        return worth
