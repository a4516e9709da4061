"""Cells of one file of bars, a CSV, parquet or feather file or a spreadsheet, with the layout that it has."""

import codecs
import csv
import io
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa

from data.prepare.layout import BLANKS, EVENTS, PRICES, Layout, UnclearFileError, UnusableFileError, layout_of
from data.prepare.text import are_days, are_numbers, lines_of
from utils.arrays import Float64Array
from utils.config.prepare import Choices
from utils.errors import first_line


def _read_excel(file: Any) -> dict[str, pd.DataFrame]:
    """Return the sheets of a workbook; NA is a ticker."""
    sheets: dict[str, pd.DataFrame] = pd.read_excel(file, sheet_name=None, keep_default_na=False, na_values=[""])
    return sheets


def _read_stream(file: IO[bytes]) -> pd.DataFrame:
    frame: pd.DataFrame = pa.ipc.open_stream(file).read_pandas()
    return frame


_FRAMES: dict[str, Callable[..., pd.DataFrame | dict[str, pd.DataFrame]]] = {
    ".parquet": pd.read_parquet, ".pq": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather,
    ".arrows": _read_stream, ".xlsx": _read_excel, ".xls": _read_excel,
}  # fmt: skip
_MAGIC = {b"PAR1": pd.read_parquet, b"ARROW1\0\0": pd.read_feather, b"\xff" * 4: _read_stream}
"""Readers by the first bytes of a file, which count more than its name."""
_TEXTS, _PACKERS = (".csv", ".txt", ".tsv"), {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_ZIP = ".zip"
SUPPORTED = f"{', '.join((*_TEXTS, *_FRAMES))}; text packed as {', '.join((*_PACKERS, _ZIP))}"
SUFFIXES = (*_TEXTS, *_FRAMES, _ZIP, *(text + packer for text in _TEXTS for packer in (*_PACKERS, _ZIP)))
_HEAD_LINES, _HEAD_BYTES = 50, 1 << 16
_BLOCK_CELLS = 1_000_000
"""Fields of text in memory at once, but for those of the columns that are used."""
_UNREADABLE = (
    pa.ArrowException, OSError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, ImportError, BadZipFile
)  # fmt: skip
"""What readers of damaged files raise."""
NO_BAR = "line that is no bar"
NO_TABLE = f"no header and no bar in the first {_HEAD_LINES} lines"


@dataclass
class Table:
    """Cells of one file in the notation of its vendor."""

    path: Path
    layout: Layout
    cells: list[str | Float64Array]
    """By place in the layout: a column's texts, a line for each row, or its numbers."""
    first_line: int = 1
    """Of the rows in the file."""
    orders: list[str] = field(default_factory=list)
    """Orders of day, month and year that its dates may have."""
    shifts: list[int] = field(default_factory=list)
    """By how many days the sessions of times late in the day may be later."""
    signs: dict[str, str] = field(default_factory=dict)
    """Decimal signs of `price` and `volume`, as `decimal_sign` finds them."""

    @property
    def is_settled(self) -> bool:
        """Nothing of its notation is left open."""
        is_dated = len(self.orders) == len(self.shifts) == 1
        return is_dated and not any(sign.startswith("?") for sign in self.signs.values())

    @property
    def family(self) -> tuple[str, ...]:
        """Files of one vendor have the same."""
        return (*(() if self.layout.panel else self.layout.titles), self.layout.separator)

    @property
    def clock(self) -> str:
        """The role of the column with times of a day."""
        return "time" if "time" in self.layout.fields else "date"

    def text(self, role: str) -> str:
        """Return a column's texts as lines."""
        cell = self.cells[self.layout.fields[role]]
        return cell if isinstance(cell, str) else "\n".join(f"{value:.17g}" for value in cell.tolist())


def read_table(path: Path, choices: Choices, dropped: Counter[str], needed: Sequence[str] = PRICES) -> Table:
    """Return a file's cells; lines that are no rows are counted in `dropped`.

    Raises `UnusableFileError` for a file without bars, and `UnclearFileError` where a person must say what is meant.
    """
    try:
        with path.open("rb") as raw:
            file = raw if raw.seekable() else io.BytesIO(raw.read())  # a pipe gives its bytes once
            start = file.read(8)
            file.seek(0)
            readers = [read for magic, read in _MAGIC.items() if start.startswith(magic)]
            if read := readers[0] if readers else _FRAMES.get(path.suffix.lower()):
                table = _frame_table(path, file, read, choices, needed)
            else:
                table = _csv_table(path, file, choices, dropped, needed)
    except (EOFError, OSError, BadZipFile, NotImplementedError, RuntimeError, pa.ArrowException) as error:
        raise UnusableFileError(f"no readable file ({first_line(error)})") from None
    if not len(table.cells[0]):
        raise UnusableFileError("no rows")
    if not (table.layout.panel or "ticker" in table.layout.fields) and table.layout.headers:
        _require_no_tickers(table)
    return table


def _require_no_tickers(table: Table) -> None:
    """Raise `UnclearFileError` where a column under an unknown title has texts that may be tickers."""
    for place, title in enumerate(table.layout.titles):
        if place in table.layout.fields.values() or not isinstance(cell := table.cells[place], str):
            continue
        texts = [text for text in dict.fromkeys(cell.split("\n")) if text.casefold() not in BLANKS][:_HEAD_LINES]
        plain = [text.rstrip("%KMB") for text in texts]
        if len(texts) > 1 and not any(are_numbers(plain) + are_days(plain)) and ":" not in texts[0]:
            raise UnclearFileError(
                f"no column of tickers, but {title!r} with {texts[0][:20]!r} and {texts[1][:20]!r}; say what it is: "
                f"--columns 'ticker={title}', or --columns 'ignore={title}'"
            )


def _csv_table(path: Path, file: IO[bytes], choices: Choices, dropped: Counter[str], needed: Sequence[str]) -> Table:
    """Read text, packed or not; count lines that cannot be a row."""
    packed = _unpacked(file, path)  # which would close the file where nothing held it
    head_bytes = packed.read(_HEAD_BYTES)
    if head_bytes.startswith((b"PK\3\4", b"\x1f\x8b", b"7z\xbc", b"\xfd7zXZ")):
        raise UnusableFileError("a packed file under the name of another kind; unpack it")
    try:
        encoding = "utf-16" if head_bytes[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        codecs.getincrementaldecoder(encoding)().decode(head_bytes)
    except UnicodeDecodeError:
        encoding = "cp1252"
    file.seek(0)
    with io.TextIOWrapper(_unpacked(file, path), encoding, errors="replace") as text:
        lines = (line for line in text if not line.isspace())
        head = list(islice(lines, _HEAD_LINES))
        before, layout = _find_layout(head, choices, needed)
        dropped["line before the first bar"] += before
        rows = _fields(chain(head[before + layout.headers :], lines), layout, dropped)
        size = max(1, _BLOCK_CELLS // len(layout.titles))
        blocks = [[*map(lines_of, zip(*block, strict=True))] for block in iter(lambda: list(islice(rows, size)), [])]
    cells = ["\n".join(column) for column in zip(*blocks, strict=True)]
    return Table(path, layout, [*cells] or [""], before + layout.headers + 1)


def _unpacked(file: IO[bytes], path: Path) -> IO[bytes]:
    """Return what is packed in a file. Raises `UnusableFileError` for an archive of several."""
    if path.suffix.lower() == _ZIP:
        archive = ZipFile(file)
        names = [one.filename for one in archive.infolist() if not one.is_dir()]
        if len(names) != 1:
            raise UnusableFileError(f"an archive of {len(names)} files; unpack it")
        return archive.open(names[0])
    packer = _PACKERS.get(path.suffix.lower())
    return file if packer is None else pa.CompressedInputStream(file, packer)


def _find_layout(head: list[str], choices: Choices, needed: Sequence[str]) -> tuple[int, Layout]:
    """Return the number of lines before the header, or before the first row where there is none, and `layout_of`."""
    above: list[str] = []
    for before, line in enumerate(head):
        separator = next((one for one in "\t;|" if one in line), ",")
        rows = [[text.strip() for text in split_line(line, separator)] for line in head[before : before + 2]]
        if layout := layout_of(rows, separator, choices, needed):
            if not layout.headers and len(above) == len(rows[0]) and not any(are_numbers(above) + are_days(above)):
                raise UnclearFileError(
                    f"unknown titles {separator.join(above)[:80]!r}; say which is which: --columns date=TITLE "
                    "open=TITLE high=TITLE low=TITLE close=TITLE"
                )
            return before, layout
        above = rows[0]
    raise UnusableFileError(
        f"{NO_TABLE}, which begin {head[0].strip()[:40]!r}; give text with titled columns" if head else "empty file"
    )


def split_line(line: str, separator: str) -> list[str]:
    """Return the fields of one line; a line is never joined with the next, so a stray quote spoils one row only."""
    line = line.rstrip("\r\n")  # which an unclosed quote would take into its field
    if '"' not in line:
        return line.split(separator)
    try:
        return next(csv.reader([line], delimiter=separator), [""])
    except csv.Error:
        return [""]


def _fields(lines: Iterator[str], layout: Layout, dropped: Counter[str]) -> Iterator[list[str]]:
    """Yield the fields of each row; volume and events may be missing at the end."""
    width, optional = len(layout.titles), {"volume", *EVENTS}
    needed = max(
        place
        for group in layout.panel.values() or [layout.fields]
        for role, place in group.items()
        if role not in optional
    )
    for line in lines:
        fields = split_line(line, layout.separator)
        if len(fields) == width and (fields[0] != layout.titles[0] or not layout.headers):
            yield fields
        elif fields[0] == layout.titles[0] and layout.headers:  # of files put one behind the other
            dropped[NO_BAR] += 1
        elif len(fields) <= needed or any(text.strip() for text in fields[width:]):
            is_cut = len(fields) > 1 and any(map(str.isdigit, line))  # a single field is a note
            dropped["too few or too many fields" if is_cut else NO_BAR] += 1
        else:
            yield fields[:width] + [""] * (width - len(fields))


def _frame_table(
    path: Path,
    file: IO[bytes],
    read: Callable[[Any], pd.DataFrame | dict[str, pd.DataFrame]],
    choices: Choices,
    needed: Sequence[str],
) -> Table:
    """Read a parquet file, a feather file or the one sheet of bars of a workbook, the index among the columns."""
    try:
        content = read(file)
    except _UNREADABLE as error:
        kind = read.__name__.lstrip("_").removeprefix("read_")
        raise UnusableFileError(f"no readable {kind} file ({first_line(error)})") from None
    if isinstance(content, pd.DataFrame):
        return _table_of_frame(path, content, choices, needed)
    tables, reasons = dict[str, Table](), list[Exception]()
    for name, frame in content.items():
        try:
            tables[name] = _table_of_frame(path, frame, choices, needed)
        except (UnusableFileError, UnclearFileError) as reason:  # notes, perhaps
            reasons.append(reason)
    if len(tables) > 1:
        raise UnclearFileError(f"{len(tables)} sheets of bars ({', '.join(tables)[:60]}); save each as a file")
    if not tables:
        raise reasons[0]
    return next(iter(tables.values()))


def _table_of_frame(path: Path, frame: pd.DataFrame, choices: Choices, needed: Sequence[str]) -> Table:
    if frame.index.names != [None] or not pd.api.types.is_integer_dtype(frame.index.dtype):
        frame = frame.reset_index()
    is_time = [pd.api.types.is_datetime64_any_dtype(kind) for kind in frame.dtypes]
    frame = frame.iloc[:, np.argsort(np.logical_not(is_time), kind="stable")]  # dates lead, as in a CSV file
    titles = [frame.columns.get_level_values(level).map(str).tolist() for level in range(frame.columns.nlevels)]
    rows = [*titles, *(list(map(str, row)) for row in frame[:1].itertuples(index=False))]
    layout = layout_of(rows, ",", choices, needed) if titles[0] else None
    if layout is None or not layout.headers:
        raise UnusableFileError(f"no columns of dates and prices among {', '.join(titles[0][:8])}")
    return Table(path, layout, [_cell(frame.iloc[:, place]) for place in range(frame.shape[1])])


def _cell(column: pd.Series) -> str | Float64Array:
    """Return the numbers of a column, or its texts, in each of which a new line is another control character."""
    if pd.api.types.is_numeric_dtype(column.dtype):
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return lines_of("\r".join(text.split("\n")) for text in column.astype(str).fillna("").tolist())
