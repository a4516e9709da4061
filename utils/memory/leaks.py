"""Memory leaks: what grows at every visit of a place in the program, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

MAX_NAMED = 6
RECENT_VISITS, LEAST_VISITS = 10, 5
LEAK_MB = 5.0
"""Slower growth than this by visit is no leak."""
_Z = 1.96  # quantile of the normal distribution for a one-sided test at 2.5%
TYPE = "python objects of type"
OWNERS, GRAPH, HOLDINGS, LIBRARY = range(4)
"""Ranks of causes: growth of a lower rank explains that of the higher ones."""


class Cause(NamedTuple):
    """Something that can be counted and so can leak."""

    kind: str
    rank: int
    least: int = 1  # growth at every visit that is reported


class Growth(NamedTuple):
    """A count that grew enough at each of the last `visits` visits, which may be none."""

    kind: str  # a tracked label, `figures`, `retained graph`, `tensors`, `arrays` or `python objects of type X`
    first: int
    visits: int
    now: int

    @property
    def per_visit(self) -> float:
        """Mean growth."""
        return (self.now - self.first) / self.visits

    def __str__(self) -> str:
        return f"{self.kind}: +{self.per_visit:,.4g} a visit over {self.visits} visits, now {self.now:,}"


def follow(before: Mapping[Cause, Growth], counts: Mapping[Cause, int]) -> dict[Cause, Growth]:
    """Return the growth up to this visit; a cause that was not there before counted 0, except at the first visit."""
    found = {}
    for cause, now in counts.items():
        last = before.get(cause, Growth(cause.kind, 0, 0, 0 if before else now))
        is_more = now - last.now >= cause.least
        found[cause] = Growth(cause.kind, *((last.first, last.visits + 1) if is_more else (now, 0)), now)
    return found


def name_leaks(growth: Mapping[Cause, Growth], least_visits: int) -> list[Growth]:
    """Return what grew at this many visits and has the lowest rank, which explains the others; types come last."""
    growing = {cause: found for cause, found in growth.items() if found.visits >= least_visits}
    lowest = min((cause.rank for cause in growing), default=OWNERS)
    leaks = [found for cause, found in growing.items() if cause.rank == lowest]
    return sorted(leaks, key=lambda leak: (leak.kind.startswith(TYPE), -leak.per_visit))[:MAX_NAMED]


def is_growing(sizes_mb: Sequence[float]) -> bool:
    """Tell whether the last ten sizes grow by 5 MB a visit, and significantly by more than half of that.

    Growth in a few steps with plateaus between them, as of a process that warms up, is not significant. Source of the
    confidence limit: Sen (1968), by the variance of Kendall's statistic; without scipy's correction for equal sizes,
    which would call such steps significant.
    """
    points = len(recent := sizes_mb[-RECENT_VISITS:])
    if points < LEAST_VISITS:
        return False
    slopes = sorted((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(recent), 2))
    width = _Z * math.sqrt(points * (points - 1) * (2 * points + 5) / 18)
    lower = slopes[int((len(slopes) - width) / 2)]
    # Rounded as it is shown: where 5 MB leak, the estimate is a little below as often as above.
    return round(median(slopes)) >= LEAK_MB and lower > LEAK_MB / 2
