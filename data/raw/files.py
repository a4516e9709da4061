"""Rows of one CSV or parquet file: long, wide, or with two header rows."""

import codecs
import csv
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from data.raw.layout import BLANKS, EVENTS, PRICES, Layout, UnusableFileError, layout_of
from data.raw.text import Float64Array, numbers, resolve_days
from utils.errors import first_line

PARQUET_SUFFIXES = (".parquet", ".pq")
_HEAD_LINES, _HEAD_BYTES = 50, 1 << 16
_BLOCK_CELLS = 1_000_000
"""Fields of text in memory at once."""
_FEW_ROWS = 5
"""Rows from which on columns are judged by their values."""


def read_file(path: Path, file_ticker: str, dropped: Counter[str], notes: list[str]) -> tuple[pd.DataFrame, bool]:
    """Return a file's unchecked rows, and whether it has closes only.

    Columns are `day` since 1970-01-01, `ticker` (`file_ticker` where the file has none), prices (the close where there
    is no other), volume (NaN where unknown), and those of `adjusted`, `split` and `dividend` that the file has. Lines
    that are no rows are counted in `dropped`, assumptions are added to `notes`. Raises `UnusableFileError` and OSError.
    """
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1" or path.suffix.lower() in PARQUET_SUFFIXES
    blocks = _parquet_blocks(path) if is_parquet else _csv_blocks(path, dropped, notes)
    parts = [(layout, _rows(layout, cells, file_ticker)) for layout, cells in blocks]
    if not parts:
        raise UnusableFileError("no rows")
    layout, rows = parts[0][0], pd.concat([part for _, part in parts], ignore_index=True)
    place, texts = pd.factorize(rows.pop("date"))
    days, unsettled = resolve_days(texts.tolist())
    rows["day"] = days[place]
    if unsettled is not None:
        notes.append(f"{path.name}: dates like {unsettled} read as month/day/year; nothing in the file settles it")
    if layout.panel and layout.has_closes_only:
        _refuse_what_is_no_close(rows)
    return rows, layout.has_closes_only


def _refuse_what_is_no_close(rows: pd.DataFrame) -> None:
    """Raise `UnusableFileError` where columns that would be closes of tickers are the bars of one, or its volume."""
    closes = rows.drop_duplicates(["day", "ticker"]).pivot(index="day", columns="ticker", values="close")
    closes = closes.where(closes > 0)
    is_whole = (closes.isna() | (closes == closes.round())).all()
    is_volume = is_whole & (np.log(closes).diff().abs().median() > 0.1)  # a median day moves no price by as much
    bars = closes.dropna()
    top, bottom = bars.max(axis=1), bars.min(axis=1)
    highest, lowest = bars.eq(top, axis=0).all(), bars.eq(bottom, axis=0).all()
    is_bar = 4 <= bars.shape[1] <= 6 and highest.any() and lowest.any() and not (highest & lowest).any()
    is_bar = is_bar and (top < 1.5 * bottom).mean() > 0.9  # prices of one bar are near one another
    if len(closes) >= _FEW_ROWS and (is_bar or is_volume.any()):
        names = ", ".join(closes.columns[is_volume] if is_volume.any() else closes.columns)
        raise UnusableFileError(
            f"columns {names} behave as volume or one ticker's bars do; name them open, high, low, close and volume, "
            "or give one row per ticker and day"
        )


def _csv_blocks(path: Path, dropped: Counter[str], notes: list[str]) -> Iterator[tuple[Layout, pd.DataFrame]]:
    """Yield the layout, and blocks of text with a column for each of its fields; count lines that cannot be a row."""
    with path.open("rb") as binary:
        head_bytes = binary.read(_HEAD_BYTES)
    try:
        encoding = "utf-16" if head_bytes[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        codecs.getincrementaldecoder(encoding)().decode(head_bytes)
    except UnicodeDecodeError:
        encoding = "cp1252"
    with path.open(encoding=encoding, errors="replace") as file:
        lines = (line for line in file if line.strip())
        head = list(islice(lines, _HEAD_LINES))
        before, layout = _find_layout(head)
        dropped["line before the first bar"] += before
        if not layout.headers:
            notes.append(f"{path.name} has no header: columns taken by position")
        rows = _fields(chain(head[before + layout.headers :], lines), layout, dropped)
        while block := list(islice(rows, max(1, _BLOCK_CELLS // layout.width))):
            yield layout, pd.DataFrame(block, dtype=object)


def _find_layout(head: list[str]) -> tuple[int, Layout]:
    """Return the number of lines before the header, or before the first row where there is none, and `layout_of`."""
    for before, line in enumerate(head):
        separator = max("\t;|,", key=line.count)
        rows = [[text.strip() for text in _split(line, separator)] for line in head[before : before + 2]]
        if layout := layout_of(rows, separator):
            return before, layout
    raise UnusableFileError(f"no header and no bar in the first {_HEAD_LINES} lines" if head else "empty file")


def _split(line: str, separator: str) -> list[str]:
    """Return the fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    if '"' not in line:
        return line.rstrip("\r\n").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [""])
    except csv.Error:
        return [""]


def _fields(lines: Iterator[str], layout: Layout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row; volume and events may be missing at the end."""
    width, optional = layout.width, {"volume", *EVENTS}
    needed = 1 + max(place for role, place in layout.fields.items() if role not in optional)
    for line in lines:
        fields = _split(line, layout.separator)
        if len(fields) < needed or any(text.strip() for text in fields[width:]):
            dropped["too few or too many fields"] += 1
        else:
            yield fields[:width] + [""] * (width - len(fields))


def _parquet_blocks(path: Path) -> Iterator[tuple[Layout, pd.DataFrame]]:
    """Yield the layout, and all cells with a column for each of its fields."""
    try:
        frame = pd.read_parquet(path)
        if frame.index.names != [None] or not pd.api.types.is_integer_dtype(frame.index.dtype):
            frame = frame.reset_index()
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, SyntaxError) as error:
        raise UnusableFileError(f"no readable parquet file ({first_line(error)})") from None
    is_time = [pd.api.types.is_datetime64_any_dtype(kind) for kind in frame.dtypes]
    frame = frame.iloc[:, np.argsort(np.logical_not(is_time), kind="stable")]  # dates lead, as in a CSV file
    titles = [frame.columns.get_level_values(level).map(str).tolist() for level in range(frame.columns.nlevels)]
    layout = layout_of([*titles, *(list(map(str, row)) for row in frame[:1].itertuples(index=False))])
    if layout is None:
        raise UnusableFileError(f"no columns of dates and prices among {', '.join(titles[0][:8])}")
    if len(frame):
        yield layout, frame.set_axis(range(frame.shape[1]), axis=1)


def _rows(layout: Layout, cells: pd.DataFrame, file_ticker: str) -> pd.DataFrame:
    """Return long rows, their dates still texts. In a panel, a ticker without a close has no row."""
    parts, date = [], _texts(cells[layout.fields["date"]])
    for ticker, group in (layout.panel or {file_ticker: layout.fields}).items():
        values = {
            role: _values(cells[place], role, layout.separator)
            for role, place in group.items()
            if role not in ("date", "ticker")
        }
        columns = {"date": date, "ticker": ticker, **dict.fromkeys(PRICES, values["close"]), "volume": np.nan}
        rows = pd.DataFrame(columns | values)
        if layout.panel:
            rows = rows[~_texts(cells[group["close"]]).str.casefold().isin(BLANKS)]
        elif "ticker" in group:
            rows["ticker"] = _texts(cells[group["ticker"]])
        parts.append(rows)
    return pd.concat(parts)


def _values(column: pd.Series, role: str, separator: str) -> Float64Array:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return numbers(_texts(column).tolist(), separator, role == "volume")


def _texts(column: pd.Series) -> pd.Series:
    return column.astype(str).fillna("").str.strip()
