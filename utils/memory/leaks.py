"""Memory leaks: what grows at every visit of a place in the program, and by how much."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

MAX_NAMED = 6
RECENT_VISITS, LEAST_VISITS = 10, 5
LEAK_MB = 5.0
"""Slower growth than this by visit is no leak."""
_Z = 1.96  # quantile of the normal distribution for a one-sided test at 2.5%
GRAPH, FIGURES, TYPE = "retained graph", "figures", "python objects of type "
_RANKS = {GRAPH: 1, "tensors": 2, "arrays": 2}


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


def rank_of(kind: str) -> tuple[int, int]:
    """Return the rank of a kind, growth of which explains that of higher ranks, and the least growth by visit.

    Owners, such as environments and figures, have rank 0.
    """
    if not kind.startswith(TYPE):
        return _RANKS.get(kind, 0), 1
    name = kind.removeprefix(TYPE)
    is_library = "." not in name or name.partition(".")[0] in sys.stdlib_module_names
    # A history that gains a row per visit is no leak unless it holds tensors or arrays.
    return (3, 50) if is_library else (2, 10)


def follow(before: Mapping[str, Growth], counts: Mapping[str, int]) -> dict[str, Growth]:
    """Return the growth up to this visit; a kind that was not there before counted 0, except at the first visit."""
    grown = {}
    for kind, now in counts.items():
        last = before.get(kind, Growth(kind, 0, 0, 0 if before else now))
        is_more = now - last.now >= rank_of(kind)[1]
        grown[kind] = Growth(kind, *((last.first, last.visits + 1) if is_more else (now, 0)), now)
    return grown


def name_leaks(growth: Mapping[str, Growth], least_visits: int) -> list[Growth]:
    """Return what grew at this many visits and has the lowest rank, which explains the others; types come last."""
    growing = [one for one in growth.values() if one.visits >= least_visits]
    lowest = min((rank_of(one.kind)[0] for one in growing), default=0)
    leaks = [one for one in growing if rank_of(one.kind)[0] == lowest]
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
