"""CSV files of daily bars, one per ticker or one long file, to one parquet that the loader accepts."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from data.csv.text import EPOCH, NO_DAY, Float64Array, Int32Array, is_number, numbers, parse_day, resolve_days
from utils.errors import DataError

SUFFIXES = (".csv", ".txt", ".tsv")
PRICES = ("open", "high", "low", "close")
VALUES = (*PRICES, "volume")

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


@dataclass(frozen=True)
class PrepareSummary:
    """What was read, kept and dropped, and why."""

    target: Path
    files_read: int
    skipped: tuple[tuple[str, str], ...]
    """(file, reason) of each file that gave no rows."""
    rows_kept: int
    dropped: dict[str, int]
    """Rows dropped, by reason."""
    tickers: int
    first_date: date
    last_date: date
    notes: tuple[str, ...]
    """What was assumed where a file did not say."""

    def lines(self) -> list[str]:
        """Return the summary as lines to print."""
        skipped = [f"  skipped {name}: {reason}" for name, reason in self.skipped]
        return [
            f"Wrote {self.target}: {self.tickers} tickers, {self.first_date} to {self.last_date}",
            f"Files: {self.files_read} read, {len(self.skipped)} skipped",
            *_shortened(skipped),
            f"Rows: {self.rows_kept} kept, {sum(self.dropped.values())} dropped",
            *[f"  dropped {rows}: {reason}" for reason, rows in sorted(self.dropped.items())],
            *_shortened([f"Note: {note}" for note in self.notes]),
        ]


@dataclass
class _Tally:
    """What is found on the way; `tickers` maps each name to its code."""

    dropped: Counter[str] = field(default_factory=Counter)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tickers: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Layout:
    """Where a file keeps what: the field of each role, the fields of a row, and the lines before the first row."""

    separator: str
    fields: dict[str, int]
    width: int
    skip: int
    header: bool


@dataclass(frozen=True)
class _Rows:
    """Rows as arrays: `day` (rows,) since 1970-01-01, `ticker` (rows,) codes, `values` (5, rows) as in `VALUES`."""

    day: Int32Array
    ticker: Int32Array
    values: Float64Array

    def select(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> _Rows:
        return _Rows(self.day[rows], self.ticker[rows], self.values[:, rows])


class _UnusableFileError(Exception):
    """A file that gives no rows; the message is the reason."""


def prepare(source: Path, target: Path) -> PrepareSummary:
    """Turn a folder of CSV files, or one long CSV file, into the parquet `target`, replaced in one step.

    Columns are known by their usual names; a file without a header has date, open, high, low, close and perhaps volume
    in this order. The ticker is in its own column, else it is the file's name. With an adjusted close, all prices are
    scaled to it. Of several rows for one date the last is kept. Rows without a date or with a price that is missing,
    infinite or not positive are dropped. Raises `DataError` if nothing usable is found or the file cannot be written.
    """
    files = _csv_files(source)
    tally = _Tally()
    layouts = _layouts(files, source, tally)
    parts: list[_Rows] = []
    for path, layout in tqdm(layouts.items(), desc="Reading files", unit="file"):
        try:
            parts.append(_read_file(path, layout, tally))
        except (_UnusableFileError, OSError) as reason:
            tally.skipped.append((_shown(path, source), str(reason)))
    if not parts:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in tally.skipped[:3])
        raise DataError(f"expected CSV files with daily bars in {source}, got none that can be used ({reasons})")
    rows, tickers = _merge(parts, tally)
    _write(rows, tickers, target)
    return PrepareSummary(
        target=target,
        files_read=len(parts),
        skipped=tuple(tally.skipped),
        rows_kept=len(rows.day),
        dropped={reason: count for reason, count in tally.dropped.items() if count},
        tickers=len(tickers),
        first_date=date.fromordinal(EPOCH + int(rows.day.min())),
        last_date=date.fromordinal(EPOCH + int(rows.day.max())),
        notes=tuple(tally.notes),
    )


def _shortened(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - _LISTED
    return [*lines[:_LISTED], *([f"  and {rest} more"] if rest > 0 else [])]


def _shown(path: Path, source: Path) -> str:
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


def _layouts(files: Sequence[Path], source: Path, tally: _Tally) -> dict[Path, _Layout]:
    """Return each usable file's layout; one without a header and with extra fields borrows a neighbour's header."""
    found: dict[Path, _Layout] = {}
    for path in files:
        try:
            found[path] = _find_layout(path)
        except (_UnusableFileError, OSError) as reason:
            tally.skipped.append((_shown(path, source), str(reason)))
    named = {layout.width: layout for layout in found.values() if layout.header}
    for path, layout in found.items():
        if layout.header:
            continue
        tally.notes.append(f"{_shown(path, source)} has no header: columns taken by position")
        if layout.width > len(layout.fields) and layout.width in named:
            found[path] = _Layout(layout.separator, named[layout.width].fields, layout.width, layout.skip, False)
    return found


def _find_layout(path: Path) -> _Layout:
    """Find the header, or the first row where there is none, in the file's first lines."""
    blank = True
    with _open(path) as lines:
        for number, line in enumerate(islice(lines, _HEAD_LINES)):
            if not line.strip():
                continue
            blank = False
            layout = _header_layout(line, number) or _data_layout(line, number)
            if layout is not None:
                return layout
    raise _UnusableFileError("empty file" if blank else f"no header and no bar in the first {_HEAD_LINES} lines")


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
    return path.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace")


def _separator(line: str) -> str:
    return max("\t;|,", key=line.count)


def _split(line: str, separator: str) -> list[str]:
    """Fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    if '"' not in line:
        return line.rstrip("\r\n").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []


def _header_layout(line: str, number: int) -> _Layout | None:
    """Return the layout of a header line, or None for another line."""
    separator = _separator(line)
    titles = [re.sub(r"[^a-z0-9]", "", title.casefold()) for title in _split(line, separator)]
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
        raise _UnusableFileError(f"no column for {', '.join(missing)} in the header '{line.strip()[:80]}'")
    return _Layout(separator, fields, len(titles), number + 1, header=True)


def _data_layout(line: str, number: int) -> _Layout | None:
    """Return the layout by position of a line that holds a bar, or None for another line."""
    separator = _separator(line)
    texts = [text.strip() for text in _split(line, separator)]
    leads: list[tuple[str, ...]] = [("date",)]
    if len(texts) > 1 and not is_number(texts[1], separator):
        leads = [("date", "ticker"), ("ticker", "date")]
    for lead in leads:
        roles = (*lead, *VALUES)[: len(texts)]
        fields = {role: place for place, role in enumerate(roles)}
        if "close" not in fields or parse_day(texts[fields["date"]], either_order=True) is None:
            continue
        if all(is_number(texts[fields[role]], separator) for role in PRICES):
            return _Layout(separator, fields, len(texts), number, header=False)
    return None


def _read_file(path: Path, layout: _Layout, tally: _Tally) -> _Rows:
    """Read one file's usable rows in blocks, so that its text is never in memory as a whole."""
    days: dict[str, int] = {}
    blocks: list[_Rows] = []
    with _open(path) as lines:
        dropped = sum(bool(line.strip()) for line in islice(lines, layout.skip)) - layout.header
        tally.dropped["line before the first bar"] += dropped
        rows = _fields(lines, layout, tally.dropped)
        while block := list(islice(rows, _BLOCK_ROWS)):
            blocks.append(_block(block, layout, path.stem, days, tally.tickers))
    if not blocks:
        raise _UnusableFileError("no rows")
    codes = np.concatenate([block.day for block in blocks])
    tickers = np.concatenate([block.ticker for block in blocks])
    values = np.concatenate([block.values for block in blocks], axis=1)
    day_of, unsettled = resolve_days(list(days))
    if unsettled is not None:
        tally.notes.append(
            f"{path.name}: dates like {unsettled} read as month/day/year; nothing in the file settles it"
        )
    return _usable(_Rows(day_of[codes], tickers, values), "ticker" in layout.fields, tally)


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
) -> _Rows:
    """Rows of text as arrays; for now a day is the position of its text in `days`."""

    def texts(role: str) -> list[str]:
        place = layout.fields[role]
        return [row[place] for row in rows]

    names = texts("ticker") if "ticker" in layout.fields else [file_ticker] * len(rows)
    values = np.full((len(VALUES), len(rows)), np.nan)
    for place, role in enumerate(VALUES):
        if role in layout.fields:
            values[place] = numbers(texts(role), layout.separator)
    if "adjusted" in layout.fields:
        values[: len(PRICES)] = _adjusted(values[: len(PRICES)], numbers(texts("adjusted"), layout.separator))
    return _Rows(_codes(texts("date"), days), _codes(names, tickers), values)


def _adjusted(prices: Float64Array, adjusted: Float64Array) -> Float64Array:
    """Prices (4, rows) scaled to the adjusted close; a price equal to the close stays equal to it."""
    close = prices[PRICES.index("close")]
    with np.errstate(all="ignore"):  # a close of zero gives no number, and the row is dropped
        return np.where(prices == close, adjusted, prices * (adjusted / close))


def _codes(texts: Iterable[str], known: dict[str, int]) -> Int32Array:
    return np.array([known.setdefault(text.strip(), len(known)) for text in texts], dtype=np.int32)


def _usable(rows: _Rows, has_ticker: bool, tally: _Tally) -> _Rows:
    """Rows with a date, a ticker and four prices; the others are counted by the first reason that holds."""
    prices = rows.values[: len(PRICES)]
    faults = {
        "date not understood": rows.day == NO_DAY,
        "no ticker": rows.ticker == tally.tickers.get("", -1),
        "price missing or not a number": np.isnan(prices).any(axis=0),
        "price infinite or not positive": ~((prices > 0) & np.isfinite(prices)).all(axis=0),
    }
    good = np.ones(len(rows.day), dtype=np.bool_)
    for reason, fault in faults.items():
        tally.dropped[reason] += int((good & fault).sum())
        good &= ~fault
    rows = rows.select(good)
    if not good.any():
        raise _UnusableFileError("no row with a date and four positive prices")
    if not has_ticker and 3 * len(np.unique(rows.day)) < len(rows.day):
        raise _UnusableFileError("many rows for one date: expected daily bars, or a column of tickers")
    return rows


def _merge(parts: Sequence[_Rows], tally: _Tally) -> tuple[_Rows, list[str]]:
    """Rows of all files sorted by (ticker, day), the last of each kept, and the sorted tickers that codes point to."""
    day = np.concatenate([part.day for part in parts])
    code = np.concatenate([part.ticker for part in parts])
    values = np.concatenate([part.values for part in parts], axis=1)
    names = np.array(list(tally.tickers), dtype=object)
    tickers = sorted(names[np.unique(code)])
    rank = np.full(len(names), -1, dtype=np.int32)
    rank[[tally.tickers[name] for name in tickers]] = np.arange(len(tickers), dtype=np.int32)
    rows = _Rows(day, rank[code], values)
    order = np.lexsort((rows.day, rows.ticker))  # stable: rows of one date stay in the order they were read
    rows = rows.select(order)
    changes = (np.diff(rows.ticker) != 0) | (np.diff(rows.day) != 0)
    last = np.append(changes, True)
    kept = rows.select(last)
    if len(kept.day) < len(rows.day):
        group = np.concatenate([[0], np.cumsum(changes)])
        same = (rows.values == kept.values[:, group]) | (np.isnan(rows.values) & np.isnan(kept.values[:, group]))
        identical = int((same.all(axis=0) & ~last).sum())
        tally.dropped["duplicate, identical to the row kept"] = identical
        tally.dropped["duplicate date, a later row was kept"] = int((~last).sum()) - identical
    return kept, tickers


def _write(rows: _Rows, tickers: Sequence[str], target: Path) -> None:
    """Write the parquet beside its place and move it there, so that no half file is ever seen under its name."""
    names = pa.DictionaryArray.from_arrays(pa.array(rows.ticker), pa.array(tickers, pa.string()))
    table = pa.table(
        {"date": pa.array(rows.day).cast(pa.date32()), "ticker": names} | dict(zip(VALUES, rows.values, strict=True))
    )
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise DataError(f"expected to write {target}, got '{error}'; name a file in a folder you may write") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
