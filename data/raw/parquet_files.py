"""Rows of one parquet file: in long form, wide, or with two header rows in its column names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data.raw.layout import EVENTS, VALUES, Layout, UnusableFileError, long_layout, panel_layout, plain, split_names
from data.raw.rows import joined, with_all_prices
from data.raw.text import NO_DAY, Float64Array, Int32Array, days_of_seconds, numbers, resolve_days
from utils.errors import first_line

_INDEX = "__index_level_0__"
"""Name that pandas gives to the column of an index without a name."""
_DATES = frozenset({"date", "datetime", "timestamp", "day", "time", "t", plain(_INDEX)})


def find_parquet_layout(path: Path) -> tuple[Layout, list[str]]:
    """Return the layout and the columns' names in its order, dates first. Raises `UnusableFileError`."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnusableFileError(f"no readable parquet file ({first_line(error)})") from None
    names = list(schema.names)
    if len(set(names)) < len(names):
        raise UnusableFileError("expected each column's name once")
    first, second = split_names(names) or (names, [])
    dates = [place for place, name in enumerate(first) if plain(name) in _DATES]
    timed = [place for place, name in enumerate(names) if pa.types.is_temporal(schema.field(name).type)]
    if not dates and not timed:
        raise UnusableFileError(f"no column of dates among {', '.join(names[:8])}")
    # A column of times is sure, a name is not: tickers may be called so.
    lead = next((place for place in dates if place in timed), (timed or dates)[0])
    order = [lead, *(place for place in range(len(names)) if place != lead)]
    titles = ["date", *(first[place] for place in order[1:])]
    names = [names[place] for place in order]
    if second:
        layout = panel_layout(titles, ["", *(second[place] for place in order[1:])])
    else:
        layout = _wide_layout(titles, [schema.field(name).type for name in names]) or long_layout(titles)
    if layout is None:
        raise UnusableFileError(f"no columns of prices among {', '.join(names[:8])}")
    return layout, names


def _wide_layout(titles: list[str], kinds: list[pa.DataType]) -> Layout | None:
    """Return the layout of a table of closes: numbers in all columns but the first, and no column called close."""
    names = {plain(title) for title in titles[1:]}
    is_wide = all(_is_number(kind) or pa.types.is_null(kind) for kind in kinds[1:]) and len(titles) > 1
    if not is_wide or names & {"close", "adjclose"} or {"o", "h", "l", "c"} <= names:
        return None
    return Layout({"date": 0}, len(titles), {title: {"close": place} for place, title in enumerate(titles) if place})


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def read_parquet(
    path: Path, layout: Layout, names: list[str], file_ticker: str, tickers: dict[str, int]
) -> tuple[pd.DataFrame, str | None]:
    """Return a file's rows as `read_csv` does."""
    try:
        return _read(path, layout, names, file_ticker, tickers)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise UnusableFileError(f"no readable parquet file ({first_line(error)})") from None


def _read(
    path: Path, layout: Layout, names: list[str], file_ticker: str, tickers: dict[str, int]
) -> tuple[pd.DataFrame, str | None]:
    roles = {"date", "ticker", "adjusted", *VALUES, *EVENTS}
    places = {place for group in (layout.fields, *layout.groups) for role, place in group.items() if role in roles}
    wanted = [names[place] for place in sorted(places)]
    table = pq.ParquetFile(path).read(columns=wanted)
    days, unsettled = _days(table[names[layout.fields["date"]]])
    if layout.panel:
        parts = []
        for ticker, fields in layout.panel.items():
            values = {role: _numbers(table[names[place]]) for role, place in fields.items()}
            traded = ~np.isnan(values["close"])
            found = {role: one[traded] for role, one in with_all_prices(values).items()}
            parts.append((tickers.setdefault(ticker.strip(), len(tickers)), days[traded], found))
        return joined(parts), unsettled
    fields = layout.fields
    values = {role: _numbers(table[names[place]]) for role, place in fields.items() if role not in ("date", "ticker")}
    if "ticker" in fields:
        codes = _ticker_codes(table[names[fields["ticker"]]], tickers)
    else:
        codes = np.full(table.num_rows, tickers.setdefault(file_ticker, len(tickers)), dtype=np.int32)
    return pd.DataFrame({"day": days, "ticker": codes} | with_all_prices(values)), unsettled


def _ticker_codes(column: pa.ChunkedArray, tickers: dict[str, int]) -> Int32Array:
    texts, places = _distinct(column)
    codes = np.array([tickers.setdefault(text.strip(), len(tickers)) for text in texts], dtype=np.int32)
    return np.asarray(codes[places])


def _days(column: pa.ChunkedArray) -> tuple[Int32Array, str | None]:
    """Return days since 1970-01-01 (rows,); a timestamp's day is that of its own zone, see `days_of_seconds`."""
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        if pa.types.is_timestamp(kind) and str(kind.tz).upper() in ("UTC", "ETC/UTC", "+00:00", "Z"):
            seconds = pc.fill_null(column.cast(pa.timestamp("s", kind.tz), safe=False).cast(pa.int64()), 0)
            days = days_of_seconds(seconds.to_numpy())
        else:
            days = pc.fill_null(column.cast(pa.date32(), safe=False).cast(pa.int32()), 0).to_numpy().copy()
        days[column.is_null().to_numpy()] = NO_DAY
        return days, None
    texts, places = _distinct(column)
    day_of, unsettled = resolve_days([text.strip() for text in texts])
    return day_of[places], unsettled


def _distinct(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Return the distinct values as texts, "" for a missing one at the end, and each row's place among them."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    texts = ["" if value is None else str(value) for value in encoded.dictionary.to_pylist()]
    return [*texts, ""], pc.fill_null(encoded.indices, len(texts)).to_numpy()


def _numbers(column: pa.ChunkedArray) -> Float64Array:
    if _is_number(column.type) or pa.types.is_null(column.type):
        return np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan).to_numpy())
    return numbers([str(value) for value in column.to_pylist()], ",")
