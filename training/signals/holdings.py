"""Open positions, read from a file and described as the environment observes them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features import CLOSE, HIGH, LOW
from data.market import Market
from environment import orders
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

COLUMNS = ("ticker", "entry_date", "entry_price", "target_percent", "shares")


@dataclass(frozen=True)
class Holding:
    """An open position at a close; prices and amounts in currency units."""

    ticker: str
    column: int
    """Its place among all columns of the market."""
    entry_day: int
    entry_price: float
    target_percent: float
    shares: float
    bars: NDArray[np.float32]
    """(sessions, 9) of the stock since the entry, the last one being the session of the close."""

    @property
    def value(self) -> float:
        """Amount paid, before costs."""
        return self.shares * self.entry_price

    @property
    def target_price(self) -> float:
        return orders.target_price(self.entry_price, self.target_percent)

    @property
    def sessions_held(self) -> int:
        """Sessions up to the close, the entry session being the first."""
        return len(self.bars)

    @property
    def last_price(self) -> float:
        """Last traded close since the entry, or the entry price if there was none."""
        return float([self.entry_price, *self.bars[np.isfinite(self.bars[:, CLOSE]), CLOSE]][-1])

    @property
    def days_without_bar(self) -> int:
        """Last sessions up to the close that have no bar."""
        return int(np.isnan(self.bars[::-1, CLOSE]).cumprod().sum())

    @property
    def target_day(self) -> int | None:
        """First session up to the close whose high reached the target."""
        reached = self.bars[:, HIGH] >= self.target_price
        return self.entry_day + int(reached.argmax()) if reached.any() else None

    def stop_price(self, rules: EnvironmentConfig) -> float | None:
        """Return the price of its stop, if the rules have one."""
        return orders.stop_price(self.entry_price, rules.stop_percent) if rules.stop_percent > 0 else None

    def stop_day(self, rules: EnvironmentConfig) -> int | None:
        """Return the first session up to the close whose low reached the stop."""
        first = int(rules.fill == "same_close")  # a fill at the close: the low of that day came before it
        reached = self.bars[first:, LOW] <= (self.stop_price(rules) or 0.0)
        return self.entry_day + first + int(reached.argmax()) if reached.any() else None

    def is_due(self, rules: EnvironmentConfig) -> bool:
        """Return whether the position is sold at the next close at the latest."""
        is_over = self.sessions_held >= rules.max_holding_days - 1 or self.stop_day(rules) is not None
        return is_over or self.days_without_bar >= rules.max_days_without_bar


def read_holdings(path: Path, market: Market, day: int) -> list[Holding]:
    """Read the positions in a CSV file with the columns of `COLUMNS`, held at the close of `day`.

    Raises:
        DataError: the file cannot be read, or a row is no position of this market at that day.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"expected the header {','.join(COLUMNS)} on line 1 of {path}, got no {missing[0]}; add it"
                )
            rows = list(reader)
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
            f"expected an investable ticker on {where}, got {ticker!r}; leave out positions the agent cannot buy"
        )
    price, target, shares = (_positive(row[name], f"{name} on {where}") for name in COLUMNS[2:])
    column = int(market.investable_columns[tickers.index(ticker)])
    entry = session(str(row["entry_date"]).strip(), market, f"the entry date on {where}")
    if entry > day:
        raise DataError(
            f"expected an entry up to {market.dates[day]} on {where}, got {market.dates[entry]}; choose a later --date"
        )
    return Holding(ticker, column, entry, price, target, shares, market.data_array[entry : day + 1, column])


def _positive(text: str | None, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = np.nan
    if not (np.isfinite(value) and value > 0):
        raise DataError(f"expected a number above 0 for {name}, got {text!r}; mend it")
    return value


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


def position_features(holdings: Sequence[Holding], rules: EnvironmentConfig) -> Tensor:
    """Describe the positions as the environment observes them at the close: (K, 6) float32."""
    names = ("sessions_held", "entry_price", "last_price", "target_price", "value", "days_without_bar")
    columns = torch.tensor([[getattr(held, name) for held in holdings] for name in names], dtype=torch.float64)
    return orders.position_features(rules, **dict(zip(names, columns, strict=True)))
