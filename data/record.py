"""A run's record of its market, such that data appended later change neither its splits nor its inputs."""

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from data.bars import VOLUME
from data.events import explaining, price_step, read_events
from data.features.nine import CLOSE, PRICES, NormalizationStats, normalization_stats
from data.market import Market, with_features
from data.splits import Span, Splits
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from utils.errors import DataError
from utils.tables import listed, many

logger = logging.getLogger(__name__)
MARKET = "market.json"
"""Name of the file in a run's folder that describes its market."""
_HASH_CHARACTERS = 16
_BLOCK = 64
"""Columns that are copied at once."""
_SEAL = "sha256"
_BEGAN = {"run": "was trained on", "account": "began with"}
"""What the owner of a record did with its market."""
_FINGERPRINT_BARS = 252
_FINGERPRINT_TICKERS = 8
_QUARTER = 63
"""Bars in a row: too many for two stocks of a market to have risen on exactly the same ones."""


@dataclass(frozen=True)
class MarketRecord:
    """The market of a training run, in JSON values."""

    tickers: list[str]
    investable: list[str]
    splits: dict[str, list[str]]
    """First and last date of each split."""
    mean: list[float]
    std: list[float]
    """Normalisation of the observed features."""
    fingerprints: dict[str, str]
    """Hash of each ticker's prices, volume and further columns, without own features, up to `known_to`: one of a stock
    may follow from all stocks, and their file is known by its hash."""
    columns: list[str]
    """Further columns of the data, own features among them; "volume" first if there is one."""
    own_features: str
    """Hash of the file of own features; empty without one."""
    idle_days: list[str]
    """Dates of the data on which no ticker traded; a ticker added later may have."""
    known_to: str
    """Last day of the fingerprints and sketches."""
    own_columns: list[str]
    """Own features."""
    sketches: dict[str, list[float]]
    """By ticker, sums of log prices that show whether all prices were multiplied by one constant, see `_sketch`."""


def record_market(market: Market, known_to: int | None = None) -> MarketRecord:
    """Record the parts of a market that must not change while a run is continued or used.

    Args:
        known_to: last day whose prices are recorded; default: the last validation day.

    Raises DataError for a universe that changes: only policies of the user are judged on one.
    """
    if market.members is not None:
        raise DataError(
            "expected a list of tickers as --investable of a run or account, got a dated one; leave dates out"
        )
    dates, last = market.dates.astype(str), market.splits.validation.last if known_to is None else known_to
    return MarketRecord(
        tickers=market.tickers,
        investable=[market.tickers[column] for column in market.investable_columns],
        splits={name: [str(dates[span.first]), str(dates[span.last])] for name, span in vars(market.splits).items()},
        mean=market.stats.mean.tolist(),
        std=market.stats.std.tolist(),
        fingerprints=dict(zip(market.tickers, _fingerprints(market, last, market.own_names), strict=True)),
        columns=list(market.extra_columns),
        own_features=market.own_features,
        idle_days=dates[~_is_traded(market.data_array)].tolist(),
        known_to=str(dates[last]),
        own_columns=list(market.own_names),
        sketches={name: _sketch(*_bars(market, column, last)) for column, name in enumerate(market.tickers)},
    )


def sealed(record: MarketRecord) -> dict[str, Any]:
    """Return the record as JSON values, with their sha256."""
    values = dataclasses.asdict(record)
    return {**values, _SEAL: _seal(values)}


def read_record(values: Mapping[str, Any], source: str) -> MarketRecord:
    """Return the record from the JSON values of `sealed`. Raises DataError for other fields, or changed values."""
    rest = {name: value for name, value in values.items() if name != _SEAL}
    if values.get(_SEAL) != _seal(rest):
        raise DataError(
            f"expected the market of a run as it was recorded in {source}, got values that do not fit their sha256; "
            "restore the file from a copy of the run"
        )
    try:
        return MarketRecord(**rest)
    except TypeError as error:
        raise DataError(f"expected the market of a run in {source}, got other fields ({error})") from None


def _seal(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def pin_market(market: Market, record: MarketRecord, *, owner: Literal["run", "account"] = "run") -> Market:
    """Return the market of the run, with its tickers, splits and normalisation, on data that may be longer now.

    Tickers unknown to the run are dropped with a warning, and so are days on which only those traded. Prices that were
    only adjusted again, for a dividend or a split, count as the same.

    Args:
        owner: of the record, in messages; of an account recorded prices may differ otherwise too.

    Raises:
        DataError: a ticker or day of the record is missing, or recorded prices differ and may not.
    """
    market = _known_columns(market, record, owner)
    splits = Splits(**{name: _span(market, owner, *dates) for name, dates in record.splits.items()})
    ratios = {} if owner == "account" else readjustments(market, record, "the run began")
    if changed := [ticker for ticker, ratio in ratios.items() if math.isnan(ratio)]:
        known = ", ".join(["prices", *record.columns])
        raise DataError(
            f"expected the {known} up to {record.known_to} that the run was trained "
            f"on, got others for {len(changed)} of {len(record.tickers)} tickers ({listed(changed)}), not only "
            "adjusted again; give the old file with days added, or train anew"
        )
    pinned = dataclasses.replace(
        market,
        investable_columns=pd.Index(record.tickers).get_indexer(record.investable),
        splits=splits,
        stats=NormalizationStats(np.array(record.mean, dtype=np.float32), np.array(record.std, dtype=np.float32)),
    )
    return with_features(pinned) if market.features else pinned


def data_fingerprint(market: Market) -> tuple[str, ...]:
    """Return a fingerprint of the data's contents; data count as the same if their fingerprints share an entry.

    Each ticker gives a hash of the dates and prices of its first 252 bars, and one for each quarter of these: the days
    on which it closed higher. The smallest hashes of either sort are the entries. Appended days, other splits and other
    names change nothing; readjusted or rounded prices leave the days of rises; data with a few tickers more or less
    still share entries. Data with another first day count as different.
    """
    dates = market.dates.astype("<i8")
    whole, quarters = set[str](), set[str]()
    for column in range(len(market.tickers)):
        prices = market.data_array[:, column, list(PRICES)]
        days = np.flatnonzero(np.isfinite(prices).all(axis=1))[:_FINGERPRINT_BARS]
        if len(days):
            whole.add(_digest(dates[days].tobytes() + np.ascontiguousarray(prices[days], dtype="<f4").tobytes()))
        has_risen = np.diff(prices[days, CLOSE], prepend=np.inf) > 0
        for first in range(0, len(days) - _QUARTER + 1, _QUARTER):
            quarter = slice(first, first + _QUARTER)
            if not has_risen[quarter].any():  # flat prices of any market are the same
                continue
            quarters.add(_digest(dates[days[quarter]].tobytes() + has_risen[quarter].tobytes()))
    return tuple(entry for entries in (whole, quarters) for entry in sorted(entries)[:_FINGERPRINT_TICKERS])


def is_recorded_market(market: Market, record: MarketRecord) -> bool:
    """Return whether a run's record is of these data: whether any ticker has the recorded prices."""
    last = _known_day(market, record)
    if last >= len(market.dates):
        return False
    is_traded = np.asarray(np.isfinite(market.data_array[: last + 1, :, PRICES[0]]).any(axis=0))
    hashes = _fingerprints(market, last, record.own_columns)
    known = {hash_ for hash_, traded in zip(hashes, is_traded, strict=True) if traded}
    if not known.isdisjoint(record.fingerprints.values()):
        return True
    return not all(map(math.isnan, past_ratios(market, record).values()))


def past_ratios(market: Market, record: MarketRecord) -> dict[str, float]:
    """Return the ratios of a market's prices to the recorded ones by ticker, those left out whose prices are the same.

    NaN where there is no single ratio, or only volume or the days without any bar differ.
    """
    last, ratios = _known_day(market, record), {}
    hashes = _fingerprints(market, last, record.own_columns)
    for column, (ticker, fingerprint) in enumerate(zip(market.tickers, hashes, strict=True)):
        if fingerprint != record.fingerprints.get(ticker, fingerprint):
            ratios[ticker] = _ratio(*_bars(market, column, last), record.sketches[ticker])
    return ratios


def readjustments(market: Market, record: MarketRecord, since: str) -> dict[str, float]:
    """Return `past_ratios`; tell them, with the events named beside the market's file that explain one.

    A constant ratio of all recorded prices needs no named event; a ratio of the prices before a recorded day needs one
    with that date.
    """
    ratios, texts, last = past_ratios(market, record), list[str](), _known_day(market, record)
    dates = market.dates.astype(str)
    named = read_events(market.source) if ratios else []
    for ticker, ratio in ratios.items():
        changes = [event for event in named if event.ticker == ticker and event.date <= dates[-1]]
        column, why = market.tickers.index(ticker), f"prices times {ratio:.6g}"
        if math.isnan(ratio):  # perhaps one event of a recorded day: only prices before it were multiplied
            bars, sketch = _bars(market, column, last), record.sketches[ticker]
            recorded = [event for event in changes if event.date <= dates[last]]
            days = [float(np.datetime64(event.date).astype(int)) for event in recorded]
            attempts = [([event], _ratio(*bars, sketch, day)) for event, day in zip(recorded, days, strict=True)]
        else:  # all later events; the run's file may have known those up to its end
            ends = (max(record.splits["holdout"]), dates[last])
            attempts = [([event for event in changes if event.date > end], ratio) for end in ends]
        for candidates, part in attempts:
            if not candidates or math.isnan(part):
                continue
            close = market.data_array[dates < candidates[0].date, column, CLOSE]
            close = close[np.isfinite(close)]
            before = close[-1] / part if len(close) else math.nan
            if found := explaining(candidates, part, before):
                ratios[ticker], why = part, ", ".join(str(event) for event, _ in found)
                break
        texts += [f"{ticker} ({why})"] * (ratios[ticker] > 0)  # NaN is not
    if texts:
        told = many(len(texts), "ticker"), "was" if len(texts) == 1 else "were"
        logger.info("%s %s adjusted again since %s: %s", *told, since, listed(texts))
    return ratios


def _known_day(market: Market, record: MarketRecord) -> int:
    return int(np.searchsorted(market.dates, np.datetime64(record.known_to, "D")))


def _bars(market: Market, column: int, last: int) -> tuple[Int64Array, Float64Array]:
    """Return days and (bars, 4) prices of a ticker's bars on days 0..`last`."""
    prices = market.data_array[: last + 1, column, list(PRICES)]
    has_bar = np.isfinite(prices).all(axis=1)
    days = market.dates[: last + 1][has_bar].astype(np.int64)
    return days, prices[has_bar].astype(np.float64)


def _weights(days: Int64Array) -> Float64Array:
    """Return (3, bars, 4) weights of the prices of some days, of which the first are 1."""
    phase = days[:, None] + np.arange(4.0)
    return np.stack((np.ones_like(phase), np.sin(1.7 * phase), np.sin(2.3 * phase**1.5)))


def _sketch(days: Int64Array, prices: Float64Array) -> list[float]:
    """Return sums of the logarithms of prices under several weights.

    A common factor moves each of them by its logarithm times the sum of the weights; nothing else does.
    """
    return list((_weights(days) * np.log(prices)).sum(axis=(1, 2)).tolist())


def _ratio(days: Int64Array, prices: Float64Array, before: list[float], until: float = math.inf) -> float:
    """Return the ratio of prices before a day, and of no others, to those of a sketch; NaN where there is none."""
    is_moved = days < until
    if not is_moved.any():
        return math.nan
    moved, weights = np.subtract(_sketch(days, prices), before), _weights(days)[:, is_moved].sum(axis=(1, 2))
    logarithm = moved[0] / weights[0]
    # Six deviations of the rounding of both versions, to single precision and to the vendor's decimals.
    noise = 6 * math.sqrt(float((1e-14 + (price_step(prices) / prices) ** 2 / 6).sum()))
    is_one = abs(moved[0]) > noise and (np.abs(moved - logarithm * weights) <= noise).all()
    return math.exp(logarithm) if is_one else math.nan


def split_market(market: Market, splits: Splits) -> Market:
    """Return the market with other splits, its normalisation fitted to their training days."""
    stats = normalization_stats(market.data_array, splits.train.last)
    return dataclasses.replace(market, splits=splits, stats=stats)


def _known_columns(market: Market, record: MarketRecord, owner: str) -> Market:
    """Return the market with the run's columns and tickers only, in the run's order."""
    market = _known_features(market, record, owner)
    if market.tickers == record.tickers:
        return market
    column = {ticker: index for index, ticker in enumerate(market.tickers)}
    if gone := [ticker for ticker in record.tickers if ticker not in column]:
        raise DataError(
            f"expected the {len(record.tickers)} tickers that the {owner} {_BEGAN[owner]}, got data without "
            f"{listed(gone)}; give the file that has them (`prepare --append` keeps the bars of a file), or `paper "
            "rename` what an account knows by another name"
        )
    new = sorted(set(market.tickers) - set(record.tickers))
    if new:
        logger.warning("left out: %s that the %s does not know: %s", many(len(new), "ticker"), owner, listed(new))
    columns = [column[ticker] for ticker in record.tickers]
    known = _is_traded(market.data_array[:, columns]) | np.isin(market.dates.astype(str), record.idle_days)
    chosen = market.map_cells(lambda cells: cells[known][:, columns])
    return dataclasses.replace(chosen, dates=market.dates[known], tickers=list(record.tickers))


def _known_features(market: Market, record: MarketRecord, owner: str) -> Market:
    """Return the market with the run's further columns only."""
    if market.own_features != record.own_features:
        raise DataError(
            f"expected the file of own features (--features) that the {owner} {_BEGAN[owner]}, got another one; "
            "restore it, or begin anew"
        )
    gone = sorted(set(record.columns) - market.extra_columns.keys())
    if gone:
        raise DataError(f"expected the columns that the {owner} {_BEGAN[owner]}, got data without {listed(gone)}")
    if new := sorted(market.columns.keys() - set(record.columns)):
        logger.warning("left out: %s that the %s does not know: %s", many(len(new), "column"), owner, listed(new))
    return dataclasses.replace(
        market,
        volume=market.volume if VOLUME in record.columns else None,
        columns={name: values for name, values in market.columns.items() if name in record.columns},
    )


def _is_traded(data_array: Float32Array) -> BoolArray:
    """Return (days,) whether any ticker has a bar."""
    return np.asarray(np.isfinite(data_array[:, :, PRICES[0]]).any(axis=1))


def _span(market: Market, owner: str, first: str, last: str) -> Span:
    days = np.array([first, last], dtype="datetime64[D]")
    places = np.searchsorted(market.dates, days)
    if places[1] >= len(market.dates) or (market.dates[places] != days).any():
        raise DataError(
            f"expected the days {first} to {last}, which the {owner} knew, got data from {market.dates[0]} to "
            f"{market.dates[-1]}; give the file that has them"
        )
    return Span(int(places[0]), int(places[1]))


def _fingerprints(market: Market, last: int, left_out: Collection[str]) -> list[str]:
    """Return a hash per ticker of its prices, volume, further columns, some left out, and dates on days 0..`last`."""
    further = [values for name, values in market.extra_columns.items() if name not in left_out]
    dates = market.dates[: last + 1].astype("<i8").tobytes()
    digests, days = [], slice(last + 1)
    for first in range(0, len(market.tickers), _BLOCK):  # a copy of all prices would be half of the market
        columns = slice(first, first + _BLOCK)
        prices = market.data_array[days, columns, list(PRICES)]
        values = np.concatenate([prices, *(one[days, columns, None] for one in further)], axis=2)
        values = np.ascontiguousarray(values.transpose(1, 0, 2), dtype="<f4")
        values[np.isnan(values)] = np.nan  # one bit pattern for every missing number
        digests += [_digest(dates + column.tobytes()) for column in values]
    return digests


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:_HASH_CHARACTERS]
