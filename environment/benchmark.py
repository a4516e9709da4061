"""The benchmark: an account that holds stocks in fixed parts, bought at its first fill and trimmed once a year.

Agents decide relative to it, policies are judged against it, and where nothing is known it is what is held.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.market import Market
from environment.account import Account
from utils.arrays import Int64Array
from utils.errors import ConfigError
from utils.runs.devices import named_generator

REBALANCING_SESSIONS = 252
MOST_STOCKS, SAMPLE = 300, 150
"""Stocks above which equal parts are those of a sample, and its size."""
BAND = 1.5
"""Multiple of its part to which a stock may grow; at a rebalancing what is above is sold."""
_DUST = 1e-6
"""Share of the equity below which the stocks are rounding leftovers."""


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark holds of a market."""

    columns: Int64Array
    """(n,) of the market: the investable ones, then others that it holds."""
    parts: Tensor
    """(n,) of each, up to a factor."""

    @classmethod
    def of(cls, market: Market, weights: str = "", seed: int = 0) -> Benchmark:
        """Hold what is said, as `SPY=1` or `SPY=60,TLT=40`, or where that is empty equal parts of what is investable.

        Of more than 300 investable stocks a sample is drawn, whatever their order.

        Raises:
            ConfigError: it cannot be read, or the data have no such ticker.
        """
        columns = market.investable_columns
        if weights:
            said = _parse(weights, market)
            others = [column for column in said if column not in columns]
            columns = np.concatenate((columns, np.array(others, dtype=columns.dtype)))
            return cls(columns, torch.tensor([said.get(column, 0.0) for column in columns.tolist()]))
        parts = torch.ones(len(columns))
        if len(columns) > MOST_STOCKS:
            by_name = sorted(range(len(columns)), key=lambda place: market.tickers[columns[place]])
            drawn = torch.randperm(len(columns), generator=named_generator(seed, "basket"))[:SAMPLE]
            parts = torch.zeros(len(columns))
            parts[torch.tensor(by_name)[drawn]] = 1.0
        return cls(columns, parts)


def _parse(weights: str, market: Market) -> dict[int, float]:
    """Read weights by ticker; return those of columns."""
    said = dict[int, float]()
    for part in weights.split(","):
        ticker, _, number = (word.strip() for word in part.partition("="))
        try:
            weight = float(number or "1")
        except ValueError:
            weight = -1.0
        if ticker not in market.tickers or not 0 < weight < np.inf or market.tickers.index(ticker) in said:
            raise ConfigError(
                f"expected --benchmark-weights as {market.tickers[0]}=1, or several with commas, of "
                f"distinct tickers of the data and numbers above 0, got {part!r}"
            )
        said[market.tickers.index(ticker)] = weight
    return said


def benchmark_weights(account: Account, parts: Tensor, rebalanced: Collection[int] | None = None) -> Tensor:
    """Return the (L, n) target weights by which an account holds a benchmark; where nothing is traded, its weights.

    At a rebalancing what has grown beyond the band is cut back to it, and all cash is spent on what is too small. An
    account that holds nothing buys as soon as there is something to buy.

    Args:
        parts: (n,) or (L, n) of the stocks, up to a factor; 0: not traded.
        rebalanced: numbers of the steps before which that is; default: the first one, and each a year later.
    """
    step = account.step_index
    is_day = step % REBALANCING_SESSIONS == 0 if rebalanced is None else step in rebalanced
    weights, rate = account.weights, account.rules.cost_rate
    is_due = (weights.sum(1) < _DUST) | is_day
    if weights.device.type == "cpu" and not is_due.any():  # a card would wait for its host
        return weights
    is_traded = account.has_bar & (parts > 0)
    parts, held = torch.where(is_traded, parts, 0.0), torch.where(is_traded, weights, 0.0)
    if (member := account.is_member) is not None:  # what has left is sold at the next rebalancing
        parts = torch.where(member, parts, 0.0)
    cash = account.cash / account.equity
    target = (cash + held.sum(1))[:, None] * parts / parts.sum(1, keepdim=True).clamp(min=1e-300)
    sold, lacking = (held - BAND * target).clamp(min=0.0), (target - held).clamp(min=0.0)
    budget = (cash + sold.sum(1) * (1 - rate)) / (1 + rate)
    spent = (budget / lacking.sum(1).clamp(min=1e-300)).clamp(0.0, 1.0)
    is_due = is_due & ~account.is_locked & account.is_trading
    return torch.where(is_traded & is_due[:, None], weights + lacking * spent[:, None] - sold, weights)
