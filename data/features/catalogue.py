"""The features that agents read besides past returns. A feature is a function of wide bars, registered by name.

Row t of a feature depends on bars up to t only. Its form says whether it becomes an input as it is, as a rank
among the stocks of the day, or relative to its past, see `data.features.forms`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Literal

import numpy as np
import pandas as pd

from data.features.nine import MACD, MACD_SIGNAL, PERCENT_TO_MA20, RSI, TRIX
from data.features.wide import WideBars

Form = Literal["level", "rank", "past", "relative", "scaled"]
Values = Callable[[WideBars], pd.DataFrame]
"""From bars of some stocks to (days, stocks); a stock's values depend on its own bars only, unless it reads all."""
_WEEK, _MONTH, _QUARTER = 5, 21, 63
"""Sessions."""


@dataclass(frozen=True)
class Feature:
    """A number of every stock and day."""

    name: str
    group: str
    """Features of a group are seen together, or not, by an agent's networks."""
    unit: str
    form: Form
    """See `data.features.forms`; of what is `scaled` some days count for more, see `data.features.grammar`."""
    of: Values
    needs_volume: bool = False
    reads_all: bool = False
    """Whether a stock's values depend on the bars of all stocks."""


LIBRARY = "library"
"""Group of features of which formulas alone are made."""
CATALOGUE: dict[str, Feature] = {}
"""The built-in features by name."""


def register(
    group: str,
    unit: str,
    form: Form = "level",
    *,
    recent: bool = False,
    needs_volume: bool = False,
    reads_all: bool = False,
) -> Callable[[Values], Values]:
    """Add a function to the catalogue under its own name, and perhaps its mean of the last weeks as `recent_...`."""

    def add(of: Values) -> Values:
        name = of.__name__
        CATALOGUE[name] = Feature(name, group, unit, form, of, needs_volume, reads_all)
        if recent:
            mean = partial(_recent, of=of)
            CATALOGUE[f"recent_{name}"] = Feature(f"recent_{name}", group, unit, form, mean, needs_volume)
        return of

    return add


def column_feature(name: str, *, is_market_wide: bool) -> Feature:
    """Return the feature that is a further column of the data."""
    form: Form = "past" if is_market_wide else "rank"
    group = "market-wide columns" if is_market_wide else "columns"
    return Feature(name, group, "as in the data", form, itemgetter(name))


def event_features(name: str) -> list[Feature]:
    """Return the returns of sessions with events, of which a further column of the data is not 0."""
    return [
        Feature(
            f"return_{days}_at_{name}", LIBRARY, "logarithm", "relative", partial(_return_at, name, days), False, True
        )
        for days in (1, _WEEK)
    ]


def _return_at(name: str, days: int, bars: WideBars) -> pd.DataFrame:
    """Return the returns of some sessions, as far as they had an event (Chan 2003, "Stock price reaction to news and
    no-news")."""
    events = bars[name]
    at_events = bars.relative_returns.where(events.notna() & (events != 0), 0.0)
    return at_events.rolling(days, min_periods=1).sum()


def _recent(bars: WideBars, of: Values) -> pd.DataFrame:
    """Return exponentially weighted means over the bars of each stock, with a half-life of a week."""
    values = of(bars)
    return values.ewm(halflife=_WEEK, ignore_na=True).mean().where(values.notna())


@register("session", "share of the close before", recent=True)
def gap(bars: WideBars) -> pd.DataFrame:
    """Return the overnight return, close to open."""
    return bars.open / bars.previous_close - 1


@register("session", "share of the open", recent=True)
def intraday(bars: WideBars) -> pd.DataFrame:
    """Return the return of the session, open to close."""
    return bars.close / bars.open - 1


@register("session", "logarithm of a share of the low", recent=True)
def session_range(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the distance from low to high."""
    return np.log((bars.high / bars.low - 1).clip(lower=1e-4))


@register("session", "logarithm of a share of the close", recent=True)
def wicks(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the part of the bar that lies outside open and close."""
    open_, close = bars.open, bars.close
    body = (close - open_).abs()
    return np.log(((bars.high - bars.low - body) / close).clip(lower=1e-4))


@register("session", "share of the range", recent=True)
def place_in_range(bars: WideBars) -> pd.DataFrame:
    """Return the place of the close between low, 0, and high, 1."""
    low, width = bars.low, bars.high - bars.low
    return ((bars.close - low) / width.where(width > 0)).fillna(0.5).where(low.notna())


@register("indicators", "0 to 100")
def rsi(bars: WideBars) -> pd.DataFrame:
    """Return the relative strength index over 14 bars."""
    return bars.feature(RSI)


@register("indicators", "share of the close")
def macd(bars: WideBars) -> pd.DataFrame:
    """Return the MACD line (12, 26)."""
    return bars.feature(MACD) / bars.close


@register("indicators", "share of the close")
def macd_signal(bars: WideBars) -> pd.DataFrame:
    """Return the signal line of the MACD, its mean over 9 bars."""
    return bars.feature(MACD_SIGNAL) / bars.close


@register("indicators", "percent a bar")
def trix(bars: WideBars) -> pd.DataFrame:
    """Return the change of a triple exponential mean over 15 bars."""
    return bars.feature(TRIX)


@register("indicators", "percent")
def percent_to_ma20(bars: WideBars) -> pd.DataFrame:
    """Return the distance to the mean close of 20 bars."""
    return bars.feature(PERCENT_TO_MA20)


@register("volume", "logarithm of a share", recent=True, needs_volume=True)
def turnover(bars: WideBars) -> pd.DataFrame:
    """Return the money traded against its mean over a quarter."""
    traded = money(bars)
    return np.log(traded / traded.rolling(_QUARTER, min_periods=_MONTH).mean())


@register("volume", "logarithm of return a unit of money", "rank", needs_volume=True)
def illiquidity(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the mean absolute return by the money traded over a month (Amihud 2002, "Illiquidity and
    stock returns")."""
    moves = (bars.close / bars.previous_close - 1).abs() / money(bars)
    return np.log(moves.rolling(_MONTH, min_periods=_WEEK).mean().where(lambda mean: mean > 0))


@register("quarter", "logarithm", "rank")
def overnight_quarter(bars: WideBars) -> pd.DataFrame:
    """Return the overnight returns of a quarter, summed up."""
    return overnight_return(bars, _QUARTER, _MONTH)


@register("quarter", "logarithm", "rank")
def intraday_quarter(bars: WideBars) -> pd.DataFrame:
    """Return the returns of a quarter's sessions, summed up."""
    return session_return(bars, _QUARTER, _MONTH)


@register("quarter", "logarithm of bars", "rank")
def age(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the number of bars since the stock was listed, or the data begin."""
    return np.log1p(bars.close.notna().cumsum())


def overnight_return(bars: WideBars, days: int, least: int) -> pd.DataFrame:
    """Return the sum of the overnight returns of the last sessions, of which `least` must be known (Lou, Polk and
    Skouras 2019, "A tug of war: Overnight versus intraday expected returns")."""
    return np.log(bars.open / bars.previous_close).rolling(days, min_periods=least).sum()


def session_return(bars: WideBars, days: int, least: int) -> pd.DataFrame:
    """Return the same of their returns from open to close."""
    return np.log(bars.close / bars.open).rolling(days, min_periods=least).sum()


def money(bars: WideBars) -> pd.DataFrame:
    """Return the money traded, NaN where nothing was."""
    money = bars.close * bars.volume
    return money.where(money > 0)
