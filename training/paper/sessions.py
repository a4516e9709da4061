"""Sessions: days of trading by an exchange's calendar, or by the data alone, and what in their bars cannot be right."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from data.features.nine import CLOSE, OPEN, PRICES
from training.paper.book import Book
from utils.errors import ConfigError

NO_CALENDAR = "none"
_FEWEST_BARS = 0.5
"""A session with fewer bars than this share of the session before counts as incomplete."""
_SPLITS = (1.2, 1.25, 4 / 3, 1.5, 5 / 3, 2.5)
"""Round ratios besides whole numbers."""
_SURELY_SPLIT = 1.45
"""Overnight move from which a round ratio counts as a split even if the stock has moved that far before."""


@dataclass(frozen=True)
class Sessions:
    """The sessions of an exchange around some days; every day of the data is one where no exchange is named."""

    name: str
    _days: NDArray[np.datetime64] | None = None
    _hours: NDArray[np.datetime64] | None = None
    """(2, sessions) times at which they open and close, UTC."""

    @classmethod
    def of(cls, name: str, first: np.datetime64, last: np.datetime64) -> "Sessions":
        """Return the sessions of an exchange, as XNYS, from some days before `first` to some after `last`.

        Raises:
            ConfigError: `exchange_calendars` knows no such exchange, or not on these days.
        """
        if name == NO_CALENDAR:
            return cls(name)
        # Imported late: it takes a second, and only accounts with a calendar need it.
        import exchange_calendars  # type: ignore[import-untyped]

        margin = np.timedelta64(10, "D")
        try:
            with warnings.catch_warnings(action="ignore"):  # by pandas, for the authors of the calendars
                calendar = exchange_calendars.get_calendar(name, start=str(first - margin), end=str(last + margin))
        except (exchange_calendars.errors.InvalidCalendarName, ValueError) as error:
            raise ConfigError(
                f"expected the name of an exchange's calendar such as XNYS, or none, for --calendar, got {name!r} "
                f"({error})"
            ) from None
        hours = np.stack([times.dt.tz_convert(None).to_numpy() for times in (calendar.opens, calendar.closes)])
        return cls(name, calendar.closes.index.to_numpy().astype("datetime64[D]"), hours)

    def is_session(self, day: np.datetime64) -> bool:
        """Tell whether a day is a session."""
        return self._days is None or day in self._days

    def between(self, first: np.datetime64, last: np.datetime64) -> list[str]:
        """Return the sessions after `first` and before `last`; none without a calendar."""
        if self._days is None:
            return []
        return [str(day) for day in self._days[(self._days > first) & (self._days < last)]]

    def last_until(self, now: datetime) -> tuple[np.datetime64, np.datetime64] | None:
        """Return the last sessions that have opened and closed by now, a time in UTC; None without a calendar."""
        if self._days is None or self._hours is None:
            return None
        time = np.datetime64(now.replace(tzinfo=None))
        opened, closed = (np.searchsorted(times, time, side="right") for times in self._hours)
        return self._days[opened - 1], self._days[closed - 1]


def doubts(book: Book, sessions: Sessions, day: int, basket: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what cannot be right in the bars of a session after those of an account: a key, and what was expected and
    came.

    Args:
        basket: tickers of a basket that the journal does not show.
    """
    data_array = book.market.data_array
    dates = book.market.dates.astype("datetime64[D]")
    date = dates[day]
    if not sessions.is_session(date):
        yield f"{date} session", f"a session of {sessions.name}, got bars of {date}"
    if day == book.start:
        return
    if missing := sessions.between(dates[day - 1], date):
        yield f"{date} missing", f"bars of {', '.join(missing)}, got none before those of {date}"
    before, bars = np.isfinite(data_array[day - 1 : day + 1, :, CLOSE]).sum(axis=1).tolist()
    if bars < _FEWEST_BARS * before:
        yield f"{date} bars", f"some {before} bars on {date} as on the session before, got {bars}"
    yesterday, today = data_array[day - 1 : day + 1][..., list(PRICES)]
    if 2 * (again := int((yesterday == today).all(axis=1).sum())) > bars:
        yield f"{date} repeated", f"new bars on {date}, got those of the day before for {again}"
    held = [ticker for ticker in book.shares(day - 1) if ticker in book.market.tickers]
    asked = dict.fromkeys([*held, *(order.ticker for order in book.orders(day - 1))])
    for ticker in dict.fromkeys([*asked, *basket]):
        # On what the basket alone holds no order depends: ordinary news are not asked about.
        if text := _looks_split(book, ticker, day, least=0.0 if ticker in asked else _SURELY_SPLIT):
            yield f"{date} split {ticker}", text


def _looks_split(book: Book, ticker: str, day: int, least: float) -> str:
    """Say by which round ratio a stock opened away from its last close, as after a split; empty if it did not, or moved
    by less than `least`."""
    if not np.isfinite(book.prices(ticker, day - 1)).any():
        return ""
    ratio = book.last_price(ticker, day - 1) / float(book.prices(ticker, day, OPEN)[-1])
    move = max(ratio, 1 / ratio)
    if not np.isfinite(move) or move < least:
        return ""
    past = np.log(book.prices(ticker, day - 1, OPEN)[1:] / book.prices(ticker, day - 2))
    largest_past_move = np.exp(np.nanmax(np.abs(past), initial=0.0))
    split = min((*_SPLITS, max(2.0, float(np.round(move)))), key=lambda candidate: abs(move / candidate - 1))
    tolerance = 0.03
    if move >= _SURELY_SPLIT:
        tolerance = max(tolerance, 3.0 * float(np.nan_to_num(np.nanstd(past))))
    if abs(move / split - 1) >= tolerance or move <= min(_SURELY_SPLIT, largest_past_move):
        return ""
    kind = "split" if ratio > 1 else "reverse split"
    return f"adjusted bars of {ticker}, got what looks like a {kind} by {split:g} on {book.date(day)}"
