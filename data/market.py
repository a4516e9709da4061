"""A prepared market, from a file or built in: the arrays that training, evaluation and reports share."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data.features import CLOSE, NormalizationStats
from data.loader import StockDataLoader
from data.splits import Splits, make_splits
from utils.config.trader import DataConfig, EnvironmentConfig
from utils.errors import ConfigError


@dataclass(frozen=True)
class Market:
    """Daily data of all columns, the columns that may be bought, and the splits of the days."""

    data_array: NDArray[np.float32]
    """(days, columns, 9), NaN where a stock has no bar."""
    dates: NDArray[np.datetime64]
    tickers: list[str]
    investable_columns: NDArray[np.int64]
    splits: Splits
    stats: NormalizationStats
    input_clip: float
    volume: NDArray[np.float32] | None = None
    """(days, columns) shares traded, NaN where unknown; None unless requested."""
    repairs: str = ""
    """Counts of rows that were masked or repaired, and of moves beyond 50%; empty without any."""

    @property
    def close(self) -> NDArray[np.float32]:
        """(days, investable) closes, NaN where there is no bar."""
        return self.data_array[:, self.investable_columns, CLOSE]


def span_of(market: Market, first: int, last: int) -> Market:
    """Return the days from `first` to `last` of a market; those that it does not have yet have no bars."""
    lacking = max(0, last + 1 - len(market.dates))

    def part(values: NDArray[np.float32]) -> NDArray[np.float32]:
        days, widths = values[first : last + 1], [(0, lacking), *[(0, 0)] * (values.ndim - 1)]
        return np.pad(days, widths, constant_values=np.nan) if lacking else days

    later = market.dates[-1] + np.arange(1, lacking + 1)
    return replace(
        market,
        data_array=part(market.data_array),
        dates=np.concatenate((market.dates, later))[first : last + 1],
        volume=None if market.volume is None else part(market.volume),
    )


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
        repairs=loader.quality.line() if loader.quality.repairs else "",
    )
