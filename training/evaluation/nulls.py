"""What an account would have earned without skill: its weights in other stocks, and its exposure on other days."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import torch

from utils.arrays import Float64Array

_BYTES = 2**28
"""Memory that permuted weights may take."""
_STEADY = 0.01
"""Range of exposures within which nothing is timed."""


class Active(NamedTuple):
    """Weights of an account less its benchmark's, (D, m), in the stocks that have bars on all days, and their returns.

    What is held more or less than the benchmark could have been held in any of these stocks. A permutation of the
    stocks, the same on all days, keeps sizes, times, turnover and costs, and exchanges what was picked.
    """

    before: Float64Array
    """At each close."""
    held: Float64Array
    """The same after the fills."""
    night: Float64Array
    """Return from the close to the fill, of what is held before it, and from there to the next close, of what is held
    after it; shares of the price at the close."""
    session: Float64Array

    @classmethod
    def of(
        cls, before: Float64Array, held: Float64Array, open_: Float64Array, close: Float64Array, *, at_close: bool
    ) -> Self:
        """Take the stocks that have bars on all days.

        Args:
            before, held: (D, n) active weights.
            open_, close: (D + 1, n), NaN without a bar.
            at_close: orders are filled at the close on which they are decided.
        """
        is_whole = np.isfinite(close).all(axis=0)
        open_, close = open_[:, is_whole], close[:, is_whole]
        fill = close[:-1] if at_close else open_[1:]
        night, whole = fill / close[:-1] - 1, close[1:] / close[:-1] - 1
        return cls(before[:, is_whole], held[:, is_whole], night, whole - night)

    @property
    def selection(self) -> Float64Array:
        """(D,) percent that the weights earned less the mean over all permutations, which has the mean weights."""
        total = np.zeros(len(self.before))
        if self.before.size:
            for weights, returns in ((self.before, self.night), (self.held, self.session)):
                total += 100 * ((weights - weights.mean(axis=1, keepdims=True)) * returns).sum(axis=1)
        return total

    def permuted(self, draws: int, generator: torch.Generator) -> Float64Array:
        """Return (draws, D) percent that permuted weights earned less what the weights earned."""
        before, held, night, session = (torch.from_numpy(part) for part in self)
        days, stocks = before.shape
        order = torch.rand(draws, stocks, generator=generator).argsort(1)
        earned = (before * night).sum(1) + (held * session).sum(1)
        parts = [torch.zeros(0, days, dtype=torch.float64)]
        for some in order.split(max(1, _BYTES // (16 * days * max(1, stocks)))):
            of_draws = (torch.einsum("dkm,dm->kd", w[:, some], r) for w, r in ((before, night), (held, session)))
            parts.append(sum(of_draws) - earned)
        return np.asarray(100 * torch.cat(parts))


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
