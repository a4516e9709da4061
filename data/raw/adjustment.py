"""Prices adjusted for splits and dividends, once.

A split of s new shares for one multiplies earlier prices by 1/s, a dividend D by 1 - D/P, where P is the close before
the ex-date, per share after a split of that day: the multipliers of Yahoo's adjusted close, after CRSP (Yahoo help,
"What is the adjusted close?", whose example is a test). Volume is divided by the same, which leaves the turnover, price
x volume, unchanged.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.raw.layout import PRICES
from utils.arrays import Float64Array

_SURE = 1 / 6
"""Largest standard error of a slope, and smallest distance from 1/2, that decide whether it is 0 or 1."""
_NORMAL = 1.4826
"""Standard deviation of a normal variable over its median absolute value."""
_OUTCOMES = {
    1.0: "not in the prices, which move by them; prices adjusted, volume the other way",
    0.0: "in the prices already, which do not move by them; left as they are",
    -1.0: "prices do not tell whether they are in them already; left as they are, for yfinance adjusts unless told not "
    "to; give an adjusted close if they are not",
}
"""What is done by the state of the prices: raw, adjusted already, inconclusive."""


def scale_to_adjusted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with prices scaled to their adjusted close, and volume the other way."""
    adjusted, close = rows["adjusted"].to_numpy(), rows["close"].to_numpy()
    with np.errstate(all="ignore"):  # a close of zero gives NaN, and the row is dropped
        # A price equal to the close stays equal to it.
        scaled = {role: np.where(rows[role] == close, adjusted, rows[role] * (adjusted / close)) for role in PRICES}
        scaled["volume"] = rows["volume"].to_numpy() * (close / adjusted)
        return rows.drop(columns="adjusted").assign(**scaled)


def adjust_for_events(
    rows: pd.DataFrame, events: pd.DataFrame, is_settled: NDArray[np.bool_] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Return rows adjusted for events that their prices do not reflect yet, and what was done.

    Raw prices jump with a split and fall with a dividend, adjusted ones do not: for each kind of event the overnight
    move is regressed on the move of raw prices. Where a ticker's own events are inconclusive, those of all tickers
    decide unless they contradict one another; where these are inconclusive too, prices stay.

    Args:
        rows: sorted by `ticker` (a category) and `day`, once each.
        events: `ticker` as codes of that category, `day`, `split` (new shares for one) and `dividend` (cash per
            share); 0 or NaN is none.
        is_settled: (rows,) of those that are adjusted for all events already.
    """
    located, tickers = _located(rows, events), len(rows["ticker"].cat.categories)
    owner, row = located["ticker"].to_numpy(), located["row"].to_numpy()
    close, opened = rows["close"].to_numpy(), rows["open"].to_numpy()
    codes = rows["ticker"].cat.codes.to_numpy()
    nights = np.where(codes[1:] == codes[:-1], np.log(opened[1:] / close[:-1]), np.nan)
    is_quiet = np.isin(codes[1:], owner) & np.isfinite(nights)
    is_quiet[row - 1] = False
    noise = _NORMAL * float(np.median(np.abs(nights[is_quiet]))) if is_quiet.any() else np.inf
    gaps = nights[row - 1]

    split = located["split"].to_numpy()
    has_split = split != 1.0
    raw_splits = _states(gaps, -np.log(split), owner, has_split, noise, tickers)
    before = close[row - 1] / np.where(raw_splits[owner] == 1, split, 1.0)
    kept = 1.0 - located["dividend"].to_numpy() / before
    has_dividend = (kept < 1.0) & (kept > 0.0)
    by_dividend = np.where(has_dividend, kept, 1.0)
    raw_dividends = np.where(raw_splits == 1, 1.0, np.nan)  # no vendor adjusts for dividends but not for splits
    for group in (raw_splits == 0, np.isnan(raw_splits)):
        alone = has_dividend & ~has_split & group[owner]
        raw_dividends[group] = _states(gaps, np.log(by_dividend), owner, alone, noise, tickers)[group]
    steps = np.zeros(len(rows))
    np.add.at(steps, row, np.where(raw_splits[owner] == 1, -np.log(split), 0.0))
    np.add.at(steps, row, np.where(raw_dividends[owner] == 1, np.log(by_dividend), 0.0))
    passed = np.cumsum(steps)
    last = np.searchsorted(codes, codes, side="right") - 1
    factor = np.exp(passed[last] - passed)
    factor = factor if is_settled is None else np.where(is_settled, 1.0, factor)
    adjusted = rows.assign(**{role: rows[role] * factor for role in PRICES}, volume=rows["volume"] / factor)
    notes = []
    for what, has, raw in (("Splits", has_split, raw_splits), ("Dividends", has_dividend, raw_dividends)):
        of_event = np.nan_to_num(raw[owner], nan=-1.0)
        for state, outcome in _OUTCOMES.items():
            is_such = has & (of_event == state)
            if is_such.any():
                notes.append(f"{what}: {is_such.sum():,} of {len(np.unique(owner[is_such])):,} tickers: {outcome}")
    return adjusted, notes


def _located(rows: pd.DataFrame, events: pd.DataFrame) -> pd.DataFrame:
    """Return events between two bars of their ticker, each with the first row on or after its date.

    Events before the first bar or after the last change no price.
    """
    located = events.assign(
        split=events["split"].where(np.isfinite(events["split"]) & (events["split"] > 0), 1.0),
        dividend=events["dividend"].where(np.isfinite(events["dividend"]) & (events["dividend"] > 0), 0.0),
    )
    codes = rows["ticker"].cat.codes.to_numpy(dtype=np.int64)
    key = codes * 2**32 + rows["day"].to_numpy()
    place = np.searchsorted(key, located["ticker"].to_numpy(dtype=np.int64) * 2**32 + located["day"].to_numpy())
    owner = np.concatenate(([-1], codes, [-1]))
    is_inside = (owner[place] == located["ticker"]) & (owner[place + 1] == located["ticker"])
    return located.assign(row=place)[is_inside]


def _states(
    gaps: Float64Array, expected: Float64Array, owner: np.ndarray, has: np.ndarray, noise: float, tickers: int
) -> Float64Array:
    """Return (tickers,) 1 where prices are raw, 0 where they reflect events already, NaN where inconclusive."""
    products = np.bincount(owner[has], (gaps * expected)[has], minlength=tickers).astype(np.float64)
    squares = np.bincount(owner[has], (expected**2)[has], minlength=tickers).astype(np.float64)
    states = _state(products, squares, noise)
    together = _state(products.sum(keepdims=True), squares.sum(keepdims=True), noise)
    is_agreed = len(np.unique(states[np.isfinite(states)])) < 2
    return np.where(np.isnan(states) & is_agreed, together, states)


def _state(products: Float64Array, squares: Float64Array, noise: float) -> Float64Array:
    with np.errstate(all="ignore"):
        slope, error = products / squares, noise / np.sqrt(squares)
    is_sure = (error < _SURE) & (np.abs(slope - 0.5) > _SURE)
    return np.where(is_sure, slope > 0.5, np.nan)
