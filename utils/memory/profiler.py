"""Memory of a run: snapshots, trends, leaks and the largest objects."""

from __future__ import annotations

import gc
import logging
import math
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import psutil
import torch

from utils.memory.guard import MB, peak_rss_mb
from utils.memory.heap import Heap, scan_heap, take_census
from utils.memory.largest import large_object_table
from utils.memory.leaks import Cause, Leak, causes_of, name_leaks
from utils.tables import cell, table

MAX_SNAPSHOTS = 1000
MAX_TREND_VISITS = 200
WARM_UP_VISITS = 2
LEAK_VISITS = 3
RECENT_CENSUSES = 6
STEADY_MB, STEADY_SHARE = 1.0, 0.002
"""Memory is steady if it grows by less per visit: in MiB or as a share of resident memory, whichever is more."""
DEFAULT_COUNTS = ("environments", "agents", "replay_buffers")

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


class MemoryProfiler:
    """A bounded history of snapshots of this process: trends, growth, leaks and the largest objects."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.baseline: Snapshot | None = None  # the first snapshot
        self._start = time.monotonic()
        self._process = psutil.Process()
        self._visits: Counter[str] = Counter()
        self._columns: dict[Cause, None] = {}  # an ordered set
        self._tracked: dict[str, weakref.WeakKeyDictionary[object, int]] = {
            label: weakref.WeakKeyDictionary() for label in DEFAULT_COUNTS
        }

    def track(self, label: str, item: object, count: int = 1) -> None:
        """Count `item` as `count` objects under `label` while it lives; it is not kept alive."""
        self._tracked.setdefault(label, weakref.WeakKeyDictionary())[item] = count

    def counts(self) -> dict[str, int]:
        """Return the living objects by label."""
        return {label: sum(living.values()) for label, living in self._tracked.items()}

    def log_memory(self, label: str, show_objects: bool = False, *, census: bool = False) -> Snapshot:
        """Take, keep and log a snapshot, with a census (1 s for 500,000 objects) or the largest objects if asked."""
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
            counts={"figures": len(pyplot.get_fignums()) if pyplot else 0, **self.counts()},
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
        values = ", ".join(f"{name} {cell(value)}" for name, value in snapshot.measures().items())
        logger.debug("memory [%s] %s", label, values)
        if show_objects:
            logger.debug("largest objects\n%s", large_object_table(heap))
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

    def summary_line(self, label: str = "generation") -> str:
        """Return resident and peak memory, the slope per visit of `label` and a verdict on growth, as one line."""
        now = self.snapshots[-1]
        parts = [f"resident {now.rss_mb:,.0f} MB", f"peak {peak_rss_mb():,.0f} MB"]
        if now.gpu_reserved_mb:
            parts.append(f"GPU {now.gpu_reserved_mb:,.0f} MB")
        slope = self.trend(label).get("rss_mb")
        if slope is not None:
            parts.append(f"slope {slope:+,.1f} MB a {label} after the second")
        leaks = {leak.kind: None for known in self._visits for leak in self.find_leaks(known)}
        if leaks:
            verdict = f"growing: {', '.join(leaks)}"
        elif slope is None or len(self.visits(label)) < WARM_UP_VISITS + LEAK_VISITS:
            verdict = "too early to tell"
        else:
            is_steady = slope <= max(STEADY_MB, STEADY_SHARE * now.rss_mb)
            verdict = "steady" if is_steady else "growing: nothing named"
        return ", ".join([*parts, verdict])

    def final_summary(self, min_mb: float = 50.0) -> str:
        """Log and return growth since the baseline, trends, leaks and, if there was a census, the largest objects."""
        growth = [] if self.baseline is None else _changes(self.baseline, self.snapshots[-1])
        parts = [f"memory growth since the baseline\n{table(growth, ('measure', 'first', 'last', 'change'))}"]
        for label in self._visits:
            if len(self.visits(label)) >= 2:
                parts.append(self.trend_table(label))
            parts += [f"leak at {label!r}: {leak}" for leak in self.find_leaks(label)]
        if self._columns:
            gc.collect()
            large = large_object_table(scan_heap(ignore=OWN_TYPES), min_mb)
            parts.append(f"objects of {min_mb:g} MB and more\n{large}")
        summary = "\n".join(parts)
        logger.debug("%s", summary)
        return summary


def theil_sen(values: Sequence[float], times: Sequence[float] | None = None) -> float:
    """Return the median slope (Theil 1950, Sen 1968) of all pairs of the last 200 points; times default to 0, 1, ..."""
    y = np.asarray(values, dtype=np.float64)[-MAX_TREND_VISITS:]
    x = np.arange(len(y)) if times is None else np.asarray(times, dtype=np.float64)[-MAX_TREND_VISITS:]
    first, second = np.triu_indices(len(y), k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


OWN_TYPES = (Snapshot, MemoryProfiler, Cause, Leak)  # the profiler's own objects, which it does not count


@cache
def get_profiler() -> MemoryProfiler:
    """Return the profiler of this process; a new one after `get_profiler.cache_clear()`."""
    return MemoryProfiler()


def gpu_memory() -> tuple[int, int]:
    """Return the bytes allocated and reserved on all CUDA devices; never starts CUDA itself."""
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))


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
