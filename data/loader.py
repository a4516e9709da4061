"""Daily bars from one parquet file, as dense arrays of features."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.features import (
    CLOSE,
    HIGH,
    LOW,
    NUM_FEATURES,
    OPEN,
    Float32Array,
    Float64Array,
    NormalizationStats,
    compute_features,
    normalization_stats,
)
from utils.config.trader import DEFAULT_DATA, DataConfig
from utils.errors import DataError, first_line
from utils.progress import progress

logger = logging.getLogger(__name__)

IntArray = npt.NDArray[np.int64]

PRICE_COLUMNS = ("open", "close", "high", "low")  # the first four features
VOLUME = "volume"
COLUMNS = ("date", "ticker", *PRICE_COLUMNS)
LARGE_MOVE = 0.5
LARGEST_RATIO = 5.0
"""Of two prices of a bar; beyond it a digit is in the wrong place, which is known at that day's close."""
DEFAULT_CONFIG = DataConfig()
_HEAD, _SHOWN = 4096, 60
"""Bytes that are read of a file of another kind, and letters that are shown of a line."""
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class DataQuality:
    """Counts of rows read, masked and repaired, and of large moves and gaps; `line` defines each."""

    rows: int
    masked: int
    empty: int
    widened: int
    large_moves: int
    gaps: int

    def line(self) -> str:
        """Return the counts as one line of a log."""
        return (
            f"Rows: {self.rows} read; {self.masked} masked (a price missing, infinite, not positive or "
            f"{LARGEST_RATIO:g} times another one of its bar); "
            f"{self.empty} empty; {self.widened} with high/low widened to enclose open and close; "
            f"{self.large_moves} daily moves beyond 50% counted and kept; {self.gaps} days missing inside a history"
        )


@dataclass(frozen=True)
class _Bars:
    """Rows sorted by (column, day): indices (rows,), `prices` (4, rows) in the order of `PRICE_COLUMNS`."""

    column: IntArray
    day: IntArray
    prices: Float64Array
    volume: Float64Array | None
    """(rows,), if requested."""


class StockDataLoader:
    """Bars of many stocks in memory: `data_array`, `dates`, `tickers`, `investable_columns`, `volume` and `quality`."""

    def __init__(
        self,
        path: str | Path = DEFAULT_DATA,
        *,
        config: DataConfig = DEFAULT_CONFIG,
        investable: Path | None = None,
        with_volume: bool = False,
    ) -> None:
        """Set what `load_and_prepare` reads.

        Args:
            path: a parquet file; the default, which `python main.py prepare` writes, lies below the working folder.
            investable: a text file, one ticker per line.
            with_volume: read shares traded as well, for a volume cap. They must be adjusted as prices are, so that
                price x volume is the turnover: unadjusted volume would cut orders before a split too much.
        """
        self.path = Path(path)
        self.config = config
        self._columns = (*COLUMNS, VOLUME) if with_volume else COLUMNS
        self._investable: Path | Sequence[str] | None = Path(investable) if investable else None
        self._frame: pd.DataFrame | None = None
        self.data_array: Float32Array = np.empty((0, 0, NUM_FEATURES), dtype=np.float32)
        self.dates: npt.NDArray[np.datetime64] = np.empty(0, dtype="datetime64[D]")
        self.tickers: list[str] = []
        self.investable_columns: IntArray = np.empty(0, dtype=np.int64)
        self.volume: Float32Array | None = None
        self.quality = DataQuality(0, 0, 0, 0, 0, 0)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        config: DataConfig = DEFAULT_CONFIG,
        investable_tickers: Sequence[str] | None = None,
        with_volume: bool = False,
    ) -> StockDataLoader:
        """Make a loader of bars in memory, with the columns of a file; call `load_and_prepare` next."""
        loader = cls("bars in memory", config=config, with_volume=with_volume)
        loader._frame, loader._investable = frame, investable_tickers
        return loader

    def load_and_prepare(self) -> tuple[Float32Array, NormalizationStats]:
        """Read, check, repair and compute; return `data_array` and the statistics of its training share.

        Afterwards the attributes hold the market: `data_array` (days, columns, 9) float32, NaN where there is no bar or
        an indicator warms up; `dates` (days,) datetime64[D]; `tickers` sorted, one per column; `investable_columns`
        indices of `tickers`; `volume` (days, columns) float32, NaN where unknown, None unless requested. Raises
        `DataError` for an unusable file, column, row or investable list.
        """
        if self._frame is None:
            table = _read_table(self.path, self._columns)
        else:
            _check_names(self._columns, [str(name) for name in self._frame.columns], "frame")
            try:
                table = pa.Table.from_pandas(self._frame[list(self._columns)], preserve_index=False)
            except (pa.ArrowException, TypeError, ValueError) as error:
                raise DataError(f"expected columns of one type each, got {first_line(error)}; convert them") from error
            _check_schema(self._columns, table.schema, table.num_rows, "frame")
        bars, self.dates, self.tickers = _sorted_bars(table)
        del table
        # The pool would keep the file's memory otherwise: a hundred MiB at full scale.
        pa.default_memory_pool().release_unused()
        self.investable_columns = _investable_columns(self._investable, self.tickers)
        bars, self.quality = _repair(bars, self.config.max_bad_row_share)
        self.data_array = _dense_features(bars, len(self.dates), self.tickers)
        if bars.volume is not None:
            self.volume = _dense_volume(bars, bars.volume, self.data_array, self.investable_columns)
        logger.debug("Loaded: %d days, %d stocks, %d features", *self.data_array.shape)
        logger.debug(self.quality.line())
        last_days = bars.day[np.append(np.diff(bars.column) != 0, True)]
        if self._frame is None and (last_days == len(self.dates) - 1).all():
            logger.debug("No ticker stops early: probably survivors only, so results are flattered")
        return self.data_array, self.compute_normalization_stats()

    def compute_normalization_stats(self, last_day: int | None = None) -> NormalizationStats:
        """Return mean and standard deviation of the stationary inputs over days 0 to `last_day`, inclusive.

        By default it is the last of the training share, which has at least one day. Raises `DataError` if there is no
        such day.
        """
        days = len(self.dates)
        if last_day is None:
            last_day = max(int(days * self.config.train_fraction) - 1, 0)
        if not 0 <= last_day < days:
            raise DataError(f"expected a last day in 0..{days - 1}, got {last_day}; load more days first")
        return normalization_stats(self.data_array, last_day)


def _read_table(path: Path, columns: Sequence[str]) -> pa.Table:
    if not path.exists():
        raise DataError(
            f"expected a parquet file of daily bars, but {path} does not exist; check the path, or make one of CSVs "
            "with `python main.py prepare`"
        )
    if path.is_dir():
        raise DataError(f"expected a parquet file, got the folder {path}; `python main.py prepare` makes one of CSVs")
    try:
        with pq.ParquetFile(path) as file:
            _check_names(columns, file.schema_arrow.names, path.name)
            _check_schema(columns, file.schema_arrow, file.metadata.num_rows, path.name)
            strings = [name for name in ("date", "ticker") if _is_string(file.schema_arrow.field(name).type)]
        with pq.ParquetFile(path, read_dictionary=strings) as file:
            return file.read(columns=list(columns))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"expected a readable parquet file, got {path} ({_other_kind(path, error) or first_line(error)}); "
            f"`python main.py prepare` makes one of CSVs"
        ) from error


def _other_kind(path: Path, error: Exception) -> str:
    """Describe a file of another kind than parquet; empty for a parquet file, and one that cannot be read."""
    if not isinstance(error, pa.ArrowInvalid):
        return ""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(b"PAR1"):
        return ""
    line = head.partition(b"\n")[0].strip()
    is_text = bool(line) and b"\0" not in head
    return f"text, whose line 1 is {line.decode(errors='replace')[:_SHOWN]!r}" if is_text else "no parquet file"


def _check_names(columns: Sequence[str], found: Sequence[str], source: str) -> None:
    for name in columns:
        if found.count(name) != 1:
            near = most_like(name, [other for other in found if other not in columns])
            hint = f"the nearest is '{near}'" if near else f"found {', '.join(found[:12]) or 'no columns'}"
            choice = ", or leave out --env.volume-cap" if name == VOLUME else ""
            raise DataError(
                f"expected one column '{name}' in {source}, got {found.count(name)} ({hint}); rename it in the "
                f"file{choice}"
            )


def _check_schema(columns: Sequence[str], schema: pa.Schema, rows: int, source: str) -> None:
    if rows == 0:
        raise DataError(f"expected daily bars, got no rows in {source}; check how it was made")
    for name in columns:
        kind = schema.field(name).type
        if name == "date":
            is_day = pa.types.is_date(kind) or pa.types.is_timestamp(kind) or _is_string(kind)
            is_fit, expected = is_day, "dates, timestamps or ISO strings"
        elif name == "ticker":
            is_fit, expected = _is_string(kind), "strings"
        else:
            is_number = pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind)
            is_fit, expected = is_number, "numbers"
        if not is_fit:
            raise DataError(f"expected {expected} in column '{name}' of {source}, got {kind}; convert the column")


def most_like(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, case aside, or None if none is like it."""
    folded = {other.casefold(): other for other in known}
    matches = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _sorted_bars(table: pa.Table) -> tuple[_Bars, npt.NDArray[np.datetime64], list[str]]:
    """Return bars sorted by (column, day), the sorted dates and tickers; raises `DataError` for duplicates."""
    numbers, day = np.unique(_day_numbers(table["date"]), return_inverse=True)
    dates = numbers.astype("datetime64[D]")
    texts, codes = _encoded(table["ticker"])
    column, tickers = pd.factorize(np.array(texts, dtype=object)[codes], sort=True)
    if tickers[0] == "":
        raise DataError(f"expected a ticker in every row, got {(column == 0).sum()} rows without one; drop them")
    key = column * len(dates) + day
    order = np.argsort(key, kind="stable")
    key = key[order]
    doubled = np.flatnonzero(key[1:] == key[:-1])
    if doubled.size:
        where, when = divmod(int(key[doubled[0]]), len(dates))
        raise DataError(
            f"expected one row for each date and ticker, got {doubled.size} duplicate rows "
            f"(first: {tickers[where]} on {dates[when]}); drop them, or use `python main.py prepare`"
        )
    prices = np.empty((len(PRICE_COLUMNS), len(order)))
    for row, name in enumerate(PRICE_COLUMNS):
        prices[row] = table[name].cast(pa.float64(), safe=False).to_numpy()[order]
    volume = None
    if VOLUME in table.column_names:
        volume = table[VOLUME].cast(pa.float64(), safe=False).to_numpy()[order]
    return _Bars(key // len(dates), key % len(dates), prices, volume), dates, tickers.tolist()


def _day_numbers(column: pa.ChunkedArray) -> IntArray:
    """Return days since 1970-01-01 of a date, timestamp (its day is that of its own zone) or ISO string column."""
    if column.null_count:
        raise DataError(f"expected a date in every row, got {column.null_count} rows without one; drop them")
    if not _is_string(column.type):
        # The cast drops the time of day, in the timestamp's own zone.
        return np.asarray(column.cast(pa.date32(), safe=False).cast(pa.int32()), dtype=np.int64)
    texts, codes = _encoded(column)
    days = []
    for text in texts[:-1]:
        try:
            days.append(date.fromisoformat(re.split("[ T]", text.strip())[0]).toordinal() - _EPOCH)
        except ValueError:
            raise DataError(
                f"expected dates like 2014-11-10, got '{text}' in column 'date'; convert the column"
            ) from None
    return np.array(days, dtype=np.int64)[codes]


def _encoded(column: pa.ChunkedArray) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, "" for a missing one at the end, and each row's place among them."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    try:
        texts = [text or "" for text in encoded.dictionary.to_pylist()]
    except UnicodeDecodeError as error:
        raise DataError(f"expected dates and tickers as text in UTF-8, got {error.object!r}; mend the file") from None
    codes = pc.fill_null(encoded.indices, len(texts)).to_numpy()
    if codes.size and not 0 <= codes.min() <= codes.max() <= len(texts):
        raise DataError("expected texts that the file's own dictionary holds, got a damaged file; make it again")
    return [*texts, ""], codes


def has_wrong_digit(prices: Float32Array) -> npt.NDArray[np.bool_]:
    """Return which bars of (4, rows) prices have one that is more than five times another one."""
    with np.errstate(all="ignore"):  # a missing or infinite price is a fault of its own
        return np.asarray(prices.max(axis=0) > LARGEST_RATIO * prices.min(axis=0))


def _repair(bars: _Bars, max_bad_share: float) -> tuple[_Bars, DataQuality]:
    """Drop rows without usable prices, widen high and low, and count; raises `DataError` if too many are bad."""
    with np.errstate(over="ignore"):  # beyond float32 is infinite, or zero, from here on
        prices = bars.prices.astype(np.float32)
    usable = np.asarray((np.isfinite(prices) & (prices > 0)).all(axis=0))
    usable &= ~has_wrong_digit(prices)
    empty = np.asarray(np.isnan(prices).all(axis=0))
    rows, masked = usable.size, int((~usable & ~empty).sum())
    if masked > max_bad_share * rows:
        raise DataError(
            f"expected finite, positive prices in all but {max_bad_share:.2%} of the rows, "
            f"got {masked} bad rows of {rows} ({masked / rows:.2%}); mend the file or raise --split.max-bad-row-share"
        )
    if not usable.any():
        raise DataError(f"expected rows with prices, got {rows} rows without any; check how the file was made")
    volume = None if bars.volume is None else bars.volume[usable]
    bars = _Bars(bars.column[usable], bars.day[usable], bars.prices[:, usable], volume)
    top, bottom = bars.prices[[OPEN, CLOSE]].max(axis=0), bars.prices[[OPEN, CLOSE]].min(axis=0)
    widened = (bars.prices[HIGH] < top) | (bars.prices[LOW] > bottom)
    np.maximum(bars.prices[HIGH], top, out=bars.prices[HIGH])
    np.minimum(bars.prices[LOW], bottom, out=bars.prices[LOW])
    new_column = np.diff(bars.column) != 0
    moves = np.abs(np.diff(bars.prices[CLOSE]) / bars.prices[CLOSE, :-1]) > LARGE_MOVE
    gaps = np.where(new_column, 0, np.diff(bars.day) - 1)
    return bars, DataQuality(
        rows=rows,
        masked=masked,
        empty=int(empty.sum()),
        widened=int(widened.sum()),
        large_moves=int((moves & ~new_column).sum()),
        gaps=int(gaps.sum()),
    )


def _dense_features(bars: _Bars, days: int, tickers: Sequence[str]) -> Float32Array:
    """Return features (days, columns, 9) float32, computed on each ticker's own bars and put back on their days."""
    data_array = np.full((days, len(tickers), NUM_FEATURES), np.nan, dtype=np.float32)
    edges = np.searchsorted(bars.column, np.arange(len(tickers) + 1))
    for column in progress(range(len(tickers)), "load", "stock"):
        own = slice(edges[column], edges[column + 1])
        prices = bars.prices[:, own]
        data_array[bars.day[own], column] = compute_features(
            open=prices[OPEN], high=prices[HIGH], low=prices[LOW], close=prices[CLOSE]
        )
    return data_array


def _dense_volume(bars: _Bars, volume: Float64Array, data_array: Float32Array, investable: IntArray) -> Float32Array:
    """Return (days, columns) float32 volume, NaN where it is missing, infinite or negative.

    Raises `DataError` if no investable ticker has a known volume.
    """
    dense = np.full(data_array.shape[:2], np.nan, dtype=np.float32)
    dense[bars.day, bars.column] = np.where(np.isfinite(volume) & (volume >= 0), volume, np.nan)
    traded = np.isfinite(data_array[:, investable, CLOSE])
    total, unknown = int(traded.sum()), int((traded & np.isnan(dense[:, investable])).sum())
    if unknown == total:
        raise DataError(
            f"expected volume for --env.volume-cap, got none (missing, infinite or negative) in all {total} investable "
            "rows; leave the cap out, or give a file with volume"
        )
    if unknown:
        logger.warning(
            "No volume (missing, infinite or negative) in %d of %d investable rows; no order is cut there",
            unknown,
            total,
        )
    return dense


def _investable_columns(wanted: Path | Sequence[str] | None, tickers: list[str]) -> IntArray:
    """Return the sorted indices of the wanted tickers, of all without a list; raises `DataError` for an unknown one.

    A file has one ticker per line; empty lines and comments after a # are ignored.
    """
    if wanted is None:
        return np.arange(len(tickers), dtype=np.int64)
    try:
        lines = wanted.read_text(encoding="utf-8-sig").splitlines() if isinstance(wanted, Path) else wanted
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        raise DataError(
            f"expected a text file of tickers, one per line, got {wanted} ({why}); check the path"
        ) from None
    names = {number: name for number, line in enumerate(lines, 1) if (name := line.partition("#")[0].strip())}
    if not names:
        raise DataError("expected at least one investable ticker, got none; leave the list out to invest in all")
    index = {ticker: column for column, ticker in enumerate(tickers)}
    for number, name in names.items():
        if name not in index:
            near = most_like(name, tickers)
            hint = f" (the nearest is '{near}')" if near else ""
            where = f" on line {number} of {wanted}" if isinstance(wanted, Path) else ""
            raise DataError(
                f"expected investable tickers that are in the data, got '{name[:_SHOWN]}'{where}{hint}; mend the list"
            )
    return np.array(sorted({index[name] for name in names.values()}), dtype=np.int64)
