"""Leak verdicts: which counts of the heap grow at every visit, and which growth explains which."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from utils.memory.heap import Census

MAX_NAMED_TYPES = 5
MAX_ALONG = 5
FIGURE_TYPE = "matplotlib.figure.Figure"
MIN_TYPE_COUNT = 10
# Least growth at every visit. A history that gains a row a visit is bounded elsewhere and no leak; what is heavy in
# such rows would be tensors or arrays, of which every single one counts.
MIN_OBJECTS = 10
MIN_LIBRARY_OBJECTS = 50
MIN_REFERENCES = 1000

# The rank of a cause: growth of a lower rank explains that of the higher ones.
OWNERS, GRAPH, HOLDINGS, LIBRARY = range(4)


class Cause(NamedTuple):
    """Something that can be counted and so can leak."""

    kind: str
    rank: int
    min_growth: int
    """Least growth at every visit that is worth a name."""


@dataclass(frozen=True, slots=True)
class Leak:
    """A count that grew at each of the last `visits` visits."""

    kind: str
    """`environments`, `agents`, `replay buffers`, `figures`, `retained graph`, `tensors`, `arrays`, `python objects of
    type X`, or another tracked label."""
    per_visit: float
    visits: int
    now: int
    along: tuple[str, ...] = ()
    """What grew with it, most first; most likely its consequence."""

    def __str__(self) -> str:
        """One line for the log."""
        text = f"{self.kind}: +{self.per_visit:,.4g} a visit over {self.visits} visits, now {self.now:,}"
        return f"{text} (with it: {', '.join(self.along)})" if self.along else text


def causes_of(census: Census, open_figures: int, counts: dict[str, int]) -> dict[Cause, int]:
    """Every count of a visit that may turn out to leak; types of few objects are left out."""
    figures = max(open_figures, census.types.get(FIGURE_TYPE, 0))
    found = {Cause(label.replace("_", " "), OWNERS, 1): count for label, count in counts.items()}
    found[Cause("figures", OWNERS, 1)] = figures
    found[Cause("retained graph", GRAPH, 1)] = census.graph_nodes
    found[Cause("tensors", HOLDINGS, 1)] = census.tensors
    found[Cause("arrays", HOLDINGS, 1)] = census.arrays
    for name, count in census.types.items():
        if count >= MIN_TYPE_COUNT and name != FIGURE_TYPE:
            found[_type_cause(name)] = count
    for name, count in census.references.items():
        if count >= MIN_REFERENCES:
            found[Cause(f"python objects of type {name}", LIBRARY, MIN_REFERENCES)] = count
    return found


def name_leaks(causes: Sequence[Cause], table: np.ndarray) -> list[Leak]:
    """The leaks in counts of shape (visits, causes), integers, oldest visit first."""
    steps = np.diff(table, axis=0)
    per_visit = steps.mean(axis=0)
    enough = np.array([cause.min_growth for cause in causes])
    # The smallest step, not the mean: a cache that fills up grows at every visit too, but less and less.
    growing = np.flatnonzero(steps.min(axis=0) >= enough)
    order = sorted(growing.tolist(), key=lambda column: (causes[column].rank, -per_visit[column]))
    if not order:
        return []
    deepest = causes[order[0]].rank
    along = tuple(
        f"{causes[column].kind} +{per_visit[column]:,.4g}" for column in order if causes[column].rank > deepest
    )[:MAX_ALONG]
    named = _bounded([column for column in order if causes[column].rank == deepest], causes)
    return [
        Leak(causes[column].kind, float(per_visit[column]), len(steps), int(table[-1, column]), along)
        for column in named
    ]


def _type_cause(name: str) -> Cause:
    module = name.partition(".")[0] if "." in name else "builtins"
    kind = f"python objects of type {name}"
    if module in sys.stdlib_module_names:
        return Cause(kind, LIBRARY, MIN_LIBRARY_OBJECTS)
    return Cause(kind, HOLDINGS, MIN_OBJECTS)


def _bounded(columns: list[int], causes: Sequence[Cause]) -> list[int]:
    """All that is not a type, and the types that grow most."""
    types = [column for column in columns if causes[column].kind.startswith("python objects")]
    return [column for column in columns if column not in types[MAX_NAMED_TYPES:]]
