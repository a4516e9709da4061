"""Holdings at a close, read from a file: shares as they are then, whatever was split or paid since they were bought."""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from data.events import Event, read_events
from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from data.prepare.text import (
    NO_DAY,
    OTHER,
    bare_numbers,
    date_of,
    decimal_sign,
    lines_of,
    possible_orders,
    resolve_days,
)
from utils.errors import DataError

logger = logging.getLogger(__name__)
_NEAR = 1.1
"""Ratio of an entry's price to the prices of its day beyond which it is another stock's, or that before a split."""
_SAME = 1e-3
"""Relative difference up to which an entry's price is one of its day, as decimals leave it."""
COLUMNS = ("ticker", "shares", "entry_date", "entry_price")
_NEEDED = COLUMNS[:2]


@dataclass(frozen=True)
class Holding:
    """Shares of a stock at a close; prices and amounts in currency units."""

    ticker: str
    column: int
    """Its place among all columns of the market."""
    shares: float
    entry_price: float | None = None
    """What a share of today was bought at; None: not told."""
    kept: float = 1.0
    """Share of its price that dividends since the entry have left."""
    moved: str = ""
    """What splits and dividends have made of the position in its file; empty where that is the same."""

    def unrealised(self, price: float) -> float | None:
        """Return by how much a price is above what was paid, percent, dividends left out."""
        return None if self.entry_price is None else 100 * (price * self.kept / self.entry_price - 1)


def read_holdings(path: Path, market: Market, day: int) -> list[Holding]:
    """Read what is held at the close of `day` from a CSV file with the columns of `COLUMNS`, the last two optional.

    Splits and dividends since its entry that a row does not know yet are applied to it.

    Raises:
        DataError: the file cannot be read, or a row is no holding of this market at that day.
    """
    where, found, events = str(path), dict[str, Holding](), read_events(market.source)
    try:
        for line, row in _rows(path, market).items():
            where = f"line {line} of {path}"
            holding = _holding(row, market, day, events)
            if holding.ticker in found:
                raise ValueError(f"{holding.ticker} a second time")
            found[holding.ticker] = holding
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"expected positions with {','.join(COLUMNS)} in {where}, got {error}; mend it") from None
    return list(found.values())


def _rows(path: Path, market: Market) -> dict[int, dict[str, str]]:
    """Return the rows by line, with the market's tickers, ISO dates and decimal points; those of a summary are left out
    with a word. Raises ValueError where something stays open."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        separator = next((one for one in "\t;|" if one in head), ",")
        reader = csv.DictReader(file, delimiter=separator)
        if missing := [name for name in _NEEDED if name not in (reader.fieldnames or ())]:
            raise ValueError(f"no {missing[0]} in its header")
        read = dict((reader.line_num, row) for row in reader)
    if cut := [line for line, row in read.items() if None in row]:
        raise ValueError(f"more fields than titles on line {cut[0]}")
    rows = {line: {name: (row.get(name) or "").strip() for name in COLUMNS} for line, row in read.items()}
    spelled = market.spelled({row["ticker"] for row in rows.values()})
    for line, row in list(rows.items()):
        row["ticker"] = spelled[row["ticker"]]
        if not any(row.values()):
            del rows[line]
        elif row["ticker"] not in market.tickers and not (row["shares"] and row["ticker"]):
            logger.warning("no position, and left out: line %d of %s, %r without shares", line, path, row["ticker"])
            del rows[line]
    dates, bare = lines_of(row["entry_date"] for row in rows.values()), dict[str, list[str]]()
    orders = possible_orders(dates, market.dates.astype(np.int32)) if dates.strip() else [""]
    for name in ("shares", "entry_price"):
        text = bare_numbers(lines_of(row[name] for row in rows.values()))
        sign = decimal_sign(text) or "."
        sign = "." if separator == "," and sign == "?." else sign
        if sign not in OTHER or len(orders) != 1:
            raise ValueError("numbers or dates that may be read in two ways; write 1234.5 and 2020-12-31")
        bare[name] = text.replace(OTHER[sign], "").replace(sign, ".").split("\n")
    days = resolve_days(dates, orders[0]).tolist() if dates.strip() else [NO_DAY] * len(rows)
    for place, row in enumerate(rows.values()):
        row |= {name: texts[place] for name, texts in bare.items()}
        if row["entry_date"] and days[place] != NO_DAY:
            row["entry_date"] = str(date_of(days[place]))
    return rows


def _holding(row: Mapping[str, str], market: Market, day: int, events: Sequence[Event]) -> Holding:
    """Raise ValueError where a row is no holding."""
    ticker, entry_date = row["ticker"], row["entry_date"]
    if ticker not in market.tickers:
        raise ValueError(f"{ticker!r}, which the data do not have")
    column, shares = market.tickers.index(ticker), float(row["shares"])
    price = float(row["entry_price"]) if row["entry_price"] else None
    if not all(0 < number < np.inf for number in (shares, 1.0 if price is None else price)):
        raise ValueError(f"{row['shares']}, {row['entry_price']} in place of numbers above 0")
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
    shares, kept, paid = holding.shares, 1.0, ""
    for event, ratio in events:
        if event.kind == "split":  # whole shares stay whole
            shares = shares * event.fraction.numerator / event.fraction.denominator
        elif event.date > today:
            shares /= ratio
        else:
            kept *= ratio
            paid += f", and {shares * event.size:,.2f} in cash on {event.pay_date}"
    if not events:
        return holding
    price = entered * math.prod(ratio for _, ratio in events)
    applied, before = ", ".join(str(event) for event, _ in events), f"{holding.shares:g} shares at"
    moved = f"{before} {_shown(entered)} are {shares:g} at {_shown(price)}{paid}"
    text = f"{holding.ticker}: {applied} applied to the position: {moved}"
    return replace(holding, entry_price=price, shares=shares, kept=kept, moved=text)


def _shown(price: float) -> str:
    return f"{price:.2f}" if price >= 10 else f"{price:.4g}"


def session(date: str, market: Market, name: str) -> int:
    """Return the index of the session with an ISO date; DataError if there is none."""
    days = market.dates.astype(str).tolist()
    if date not in days:
        raise DataError(f"expected a session from {days[0]} to {days[-1]} for {name}, got {date!r}")
    return int(days.index(date))
