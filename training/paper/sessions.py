"""Sessions: days of trading by an exchange's calendar, or by the data alone, and what in their bars cannot be right."""

import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from data.features.nine import CLOSE, OPEN, PRICES
from training.paper.book import Book
from training.signals.signals import few_bars
from utils.arrays import DateArray
from utils.config.settings import hint
from utils.errors import ConfigError, first_line

logger = logging.getLogger(__name__)
NO_CALENDAR = "none"
_SPLITS = (1.2, 1.25, 4 / 3, 1.5, 5 / 3, 2.5)
"""Round ratios besides whole numbers."""
_SURELY_SPLIT = 1.45
"""Overnight move from which a round ratio counts as a split even if the stock has moved that far before."""
_LARGE = 0.05
"""Share of the equity from which a position is asked about any round ratio."""


@dataclass(frozen=True)
class Sessions:
    """The sessions of an exchange around some days.

    Every day of the data is one outside of these days, and where no exchange is named.
    """

    name: str
    _days: DateArray | None = None
    _hours: DateArray | None = None
    """(2, sessions) times at which they open and close, UTC."""
    _known: tuple[np.datetime64, np.datetime64] = (np.datetime64("9999"), np.datetime64("0000"))
    """First and last day of which is known whether it is one."""

    @classmethod
    def of(cls, name: str, first: np.datetime64, last: np.datetime64) -> "Sessions":
        """Return the sessions of an exchange, as XNYS, from some days before `first` to the day after `last`, as far as
        `exchange_calendars` knows them; say where it does not.

        Raises:
            ConfigError: it knows no such exchange, or fails.
        """
        if name == NO_CALENDAR:
            return cls(name)
        # Imported late: it takes a second, and only accounts with a calendar need it.
        import exchange_calendars  # type: ignore[import-untyped]

        library = f"exchange_calendars {exchange_calendars.__version__}"
        try:
            kind = exchange_calendars.calendar_utils.global_calendar_dispatcher._calendar_factories[
                exchange_calendars.resolve_alias(name)
            ]
        except exchange_calendars.errors.InvalidCalendarName:
            near = hint(name, exchange_calendars.get_calendar_names())
            raise ConfigError(
                f"expected the name of an exchange's calendar such as XNYS, or none, for --calendar, got {name!r}{near}"
            ) from None
        # A session may open on the evening before its day.
        first, until = first - np.timedelta64(10, "D"), last + np.timedelta64(1, "D")
        low, high = (None if day is None else np.datetime64(day, "D") for day in (kind.bound_min(), kind.bound_max()))
        first, until = max(first, low or first), min(until, high or until)
        if until < last:
            logger.warning(
                "%s knows the sessions of %s until %s: each later day of the data is taken as one; install a newer "
                "version: pip install --upgrade exchange_calendars", library, name, until
            )  # fmt: skip
        if until <= first:
            return cls(name)
        try:
            with warnings.catch_warnings(action="ignore"):  # by pandas, for the authors of the calendars
                calendar = exchange_calendars.get_calendar(name, start=str(first), end=str(until))
        except Exception as error:  # of the library, or of its use of another
            raise ConfigError(
                f"expected the sessions of {name} from {first} to {until} of {library}, got {type(error).__name__}: "
                f"{first_line(error)[:80]}; install another version of it, or open the account with --calendar none"
            ) from None
        hours = np.stack([times.dt.tz_convert(None).to_numpy() for times in (calendar.opens, calendar.closes)])
        return cls(name, calendar.closes.index.to_numpy().astype("datetime64[D]"), hours, (first, until))

    def is_session(self, day: np.datetime64) -> bool:
        """Tell whether a day is a session, or may be one."""
        return self._days is None or not self._known[0] <= day <= self._known[1] or day in self._days

    def between(self, first: np.datetime64, last: np.datetime64) -> list[str]:
        """Return the sessions after `first` and before `last`; none without a calendar."""
        if self._days is None:
            return []
        return [str(day) for day in self._days[(self._days > first) & (self._days < last)]]

    def last_until(self, now: datetime) -> tuple[np.datetime64, np.datetime64] | None:
        """Return the last sessions that have opened and closed by now, a time in UTC; None where that is not known."""
        time = np.datetime64(now.replace(tzinfo=None))
        if self._days is None or self._hours is None or time.astype("datetime64[D]") > self._known[1]:
            return None
        opened, closed = (np.searchsorted(times, time, side="right") for times in self._hours)
        return self._days[opened - 1], self._days[closed - 1]


def doubts(book: Book, sessions: Sessions, day: int) -> Iterator[tuple[str, str]]:
    """Yield what cannot be right in the bars of a session after those of an account: a key, and what was expected and
    came."""
    data_array = book.market.data_array
    dates = book.market.dates
    date = dates[day]
    if not sessions.is_session(date):
        yield f"{date} session", f"a session of {sessions.name}, got bars of {date}"
    if text := few_bars(book.market, day):
        yield f"{date} bars", text
    if day == book.start:
        return
    if missing := sessions.between(dates[day - 1], date):
        yield f"{date} missing", f"bars of {', '.join(missing)}, got none before those of {date}"
    bars = int(np.isfinite(data_array[day, :, CLOSE]).sum())
    yesterday, today = data_array[day - 1 : day + 1][..., list(PRICES)]
    if 2 * (again := int((yesterday == today).all(axis=1).sum())) > bars:
        yield f"{date} repeated", f"new bars on {date}, got those of the day before for {again}"
    shares, equity = book.session(day - 1)["positions"], book.equity(day - 1)
    ordered = {order.ticker for order in book.orders(day - 1)}
    for ticker in dict.fromkeys([*(one for one in shares if one in book.market.tickers), *ordered]):
        # Of small positions without an order ordinary news are not asked about.
        is_small = ticker not in ordered and book.worth({ticker: shares[ticker]}, day - 1) < _LARGE * equity
        if text := _looks_split(book, ticker, day, least=_SURELY_SPLIT if is_small else 0.0):
            yield f"{date} split {ticker}", text


def _looks_split(book: Book, ticker: str, day: int, least: float) -> str:
    """Say by which round ratio a stock opened away from its last close, as after a split; empty if it did not, or moved
    by less than `least`."""
    close, open_ = book.prices(ticker, day - 1), book.prices(ticker, day, OPEN)
    if not (traded := np.flatnonzero(np.isfinite(close))).size:
        return ""
    # A halt ends with the news of all its sessions, and is compared with what as many have brought.
    sessions, ratio = day - traded[-1], float(close[traded[-1]]) / float(open_[-1])
    move = max(ratio, 1 / ratio)
    if not np.isfinite(move) or move < least:
        return ""
    past = np.log(open_[sessions:-1] / close[:-sessions])
    largest_past_move = np.exp(np.nanmax(np.abs(past), initial=0.0))
    split = min((*_SPLITS, max(2.0, float(np.round(move)))), key=lambda candidate: abs(move / candidate - 1))
    tolerance = 0.03
    if move >= _SURELY_SPLIT:
        tolerance = max(tolerance, 3.0 * float(np.nan_to_num(np.nanstd(past))))
    if abs(move / split - 1) >= tolerance or move <= min(_SURELY_SPLIT, largest_past_move):
        return ""
    kind = "split" if ratio > 1 else "reverse split"
    return f"adjusted bars of {ticker}, got what looks like a {kind} by {split:g} on {book.date(day)}"
