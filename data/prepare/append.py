"""A prepared file to which bars are appended: those that it holds stay as they are."""

from pathlib import Path

import numpy as np
import pandas as pd

from data.bars import COLUMNS, PRICE_COLUMNS, VOLUME, LongBars
from data.events import ROUNDING, readjustment
from data.prepare.layout import PRICES, STANDARD, VALUES
from data.prepare.text import date_of
from data.universe import read_closes
from utils.arrays import BoolArray, Float64Array
from utils.errors import DataError


def benchmark_file(target: Path) -> Path:
    """Return the CSV file for an index that is taken out of the data file `target`."""
    return target.with_name(f"{target.stem}.benchmark.csv")


def read_prepared(target: Path, benchmark: str | None) -> pd.DataFrame:
    """Return the bars of a prepared file: `day`, `ticker` as text, values, further columns; its index has closes only.

    Volume is NaN where the file has none. Raises `DataError` if there is no such file, or it is damaged.
    """
    bars = LongBars.of_file(target, COLUMNS)
    names, read = (*PRICE_COLUMNS, *bars.further), list[pd.DataFrame]()
    for part in bars.parts():
        values = dict(zip(names, (*part.prices, *part.further), strict=True))
        volume = np.nan if part.volume is None else part.volume
        ticker = np.array(part.texts, dtype=object)[part.ticker]
        read.append(pd.DataFrame({"day": part.day, "ticker": ticker, **values, "volume": volume}))
    if benchmark is not None and benchmark_file(target).exists():
        close = read_closes(benchmark_file(target))
        index = pd.DataFrame({"day": close.index, "ticker": benchmark, "volume": np.nan})
        read.append(index.assign(**dict.fromkeys(PRICES, close.to_numpy())))
    return pd.concat(read, ignore_index=True).astype({"day": np.int32})


def with_new_events(
    old: pd.DataFrame, rows: pd.DataFrame, events: pd.DataFrame, first_days: pd.Series
) -> tuple[pd.DataFrame, pd.Series, BoolArray]:
    """Return `rows` whose old bars are adjusted for what came after them, which events are still to be applied, and to
    which rows they are not, (rows,).

    The earlier file cannot have known an event after a ticker's last old bar; where new files repeat old bars these
    tell whether prices were multiplied.

    Args:
        events: `ticker` as text, `day`, `split`, `dividend`, `is_due`, by day.
        first_days: by ticker, of the new files.
    """
    days = (old.groupby("ticker")["day"].max(), first_days)
    last, first = (events["ticker"].map(one).astype(np.float64) for one in days)  # NaN for a new ticker
    is_new = (events["day"] > last) & (first > last)
    prices = rows[VALUES].to_numpy(copy=True)
    for event, until in zip(events[is_new].itertuples(), last[is_new], strict=True):
        is_ticker = (rows["ticker"] == event.ticker).to_numpy()
        earlier, before = is_ticker & (rows["day"] <= until), is_ticker & (rows["day"] < event.day)
        split = event.split if event.split > 0 else 1.0
        close = prices[before, VALUES.index("close")][-1] / split
        factor = (1.0 - (event.dividend if 0 < event.dividend < close else 0.0) / close) / split
        prices[earlier] *= np.append(np.full(len(PRICES), factor), 1 / factor)
    known_to = last[is_new].groupby(events["ticker"][is_new]).max()
    is_settled = (rows["day"] <= rows["ticker"].astype(object).map(known_to)).to_numpy()  # False without one
    is_due = events["is_due"] & ~(is_new & (events["day"] <= first))
    return rows.assign(**dict(zip(VALUES, prices.T, strict=True))), is_due, is_settled


def with_old_bars(old: pd.DataFrame, rows: pd.DataFrame, source: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return `rows`, of old bars and new ones, with the old ones as they were, and notes about those that are not.

    Where a ticker's old bars up to the last one were multiplied by a constant, for a dividend or a split, so are those
    before them that `rows` repeats from the file. Raises `DataError` where a row on a day up to a ticker's last old one
    differs otherwise, by more than the rounding of a float.
    """
    further, others = ({*frame} - {*STANDARD} for frame in (old, rows))
    if further != others:
        pair = " and ".join(", ".join(sorted(columns)) or "none" for columns in (further, others))
        raise DataError(
            f"expected the further columns of {source}, got other ones ({pair}); give the same with --keep and --join, "
            "or prepare all files anew without --append"
        )
    last = rows["ticker"].astype(object).map(old.groupby("ticker")["day"].max())
    is_old = rows["day"] <= last  # NaN for a new ticker, which has no old bar
    both = rows[is_old].astype({"ticker": object})
    both = both.merge(old, on=["ticker", "day"], how="left", suffixes=("", " before"))
    names, known = [*VALUES, *sorted(further)], len(VALUES)
    now, whole = both[VALUES].to_numpy(), both[[f"{name} before" for name in names]].to_numpy()
    before = whole[:, :known]
    differs, notes = ~np.isclose(now, before, rtol=ROUNDING, atol=0.0, equal_nan=True), list[str]()
    for ticker in both["ticker"][differs.any(axis=1)].unique():
        places = np.flatnonzero(both["ticker"] == ticker)
        first = places[np.flatnonzero(differs[places].any(axis=1))[0]]
        since = places[places >= first]
        factors = _readjusted(before[since], now[since])
        if factors is not None:
            earlier = places[places < first]
            before[earlier] *= factors
            before[since], differs[places] = now[since], False
            notes.append(f"{ticker}: prices of the past times {factors[0]:.6g}, for a dividend or a split")
    if not differs.any():
        rows.loc[is_old, names] = whole
        return rows, notes
    row, column = np.argwhere(differs)[0]
    was = "no bar, though it has later ones" if np.isnan(both["close before"][row]) else float(before[row, column])
    raise DataError(
        f"expected the bars of {source} to stay as they are, got {both['ticker'][row]} on {date_of(both['day'][row])} "
        f"with {VALUES[column]} {float(now[row, column])}, where the file has {was}; leave such rows out, or prepare "
        "all files anew without --append"
    )


def _readjusted(before: Float64Array, now: Float64Array) -> Float64Array | None:
    """Return what all of a ticker's values were multiplied by, None where it is no single factor.

    Fewer than three distinct prices prove nothing: a single revised close looks the same.
    """
    prices = VALUES.index(VOLUME)
    result = readjustment(before[:, :prices], now[:, :prices])
    if result.revised.any() or result.bars < len(before) or len(np.unique(before[:, :prices])) < 3:
        return None
    volume = np.array([1.0, 1 / result.ratio])
    fits = [np.allclose(now[:, prices], before[:, prices] * one, rtol=1e-5, atol=1.0, equal_nan=True) for one in volume]
    return np.append(np.full(prices, result.ratio), volume[fits][0]) if any(fits) else None
