"""Rows of one CSV or parquet file: long, wide, or with two header rows."""

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.raw.layout import (
    BLANKS,
    DATES,
    EVENTS,
    PRICES,
    VALUES,
    Layout,
    UnusableFileError,
    long_layout,
    panel_layout,
    plain,
    split_names,
    wide_layout,
)
from data.raw.text import Int32Array, is_day, is_number, numbers, resolve_days
from utils.errors import first_line

PARQUET_SUFFIXES = (".parquet", ".pq")
_HEAD_LINES, _HEAD_BYTES = 50, 1 << 16
_BLOCK_CELLS = 1_000_000
"""Fields of text in memory at once."""
_FEW_ROWS, _MOST = 5, 0.9
"""Rows and share of rows from which on columns are judged by their values."""
_VOLUME_MOVE, _BAR_RANGE = 0.1, 0.3
"""Median move that only volume has, and distance from the others that a price of one bar hardly has."""
_INDEX = "__index_level_0__"
"""Name that pandas gives to the column of an index without a name."""
_UTC = frozenset({"UTC", "ETC/UTC", "+00:00", "Z"})


def open_file(path: Path) -> Layout:
    """Find a file's layout. Raises `UnusableFileError` where there is none, and OSError."""
    with path.open("rb") as file:
        is_parquet = file.read(4) == b"PAR1" or path.suffix.lower() in PARQUET_SUFFIXES
    try:
        return _open_parquet(path) if is_parquet else _open_csv(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnusableFileError(
            f"no readable {'parquet' if is_parquet else 'text'} file ({first_line(error)})"
        ) from None


def _open_csv(path: Path) -> Layout:
    """Find the header, or the first row where there is none, in the file's first lines."""
    with _lines(path) as lines:
        head = [(number, line) for number, line in enumerate(islice(lines, _HEAD_LINES)) if line.strip()]
    for place, (number, line) in enumerate(head):
        separator = max("\t;|,", key=line.count)
        row, second, third = (
            [text.strip() for text in _split(text, separator)]
            for text in [*(text for _, text in head[place : place + 3]), "", ""][:3]
        )
        if panel := panel_layout(row, second, separator):
            has_third = bool(third[0]) and not any(third[1:])  # only the index's name
            skip = head[place + 1 + has_third][0] + 1
            return replace(panel, separator=separator, skip=skip, header_lines=2 + has_third)
        if layout := wide_layout(row, second, separator) or long_layout(row, separator):
            return replace(layout, separator=separator, skip=number + 1, header_lines=1)
        if layout := _data_layout(row, separator):
            return replace(layout, separator=separator, skip=number)
    raise UnusableFileError(f"no header and no bar in the first {_HEAD_LINES} lines" if head else "empty file")


def _lines(path: Path) -> TextIO:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        head.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:  # else a letter is cut in two
            encoding = "cp1252"
    return path.open(encoding=encoding, errors="replace")


def _split(line: str, separator: str) -> list[str]:
    """Return the fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    if '"' not in line:
        return line.rstrip("\r\n").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [""])
    except csv.Error:
        return [""]


def _data_layout(texts: list[str], separator: str) -> Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line."""
    leads: list[tuple[str, ...]] = [("date",)]
    if len(texts) > 1 and not is_number(texts[1], separator):
        leads = [("date", "ticker"), ("ticker", "date")]
    for lead in leads:
        fields = {role: place for place, role in enumerate((*lead, *VALUES)[: len(texts)])}
        is_bar = "close" in fields and all(is_number(texts[fields[role]], separator) for role in PRICES)
        if is_bar and is_day(texts[fields["date"]]):
            return Layout(fields, len(texts))
    return None


def _open_parquet(path: Path) -> Layout:
    """Find the columns of a parquet file, that of the dates first."""
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    names = list(schema.names)
    if len(set(names)) < len(names):
        raise UnusableFileError("expected each column's name once")
    first, second = split_names(names) or (names, [])
    dates = [place for place, name in enumerate(first) if plain(name) in {*DATES, plain(_INDEX)}]
    timed = [place for place, name in enumerate(names) if pa.types.is_temporal(schema.field(name).type)]
    if not dates and not timed:
        raise UnusableFileError(f"no column of dates among {', '.join(names[:8])}")
    # A temporal type is certain, a name is not: it may be a ticker.
    lead = next((place for place in dates if place in timed), (timed or dates)[0])
    order = [lead, *(place for place in range(len(names)) if place != lead)]
    titles = ["date", *(first[place] for place in order[1:])]
    names = [names[place] for place in order]
    if second:
        layout = panel_layout(titles, ["", *(second[place] for place in order[1:])])
    else:
        batches = [pa.Table.from_batches([batch]) for batch in islice(file.iter_batches(1, columns=names), 1)]
        columns = [_plain_column(row[name], name == names[0]) for row in batches for name in names]
        cells = [str(value) for column in columns for value in column.to_pylist()]
        layout = wide_layout(titles, cells) or long_layout(titles)
    if layout is None:
        raise UnusableFileError(f"no columns of prices among {', '.join(names[:8])}")
    return replace(layout, columns=tuple(names))


def read_file(
    path: Path, layout: Layout, file_ticker: str, tickers: dict[str, int], dropped: Counter[str]
) -> tuple[pd.DataFrame, str | None]:
    """Return a file's unchecked rows, and a date if none in the file settles the order of day and month.

    Columns are `day` since 1970-01-01, `ticker` as the code that `tickers` has for its name (`file_ticker` where the
    file has none), prices (the close where there is no other), volume (NaN where unknown), and those of `adjusted`,
    `split` and `dividend` that the file has.
    """
    days: dict[str, int] = {}
    try:
        cells = _parquet_cells(path, layout) if layout.columns else _csv_cells(path, layout, dropped)
        blocks = [block for text in cells for block in _blocks(text, layout, file_ticker, days, tickers)]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnusableFileError(
            f"no readable {'parquet' if layout.columns else 'text'} file ({first_line(error)})"
        ) from None
    if not blocks:
        raise UnusableFileError("no rows")
    rows = pd.concat(blocks, ignore_index=True)
    day_of, unsettled = resolve_days(list(days))
    rows["day"] = day_of[rows["day"]]
    if layout.panel and layout.has_closes_only:
        _refuse_what_is_no_close(rows, list(tickers))
    return rows, unsettled


def _refuse_what_is_no_close(rows: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise `UnusableFileError` where columns that would be closes of tickers are the bars of one, or its volume."""
    closes = rows.drop_duplicates(["day", "ticker"]).pivot(index="day", columns="ticker", values="close")
    closes = closes.where(closes > 0).set_axis([names[code] for code in closes], axis=1)
    moves = np.log(closes).diff().abs().median()
    is_volume = (closes.isna() | (closes == closes.round())).all() & (moves > _VOLUME_MOVE)
    if is_volume.any() and len(closes) >= _FEW_ROWS:
        name = is_volume.idxmax()
        raise UnusableFileError(
            f"column '{name}' moves by {moves[name]:.0%} on the median day, as volume does; expected closes of "
            "tickers, or a header open, high, low, close, volume"
        )
    if not 4 <= closes.shape[1] <= 6:
        return
    level = closes.median(axis=1)
    near = closes.loc[:, ((closes.T / level).T.sub(1).abs() < _BAR_RANGE).mean() > _MOST].dropna()
    top, bottom = near.eq(near.max(axis=1), axis=0).all(), near.eq(near.min(axis=1), axis=0).all()
    is_bar = len(near) >= _FEW_ROWS and near.shape[1] >= 4
    if is_bar and top.any() and bottom.any() and top.idxmax() != bottom.idxmax():
        raise UnusableFileError(
            f"column '{top.idxmax()}' is always the highest and '{bottom.idxmax()}' the lowest of "
            f"{', '.join(closes.columns)}: these seem to be one ticker's bars; name them open, high, low and close, or "
            "give one row per ticker and day where they are tickers"
        )


def _csv_cells(path: Path, layout: Layout, dropped: Counter[str]) -> Iterator[pd.DataFrame]:
    """Yield blocks of text with a column for each field of the layout."""
    with _lines(path) as lines:
        before = sum(bool(line.strip()) for line in islice(lines, layout.skip)) - layout.header_lines
        dropped["line before the first bar"] += before
        rows = _fields(lines, layout, dropped)
        while block := list(islice(rows, max(1, _BLOCK_CELLS // layout.width))):
            yield pd.DataFrame(block, dtype=object)


def _fields(lines: Iterable[str], layout: Layout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row, counting lines that cannot be one."""
    width, optional = layout.width, {"volume", *EVENTS}
    needed = 1 + max(place for role, place in layout.fields.items() if role not in optional)
    for line in lines:
        fields = _split(line, layout.separator)
        if len(fields) == width:
            yield fields
        elif not line.strip():
            continue
        elif len(fields) < needed:
            dropped["too few fields"] += 1
        elif any(text.strip() for text in fields[width:]):
            dropped["too many fields"] += 1
        else:
            yield fields[:width] + [""] * (width - len(fields))


def _parquet_cells(path: Path, layout: Layout) -> Iterator[pd.DataFrame]:
    """Yield the columns that the layout names: numbers as such, dates and other text as categories."""
    places = sorted({place for group in (layout.fields, *layout.groups) for place in group.values()})
    table = pq.ParquetFile(path).read(columns=[layout.columns[place] for place in places])
    columns = [
        _plain_column(column, place == layout.fields["date"]) for place, column in zip(places, table, strict=True)
    ]
    cells = pa.table(columns, names=[str(place) for place in places]).to_pandas(strings_to_categorical=True)
    yield cells.set_axis(places, axis=1)


def _plain_column(column: pa.ChunkedArray, is_date: bool) -> pa.ChunkedArray:
    """Return numbers as float64, all else as text; a timestamp's day is that of its own zone, see `resolve_days`."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type):
        is_utc = pa.types.is_timestamp(column.type) and str(column.type.tz).upper() in _UTC
        column = column.cast(pa.timestamp("s", "UTC") if is_utc else pa.date32(), safe=False)
    elif is_date and pa.types.is_floating(column.type):
        column = column.cast(pa.int64(), safe=False)
    elif (not is_date and pa.types.is_primitive(column.type)) or pa.types.is_decimal(column.type):
        return column.cast(pa.float64(), safe=False)
    return pc.fill_null(column.cast(pa.string()), "")


def _blocks(
    cells: pd.DataFrame, layout: Layout, file_ticker: str, days: dict[str, int], tickers: dict[str, int]
) -> Iterator[pd.DataFrame]:
    """Yield rows, their days still positions of texts in `days`. In a panel, a ticker without a close has no row."""
    fields, separator = layout.fields, layout.separator
    day = _codes(cells[fields["date"]], days)
    for ticker, group in layout.panel.items():
        closes = cells[group["close"]]
        is_traded = np.array([str(close).strip().casefold() not in BLANKS for close in closes], dtype=np.bool_)
        code = tickers.setdefault(ticker.strip(), len(tickers))
        yield _rows(day[is_traded], code, cells[is_traded], group, separator)
    if "ticker" in fields:
        yield _rows(day, _codes(cells[fields["ticker"]], tickers), cells, fields, separator)
    elif not layout.panel:
        yield _rows(day, tickers.setdefault(file_ticker, len(tickers)), cells, fields, separator)


def _codes(column: pd.Series, known: dict[str, int]) -> Int32Array:
    """Return the code of each text in `known`, to which new texts are added."""
    places, texts = pd.factorize(column)
    codes = np.array([known.setdefault(text.strip(), len(known)) for text in texts], dtype=np.int32)
    return np.asarray(codes[places])


def _rows(
    day: Int32Array, ticker: Int32Array | int, cells: pd.DataFrame, fields: dict[str, int], separator: str
) -> pd.DataFrame:
    columns = {role: cells[place] for role, place in fields.items() if role not in ("date", "ticker")}
    values = {
        role: column.to_numpy() if column.dtype == np.float64 else numbers(column.tolist(), separator, role == "volume")
        for role, column in columns.items()
    }
    defaults = dict.fromkeys(PRICES, values["close"]) | {"volume": np.full(len(day), np.nan)}
    return pd.DataFrame({"day": day, "ticker": ticker} | defaults | values)
