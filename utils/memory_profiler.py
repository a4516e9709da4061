"""Memory of a process: snapshots, trends, leaks and the largest objects.

A run takes a snapshot after each phase and writes all of this to its log. By hand, at any place:

    log_memory("before", show_objects=True)
    ...
    log_memory("after", show_objects=True)
    get_profiler().print_memory_growth(baseline_label="before")
"""

import logging
import math
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import psutil

from utils.memory.census import Heap, large_object_table
from utils.memory.clean_up import gpu_memory, thawed_heap
from utils.memory.guard import MB, peak_rss_mb
from utils.memory.living import count_living, forget_living
from utils.tables import cell, table

MAX_SNAPSHOTS = 1000
WARM_UP_VISITS = 2
LEAK_STEPS, OWNER_STEPS = 3, 2
"""Visits in a row at which leaks of all kinds, and those of owners, have grown."""
MAX_NAMED = 6
RECENT_VISITS, LEAST_VISITS = 10, 5
LEAK_MB = 5.0
"""Slower growth than this by visit is no leak."""
PHASE_COLUMNS = ("label", "seconds", "rss_mb", "gpu_allocated_mb", "gpu_reserved_mb")
FIGURE_TYPE, TYPE = "matplotlib.figure.Figure", "python objects of type "
GRAPHS, DATA = ("retained_graphs",), ("tensors", "arrays")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of the process at one moment."""

    label: str
    visit: int  # snapshots with this label before this one
    seconds: float  # since the profiler was created
    measures: dict[str, float]
    """Sizes in MiB (`uss_mb` is unique to this process), open figures, living objects by label, counts of a census."""

    def __str__(self) -> str:
        return f"memory [{self.label}] " + ", ".join(f"{name} {cell(value)}" for name, value in self.measures.items())


class Leak(NamedTuple):
    """A count that grew at each of the last visits of a place in the program."""

    kind: str  # a tracked label, `figures`, `retained graphs`, `tensors`, `arrays` or `python objects of type X`
    per_visit: float
    now: int

    def __str__(self) -> str:
        return f"{self.kind}: +{self.per_visit:,.4g} a visit, now {self.now:,}"


class MemoryProfiler:
    """A bounded history of snapshots of this process: trends, growth, leaks and the largest objects."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.baseline: Snapshot | None = None  # the first snapshot
        self._start = time.monotonic()
        self._process = psutil.Process()
        self._visits: Counter[str] = Counter()
        self._censuses: dict[str, deque[Mapping[str, int]]] = {}
        """By label, what its last censuses counted after the warm-up."""

    def log_memory(
        self, label: str, show_objects: bool = False, *, census: bool = False, level: int = logging.DEBUG
    ) -> Snapshot:
        """Take, keep and log a snapshot.

        Args:
            show_objects: log the largest objects too, after a census.
            census: count all objects (1 s for 500,000 of them).
            level: of the message; from INFO on it is printed where it would not be logged.
        """
        parts = []
        with thawed_heap() if census or show_objects else nullcontext():
            snapshot = Snapshot(label, self._visits[label], time.monotonic() - self._start, _measure(self._process))
            if census or show_objects:
                heap = Heap()  # after the measurement, which would include its lists
                snapshot.measures.update(heap.counts())
                if snapshot.visit >= WARM_UP_VISITS - 1:  # later censuses are compared with the last of the warm-up
                    known = self._censuses.setdefault(label, deque(maxlen=LEAK_STEPS + 1))
                    known.append(_kinds(heap))
                parts += [f"largest objects\n{large_object_table(heap)}"] * show_objects
                del heap  # it keeps everything alive
        self._visits[label] += 1
        self.baseline = self.baseline or snapshot
        self.snapshots.append(snapshot)
        _show("\n".join([str(snapshot), *parts]), level)
        return snapshot

    def visits(self, label: str) -> list[Snapshot]:
        """Return the kept snapshots with this label, oldest first."""
        return [snapshot for snapshot in self.snapshots if snapshot.label == label]

    def phases(self) -> list[tuple[str, float, float, float, float]]:
        """Return label, seconds, and RSS, USS and GPU memory in MiB of each kept snapshot."""
        seen = [(s.label, s.seconds, s.measures) for s in self.snapshots]
        return [(label, at, m["rss_mb"], m["uss_mb"], m["gpu_allocated_mb"]) for label, at, m in seen]

    def trend(self, label: str) -> dict[str, float]:
        """Return the Theil-Sen slope of each measure per visit of `label` after the warm-up, given two visits."""
        later = [s for s in self.visits(label) if s.visit >= WARM_UP_VISITS]
        slopes = {}
        for name in dict.fromkeys(name for snapshot in later for name in snapshot.measures):
            points = [(s.measures[name], s.visit) for s in later if name in s.measures]
            if len(points) > 1:
                slopes[name] = _slope(*zip(*points, strict=True))[0]
        return slopes

    def find_leaks(self, label: str) -> list[Leak]:
        """Find the counts that grew at each of the last three censuses of `label` after the warm-up."""
        return _growing(list(self._censuses.get(label, ())), LEAK_STEPS)

    def leaks(self, label: str = "generation") -> list[Leak]:
        """Find what leaks: owners that became more at each of the last two visits of `label`.

        Where there are none but memory grows, whatever the censuses name.
        """
        names = ("figures", *count_living())
        seen = [s.measures for s in (self.baseline, *self.visits(label)) if s is not None][-OWNER_STEPS - 1 :]
        if owners := _growing([{name: int(sizes[name]) for name in names} for sizes in seen], OWNER_STEPS):
            return owners
        return [leak for known in self._censuses for leak in self.find_leaks(known)] if self.is_growing(label) else []

    def is_growing(self, label: str = "generation") -> bool:
        """Tell whether resident or GPU memory grows by at least 5 MB a visit of `label`, significantly.

        Growth in a few steps with plateaus between them, as of a process that warms up, is not significant.
        """
        for sizes in (self._sizes(label, name) for name in ("rss_mb", "gpu_allocated_mb")):
            if len(sizes) >= LEAST_VISITS:
                slope, lowest = _slope(sizes)
                # Rounded as it is shown: where 5 MB leak, the estimate is a little below as often as above.
                if round(slope) >= LEAK_MB and lowest > LEAK_MB / 2:
                    return True
        return False

    def _sizes(self, label: str, name: str) -> list[float]:
        """Return a size at the last visits of `label` after the warm-up."""
        return [s.measures[name] for s in self.visits(label) if s.visit >= WARM_UP_VISITS][-RECENT_VISITS:]

    def summary_line(self, label: str = "generation") -> str:
        """Return memory now, its growth since the baseline and by visit of `label`, owners, and a verdict."""
        last, sizes = self.snapshots[-1], self._sizes(label, "rss_mb")
        now, before = last.measures, (self.baseline or last).measures
        grown = {name: now[name] - before[name] for name in ("rss_mb", "gpu_allocated_mb")}
        trend = f", {_slope(sizes)[0]:+,.1f} MB a {label}" if len(sizes) > 1 else ""
        parts = [
            f"resident {now['rss_mb']:,.0f} MB ({grown['rss_mb']:+,.0f} MB since the baseline{trend}), "
            f"peak {peak_rss_mb():,.0f} MB"
        ]
        if now["gpu_reserved_mb"]:
            allocated = f"GPU {now['gpu_allocated_mb']:,.0f} MB allocated ({grown['gpu_allocated_mb']:+,.0f} MB)"
            parts.append(f"{allocated}, {now['gpu_reserved_mb']:,.0f} MB reserved")
        parts.append(", ".join(f"{owner.replace('_', ' ')} {now[owner]}" for owner in count_living()))
        if (leaks := self.leaks(label)) or self.is_growing(label):
            parts.append(f"growing: {', '.join(leak.kind for leak in leaks) or 'nothing named yet'}")
        else:
            parts.append("steady" if len(sizes) >= LEAST_VISITS else "too early to tell")
        return "; ".join(parts)

    def growth_table(self, baseline_label: str | None = None) -> str:
        """Return a table of growth since the first snapshot with this label; by default since the first of all."""
        first = self.baseline if baseline_label is None else next(iter(self.visits(baseline_label)), None)
        if first is None:
            known = ", ".join(self._visits) or "none"
            raise ValueError(f"expected the label of a snapshot, got {baseline_label!r}; labels so far: {known}")
        return f"memory growth since {first.label!r}\n{_changes(first, self.snapshots[-1])}"

    def phase_table(self) -> str:
        """Return a row for each kept snapshot."""
        rows = [{**s.measures, "label": s.label, "seconds": s.seconds} for s in self.snapshots]
        return table(rows, (*PHASE_COLUMNS, *count_living()))

    def final_summary(self, min_mb: float = 50.0) -> str:
        """Return growth since the baseline, trends, leaks and, if there was a census, the largest objects."""
        parts = [self.phase_table()] + ([] if self.baseline is None else [self.growth_table()])
        for label in self._visits:
            if len(seen := self.visits(label)) > 1:
                parts.append(f"{label}, {len(seen)} visits\n{_changes(seen[0], seen[-1], self.trend(label))}")
            parts += [f"leak at {label!r}: {leak}" for leak in self.find_leaks(label)]
        if any("tensors" in snapshot.measures for snapshot in self.snapshots):
            parts.append(_large_objects(min_mb))
        return "\n".join(parts)

    def print_memory_growth(self, baseline_label: str | None = None) -> None:
        """Show growth since the first snapshot with this label, see `growth_table`."""
        _show(self.growth_table(baseline_label))

    def print_generation_trend(self) -> None:
        """Show a table of one row a snapshot, see `phase_table`."""
        _show(self.phase_table())

    def print_large_objects(self, min_mb: float = 10.0) -> None:
        """Show the largest objects of at least this size, and what holds them."""
        _show(_large_objects(min_mb))


@cache
def get_profiler() -> MemoryProfiler:
    """Return the profiler of this process."""
    return MemoryProfiler()


def restart_profiler() -> MemoryProfiler:
    """Begin a new history, which counts only objects that are made from now on."""
    forget_living()
    get_profiler.cache_clear()
    return get_profiler()


def log_memory(label: str, show_objects: bool = True) -> Snapshot:
    """Take a snapshot by hand and show it, see `MemoryProfiler.log_memory`."""
    return get_profiler().log_memory(label, show_objects, level=logging.INFO)


def print_memory_growth(baseline_label: str | None = None) -> None:
    """Show growth since the first snapshot with this label, by default since the first of all."""
    get_profiler().print_memory_growth(baseline_label)


def print_memory_summary() -> None:
    """Show growth since the baseline, trends, leaks and the largest objects."""
    _show(get_profiler().final_summary())


def _show(text: str, level: int = logging.INFO) -> None:
    """Log a text; what a person asked for is printed where nobody has set up logging."""
    if logger.isEnabledFor(level):
        logger.log(level, "%s", text)
    elif level >= logging.INFO:
        print(text)


def _measure(process: psutil.Process) -> dict[str, float]:
    """Return the sizes in MiB, open figures, and living objects by tracked label."""
    (allocated, reserved), memory = gpu_memory(), process.memory_full_info()
    sizes = {"rss": memory.rss, "vms": memory.vms, "uss": memory.uss}
    sizes |= {"gpu_allocated": allocated, "gpu_reserved": reserved}
    pyplot = sys.modules.get("matplotlib.pyplot")
    figures = len(pyplot.get_fignums()) if pyplot else 0
    return {f"{name}_mb": size / MB for name, size in sizes.items()} | {"figures": figures, **count_living()}


def _kinds(heap: Heap) -> dict[str, int]:
    """Count by kind all that may leak."""
    types, counts = heap.types(), heap.counts()
    owners = count_living() | {"figures": types.pop(FIGURE_TYPE, 0)}
    found = owners | {name: counts[name] for name in (*GRAPHS, *DATA)}
    return found | {TYPE + name: count for name, count in types.items()}


def _rank(kind: str) -> tuple[int, int]:
    """Return the rank of a kind, growth of which explains that of higher ranks, and the least growth by visit."""
    if not kind.startswith(TYPE):
        return 1 if kind in GRAPHS else 2 if kind in DATA else 0, 1
    name = kind.removeprefix(TYPE)
    is_library = "." not in name or name.partition(".")[0] in sys.stdlib_module_names
    # A history that gains a row per visit is no leak unless it holds tensors or arrays.
    return (3, 50) if is_library else (2, 10)


def _growing(counts: Sequence[Mapping[str, int]], steps: int) -> list[Leak]:
    """Return what grew at each of the steps and has the lowest rank, which explains the others; types come last."""
    ranked: dict[int, list[Leak]] = {}
    for kind in counts[-1] if len(counts) > steps else ():
        (rank, least), seen = _rank(kind), [counted.get(kind, 0) for counted in counts]
        if all(later - earlier >= least for earlier, later in pairwise(seen)):
            leak = Leak(kind.replace("_", " "), (seen[-1] - seen[0]) / steps, seen[-1])
            ranked.setdefault(rank, []).append(leak)
    leaks = ranked[min(ranked)] if ranked else []
    return sorted(leaks, key=lambda leak: (leak.kind.startswith(TYPE), -leak.per_visit))[:MAX_NAMED]


def _slope(values: Sequence[float], times: Sequence[float] | None = None) -> tuple[float, float]:
    """Return the Theil-Sen slope and its lower confidence limit (one-sided, 2.5%); times default to 0, 1, ..."""
    from scipy.stats import theilslopes  # takes a second to import, which a script that takes snapshots need not wait

    fit = theilslopes(values, times, alpha=0.95)
    return float(fit.slope), float(fit.low_slope)


def _changes(first: Snapshot, last: Snapshot, slopes: Mapping[str, float] | None = None) -> str:
    """Return a table of each measure of the last snapshot, its change since the first one, and its slope if known."""
    columns = ("measure", "first", "last", "change", *([] if slopes is None else ["slope per visit"]))
    rows: list[dict[str, Any]] = []
    for name, value in last.measures.items():
        before = first.measures.get(name, math.nan)
        slope = (slopes or {}).get(name)
        rows.append(dict(zip(columns, (name, before, value, value - before, slope), strict=False)))
    return table(rows, columns)


def _large_objects(min_mb: float) -> str:
    with thawed_heap():
        return f"objects of {min_mb:g} MB and more\n{large_object_table(Heap(), min_mb)}"
