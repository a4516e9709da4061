"""Files of a folder, and the tickers that their names tell."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipfile import ZipFile

from data.prepare.files import SUFFIXES, SUPPORTED
from data.prepare.layout import WORDS, UnclearFileError, role_of
from data.prepare.text import NO_DAY
from utils.arrays import Int32Array
from utils.errors import DataError

_YEAR = re.compile(r"(.*?)[-_ ]?((?:19|20)\d\d)")
_DATE = r"(?:19|20)\d\d(?:\d{4}|[-_.]\d\d(?:[-_.]\d\d)?)|\d\d?[-_.]\d\d?[-_.](?:19|20)\d\d|1\d{9}(?:\d{3})?"
# MAX is a ticker, max and Max are none.
_WORD = rf"(?:(?![A-Z]{{2}})(?i:{'|'.join(WORDS['download'])})|1D|\(\d+\)|part[-_.]?\d[-.\w]*|{_DATE})"
_ADDED = re.compile(rf"^(?:{_WORD}[-_ ,]+)+(?=.)|(?:(?:[-_ ,]+|(?=\()){_WORD})+$|_us_d$|\.(?i:us)$|_d$")
"""What vendors and browsers add to a ticker in a file's name, before and behind it."""
_ALL_ADDED = re.compile(rf"(?:{_WORD}[-_ ,]*)+")
_NAME = re.compile(r"\S{1,24}(?: [A-Z]\w{0,5}){0,2}")
"""A name that may be a ticker: one word, perhaps with a market and a class."""
NOT_READ = f"no kind of file that is read ({SUPPORTED})"


def shown(path: Path, source: Path | None = None) -> str:
    """Return a path, from a folder `source` on, as text; names that are no UTF-8 are read as Latin-1."""
    name = os.fsencode(path if source is None or path == source else path.relative_to(source))
    name = os.path.basename(name) if path == source else name
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


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
        if path.name.lower().endswith(SUFFIXES):
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


def ticker_of(path: Path, source: Path, days: Int32Array) -> str:
    """Return the ticker that a file's name tells, without what vendors add; Stooq's ^spx_d, aapl_us_d are ^SPX, AAPL.

    A folder `ticker=AAPL` tells it first, and any folder where the file is named after its year, or not after a stock.
    Raises `UnclearFileError` where neither does.
    """
    *folders, name = Path(shown(path, source)).parts
    for part in reversed(Path(shown(path)).parts[:-1]):
        key, _, value = part.partition("=")
        if value and (role_of(key) or ("", 0))[0] == "ticker":
            return value
    if not path.is_file():
        raise UnclearFileError("a pipe, whose name tells no ticker; give a column of tickers")
    stem = name
    while known := max((suffix for suffix in SUFFIXES if stem.lower().endswith(suffix)), key=len, default=""):
        stem = stem[: -len(known)]
    if stem == name and Path(name).suffix:
        raise UnclearFileError(f"no ticker; name it TICKER.csv, or with another ending of {SUPPORTED}")
    inner = Path(ZipFile(path).namelist()[0]).stem if path.suffix.lower() == ".zip" else stem
    if inner.casefold() != stem.casefold() and re.fullmatch(r"[A-Z0-9.-]+", inner):
        raise UnclearFileError(f"an archive of {inner!r} under another name; give it that name")
    years = days[days != NO_DAY].astype("datetime64[D]").astype("datetime64[Y]").astype(str)
    if (year := _YEAR.fullmatch(stem)) and {*years.tolist()} == {year[2]}:
        stem = year[1] or (folders[-1] if folders else "")
    ticker = _ADDED.sub("", _ADDED.sub("", stem)).strip()
    if _ALL_ADDED.fullmatch(stem):
        stem = ticker = folders[-1] if folders else ""
    if not _NAME.fullmatch(ticker):
        raise UnclearFileError(
            "no ticker in its name; name it TICKER.csv, or its folder after the ticker, or give a column of tickers"
        )
    return ticker.upper() if ticker != stem and ticker.islower() else ticker
