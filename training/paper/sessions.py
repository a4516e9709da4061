"""Which days are sessions, by an exchange's calendar or by the data alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from utils.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

NO_CALENDAR = "none"


@dataclass(frozen=True)
class Sessions:
    """The sessions of an exchange around some days; every day of the data is one where no exchange is named."""

    name: str
    _calendar: Any = None

    @classmethod
    def of(cls, name: str, first: np.datetime64, last: np.datetime64) -> Sessions:
        """Return the sessions of an exchange, as XNYS, from some days before `first` to some after `last`.

        Raises:
            ConfigError: `exchange_calendars` knows no such exchange, or not on these days.
        """
        if name == NO_CALENDAR:
            return cls(name)
        # Imported late: it takes a second, and only accounts with a calendar need it.
        import exchange_calendars  # type: ignore[import-untyped]

        try:
            calendar = exchange_calendars.get_calendar(name, start=str(first - 10), end=str(last + 10))
        except (exchange_calendars.errors.InvalidCalendarName, ValueError) as error:
            raise ConfigError(
                f"expected the name of an exchange's calendar such as XNYS, or none, for --calendar, got {name!r} "
                f"({error})"
            ) from None
        return cls(name, calendar)

    def is_session(self, day: np.datetime64) -> bool:
        """Tell whether a day is a session."""
        return self._calendar is None or bool(self._calendar.is_session(str(day)))

    def between(self, first: np.datetime64, last: np.datetime64) -> list[str]:
        """Return the sessions after `first` and before `last`; none without a calendar."""
        if self._calendar is None or last - first <= np.timedelta64(1, "D"):
            return []
        days: pd.DatetimeIndex = self._calendar.sessions_in_range(str(first + 1), str(last - 1))
        return [str(day.date()) for day in days]

    def last_closed(self, now: datetime) -> np.datetime64 | None:
        """Return the last session that has closed by now, a time with its zone; None without a calendar."""
        if self._calendar is None:
            return None
        closes = self._calendar.closes
        place = int(closes.searchsorted(now, side="right")) - 1
        return np.datetime64(closes.index[max(place, 0)].date(), "D")
