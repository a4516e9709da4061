"""What an account would have earned without skill: its weights in other stocks, and its exposure on other days."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from utils.arrays import Float64Array

_BYTES = 2**28
"""Memory that permuted weights may take."""
_STEADY = 0.01
"""Range of exposures within which nothing is timed."""


class Active(NamedTuple):
    """Weights of an account less its benchmark's, (D, m), in the stocks that have bars on all days, and their returns;
    of a universe that changes, in the members of the day.

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
    member: NDArray[np.bool_] | None = None
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
        member: NDArray[np.bool_] | None = None,
    ) -> Self:
        """Take the stocks that have bars on all days, or that are members on one.

        Args:
            before, held: (D, n) active weights.
            open_, close: (D + 1, n), NaN without a bar.
            at_close: orders are filled at the close on which they are decided.
            member: (D, n) of a universe that changes.
        """
        if member is None:
            is_some = np.isfinite(close).all(axis=0)
        else:
            is_some, close = member.any(axis=0), pd.DataFrame(close).ffill().to_numpy()
            member = member[:, is_some]
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
