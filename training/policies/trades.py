"""Orders of another backtester, executed again under the rules of this program."""

import logging
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from training.evaluation.play import EvaluationSetup, OwnAccount, account_by
from training.policies.read import aligned, long_rows
from training.policies.score_rule import purchase_limit_text
from utils.errors import DataError
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT

logger = logging.getLogger(__name__)
_SIDES = {"buy": 1.0, "sell": -1.0}
_ROUNDING = 0.01
"""Stakes by which a size may miss the limits without a word."""


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


def account_of_trades(name: str, trades: Trades, setup: EvaluationSetup) -> OwnAccount:
    """Play an account that orders as trades say: the largest purchases first, and a sale closes its position.

    Amounts are those of an account that begins with the rules' initial capital. A line of the results tells how many
    were executed, and a warning why others were not.

    Raises DataError: nothing is bought on these days.
    """
    env, market, judged, net = setup.env, setup.market, setup.judged, trades.net()
    amounts = np.nan_to_num(aligned(name, net, market)[judged].astype(np.float64))
    if trades.unit == "shares":
        amounts *= np.nan_to_num(market.close[judged])
    first, last = market.dates[[judged.start, judged.stop - 1]].astype("datetime64[D]")
    asked = net.loc[pd.Timestamp(first) : pd.Timestamp(last)].to_numpy()
    if not (asked > 0).any():
        raise DataError(f"expected purchases in {trades.source} from {first} to {last}, got none; give those days")
    table = torch.from_numpy(amounts).to(env.device)

    def act(_: int) -> None:
        today = table[env.day - judged.start]
        size = (today.T / (env.capital * env.rules.stake_percent / 100)).T.clamp(MIN_COEFFICIENT, MAX_COEFFICIENT)
        coefficient = torch.where(today > 0, size, (env.held() & (today == 0)).double())
        env.step(torch.stack((coefficient, torch.full_like(size, MAX_TARGET_PERCENT)), dim=-1))

    account, size, count = account_by(setup, act), amounts[amounts > 0] / env.rules.stake, (asked > 0).sum(axis=1)
    filled, sold = len(account.trades), sum(trade["reason"] == "sold" for trade in account.trades)
    misfits = ((size < MIN_COEFFICIENT - _ROUNDING) | (size > MAX_COEFFICIENT + _ROUNDING)).sum()
    logger.info(
        f"{name}: {filled:,} of {count.sum():,} purchases from {first} to {last} were filled, {sold:,} of "
        f"{(asked < 0).sum():,} sales"
    )
    if filled < count.sum() or misfits:
        logger.warning(
            f"{name}: {purchase_limit_text(count.max(), env.orders_per_day)}, "
            f"a position ends after {env.rules.longest_holding} sessions (env.max-holding-days), {misfits:,} sizes "
            f"were clipped to 1 to 10 stakes of {env.rules.stake:,.0f} (env.stake-percent)"
        )
    return account
