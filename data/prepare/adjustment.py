"""Prices adjusted for splits and dividends, once.

A split of s new shares for one multiplies earlier prices by 1/s, a dividend D by 1 - D/P, where P is the close before
the ex-date, per share after a split of that day: the multipliers of Yahoo's adjusted close, after CRSP (Yahoo help,
"What is the adjusted close?", whose example is a test). Volume is divided by the same, which leaves the turnover, price
x volume, unchanged.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.prepare.layout import PRICES
from data.prepare.text import date_of
from utils.arrays import Float64Array, Int64Array
from utils.errors import DataError

SURE = 1 / 6
"""Largest standard error of a slope, and smallest distance from 1/2, that decide whether it is 0 or 1."""
_LARGE, _SIGMAS = 0.2, 8
"""Logarithm of an event from which on a single move is told from news, and the same in standard deviations."""
NEAR, _FAR = 3, 10
"""Sessions by which the day of an event is mended, and within which it is looked for."""
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


def seen(
    rows: pd.DataFrame, row: Int64Array, expected: Float64Array, joint: Int64Array | None = None
) -> tuple[Float64Array, float, float, Int64Array, Int64Array]:
    """Return what overnight moves show of events at some rows, of which moves are `expected`.

    These are (rows,) moves, NaN at first rows; their standard deviation; from which size on a single one is told; and
    by event the sessions after it at which prices show it and 1, or -1 where they move the other way, or 0 where they
    do not show it. Logarithms throughout; `joint` is that of `mended_events`.
    """
    codes = rows["ticker"].cat.codes.to_numpy(dtype=np.int64)
    with np.errstate(all="ignore"):
        moves = np.append(np.nan, np.log(rows["open"].to_numpy()[1:] / rows["close"].to_numpy()[:-1]))
    nights = np.where((codes == np.append(-1, codes[:-1])) & np.isfinite(moves), moves, np.nan)
    is_quiet = np.isin(codes, codes[row]) & np.isfinite(nights)
    is_quiet[row] = False
    noise = _NORMAL * float(np.median(np.abs(nights[is_quiet]))) if is_quiet.any() else np.inf
    least, size = max(_LARGE, _SIGMAS * noise if is_quiet.any() else 0.0), np.abs(expected)
    after, sign = np.zeros((2, len(row)), dtype=np.int64)
    others = nights if joint is None else np.where(joint > 0, np.nan, nights)
    for step in sorted(range(-_FAR, _FAR + 1), key=abs):
        place = np.clip(row + step, 0, len(rows) - 1)
        moves = np.where(codes[place] == codes[row], (others if step else nights)[place], np.nan)
        for one, near in ((1, 4 if step else 2), (-1, 4)):  # on the very day news may add to the move
            is_large = size > least * (2 if step else 1)
            is_such = is_large & (sign == 0) & (np.abs(moves - one * expected) < size / near)
            after[is_such], sign[is_such] = (place - row)[is_such], one
    return nights, noise, least, after, sign


def mended_events(rows: pd.DataFrame, events: pd.DataFrame, joint: Int64Array) -> tuple[pd.DataFrame, list[str]]:
    """Return events with splits on the days and with the ratios, or their inverse, that prices show, and notes.

    Raises `DataError` for a split that prices contradict otherwise, and a dividend of more than its price.

    Args:
        rows: those of `adjust_for_events`.
        events: the same, but `ticker` as text, and with an index without repeats.
        joint: (rows,) 1 at first new bars of a ticker that repeat old ones, 2 where they follow them, otherwise 0.
    """
    names, day, close = rows["ticker"].cat.categories, rows["day"].to_numpy(), rows["close"].to_numpy()
    located = _located(rows, events.assign(ticker=names.get_indexer(events["ticker"])), past_last=True)
    kept = np.ones(len(names))  # by later dividends, for which prices may be adjusted
    for one in located[located["dividend"] > 0].sort_values("day", ascending=False).itertuples():
        before = close[one.row - 1] / one.split
        if kept[one.ticker] * one.dividend >= before:
            got = f"a close of {before:g} before it"
            raise _contradiction(f"dividend of {one.dividend:g}", names[one.ticker], one.day, got)
        kept[one.ticker] /= 1 + kept[one.ticker] * one.dividend / before
    located = located[(located["split"] != 1) & (located["row"] < len(rows))]
    owner, row, split = (located[name].to_numpy() for name in ("ticker", "row", "split"))
    nights, _, least, after, sign = seen(rows, row, -np.log(split), joint)
    size, moves = np.abs(np.log(split)), -np.nan_to_num(nights[row]) * np.sign(np.log(split))
    is_odd = (moves > np.maximum(2 * least, size / 4)) | (-moves > np.maximum(2 * least, size / 2))
    is_lost = (sign == 0) & (is_odd | (joint[row] == 2) & (size > 2 * least))
    for place in np.flatnonzero(is_lost | (np.abs(after) > NEAR)):
        at = row[place] + after[place]
        got = f"a move of {np.expm1(nights[at]):+.0%} on {date_of(day[at])}"
        raise _contradiction(f"split {split[place]:g}:1", names[owner[place]], int(located["day"].iloc[place]), got)
    if (sign < 0).any() and not (sign > 0).any():  # a vendor has one notation
        sign[:] = -1
    events, notes = events.copy(), list[str]()
    for column, is_such, now, what in (
        ("split", sign < 0, 1 / split, "ratios were taken the other way round, as prices move"),
        ("day", after != 0, day[row + after], "were taken on the day on which prices move"),
    ):
        events.loc[located.index[is_such], column] = now[is_such]
        tickers = ", ".join(names[np.unique(owner[is_such])[:3]])
        notes += [f"Splits: {is_such.sum():,} {what}, such as of {tickers}"] * bool(is_such.any())
    return events, notes


def _contradiction(what: str, ticker: str, day: int, got: str) -> DataError:
    return DataError(
        f"expected a {what} of {ticker} on {date_of(day)} that prices allow, got {got}; mend it, or leave the "
        "column out: --columns ignore=TITLE"
    )


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
    split, close = located["split"].to_numpy(), rows["close"].to_numpy()
    has_split, (nights, noise, _, after, sign) = split != 1.0, seen(rows, row, -np.log(split))
    gaps = nights[row]
    raw_splits = _states(gaps, -np.log(split), owner, has_split, noise, tickers)
    of_split = np.where((sign == 1) & (after == 0), 1.0, raw_splits[owner])
    before = close[row - 1] / np.where(of_split == 1, split, 1.0)
    kept = 1.0 - located["dividend"].to_numpy() / before
    has_dividend = (kept < 1.0) & (kept > 0.0)
    by_dividend = np.where(has_dividend, kept, 1.0)
    raw_dividends = np.where(raw_splits == 1, 1.0, np.nan)  # no vendor adjusts for dividends but not for splits
    for group in (raw_splits == 0, np.isnan(raw_splits)):
        alone = has_dividend & ~has_split & group[owner]
        raw_dividends[group] = _states(gaps, np.log(by_dividend), owner, alone, noise, tickers)[group]
    steps = np.zeros(len(rows))
    np.add.at(steps, row, np.where(of_split == 1, -np.log(split), 0.0))
    np.add.at(steps, row, np.where(raw_dividends[owner] == 1, np.log(by_dividend), 0.0))
    adjusted, notes = scaled(rows, steps, is_settled), list[str]()
    for what, has, raw in (("Splits", has_split, of_split), ("Dividends", has_dividend, raw_dividends[owner])):
        of_event = np.nan_to_num(raw, nan=-1.0)
        for state, outcome in _OUTCOMES.items():
            is_such = has & (of_event == state)
            if is_such.any():
                notes.append(f"{what}: {is_such.sum():,} of {len(np.unique(owner[is_such])):,} tickers: {outcome}")
    return adjusted, notes


def scaled(rows: pd.DataFrame, steps: Float64Array, is_settled: NDArray[np.bool_] | None = None) -> pd.DataFrame:
    """Return rows whose prices before each step, a logarithm, are multiplied by it, and volume the other way."""
    passed, codes = np.cumsum(steps), rows["ticker"].cat.codes.to_numpy()
    factor = np.exp(passed[np.searchsorted(codes, codes, side="right") - 1] - passed)
    factor = factor if is_settled is None else np.where(is_settled, 1.0, factor)
    return rows.assign(**{role: rows[role] * factor for role in PRICES}, volume=rows["volume"] / factor)


def _located(rows: pd.DataFrame, events: pd.DataFrame, *, past_last: bool = False) -> pd.DataFrame:
    """Return events between two bars of their ticker, each with the first row on or after its date.

    Events before the first bar or after the last change no price; those `past_last` are at the row after it.
    """
    located = events.assign(
        split=events["split"].where(np.isfinite(events["split"]) & (events["split"] > 0), 1.0),
        dividend=events["dividend"].where(np.isfinite(events["dividend"]) & (events["dividend"] > 0), 0.0),
    )
    codes = rows["ticker"].cat.codes.to_numpy(dtype=np.int64)
    key = codes * 2**32 + rows["day"].to_numpy()
    place = np.searchsorted(key, located["ticker"].to_numpy(dtype=np.int64) * 2**32 + located["day"].to_numpy())
    owner = np.concatenate(([-1], codes, [-1]))
    is_inside = (
        (located["ticker"] >= 0)
        & (owner[place] == located["ticker"])
        & ((owner[place + 1] == located["ticker"]) | past_last)
    )
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
    is_sure = (error < SURE) & (np.abs(slope - 0.5) > SURE)
    return np.where(is_sure, slope > 0.5, np.nan)
