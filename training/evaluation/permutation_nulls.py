"""What an account would have earned without skill: its weights in other stocks, its exposure on other days, and its
policy on the same days drawn again, where nothing is foretold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
import torch

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from utils.tables import many

_BYTES = 2**28
"""Memory that permuted weights may take."""
_STEADY = 0.01
"""Range of exposures within which nothing is timed."""
_PRICES = [OPEN, HIGH, LOW, CLOSE]
_BLOCK = 20
"""Sessions that stay together, so that volatility comes in clusters as it did."""


class Active(NamedTuple):
    """Weights of an account less its benchmark's, (D, m), in the stocks that trade on all days but for short gaps, and
    their returns; of a universe that changes, in the members of the day.

    What is held more or less than the benchmark could have been held in any of these stocks. A permutation of the
    stocks, the same while the members are, keeps sizes, times, turnover and costs, and exchanges what was picked.
    """

    before: Float64Array
    """At each close."""
    held: Float64Array
    """The same after the fills."""
    night: Float64Array
    """Return from the close to the fill, of what is held before it, and from there to the next close, of what is held
    after it; shares of the price at the close."""
    session: Float64Array
    member: BoolArray | None = None
    """(D, m) of a universe that changes; None: all on all days."""

    @classmethod
    def of(
        cls,
        before: Float64Array,
        held: Float64Array,
        open_: Float64Array,
        close: Float64Array,
        *,
        at_close: bool,
        longest_gap: int,
        member: BoolArray | None = None,
    ) -> Self:
        """Take the stocks that trade on all days but for short gaps, or that are members on one.

        Args:
            before, held: (D, n) active weights.
            open_, close: (D + 1, n), NaN without a bar.
            at_close: orders are filled at the close on which they are decided.
            longest_gap: sessions in a row without a bar for which an account waits.
            member: (D, n) of a universe that changes.
        """
        if member is None:
            missing = pd.DataFrame(~np.isfinite(close)).rolling(longest_gap + 1, min_periods=1).sum().to_numpy()
            is_some = (missing <= longest_gap).all(axis=0) & np.isfinite(close).any(axis=0)
        else:
            is_some = member.any(axis=0)
            member = member[:, is_some]
        close = pd.DataFrame(close).ffill().to_numpy()
        open_, close = open_[:, is_some], close[:, is_some]
        fill = close[:-1] if at_close else np.where(np.isfinite(open_[1:]), open_[1:], close[1:])
        night, whole = (np.nan_to_num(price / close[:-1] - 1) for price in (fill, close[1:]))
        return cls(before[:, is_some], held[:, is_some], night, whole - night, member)

    def spells(self) -> Iterator[tuple[slice, Active]]:
        """Yield the days on which the members stay the same, with the members on them."""
        if self.member is None:
            yield slice(0, len(self.before)), self
            return
        changes = (self.member[1:] != self.member[:-1]).any(axis=1).nonzero()[0] + 1
        for first, end in itertools.pairwise((0, *changes.tolist(), len(self.member))):
            some = self.member[first]
            days = slice(first, end)
            before, held, night, session = (part[days][:, some] for part in self[:4])
            yield days, Active(before, held, night, session)

    @property
    def selection(self) -> Float64Array:
        """(D,) percent that the weights earned less the mean over all permutations, which has the mean weights."""
        total = np.zeros(len(self.before))
        for days, part in self.spells():
            if part.before.size:
                for weights, returns in ((part.before, part.night), (part.held, part.session)):
                    total[days] += 100 * ((weights - weights.mean(axis=1, keepdims=True)) * returns).sum(axis=1)
        return total

    def permuted(self, draws: int, generator: torch.Generator) -> Float64Array:
        """Return (draws, D) percent that permuted weights earned less what the weights earned."""
        keys = torch.rand(draws, self.before.shape[1], generator=generator)
        earned = torch.zeros(draws, len(self.before), dtype=torch.float64)
        for days, part in self.spells():
            before, held, night, session = (torch.from_numpy(values) for values in part[:4])
            own = (before * night).sum(1) + (held * session).sum(1)
            is_member = slice(None) if self.member is None else self.member[days.start].nonzero()[0]
            order = keys[:, is_member].argsort(1)
            size = max(1, _BYTES // (16 * len(before) * max(1, before.shape[1])))
            for first, some in zip(range(0, draws, size), order.split(size), strict=True):
                of_draws = (torch.einsum("dkm,dm->kd", w[:, some], r) for w, r in ((before, night), (held, session)))
                earned[first : first + size, days] = sum(of_draws) - own
        return np.asarray(100 * earned)


class Timing(NamedTuple):
    """What an account earned by being exposed more on some days than on others."""

    daily: Float64Array
    """(D,) percent: the benchmark's return times the exposure less its mean over all days."""
    known: Float64Array
    """The same less the mean of the days before, which was known beforehand."""
    shifted: Float64Array
    """(D - 1,) sums of `daily` with the exposure shifted in time, on a circle, by each number of days."""

    @classmethod
    def of(cls, exposure: Float64Array, benchmark: Float64Array) -> Self:
        """Compare (D,) shares of the equity that are invested; nothing is timed where they hardly vary.

        Args:
            benchmark: (D,) daily returns, percent.
        """
        if np.ptp(exposure) <= _STEADY:
            exposure = np.zeros(len(exposure))
        before = np.cumsum(exposure)[:-1] / np.arange(1, len(exposure))
        known = exposure - np.concatenate((exposure[:1], before))
        centred = exposure - exposure.mean()
        shifted = np.fft.irfft(np.fft.rfft(centred) * np.fft.rfft(benchmark).conj(), n=len(exposure))
        return cls(
            centred * benchmark, known * benchmark, shifted[1:] if centred.any() else np.zeros(len(exposure) - 1)
        )


@dataclass(frozen=True)
class Praise:
    """On how many null markets the verdict praised a policy."""

    markets: int
    has_skill: int
    is_better_than_benchmark: int

    @property
    def sentence(self) -> str:
        return (
            f"On {many(self.markets, 'market')} of the same days drawn again, where nothing is foretold, the same code "
            f"is called skilled {many(self.has_skill, 'time')}, and better than the benchmark "
            f"{many(self.is_better_than_benchmark, 'time')}."
        )


def redrawn(market: Market, rng: np.random.Generator) -> Market:
    """Draw the days of a market again, in blocks with replacement, and turn the moves of half of them around.

    Within blocks a move may foretell the next ones; of a day whose moves have a random sign, the same for all stocks,
    nothing is known before. See `rearranged`. Volume and columns come with their day. Who is a member and has a bar on
    which date stays; indicators, which functions of bars do not see, are left as they are.
    """
    days = len(market.dates) - 1
    starts = rng.integers(days, size=math.ceil(days / _BLOCK))
    chosen = (starts[:, None] + np.arange(_BLOCK)).ravel()[:days] % days
    bars = market.data_array[..., _PRICES].astype(np.float64)
    places, has_bar = _places(bars, chosen), np.isfinite(bars[..., -1])

    def drawn(values: Float32Array) -> Float32Array:
        again = np.take_along_axis(values[1:], places, axis=0)
        return np.where(has_bar, np.concatenate((values[:1], again)), np.float32(np.nan))

    array = market.data_array.copy()
    array[..., _PRICES] = rearranged(bars, chosen, rng.random(days) < 0.5)
    return replace(
        market,
        data_array=array,
        volume=None if market.volume is None else drawn(market.volume),
        columns={name: drawn(values) for name, values in market.columns.items()},
    )


def rearranged(bars: Float64Array, chosen: Int64Array, is_mirrored: BoolArray | None = None) -> Float64Array:
    """Make a market of (days, stocks, 4) open, high, low, close whose days after the first are the chosen ones.

    A day is each stock's bar relative to its close before: it keeps its cross-section and the shape of its bars. It is
    divided by the stock's mean relative close, so that each stock's expected daily return is 0: else one that did well
    in all years would be expected to go on, and finding it would be skill. Of a stock without a bar on a chosen day
    another of its days is taken; NaN, no bar, stays where it is.

    Args:
        chosen: (days - 1,) indices of days, the one after the first is 0.
        is_mirrored: (days - 1,) days that rise by the factor by which the chosen one fell; default: none.
    """
    close = pd.DataFrame(bars[..., 3]).ffill().to_numpy()
    relative, places = bars[1:] / close[:-1, :, None], _places(bars, chosen)
    mirrored = 1 / relative[..., [0, 2, 1, 3]]
    closes = relative[..., 3:] if is_mirrored is None else (relative[..., 3:] + mirrored[..., 3:]) / 2
    mean = np.nansum(closes, axis=0) / np.maximum(np.isfinite(closes).sum(axis=0), 1)
    drawn = np.take_along_axis(relative, places[..., None], axis=0)
    if is_mirrored is not None:
        drawn[is_mirrored] = np.take_along_axis(mirrored, places[..., None], axis=0)[is_mirrored]
    drawn /= mean
    first = pd.DataFrame(close).bfill().to_numpy()[0]
    before = np.concatenate((first[None], first * np.cumprod(drawn[..., 3], axis=0)))[:-1]
    made = np.concatenate((bars[:1], drawn * before[..., None]))
    return np.where(np.isfinite(bars), made, np.nan)


def _places(bars: Float64Array, chosen: Int64Array) -> Int64Array:
    """Return the (days - 1, stocks) days to take: the chosen ones, or others on which a stock has a bar and had one."""
    has_bar = np.isfinite(bars[..., 3])
    is_known = has_bar[1:] & np.maximum.accumulate(has_bar)[:-1]
    places = np.repeat(chosen[:, None], bars.shape[1], axis=1)
    for stock in np.flatnonzero(~is_known.all(axis=0) & is_known.any(axis=0)):
        known = np.flatnonzero(is_known[:, stock])
        places[:, stock] = np.where(is_known[chosen, stock], chosen, known[chosen % len(known)])
    return places
