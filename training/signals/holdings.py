"""Open positions, read from a file and described as the environment observes them."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    """Infinite in the basket, whose positions have no target."""
    shares: float
    bars: NDArray[np.float32]
    """(sessions, 9) of the stock since the entry, the last one being the session of the close."""

    @property
    def is_of_basket(self) -> bool:
        """Tell whether it is a part of the basket."""
        return self.target_percent == np.inf

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

    def in_units(self, factor: float) -> "Holding":
        """Return the position in prices that are `factor` times these."""
        bars = self.bars * np.float32(factor)
        return replace(self, entry_price=self.entry_price * factor, shares=self.shares / factor, bars=bars)

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
        is_over = self.sessions_held >= rules.longest_holding - 1 or self.stop_day(rules) is not None
        return is_over or self.days_without_bar >= rules.max_days_without_bar


def read_holdings(path: Path, market: Market, day: int, basket: Sequence[int] = ()) -> list[Holding]:
    """Read the positions in a CSV file with the columns of `COLUMNS`, held at the close of `day`.

    A position without a target is one of the basket, whose stocks are in these columns of the market.

    Raises:
        DataError: the file cannot be read, or a row is no position of this market at that day.
    """
    where, held = str(path), dict[tuple[str, bool], Holding]()
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise ValueError(f"no {missing[0]} in its header")
            for row in reader:
                where = f"line {reader.line_num} of {path}"
                holding = _holding(row, market, day, basket)
                if (key := (holding.ticker, holding.is_of_basket)) in held:
                    raise ValueError(f"{holding.ticker} a second time")
                held[key] = holding
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"expected positions with {','.join(COLUMNS)} in {where}, got {error}; mend it") from None
    return list(held.values())


def _holding(row: Mapping[str, str | None], market: Market, day: int, basket: Sequence[int]) -> Holding:
    """Raise ValueError where a row is no position."""
    ticker, entry_date, *numbers = ((row[name] or "").strip() for name in COLUMNS)
    is_of_basket, owner = not numbers[1], "the agents" if numbers[1] else "the basket"
    chosen = basket if is_of_basket else market.investable_columns.tolist()
    columns = {market.tickers[column]: column for column in chosen}
    if ticker not in columns:
        raise ValueError(f"{ticker!r}, which {owner} cannot buy")
    price, target, shares = (float(number) for number in (numbers[0], numbers[1] or "inf", numbers[2]))
    if not all(0 < number < np.inf for number in (price, shares, 1.0 if is_of_basket else target)):
        raise ValueError(f"{', '.join(numbers)} in place of numbers above 0")
    entry = session(entry_date, market, f"the entry of {ticker}")
    if entry > day:
        raise ValueError(f"an entry after {market.dates[day]}")
    bars = market.data_array[entry : day + 1, columns[ticker]]
    return Holding(ticker, columns[ticker], entry, price, target, shares, bars)


def session(date: str, market: Market, name: str) -> int:
    """Return the index of the session with an ISO date; DataError if there is none."""
    days = market.dates.astype("datetime64[D]").astype(str).tolist()
    if date not in days:
        raise DataError(f"expected a session from {days[0]} to {days[-1]} for {name}, got {date!r}")
    return int(days.index(date))


def position_features(holdings: Sequence[Holding], rules: EnvironmentConfig) -> Tensor:
    """Describe the positions as the environment observes them at the close: (K, 6) float32."""
    names = ("sessions_held", "entry_price", "last_price", "target_price", "value", "days_without_bar")
    columns = torch.tensor([[getattr(held, name) for held in holdings] for name in names], dtype=torch.float64)
    return orders.position_features(rules, **dict(zip(names, columns, strict=True)))
