"""A user's benchmark: closes of an index or fund in a file."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd

from data.bars import EARLIEST, latest_day
from data.prepare.files import TOO_MANY, read_table
from data.prepare.layout import UnclearFileError, UnusableFileError, role_of
from data.prepare.rows import require_one_bar_a_day, rows_of, settle
from utils.arrays import DateArray, Float64Array
from utils.config.prepare import Choices
from utils.errors import DataError

LONGEST_GAP_DAYS = 31
"""Days for which a close stays valid, enough for monthly ones."""


def read_benchmark(path: Path, dates: DateArray) -> Float64Array:
    """Return the last close on or before each of the (days,) dates; NaN outside the file's dates and in its gaps.

    Raises `DataError` as `read_closes`.
    """
    series = read_closes(path)
    wanted = dates.astype("datetime64[D]").astype(np.int64)
    place = np.searchsorted(series.index.to_numpy(), wanted, side="right") - 1
    age = wanted - series.index.to_numpy()[place]
    is_covered = (place >= 0) & (wanted <= series.index[-1]) & (age <= LONGEST_GAP_DAYS)
    return np.where(is_covered, series.to_numpy()[place], np.nan)


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
