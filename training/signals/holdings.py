"""Open positions, read from a file and described as the environment observes them."""

import csv
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.events import Event, read_events
from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from data.raw.text import NO_DAY, OTHER, bare_numbers, date_of, decimal_sign, lines_of, possible_orders, resolve_days
from environment import trading_rules
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError
from utils.spaces import MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

logger = logging.getLogger(__name__)
_NEAR = 1.1
"""Ratio of an entry's price to the prices of its day beyond which it is another stock's, or that before a split."""
_SAME = 1e-3
"""Relative difference up to which an entry's price is one of its day, as decimals leave it."""
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
    kept: float = 1.0
    """Share of its price that dividends since the entry have left."""
    dividends: float = 0.0
    """Cash that they have paid."""
    moved: str = ""
    """What splits and dividends have made of the position in its file; empty where that is the same."""

    @property
    def is_of_basket(self) -> bool:
        """Tell whether it is a part of the basket."""
        return self.target_percent == np.inf

    @property
    def value(self) -> float:
        """Amount paid, before costs."""
        return self.shares * self.entry_price / self.kept

    def cost(self, rules: EnvironmentConfig) -> float:
        """Return what it has cost, less its dividends."""
        return self.value * rules.purchase_factor - self.dividends

    @property
    def target_price(self) -> float:
        return trading_rules.target_price(self.entry_price, self.target_percent)

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
        return trading_rules.stop_price(self.entry_price, rules.stop_percent) if rules.stop_percent > 0 else None

    def stop_day(self, rules: EnvironmentConfig) -> int | None:
        """Return the first session up to the close whose low reached the stop."""
        first = int(rules.fill == "same_close")  # a fill at the close: the low of that day came before it
        reached = self.bars[first:, LOW] <= (self.stop_price(rules) or 0.0)
        return self.entry_day + first + int(reached.argmax()) if reached.any() else None

    def is_due(self, rules: EnvironmentConfig) -> bool:
        """Return whether the position is sold at the next close at the latest."""
        is_over = self.sessions_held >= rules.longest_holding - 1 or self.stop_day(rules) is not None
        return is_over or bool(trading_rules.is_delisted(torch.tensor(self.days_without_bar), rules))


def read_holdings(path: Path, market: Market, day: int, basket: Sequence[int] = ()) -> list[Holding]:
    """Read the positions in a CSV file with the columns of `COLUMNS`, held at the close of `day`.

    A position without a target is one of the basket, whose stocks are in these columns of the market. Splits and
    dividends that its row does not know yet are applied to it.

    Raises:
        DataError: the file cannot be read, or a row is no position of this market at that day.
    """
    where, by_key, events = str(path), dict[tuple[str, bool], Holding](), read_events(market.source)
    try:
        for line, row in _rows(path, market).items():
            where = f"line {line} of {path}"
            holding = _holding(row, market, day, basket, events)
            if (key := (holding.ticker, holding.is_of_basket)) in by_key:
                raise ValueError(f"{holding.ticker} a second time")
            by_key[key] = holding
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"expected positions with {','.join(COLUMNS)} in {where}, got {error}; mend it") from None
    return list(by_key.values())


def _rows(path: Path, market: Market) -> dict[int, dict[str, str]]:
    """Return the rows by line, with the market's tickers, ISO dates and decimal points; those of a summary are left out
    with a word. Raises ValueError where something stays open."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        head = file.readline()
        file.seek(0)
        separator = next((one for one in "\t;|" if one in head), ",")
        reader = csv.DictReader(file, delimiter=separator)
        if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
            raise ValueError(f"no {missing[0]} in its header")
        read = dict((reader.line_num, row) for row in reader)
    if cut := [line for line, row in read.items() if None in row]:
        raise ValueError(f"more fields than titles on line {cut[0]}")
    rows = {line: {name: (row[name] or "").strip() for name in COLUMNS} for line, row in read.items()}
    known = {ticker.casefold(): ticker for ticker in market.tickers}
    for line, row in list(rows.items()):
        if row["ticker"] not in market.tickers:
            row["ticker"] = known.get(row["ticker"].casefold(), row["ticker"])
        if not any(row.values()):
            del rows[line]
        elif row["ticker"] not in market.tickers and not row["entry_date"]:
            logger.warning("no position, and left out: line %d of %s, %r without a date", line, path, row["ticker"])
            del rows[line]
    dates, bare = lines_of(row["entry_date"] for row in rows.values()), dict[str, list[str]]()
    orders = possible_orders(dates, market.dates.astype("datetime64[D]").astype(np.int32))
    for name in COLUMNS[2:]:
        text = bare_numbers(lines_of(row[name].removesuffix("%") for row in rows.values()))
        sign = decimal_sign(text) or "."
        sign = "." if separator == "," and sign == "?." else sign
        if sign not in OTHER or len(orders) != 1:
            raise ValueError("numbers or dates that may be read in two ways; write 1234.5 and 2020-12-31")
        bare[name] = text.replace(OTHER[sign], "").replace(sign, ".").split("\n")
    days = resolve_days(dates, orders[0]).tolist()
    for place, row in enumerate(rows.values()):
        row |= {name: texts[place] for name, texts in bare.items()}
        row["entry_date"] = row["entry_date"] if days[place] == NO_DAY else str(date_of(days[place]))
    return rows


def _holding(
    row: Mapping[str, str], market: Market, day: int, basket: Sequence[int], events: Sequence[Event]
) -> Holding:
    """Raise ValueError where a row is no position."""
    ticker, entry_date, is_of_basket = row["ticker"], row["entry_date"], not row["target_percent"]
    owner = "the basket" if is_of_basket else "the agents"
    chosen = basket if is_of_basket else market.investable_columns.tolist()
    columns = {market.tickers[column]: column for column in chosen}
    if ticker not in columns:
        raise ValueError(f"{ticker!r}, which {owner} cannot buy")
    price, shares = float(row["entry_price"]), float(row["shares"])
    target = np.inf if is_of_basket else float(row["target_percent"])
    if not all(0 < number < np.inf for number in (price, shares, 1.0 if is_of_basket else target)):
        raise ValueError(f"{', '.join(row[name] for name in COLUMNS[2:])} in place of numbers above 0")
    entry = session(entry_date, market, f"the entry of {ticker}")
    if entry > day:
        raise ValueError(f"an entry after {market.dates[day]}")
    bars = market.data_array[entry : day + 1, columns[ticker]]
    if not (is_of_basket or MIN_TARGET_PERCENT - 0.01 <= target <= MAX_TARGET_PERCENT + 0.01):
        raise ValueError(f"a target of {target:g} in place of {MIN_TARGET_PERCENT:g} to {MAX_TARGET_PERCENT:g} percent")
    holding = Holding(ticker, columns[ticker], entry, price, target, shares, bars)
    events = [one for one in events if one.ticker == ticker and entry_date < one.date <= str(market.dates[-1])[:10]]
    return _in_todays_units(holding, market, day, events)


def _in_todays_units(holding: Holding, market: Market, day: int, events: Sequence[Event]) -> Holding:
    """Return a position in the units of the market's prices at the close of `day`.

    The bar of the entry day tells which events the file has applied. A price within that day's range has all of them
    applied, unless it equals the open as quoted before a dividend and not the open after it: then it dates from before.

    Args:
        events: those after its entry by date, of its ticker.

    Raises:
        ValueError: its price is none of its entry's day, before or after any event.
    """
    traded = (bar[[OPEN, LOW, HIGH]].tolist() for bar in holding.bars if np.isfinite(bar[CLOSE]))
    opened, low, high = next(traded, [holding.entry_price] * 3)
    if not events and (ratio := market.readjusted.get(holding.ticker)):
        one = Event(holding.ticker, "", "dividend" if 0.9 < ratio < 1 else "split", 1 / ratio, "")
        # Other ratios are of several events together, and do not tell shares from cash.
        events = [one] if one.kind == "dividend" or max(one.fraction.as_integer_ratio()) < 10_000 else []
    ratios = _ratios(holding, market, events)
    later = [math.prod(ratios[known:]) for known in range(len(ratios) + 1)]

    def misfit(known: int) -> tuple[float, bool]:
        price = holding.entry_price * later[known]
        return max(low / price, price / high, 1 + _SAME), abs(price / opened - 1) > _SAME

    known = min(range(len(events), -1, -1), key=misfit)
    if misfit(known)[0] > _NEAR:
        before = [f", {low / by:g} to {high / by:g} before the {one}" for one, by in zip(events, later, strict=False)]
        raise ValueError(
            f"an entry of {holding.ticker} at {holding.entry_price:g}, whose prices are {low:g} to {high:g} that day"
            f"{''.join(before)}; after a split give its price and shares as they are since then"
        )
    return _after(holding, list(zip(events, ratios, strict=True))[known:], str(market.dates[day])[:10])


def _ratios(holding: Holding, market: Market, events: Sequence[Event]) -> list[float]:
    """Return by what each event has multiplied earlier prices, which are adjusted for all of them."""
    ratios, dates, closes = list[float](), market.dates.astype("M8[D]").astype(str), market.data_array[..., CLOSE]
    for event in reversed(events):
        before = closes[dates < event.date, holding.column]
        close = float([math.nan, *before[np.isfinite(before)]][-1]) / math.prod(ratios)
        after_dividend = close / (close + event.size) if np.isfinite(close) else 1.0
        ratios.append(after_dividend if event.date and event.kind == "dividend" else 1 / event.size)
    return ratios[::-1]


def _after(holding: Holding, events: Sequence[tuple[Event, float]], today: str) -> Holding:
    """Return a position after events that its file did not know, each with by what it has multiplied prices.

    A dividend leaves its shares, and is paid in cash; one after `today` is in its prices only.
    """
    shares, kept, cash, paid = holding.shares, 1.0, 0.0, ""
    for event, ratio in events:
        if event.kind == "split":  # whole shares stay whole
            shares = shares * event.fraction.numerator / event.fraction.denominator
        elif event.date > today:
            shares /= ratio
        else:
            kept *= ratio
            due = shares * event.size if event.date else 0.0  # of one that nobody names the cash is not known
            cash += due if event.pay_date <= today else 0.0
            paid += f", and {due:,.2f} in cash on {event.pay_date}" if due else ""
    if not events:
        return holding
    price = holding.entry_price * math.prod(ratio for _, ratio in events)
    applied, before = ", ".join(str(event) for event, _ in events), f"{holding.shares:g} shares at"
    moved = f"{before} {_shown(holding.entry_price)} are {shares:g} at {_shown(price)}{paid}"
    text = f"{holding.ticker}: {applied} applied to the position: {moved}"
    return replace(holding, entry_price=price, shares=shares, kept=kept, dividends=cash, moved=text)


def _shown(price: float) -> str:
    return f"{price:.2f}" if price >= 10 else f"{price:.4g}"


def session(date: str, market: Market, name: str) -> int:
    """Return the index of the session with an ISO date; DataError if there is none."""
    days = market.dates.astype("datetime64[D]").astype(str).tolist()
    if date not in days:
        raise DataError(f"expected a session from {days[0]} to {days[-1]} for {name}, got {date!r}")
    return int(days.index(date))


def position_features(holdings: Sequence[Holding], rules: EnvironmentConfig) -> Tensor:
    """Describe the positions as the environment observes them at the close: (K, 6) float32."""
    names = ("sessions_held", "entry_price", "last_price", "target_price", "value", "days_without_bar")
    columns = torch.tensor([[getattr(holding, name) for holding in holdings] for name in names], dtype=torch.float64)
    return trading_rules.position_features(rules, **dict(zip(names, columns, strict=True)))
