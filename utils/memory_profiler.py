"""Memory of a process: snapshots, trends, leaks and the largest objects.

A run takes a snapshot after each phase and writes all of this to its log. By hand, at any place:

    log_memory("before", show_objects=True)
    ...
    log_memory("after", show_objects=True)
    get_profiler().print_memory_growth(baseline_label="before")
"""

from __future__ import annotations

import gc
import logging
import math
import sys
import time
import tracemalloc
from collections import Counter, deque
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import psutil

from utils.memory.clean_up import gpu_memory
from utils.memory.guard import MB, peak_rss_mb
from utils.memory.heap import Heap, scan_heap, take_census
from utils.memory.largest import allocation_table, large_object_table
from utils.memory.leaks import OWNERS, Cause, Leak, causes_of, name_leaks
from utils.memory.living import count_living, forget_living
from utils.memory.trend import LEAST_VISITS, RECENT_VISITS, is_growing, theil_sen
from utils.tables import cell, table

MAX_SNAPSHOTS = 1000
WARM_UP_VISITS = 2
LEAK_VISITS = 3
OWNER_VISITS = 3
RECENT_CENSUSES = 6
PHASE_COLUMNS = ("label", "seconds", "rss_mb", "change", "gpu_allocated_mb", "gpu_reserved_mb")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of the process at one moment; sizes in MiB."""

    label: str
    visit: int  # snapshots with this label before this one
    seconds: float  # since the profiler was created
    rss_mb: float
    vms_mb: float
    uss_mb: float  # memory unique to this process; resident memory where the system does not report it
    gpu_allocated_mb: float
    gpu_reserved_mb: float
    counts: dict[str, int]  # figures open in pyplot, living objects by tracked label, and what a census counted
    causes: np.ndarray | None = None  # counts of a census, a column for each cause that the profiler knew

    def measures(self) -> dict[str, float]:
        """Return all sizes and counts by name."""
        sizes = ("rss_mb", "vms_mb", "uss_mb", "gpu_allocated_mb", "gpu_reserved_mb")
        return {name: getattr(self, name) for name in sizes} | self.counts

    def __str__(self) -> str:
        return f"memory [{self.label}] " + ", ".join(f"{name} {cell(value)}" for name, value in self.measures().items())


class MemoryProfiler:
    """A bounded history of snapshots of this process: trends, growth, leaks and the largest objects."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.baseline: Snapshot | None = None  # the first snapshot
        self._start = time.monotonic()
        self._process = psutil.Process()
        self._visits: Counter[str] = Counter()
        self._columns: dict[Cause, None] = {}  # an ordered set
        self._allocations: tracemalloc.Snapshot | None = None

    def log_memory(
        self,
        label: str,
        show_objects: bool = False,
        *,
        census: bool = False,
        trace: bool = False,
        level: int = logging.DEBUG,
    ) -> Snapshot:
        """Take, keep and log a snapshot.

        Args:
            show_objects: log the largest objects too, after a census.
            census: count all objects (1 s for 500,000 of them).
            trace: record where memory is allocated from now on (`tracemalloc`), and log what grew most since the last
                trace. With PYTHONTRACEMALLOC=1 in the environment each census does.
            level: of the message; from INFO on it is printed where it would not be logged.
        """
        census = census or show_objects
        if census:
            gc.collect()
        rss, vms, uss = _process_memory(self._process)
        allocated, reserved = gpu_memory()
        pyplot = sys.modules.get("matplotlib.pyplot")
        snapshot = Snapshot(
            label=label,
            visit=self._visits[label],
            seconds=time.monotonic() - self._start,
            rss_mb=rss / MB,
            vms_mb=vms / MB,
            uss_mb=uss / MB,
            gpu_allocated_mb=allocated / MB,
            gpu_reserved_mb=reserved / MB,
            counts={"figures": len(pyplot.get_fignums()) if pyplot else 0, **count_living()},
        )
        self._visits[label] += 1
        # After the measurements, which would include the lists of the census.
        heap = scan_heap(ignore=OWN_TYPES) if census else Heap()
        if census:
            counted = take_census(heap)
            found = causes_of(counted, snapshot.counts)
            self._columns |= dict.fromkeys(found)
            causes = np.array([found.get(cause, 0) for cause in self._columns], dtype=np.int64)
            snapshot = replace(snapshot, counts=snapshot.counts | counted.counts, causes=causes)
        self.baseline = self.baseline or snapshot
        self.snapshots.append(snapshot)
        parts = [str(snapshot)]
        if show_objects:
            parts.append(f"largest objects\n{large_object_table(heap)}")
        if trace or (census and tracemalloc.is_tracing()):
            parts.append(self._trace())
        _show("\n".join(parts), level)
        return snapshot

    def visits(self, label: str) -> list[Snapshot]:
        """Return the kept snapshots with this label, oldest first."""
        return [snapshot for snapshot in self.snapshots if snapshot.label == label]

    def phases(self) -> list[tuple[str, float, float, float, float]]:
        """Return label, seconds, and RSS, USS and GPU memory in MiB of each kept snapshot."""
        return [(s.label, s.seconds, s.rss_mb, s.uss_mb, s.gpu_allocated_mb) for s in self.snapshots]

    def trend(self, label: str) -> dict[str, float]:
        """Return the Theil-Sen slope of each measure per visit of `label` after the warm-up, given two visits."""
        series: dict[str, list[tuple[int, float]]] = {}
        for snapshot in self.visits(label):
            if snapshot.visit >= WARM_UP_VISITS:
                for name, value in snapshot.measures().items():
                    series.setdefault(name, []).append((snapshot.visit, value))
        return {
            name: theil_sen([value for _, value in points], [visit for visit, _ in points])
            for name, points in series.items()
            if len(points) >= 2
        }

    def trend_table(self, label: str) -> str:
        """Return a table of the first and last value and slope per visit of each measure of `label`."""
        visits, slopes = self.visits(label), self.trend(label)
        rows = _changes(visits[0], visits[-1])
        for row in rows:
            row["slope per visit"] = slopes.get(row["measure"])
        return f"{label}, {len(visits)} visits\n{table(rows, ('measure', 'first', 'last', 'slope per visit'))}"

    def find_leaks(self, label: str) -> list[Leak]:
        """Find the counts that grew at each of the last three or more censuses of `label` after the warm-up."""
        # The first later census is compared with the last one of the warm-up.
        censuses = [s.causes for s in self.visits(label) if s.causes is not None and s.visit >= WARM_UP_VISITS - 1]
        recent = censuses[-RECENT_CENSUSES:]
        if len(recent) <= LEAK_VISITS:
            return []
        table = np.zeros((len(recent), len(self._columns)), dtype=np.int64)
        for row, counts in zip(table, recent, strict=True):
            row[: len(counts)] = counts  # causes that were found later count 0
        return name_leaks(list(self._columns), table)

    def leaks(self, label: str = "generation") -> list[Leak]:
        """Find what leaks: owners that became more at each of the last two visits of `label`.

        Where there are none but memory grows, whatever the censuses name.
        """
        seen = [s for s in (self.baseline, *self.visits(label)) if s is not None][-OWNER_VISITS:]
        owners = ("figures", *count_living())
        counts = np.array([[snapshot.counts.get(owner, 0) for owner in owners] for snapshot in seen])
        if len(seen) == OWNER_VISITS and (
            found := name_leaks([Cause(owner.replace("_", " "), OWNERS) for owner in owners], counts)
        ):
            return found
        named = [leak for known in self._visits for leak in self.find_leaks(known)]
        return named if self.is_growing(label) else []

    def is_growing(self, label: str = "generation") -> bool:
        """Tell whether resident or GPU memory grows by at least 5 MB a visit of `label`, significantly."""
        return any(is_growing(self._sizes(label, name)) for name in ("rss_mb", "gpu_allocated_mb"))

    def _sizes(self, label: str, name: str) -> list[float]:
        """Return a size at the last visits of `label` after the warm-up."""
        return [getattr(s, name) for s in self.visits(label) if s.visit >= WARM_UP_VISITS][-RECENT_VISITS:]

    def summary_line(self, label: str = "generation") -> str:
        """Return memory now, its growth since the baseline and by visit of `label`, owners, and a verdict."""
        now, sizes = self.snapshots[-1], self._sizes(label, "rss_mb")
        before = self.baseline or now
        trend = f", {theil_sen(sizes):+,.1f} MB a {label}" if len(sizes) > 1 else ""
        parts = [
            f"resident {now.rss_mb:,.0f} MB ({now.rss_mb - before.rss_mb:+,.0f} MB since the baseline{trend}), "
            f"peak {peak_rss_mb():,.0f} MB"
        ]
        if now.gpu_reserved_mb:
            grown = now.gpu_allocated_mb - before.gpu_allocated_mb
            allocated = f"GPU {now.gpu_allocated_mb:,.0f} MB allocated ({grown:+,.0f} MB)"
            parts.append(f"{allocated}, {now.gpu_reserved_mb:,.0f} MB reserved")
        parts.append(", ".join(f"{owner.replace('_', ' ')} {now.counts[owner]}" for owner in count_living()))
        if (leaks := self.leaks(label)) or self.is_growing(label):
            parts.append(f"growing: {', '.join(leak.kind for leak in leaks) or 'nothing named yet'}")
        else:
            parts.append("steady" if len(sizes) >= LEAST_VISITS else "too early to tell")
        return "; ".join(parts)

    def growth_table(self, baseline_label: str | None = None) -> str:
        """Return a table of growth since the first snapshot with this label; by default since the first of all."""
        labelled = [self.baseline] if baseline_label is None else self.visits(baseline_label)
        if not labelled or labelled[0] is None:
            known = ", ".join(self._visits) or "none"
            raise ValueError(f"expected the label of a snapshot, got {baseline_label!r}; labels so far: {known}")
        growth = _changes(labelled[0], self.snapshots[-1])
        title = f"memory growth since {labelled[0].label!r}"
        return f"{title}\n{table(growth, ('measure', 'first', 'last', 'change'))}"

    def phase_table(self, after: str | None = None) -> str:
        """Return a row for each kept snapshot; with `after` only those since the second last visit of that label."""
        kept = list(self.snapshots)
        ends = [place for place, snapshot in enumerate(kept) if snapshot.label == after]
        rows: list[dict[str, Any]] = []
        for before, snapshot in zip([None, *kept], kept, strict=False):
            change = None if before is None else snapshot.rss_mb - before.rss_mb
            rows.append(snapshot.measures() | {"label": snapshot.label, "seconds": snapshot.seconds, "change": change})
        return table(rows[ends[-2] + 1 if len(ends) > 1 else 0 :], (*PHASE_COLUMNS, *count_living()))

    def final_summary(self, min_mb: float = 50.0) -> str:
        """Return growth since the baseline, trends, leaks and, if there was a census, the largest objects."""
        parts = [] if self.baseline is None else [self.growth_table()]
        for label in self._visits:
            if len(self.visits(label)) >= 2:
                parts.append(self.trend_table(label))
            parts += [f"leak at {label!r}: {leak}" for leak in self.find_leaks(label)]
        if self._columns:
            parts.append(self._large_objects(min_mb))
        return "\n".join(parts)

    def print_memory_growth(self, baseline_label: str | None = None) -> None:
        """Show growth since the first snapshot with this label, see `growth_table`."""
        _show(self.growth_table(baseline_label))

    def print_generation_trend(self) -> None:
        """Show a table of one row a snapshot, see `phase_table`."""
        _show(self.phase_table())

    def print_large_objects(self, min_mb: float = 10.0) -> None:
        """Show the largest objects of at least this size, and what holds them."""
        _show(self._large_objects(min_mb))

    def _large_objects(self, min_mb: float) -> str:
        gc.collect()
        return f"objects of {min_mb:g} MB and more\n{large_object_table(scan_heap(ignore=OWN_TYPES), min_mb)}"

    def _trace(self) -> str:
        """Return what was allocated since the last trace; begin to trace if nobody did."""
        if not tracemalloc.is_tracing():
            tracemalloc.start()
            return "tracemalloc records allocations from now on"
        self._allocations, found = allocation_table(self._allocations)
        return f"growth by line of code\n{found}"


OWN_TYPES = (Snapshot, MemoryProfiler, Cause, Leak)  # the profiler's own objects, which it does not count


@cache
def get_profiler() -> MemoryProfiler:
    """Return the profiler of this process."""
    return MemoryProfiler()


def restart_profiler() -> MemoryProfiler:
    """Begin a new history, which counts only objects that are made from now on."""
    forget_living()
    get_profiler.cache_clear()
    return get_profiler()


def log_memory(label: str, show_objects: bool = True, *, trace: bool = False) -> Snapshot:
    """Take a snapshot by hand and show it, see `MemoryProfiler.log_memory`."""
    return get_profiler().log_memory(label, show_objects, trace=trace, level=logging.INFO)


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


def _process_memory(process: psutil.Process) -> tuple[int, int, int]:
    """Return resident, virtual and unique memory in bytes."""
    basic = process.memory_info()
    try:
        return basic.rss, basic.vms, process.memory_full_info().uss
    except (psutil.Error, OSError):
        return basic.rss, basic.vms, basic.rss


def _changes(first: Snapshot, last: Snapshot) -> list[dict[str, Any]]:
    """Return a row for each measure of the last snapshot, with its change if the first one has it."""
    before = first.measures()
    return [
        {"measure": name, "first": before.get(name), "last": value, "change": value - before.get(name, math.nan)}
        for name, value in last.measures().items()
    ]
