"""Files of a folder, and the tickers that their names tell."""

import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from data.raw.files import PACKERS, SUFFIXES, kind_of
from data.raw.layout import UnclearFileError, role_of
from data.raw.text import NO_DAY
from utils.errors import DataError, first_line

_FILE = re.compile(
    r"(?:historicaldata_|daily_(?:adjusted_)?)?(?:(\^.+)_d|(.+)_us_d|(.+)\.us|(.+?))"
    r"(?: (?:stock )?(?:historical data|price history))?(?: ?\(\d+\))?",
    re.IGNORECASE,
)
"""What Nasdaq, Alpha Vantage, Stooq, Investing.com and browsers add to a ticker in a file's name."""
_YEAR = re.compile(r"(.*?)[-_ ]?((?:19|20)\d\d)")
_NO_TICKER = re.compile(r"part[-_.\w]*|data|prices?|bars|daily|ohlcv?|quotes?|history|1d")
"""Names of files in a folder that is named after their ticker."""
_NOT_READ = f"no kind of file that is read ({', '.join(SUFFIXES)}, packed or not)"


def shown(path: Any, source: Path | None = None) -> str:
    """Return a path, from a folder `source` on, as text; names that are no UTF-8 are read as Latin-1."""
    name = os.fsencode(str(path))
    if source is not None:
        name = name.removeprefix(os.fsencode(f"{source}{os.sep}")) if source.is_dir() else os.fsencode(path.name)
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def found_files(source: Path, written: Iterable[Path], skipped: list[tuple[str, str]]) -> list[Any]:
    """Return the files to read, those in zip files too, without those `written` by an earlier call.

    Others are listed with the reason. Raises `DataError` where there is nothing to read.
    """
    seen = {os.path.realpath(path) for path in written}
    if not source.exists() or os.path.realpath(source) in seen:
        raise DataError(
            f"expected a CSV or parquet file, or a folder, other than the file to write, got {source}, which "
            f"{'does not exist' if not source.exists() else 'is that file'}"
        )
    found = list[Any]()
    for path in sorted(_walk(source)) if source.is_dir() else [source]:
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        try:
            inside = _members(path)
        except (zipfile.BadZipFile, OSError) as error:
            skipped.append((shown(path, source), f"no readable zip file ({first_line(error)})"))
            continue
        is_read = [not source.is_dir() or kind_of(one.name) in SUFFIXES for one in inside]
        found += [one for one, is_one in zip(inside, is_read, strict=True) if is_one]
        skipped += [(shown(one, source), _NOT_READ) for one, is_one in zip(inside, is_read, strict=True) if not is_one]
    if not found and not skipped:
        raise DataError(f"expected files that end in {', '.join(SUFFIXES)} in the folder {source}, got none")
    return found


def _members(path: Path) -> list[Any]:
    """Return a file, or all files in a zip file."""
    if path.suffix.lower() != ".zip":
        return [path]
    with zipfile.ZipFile(path) as file:
        names = sorted(one.filename for one in file.infolist() if not one.is_dir())
    return [zipfile.Path(path, at=name) for name in names if "__MACOSX" not in name]


def _walk(source: Path) -> Iterator[Path]:
    """Yield all files of a folder but hidden ones, those of linked folders too, each folder once."""
    seen = set[str]()
    for place, folders, names in os.walk(source, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (path for name in names if not name.startswith(".") and (path := Path(place, name)).is_file())


def ticker_of(path: Any, source: Path, days: pd.Series) -> str:
    """Return the ticker that a file's name tells; Stooq's ^spx_d, aapl_us_d and aapl.us are ^SPX and AAPL.

    A folder `ticker=AAPL` tells it first, and any folder where the file is named after its year, or not after a stock.
    """
    parts, is_inside = PurePath(shown(path)).parts, len(PurePath(shown(path, source)).parts) > 1
    for part in reversed(parts[:-1]):
        key, _, value = part.partition("=")
        if value and (role_of(key) or ("", 0))[0] == "ticker":
            return value
    stem = parts[-1]
    while PurePath(stem).suffix.lower() in {*SUFFIXES, *PACKERS}:
        stem = PurePath(stem).stem
    dates = days[days != NO_DAY].to_numpy().astype("datetime64[D]")
    year = _YEAR.fullmatch(stem)
    if is_year := bool(year and len(dates) and {*dates.astype("datetime64[Y]").astype(str)} == {year[2]}):
        stem = year[1] if year else stem
    if not stem or (_NO_TICKER.fullmatch(stem) and (is_year or is_inside)):
        stem = parts[-2] if is_inside else ""
    if not stem:
        raise UnclearFileError("no ticker; give a column of tickers, or a folder or file named after it")
    named = _FILE.fullmatch(stem)
    *stooq, plain = named.groups() if named else (stem,)
    return plain.strip() if plain else str(next(filter(None, stooq))).upper()
