"""Prices adjusted for splits and dividends, and by factors, once.

A split of s new shares for one multiplies earlier prices by 1/s, a dividend D by 1 - D/P, where P is the close before
the ex-date, per share after a split of that day: the multipliers of Yahoo's adjusted close, after CRSP (Yahoo help,
"What is the adjusted close?", whose example is a test). Volume is divided by the same, which leaves the turnover, price
x volume, unchanged.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from data.prepare.layout import EVENTS, PRICES, STANDARD, UnclearFileError, ranked_role, role_of
from data.prepare.text import date_of
from utils.arrays import Float64Array, Int64Array
from utils.errors import DataError

_SURE = 1 / 6
"""Largest standard error of a slope, and half of its largest distance from -1, 0 or 1, that decide which it is."""
_LARGE, _SIGMAS = 0.2, 8
"""Logarithm of an event from which on a single move is told from news, and the same in standard deviations."""
_FAR = 10
"""Sessions around the day of a large event within which its move is looked for."""
_NORMAL = 1.4826
"""Standard deviation of a normal variable over its median absolute value."""
_ROUNDING = 1e-4
"""Logarithm up to which a factor has not changed."""
_OFTEN = 0.1
"""Share of rows with changes from which on a column is no factor."""
_OUTCOMES = {
    1.0: "not in the prices, which move by them; prices adjusted, volume the other way",
    0.0: "in the prices already, which do not move by them; left as they are",
    -1.0: "prices do not tell whether they are in them already; left as they are, for yfinance adjusts unless told not "
    "to; give an adjusted close if they are not",
}
"""What is done by the state of the prices: raw, adjusted already, inconclusive."""


def scale_to_adjusted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with prices scaled to their adjusted close, volume the other way, and the `scale` of each."""
    adjusted, close = rows["adjusted"].to_numpy(), rows["close"].to_numpy()
    with np.errstate(all="ignore"):  # a close of zero gives NaN, and the row is dropped
        # A price equal to the close stays equal to it.
        scaled = {role: np.where(rows[role] == close, adjusted, rows[role] * (adjusted / close)) for role in PRICES}
        scaled |= {"volume": rows["volume"].to_numpy() * (close / adjusted), "scale": adjusted / close}
        return rows.drop(columns="adjusted").assign(**scaled)


def _seen(
    rows: pd.DataFrame, row: Int64Array, size: Float64Array, what: Sequence[str] = (), joint: Int64Array | None = None
) -> tuple[Float64Array, float, Float64Array]:
    """Return what overnight moves show of events at some rows, by whose `size`, a logarithm, raw prices fall.

    These are, by event, the move; the standard deviation of all others; 1 where the prices fall by it, -1 where they
    rise by it, 0 where they do neither, NaN for one too small to tell alone. `joint` is that of `checked_events`.
    Raises `DataError` for one, where they have names (`what`), that another move contradicts.
    """
    codes = rows["ticker"].cat.codes.to_numpy(dtype=np.int64)
    with np.errstate(all="ignore"):
        moves = np.append(np.nan, np.log(rows["open"].to_numpy()[1:] / rows["close"].to_numpy()[:-1]))
    nights = np.where((codes == np.append(-1, codes[:-1])) & np.isfinite(moves), moves, np.nan)
    gaps, others = nights[row], nights.copy()
    others[row] = np.nan
    quiet = others[np.isin(codes, codes[row]) & np.isfinite(others)]
    noise = _NORMAL * float(np.median(np.abs(quiet))) if len(quiet) else np.inf
    least, size_ = max(_LARGE, _SIGMAS * noise if len(quiet) else 0.0), np.abs(size)
    # On the very day news may add to the move.
    cases = size_ <= least, np.abs(gaps + size) < size_ / 2, np.abs(gaps - size) < size_ / 4
    told = np.select(cases, (np.nan, 1.0, -1.0))
    is_lost = np.abs(gaps) > np.maximum(2 * least, size_ / 4)
    if joint is not None:
        is_lost |= (joint[row] == 2) & (size_ > 2 * least)
        others[joint > 0] = np.nan
    at = np.where((told == 0) & is_lost, row, -1)
    for step in sorted(range(-_FAR, _FAR + 1), key=abs):
        place = np.clip(row + step, 0, len(rows) - 1)
        is_there = (codes[place] == codes[row]) & (np.abs(np.abs(others[place]) - size_) < size_ / 4)
        at = np.where((told == 0) & (at < 0) & (size_ > 2 * least) & is_there, place, at)
    for place in np.flatnonzero(at >= 0)[: len(what)]:
        got = f"a move of {np.expm1(nights[at[place]]):+.0%} on {date_of(rows['day'].iloc[at[place]])}"
        raise contradiction(what[place], rows["day"].iloc[row[place]], got)
    return gaps, noise, told


def contradiction(what: str, day: float, got: str) -> DataError:
    """Return an error that says what prices do where an event is named."""
    return DataError(
        f"expected a {what} on {date_of(day)} that prices allow, got {got}; mend it, or leave the column out: "
        "--columns ignore=TITLE"
    )


def one_a_day(events: pd.DataFrame) -> pd.DataFrame:
    """Return events, one for each ticker and day, the split of one row beside the dividend of another.

    Raises `DataError` where rows have different ones.
    """
    days = events.groupby(["ticker", "day"])
    for name in EVENTS:
        least, most = days[name].min(), days[name].max()
        if (differs := most > (1 + _ROUNDING) * least).any():
            ticker, day = differs.idxmax()
            got = f"{least[ticker, day]:g} and {most[ticker, day]:g}"
            raise DataError(
                f"expected one {name} of {ticker} on {date_of(day)}, got {got}; leave the wrong one out, or give what "
                "they are together"
            )
    return days.last().reset_index()


def checked_events(
    rows: pd.DataFrame, events: pd.DataFrame, joint: Int64Array | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Return events with the ratios of splits, or their inverse, that prices show, and notes.

    Raises `DataError` for a split that prices contradict otherwise, and a dividend of more than its price.

    Args:
        rows: those of `adjust_for_events`.
        events: the same, but `ticker` as text, and with an index without repeats.
        joint: (rows,) 1 at first new bars of a ticker that repeat old ones, 2 where they follow them, otherwise 0.
    """
    names, close = rows["ticker"].cat.categories, rows["close"].to_numpy()
    located = _located(rows, events.assign(ticker=names.get_indexer(events["ticker"])), past_last=True)
    kept = np.ones(len(names))  # by later dividends, for which prices may be adjusted
    for one in located[located["dividend"] > 0].sort_values("day", ascending=False).itertuples():
        before = close[one.row - 1] / one.split
        if kept[one.ticker] * one.dividend >= before:
            paid = f"dividend of {one.dividend:g} of {names[one.ticker]}"
            raise contradiction(paid, one.day, f"a close of {before:g} before it")
        kept[one.ticker] /= 1 + kept[one.ticker] * one.dividend / before
    located = located[(located["split"] != 1) & (located["row"] < len(rows))]
    owner, split = names[located["ticker"]], located["split"].to_numpy()
    what = [f"split {size:g}:1 of {name}" for size, name in zip(split, owner, strict=True)]
    _, _, told = _seen(rows, located["row"].to_numpy(), np.log(split), what, joint)
    if not (is_inverse := told < 0).any():
        return events, []
    is_inverse |= not (told > 0).any()  # a vendor has one notation
    events = events.copy()
    events.loc[located.index[is_inverse], "split"] = 1 / split[is_inverse]
    tickers = ", ".join(owner[is_inverse].unique()[:3])
    note = f"{is_inverse.sum():,} ratios were taken the other way round, as prices move, such as of {tickers}"
    return events, [f"Splits: {note}"]


def require_adjusted(rows: pd.DataFrame, events: pd.DataFrame) -> None:
    """Raise `UnclearFileError` where prices scaled to an adjusted close still move by events of its file.

    Args:
        rows, events: those of `checked_events`.
    """
    codes = rows["ticker"].cat.categories.get_indexer(events["ticker"])
    again, _ = adjust_for_events(rows, events.assign(ticker=codes))
    if not again["close"].equals(rows["close"]):
        raise UnclearFileError(
            "an adjusted close that still moves by splits or dividends of its file; leave it out: --columns "
            "ignore=TITLE"
        )


def with_factors(
    rows: pd.DataFrame, own: set[str], is_settled: pd.Series | bool = False
) -> tuple[pd.DataFrame, list[str], set[str]]:
    """Return rows without adjustment factors, adjusted by those that prices follow, notes, and the adjusted tickers.

    A factor has a title of one, is positive, seldom changes, and multiplies or divides the prices before a day. Raises
    `DataError` where prices move otherwise.

    Args:
        rows: sorted by `ticker` (a category) and `day`, once each.
        own: names of columns that are none.
        is_settled: (rows,) of those that are adjusted already.
    """
    notes, tickers = list[str](), set[str]()
    ranks = {name: rank for name in {*rows} - own for role, rank in [ranked_role(name)] if role == "factor"}
    for name in sorted(ranks, key=lambda name: (ranks[name], name)):
        if (steps := _steps(rows, name, is_settled)) is None:
            notes.append(f"{name!r} is no adjustment factor, by its values: a further column")
            continue
        row = np.flatnonzero(steps)
        change = f"change of the factor {name!r} (--keep {name} if it is none)"
        gaps, noise, _ = _seen(rows, row, steps[row], [change] * len(row))
        state = float(_state(-gaps @ steps[row], steps @ steps, noise))
        rows = rows.drop(columns=name)
        if abs(state) == 1:
            rows, tickers = scaled(rows, -state * steps), tickers | {*rows["ticker"].iloc[row]}
            notes.append(f"prices adjusted by {name!r}, as they move")
        else:
            why = "no price moves with it" if state == 0 else "prices do not tell whether they move with it"
            why = why if len(row) else "it never changes"
            notes.append(
                f"{name!r} is left out: it seems to be an adjustment factor, and {why}; --keep {name} keeps it"
            )
    return rows, notes, tickers


def require_no_factors(rows: pd.DataFrame, own: Collection[str] = (), is_settled: pd.Series | bool = False) -> None:
    """Raise `DataError` for a further column that is a factor in all but its title: it would know later splits.

    Shares outstanding, which also change with splits, change with less than splits, too, and are nowhere 1.

    Args:
        rows: raw ones, sorted by `ticker` (a category) and `day`.
        own: names of columns that are none.
        is_settled: (rows,) of those that are adjusted already.
    """
    for name in sorted({*rows}.difference(STANDARD, own)):
        if role_of(name) or (steps := _steps(rows, name, is_settled)) is None or not steps.any():
            continue
        row = np.flatnonzero(steps)
        gaps, noise, told = _seen(rows, row, steps[row])
        is_split = (np.abs(told) == 1).all() or np.isclose(rows[name], 1).any()
        if is_split and abs(_state(-gaps @ steps[row], steps @ steps, noise)) == 1:
            raise DataError(
                f"expected columns that know no later splits, got {name!r}, which moves as prices do in splits; "
                f"title it adj_factor to adjust by it, or say --keep {name} if it knows none"
            )


def _steps(rows: pd.DataFrame, name: str, is_settled: pd.Series | bool) -> Float64Array | None:
    """Return (rows,) logarithms of a factor of single days, or changes of a lasting one; None for what is no factor."""
    if (rows[name] < 0).any():
        return None
    known, is_first = rows[name].where(rows[name] > 0), ~rows["ticker"].duplicated().to_numpy()
    level = np.log(known.groupby(rows["ticker"], observed=True).ffill()).diff().fillna(0).mask(is_first, 0.0)
    of_day = np.log(known.fillna(1))
    level, of_day = (np.where(np.abs(one) < _ROUNDING, 0.0, one) for one in (level, of_day))
    is_lasting = (of_day != 0) & (is_first | (np.append(0.0, of_day[:-1]) != 0))
    steps = level if is_lasting.any() else of_day
    if np.count_nonzero(steps) > max(_OFTEN * len(rows), 2 * is_first.sum()):
        return None
    return np.where(is_settled, 0.0, steps)


def adjust_for_events(rows: pd.DataFrame, events: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return rows adjusted for events that their prices do not reflect yet, and what was done.

    Raw prices jump with a split and fall with a dividend, adjusted ones do not: for each kind of event the overnight
    move is regressed on the move of raw prices. Where a ticker's own events are inconclusive, those of all tickers
    decide unless they contradict one another; where these are inconclusive too, prices stay.

    Args:
        rows: sorted by `ticker` (a category) and `day`, once each.
        events: `ticker` as codes of that category, `day`, `split` (new shares for one) and `dividend` (cash per
            share), NaN for none.
    """
    located, tickers = _located(rows, events), len(rows["ticker"].cat.categories)
    owner, row = located["ticker"].to_numpy(), located["row"].to_numpy()
    split, close = located["split"].to_numpy(), rows["close"].to_numpy()
    has_split, (gaps, noise, told) = split != 1.0, _seen(rows, row, np.log(split))
    raw_splits = _states(gaps, -np.log(split), owner, has_split, noise, tickers)
    of_split = np.where(told == 1, 1.0, raw_splits[owner])
    before = close[row - 1] / np.where(of_split == 1, split, 1.0)
    by_dividend = kept_of(before, located["dividend"].to_numpy())
    has_dividend = by_dividend < 1.0
    raw_dividends = np.where(raw_splits == 1, 1.0, np.nan)  # no vendor adjusts for dividends but not for splits
    for group in (raw_splits == 0, np.isnan(raw_splits)):
        alone = has_dividend & ~has_split & group[owner]
        raw_dividends[group] = _states(gaps, np.log(by_dividend), owner, alone, noise, tickers)[group]
    steps = np.zeros(len(rows))
    np.add.at(steps, row, np.where(of_split == 1, -np.log(split), 0.0))
    np.add.at(steps, row, np.where(raw_dividends[owner] == 1, np.log(by_dividend), 0.0))
    adjusted, notes = scaled(rows, steps), list[str]()
    for what, has, raw in (("Splits", has_split, of_split), ("Dividends", has_dividend, raw_dividends[owner])):
        of_event = np.nan_to_num(raw, nan=-1.0)
        for state, outcome in _OUTCOMES.items():
            is_such = has & (of_event == state)
            if is_such.any():
                notes.append(f"{what}: {is_such.sum():,} of {len(np.unique(owner[is_such])):,} tickers: {outcome}")
    return adjusted, notes


def kept_of(close: Float64Array, dividend: Float64Array) -> Float64Array:
    """Return (events,) shares of a close before a dividend that it leaves, 1 where it takes all."""
    kept = 1.0 - dividend / close
    return np.where((kept > 0.0) & (kept < 1.0), kept, 1.0)


def scaled(rows: pd.DataFrame, steps: Float64Array) -> pd.DataFrame:
    """Return rows whose prices before each step, a logarithm, are multiplied by it, and volume the other way."""
    passed, codes = np.cumsum(steps), rows["ticker"].cat.codes.to_numpy()
    factor = np.exp(passed[np.searchsorted(codes, codes, side="right") - 1] - passed)
    return rows.assign(**{role: rows[role] * factor for role in PRICES}, volume=rows["volume"] / factor)


def _located(rows: pd.DataFrame, events: pd.DataFrame, *, past_last: bool = False) -> pd.DataFrame:
    """Return events between two bars of their ticker, each with the first row on or after its date.

    Events before the first bar or after the last change no price; those `past_last` are at the row after it.
    """
    located = events.fillna({"split": 1.0, "dividend": 0.0})
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
    together = _state(products.sum(), squares.sum(), noise)
    is_agreed = len(np.unique(states[np.isfinite(states)])) < 2
    return np.where(np.isnan(states) & is_agreed, together, states)


def _state(products: Float64Array | float, squares: Float64Array | float, noise: float) -> Float64Array:
    """Return 1, 0 or -1, the slope of moves on those expected, NaN where it is inconclusive or none of these."""
    with np.errstate(all="ignore"):
        slope, error = np.divide(products, squares), noise / np.sqrt(squares)
    state = np.clip(np.rint(slope), -1, 1)
    return np.where((error < _SURE) & (np.abs(slope - state) < 2 * _SURE), state, np.nan)
