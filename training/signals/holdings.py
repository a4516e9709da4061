"""Open positions, read from a file and described as the environment would observe them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import CLOSE, HIGH
from data.market import Market
from environment import orders
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

COLUMNS = ("ticker", "entry_date", "entry_price", "target_percent", "shares")


@dataclass(frozen=True)
class Holding:
    """An open position; prices and money in currency units."""

    ticker: str
    column: int
    """Its place among all columns of the market."""
    entry_day: int
    """Index of the session in which it was bought."""
    entry_price: float
    target_percent: float
    shares: float

    @property
    def value(self) -> float:
        """Money paid, before costs."""
        return self.shares * self.entry_price

    @property
    def target_price(self) -> float:
        """Price at which it is sold."""
        return orders.target_price(self.entry_price, self.target_percent)


def read_holdings(path: Path, market: Market, day: int) -> list[Holding]:
    """Read the positions in a CSV file with the columns of `COLUMNS`, held at the close of `day`.

    Raises:
        DataError: the file cannot be read, or a row is no position of this market at that day.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"expected a CSV file of positions, got {path} ({error}); check the path") from None
    holdings = [_holding(row, f"line {line} of {path}", market, day) for line, row in enumerate(rows, start=2)]
    tickers = [holding.ticker for holding in holdings]
    for ticker in tickers:
        if tickers.count(ticker) > 1:
            raise DataError(f"expected one position a ticker in {path}, got {tickers.count(ticker)} in {ticker!r}")
    return holdings


def _holding(row: Mapping[str, str | None], where: str, market: Market, day: int) -> Holding:
    missing = [name for name in COLUMNS if not row.get(name)]
    if missing:
        raise DataError(f"expected {','.join(COLUMNS)} on {where}, got no {missing[0]}; add it")
    ticker = str(row["ticker"]).strip()
    tickers = [market.tickers[column] for column in market.investable_columns]
    if ticker not in tickers:
        raise DataError(
            f"expected an investable ticker on {where}, got {ticker!r}; leave out what the agent cannot buy"
        )
    price, target, shares = (_positive(row[name], f"{name} on {where}") for name in COLUMNS[2:])
    column = int(market.investable_columns[tickers.index(ticker)])
    return Holding(ticker, column, _entry_day(str(row["entry_date"]), where, market, day), price, target, shares)


def _positive(text: str | None, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value > 0):
        raise DataError(f"expected a number above 0 for {name}, got {text!r}; mend it")
    return value


def _entry_day(text: str, where: str, market: Market, day: int) -> int:
    entry = session(text.strip(), market, f"the entry date on {where}")
    if entry > day:
        raise DataError(f"expected an entry up to {market.dates[day]} on {where}, got {text!r}; choose a later --date")
    return entry


def session(text: str, market: Market, name: str) -> int:
    """Return the index of the session with an ISO date; DataError, naming the nearest earlier one, if there is none."""
    try:
        date = np.datetime64(text, "D")
    except ValueError:
        raise DataError(f"expected a date like 2014-11-10 for {name}, got {text!r}") from None
    place = int(np.searchsorted(market.dates, date, side="right")) - 1
    if np.isnat(date) or place < 0 or market.dates[place] != date:
        near = f"; the session before it is {market.dates[place]}" if place >= 0 and not np.isnat(date) else ""
        raise DataError(
            f"expected a session from {market.dates[0]} to {market.dates[-1]} for {name}, got {text!r}{near}"
        )
    return place


def last_price(holding: Holding, market: Market, day: int) -> float:
    """Return the last traded close since the entry, or the entry price if there was none."""
    closes = _since_entry(holding, market, day, CLOSE)
    traded = closes[np.isfinite(closes)]
    return float(traded[-1]) if len(traded) else holding.entry_price


def sessions_held(holding: Holding, day: int) -> int:
    """Count sessions up to `day`, the entry day being the first."""
    return day - holding.entry_day + 1


def days_without_bar(holding: Holding, market: Market, day: int) -> int:
    """Count the last sessions up to `day` that have no bar."""
    traded = np.isfinite(_since_entry(holding, market, day, CLOSE))[::-1]
    return int(traded.argmax()) if traded.any() else len(traded)


def target_day(holding: Holding, market: Market, day: int) -> int | None:
    """Return the first session up to `day` whose high reached the target."""
    reached = _since_entry(holding, market, day, HIGH) >= holding.target_price
    return holding.entry_day + int(reached.argmax()) if reached.any() else None


def _since_entry(holding: Holding, market: Market, day: int, feature: int) -> NDArray[np.float32]:
    return market.data_array[holding.entry_day : day + 1, holding.column, feature]


def position_features(holdings: list[Holding], market: Market, day: int, rules: EnvironmentConfig) -> Tensor:
    """Describe the positions as the environment observes them at the close of `day`: (K, 6) float32."""

    def each(measure: Callable[[Holding], float]) -> Tensor:
        return torch.tensor([measure(holding) for holding in holdings], dtype=torch.float64)

    return orders.position_features(
        rules,
        sessions_held=each(lambda holding: sessions_held(holding, day)),
        entry_price=each(lambda holding: holding.entry_price),
        last_price=each(lambda holding: last_price(holding, market, day)),
        target_price=each(lambda holding: holding.target_price),
        value=each(lambda holding: holding.value),
        days_without_bar=each(lambda holding: days_without_bar(holding, market, day)),
    )
