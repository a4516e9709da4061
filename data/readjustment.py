"""Whether prices of the past were only adjusted again: for a dividend or a split vendors multiply all earlier ones."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
ROUNDING = 1e-6
"""Relative difference of two downloads of one price, as single precision leaves it."""
_STEPS = (0.01, 0.001, 0.0001, 0.00001)


@dataclass(frozen=True)
class Readjustment:
    """How bars of one ticker have changed."""

    ratio: float
    """By which earlier prices were multiplied; 1 where they were not."""
    bars: int
    """The first bars, to which it applies; the later ones are as they were."""
    revised: NDArray[np.bool_]
    """(bars,) that changed otherwise."""


def readjustment(before: Floats, now: Floats) -> Readjustment:
    """Compare two versions of (bars, prices), NaN without a bar, in the order of their days."""
    bars, steps = len(before), (price_step(before), price_step(now))
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = now.astype(np.float64) / before

    def differs(ratio: float, error: float = 0.0) -> NDArray[np.bool_]:
        # A vendor's decimals round the product, and the ratio is measured on such; other prices are not rounded anew.
        least = ratio * steps[0] + steps[1] if ratio != 1 else 0.0
        near = np.isclose(now, ratio * before.astype(np.float64), rtol=ROUNDING + error, atol=least, equal_nan=True)
        return np.asarray(~near.all(axis=1))

    same = Readjustment(1.0, 0, differs(1.0))
    if not same.revised.any():
        return same
    candidates = [same]
    for first in (int(np.flatnonzero(same.revised)[-1]) + 1, bars):
        known = quotient[:first][np.isfinite(quotient[:first])]
        ratio = float(np.median(known)) if len(known) else 1.0
        # Standard error of that median: the numerators are rounded.
        error = steps[1] / (float(np.nanmin(now[:first])) * math.sqrt(len(known))) if len(known) else 0.0
        candidates.append(Readjustment(ratio, first, differs(ratio, error) & (np.arange(bars) < first)))
    return min(candidates, key=lambda one: int(one.revised.sum()))


def price_step(prices: Floats) -> float:
    """Return the decimal step that all prices are multiples of; 0 where single precision shows none."""
    known = prices[np.isfinite(prices)].astype(np.float64)
    for step in _STEPS:
        count = known / step
        if (np.abs(count - np.round(count)) <= np.minimum(1e-7 * count, 0.1)).all():
            return step if len(known) else 0.0
    return 0.0
