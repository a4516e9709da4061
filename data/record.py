"""A run's record of its market, such that data appended later change neither its splits nor its inputs."""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.bars import VOLUME
from data.features import PRICES, NormalizationStats, normalization_stats
from data.market import Market, with_features
from data.splits import Span, Splits
from utils.errors import DataError

logger = logging.getLogger(__name__)
MARKET = "market.json"
"""Name of the file in a run's folder that describes its market."""
_HASH_CHARACTERS = 16
_BLOCK = 64
"""Columns that are copied at once."""
_SEAL = "sha256"
_FINGERPRINT_BARS = 252
_FINGERPRINT_TICKERS = 8


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
    """Hash of each ticker's prices, volume and further columns up to the last validation day."""
    columns: list[str]
    """Further columns of the data, own features among them; "volume" first if there is one."""
    own_features: str
    """Hash of the file of own features; empty without one."""
    idle_days: list[str]
    """Dates of the data on which no ticker traded; a ticker added later may have."""


def record_market(market: Market) -> MarketRecord:
    """Record the parts of a market that must not change while a run is continued or used."""
    dates = market.dates.astype(str)
    return MarketRecord(
        tickers=market.tickers,
        investable=[market.tickers[column] for column in market.investable_columns],
        splits={name: [str(dates[span.first]), str(dates[span.last])] for name, span in vars(market.splits).items()},
        mean=market.stats.mean.tolist(),
        std=market.stats.std.tolist(),
        fingerprints=dict(zip(market.tickers, _fingerprints(market, market.splits.validation.last), strict=True)),
        columns=_column_names(market),
        own_features=market.own_features,
        idle_days=dates[~_is_traded(market.data_array)].tolist(),
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


def pin_market(market: Market, record: MarketRecord) -> Market:
    """Return the market of the run, with its tickers, splits and normalisation, on data that may be longer now.

    Tickers unknown to the run are dropped with a warning, and so are days on which only those traded.

    Raises:
        DataError: a ticker or day of the run is missing, or prices up to the last validation day differ.
    """
    market = _known_columns(market, record)
    splits = Splits(**{name: _span(market, *dates) for name, dates in record.splits.items()})
    found = zip(record.tickers, _fingerprints(market, splits.validation.last), strict=True)
    changed = [ticker for ticker, fingerprint in found if fingerprint != record.fingerprints[ticker]]
    if changed:
        known = ", ".join(["prices", *record.columns])
        raise DataError(
            f"expected the {known} up to {record.splits['validation'][1]} that the run was trained on, got others for "
            f"{len(changed)} of {len(record.tickers)} tickers ({_listed(changed)}); give the old file with days added, "
            "or train anew (prices that were adjusted again count as others)"
        )
    column = {ticker: index for index, ticker in enumerate(record.tickers)}
    pinned = dataclasses.replace(
        market,
        investable_columns=np.array([column[ticker] for ticker in record.investable], dtype=np.int64),
        splits=splits,
        stats=NormalizationStats(np.array(record.mean, dtype=np.float32), np.array(record.std, dtype=np.float32)),
    )
    return with_features(pinned) if market.features else pinned


def data_fingerprint(market: Market) -> tuple[str, ...]:
    """Return a fingerprint of the data's contents; data count as the same if their fingerprints share an entry.

    The entries are the smallest hashes over tickers of their first 252 bars with dates. Appended days, other splits and
    other names change nothing, and data with a few tickers more or less still share entries. Data with another first
    day, or readjusted prices, count as different.
    """
    dates = market.dates.astype("datetime64[D]").astype("<i8")
    hashes = []
    for column in range(len(market.tickers)):
        prices = market.data_array[:, column, list(PRICES)]
        days = np.flatnonzero(np.isfinite(prices).all(axis=1))[:_FINGERPRINT_BARS]
        if len(days):
            hashes.append(_digest(dates[days].tobytes() + np.ascontiguousarray(prices[days], dtype="<f4").tobytes()))
    return tuple(sorted(set(hashes))[:_FINGERPRINT_TICKERS])


def is_recorded_market(market: Market, record: MarketRecord) -> bool:
    """Return whether a run's record is of these data: whether any ticker has the recorded prices."""
    last = np.searchsorted(market.dates, np.datetime64(record.splits["validation"][1], "D"))
    if last >= len(market.dates):
        return False
    is_traded = np.asarray(np.isfinite(market.data_array[: last + 1, :, PRICES[0]]).any(axis=0))
    known = {hash_ for hash_, traded in zip(_fingerprints(market, int(last)), is_traded, strict=True) if traded}
    return not known.isdisjoint(record.fingerprints.values())


def split_market(market: Market, splits: Splits) -> Market:
    """Return the market with other splits, its normalisation fitted to their training days."""
    stats = normalization_stats(market.data_array, splits.train.last)
    return dataclasses.replace(market, splits=splits, stats=stats)


def _known_columns(market: Market, record: MarketRecord) -> Market:
    """Return the market with the run's columns and tickers only, in the run's order."""
    market = _known_features(market, record)
    if market.tickers == record.tickers:
        return market
    column = {ticker: index for index, ticker in enumerate(market.tickers)}
    gone = [ticker for ticker in record.tickers if ticker not in column]
    if gone:
        raise DataError(
            f"expected the {len(record.tickers)} tickers that the run was trained on, got data without "
            f"{_listed(gone)}; give the file that has them"
        )
    new = sorted(set(market.tickers) - set(record.tickers))
    logger.warning("%d tickers that the run does not know are left out: %s", len(new), _listed(new))
    columns = [column[ticker] for ticker in record.tickers]
    idle = np.array(record.idle_days, dtype="datetime64[D]")
    known = _is_traded(market.data_array[:, columns]) | np.isin(market.dates.astype("datetime64[D]"), idle)
    chosen = market.map_cells(lambda cells: cells[known][:, columns])
    return dataclasses.replace(chosen, dates=market.dates[known], tickers=list(record.tickers))


def _known_features(market: Market, record: MarketRecord) -> Market:
    """Return the market with the run's further columns only."""
    if market.own_features != record.own_features:
        raise DataError(
            "expected the file of own features (--features) with which the run was trained, got another one; restore "
            "it, or train anew"
        )
    gone = sorted(set(record.columns) - {*_column_names(market)})
    if gone:
        raise DataError(f"expected the columns that the run was trained on, got data without {_listed(gone)}")
    if new := sorted(market.columns.keys() - set(record.columns)):
        logger.warning("%d columns that the run does not know are left out: %s", len(new), _listed(new))
    return dataclasses.replace(
        market,
        volume=market.volume if VOLUME in record.columns else None,
        columns={name: values for name, values in market.columns.items() if name in record.columns},
    )


def _column_names(market: Market) -> list[str]:
    return [*([VOLUME] if market.volume is not None else []), *market.columns]


def _is_traded(data_array: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return (days,) whether any ticker has a bar."""
    return np.asarray(np.isfinite(data_array[:, :, PRICES[0]]).any(axis=1))


def _span(market: Market, first: str, last: str) -> Span:
    days = np.array([first, last], dtype="datetime64[D]")
    found = np.searchsorted(market.dates, days)
    if found[1] >= len(market.dates) or (market.dates[found] != days).any():
        raise DataError(
            f"expected the days {first} to {last}, which the run knew, got data from {market.dates[0]} to "
            f"{market.dates[-1]}; give the file that has them"
        )
    return Span(int(found[0]), int(found[1]))


def _fingerprints(market: Market, last: int) -> list[str]:
    """Return a hash per ticker of its prices, volume, further columns and dates on days 0..`last`."""
    dates = market.dates[: last + 1].astype("datetime64[D]").astype("<i8").tobytes()
    found, days = [], slice(last + 1)
    for first in range(0, len(market.tickers), _BLOCK):  # a copy of all prices would be half of the market
        columns = slice(first, first + _BLOCK)
        values = market.data_array[days, columns, list(PRICES)]
        others = ([] if market.volume is None else [market.volume]) + [*market.columns.values()]
        values = np.concatenate((values, *(own[days, columns, None] for own in others)), axis=2)
        values = np.ascontiguousarray(values.transpose(1, 0, 2), dtype="<f4")
        values[np.isnan(values)] = np.nan  # one bit pattern for every missing number
        found += [_digest(dates + column.tobytes()) for column in values]
    return found


def _digest(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()[:_HASH_CHARACTERS]


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
