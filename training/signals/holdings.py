"""Holdings at a close, read from a file: shares as they are then, whatever was split or paid since they were bought."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.events import Event, read_events
from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from training.policies.read import days_of, numbers_of, read_rows, titled
from utils.errors import DataError

logger = logging.getLogger(__name__)
_NEAR = 1.1
"""Ratio of an entry's price to the prices of its day beyond which it is another stock's, or that before a split."""
_SAME = 1e-3
"""Relative difference up to which an entry's price is one of its day, as decimals leave it."""
_MOST = 10**12
"""Largest number of shares, and price: what a whole number holds."""
_LONG = ("long", "buy", "l", "b", "")
"""Sides of a position that is held."""
COLUMNS = ("ticker", "shares", "entry_date", "entry_price")


@dataclass(frozen=True)
class Holding:
    """Shares of a stock at a close; prices and amounts in currency units."""

    ticker: str
    column: int
    """Its place among all columns of the market."""
    shares: float
    entry_price: float | None = None
    """What a share of today was bought at; None: not told."""
    moved: str = ""
    """What splits and dividends have made of the position in its file; empty where that is the same."""

    def unrealised(self, price: float) -> float | None:
        """Return by how much a price is above what was paid less dividends since, percent."""
        return None if self.entry_price is None else 100 * (price / self.entry_price - 1)


def read_holdings(path: Path, market: Market, day: int) -> list[Holding]:
    """Read what is held at the close of `day` from a CSV file with the columns of `COLUMNS`, the last two optional.

    Splits and dividends since its entry that a row does not know yet are applied to it.

    Raises:
        DataError: the file cannot be read, or a row is no holding of this market at that day.
    """
    where, found, events = str(path), dict[str, Holding](), read_events(market.source)
    try:
        for place, row in _rows(path, market).iterrows():
            where = f"row {place + 1} of {path}"
            holding = _holding(row, market, day, events)
            if holding.ticker in found:
                raise ValueError(f"{holding.ticker} a second time")
            found[holding.ticker] = holding
    except ValueError as error:
        raise DataError(f"expected positions with {','.join(COLUMNS)} in {where}, got {error}; mend it") from None
    return list(found.values())


def _rows(path: Path, market: Market) -> pd.DataFrame:
    """Return the rows, with the market's tickers, days and numbers; those of a summary are left out with a word."""
    rows = titled(read_rows(path, "positions"))
    if missing := [name for name in COLUMNS[:2] if name not in rows]:
        raise ValueError(f"no {missing[0]} in its header, or two columns of a kind")
    sides = rows.get("side", pd.Series(dtype=str)).dropna().astype(str).str.strip().str.lower()
    if not (is_long := sides.isin(_LONG)).all():
        raise ValueError(f"a side of {sides[~is_long].iloc[0]!r}, where all positions are long")
    rows = rows.reindex(columns=COLUMNS).dropna(how="all")
    rows["ticker"] = rows["ticker"].fillna("").str.strip()
    rows["ticker"] = rows["ticker"].map(market.spelled(rows["ticker"].unique()))
    is_other = ~rows["ticker"].isin(market.tickers) & (rows["shares"].isna() | (rows["ticker"] == ""))
    for place, ticker in rows["ticker"][is_other].items():
        logger.warning("no position, and left out: row %d of %s, %r without shares", place + 1, path, ticker)
    rows = rows[~is_other]
    dates = rows["entry_date"].dropna()
    days = days_of(dates, str(path), market.dates.astype(np.int32)).astype(str)
    return numbers_of(rows[["shares", "entry_price"]], str(path)).assign(
        ticker=rows["ticker"], entry_date=pd.Series(days, dates.index, dtype=str).reindex(rows.index, fill_value="")
    )


def _holding(row: "pd.Series[Any]", market: Market, day: int, events: Sequence[Event]) -> Holding:
    """Raise ValueError where a row is no holding."""
    ticker, entry_date = row["ticker"], row["entry_date"]
    if ticker not in market.tickers:
        raise ValueError(f"{ticker!r}, which the data do not have")
    column, shares = market.tickers.index(ticker), float(row["shares"])
    price = None if pd.isna(row["entry_price"]) else float(row["entry_price"])
    if not all(0 < number <= _MOST for number in (shares, 1.0 if price is None else price)):
        at = "" if price is None else f" at {price:g}"
        raise ValueError(f"{shares:g} shares{at} in place of numbers above 0, up to {_MOST:g}")
    if not np.isfinite(market.data_array[: day + 1, column, CLOSE]).any():
        raise ValueError(f"{ticker}, which has no price until {market.dates[day]}")
    if bool(entry_date) != (price is not None):
        raise ValueError(f"an entry of {ticker} without its {'price' if entry_date else 'date'}, which go together")
    holding = Holding(ticker, column, shares, price)
    if not entry_date:
        return holding
    entry = session(entry_date, market, f"the entry of {ticker}")
    if entry > day:
        raise ValueError(f"an entry after {market.dates[day]}")
    since = [one for one in events if one.ticker == ticker and entry_date < one.date <= str(market.dates[-1])]
    return _in_todays_units(holding, market, entry, day, since)


def _in_todays_units(holding: Holding, market: Market, entry: int, day: int, events: Sequence[Event]) -> Holding:
    """Return a holding in the units of the market's prices at the close of `day`.

    The bar of the entry day tells which events the file has applied. A price within that day's range has all of them
    applied, unless it equals the open as quoted before a dividend and not the open after it: then it dates from before.

    Args:
        events: those after its entry by date, of its ticker.

    Raises:
        ValueError: its price is none of its entry's day, before or after any event.
    """
    entered = float(holding.entry_price or 0.0)
    bars = market.data_array[entry : day + 1, holding.column]
    traded = (bar[[OPEN, LOW, HIGH]].tolist() for bar in bars if np.isfinite(bar[CLOSE]))
    opened, low, high = next(traded, [entered] * 3)
    ratios = _ratios(holding, market, events)
    later = [math.prod(ratios[known:]) for known in range(len(ratios) + 1)]

    def misfit(known: int) -> tuple[float, bool]:
        price = entered * later[known]
        return max(low / price, price / high, 1 + _SAME), abs(price / opened - 1) > _SAME

    known = min(range(len(events), -1, -1), key=misfit)
    if misfit(known)[0] > _NEAR:
        before = [f", {low / by:g} to {high / by:g} before the {one}" for one, by in zip(events, later, strict=False)]
        raise ValueError(
            f"an entry of {holding.ticker} at {entered:g}, whose prices are {low:g} to {high:g} that day"
            f"{''.join(before)}; after a split give its price and shares as they are since then"
        )
    return _after(holding, entered, list(zip(events, ratios, strict=True))[known:], str(market.dates[day]))


def _ratios(holding: Holding, market: Market, events: Sequence[Event]) -> list[float]:
    """Return by what each event has multiplied earlier prices, which are adjusted for all of them."""
    ratios, dates, closes = list[float](), market.dates.astype(str), market.data_array[..., CLOSE]
    for event in reversed(events):
        before = closes[dates < event.date, holding.column]
        close = float([math.nan, *before[np.isfinite(before)]][-1]) / math.prod(ratios)
        after_dividend = close / (close + event.size) if np.isfinite(close) else 1.0
        ratios.append(after_dividend if event.kind == "dividend" else 1 / event.size)
    return ratios[::-1]


def _after(holding: Holding, entered: float, events: Sequence[tuple[Event, float]], today: str) -> Holding:
    """Return a holding after events that its file did not know, each with by what it has multiplied prices.

    A dividend leaves its shares, and is paid in cash; one after `today` is in its prices only.
    """
    shares, paid = holding.shares, ""
    for event, _ in events:
        if event.kind == "split":  # whole shares stay whole
            shares = shares * event.fraction.numerator / event.fraction.denominator
        elif event.date <= today:
            paid += f", and {shares * event.size:,.2f} in cash on {event.pay_date}"
    if not events:
        return holding
    price = entered * math.prod(ratio for _, ratio in events)
    applied, before = ", ".join(str(event) for event, _ in events), f"{holding.shares:g} shares at"
    moved = f"{before} {_shown(entered)} are {shares:g} at {_shown(price)}{paid}"
    text = f"{holding.ticker}: {applied} applied to the position: {moved}"
    return replace(holding, entry_price=price, shares=shares, moved=text)


def _shown(price: float) -> str:
    return f"{price:.2f}" if price >= 10 else f"{price:.4g}"


def session(date: str, market: Market, name: str) -> int:
    """Return the index of the session with an ISO date; DataError if there is none."""
    days = market.dates.astype(str).tolist()
    if date not in days:
        raise DataError(f"expected a session from {days[0]} to {days[-1]} for {name}, got {date!r}")
    return int(days.index(date))
