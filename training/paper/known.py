"""Data in the terms of an account: its names of the tickers, its price units, and the bars that it knew.

Adjusted prices are multiplied back to the first day whenever a stock pays a dividend or is split. An account keeps the
names and units of its opening, and its journal the bars of its sessions: data are translated when they are read, so
that orders play as they did, and shares, entries and targets mean what they meant. Dividends are thereby reinvested.
Shares and prices for people and brokers are translated back by `units`.
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
from numpy.typing import NDArray

from data.events import Event, explaining
from data.features.nine import CLOSE, PRICES, indicators
from data.market import Market
from data.readjustment import Readjustment, readjustment
from data.record import MarketRecord, history_of, past_ratios
from training.paper.journal import Journal, Row

_CLOSE = PRICES.index(CLOSE)
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


def units(journal: Journal, until: str = "9999", *, splits_until: str = "") -> defaultdict[str, float]:
    """Return by ticker the factor from the account's prices to those of a day, by its events; 1 for all others.

    Args:
        splits_until: day up to which splits count, if it is later.
    """
    factors = defaultdict[str, float](lambda: 1.0)
    for event in journal.of("event").values():
        if event.body["since"] <= (max(until, splits_until) if event.body["kind"] == "split" else until):
            factors[event.body["ticker"]] *= event.body["ratio"]
    return factors


def names(journal: Journal) -> dict[str, str]:
    """Return the newest names of the tickers that were renamed, by those that the account opened with."""
    renamed = dict[str, str]()
    for row in journal.of("rename").values():
        first = next((ticker for ticker, name in renamed.items() if name == row.body["old"]), row.body["old"])
        renamed[first] = row.body["new"]
    return renamed


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


def _merged(days: NDArray[np.bool_], column: int, other: int, cells: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (days, columns, ...) cells with another column's on some days."""
    cells = cells.copy()
    cells[days, column] = cells[days, other]
    return cells


def packed(market: Market, day: int) -> str:
    """Return the prices, and volume if there is any, of all tickers on a day as text, for the journal."""
    return base64.b64encode(_values(market)[day].astype("<f4").tobytes()).decode()


def known_market(
    market: Market, record: MarketRecord, journal: Journal, named: Sequence[Event] = ()
) -> tuple[Market, list[Change]]:
    """Return data in the terms of an account, and what they bring that its journal lacks.

    Args:
        market: under the account's names, pinned to its record.
        record: of the market at the opening.
        named: events that a vendor names, by date and under the account's names. Where they explain the ratio of new to
            old prices, each is recorded by its day and kind; otherwise the measured ratio is recorded as one event.
    """
    factors, asked, changes = units(journal), _accepted(journal), list[Change]()
    dates, past = market.dates.astype("datetime64[D]").astype(str).tolist(), _past(market, record, asked)
    place, now = {date: day for day, date in enumerate(dates)}, _values(market)
    rows = [row for row in journal.of("session").values() if "bars" in row.body and row.key in place]
    days, prices = [place[row.key] for row in rows], slice(0, len(PRICES))
    arrays = [np.frombuffer(base64.b64decode(row.body["bars"]), "<f4") for row in rows]
    bars = np.array(arrays, dtype=np.float64).reshape(-1, *now.shape[1:])
    for row in journal.of("event").values():
        _rescale(bars[:, market.tickers.index(row.body["ticker"])], rows, row.body, row.number)
    following = days[-1] + 1 if days else place.get(journal.opening["start"], len(dates) - 1) + 1
    day_after = market.dates[-1].astype("datetime64[D]") + np.timedelta64(1, "D")
    next_session = dates[following] if following < len(dates) else str(day_after)
    for column, ticker in enumerate(market.tickers):
        settled = {date for body in asked.get(ticker, ()) for date in body["dates"]}
        kept = [row for row, one in enumerate(rows) if one.key not in settled]
        factor, old = factors[ticker], bars[:, column]
        before, current = factor * old[kept, prices], now[[days[row] for row in kept], column, prices]
        change = readjustment(before, current)
        total, is_past_other = _total(factor, past.get(ticker, 1.0), change, bool(np.isfinite(before).any()))
        if total == factor and change.ratio != 1:  # the bars before the opening were not multiplied
            is_same = np.isclose(before, current, rtol=_SAME, equal_nan=True)
            change = Readjustment(1.0, 0, np.asarray(~is_same.all(axis=1)))
        if not math.isclose(total, factor, rel_tol=2 * _SAME):
            as_before = [row for row in range(change.bars or len(kept), len(kept)) if np.isfinite(before[row]).any()]
            since, ratio = rows[kept[as_before[0]]].key if as_before else next_session, float(f"{total / factor:.9g}")
            multiplied = kept[: change.bars or len(kept)]
            after = rows[multiplied[-1]].key if multiplied else record.known_to
            until = since if as_before else dates[-1]
            closes = before[: len(multiplied), _CLOSE]
            close = float([math.nan, *closes[np.isfinite(closes)]][-1])
            candidates = [one for one in named if one.ticker == ticker and after < one.date <= until]
            for event in _events(ticker, since, ratio, explaining(candidates, ratio, close)):
                changes.append(event)
                _rescale(old, rows, event.body, journal.last.number + 1)
            factors[ticker] = factor * ratio
        if is_past_other or change.revised.any():
            revised = [kept[row] for row in np.flatnonzero(change.revised)]
            texts = [f"close {old[row, 1]:g} on {rows[row].key}, now {now[days[row], column, 1]:g}" for row in revised]
            texts = [*texts[:2], *([f"{len(texts) - 2} more bars"] if len(texts) > 2 else [])]
            texts += [f"other bars up to {record.known_to}"] if is_past_other else []
            body: dict[str, Any] = {"ticker": ticker, "dates": [rows[row].key for row in revised]}
            body["history"] = history_of(market, ticker, record) if is_past_other else None
            body["text"] = f"the bars of {ticker} as the account knew them, got {', '.join(texts)}"
            key = hashlib.sha256(repr(sorted(body.items())).encode()).hexdigest()[:12]
            changes.append(Change("hold", f"revision {ticker} {key}", body))
    return _translated(market, factors, days, bars), changes


def _events(ticker: str, since: str, ratio: float, named: Sequence[tuple[Event, float]]) -> list[Change]:
    """Return the rows of a ticker's events: those that are named, and else the one that was measured."""
    if not named:
        kind = "dividend" if 0.9 < ratio < 1 else "split"
        text = f"{kind} of {ticker}: prices before {since} are those known times {ratio:g}"
        body = {"ticker": ticker, "since": since, "ratio": ratio, "kind": kind, "text": text}
        return [Change("event", f"{ticker} {since} {ratio!r}", body)]
    changes = list[Change]()
    for event, part in named:
        is_split = event.kind == "split"
        said = f"by {event.size:g}" if is_split else f"of {event.size:g} a share, paid on {event.pay_date}"
        text = f"{event.kind} of {ticker} {said}: prices before {event.date} are those known times {part:g}"
        body = {"ticker": ticker, "since": event.date, "ratio": part, "kind": event.kind, "text": text}
        body |= {} if is_split else {"cash": event.size, "pay": event.pay_date}
        changes.append(Change("event", f"{ticker} {event.date} {event.kind}", body))
    return changes


def _accepted(journal: Journal) -> dict[str, list[dict[str, Any]]]:
    """Return the revisions that a person has accepted, by ticker."""
    last, accepted = max((row.number for row in journal.of("go").values()), default=0), dict[str, list[Any]]()
    for row in journal.of("hold").values():
        if row.number < last and "history" in row.body:
            accepted.setdefault(row.body["ticker"], []).append(row.body)
    return accepted


def _past(market: Market, record: MarketRecord, asked: Mapping[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Return `past_ratios`, where a history that a person has accepted is as good as the recorded one."""
    ratios, accepted = past_ratios(market, record), record
    for ticker, bodies in asked.items():
        for history in (body["history"] for body in bodies if body["history"]):
            prints = record.fingerprints | {ticker: history["fingerprint"]}
            accepted = replace(record, fingerprints=prints, sketches=record.sketches | {ticker: history["sketch"]})
            if math.isnan(ratios.get(ticker, 1.0)):
                ratios[ticker] = past_ratios(market, accepted).get(ticker, 1.0)
    return ratios


def _total(factor: float, past: float, change: Readjustment, has_bars: bool) -> tuple[float, bool]:
    """Return the factor to a file's units by the bars before and after the opening, and whether the former changed
    otherwise."""
    total = factor * change.ratio
    if math.isnan(past):
        return total, True
    if not has_bars or abs(math.log(past / total)) <= min(abs(math.log(past / factor)), _NEAR):
        return past, False  # measured on more bars
    return (factor, False) if math.isclose(past, factor, rel_tol=_SAME) else (total, True)


def _rescale(bars: NDArray[np.float64], rows: Sequence[Row], event: Mapping[str, Any], number: int) -> None:
    """Convert a ticker's (sessions, values) bars since an event that were known before it, in place."""
    late = [row for row, one in enumerate(rows) if one.key >= event["since"] and one.number < number]
    bars[late, : len(PRICES)] /= event["ratio"]
    bars[late, len(PRICES) :] *= event["ratio"]  # volume


def _values(market: Market) -> NDArray[np.float32]:
    """Return (days, columns, 4 or 5) prices, and volume if there is any."""
    prices = market.data_array[..., list(PRICES)]
    return prices if market.volume is None else np.concatenate((prices, market.volume[..., None]), axis=2)


def _translated(market: Market, factors: Mapping[str, float], days: Sequence[int], bars: NDArray[np.float64]) -> Market:
    """Return data in the account's units, with the bars that it knew."""
    factor = np.array([factors[ticker] for ticker in market.tickers], dtype=np.float64)
    array, volume, places = market.data_array.copy(), market.volume, range(len(factor))
    array[..., list(PRICES)] /= factor[:, None].astype(np.float32)
    array[np.ix_(days, places, PRICES)] = bars[..., : len(PRICES)]
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
