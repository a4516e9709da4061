"""Trends of a measure over visits, and whether it grows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

MAX_TREND_VISITS = 200
RECENT_VISITS, LEAST_VISITS = 10, 5
LEAK_MB = 5.0
"""Slower growth than this by visit is no leak."""
_Z = 1.96  # quantile of the normal distribution for a one-sided test at 2.5%


def theil_sen(values: Sequence[float], times: Sequence[float] | None = None) -> float:
    """Return the median slope (Theil 1950, Sen 1968) of all pairs of the last 200 points; times default to 0, 1, ..."""
    return float(np.median(_slopes(values, times)))


def is_growing(sizes_mb: Sequence[float]) -> bool:
    """Tell whether the last ten sizes grow by 5 MB a visit, and significantly by more than half of that.

    Growth in a few steps with plateaus between them, as of a process that warms up, is not significant. Source of the
    confidence limit: Sen (1968), by the variance of Kendall's statistic.
    """
    points = len(recent := sizes_mb[-RECENT_VISITS:])
    if points < LEAST_VISITS:
        return False
    slopes = np.sort(_slopes(recent))
    width = _Z * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    lower = slopes[int((len(slopes) - width) / 2)]
    # Rounded as it is shown: where 5 MB leak, the estimate is a little below as often as above.
    return bool(round(float(np.median(slopes))) >= LEAK_MB and lower > LEAK_MB / 2)


def _slopes(values: Sequence[float], times: Sequence[float] | None = None) -> NDArray[np.float64]:
    y = np.asarray(values, dtype=np.float64)[-MAX_TREND_VISITS:]
    x = np.arange(len(y)) if times is None else np.asarray(times, dtype=np.float64)[-MAX_TREND_VISITS:]
    first, second = np.triu_indices(len(y), k=1)
    slopes: NDArray[np.float64] = (y[second] - y[first]) / (x[second] - x[first])
    return slopes
