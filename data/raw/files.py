"""Cells of one file of bars: CSV, parquet, feather or a spreadsheet, packed or not, with the layout that it has."""

import bz2
import codecs
import csv
import gzip
import io
import lzma
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import PurePath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from data.raw.choices import Choices
from data.raw.layout import BLANKS, EVENTS, PRICES, Layout, UnclearFileError, UnusableFileError, layout_of
from data.raw.text import are_days, are_numbers
from utils.errors import first_line

_FRAMES: dict[str, Callable[..., pd.DataFrame]] = {
    ".parquet": pd.read_parquet, ".pq": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather,
    ".orc": pd.read_orc, ".xlsx": pd.read_excel, ".xls": pd.read_excel,
}  # fmt: skip
_UNPACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress,
    ".zst": lambda packed: pa.CompressedInputStream(pa.py_buffer(packed), "zstd").read(),
}  # fmt: skip
SUFFIXES = (".csv", ".txt", ".tsv", *_FRAMES)
PACKERS = (*_UNPACK,)
_HEAD_LINES, _HEAD_BYTES = 50, 1 << 16
_BLOCK_CELLS = 1_000_000
"""Fields of text in memory at once, but for those of the columns that are used."""
_NAME_THEM = "say which is which: --columns date=TITLE,open=TITLE,high=TITLE,low=TITLE,close=TITLE"
NO_BAR, NO_PRICE = "line that is no bar", "no price"
_ENCODINGS = ("cp1252", "cp1250", "cp1251", "gb18030", "cp932", "cp949")
"""Encodings of files that are no Unicode; the first is taken in which the titles are known."""


@dataclass
class Table:
    """Cells of one file in the notation of its vendor."""

    path: Any
    """Its path, or its place in a zip file."""
    layout: Layout
    cells: pd.DataFrame
    """A column per place of the layout: texts, or numbers and times of parquet."""
    first_line: int = 1
    """Of the rows in the file."""
    orders: list[str] = field(default_factory=list)
    """Possible orders of its dates."""
    signs: dict[int, str] = field(default_factory=dict)
    """Decimal signs by column, as `decimal_sign` finds them."""

    @property
    def is_settled(self) -> bool:
        """Nothing of its notation is left open."""
        return len(self.orders) == 1 and not any(sign.startswith("?") for sign in self.signs.values())

    @property
    def family(self) -> tuple[str, ...]:
        """Files of one vendor have the same."""
        return (*(() if self.layout.panel else self.layout.titles), self.layout.separator)

    def texts(self, role: str) -> pd.Series:
        """Return a column as text."""
        return texts_of(self.cells[self.layout.fields[role]])


def texts_of(column: pd.Series) -> pd.Series:
    """Return a column as text without spaces around it, "" where it is empty."""
    return column.astype("str").fillna("").str.strip()


def kind_of(name: str) -> str:
    """Return the suffix of a file's name in lower case, without that of a packer."""
    *_, before, last = ("", "", *(suffix.lower() for suffix in PurePath(name).suffixes))
    return before if last in PACKERS else last


def read_table(path: Any, choices: Choices, dropped: Counter[str], needed: Sequence[str] = PRICES) -> Table:
    """Return a file's cells; lines that are no rows are counted in `dropped`.

    Raises `UnusableFileError` for a file without bars, and `UnclearFileError` where a person must say what is meant.
    """
    suffix = PurePath(path.name).suffix.lower()
    try:
        with path.open("rb") as file:
            content = io.BytesIO(_UNPACK[suffix](file.read())) if suffix in _UNPACK else file
            is_parquet = content.read(4) == b"PAR1"
            content.seek(0)
            if read := pd.read_parquet if is_parquet else _FRAMES.get(kind_of(path.name)):
                table = _frame_table(path, _frame(read, content), choices, needed)
            else:
                table = _csv_table(path, content, choices, dropped, needed)
    except (EOFError, OSError, lzma.LZMAError, zlib.error, pa.ArrowException, zipfile.BadZipFile) as error:
        raise UnusableFileError(f"no readable file ({first_line(error)})") from None
    if table.cells.empty:
        raise UnusableFileError("no rows")
    if (kept := choices.kept) and kept[0] in table.layout.titles:
        column = texts_of(table.cells[table.layout.titles.index(kept[0])])
        table.cells = table.cells[column == kept[1]]
        if table.cells.empty:
            raise UnusableFileError(f"no rows with {'='.join(kept)}")
    _require_known_texts(table, choices)
    return table


def _require_known_texts(table: Table, choices: Choices) -> None:
    """Raise `UnclearFileError` where a file without a column of tickers has texts that may be tickers."""
    layout = table.layout
    known = {*layout.fields.values(), *(place for _, place in choices.places(layout.titles))}
    if layout.panel or "ticker" in layout.fields or not layout.headers:
        return
    for place in sorted({*range(len(layout.titles))} - known):
        if pd.api.types.is_string_dtype(column := table.cells[place]):
            texts = [text for text in texts_of(column).unique() if text.casefold() not in BLANKS]
            plain, title = [text.rstrip("%KMB") for text in texts[:_HEAD_LINES]], layout.titles[place]
            if len(texts) > 1 and not any(are_numbers(plain) + are_days(plain)) and ":" not in texts[0]:
                raise UnclearFileError(
                    f"no column of tickers, but {title!r} with {texts[0][:20]!r} and {texts[1][:20]!r}; say what it "
                    f"is: --columns ticker={title}, or --columns ignore={title}"
                )


def _csv_table(path: Any, content: Any, choices: Choices, dropped: Counter[str], needed: Sequence[str]) -> Table:
    """Read text in the first encoding in which its titles are known; count lines that cannot be a row."""
    reason: Exception | None = None
    for encoding in _encodings(content.read(_HEAD_BYTES)):
        content.seek(0)
        file = io.TextIOWrapper(content, encoding, errors="replace")
        lines = (line for line in file if line.strip())
        head = list(islice(lines, _HEAD_LINES))
        try:
            before, layout = _find_layout(head, choices, needed)
            break
        except (UnclearFileError, UnusableFileError) as error:
            reason = reason or error
            file.detach()
    else:
        raise reason or UnusableFileError("empty file")
    dropped["line before the first bar"] += before
    rows = _fields(chain(head[before + layout.headers :], lines), layout, dropped)
    size = max(1, _BLOCK_CELLS // len(layout.titles))
    blocks = [pd.DataFrame(block, dtype="str") for block in iter(lambda: list(islice(rows, size)), [])]
    cells = pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame()
    return Table(path, layout, cells, before + layout.headers + 1)


def _encodings(head: bytes) -> Sequence[str]:
    """Return the encodings in which a file that begins with these bytes may be written, the likely ones first."""
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return ["utf-16"]
    try:
        codecs.getincrementaldecoder("utf-8-sig")().decode(head)
    except UnicodeDecodeError:
        return _ENCODINGS
    return ["utf-8-sig"]


def _find_layout(head: list[str], choices: Choices, needed: Sequence[str]) -> tuple[int, Layout]:
    """Return the number of lines before the header, or before the first row where there is none, and `layout_of`."""
    above: list[str] = []
    for before, line in enumerate(head):
        separator = next((one for one in "\t;|" if one in line), ",")
        rows = [[text.strip() for text in split_line(line, separator)] for line in head[before : before + 2]]
        if layout := layout_of(rows, separator, choices, needed):
            if not layout.headers and len(above) == len(rows[0]) and not any(are_numbers(above) + are_days(above)):
                raise UnclearFileError(f"unknown titles {separator.join(above)[:80]!r}; {_NAME_THEM}")
            return before, layout
        above = rows[0]
    raise UnusableFileError(f"no header and no bar in the first {_HEAD_LINES} lines" if head else "empty file")


def split_line(line: str, separator: str) -> list[str]:
    """Return the fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    if '"' not in line:
        return line.rstrip("\r\n").split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [""])
    except csv.Error:
        return [""]


def _fields(lines: Iterator[str], layout: Layout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row; volume and events may be missing at the end."""
    width, optional = len(layout.titles), {"volume", *EVENTS}
    places = {place for group in layout.panel.values() for place in group.values()} | {
        place for role, place in layout.fields.items() if role not in optional
    }
    for line in lines:
        fields = split_line(line, layout.separator)
        if len(fields) <= max(places) or any(text.strip() for text in fields[width:]):
            has_digits = any(map(str.isdigit, line))
            dropped["too few or too many fields" if has_digits else NO_BAR] += 1
        else:
            yield fields[:width] + [""] * (width - len(fields))


def _frame(read: Callable[[Any], pd.DataFrame], content: Any) -> pd.DataFrame:
    """Return the columns of a parquet file, a feather file or a spreadsheet, the index among them."""
    try:
        frame = read(content)
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, SyntaxError) as error:
        kind = read.__name__.removeprefix("read_")
        raise UnusableFileError(f"no readable {kind} file ({first_line(error)})") from None
    except ImportError as error:
        raise UnusableFileError(f"{first_line(error)} Or save it as CSV") from None
    if frame.index.names != [None] or not pd.api.types.is_integer_dtype(frame.index.dtype):
        frame = frame.reset_index()
    is_time = [pd.api.types.is_datetime64_any_dtype(kind) for kind in frame.dtypes]
    return frame.iloc[:, np.argsort(np.logical_not(is_time), kind="stable")]  # dates lead, as in a CSV file


def _frame_table(path: Any, frame: pd.DataFrame, choices: Choices, needed: Sequence[str]) -> Table:
    titles = [frame.columns.get_level_values(level).map(str).tolist() for level in range(frame.columns.nlevels)]
    rows = [*titles, *(list(map(str, row)) for row in frame[:1].itertuples(index=False))]
    layout = layout_of(rows, ",", choices, needed) if titles[0] else None
    if layout is None or not layout.headers:
        raise UnusableFileError(f"no columns of dates and prices among {', '.join(titles[0][:8])}")
    return Table(path, layout, frame.set_axis(range(frame.shape[1]), axis=1).reset_index(drop=True))
