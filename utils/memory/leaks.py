"""Memory leaks: counts of the heap that grow at every visit, and which growth explains which."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from utils.memory.heap import Census

MAX_NAMED_TYPES = MAX_ALONG = 5
FIGURE_TYPE = "matplotlib.figure.Figure"
MIN_TYPE_COUNT = 10
# Least growth per visit. A history that gains a row per visit is no leak unless it holds tensors or arrays.
MIN_OBJECTS = 10
MIN_LIBRARY_OBJECTS = 50
MIN_REFERENCES = 1000

# The rank of a cause: growth of a lower rank explains that of the higher ones.
OWNERS, GRAPH, HOLDINGS, LIBRARY = range(4)


class Cause(NamedTuple):
    """Something that can be counted and so can leak."""

    kind: str
    rank: int
    min_growth: int = 1  # least growth at every visit that is reported


@dataclass(frozen=True, slots=True)
class Leak:
    """A count that grew at each of the last `visits` visits."""

    kind: str  # a tracked label, `figures`, `retained graph`, `tensors`, `arrays` or `python objects of type X`
    per_visit: float
    visits: int
    now: int
    along: tuple[str, ...] = ()  # growth that came with it, most first; most likely its consequence

    def __str__(self) -> str:
        text = f"{self.kind}: +{self.per_visit:,.4g} a visit over {self.visits} visits, now {self.now:,}"
        return f"{text} (with it: {', '.join(self.along)})" if self.along else text


def causes_of(census: Census, owners: dict[str, int]) -> dict[Cause, int]:
    """Return every count of a visit that may leak; `owners` are living objects by tracked label, and open `figures`."""
    found = {Cause(label.replace("_", " "), OWNERS): count for label, count in owners.items()}
    found[Cause("figures", OWNERS)] = max(owners["figures"], census.types.get(FIGURE_TYPE, 0))
    found[Cause("retained graph", GRAPH)] = census.counts["graph_nodes"]
    found |= {Cause(kind, HOLDINGS): census.counts[kind] for kind in ("tensors", "arrays")}
    for name, count in census.types.items():
        if count >= MIN_TYPE_COUNT and name != FIGURE_TYPE:
            is_library = "." not in name or name.partition(".")[0] in sys.stdlib_module_names
            rank, least = (LIBRARY, MIN_LIBRARY_OBJECTS) if is_library else (HOLDINGS, MIN_OBJECTS)
            found[Cause(f"python objects of type {name}", rank, least)] = count
    return found | {
        Cause(f"python objects of type {name}", LIBRARY, MIN_REFERENCES): count
        for name, count in census.references.items()
        if count >= MIN_REFERENCES
    }


def name_leaks(causes: Sequence[Cause], table: np.ndarray) -> list[Leak]:
    """Find leaks in counts (visits, causes), oldest first; growth that another cause explains is listed with it."""
    steps = np.diff(table, axis=0)
    per_visit = steps.mean(axis=0)
    # The smallest step, not the mean: a cache that fills up grows at every visit too, but ever less.
    growing = np.flatnonzero(steps.min(axis=0) >= np.array([cause.min_growth for cause in causes]))
    order = sorted(growing.tolist(), key=lambda column: (causes[column].rank, -per_visit[column]))
    named = [column for column in order if causes[column].rank == causes[order[0]].rank]
    along = tuple(f"{causes[column].kind} +{per_visit[column]:,.4g}" for column in order[len(named) :])[:MAX_ALONG]
    types = [column for column in named if causes[column].kind.startswith("python objects")]
    return [
        Leak(causes[column].kind, float(per_visit[column]), len(steps), int(table[-1, column]), along)
        for column in named
        if column not in types[MAX_NAMED_TYPES:]
    ]
