"""Daily bars in long form, one row for each date and ticker, read in parts from a parquet file or a frame."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from utils.errors import DataError, first_line

if TYPE_CHECKING:
    import pandas as pd

IntArray = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

PRICE_COLUMNS = ("open", "close", "high", "low")  # the first four features
VOLUME = "volume"
COLUMNS = ("date", "ticker", *PRICE_COLUMNS)
LARGE_MOVE = 0.5
LARGEST_RATIO = 5.0
"""Of two prices of a bar; beyond it a digit is in the wrong place, which is known at that day's close."""
SMALLEST_PRICE = 1e-30
"""Prices below it are errors, and what is computed of them overflows."""
EARLIEST = (date(1900, 1, 1) - date(1970, 1, 1)).days
"""First day that counts as one, since 1970-01-01."""
BAD_TICKER = "that is not printable, holds a comma, quote or semicolon, or begins with = + or @"
"""What a ticker may not be: it would add orders to a broker's file, or formulas to a spreadsheet."""
PART_ROWS = 1 << 19
"""Rows that are held at once."""
_HEAD, _SHOWN = 4096, 60
"""Bytes that are read of a file of another kind, and letters that are shown of a line."""
_EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True)
class Part:
    """Some rows: `day` since 1970-01-01 and `texts[ticker]` (rows,), prices (4, rows) as `PRICE_COLUMNS`."""

    day: IntArray
    ticker: IntArray
    texts: list[str]
    """Tickers, "" for a missing one at the end."""
    prices: Float64Array
    volume: Float64Array | None
    """(rows,), if requested."""


@dataclass(frozen=True)
class LongBars:
    """All rows of a file or frame, which may be read several times."""

    columns: Sequence[str]
    rows: int
    _read: Callable[[Sequence[str]], Iterator[pa.RecordBatch]]

    @classmethod
    def of_file(cls, path: Path, columns: Sequence[str]) -> LongBars:
        """Open a parquet file. Raises `DataError` for another file, or unusable columns."""
        if not path.exists():
            raise DataError(
                f"expected a parquet file of daily bars, but {path} does not exist; check the path, or make one of "
                "CSVs with `python main.py prepare`"
            )
        if path.is_dir():
            raise DataError(
                f"expected a parquet file, got the folder {path}; `python main.py prepare` makes one of CSVs"
            )
        with _parquet(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        _check_schema(columns, schema, rows, path.name)
        strings = [name for name in ("date", "ticker") if _is_string(schema.field(name).type)]

        def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
            # With pre-buffering, which is the default, it holds the bytes of the whole file.
            with _parquet(path, read_dictionary=strings, pre_buffer=False) as file:
                yield from file.iter_batches(PART_ROWS, columns=list(names))

        return cls(columns, rows, read)

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, columns: Sequence[str]) -> LongBars:
        """Take bars in memory. Raises `DataError` for unusable columns."""
        _check_names(columns, [str(name) for name in frame.columns], "frame")
        try:
            table = pa.Table.from_pandas(frame[list(columns)], preserve_index=False)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(f"expected columns of one type each, got {first_line(error)}; convert them") from error
        _check_schema(columns, table.schema, table.num_rows, "frame")
        return cls(columns, table.num_rows, lambda names: iter(table.select(names).to_batches(PART_ROWS)))

    def axes(self) -> tuple[IntArray, list[str]]:
        """Return the sorted days since 1970-01-01 and the sorted tickers; `DataError` for a row without either."""
        days, tickers = [np.empty(0, dtype=np.int64)], set[str]()
        undated, unnamed = 0, 0
        for batch in self._read(("date", "ticker")):
            undated += batch["date"].null_count
            if not undated:
                days.append(np.unique(_day_numbers(batch["date"])))
            texts, codes = _encoded(batch["ticker"])
            used = np.bincount(codes, minlength=len(texts))
            tickers |= {text for text, count in zip(texts, used, strict=True) if text and count}
            unnamed += sum(int(count) for text, count in zip(texts, used, strict=True) if not text)
        if undated:
            raise DataError(f"expected a date in every row, got {undated} rows without one; drop them")
        if unnamed:
            raise DataError(f"expected a ticker in every row, got {unnamed} rows without one; drop them")
        if bad := [ticker for ticker in sorted(tickers) if is_bad_ticker(ticker)]:
            raise DataError(f"expected no ticker {BAD_TICKER}, got {bad[0][:_SHOWN]!r}; rename it")
        spelled = {ticker.casefold(): ticker for ticker in tickers}
        if twins := sorted(ticker for ticker in tickers if spelled[ticker.casefold()] != ticker):
            other = spelled[twins[0].casefold()]
            raise DataError(
                f"expected one spelling of each ticker, got {twins[0]!r} and {other!r}; "
                "`python main.py prepare` makes them one"
            )
        return np.unique(np.concatenate(days)), sorted(tickers)

    def parts(self) -> Iterator[Part]:
        """Yield all rows in the order of the file."""
        for batch in self._read(self.columns):
            prices = np.empty((len(PRICE_COLUMNS), batch.num_rows))
            for row, name in enumerate(PRICE_COLUMNS):
                prices[row] = _numbers(batch[name])
            texts, codes = _encoded(batch["ticker"])
            volume = _numbers(batch[VOLUME]) if VOLUME in self.columns else None
            yield Part(_day_numbers(batch["date"]), codes, texts, prices, volume)


def has_wrong_digit(prices: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Return which bars of (4, rows) prices have one that is more than five times another one."""
    with np.errstate(all="ignore"):  # a missing or infinite price is a fault of its own
        return np.asarray(prices.max(axis=0) > LARGEST_RATIO * prices.min(axis=0))


def is_bad_ticker(text: str) -> bool:
    """Return whether a ticker is one `BAD_TICKER`; spaces around it are not printable either."""
    return (
        not text.isprintable() or text != text.strip() or bool(set(',";') & set(text)) or text.startswith(tuple("=+@"))
    )


def latest_day() -> int:
    """Return tomorrow, the last day that a bar can have anywhere now, since 1970-01-01."""
    return date.today().toordinal() + 1 - _EPOCH


def most_like(name: str, known: Iterable[str]) -> str | None:
    """Return the known name most like `name`, case aside, or None if none is like it."""
    folded = {other.casefold(): other for other in known}
    matches = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.5)
    return folded[matches[0]] if matches else None


@contextmanager
def _parquet(path: Path, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a parquet file, whose pages are verified where they carry checksums; `DataError` if it cannot be read."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, **options) as file:
            yield file
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
    _check_names(columns, schema.names, source)
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


def _is_string(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _day_numbers(column: pa.Array) -> IntArray:
    """Return days since 1970-01-01 of a date, timestamp (its day is that of its own zone) or ISO string column."""
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


def _encoded(column: pa.Array) -> tuple[list[str], IntArray]:
    """Return the distinct texts of a column, "" for a missing one at the end, and each row's place among them."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    try:
        texts = [text or "" for text in encoded.dictionary.to_pylist()]
    except UnicodeDecodeError as error:
        raise DataError(f"expected dates and tickers as text in UTF-8, got {error.object!r}; mend the file") from None
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts)).to_numpy()
    if codes.size and not 0 <= codes.min() <= codes.max() <= len(texts):
        raise DataError("expected texts that the file's own dictionary holds, got a damaged file; make it again")
    return [*texts, ""], codes


def _numbers(column: pa.Array) -> Float64Array:
    values: Float64Array = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return values
