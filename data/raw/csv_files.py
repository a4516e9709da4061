"""Rows of one CSV file, read in blocks so that its text is never in memory as a whole."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd

from data.raw.layout import (
    BLANKS,
    EVENTS,
    PRICES,
    VALUES,
    Layout,
    UnusableFileError,
    long_layout,
    panel_layout,
    wide_layout,
)
from data.raw.rows import joined, with_all_prices
from data.raw.text import Float64Array, Int32Array, is_number, numbers, parse_day, resolve_days

_HEAD_LINES = 50
_BLOCK_CELLS = 1_000_000
"""Fields of text in memory at once."""


@dataclass(frozen=True)
class CsvLayout:
    """Layout of a CSV file: its columns, what sets them apart, and the lines before the first row."""

    columns: Layout
    separator: str
    skip: int
    header_lines: int
    """How many of the lines before the first row are a header; 0 where columns are known by position only."""


def find_layout(path: Path) -> CsvLayout:
    """Find the header, or the first row where there is none, in the file's first lines.

    Raises `UnusableFileError` where there is neither, and OSError.
    """
    with _open(path) as lines:
        head = [(number, line) for number, line in enumerate(islice(lines, _HEAD_LINES)) if line.strip()]
    for place, (number, line) in enumerate(head):
        separator = max("\t;|,", key=line.count)
        row = _stripped(line, separator)
        following = [_stripped(next_line, separator) for _, next_line in head[place + 1 : place + 3]]
        following += [[]] * (2 - len(following))
        if panel := panel_layout(row, following[0] or [""], separator):
            has_third = bool(following[1]) and not any(following[1][1:])  # the index's name alone
            last, _ = head[place + 1 + has_third]
            return CsvLayout(panel, separator, last + 1, 2 + has_third)
        columns = wide_layout(row, following[0], separator) or long_layout(row, separator)
        if columns is not None:
            return CsvLayout(columns, separator, number + 1, 1)
        if (columns := _data_layout(row, separator)) is not None:
            return CsvLayout(columns, separator, number, 0)
    raise UnusableFileError(f"no header and no bar in the first {_HEAD_LINES} lines" if head else "empty file")


def _stripped(line: str, separator: str) -> list[str]:
    return [text.strip() for text in _split(line, separator)]


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        is_wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    return path.open(encoding="utf-16" if is_wide else "utf-8-sig", errors="replace")


def _split(line: str, separator: str) -> list[str]:
    """Return the fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    if '"' not in line:
        return line.rstrip("\r\n").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _data_layout(texts: list[str], separator: str) -> Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line."""
    leads: list[tuple[str, ...]] = [("date",)]
    if len(texts) > 1 and not is_number(texts[1], separator):
        leads = [("date", "ticker"), ("ticker", "date")]
    for lead in leads:
        fields = {role: place for place, role in enumerate((*lead, *VALUES)[: len(texts)])}
        if "close" not in fields or parse_day(texts[fields["date"]], either_order=True) is None:
            continue
        if all(is_number(texts[fields[role]], separator) for role in PRICES):
            return Layout(fields, len(texts))
    return None


def read_csv(
    path: Path, layout: CsvLayout, file_ticker: str, tickers: dict[str, int], dropped: Counter[str]
) -> tuple[pd.DataFrame, str | None]:
    """Return a file's rows, not yet checked, and one date of an order that nothing in the file settles.

    Columns are `day` since 1970-01-01, `ticker` as the code that `tickers` has for its name (`file_ticker` where the
    file has none), prices, volume, and what else of `adjusted`, `split` and `dividend` there is.
    """
    days: dict[str, int] = {}
    blocks: list[pd.DataFrame] = []
    with _open(path) as lines:
        before = sum(bool(line.strip()) for line in islice(lines, layout.skip)) - layout.header_lines
        dropped["line before the first bar"] += before
        rows, block_rows = _fields(lines, layout, dropped), max(1, _BLOCK_CELLS // layout.columns.width)
        while block := list(islice(rows, block_rows)):
            if layout.columns.panel:
                blocks.append(_panel_block(block, layout, days, tickers))
            else:
                blocks.append(_long_block(block, layout, file_ticker, days, tickers))
    if not blocks:
        raise UnusableFileError("no rows")
    table = pd.concat(blocks, ignore_index=True)
    day_of, unsettled = resolve_days(list(days))
    table["day"] = day_of[table["day"]]
    return table, unsettled


def _fields(lines: Iterable[str], layout: CsvLayout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row, counting lines that cannot be one."""
    width, optional = layout.columns.width, {"volume", *EVENTS}
    needed = 1 + max(place for role, place in layout.columns.fields.items() if role not in optional)
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
            yield fields + [""] * (width - len(fields))


def _long_block(
    rows: list[list[str]], layout: CsvLayout, file_ticker: str, days: dict[str, int], tickers: dict[str, int]
) -> pd.DataFrame:
    """Return rows of text as numbers; for now a day is the position of its text in `days`."""
    fields = layout.columns.fields
    codes = {
        "day": _codes((row[fields["date"]] for row in rows), days),
        "ticker": _codes((row[fields["ticker"]] if "ticker" in fields else file_ticker for row in rows), tickers),
    }
    return pd.DataFrame(codes | _values(rows, fields, layout.separator))


def _panel_block(
    rows: list[list[str]], layout: CsvLayout, days: dict[str, int], tickers: dict[str, int]
) -> pd.DataFrame:
    """Return rows of text as numbers, one a ticker; one without a close did not trade and is left out."""
    day = _codes((row[0] for row in rows), days)
    parts = []
    for ticker, fields in layout.columns.panel.items():
        close = fields["close"]
        traded = [place for place, row in enumerate(rows) if row[close].strip().casefold() not in BLANKS]
        values = _values([rows[place] for place in traded], fields, layout.separator)
        parts.append((tickers.setdefault(ticker, len(tickers)), day[traded], values))
    return joined(parts)


def _values(rows: list[list[str]], fields: dict[str, int], separator: str) -> dict[str, Float64Array]:
    found = {
        role: numbers([row[place] for row in rows], separator)
        for role, place in fields.items()
        if role not in ("date", "ticker")
    }
    return with_all_prices(found)


def _codes(texts: Iterable[str], known: dict[str, int]) -> Int32Array:
    return np.array([known.setdefault(text.strip(), len(known)) for text in texts], dtype=np.int32)
