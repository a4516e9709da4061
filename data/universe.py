"""The universe: which tickers may be bought, and on which days each of them is a member."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from utils.arrays import BoolArray, DateArray, Int64Array
from utils.config.settings import hint
from utils.errors import DataError, first_line

_SHOWN = 60
"""Letters that are shown of a line."""
_DATED = ["ticker", "from", "to"]


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
    days, members = dates.astype("datetime64[D]"), np.zeros((len(dates), len(tickers)), dtype=np.bool_)
    for name, first, last in zip(names, spells["from"], spells["to"], strict=True):
        members[:, place[name]] |= (days >= first) & (days <= last)
    return columns, members


def _spells(lines: Sequence[str], source: str) -> pd.DataFrame:
    """Return the rows of a dated universe, with open ends as far days. Raises DataError for other rows."""
    try:
        rows = pd.read_csv(io.StringIO("\n".join(lines)), names=_DATED, header=0, dtype=str, skipinitialspace=True)
        for column, far in (("from", "1677-09-22"), ("to", "2262-04-10")):
            rows[column] = pd.to_datetime(rows[column].fillna(far), format="ISO8601").to_numpy("datetime64[D]")
    except ValueError as error:
        raise DataError(
            f"expected rows of ticker,from,to in {source}, as ABC,2010-03-01,2014-11-28, got {first_line(error)}"
        ) from None
    if (ends := rows["from"] > rows["to"]).any():
        raise DataError(f"expected `from` up to `to` in {source}, got the reverse of {rows['ticker'][ends].iloc[0]!r}")
    rows["ticker"] = rows["ticker"].astype(str).str.strip()
    return rows
