"""Daily bars from one parquet file, as dense arrays of features."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from data.bars import (
    COLUMNS,
    EARLIEST,
    LARGEST_RATIO,
    SMALLEST_PRICE,
    VOLUME,
    LongBars,
    Part,
    has_price_outlier,
    latest_day,
    spacing,
)
from data.features.nine import (
    CLOSE,
    HIGH,
    LOW,
    NUM_FEATURES,
    OPEN,
    PRICES,
    NormalizationStats,
    indicators,
    normalization_stats,
)
from data.universe import read_universe
from utils.arrays import BoolArray, DateArray, Float32Array, Float64Array, Int64Array
from utils.config.trader import DEFAULT_DATA, DataConfig, SyntheticConfig
from utils.errors import DataError
from utils.memory_guard import require_memory
from utils.progress import Progress

logger = logging.getLogger(__name__)


DEFAULT_CONFIG = DataConfig()
LARGE_MOVE = 0.5
_INFINITE = float(np.finfo(np.float32).max)
_BLOCK = 64
"""Columns whose indicators are computed at once."""
_ABSURD_SHARE = 0.01
"""Share of a ticker's days with moves beyond 50% above which it seems to be no price: 0.2% is the most among stocks."""


@dataclass(frozen=True)
class DataQuality:
    """Counts of rows read, masked and repaired, and of large moves and gaps; `line` defines each."""

    rows: int = 0
    masked: int = 0
    empty: int = 0
    widened: int = 0
    large_moves: int = 0
    gaps: int = 0

    @property
    def repairs(self) -> int:
        """Number of rows that are not used as they are, or perhaps should not be."""
        return self.masked + self.widened + self.large_moves

    def line(self) -> str:
        """Return the counts as one line of a log."""
        return (
            f"Rows: {self.rows} read; {self.masked} masked (a price missing, infinite, below {SMALLEST_PRICE:g} or "
            f"{LARGEST_RATIO:g} times another one of its bar); "
            f"{self.empty} empty; {self.widened} with high/low widened to enclose open and close; "
            f"{self.large_moves} daily moves beyond 50% counted and kept; {self.gaps} days missing inside a history"
        )


class StockDataLoader:
    """Bars of many stocks in memory: `data_array`, `dates`, `tickers`, `investable_columns`, `volume`, `columns` and
    `quality`."""

    data_array: Float32Array
    tickers: list[str]
    investable_columns: Int64Array
    members: BoolArray | None
    volume: Float32Array | None
    columns: dict[str, Float32Array]
    quality: DataQuality

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        config: DataConfig = DEFAULT_CONFIG,
        investable: Path | None = None,
        requires_volume: bool = False,
        sessions: Sequence[str] = (),
    ) -> None:
        """Set what `load_and_prepare` reads.

        Args:
            path: a parquet file; default: data/stock_data.parquet, which `python main.py prepare` writes, if it is
                there, else the built-in market, as for `python main.py`.
            investable: a text file, one ticker per line, or with the header `ticker,from,to`, see `read_universe`.
            requires_volume: require shares traded, for a volume cap; otherwise they are read where there are some. They
                must be adjusted as prices are, so that price x volume is the turnover: unadjusted volume would cut
                orders before a split too much.
            sessions: dates of an account that has walked the data: other days between them, which came late, are left
                out.
        """
        self.path = Path(path or DEFAULT_DATA)
        self._is_built_in = path is None and not self.path.exists()
        self.config = config
        self._needs_volume = requires_volume
        self._sessions = np.array(sessions, dtype="datetime64[D]").astype(np.int64)
        self._investable: Path | Sequence[str] | None = Path(investable) if investable else None
        self._frame: pd.DataFrame | None = None
        self.dates: DateArray = np.empty(0, dtype="datetime64[D]")

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        config: DataConfig = DEFAULT_CONFIG,
        investable_tickers: Sequence[str] | None = None,
        requires_volume: bool = False,
    ) -> StockDataLoader:
        """Make a loader of bars in memory, with the columns of a file; call `load_and_prepare` next."""
        loader = cls("bars in memory", config=config, requires_volume=requires_volume)
        loader._frame, loader._investable = frame, investable_tickers
        return loader

    def load_and_prepare(self) -> tuple[Float32Array, NormalizationStats]:
        """Read, check, repair and compute; return `data_array` and the statistics of its training share.

        Afterwards the attributes hold the market: `data_array` (days, columns, 9) float32, NaN where there is no bar or
        an indicator warms up; `dates` (days,) datetime64[D]; `tickers` sorted, one per column; `investable_columns`
        indices of `tickers`; `volume` (days, columns) float32, NaN where unknown, None where there is none; `columns`
        the other columns of numbers by name, (days, columns) float32 each, NaN where unknown. Raises `DataError` for an
        unusable file, column, row or investable list.
        """
        if self._is_built_in:
            from data.synthetic import built_in  # it takes long to import, and a file does not need it

            logger.info("%s does not exist: this is the built-in market", self.path)
            market = built_in.synthetic_market(SyntheticConfig(), built_in.MARKET_SEED)
            self._frame, self._investable = built_in.bars_frame(market), market.tickers[: market.stocks]
        required = (*COLUMNS, VOLUME) if self._needs_volume else COLUMNS
        if self._frame is None:
            bars = LongBars.of_file(self.path, required)
        else:
            bars = LongBars.of_frame(self._frame, required)
        days, self.tickers = bars.axes()
        if (late := self._late(days)).size:
            bars, days = bars.without(late), np.setdiff1d(days, late)
        self.dates = days.astype("datetime64[D]")
        if self._frame is None and days.size and (days[0] < EARLIEST or days[-1] > latest_day()):
            raise DataError(
                f"expected days from 1900 to tomorrow, got {self.dates[0]} to {self.dates[-1]}; mend the dates of "
                f"{self.path}, or the clock, which says {date.today()}"
            )
        if self._frame is None and (apart := spacing(days)):
            raise DataError(f"expected daily bars in {self.path}, got {apart} ones; their sessions would count as days")
        require_memory("data", {"days": len(days), "tickers": len(self.tickers), "bytes": 4 * NUM_FEATURES})
        self.investable_columns, self.members = read_universe(self._investable, self.tickers, self.dates)
        close, counts = self._read(bars, days)
        masked, empty, most = counts["masked"], counts["empty"], self.config.max_bad_row_share
        if masked > most * bars.rows or masked + empty == bars.rows:
            raise DataError(
                f"expected finite, positive prices in all but {most:.2%} of the rows, got {masked} bad rows and "
                f"{empty} empty ones of {bars.rows}; mend the file or raise --split.max-bad-row-share"
            )
        self._add_indicators(close, counts)
        self.quality = DataQuality(bars.rows, **counts)
        del bars, close
        # The pool would keep the file's memory otherwise: a hundred MiB at full scale.
        pa.default_memory_pool().release_unused()
        bought = self.investable_columns
        if self.volume is not None and self._needs_volume:
            _require_volume(self.volume[:, bought], np.isfinite(self.data_array[:, bought, CLOSE]))
        logger.debug("Loaded: %d days, %d stocks, %d features", *self.data_array.shape)
        logger.log(logging.INFO if self.quality.repairs else logging.DEBUG, self.quality.line())
        return self.data_array, self.compute_normalization_stats()

    def compute_normalization_stats(self, last_day: int | None = None) -> NormalizationStats:
        """Return mean and standard deviation of the stationary inputs over days 0 to `last_day`, inclusive.

        By default it is the last of the training share, which has at least one day. Raises `DataError` if there is no
        such day.
        """
        days = len(self.dates)
        if last_day is None:
            last_day = max(int(days * self.config.train_fraction + 1e-9) - 1, 0)
        if not 0 <= last_day < days:
            raise DataError(f"expected a last day in 0..{days - 1}, got {last_day}; load more days first")
        return normalization_stats(self.data_array, last_day)

    def _late(self, days: Int64Array) -> Int64Array:
        """Return the days of the data between an account's sessions that are none of these."""
        if not self._sessions.size:
            return np.empty(0, dtype=np.int64)
        between = days[(days > self._sessions[0]) & (days < self._sessions[-1])]
        if (late := np.setdiff1d(between, self._sessions)).size:
            shown = ", ".join(late[:3].astype("datetime64[D]").astype(str)) + (" ..." if late.size > 3 else "")
            logger.info("days that came after later sessions of the account are left out: %s", shown)
        return late

    def _read(self, bars: LongBars, days: Int64Array) -> tuple[Float64Array, Counter[str]]:
        """Put all rows in place, part by part; return (columns, days) closes as read, and counts of rows.

        Indicators are still NaN. Raises `DataError` for duplicates.
        """
        shape, place = (len(days), len(self.tickers)), {ticker: column for column, ticker in enumerate(self.tickers)}
        self.data_array = np.full((*shape, NUM_FEATURES), np.nan, dtype=np.float32)
        self.volume = np.full(shape, np.nan, dtype=np.float32) if VOLUME in bars.columns else None
        self.columns = {name: np.full(shape, np.nan, dtype=np.float32) for name in bars.further}
        # In half precision a count stops at 2,048; a small integer would begin anew.
        close, times = np.full(shape[::-1], np.nan), np.zeros(len(place) * len(days), dtype=np.float16)
        counts = Counter[str]()
        with Progress("Reading bars", "row", bars.rows) as shown:
            for part in bars.parts():
                column = np.array([place.get(text, -1) for text in part.texts])[part.ticker]
                day = np.searchsorted(days, part.day)
                np.add.at(times, column * len(days) + day, 1)
                counts += self._put(part, day, column, close)
                shown.update(len(column))
        if (distinct := np.count_nonzero(times)) < bars.rows:
            ticker, twice = divmod(int(times.argmax()), len(days))
            raise DataError(
                f"expected {bars.rows} rows, one for each date and ticker, got {bars.rows - distinct} duplicate rows, "
                f"as of {self.tickers[ticker]} on {self.dates[twice]}; drop them, or use `python main.py prepare`"
            )
        if empty := [name for name, values in self.columns.items() if not np.isfinite(values).any()]:
            logger.warning("Columns of %s without a usable number: %s", self.path, ", ".join(empty))
        return close, counts

    def _put(self, part: Part, day: Int64Array, column: Int64Array, close: Float64Array) -> Counter[str]:
        """Put usable rows in place, high and low widened to enclose open and close; return counts of rows."""
        with np.errstate(over="ignore"):  # beyond float32 is infinite, or zero, from here on
            single = part.prices.astype(np.float32)
        usable = (np.isfinite(single) & (single >= SMALLEST_PRICE)).all(axis=0) & ~has_price_outlier(single)
        empty = np.isnan(single).all(axis=0)
        day, column, prices = day[usable], column[usable], part.prices[:, usable]
        top, bottom = prices[[OPEN, CLOSE]].max(axis=0), prices[[OPEN, CLOSE]].min(axis=0)
        widened = (prices[HIGH] < top) | (prices[LOW] > bottom)
        np.maximum(prices[HIGH], top, out=prices[HIGH])
        np.minimum(prices[LOW], bottom, out=prices[LOW])
        self.data_array[day, column, : len(PRICES)] = prices.T
        close[column, day] = prices[CLOSE]
        if self.volume is not None and part.volume is not None:
            volume = part.volume[usable]
            self.volume[day, column] = np.where(np.isfinite(volume) & (volume >= 0), volume, np.nan)
        for values, cells in zip(self.columns.values(), part.further[:, usable], strict=True):
            values[day, column] = np.where(np.abs(cells) < _INFINITE, cells, np.nan)
        return Counter(masked=int((~usable & ~empty).sum()), empty=int(empty.sum()), widened=int(widened.sum()))

    def _add_indicators(self, closes: Float64Array, counts: Counter[str]) -> None:
        """Compute the indicators on each ticker's own bars, and count large moves and gaps."""
        columns, days = closes.shape
        moves = np.zeros(columns, dtype=np.int64)
        with Progress("Loading stocks", "stock", columns) as shown:
            for first in range(0, columns, _BLOCK):
                several = closes[first : first + _BLOCK]
                block = np.full((days, len(several), NUM_FEATURES - len(PRICES)), np.nan, dtype=np.float32)
                for column, close in enumerate(several):
                    traded = np.flatnonzero(np.isfinite(close))
                    close = close[traded]
                    block[traded, column] = indicators(close)
                    moves[first + column] = (np.abs(np.diff(close) / close[:-1]) > LARGE_MOVE).sum()
                    counts["gaps"] += int((np.diff(traded) - 1).sum())
                self.data_array[:, first : first + _BLOCK, len(PRICES) :] = block
                shown.update(len(several))
        counts["large_moves"] = int(moves.sum())
        absurd = np.flatnonzero(moves > np.maximum(_ABSURD_SHARE * np.isfinite(closes).sum(axis=1), 2))
        if absurd.size:
            logger.warning(
                "Moves beyond 50%%: %s on %d days (%d such tickers): is this a price? Results on it mean nothing",
                self.tickers[absurd[0]],
                moves[absurd[0]],
                absurd.size,
            )


def _require_volume(volume: Float32Array, traded: BoolArray) -> None:
    """Warn of bars without a known volume, both (days, n) of investable tickers; `DataError` if none is known."""
    total, unknown = int(traded.sum()), int((traded & np.isnan(volume)).sum())
    lack = f"volume that is missing, infinite or negative in {unknown} of {total} investable rows"
    if unknown == total:
        raise DataError(f"expected volume for --env.volume-cap, got {lack}; leave it out, or give a file with volume")
    if unknown:
        logger.warning("Got %s; no order is cut there", lack)
