"""A prepared market, from a file or built in: the arrays that training, evaluation and reports share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import CLOSE, NormalizationStats, network_inputs
from data.loader import StockDataLoader
from data.splits import Splits, make_splits
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import ConfigError


@dataclass(frozen=True)
class Market:
    """Daily data of all columns, the columns that may be bought, and how the days are divided."""

    data_array: NDArray[np.float32]
    """(days, columns, 9), NaN where a stock has no bar."""
    dates: NDArray[np.datetime64]
    tickers: list[str]
    investable_columns: NDArray[np.int64]
    splits: Splits
    stats: NormalizationStats
    input_clip: float
    volume: NDArray[np.float32] | None = None
    """(days, columns) shares traded, NaN where not known; None unless it was asked for."""

    @cached_property
    def inputs(self) -> NDArray[np.float32]:
        """(columns, days, 10) network inputs, a column's days next to one another in memory."""
        inputs = network_inputs(self.data_array, self.stats, self.input_clip)
        return np.ascontiguousarray(inputs.transpose(1, 0, 2))

    @property
    def close(self) -> NDArray[np.float32]:
        """(days, investable) closes, NaN where there is no bar."""
        return self.data_array[:, self.investable_columns, CLOSE]


@dataclass(frozen=True)
class MarketTensors:
    """A market's network inputs on the device of the networks."""

    inputs: Tensor
    """(columns, days, 10) float32."""
    investable: Tensor
    """(n,) int64 columns that may be bought."""
    tradable: Tensor
    """(days, n) bool: the stock has a bar."""

    @classmethod
    def of(cls, market: Market, device: torch.device | str) -> MarketTensors:
        """Copy a market's network inputs to a device."""
        return cls(
            torch.from_numpy(market.inputs).to(device),
            torch.from_numpy(market.investable_columns).to(device),
            torch.from_numpy(np.isfinite(market.close)).to(device),
        )

    @property
    def days(self) -> int:
        """Number of days."""
        return self.inputs.shape[1]


def build_market(loader: StockDataLoader, config: DataConfig, env: EnvironmentConfig) -> Market:
    """Split a prepared loader's days and fit the normalisation on the training days.

    Raises:
        ConfigError: the rules cap orders by volume, and the loader has none.
    """
    if env.volume_cap > 0 and loader.volume is None:
        raise ConfigError(
            f"expected volume for --env.volume-cap {env.volume_cap:g}, got a market without it (the built-in one has "
            "none); give --data with a column 'volume', or leave the cap out"
        )
    splits = make_splits(len(loader.dates), config, env)
    return Market(
        data_array=loader.data_array,
        dates=loader.dates,
        tickers=loader.tickers,
        investable_columns=loader.investable_columns,
        splits=splits,
        stats=loader.compute_normalization_stats(splits.train.last),
        input_clip=config.input_clip,
        volume=loader.volume,
    )
