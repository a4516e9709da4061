"""Data in the terms of an account: its names of the tickers, its price units, and the bars that it knew.

Adjusted prices are multiplied back to the first day whenever a stock pays a dividend or is split. An account keeps the
names and units of its opening, and its journal the bars of its sessions: data are translated when they are read, so
that orders play as they did, and shares, entries and targets mean what they meant. Dividends are thereby reinvested.
Shares and prices for people and brokers are translated back by `Journal.units`.
"""

import base64
import hashlib
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from data.events import Event, Readjustment, explaining, readjustment
from data.features.nine import CLOSE, PRICES, indicators
from data.market import Market
from data.record import MarketRecord, past_ratios
from training.paper.journal import Journal, Row
from utils.arrays import BoolArray, Float32Array, Float64Array

_CLOSE, _OF_PRICES = PRICES.index(CLOSE), slice(len(PRICES))
_SAME, _NEAR = 1e-6, 1e-3
"""Relative differences up to which two ratios are one: exactly measured, and measured on few bars in decimals."""


@dataclass(frozen=True)
class Change:
    """What data bring that an account's journal lacks, besides sessions, as its row there."""

    kind: str
    """`event`: prices of a ticker before the day `since` were multiplied by `ratio`, for a dividend or a split; `hold`:
    other prices of the past have changed."""
    key: str
    body: dict[str, Any]


def under_known_names(market: Market, renamed: Mapping[str, str]) -> Market:
    """Return data under an account's names; where a file has both names, the bars of the new one count."""
    columns, tickers = {ticker: column for column, ticker in enumerate(market.tickers)}, list(market.tickers)
    for known, new in renamed.items():
        if new in columns and known not in columns:
            tickers[columns[new]] = known
        elif new in columns:
            has_bar = np.isfinite(market.data_array[:, columns[new], CLOSE])
            market = market.map_cells(partial(_merged, has_bar, columns[known], columns[new]))
    return replace(market, tickers=tickers)


def _merged(days: BoolArray, column: int, other: int, cells: Float32Array) -> Float32Array:
    """Return (days, columns, ...) cells with another column's on some days."""
    cells = cells.copy()
    cells[days, column] = cells[days, other]
    return cells


def packed(market: Market, day: int) -> str:
    """Return the prices, and volume if there is any, of all tickers on a day as text, for the journal."""
    return base64.b64encode(_values(market)[day].astype("<f4").tobytes()).decode()


def known_market(
    market: Market, record: MarketRecord, journal: Journal, named: Sequence[Event]
) -> tuple[Market, list[Change]]:
    """Return data in the terms of an account, and what they bring that its journal lacks.

    Args:
        market: under the account's names, pinned to its record.
        record: of the market at the opening.
        named: events that a vendor names, by date and under the account's names. Where they explain the ratio of new to
            old prices, each is recorded by its day and kind; otherwise the measured ratio is recorded as one event.
    """
    factors, settled, ratios, changes = journal.units(), _settled(journal), past_ratios(market, record), list[Change]()
    dates, now = market.dates.astype(str).tolist(), _values(market)
    place = {date: day for day, date in enumerate(dates)}
    rows = [row for row in journal.of("session").values() if row.key in place]
    days = [place[row.key] for row in rows]
    arrays = [np.frombuffer(base64.b64decode(row.body["bars"]), "<f4") for row in rows]
    bars = np.array(arrays, dtype=np.float64).reshape(-1, *now.shape[1:])
    for row in journal.of("event").values():
        _rescale(bars[:, market.tickers.index(row.body["ticker"])], rows, row.body, row.number)
    last = days[-1] if days else place.get(journal.opening["start"], len(dates) - 1)
    next_session = [*dates, str(market.dates[-1] + 1)][last + 1]
    for column, ticker in enumerate(market.tickers):
        factor, old, accepted = factors[ticker], bars[:, column], settled[ticker]
        before, current = factor * old[:, _OF_PRICES], now[days, column, _OF_PRICES]
        is_settled = [row.key in accepted for row in rows]
        before[is_settled] = current[is_settled] = np.nan
        past = None if record.known_to in accepted else ratios.get(ticker, 1.0)
        total, change = _measured(before, current, factor, past)
        if not math.isclose(total, factor, rel_tol=2 * _SAME):
            until, ratio = change.bars or len(rows), float(f"{total / factor:.9g}")
            later = [row.key for row, bar in zip(rows[until:], before[until:], strict=True) if np.isfinite(bar).any()]
            after, by = rows[until - 1].key if until else record.known_to, later[0] if later else dates[-1]
            candidates = [one for one in named if one.ticker == ticker and after < one.date <= by]
            closes = before[:until, _CLOSE]
            close = float([math.nan, *closes[np.isfinite(closes)]][-1])
            since, explained = later[0] if later else next_session, explaining(candidates, ratio, close)
            for event in _events(ticker, since, ratio, explained):
                changes.append(event)
                _rescale(old, rows, event.body, journal.last.number + 1)
            factors[ticker] = factor * ratio
        revised = {rows[row].key: row for row in np.flatnonzero(change.revised).tolist()}
        texts = [f"close {before[at, _CLOSE]:g} on {date}, now {current[at, _CLOSE]:g}" for date, at in revised.items()]
        texts = texts[:2] + [f"{len(texts) - 2} more bars"] * (len(texts) > 2)
        changed = [*revised]
        if past is not None and not math.isclose(past, total, rel_tol=_NEAR):
            texts, changed = [*texts, f"other bars up to {record.known_to}"], [*changed, record.known_to]
        if texts:
            text = f"the bars of {ticker} as the account knew them, got {', '.join(texts)}"
            body = {"ticker": ticker, "dates": changed, "text": text}
            key = hashlib.sha256(repr(sorted(body.items())).encode()).hexdigest()[:12]
            changes.append(Change("hold", f"revision {ticker} {key}", body))
    return _translated(market, factors, days, bars), changes


def _measured(
    before: Float64Array, current: Float32Array, factor: float, past: float | None
) -> tuple[float, Readjustment]:
    """Return the factor from an account's prices to those of a file, and how a ticker's known bars have changed.

    Args:
        before: (sessions, 4) prices as they are known, in the units of the last file; NaN: not compared.
        current: those of the file.
        factor: to the units of the last file.
        past: to the file's by the bars before the opening, NaN where there is no single one; None: not compared.
    """
    change = readjustment(before, current)
    total = factor * change.ratio
    if past is None or math.isnan(past):
        return total, change
    is_moved = not math.isclose(past, factor, rel_tol=2 * _SAME)
    if is_moved and np.isfinite(before).any() and not math.isclose(past, total, rel_tol=_NEAR):
        return total, change
    if not is_moved and change.ratio != 1:  # the bars before the opening were not multiplied
        is_same = np.isclose(before, current, rtol=_SAME, equal_nan=True)
        change = Readjustment(1.0, 0, np.asarray(~is_same.all(axis=1)))
    return past, change  # measured on more bars


def _events(ticker: str, since: str, ratio: float, named: Sequence[tuple[Event, float]]) -> list[Change]:
    """Return the rows of a ticker's events: those that are named, and else the one that was measured."""
    measured, changes = Event(ticker, since, "dividend" if 0.9 < ratio < 1 else "split", 0.0, ""), list[Change]()
    for event, part in named or [(measured, ratio)]:
        body: dict[str, Any] = {"ticker": ticker, "since": event.date, "ratio": part, "kind": event.kind}
        said, key = "", f"{ticker} {event.date} {event.kind if named else repr(ratio)}"
        if named and event.kind == "dividend":
            body |= {"cash": event.size, "pay": event.pay_date}
            said = f" of {event.size:g} a share, paid on {event.pay_date}"
        elif named:
            said = f" by {event.size:g}"
        body["text"] = f"{event.kind} of {ticker}{said}: prices before {event.date} are those known times {part:g}"
        changes.append(Change("event", key, body))
    return changes


def _settled(journal: Journal) -> defaultdict[str, set[str]]:
    """Return by ticker the sessions, and last day before them, whose changed prices a person has accepted."""
    settled = defaultdict[str, set[str]](set)
    for row in journal.of("hold").values():
        if row.number < journal.accepted_until and "dates" in row.body:
            settled[row.body["ticker"]].update(row.body["dates"])
    return settled


def _rescale(bars: Float64Array, rows: Sequence[Row], event: Mapping[str, Any], number: int) -> None:
    """Convert a ticker's (sessions, values) bars since an event that were known before it, in place."""
    late = [row for row, one in enumerate(rows) if one.key >= event["since"] and one.number < number]
    bars[late, _OF_PRICES] /= event["ratio"]
    bars[late, len(PRICES) :] *= event["ratio"]  # volume


def _values(market: Market) -> Float32Array:
    """Return (days, columns, 4 or 5) prices, and volume if there is any."""
    prices = market.data_array[..., list(PRICES)]
    return prices if market.volume is None else np.concatenate((prices, market.volume[..., None]), axis=2)


def _translated(market: Market, factors: Mapping[str, float], days: Sequence[int], bars: Float64Array) -> Market:
    """Return data in the account's units, with the bars that it knew."""
    factor = np.array([factors[ticker] for ticker in market.tickers], dtype=np.float64)
    array, volume, places = market.data_array.copy(), market.volume, range(len(factor))
    array[..., list(PRICES)] /= factor[:, None].astype(np.float32)
    array[np.ix_(days, places, PRICES)] = bars[..., _OF_PRICES]
    is_same = np.equal(array, market.data_array) | np.isnan(array) & np.isnan(market.data_array)
    for column in np.flatnonzero(~is_same.all(axis=(0, 2))):
        close = array[:, column, CLOSE].astype(np.float64)
        has_bar = np.isfinite(close)
        array[:, column, len(PRICES) :] = np.nan
        array[has_bar, column, len(PRICES) :] = indicators(close[has_bar])
    if volume is not None:
        volume = (volume * factor).astype(np.float32)
        volume[days] = bars[..., -1]
    return replace(market, data_array=array, volume=volume)
