"""Daily bars of a market whose sessions a law may move: all that no law changes is drawn beforehand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from benchmarks.learning.structures import wild_spells
from utils.arrays import Float64Array, Int64Array

INDUSTRIES = 8
COLUMNS = ("surprise", "news", "value")
"""Of the user, in the bars of laws that read them."""
_QUARTER = 63
_NIGHT = 0.3
"""Share of the market's and an industry's return that comes overnight."""
_LARGEST = 7.0
"""Deviations of a shock."""


class Traits(NamedTuple):
    """What a stock keeps for good, (n,) each, and its favourite seasons."""

    beta: Float64Array
    deviation: Float64Array
    level: Float64Array
    """Logarithm of its usual volume."""
    industry: Int64Array
    leader: Int64Array
    """Another stock."""
    degree: Float64Array
    """From 0 to 2: how far a law holds for it, where each stock has its own degree."""
    side: Float64Array
    """Normal: the same where each stock has its own sign."""
    favourites: Float64Array
    """(12, n), normal."""

    @classmethod
    def draw(cls, n: int, rng: np.random.Generator) -> Traits:
        """Draw those of a market."""
        leader = (np.arange(n) + rng.integers(1, n, n)) % n
        return cls(
            rng.uniform(0.6, 1.4, n),
            rng.uniform(0.010, 0.020, n),
            12 + rng.standard_normal(n),
            rng.integers(0, INDUSTRIES, n),
            leader,
            rng.uniform(0, 2, n),
            rng.standard_normal(n),
            rng.standard_normal((12, n)),
        )


class Noise(NamedTuple):
    """What no law changes, (days, n) each; a row is known at the day's close."""

    common_night: Float64Array
    """Log return by market and industry."""
    common_session: Float64Array
    night: Float64Array
    """Log return of the stock's own."""
    session: Float64Array
    volume: Float64Array
    """Of the logarithm, beside what a move brings."""
    above: Float64Array
    """Logarithm of the high over the higher of open and close."""
    below: Float64Array
    hidden: Float64Array
    """Normal."""
    hidden_industry: Float64Array
    surprise: Float64Array
    """Normal on one day of a quarter, else 0."""
    news: Float64Array
    """Number of headlines."""
    value: Float64Array
    """Normal, with a half-life of a year."""

    @classmethod
    def draw(cls, traits: Traits, days: int, rng: np.random.Generator) -> Noise:
        """Draw that of a market: spells of wild volatility, volatility of its own for each stock, fat tails."""
        n, is_wild = len(traits.beta), wild_spells(days, rng)

        def shocks(width: int) -> Float64Array:
            """Draw Student's t of 5 degrees of freedom and unit variance."""
            drawn = rng.standard_t(5, (days, width)) / np.sqrt(5 / 3)
            return np.asarray(drawn.clip(-_LARGEST, _LARGEST), dtype=np.float64)

        market = 0.0002 + np.where(is_wild, 0.018, 0.007)[:, None] * shocks(1)
        common = market * traits.beta + 0.006 * shocks(INDUSTRIES)[:, traits.industry]
        deviation = traits.deviation * np.exp(0.35 * _slow(days, n, 20, rng)) * np.where(is_wild, 1.3, 1.0)[:, None]
        reports = (np.arange(days)[:, None] + rng.integers(0, _QUARTER, n)) % _QUARTER == 0
        return cls(
            _NIGHT * common,
            (1 - _NIGHT) * common,
            0.4 * deviation * shocks(n),
            deviation * shocks(n),
            0.35 * _slow(days, n, 5, rng) + 0.25 * rng.standard_normal((days, n)),
            0.4 * deviation * np.abs(rng.standard_normal((days, n))),
            0.4 * deviation * np.abs(rng.standard_normal((days, n))),
            rng.standard_normal((days, n)),
            rng.standard_normal((days, INDUSTRIES))[:, traits.industry],
            np.where(reports, rng.standard_normal((days, n)), 0.0),
            rng.poisson(0.3, (days, n)).astype(np.float64),
            _slow(days, n, 250, rng),
        )


def _slow(days: int, n: int, half_life: float, rng: np.random.Generator) -> Float64Array:
    """Draw (days, n) autoregressions of unit variance."""
    kept = 0.5 ** (1 / half_life)
    shocks = np.sqrt(1 - kept**2) * rng.standard_normal((days, n))
    shocks[0] /= np.sqrt(1 - kept**2)
    return np.asarray(lfilter([1.0], [1.0, -kept], shocks, axis=0))


class Past:
    """Bars up to the close of a day, which a law may read: later rows of its (days, n) arrays are 0.

    `night` and `session` are parts of the log return `total`, `own` is its part apart from market and industry, `price`
    the logarithm of the close, `volume` that of the shares traded, `width` that of high over low.
    """

    def __init__(self, traits: Traits, noise: Noise, dates: pd.DatetimeIndex) -> None:
        """Begin before the first day; `dates` has a session more than the noise."""
        self.traits, self.noise, self.day = traits, noise, -1
        names = ("night", "session", "total", "own", "price", "volume", "width", "high", "low")
        shape = noise.session.shape
        self.night, self.session, self.total, self.own, *rest = (np.zeros(shape) for _ in names)
        self.price, self.volume, self.width, self.high, self.low = rest
        self.dates = dates
        self.weekday, self.month, self.monthday = (
            np.asarray(part) for part in (dates.day_of_week, dates.month, dates.day)
        )
        self.year = np.asarray(dates.year)
        place = pd.Series(1, dates).groupby([self.year, self.month]).cumsum()
        self.is_turn = np.asarray((place <= 3) | ((dates + pd.offsets.BDay(1)).month != dates.month))

    @property
    def next(self) -> int:
        """Return the place of the session to come among the dates."""
        return self.day + 1

    def walk(self, drift: Float64Array) -> None:
        """Go on to the close of the next session, whose log returns have some (n,) drift."""
        self.day += 1
        day, noise = self.day, self.noise
        self.night[day] = noise.common_night[day] + noise.night[day]
        self.session[day] = noise.common_session[day] + noise.session[day] + drift
        self.own[day] = noise.night[day] + noise.session[day] + drift
        self.total[day] = self.night[day] + self.session[day]
        self.price[day] = (self.price[day - 1] if day else np.log(50)) + self.total[day]
        move = np.abs(self.own[day]) / self.traits.deviation
        self.volume[day] = self.traits.level + noise.volume[day] + 0.25 * move
        open_ = self.price[day] - self.session[day]
        self.high[day] = np.maximum(open_, self.price[day]) + noise.above[day]
        self.low[day] = np.minimum(open_, self.price[day]) - noise.below[day]
        self.width[day] = self.high[day] - self.low[day]

    def last(self, values: Float64Array, look: int, skip: int = 0) -> Float64Array:
        """Return the rows of the last days, some skipped: as many as there are, at least one."""
        stop = max(self.next - skip, 1)
        return values[max(stop - look, 0) : stop]

    def frame(self, column: str | None) -> pd.DataFrame:
        """Return bars in long form, and a column of the user."""
        days, n = len(self.session), len(self.traits.beta)
        parts = {
            "open": np.exp(self.price - self.session),
            "high": np.exp(self.high),
            "low": np.exp(self.low),
            "close": np.exp(self.price),
            "volume": np.exp(self.volume).round(),
            **({} if column is None else {column: getattr(self.noise, column)}),
        }
        tickers = [f"S{stock:03d}" for stock in range(n)]
        columns = {name: values.ravel() for name, values in parts.items()}
        return pd.DataFrame({"date": np.repeat(self.dates[:days], n), "ticker": tickers * days, **columns})
