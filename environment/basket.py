"""The basket: an account that holds stocks in parts that are equal when they are bought, trimmed once a year."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.market import Market
from environment.ledger import Bars
from environment.trading_rules import is_delisted, salvage
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.runs.seeding import named_generator

REBALANCING_SESSIONS = 252
MOST_STOCKS, SAMPLE = 300, 150
"""Stocks above which a basket holds a sample, and its size."""
BAND = 1.5
"""Multiple of its part to which a stock may grow; at a rebalancing what is above is sold."""


_DUST = 1e-6
"""Share of the cash below which the stocks are rounding leftovers."""


@dataclass(frozen=True)
class BasketAccount:
    """W accounts that held a basket for some sessions; amounts in currency units."""

    equity: Tensor
    """(W, sessions + 1) float64 at the closes, the first one with cash only."""
    invested: Tensor
    """(W, sessions + 1) float64 value of the stocks at these closes."""
    shares: Tensor
    """(W, n) float64 at the last close, before any sale at it."""
    traded: Tensor
    """(W,) value bought and sold."""


@dataclass(frozen=True)
class Basket:
    """The stocks of a basket, and their bars."""

    bars: Bars
    columns: NDArray[np.int64]
    """(n,) places among all columns of the market."""

    @classmethod
    def of(cls, market: Market, ticker: str, seed: int) -> Self:
        """Hold one ticker of the data, or, where it is empty, all stocks that may be bought.

        Of more than 300 of them a sample is drawn, whatever their order.

        Raises:
            ConfigError: the data have no such ticker.
        """
        columns = market.investable_columns
        if ticker:
            if ticker not in market.tickers:
                raise ConfigError(
                    f"expected --evaluation.basket to be a ticker of the data, as {market.tickers[0]}, got {ticker!r}"
                )
            columns = np.array([market.tickers.index(ticker)])
        elif len(columns) > MOST_STOCKS:
            by_name = np.array(sorted(columns.tolist(), key=lambda column: market.tickers[column]))
            drawn = torch.randperm(len(columns), generator=named_generator(seed, "basket"))[:SAMPLE]
            columns = np.sort(by_name[drawn.numpy()])
        return cls(Bars.of(market.data_array, columns), columns)

    def hold(
        self,
        rules: EnvironmentConfig,
        starts: Tensor,
        sessions: int,
        *,
        weights: Tensor | None = None,
        is_sold: bool = True,
        released: Collection[int] = (),
    ) -> BasketAccount:
        """Hold the basket from the first opens after some days on, (W,), in accounts that begin with the capital.

        Once a year, except in accounts locked by a drawdown, holdings above the band are cut back to it at the open,
        and all cash is spent on those below their part. A stock whose bars have ended is sold as the rules say, and its
        proceeds are cash until then.

        Args:
            weights: (W, n) parts of the stocks, up to a factor; default: equal ones.
            is_sold: sell everything at the last close.
            released: numbers of sessions before which locks end.
        """
        day, n = starts.to(self.bars.tradable.device), self.bars.stocks
        quotes = self.bars.quotes.view(-1, n, 3)
        shares = torch.zeros(len(starts), n, dtype=torch.float64, device=day.device)
        last, missing = torch.zeros_like(shares), torch.zeros_like(shares)
        weight = torch.ones_like(shares) if weights is None else weights.to(shares)
        cash = torch.full_like(shares[:, 0], rules.initial_capital)
        traded = torch.zeros_like(cash)
        equity, invested = [cash], [torch.zeros_like(cash)]
        peak, is_locked = cash, torch.zeros_like(cash, dtype=torch.bool)
        for session in range(sessions):
            day = day + 1
            if session in released:
                peak, is_locked = torch.where(is_locked, equity[-1], peak), torch.zeros_like(is_locked)
            has_bar = self.bars.tradable[day]
            open_, _, close = quotes[day].double().unbind(-1)
            # An account that holds nothing buys as soon as there is something to buy.
            is_due = ((session % REBALANCING_SESSIONS == 0) | (invested[-1] < _DUST * cash)) & ~is_locked
            if bool(is_due.any()):
                bought = rebalancing(rules, weight * is_due[:, None], open_, shares, cash)
                value = (bought * open_).nan_to_num(0.0)
                shares = shares + bought
                traded = traded + value.abs().sum(1)
                cash = cash - value.sum(1) - rules.cost_rate * value.abs().sum(1)
            last = torch.where(has_bar, close, last)
            missing = torch.where(has_bar, 0.0, missing + 1)
            lost = (shares > 0) & is_delisted(missing, rules)
            gone = torch.where(lost, shares * salvage(last, rules), 0.0).sum(1)
            cash, traded = cash + gone * rules.sale_factor, traded + gone
            shares = torch.where(lost, 0.0, shares)
            invested.append((shares * last).sum(1))
            equity.append(cash + invested[-1])
            if rules.drawdown_lock > 0:
                peak = torch.maximum(peak, equity[-1])
                is_locked = is_locked | (equity[-1] <= peak * (1 - rules.drawdown_lock / 100))
        if is_sold:
            traded = traded + invested[-1]
            equity[-1] = cash + invested[-1] * rules.sale_factor
        return BasketAccount(torch.stack(equity, 1), torch.stack(invested, 1), shares, traded)


def rebalancing(rules: EnvironmentConfig, weights: Tensor, price: Tensor, shares: Tensor, cash: Tensor) -> Tensor:
    """Return the shares of (W, n) stocks to buy, negative ones to sell.

    What has grown beyond the band is sold, and then all cash is spent on what is too small. Stocks without a price stay
    as they are.

    Args:
        weights: of the stocks, up to a factor; 0: not traded.
        price: NaN where there is none.
        shares: held so far.
        cash: (W,)
    """
    is_traded = (price > 0) & (weights > 0)
    value, weights = torch.where(is_traded, shares * price, 0.0), torch.where(is_traded, weights, 0.0)
    target = (cash + value.sum(1))[:, None] * weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    sold, lacking = (value - BAND * target).clamp(min=0.0), (target - value).clamp(min=0.0)
    budget = (cash + sold.sum(1) * rules.sale_factor) / rules.purchase_factor
    spent = (budget / lacking.sum(1).clamp(min=1e-300)).clamp(0.0, 1.0)
    return torch.where(is_traded, (lacking * spent[:, None] - sold) / price, 0.0)
