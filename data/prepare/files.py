"""Files of a folder, the tickers that their names tell, and the cells of each with the layout that it has."""

import codecs
import csv
import io
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa

from data.prepare.layout import BLANKS, PRICES, WORDS, Layout, UnclearFileError, UnusableFileError, layout_of, role_of
from data.prepare.text import are_days, are_numbers, lines_of
from utils.arrays import Float64Array, Int32Array
from utils.config.prepare import Choices
from utils.errors import DataError, first_line


def _read_excel(path: Path) -> pd.DataFrame:
    """Return the one sheet of a workbook; NA is a ticker."""
    sheets = pd.read_excel(path, sheet_name=None, keep_default_na=False, na_values=[""])
    if len(sheets) > 1:
        raise UnusableFileError(f"{len(sheets)} sheets ({', '.join(sheets)[:60]}); save the one of bars as a file")
    return next(iter(sheets.values()))


_FRAMES: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": pd.read_parquet, ".pq": pd.read_parquet, ".feather": pd.read_feather, ".arrow": pd.read_feather,
    ".xlsx": _read_excel, ".xls": _read_excel,
}  # fmt: skip
_TEXTS, _PACKERS = (".csv", ".txt", ".tsv"), {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".zip": ""}
SUPPORTED = f"{', '.join((*_TEXTS, *_FRAMES))}; text packed as {', '.join(_PACKERS)}"
_SUFFIXES = (*_TEXTS, *_FRAMES, ".zip", *(text + packer for text in _TEXTS for packer in _PACKERS))
_SUFFIX = re.compile(rf"(?i:{'|'.join(map(re.escape, _SUFFIXES))})$")
_HEAD_LINES, _HEAD_BYTES = 50, 1 << 16
_UNREADABLE = (
    pa.ArrowException, OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, SyntaxError, ImportError,
    BadZipFile, NotImplementedError, RuntimeError, csv.Error,
)  # fmt: skip
"""What readers of damaged files raise."""
NO_BAR, TOO_MANY = "line that is no bar", "more fields than titles"
NO_TABLE = f"no header and no bar in the first {_HEAD_LINES} lines"
NOT_READ = f"no kind of file that is read ({SUPPORTED})"

_DATE = r"(?:19|20)\d\d(?:\d{4}|[-_.]\d\d(?:[-_.]\d\d)?)|\d\d?[-_.]\d\d?[-_.](?:19|20)\d\d|1\d{9}(?:\d{3})?"
# MAX is a ticker, max and Max are none.
_WORD = rf"(?:(?![A-Z]{{2}})(?i:{'|'.join(WORDS['download'])})|1D|\(\d+\)|part[-_.]?\d[-.\w]*|{_DATE})"
_YEAR = r"(?:19|20)\d\d"
_ADDED = re.compile(rf"^(?:{_WORD}[-_ ,]+)+(?=.)|(?:(?:[-_ ,]+|(?=\()){_WORD})+$|[-_ ]{_YEAR}$|_us_d$|\.(?i:us)$|_d$")
"""What vendors and browsers add to a ticker in a file's name, before and behind it."""
_ALL_ADDED = re.compile(rf"(?:{_WORD}[-_ ,]*)+")
_NAME = re.compile(rf"(?!{_YEAR}$)\S{{1,24}}(?: [A-Z]\w{{0,5}}){{0,2}}")
"""A name that may be a ticker and is no year: one word, perhaps with a market and a class."""


@dataclass
class Table:
    """Cells of one file in the notation of its vendor."""

    path: Path
    layout: Layout
    cells: list[str | Float64Array]
    """By place in the layout: a column's texts, a line for each row, or its numbers."""
    first_line: int = 1
    """Of the rows in the file."""
    order: str = ""
    """Order of day, month and year of its dates, once that is settled."""
    days: Int32Array = field(default_factory=lambda: np.empty(0, np.int32))
    """Its dates since 1970-01-01, (rows,), once that is settled."""
    signs: dict[str, str] = field(default_factory=dict)
    """Decimal signs of `price` and `volume`, once they are settled."""

    def text(self, role: str) -> str:
        """Return a column's texts as lines; those of dates with the times of a column beside them."""
        cell = self.cells[self.layout.fields[role]]
        text = cell if isinstance(cell, str) else "\n".join(f"{value:.17g}" for value in cell.tolist())
        if role != "date" or "time" not in self.layout.fields:
            return text
        return "\n".join(map(" ".join, zip(text.split("\n"), self.text("time").split("\n"), strict=True)))


def found_files(source: Path, written: Iterable[Path], skipped: list[tuple[str, str]]) -> list[Path]:
    """Return the files to read, without those `written` by an earlier call; others are listed with the reason.

    Raises `DataError` where there is nothing to read.
    """
    seen = {os.path.realpath(path) for path in written}
    if not source.exists() or os.path.realpath(source) in seen:
        raise DataError(
            f"expected a CSV or parquet file, or a folder, other than the file to write, got {source}, which "
            f"{'does not exist' if not source.exists() else 'is that file'}"
        )
    if not source.is_dir():
        return [source]
    paths = []
    for path in sorted(_walk(source)):
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        if path.name.lower().endswith(_SUFFIXES):
            paths.append(path)
        else:
            skipped.append((shown(path, source), NOT_READ))
    if not paths:
        others = ", ".join(name for name, _ in skipped[:3]) or "none"
        raise DataError(f"expected files that end in {SUPPORTED} in the folder {source}, got {others}")
    return paths


def _walk(source: Path) -> Iterator[Path]:
    """Yield all files of a folder but hidden ones, those of linked folders too, each folder once."""
    seen = set[str]()
    for place, folders, names in os.walk(source, followlinks=True):
        is_new = (real := os.path.realpath(place)) not in seen
        seen.add(real)
        folders[:] = sorted(name for name in folders if is_new and not name.startswith("."))
        yield from (path for name in names if is_new and name[0] != "." and (path := Path(place, name)).is_file())


def shown(path: Path, source: Path | None = None) -> str:
    """Return a path, from a folder `source` on, as text; names that are no UTF-8 are read as Latin-1."""
    part = path.name if path == source else path if source is None else path.relative_to(source)
    name = os.fsencode(part)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def ticker_of(path: Path, source: Path) -> str:
    """Return the ticker that a file's name tells, without what vendors add; Stooq's ^spx_d, aapl_us_d are ^SPX, AAPL.

    A folder `ticker=AAPL` tells it first, and any folder where the file is named after its year, or not after a stock.
    Raises `UnclearFileError` where neither does.
    """
    *folders, name = Path(shown(path, source)).parts
    for part in reversed(Path(shown(path)).parts[:-1]):
        key, _, value = part.partition("=")
        if value and role_of(key) == "ticker":
            return value
    stem = name = Path(ZipFile(path).namelist()[0]).name if path.suffix.lower() == ".zip" else name
    while (shorter := _SUFFIX.sub("", stem)) != stem:
        stem = shorter
    ticker = _ADDED.sub("", _ADDED.sub("", stem)).strip()
    if _ALL_ADDED.fullmatch(stem):
        stem = ticker = folders[-1] if folders else ""
    if not _NAME.fullmatch(ticker) or (stem == name and Path(name).suffix):
        raise UnclearFileError(
            "no ticker in its name; name it TICKER.csv, or its folder after the ticker, or give a column of tickers"
        )
    return ticker.upper() if ticker != stem and ticker.islower() else ticker


def read_table(path: Path, choices: Choices, dropped: Counter[str], needed: Sequence[str] = PRICES) -> Table:
    """Return a file's cells; lines that are no rows are counted in `dropped`.

    Raises `UnusableFileError` for a file without bars, and `UnclearFileError` where a person must say what is meant.
    """
    read = _FRAMES.get(path.suffix.lower())
    try:
        if path.exists() and not path.is_file():
            raise UnusableFileError("a pipe; write what it gives to a file")
        table = _frame_table(path, read(path), choices, needed) if read else _text_table(path, choices, dropped, needed)
    except _UNREADABLE as error:
        raise UnusableFileError(f"no readable file ({first_line(error)[:200]})") from None
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


def _opened(path: Path) -> IO[bytes]:
    """Return what is packed in a file, or its bytes. Raises `UnusableFileError` for an archive of several."""
    if path.suffix.lower() != ".zip":
        opened: IO[bytes] = pa.input_stream(path.open("rb"), _PACKERS.get(path.suffix.lower()))
        return opened
    archive = ZipFile(path)
    names = [one.filename for one in archive.infolist() if not one.is_dir()]
    if len(names) != 1:
        raise UnusableFileError(f"an archive of {len(names)} files; unpack it")
    return archive.open(names[0])


def _encoded(path: Path) -> tuple[str, list[str]]:
    """Return the encoding of a text, and its first lines."""
    with _opened(path) as file:
        start = file.read(_HEAD_BYTES)
    encoding = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        return encoding, codecs.getincrementaldecoder(encoding)().decode(start).split("\n")[:_HEAD_LINES]
    except UnicodeDecodeError:
        return "cp1252", start.decode("cp1252", errors="replace").split("\n")[:_HEAD_LINES]


def read_frame(path: Path) -> pd.DataFrame:
    """Return the table of a file as it stands: of a text the cells below its titles, the first line of several fields,
    as texts, NaN where empty, and in `attrs` what separates them.

    Raises `UnusableFileError`, or what readers of damaged files raise.
    """
    if read := _FRAMES.get(path.suffix.lower()):
        return read(path)
    encoding, lines = _encoded(path)
    before = next((place for place, line in enumerate(lines) if any(one in line for one in ",;\t|")), 0)
    separator = max(",;\t|", key=lines[before].count)
    with _opened(path) as file, warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            frame = pd.read_csv(
                file, sep=separator, skiprows=before, dtype=str, keep_default_na=False, na_values=[""], index_col=False,
                encoding=encoding, encoding_errors="replace",
            )  # fmt: skip
        except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
            where = re.search(r"line \d+", str(error))
            place = f"on {where[0]}" if where else "in its first row"
            raise UnusableFileError(f"{TOO_MANY} {place}; quote what has a separator in it") from None
    frame.attrs["separator"] = separator
    return frame


def _text_table(path: Path, choices: Choices, dropped: Counter[str], needed: Sequence[str]) -> Table:
    """Read text, packed or not; count lines that are no row."""
    encoding, _ = _encoded(path)
    with io.TextIOWrapper(_opened(path), encoding, errors="replace") as text:
        before, layout = _find_layout(list(islice(text, _HEAD_LINES)), choices, needed)
    dropped["line before the first bar"] += before
    width = len(layout.titles)
    with _opened(path) as file:
        rows = pd.read_csv(
            file, sep=layout.separator, header=None, names=range(width + 1), index_col=False, dtype=str,
            na_filter=False, skiprows=before + layout.headers, encoding=encoding, encoding_errors="replace",
        )  # fmt: skip
    if any(column.str.contains("\n").any() for _, column in rows.items()):
        raise UnclearFileError("a quoted text over several lines, or a quote that is not closed; mend it")
    has_more = rows.pop(width).str.strip() != ""
    if len(rows) and has_more.all():
        raise UnusableFileError("all lines have more fields than titles; quote what has a separator in it")
    is_note = rows.iloc[:, 1:].eq("").all(axis=1).to_numpy(copy=True)
    is_note[is_note] = np.logical_not(are_days(rows[0][is_note].tolist()))
    is_note |= (rows[0] == layout.titles[0]) & (layout.headers > 0)  # of files put one behind the other
    dropped.update({TOO_MANY: int(has_more.sum()), NO_BAR: 0 if layout.panel else int((is_note & ~has_more).sum())})
    rows = rows[~(has_more | is_note)]
    return Table(path, layout, [lines_of(column.tolist()) for _, column in rows.items()], before + layout.headers + 1)


def _find_layout(lines: list[str], choices: Choices, needed: Sequence[str]) -> tuple[int, Layout]:
    """Return the number of lines before the header, or before the first row where there is none, and `layout_of`."""
    first = ""
    for before, line in enumerate(lines):
        separator = next((one for one in "\t;|" if one in line), ",")
        head = csv.reader(lines[before : before + 2], delimiter=separator)
        rows = [[text.strip() for text in row] or [""] for row in head]
        first = first or line.strip()
        if layout := layout_of(rows, separator, choices, needed):
            return before, layout
    raise UnusableFileError(
        f"{NO_TABLE}, which begin {first[:40]!r}; give text with titled columns" if first else "empty file"
    )


def _frame_table(path: Path, frame: pd.DataFrame, choices: Choices, needed: Sequence[str]) -> Table:
    """Return the cells of a parquet file, a feather file or a sheet, its index among the columns."""
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
