"""CSV files of daily bars, one per ticker or one long file, to one parquet that the loader accepts."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data.csv.text import EPOCH, NO_DAY, Int32Array, is_number, numbers, parse_day, resolve_days
from utils.errors import DataError

SUFFIXES = (".csv", ".txt", ".tsv")
PRICES = ["open", "high", "low", "close"]
VALUES = [*PRICES, "volume"]

# Column names by what they hold, lower case, letters and digits only; the first that a header has is taken.
_NAMES = {
    "date": ("date", "datetime", "timestamp", "tradedate", "tradingdate", "dtyyyymmdd", "day", "time"),
    "ticker": ("ticker", "symbol", "tic", "stock", "name"),
    "open": ("open", "openprice", "1open"),
    "high": ("high", "highprice", "2high"),
    "low": ("low", "lowprice", "3low"),
    "close": ("close", "closeprice", "closelast", "4close", "last", "price"),
    "adjusted": ("adjclose", "adjustedclose", "adjcloseprice", "5adjustedclose"),
    "volume": ("volume", "vol", "5volume", "6volume"),
}
_HEAD_LINES = 50
_BLOCK_ROWS = 100_000
_LISTED = 20


@dataclass
class PrepareSummary:
    """Counts of what was read, kept and dropped, and why; filled on the way."""

    target: Path
    files_read: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(file, reason) of each file that gave no rows."""
    rows_kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows dropped, by reason."""
    tickers: int = 0
    first_date: date = date.min
    last_date: date = date.min
    notes: list[str] = field(default_factory=list)
    """Assumptions made where a file did not say."""

    def lines(self) -> list[str]:
        """Return the summary as lines to print."""
        return [
            f"Wrote {self.target}: {self.tickers} tickers, {self.first_date} to {self.last_date}",
            f"Files: {self.files_read} read, {len(self.skipped)} skipped",
            *_shortened([f"  skipped {name}: {reason}" for name, reason in self.skipped]),
            f"Rows: {self.rows_kept} kept, {self.dropped.total()} dropped",
            *[f"  dropped {rows}: {reason}" for reason, rows in sorted(self.dropped.items())],
            *_shortened([f"Note: {note}" for note in self.notes]),
        ]


@dataclass(frozen=True)
class _Layout:
    """Layout of a file: the field of each role, the fields of a row, and the lines before the first row."""

    separator: str
    fields: dict[str, int]
    width: int
    skip: int
    header: bool


class _UnusableFileError(Exception):
    """A file that gives no rows; the message is the reason."""


def prepare(source: Path, target: Path) -> PrepareSummary:
    """Turn a folder of CSV files, or one long CSV file, into the parquet `target`, replaced in one step.

    Columns are known by their usual names; a file without a header has date, open, high, low, close and perhaps volume
    in this order. The ticker is in its own column, else it is the file's name. With an adjusted close, all prices are
    scaled to it, and volume the other way, so that price x volume stays the money traded. Of several rows for one date
    the last is kept. Rows without a date or with a price that is missing, infinite or not positive are dropped. Raises
    `DataError` if nothing usable is found or the file cannot be written.
    """
    summary = PrepareSummary(target)
    tickers: dict[str, int] = {}
    parts: list[pd.DataFrame] = []
    layouts = _layouts(source, summary)
    for path, layout in tqdm(layouts.items(), desc="Reading files", unit="file", leave=False, disable=None, delay=1.0):
        try:
            parts.append(_read_file(path, layout, tickers, summary))
        except (_UnusableFileError, OSError) as reason:
            summary.skipped.append((_relative(path, source), str(reason)))
    if not parts:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in summary.skipped[:3])
        raise DataError(f"expected CSV files with daily bars in {source}, got none that can be used ({reasons})")
    rows = _merge(parts, list(tickers), summary.dropped)
    _write(rows, target)
    summary.files_read, summary.rows_kept = len(parts), len(rows)
    summary.dropped = +summary.dropped  # without the reasons that no row had
    summary.tickers = len(rows["ticker"].cat.categories)
    summary.first_date, summary.last_date = (
        date.fromordinal(EPOCH + int(day)) for day in (rows["day"].min(), rows["day"].max())
    )
    return summary


def _shortened(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - _LISTED
    return [*lines[:_LISTED], *([f"  and {rest} more"] if rest > 0 else [])]


def _relative(path: Path, source: Path) -> str:
    return str(path.relative_to(source)) if source.is_dir() else path.name


def _csv_files(source: Path) -> list[Path]:
    if not source.exists():
        raise DataError(f"expected a CSV file or a folder of them, but {source} does not exist; check the path")
    if not source.is_dir():
        return [source]
    files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not files:
        raise DataError(f"expected files that end in {', '.join(SUFFIXES)} in the folder {source}, got none")
    return files


def _layouts(source: Path, summary: PrepareSummary) -> dict[Path, _Layout]:
    """Return each usable file's layout; one without a header and with extra fields borrows a neighbour's header."""
    found: dict[Path, _Layout] = {}
    for path in _csv_files(source):
        try:
            found[path] = _find_layout(path)
        except (_UnusableFileError, OSError) as reason:
            summary.skipped.append((_relative(path, source), str(reason)))
    named = {layout.width: layout for layout in found.values() if layout.header}
    for path, layout in found.items():
        if not layout.header:
            summary.notes.append(f"{_relative(path, source)} has no header: columns taken by position")
            if layout.width > len(layout.fields) and layout.width in named:
                found[path] = replace(layout, fields=named[layout.width].fields)
    return found


def _find_layout(path: Path) -> _Layout:
    """Find the header, or the first row where there is none, in the file's first lines."""
    is_blank = True
    with _open(path) as lines:
        for number, line in enumerate(islice(lines, _HEAD_LINES)):
            if line.strip():
                is_blank = False
                separator = max("\t;|,", key=line.count)
                texts = [text.strip() for text in _split(line, separator)]
                layout = _header_layout(texts, separator, number) or _data_layout(texts, separator, number)
                if layout is not None:
                    return layout
    raise _UnusableFileError("empty file" if is_blank else f"no header and no bar in the first {_HEAD_LINES} lines")


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


def _header_layout(texts: list[str], separator: str, number: int) -> _Layout | None:
    """Return the layout of a header line, or None for another line."""
    titles = [re.sub(r"[^a-z0-9]", "", title.casefold()) for title in texts]
    fields = {
        role: titles.index(name)
        for role, names in _NAMES.items()
        if (name := next((name for name in names if name in titles), None)) is not None
    }
    prices = sum(role in fields for role in PRICES)
    if prices == 0 or ("date" not in fields and prices < len(PRICES)):
        return None
    if 0 not in fields.values():
        fields.setdefault("date", 0)  # an index column, whose title says little
    missing = [role for role in ("date", *PRICES) if role not in fields]
    if missing:
        raise _UnusableFileError(f"no column for {', '.join(missing)} in the header '{separator.join(texts)[:80]}'")
    return _Layout(separator, fields, len(titles), number + 1, header=True)


def _data_layout(texts: list[str], separator: str, number: int) -> _Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line."""
    leads: list[tuple[str, ...]] = [("date",)]
    if len(texts) > 1 and not is_number(texts[1], separator):
        leads = [("date", "ticker"), ("ticker", "date")]
    for lead in leads:
        fields = {role: place for place, role in enumerate((*lead, *VALUES)[: len(texts)])}
        if "close" not in fields or parse_day(texts[fields["date"]], either_order=True) is None:
            continue
        if all(is_number(texts[fields[role]], separator) for role in PRICES):
            return _Layout(separator, fields, len(texts), number, header=False)
    return None


def _read_file(path: Path, layout: _Layout, tickers: dict[str, int], summary: PrepareSummary) -> pd.DataFrame:
    """Read one file's usable rows in blocks, so that its text is never in memory as a whole.

    Columns are `day` since 1970-01-01, `ticker` as the code that `tickers` has for its name, prices and volume.
    """
    days: dict[str, int] = {}
    blocks: list[pd.DataFrame] = []
    with _open(path) as lines:
        before = sum(bool(line.strip()) for line in islice(lines, layout.skip)) - layout.header
        summary.dropped["line before the first bar"] += before
        rows = _fields(lines, layout, summary.dropped)
        while block := list(islice(rows, _BLOCK_ROWS)):
            blocks.append(_block(block, layout, path.stem, days, tickers))
    if not blocks:
        raise _UnusableFileError("no rows")
    table = pd.concat(blocks, ignore_index=True)
    day_of, unsettled = resolve_days(list(days))
    if unsettled is not None:
        summary.notes.append(
            f"{path.name}: dates like {unsettled} read as month/day/year; nothing in the file settles it"
        )
    table["day"] = day_of[table["day"]]
    return _usable(table, layout, tickers.get("", -1), summary.dropped)


def _fields(lines: Iterable[str], layout: _Layout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row, counting lines that cannot be one."""
    needed = 1 + max(place for role, place in layout.fields.items() if role != "volume")
    for line in lines:
        fields = _split(line, layout.separator)
        if len(fields) == layout.width:
            yield fields
        elif not line.strip():
            continue
        elif len(fields) < needed:
            dropped["too few fields"] += 1
        elif any(text.strip() for text in fields[layout.width :]):
            dropped["too many fields"] += 1
        else:
            yield fields + [""] * (layout.width - len(fields))


def _block(
    rows: list[list[str]], layout: _Layout, file_ticker: str, days: dict[str, int], tickers: dict[str, int]
) -> pd.DataFrame:
    """Return rows of text as numbers; for now a day is the position of its text in `days`."""
    texts = {role: [row[place] for row in rows] for role, place in layout.fields.items()}
    values = {role: numbers(texts[role], layout.separator) if role in texts else np.nan for role in VALUES}
    if "adjusted" in texts:
        adjusted, close = numbers(texts["adjusted"], layout.separator), values["close"]
        with np.errstate(all="ignore"):  # a close of zero gives no number, and the row is dropped
            # A price equal to the close stays equal to it.
            scaled = {
                role: np.where(values[role] == close, adjusted, values[role] * (adjusted / close)) for role in PRICES
            }
            scaled["volume"] = values["volume"] * (close / adjusted)
        values |= scaled
    codes = {
        "day": _codes(texts["date"], days),
        "ticker": _codes(texts.get("ticker", [file_ticker] * len(rows)), tickers),
    }
    return pd.DataFrame(codes | values)


def _codes(texts: Iterable[str], known: dict[str, int]) -> Int32Array:
    return np.array([known.setdefault(text.strip(), len(known)) for text in texts], dtype=np.int32)


def _usable(rows: pd.DataFrame, layout: _Layout, no_ticker: int, dropped: Counter[str]) -> pd.DataFrame:
    """Return rows with a date, a ticker and four prices; the others are counted by the first reason that holds."""
    prices = rows[PRICES]
    faults = {
        "date not understood": rows["day"] == NO_DAY,
        "no ticker": rows["ticker"] == no_ticker,
        "price missing or not a number": prices.isna().any(axis=1),
        "price infinite or not positive": ~((prices > 0) & (prices < np.inf)).all(axis=1),
    }
    for reason, fault in faults.items():
        dropped[reason] += int(fault[rows.index].sum())
        rows = rows[~fault[rows.index]]
    if rows.empty:
        raise _UnusableFileError("no row with a date and four positive prices")
    if "ticker" not in layout.fields and 3 * rows["day"].nunique() < len(rows):
        raise _UnusableFileError("many rows for one date: expected daily bars, or a column of tickers")
    return rows


def _merge(parts: Sequence[pd.DataFrame], names: Sequence[str], dropped: Counter[str]) -> pd.DataFrame:
    """Return rows of all files sorted by ticker, as a category, and day, the last of each kept."""
    rows = pd.concat(parts, ignore_index=True)
    tickers = pd.Categorical.from_codes(rows["ticker"], names).remove_unused_categories()
    rows["ticker"] = tickers.reorder_categories(sorted(tickers.categories))
    rows = rows.iloc[np.lexsort((rows["day"], rows["ticker"].cat.codes))]  # rows of one date stay in the order read
    is_repeated = rows.duplicated(["ticker", "day"], keep="last")
    kept = rows[~is_repeated]
    identical = len(rows[is_repeated].merge(kept))
    dropped["duplicate, identical to the row kept"] = identical
    dropped["duplicate date, a later row was kept"] = int(is_repeated.sum()) - identical
    return kept


def _write(rows: pd.DataFrame, target: Path) -> None:
    """Write the parquet beside its place and move it there, so that no half file is ever seen under its name."""
    columns = {"date": pa.array(rows["day"].to_numpy()).cast(pa.date32()), "ticker": pa.array(rows["ticker"])}
    columns |= {role: pa.array(rows[role].to_numpy()) for role in VALUES}
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            pq.write_table(pa.table(columns), file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise DataError(f"expected to write {target}, got '{error}'; name a file in a folder you may write") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
