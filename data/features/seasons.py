"""What stocks did in sessions like the next one: on its weekday, in its month of the year, at the turn of a month.

Heston and Sadka (2008), "Seasonality in the cross-section of stock returns", find months that favour the same stocks
for decades (0.7% a month between the tenths by the same month's past), and Keloharju, Linnainmaa and Nyberg (2016),
"Return seasonalities", weekdays (0.04% to 0.1% a day). Means are shrunk by the number of sessions that they are taken
over.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import scipy  # submodules, which take a second to import, are loaded when they are used

from data.features.catalogue import register
from data.features.wide import WideBars
from utils.arrays import DateArray, Float64Array, Int64Array

_PRIOR = 60
"""Sessions of no return that count beside those of a stock."""
_HALF_LIFE = 500
"""Sessions of a season in which half of its past is forgotten."""
_CALENDAR, _LEAST_SHARE = 60, 0.05
"""First sessions by which the weekdays of trading are told, and their share from which on a weekday is one."""
_TURN = (1, 3)
"""Last and first sessions of a month that are its turn (Lakonishok and Smidt 1988, "Are seasonal anomalies real?")."""


def _seasonal(bars: WideBars, name: str) -> pd.DataFrame:
    """Return the shrunk mean of a stock's returns in the season of the next session, as far as they are known."""
    close, returns = bars.close, bars.log_returns.to_numpy()
    today, following = SEASONS[name](close.index), seasons_ahead(name, bars.dates)
    means = np.zeros(returns.shape)
    for season in np.unique(following):
        past, places = np.flatnonzero(today == season), np.flatnonzero(following == season)
        of_season = np.vstack((np.zeros(returns.shape[1]), _shrunk_means(returns[past])))
        means[places] = of_season[np.searchsorted(past, places, side="right")]
    return pd.DataFrame(means, close.index, close.columns).where(close.notna())


def _shrunk_means(returns: Float64Array) -> Float64Array:
    """Return the (sessions, n) exponentially weighted means of returns so far, as if there had been others of 0."""
    known, kept = np.isfinite(returns), 0.5 ** (1 / _HALF_LIFE)
    total, weight = (
        scipy.signal.lfilter([1.0], [1.0, -kept], part, axis=0)
        for part in (np.where(known, returns, 0.0), known.astype(np.float64))
    )
    return np.asarray(total / (weight + _PRIOR))


def _next_sessions(dates: pd.DatetimeIndex) -> pd.DatetimeIndex:
    """Return the next date on a weekday on which there is trading, after each; holidays are not known. Until there are
    enough sessions that tell them, weekdays are those from Monday to Friday."""

    def ahead(traded: Sequence[int]) -> Int64Array:
        apart = [min((day - today - 1) % 7 for day in traded) + 1 for today in range(7)]
        return np.asarray(np.array(apart)[dates.day_of_week])

    days, share = ahead(range(5)), np.bincount(dates[:_CALENDAR].day_of_week, minlength=7) / _CALENDAR
    if len(dates) >= _CALENDAR:
        days[_CALENDAR - 1 :] = ahead(np.flatnonzero(share >= _LEAST_SHARE).tolist())[_CALENDAR - 1 :]
    return dates + pd.to_timedelta(days, unit="D")


def seasons_ahead(name: str, dates: DateArray) -> Int64Array:
    """Return the season of the session after each of some days, of `SEASONS`."""
    return SEASONS[name](_next_sessions(pd.DatetimeIndex(dates)))


def _half_of_month(dates: pd.DatetimeIndex) -> Int64Array:
    """Tell of dates whether they are among the first 15 days of a month (Ariel 1987, "A monthly effect in stock
    returns")."""
    return np.asarray(dates.day <= 15, dtype=np.int64)


def _turn_of_month(dates: pd.DatetimeIndex) -> Int64Array:
    """Tell of dates whether they are among the last and first weekdays of a month."""
    day, month = dates.to_numpy().astype("datetime64[D]"), dates.to_numpy().astype("datetime64[M]")
    left, gone = np.busday_count(day, month + 1), np.busday_count(month, day)
    return np.asarray((left <= _TURN[0]) | (gone < _TURN[1]), dtype=np.int64)


SEASONS: dict[str, Callable[[pd.DatetimeIndex], Int64Array]] = {
    "favourite weekday": lambda dates: np.asarray(dates.day_of_week),
    "favourite month": lambda dates: np.asarray(dates.month),
    "favourite half of the month": _half_of_month,
    "favourite turn of the month": _turn_of_month,
}
"""In which stocks may do well by themselves."""


@register("seasons", "mean log return", "relative")
def weekday_season(bars: WideBars) -> pd.DataFrame:
    """Return the mean return on the weekday of the next session."""
    return _seasonal(bars, "favourite weekday")


@register("seasons", "mean log return", "relative")
def month_season(bars: WideBars) -> pd.DataFrame:
    """Return the mean return in the calendar month of the next session."""
    return _seasonal(bars, "favourite month")


@register("seasons", "mean log return", "relative")
def turn_season(bars: WideBars) -> pd.DataFrame:
    """Return the mean return at the turn of months, or apart from it, as the next session is."""
    return _seasonal(bars, "favourite turn of the month")
