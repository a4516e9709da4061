"""A prepared market, from a file or built in: the arrays that training, evaluation and reports share."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from data.bars import SECTOR, VOLUME
from data.features import library, path, peers, seasons  # noqa: F401  # they add to the catalogue
from data.features.catalogue import CATALOGUE, Feature, column_feature, event_features
from data.features.nine import CLOSE, NormalizationStats
from data.features.wide import WideBars
from data.loader import StockDataLoader
from data.splits import Splits, make_splits
from utils.arrays import BoolArray, DateArray, Float32Array, Float64Array, Int64Array
from utils.config.trader import DataConfig, EnvironmentConfig

logger = logging.getLogger(__name__)
Known = TypeVar("Known")
_LIKE = 3.0
"""Factor by which the size of a column's returns may differ from that of stocks that may be bought."""
_MOST_STOCKS = 256
"""Stocks up to which there are any that may not be bought: more tell hardly more."""


@dataclass(frozen=True)
class Market:
    """Daily data of all columns, the columns that may be bought, and the splits of the days."""

    data_array: Float32Array
    """(days, columns, 9), NaN where a stock has no bar."""
    dates: DateArray
    tickers: list[str]
    investable_columns: Int64Array
    splits: Splits
    stats: NormalizationStats
    input_clip: float
    volume: Float32Array | None = None
    """(days, columns) shares traded, NaN where unknown; None where the data have none."""
    members: BoolArray | None = None
    """(days, columns) of a universe that changes: whether a stock may be bought by a decision of the day; None: all."""
    columns: Mapping[str, Float32Array] = field(default_factory=dict)
    """(days, columns) further columns of the data by name, NaN where unknown."""
    features: tuple[Feature, ...] = ()
    """What agents may read besides past returns."""
    alike: Int64Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Columns that may not be bought and move about as much as stocks that may: taken for stocks, as no currency or
    rate is. Of a large market some of them."""
    own_features: str = ""
    """Hash of the file of own features; empty without one."""
    own_names: tuple[str, ...] = ()
    """Of the columns that are own features."""
    repairs: str = ""
    """Counts of rows that were masked or repaired, and of moves beyond 50%; empty without any."""
    source: Path | None = None
    """File that it is read from, beside which splits and dividends are named."""

    @property
    def close(self) -> Float32Array:
        """(days, investable) closes, NaN where there is no bar."""
        return self.data_array[:, self.investable_columns, CLOSE]

    @property
    def stock_columns(self) -> Int64Array:
        """Columns that inputs compare and formulas learn from: those that may be bought, then others like them."""
        return np.concatenate((self.investable_columns, self.alike))

    @cached_property
    def memo(self) -> dict[str, tuple[int, Any]]:
        """What several inputs need of the days before one, by name, and that day."""
        return {}

    def spelled(self, tickers: Iterable[str]) -> dict[str, str]:
        """Return what tickers are called in the data, whatever letters are capital; the same where these lack them."""
        known = {ticker.casefold(): ticker for ticker in self.tickers}
        return {ticker: known.get(str(ticker).strip().casefold(), ticker) for ticker in tickers}

    def known_until(self, name: str, stop: int, compute: Callable[[int], Known]) -> Known:
        """Return what is known of the days before one, or of more: all days of training and validation at once."""
        if self.memo.get(name, (-1,))[0] < stop:
            last = min(max(stop, self.splits.validation.last + 1), len(self.dates))
            self.memo[name] = last, compute(last)
        found: Known = self.memo[name][1]
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy in another process needs."""
        return {name: value for name, value in vars(self).items() if name != "memo"}

    def bounded(self, days: slice) -> slice:
        """Return some days as a slice whose ends are both days of the market."""
        return slice(*days.indices(len(self.dates))[:2])

    def wide(self, columns: Int64Array | None = None, stop: int | None = None) -> WideBars:
        """Return the bars of some columns, by default all, up to a day, that one excluded."""
        tickers = self.tickers if columns is None else [self.tickers[column] for column in columns]
        return WideBars(self.data_array, self.dates[:stop], tickers, self.volume, self.columns, columns)

    def map_cells(self, change: Callable[[Float32Array], Float32Array]) -> Self:
        """Return the market with every (days, columns, ...) array changed alike; its dates and tickers stay."""
        return replace(
            self,
            data_array=change(self.data_array),
            volume=None if self.volume is None else change(self.volume),
            columns={name: change(values) for name, values in self.columns.items()},
        )

    def without(self, gone: BoolArray) -> Self:
        """Return the market without the bars of these (days, columns) cells."""
        return self.map_cells(lambda values: np.where(gone if values.ndim == 2 else gone[..., None], np.nan, values))

    @property
    def extra_columns(self) -> dict[str, Float32Array]:
        """Volume, if the data have it, and the further columns, (days, columns) each by name."""
        return {**({} if self.volume is None else {VOLUME: self.volume}), **self.columns}


def days_up_to(market: Market, last: int) -> Market:
    """Return the days of a market up to a last one; those that it does not have yet have no bars."""
    lacking = max(0, last + 1 - len(market.dates))

    def part(values: Float32Array) -> Float32Array:
        days, widths = values[: last + 1], [(0, lacking), *[(0, 0)] * (values.ndim - 1)]
        return np.pad(days, widths, constant_values=np.nan) if lacking else days

    later = market.dates[-1] + np.arange(1, lacking + 1)
    return replace(market.map_cells(part), dates=np.concatenate((market.dates, later))[: last + 1])


def build_market(loader: StockDataLoader, config: DataConfig, env: EnvironmentConfig) -> Market:
    """Split a prepared loader's days and fit the normalisation on the training days."""
    splits = make_splits(len(loader.dates), config, env)
    market = Market(
        data_array=loader.data_array,
        dates=loader.dates,
        tickers=loader.tickers,
        investable_columns=loader.investable_columns,
        splits=splits,
        stats=loader.compute_normalization_stats(splits.train.last),
        input_clip=config.input_clip,
        volume=loader.volume,
        members=loader.members,
        columns=loader.columns,
        repairs=loader.quality.line() if loader.quality.repairs else "",
    )
    return with_features(market) if config.inputs == "all" else market


def with_features(market: Market) -> Market:
    """Return the market with all features that its data allow; whether a column is market-wide, or a stock, is told by
    the training days."""
    if taken := sorted(CATALOGUE.keys() & market.columns.keys()):
        logger.warning("columns with the names of built-in features are not read: %s; rename them", ", ".join(taken))
    days = slice(market.splits.train.last + 1)
    built_in = [one for one in CATALOGUE.values() if market.volume is not None or not one.needs_volume]
    of_user = [
        column_feature(name, is_market_wide=is_market_wide(values[days, market.investable_columns]))
        for name, values in market.columns.items()
        if name not in CATALOGUE and name != SECTOR
    ]
    of_events = [
        feature
        for one in of_user
        if one.form != "past" and _is_event(market.columns[one.name][days, market.investable_columns])
        for feature in event_features(one.name)
    ]
    size = np.array([_usual_move(close) for close in market.data_array[days, :, CLOSE].T])
    usual = np.median(size[market.investable_columns])
    alike = np.flatnonzero((size < usual * _LIKE) & (size > usual / _LIKE))
    others = np.setdiff1d(alike, market.investable_columns)
    some = np.arange(min(len(others), max(0, _MOST_STOCKS - len(market.investable_columns))))
    others = others[some * len(others) // max(len(some), 1)]
    return replace(market, features=(*built_in, *of_user, *of_events), alike=others)


def _usual_move(close: Float32Array) -> float:
    """Return the median size of the log returns of a column that are not 0; 0 where there is none."""
    moves = np.abs(np.diff(np.log(close[np.isfinite(close)].astype(np.float64))))
    return float(np.median(moves[moves > 0])) if (moves > 0).any() else 0.0


def _is_event(values: Float32Array) -> bool:
    """Tell whether most of (days, columns) values are 0, and not all."""
    known = np.isfinite(values)
    return 0 < 2 * int((known & (values != 0)).sum()) < int(known.sum())


def is_market_wide(values: Float32Array | Float64Array) -> bool:
    """Tell whether all (days, columns) values of a day are the same, as an index's or a rate's are."""
    known = np.isfinite(values)
    several = known.sum(axis=1) > 1
    lowest, highest = np.where(known, values, np.inf).min(axis=1), np.where(known, values, -np.inf).max(axis=1)
    return bool(several.any() and (lowest == highest)[several].all())
