"""Sessions: days of trading by an exchange's calendar, or by the data alone."""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from utils.errors import ConfigError

NO_CALENDAR = "none"


@dataclass(frozen=True)
class Sessions:
    """The sessions of an exchange around some days; every day of the data is one where no exchange is named."""

    name: str
    _days: NDArray[np.datetime64] | None = None
    _closes: NDArray[np.datetime64] | None = None
    """Times at which they close, UTC."""

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

        try:
            closes = exchange_calendars.get_calendar(name, start=str(first - 10), end=str(last + 10)).closes
        except (exchange_calendars.errors.InvalidCalendarName, ValueError) as error:
            raise ConfigError(
                f"expected the name of an exchange's calendar such as XNYS, or none, for --calendar, got {name!r} "
                f"({error})"
            ) from None
        return cls(name, closes.index.to_numpy().astype("datetime64[D]"), closes.dt.tz_convert(None).to_numpy())

    def is_session(self, day: np.datetime64) -> bool:
        """Tell whether a day is a session."""
        return self._days is None or day in self._days

    def between(self, first: np.datetime64, last: np.datetime64) -> list[str]:
        """Return the sessions after `first` and before `last`; none without a calendar."""
        if self._days is None:
            return []
        return [str(day) for day in self._days[(self._days > first) & (self._days < last)]]

    def last_closed(self, now: datetime) -> np.datetime64 | None:
        """Return the last session that has closed by now, a time in UTC; None without a calendar."""
        if self._days is None or self._closes is None:
            return None
        place = np.searchsorted(self._closes, np.datetime64(now.replace(tzinfo=None)), side="right") - 1
        last: np.datetime64 = self._days[place]
        return last
