"""Daily bars in long form, one row for each date and ticker, read in parts from a parquet file or a frame."""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from utils.config.settings import hint
from utils.errors import DataError, first_line

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)


PRICE_COLUMNS = ("open", "close", "high", "low")  # the first four features
VOLUME = "volume"
SECTOR = "sector"
"""Further column of numbers or names, by which peers are known; itself it is no input, for sectors have no order."""
COLUMNS = ("date", "ticker", *PRICE_COLUMNS)
LARGEST_RATIO = 5.0
"""Largest ratio of two prices of a bar; above it a digit is misplaced, which that day's close tells already."""
SMALLEST_PRICE = 1e-30
"""Prices below it are errors, and what is computed from them overflows."""
EPOCH = date(1970, 1, 1).toordinal()
"""Day from which days are counted."""
EARLIEST = date(1900, 1, 1).toordinal() - EPOCH
"""First day that counts as one, since 1970-01-01."""
BAD_TICKER = "that is not printable, holds a comma, quote or semicolon, or begins with = + or @"
"""What a ticker may not be: it would add orders to a broker's file, or formulas to a spreadsheet."""
_BAD = re.compile('^[=+@]|[,";\ufffd]')
PART_ROWS = 1 << 19
"""Rows that are held at once."""
SPACINGS = {"weekly": (6, 8), "fortnightly": (13, 17), "monthly": (26, 35), "quarterly": (85, 97), "yearly": (350, 380)}
"""Days between two bars, from and to."""
_INDEX = re.compile("__index_level_|Unnamed:")
"""Of the names that pandas gives to the index of a table."""
_SHOWN = 60
"""Letters that are shown of a ticker."""


@dataclass(frozen=True)
class Part:
    """Some rows: `day` since 1970-01-01 and `texts[ticker]` (rows,), prices (4, rows) as `PRICE_COLUMNS`."""

    day: Int64Array
    ticker: Int64Array
    texts: list[str]
    """Tickers, "" for a missing one."""
    prices: Float64Array
    volume: Float64Array | None
    """(rows,), if there is one."""
    further: Float64Array
    """(names, rows) values of the further columns."""


@dataclass(frozen=True)
class LongBars:
    """All rows of a file or frame, which may be read several times."""

    columns: Sequence[str]
    further: Sequence[str]
    """Names of the other columns of numbers, sorted."""
    rows: int
    _read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]

    @classmethod
    def of_file(cls, path: Path, columns: Sequence[str]) -> LongBars:
        """Open a parquet file; volume is read where there is one. Raises `DataError` for another file, or unusable
        columns."""
        with _parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        columns, further = _check_schema(columns, schema, rows, path.name, schema.names)

        def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            # With pre-buffering, which is the default, it holds the bytes of the whole file.
            with _parquet(path, pre_buffer=False) as file:
                yield from file.iter_batches(PART_ROWS, columns=list(names))

        return cls(columns, further, rows, read)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, columns: Sequence[str]) -> LongBars:
        """Take bars in memory. Raises `DataError` for unusable columns."""
        try:
            kept = [name in (*columns, SECTOR) or kind.kind in "iufb" for name, kind in frame.dtypes.items()]
            table = pa.Table.from_pandas(frame.loc[:, kept], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"expected columns of one type each, got {first_line(error)}; convert them") from error
        names = [str(name) for name in frame.columns]
        columns, further = _check_schema(columns, table.schema, table.num_rows, "frame", names)
        return cls(columns, further, table.num_rows, lambda names: iter(table.select(names).to_batches(PART_ROWS)))

    def axes(self) -> tuple[Int64Array, list[str]]:
        """Return the sorted days since 1970-01-01 and the sorted tickers; `DataError` for a row without either."""
        days, tickers = list[Int64Array](), set[str]()
        for batch in self._read(("date", "ticker")):
            texts, _ = _encoded(batch["ticker"])
            if batch["date"].null_count or "" in texts:
                raise DataError("expected a date and a ticker in every row, got rows without one; drop them")
            days.append(np.unique(_day_numbers(batch["date"])))
            tickers.update(texts)
        if bad := [ticker for ticker in sorted(tickers) if is_bad_ticker(ticker)]:
            raise DataError(f"expected no ticker {BAD_TICKER}, got {bad[0][:_SHOWN]!r}; rename it")
        spelled = {ticker.casefold(): ticker for ticker in tickers}
        if twins := sorted(ticker for ticker in tickers if spelled[ticker.casefold()] != ticker):
            raise DataError(
                f"expected one spelling of each ticker, got {twins[0]!r} and {spelled[twins[0].casefold()]!r}; "
                "`python main.py prepare` makes them one"
            )
        return np.unique(np.concatenate(days)), sorted(tickers)

    def without(self, days: Int64Array) -> LongBars:
        """Leave out the rows of some days, since 1970-01-01."""

        def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            for batch in self._read(names):
                if (kept := batch.filter(pa.array(~np.isin(_day_numbers(batch["date"]), days)))).num_rows:
                    yield kept

        return replace(self, rows=sum(batch.num_rows for batch in read(("date",))), _read=read)

    def parts(self) -> Iterator[Part]:
        """Yield all rows in the order of the file."""
        for batch in self._read((*self.columns, *self.further)):
            names = (*PRICE_COLUMNS, *self.further)
            values = np.empty((len(names), batch.num_rows))
            for row, name in enumerate(names):
                values[row] = _sectors(batch[name]) if name == SECTOR else _numbers(batch[name])
            prices, further = np.split(values, [len(PRICE_COLUMNS)])
            texts, codes = _encoded(batch["ticker"])
            volume = _numbers(batch[VOLUME]) if VOLUME in self.columns else None
            yield Part(_day_numbers(batch["date"]), codes, texts, prices, volume, further)


def has_price_outlier(prices: Float32Array) -> BoolArray:
    """Return which bars of (4, rows) prices have one that is more than five times another one."""
    with np.errstate(all="ignore"):  # a missing or infinite price is a fault of its own
        return np.asarray(prices.max(axis=0) > LARGEST_RATIO * prices.min(axis=0))


def is_bad_ticker(text: str) -> bool:
    """Return whether a ticker is one `BAD_TICKER`; spaces around it are not printable either."""
    return not text.isprintable() or text != text.strip() or _BAD.search(text) is not None


def latest_day() -> int:
    """Return tomorrow, the last day that a bar can have anywhere now, since 1970-01-01."""
    return date.today().toordinal() - EPOCH + 1


def spacing(days: npt.NDArray[Any]) -> str:
    """Return the name among `SPACINGS` by which four of five sorted days are apart, or those of an eighth, else ""."""
    gaps = np.diff(days)
    if len(gaps) < 2:
        return ""
    parts = [gaps]
    if len(gaps) > 100:
        parts += np.array_split(gaps, 8)
    for name, (low, high) in SPACINGS.items():
        if any(((part >= low) & (part <= high)).mean() >= 0.8 for part in parts):
            return name
    return ""


def misread_weekdays(days: npt.NDArray[Any], regular: Sequence[int] = ()) -> bool:
    """Return whether sorted days on Saturdays or Sundays prove that dates are misread, or shifted by a time zone.

    A market may be open on all days, on six, or from Sunday to Thursday or Saturday to Wednesday, if few are missing;
    it may have a special session on a weekend now and then; and on `regular` weekdays (0 is Monday) it has bars.
    """
    counts = np.bincount((days.astype(np.int64) + 3) % 7, minlength=7)
    if {*np.flatnonzero(counts).tolist()} <= {*range(5), *regular}:
        return False
    present = {*np.flatnonzero(counts > 0.02 * len(days)).tolist()}
    is_dense = len(days) > 2 and len(days) >= 0.8 * (days[-1] - days[0] + 1) * len(present) / 7
    is_week = {5, 6} <= present or {*range(7)} - present in ({6}, {3, 4}, {4, 5})
    is_special = len(days) >= 50 and not {5, 6} & present
    return not (is_special or (is_dense and is_week))


@contextmanager
def _parquet(path: Path, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a parquet file, whose pages are verified where they carry checksums; `DataError` if it cannot be read."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = first_line(error) if path.is_file() else "no such file"
        raise DataError(
            f"expected a readable parquet file of daily bars, got {path} ({why}); "
            "`python main.py prepare` makes one of CSVs"
        ) from error


def _check_schema(
    columns: Sequence[str], schema: pa.Schema, rows: int, source: str, names: Sequence[str]
) -> tuple[Sequence[str], Sequence[str]]:
    """Return the columns, with volume where there is one, and the names of the other columns of numbers, sorted."""
    if VOLUME not in columns and schema.names.count(VOLUME) == 1 and _is_number(schema.field(VOLUME).type):
        columns = (*columns, VOLUME)
    for name in columns:
        if names.count(name) != 1:
            near = hint(name, [other for other in names if other not in columns])
            choice = ", or leave out --env.volume-cap" if name == VOLUME else ""
            raise DataError(
                f"expected one column {name!r} in {source}, got {', '.join(names[:12])}{near}; rename it{choice}"
            )
        arrow_type = schema.field(name).type
        if name == "date":
            expected = "dates, timestamps or ISO strings"
            fits = _is_text(arrow_type) or pa.types.is_date(arrow_type) or pa.types.is_timestamp(arrow_type)
        elif name == "ticker":
            expected, fits = "strings", _is_text(arrow_type)
        else:
            expected, fits = "numbers", _is_number(arrow_type)
        if not fits:
            raise DataError(f"expected {expected} in column '{name}' of {source}, got {arrow_type}; convert the column")
    if rows == 0:
        raise DataError(f"expected daily bars, got no rows in {source}; check how it was made")
    others = [name for name in schema.names if name not in columns and not _INDEX.match(name)]
    kinds = {name: schema.field(name).type for name in others if names.count(name) == 1}
    further = sorted(name for name, kind in kinds.items() if _is_number(kind) or (name == SECTOR and _is_text(kind)))
    if unused := [name for name in names if name not in (*columns, *further) and not _INDEX.match(name)]:
        logger.warning("Columns of %s that are no numbers, and are not read: %s", source, ", ".join(unused[:12]))
    return columns, further


def _is_number(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = pa.types.is_floating, pa.types.is_integer, pa.types.is_decimal, pa.types.is_boolean
    return any(is_kind(kind) for is_kind in kinds)


def _is_text(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _day_numbers(column: pa.Array) -> Int64Array:
    """Return days since 1970-01-01 of a date, timestamp (its day is that of its own zone) or ISO string column."""
    if not pa.types.is_temporal(column.type):
        column = pc.utf8_slice_codeunits(pc.utf8_trim_whitespace(column.cast(pa.string())), 0, 10)
    try:
        # The cast drops the time of day, in the timestamp's own zone.
        return np.asarray(column.cast(pa.date32(), safe=False).cast(pa.int32()), dtype=np.int64)
    except pa.ArrowInvalid as error:
        raise DataError(f"expected dates like 2014-11-10, got {first_line(error)}; convert the column") from None


def _encoded(column: pa.Array) -> tuple[list[str], Int64Array]:
    """Return the distinct texts of a column, "" for a missing one, and each row's place among them."""
    try:
        encoded = pc.fill_null(column.cast(pa.string()), "").dictionary_encode()
        return encoded.dictionary.to_pylist(), encoded.indices.to_numpy().astype(np.int64)
    except UnicodeDecodeError as error:
        raise DataError(f"expected tickers as text in UTF-8, got {error.object!r}; mend the file") from None
    except pa.ArrowException as error:
        raise DataError(f"expected tickers as text, got a damaged column ({first_line(error)})") from None


def _numbers(column: pa.Array) -> Float64Array:
    values: Float64Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values


def _sectors(column: pa.Array) -> Float64Array:
    if _is_number(column.type):
        return _numbers(column)
    texts, codes = _encoded(column)
    return sector_numbers(texts)[codes]


def sector_numbers(names: Sequence[str]) -> Float64Array:
    """Return numbers of sectors; of a name always the same one, whatever else the file has, NaN of an empty one."""
    numbers = [zlib.crc32(name.encode()) % 2**23 if name else np.nan for name in names]  # float32 holds these exactly
    return np.array(numbers, dtype=np.float64)
