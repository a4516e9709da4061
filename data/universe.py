"""What a user names beside the bars: tickers that may be bought, on which days each is a member, and an index."""

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from data.bars import EARLIEST, latest_day
from data.prepare.files import TOO_MANY, read_table
from data.prepare.layout import UnclearFileError, UnusableFileError, role_of
from data.prepare.rows import require_one_bar_a_day, rows_of, settle
from utils.arrays import BoolArray, DateArray, Float64Array, Int64Array
from utils.config.prepare import Choices
from utils.config.settings import hint
from utils.errors import DataError, first_line

_SHOWN = 60
"""Letters that are shown of a line."""
_DATED = ["ticker", "from", "to"]
LONGEST_GAP_DAYS = 31
"""Days for which a close of an index stays valid, enough for monthly ones."""


def read_universe(
    wanted: Path | Sequence[str] | None, tickers: Sequence[str], dates: DateArray
) -> tuple[Int64Array, BoolArray | None]:
    """Return the sorted columns of the wanted tickers, of all without a list, and (days, columns) members of a day.

    A file has one ticker per line; empty lines and comments after a # are ignored. With the header `ticker,from,to` it
    is dated: both days count, an empty one is open, and a ticker may have several rows. None: all are members always.

    Raises DataError for an unknown ticker, or a file that cannot be read.
    """
    if wanted is None:
        return np.arange(len(tickers), dtype=np.int64), None
    try:
        lines = wanted.read_text(encoding="utf-8-sig").splitlines() if isinstance(wanted, Path) else wanted
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"expected a text file of tickers, one per line, got {wanted} ({first_line(error)})") from None
    names, spells = [name for line in lines if (name := line.partition("#")[0].strip())], None
    if names and [word.strip().lower() for word in names[0].split(",")] == _DATED:
        spells = _spells(names, str(wanted))
        names = spells["ticker"].tolist()
    place = {ticker: column for column, ticker in enumerate(tickers)}
    unknown = [name for name in names if name not in place]
    if unknown or not names:
        got = f"{unknown[0][:_SHOWN]!r}{hint(unknown[0], tickers)}" if unknown else "none"
        listed = f" in {wanted}" if isinstance(wanted, Path) else ""
        raise DataError(f"expected investable tickers that are in the data{listed}, got {got}; mend the list")
    columns = np.array(sorted({place[name] for name in names}), dtype=np.int64)
    if spells is None:
        return columns, None
    members = np.zeros((len(dates), len(tickers)), dtype=np.bool_)
    for name, first, last in zip(names, spells["from"], spells["to"], strict=True):
        members[:, place[name]] |= (dates >= first) & (dates <= last)
    return columns, members


def _spells(lines: Sequence[str], source: str) -> pd.DataFrame:
    """Return the rows of a dated universe, with open ends as far days. Raises DataError for other rows."""
    try:
        rows = pd.read_csv(io.StringIO("\n".join(lines)), names=_DATED, header=0, dtype=str, skipinitialspace=True)
        for column, far in (("from", "1677-09-22"), ("to", "2262-04-10")):
            rows[column] = pd.to_datetime(rows[column].fillna(far), format="ISO8601").to_numpy("datetime64[D]")
    except ValueError as error:
        raise DataError(
            f"expected rows of ticker,from,to in {source}, as ABC,2010-03-01,2014-11-28, got "
            f"{first_line(error).partition('. You might')[0]}"
        ) from None
    if (ends := rows["from"] > rows["to"]).any():
        raise DataError(f"expected `from` up to `to` in {source}, got the reverse of {rows['ticker'][ends].iloc[0]!r}")
    rows["ticker"] = rows["ticker"].astype(str).str.strip()
    return rows


def read_index(path: Path, dates: DateArray) -> Float64Array:
    """Return the last close on or before each of the (days,) dates; NaN outside the file's dates and in its gaps.

    Raises `DataError` as `read_closes`.
    """
    series = read_closes(path)
    wanted = dates.astype("datetime64[D]").astype(np.int32)
    close = series.reindex(wanted, method="ffill", tolerance=LONGEST_GAP_DAYS)
    return np.where(wanted <= series.index[-1], close, np.nan)


def read_closes(path: Path) -> pd.Series:
    """Return the closes by day since 1970-01-01, sorted; adjusted ones where the file has them.

    Raises `DataError` if the file has no columns of dates and closes, or a close is not a positive number.
    """
    choices, dropped = Choices(columns=("close=*",)), Counter[str]()
    try:
        table = read_table(path, choices, dropped, ("close",))
        settle(table, choices, is_daily=False)
        rows = rows_of(table, choices)
        require_one_bar_a_day(rows, table, choices)
        if role_of(next(iter(table.layout.panel), "")):
            raise UnclearFileError(f"no column for close in the header '{','.join(table.layout.titles)}'")
    except (UnusableFileError, UnclearFileError) as reason:
        got = str(reason).partition("; ")[0]  # what follows names flags that only `prepare` has
        raise DataError(
            f"expected columns date, close and at least one row in {path}, got: {got}; write one row a day, dates as "
            "2020-12-31, closes as 1234.5"
        ) from None
    if len(tickers := rows["ticker"].unique()) > 1:
        raise DataError(f"expected closes of one index in {path}, got {tickers[0]!r} and {tickers[1]!r}; leave one")
    dates = table.text("date").split("\n")
    close = rows["adjusted" if "adjusted" in rows else "close"]
    is_day = rows["day"].between(EARLIEST, latest_day()) & (rows["day"] != 0)  # the day 0 stands for none
    bad = ~(is_day & (close > 0) & np.isfinite(close))
    if bad.any() or dropped[TOO_MANY]:
        row = int(bad.argmax())
        got = f"{dates[row]!r} on line {table.first_line + row}" if bad.any() else "a line of more fields than titles"
        raise DataError(f"expected a date and a positive close in each row of {path}, got {got}")
    return pd.Series(close.to_numpy(), index=rows["day"].to_numpy(np.int32)).groupby(level=0).last()
