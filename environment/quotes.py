"""Prices of the stocks that may be held, as accounts read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.nine import CLOSE, OPEN
from data.market import Market
from utils.arrays import Int64Array


@dataclass(frozen=True)
class Quotes:
    """Bars of n stocks, on the device of the accounts."""

    open: Tensor
    """(days, n) float64, NaN where the stock has no bar."""
    close: Tensor
    volume: Tensor | None = None
    """(days, n) float64 shares traded, infinite where unknown, so that no order is cut there."""
    is_member: Tensor | None = None
    """(days, n) bool: the stock may be bought by a decision of the day; None: all always."""
    split: Tensor | None = None
    """(days, n) float64 shares after the night before a day for one before; None: prices are adjusted for splits."""
    dividend: Tensor | None = None
    """(days, n) float64 paid on each share held through that night, in shares of after it; None: none."""

    @classmethod
    def of(cls, open_: Tensor, close: Tensor, volume: Tensor | None = None, **others: Tensor | None) -> Quotes:
        """Build from (days, n) prices: a bar counts only if open and close are finite and positive."""
        is_bar = torch.isfinite(open_) & torch.isfinite(close) & (open_ > 0) & (close > 0)
        if volume is not None:
            volume = torch.where(volume >= 0, volume.double(), torch.inf)
        opened, closed = (torch.where(is_bar, price.double(), torch.nan) for price in (open_, close))
        return cls(opened, closed, volume, **others)

    @classmethod
    def on(cls, market: Market, columns: Int64Array | None = None, device: torch.device | str = "cpu") -> Quotes:
        """Take those of a market's investable stocks, or of other columns."""
        columns = market.investable_columns if columns is None else columns

        def of(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[:, columns]).to(device)

        volume = None if market.volume is None else of(market.volume)
        member = None if market.members is None else of(market.members)
        prices = of(market.data_array[..., OPEN]), of(market.data_array[..., CLOSE])
        return cls.of(*prices, volume=volume, is_member=member)

    def among(self, stocks: slice) -> Quotes:
        """Return those of some stocks."""
        cut = {name: part[:, stocks] for name, part in vars(self).items() if part is not None}
        return Quotes(**cut)

    @property
    def days(self) -> int:
        """Number of days."""
        return self.close.shape[0]

    @property
    def stocks(self) -> int:
        """Number of stocks."""
        return self.close.shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the prices."""
        return self.close.device
