"""A prepared file to which bars are appended: those that it holds stay as they are."""

from pathlib import Path

import numpy as np
import pandas as pd

from data.bars import COLUMNS, PRICE_COLUMNS, VOLUME, LongBars
from data.events import ROUNDING, Readjustment, readjustment
from data.prepare.adjustment import contradiction, kept_of
from data.prepare.layout import PRICES, STANDARD, VALUES
from data.prepare.text import date_of
from data.universe import read_closes
from utils.arrays import Float64Array, Int32Array
from utils.errors import DataError

_OPEN, _CLOSE = VALUES.index("open"), VALUES.index("close")
_EXACT = 1e-5
"""Logarithm by which the ratio of new prices and old ones may miss what events between them give."""
_TOLD = 0.05
"""Logarithm of a split from which on the first new open tells it from its inverse."""


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
    old: pd.DataFrame,
    rows: pd.DataFrame,
    events: pd.DataFrame,
    first_days: pd.Series,
    scale: Float64Array,
    source: Path,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return `rows` of which those of the earlier file's tickers are adjusted for `events`, and the events of others.

    The earlier file cannot have known an event after a ticker's last old bar. Where new files repeat old bars these
    tell what the new prices hold: they are the old ones, but for all events since. Where they repeat none, only the
    first new bar can have an event. Raises `DataError` for a later one, which may be in the prices or not.

    Args:
        events: `ticker` as text, `day`, `split`, `dividend`, `is_due`, by day.
        first_days: by ticker, of the new files.
        scale: (rows,) by which new prices were multiplied to their adjusted close.
        source: the earlier file.
    """
    groups = old.groupby("ticker")
    last_days, of_old = groups["day"].max(), groups.indices
    of_rows, of_events = rows.groupby("ticker", observed=True).indices, events.groupby("ticker").indices
    days, prices = rows["day"].to_numpy(), rows[VALUES].to_numpy(copy=True)
    for ticker in first_days.index.intersection(last_days.index):
        first, last, place = first_days[ticker], last_days[ticker], of_rows[ticker]
        known = events.iloc[of_events.get(ticker, [])]
        known = known[known["day"].between(min(first, last) + 1, days[place[-1]])]
        new = place[days[place] >= first]
        if first <= last and known["is_due"].any():
            before = old.iloc[of_old[ticker]]
            before = before[VALUES][before["day"].isin(days[new])].to_numpy()
            prices[new] = _as_file(before, prices[new], days[new], known, last)
        elif first > last and ((known["day"] > first).any() or abs(scale[new[0]] - 1) > ROUNDING):
            raise DataError(
                f"expected a bar of {ticker} that {source} has, too, for new files have an event after its first new "
                f"bar, of {date_of(first)}, which may be in their prices or not; give files from {date_of(last)} on"
            )
        elif first > last:
            earlier, split = place[days[place] <= last], float(known["split"].prod())
            size = np.log(split)
            move = float(np.log(prices[new[0], _OPEN] / prices[earlier[-1], _CLOSE]))
            if abs(size) > _TOLD and abs(move + size) > abs(move - size):
                raise contradiction(f"split {split:g}:1 of {ticker}", first, f"a move of {np.expm1(move):+.1%} on it")
            factor = _factors(prices[earlier], days[earlier], known).prod()
            prices[earlier] = _multiplied(prices[earlier], np.full(len(earlier), factor))
    rows = rows.assign(**dict(zip(VALUES, prices.T, strict=True)))
    return rows, events[~events["ticker"].isin(last_days.index)]


def _factors(prices: Float64Array, days: Int32Array, events: pd.DataFrame) -> Float64Array:
    """Return (events,) by what raw (bars, values) before each event are multiplied."""
    split, dividend = events["split"].fillna(1.0).to_numpy(), events["dividend"].fillna(0.0).to_numpy()
    before = prices[np.searchsorted(days, events["day"]) - 1, _CLOSE]
    return np.asarray(kept_of(before / split, dividend) / split)


def _multiplied(values: Float64Array, factors: Float64Array) -> Float64Array:
    """Return (bars, values) with prices multiplied and volume divided by (bars,) factors."""
    return values * np.column_stack([*[factors] * len(PRICES), 1 / factors])


def _as_file(
    before: Float64Array, prices: Float64Array, days: Int32Array, events: pd.DataFrame, last: int
) -> Float64Array:
    """Return a ticker's new (bars, values), adjusted for those `events` with which they are the old ones by a factor.

    Args:
        before: (old bars that are repeated, values); they are the first of the new ones.
        events: after the first new bar.
        last: the last old day.
    """
    factors, is_due, day = _factors(prices, days, events), events["is_due"].to_numpy(bool), events["day"].to_numpy()
    expected, passed = np.log(factors[day > last]).sum(), days[:, None] < day
    # Raw; adjusted for splits, as a vendor who adjusts for dividends does, too; adjusted for all.
    for missing in (is_due, is_due & events["split"].isna().to_numpy()):
        adjusted = _multiplied(prices, np.where(missing & passed, factors, 1.0).prod(axis=1))
        ratio = _ratio(before, adjusted[: len(before)])
        if missing.any() and ratio and abs(np.log(ratio) - expected) <= _EXACT:
            return adjusted
    return prices


def _ratio(before: Float64Array, now: Float64Array) -> float:
    """Return by what (bars, values) prices were multiplied, all alike; 0 where they were not."""
    if len(before) != len(now):
        return 0.0
    prices = slice(len(PRICES))
    result = readjustment(before[:, prices], now[:, prices])
    return 0.0 if result.revised.any() or 0 < result.bars < len(now) else result.ratio


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
        prices = since[:, None], np.arange(len(PRICES))
        result = readjustment(before[prices], now[prices])
        if result.revised.any():  # others are only multiplied
            as_before = np.isclose(now[prices], result.ratio * before[prices], rtol=ROUNDING, atol=0.0)
            differs[since], differs[prices] = False, result.revised[:, None] & ~as_before
        elif (factors := _readjusted(result, before[since], now[since])) is not None:
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


def _readjusted(result: Readjustment, before: Float64Array, now: Float64Array) -> Float64Array | None:
    """Return what all of a ticker's values were multiplied by, None where it is no single factor.

    Fewer than three distinct prices prove nothing: a single revised close looks the same.
    """
    prices = VALUES.index(VOLUME)
    if result.bars < len(before) or len(np.unique(before[:, :prices])) < 3:
        return None
    volume = np.array([1.0, 1 / result.ratio])
    fits = [np.allclose(now[:, prices], before[:, prices] * one, rtol=1e-5, atol=1.0, equal_nan=True) for one in volume]
    return np.append(np.full(prices, result.ratio), volume[fits][0]) if any(fits) else None
