"""Products of two inputs that tell what neither does alone, found among all pairs.

What one input tells may depend on another one: returns after loud days go on, after quiet ones they turn (Llorente,
Michaely, Saar and Wang 2002, "Dynamic volume-return relation of individual stocks"), and momentum holds in calm markets
(Daniel and Moskowitz 2016, "Momentum crashes"). Matching pursuit (Mallat and Zhang 1993, "Matching pursuits with
time-frequency dictionaries") on next returns, apart from what inputs tell by themselves: the product with the largest
t-statistic first, the next on what it leaves, as long as one is significant among all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array

FORECASTS = 2
"""Of the next session, and of the next 20."""
CLIP = 4.0
"""Deviations to which inputs are clipped before they are multiplied."""
_MOST, _SIGNIFICANCE = 8, 0.05
"""Most products, and family-wise significance level (two-sided, Bonferroni)."""
_PENALTY = 0.01
"""Of ridge regressions, in multiples of their rows."""
_LARGEST = 5.0
"""Deviations to which returns are clipped."""
_CELLS = 2**24
"""Days times pairs that are in memory at a time."""


@dataclass(frozen=True)
class Products:
    """Products of inputs, by which forecasts are made."""

    terms: Int64Array
    """(products, 2) places of inputs."""
    loadings: Float64Array
    """(products, 2) percent of the next session and of the next 20, for a product of 1."""
    scale: Float64Array
    """(2,) deviations of these forecasts on the days of the fit."""

    @classmethod
    def none(cls) -> Products:
        """Return no products, whose forecasts are 0."""
        return cls(np.zeros((0, 2), dtype=np.int64), np.zeros((0, FORECASTS)), np.ones(FORECASTS))

    @classmethod
    def fit(
        cls, x: Float32Array, returns: Float64Array, learned: BoolArray, places: Int64Array, is_shared: BoolArray
    ) -> Products:
        """Select among the products of inputs.

        Args:
            x: (days, n, inputs) within `CLIP`, 0 without a bar.
            returns: (2, days, n) percent of the next session and of the next 20, less their means over the stocks; NaN
                where not known.
            learned: (days,) on which returns may be read.
            places: (inputs,) that terms name, of each of `x`.
            is_shared: (inputs,) whether all stocks of a day have the same value.
        """
        known = np.isfinite(returns).all(axis=0) & learned[:, None]
        y = np.where(known, returns, 0.0).astype(np.float32)
        bound = _LARGEST * np.sqrt((y**2).sum(axis=(1, 2)) / max(known.sum(), 1))
        y = np.clip(y, -bound[:, None, None], bound[:, None, None])
        rows, ahead = x[known], y[0][known]
        penalty = (1e-9 + _PENALTY * len(rows)) * np.eye(len(places))
        weights = np.linalg.solve((rows.T @ rows).astype(np.float64) + penalty, rows.T @ ahead)
        left = y[0] - known * (x @ weights.astype(np.float32))
        terms, chosen = list[tuple[int, int]](), list[Float32Array]()
        least = float(-ndtri(_SIGNIFICANCE / (len(places) * (len(places) + 1))))
        while len(terms) < _MOST:
            t = _t_of_products(x, left)
            t[np.ix_(is_shared, is_shared)] = 0.0
            for taken in terms:
                t[taken] = t[taken[::-1]] = 0.0
            first, second = divmod(int(np.abs(t).argmax()), len(places))
            if not abs(t[first, second]) > least:
                break
            terms.append((first, second))
            z = _relative(x[..., first] * x[..., second], known)
            chosen.append(z[known])
            left = left - z * np.float32((z * left).sum() / max((z**2).sum(), 1e-12))
        if not terms:
            return cls.none()
        z = np.stack(chosen, axis=1).astype(np.float64)
        gram = z.T @ z
        loadings = np.linalg.solve(gram + _PENALTY * np.diag(np.diag(gram)), z.T @ y[:, known].T)
        return cls(places[np.array(terms)], loadings, (z @ loadings).std(axis=0))

    def of(self, x: Float32Array) -> Float32Array:
        """Return the (rows, 2) forecasts by (rows, inputs), in deviations; those of a day differ from their mean."""
        x = np.clip(x, -CLIP, CLIP)
        z = x[:, self.terms[:, 0]] * x[:, self.terms[:, 1]]
        return np.asarray(z @ (self.loadings / self.scale).astype(np.float32))


def _t_of_products(x: Float32Array, left: Float32Array) -> Float64Array:
    """Return the (inputs, inputs) t-statistics of products with what is left of (days, n) returns, summed by day: those
    of one day are correlated."""
    total, square = np.zeros((2, x.shape[2], x.shape[2]))
    size = max(1, _CELLS // x.shape[2] ** 2)
    for days in (slice(first, first + size) for first in range(0, len(x), size)):
        of_day = (x[days] * left[days][..., None]).transpose(0, 2, 1) @ x[days]
        total += of_day.sum(axis=0, dtype=np.float64)
        square += (of_day**2).sum(axis=0, dtype=np.float64)
    return np.asarray(total / np.sqrt(np.maximum(square, 1e-12)))


def _relative(z: Float32Array, known: BoolArray) -> Float32Array:
    """Return (days, n) products less their means over the stocks; 0 where not known."""
    mean = (z * known).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return np.asarray((z - mean[:, None]) * known, dtype=np.float32)
