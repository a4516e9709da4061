"""A user's benchmark: closes of an index or fund in a CSV file."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.raw.text import NO_DAY, numbers, resolve_days
from utils.errors import DataError, first_line

Float64Array = NDArray[np.float64]
LONGEST_GAP_DAYS = 31
"""Days for which a close stays valid, enough for monthly ones."""


def read_benchmark(path: Path, dates: NDArray[np.datetime64]) -> Float64Array:
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
    """Return the closes by day since 1970-01-01, sorted.

    Raises:
        DataError: the file is no CSV file with columns `date` and `close`, or a close is not a positive number.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, skipinitialspace=True)
    except (ValueError, OSError) as error:
        raise DataError(f"expected a CSV file with columns date, close in {path}, got: {first_line(error)}") from None
    table.columns = table.columns.str.strip().str.lower()
    if not {"date", "close"} <= set(table.columns) or table.empty:
        raise DataError(f"expected columns date, close and at least one row in {path}, got {', '.join(table.columns)}")
    days, _ = resolve_days([text.strip() for text in table["date"]])
    close = numbers(table["close"].tolist(), ",")
    bad = (days == NO_DAY) | ~np.isfinite(close) | ~(close > 0)
    if bad.any():
        row = int(bad.argmax())
        got = f"{table['date'][row]!r}, {table['close'][row]!r}"
        raise DataError(f"expected a date and a positive close in each row of {path}, got {got} on line {row + 2}")
    return pd.Series(close, index=days).groupby(level=0).last()
