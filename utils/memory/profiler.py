"""Where the memory goes: snapshots, trends, leak verdicts and the largest objects of a run."""

from __future__ import annotations

import gc
import logging
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from utils.memory.guard import MB, MemoryGuard, MemoryStatus, memory_limit_mb, peak_rss_mb
from utils.memory.heap import Census, Heap, scan_heap, take_census
from utils.memory.largest import LargeObject, large_object_table
from utils.memory.largest import largest_objects as _largest_objects
from utils.memory.leaks import Cause, Leak, causes_of, name_leaks

__all__ = [
    "LargeObject",
    "Leak",
    "MemoryGuard",
    "MemoryProfiler",
    "MemoryStatus",
    "Phase",
    "Snapshot",
    "get_profiler",
    "memory_limit_mb",
    "peak_rss_mb",
    "reset_profiler",
    "theil_sen",
]

MAX_SNAPSHOTS = 1000
MAX_LABELS = 64
MAX_TREND_VISITS = 200
WARM_UP_VISITS = 2
LEAK_VISITS = 3
RECENT_CENSUSES = 6
DEFAULT_COUNTS = ("environments", "agents", "replay_buffers")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of the process at one moment; sizes in MiB, object counts None unless a census was taken."""

    label: str
    visit: int
    """Snapshots with this label before this one."""
    seconds: float
    """Since the profiler was made."""
    rss_mb: float
    vms_mb: float
    uss_mb: float
    """Memory that is this process's alone; resident memory where the system does not tell."""
    gpu_allocated_mb: float
    gpu_reserved_mb: float
    figures: int
    """Matplotlib figures open in pyplot."""
    counts: dict[str, int]
    """Living objects by tracked label."""
    tensors: int | None = None
    tensor_bytes: int | None = None
    arrays: int | None = None
    array_bytes: int | None = None
    objects: int | None = None
    graph_nodes: int | None = None

    def measures(self) -> dict[str, float]:
        """Everything that was measured, by name."""
        fixed = {
            name: getattr(self, name) for name in self.__slots__ if name not in ("label", "visit", "seconds", "counts")
        }
        return {name: float(value) for name, value in {**fixed, **self.counts}.items() if value is not None}


class Phase(NamedTuple):
    """One point of the memory picture: seconds since the start, sizes in MiB."""

    label: str
    seconds: float
    rss_mb: float
    uss_mb: float
    gpu_allocated_mb: float


@dataclass(slots=True)
class _LabelHistory:
    """What is kept of one label beyond the snapshots; its size does not grow with the visits."""

    first: Snapshot
    visits: int = 0
    censuses: int = 0
    # Packed numbers, one column per cause: thousands of boxed integers would show up as growth themselves.
    recent: deque[bytes] = field(default_factory=lambda: deque(maxlen=RECENT_CENSUSES))


class MemoryProfiler:
    """Snapshots of one process and what they say about its memory; bounded itself."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.baseline_label = "baseline"
        self._start = time.monotonic()
        self._process = psutil.Process()
        self._labels: dict[str, _LabelHistory] = {}
        self._columns: dict[Cause, int] = {}
        self._counters: dict[str, Callable[[], Callable[[], int] | None]] = {}
        self._tracked: dict[str, dict[int, weakref.ref[Any]]] = {label: {} for label in DEFAULT_COUNTS}

    def register_counter(self, label: str, counter: Callable[[], int]) -> None:
        """Count `label` by calling `counter` at each snapshot; it replaces the label's earlier counter.

        A bound method does not keep its object alive and counts 0 after its death.
        """
        if hasattr(counter, "__self__") and hasattr(counter, "__func__"):
            self._counters[label] = weakref.WeakMethod(counter)
        else:
            self._counters[label] = lambda: counter

    def track(self, label: str, item: object) -> None:
        """Count `item` under `label` as long as it lives; TypeError if it cannot be referred to weakly."""
        living = self._tracked.setdefault(label, {})
        key = id(item)
        living[key] = weakref.ref(item, lambda _: living.pop(key, None))

    def counts(self) -> dict[str, int]:
        """Living objects by label: those tracked and those counted by the registered counter."""
        totals = {label: len(living) for label, living in self._tracked.items()}
        for label, find in self._counters.items():
            counter = find()
            totals[label] = totals.get(label, 0) + (0 if counter is None else int(counter()))
        return totals

    def log_memory(self, label: str, show_objects: bool = False, *, census: bool = False) -> Snapshot:
        """Take, keep and log one snapshot; a census counts tensors, arrays and objects (about 1 s for 500,000 objects).

        `show_objects` takes the census and logs the largest objects, 10 MiB and up, as well.
        """
        heap = counted = None
        snapshot = self._take_snapshot(label, collect=census or show_objects)
        if census or show_objects:
            heap = self._scan()
            counted = take_census(heap)
            snapshot = replace(snapshot, **_census_fields(counted))
        logger.info("%s", _snapshot_line(snapshot, self._previous(label)))
        self._record(snapshot, counted)
        if show_objects:
            logger.info("largest objects\n%s", large_object_table(self.largest_objects(heap=heap)))
        return snapshot

    def set_baseline(self, label: str = "baseline") -> Snapshot:
        """Measure growth from the first snapshot with this label, which is taken now if there is none."""
        self.baseline_label = label
        history = self._labels.get(label)
        return self.log_memory(label, census=True) if history is None else history.first

    def visits(self, label: str) -> list[Snapshot]:
        """The kept snapshots with this label, oldest first."""
        return [snapshot for snapshot in self.snapshots if snapshot.label == label]

    def phases(self) -> list[Phase]:
        """The kept snapshots as points of a picture, oldest first."""
        return [Phase(s.label, s.seconds, s.rss_mb, s.uss_mb, s.gpu_allocated_mb) for s in self.snapshots]

    def growth(self, baseline_label: str | None = None) -> dict[str, float]:
        """Change of every measure from the baseline to the last snapshot; KeyError without such a baseline."""
        label = baseline_label or self.baseline_label
        if label not in self._labels:
            raise KeyError(f"expected a label with a snapshot, got {label!r}; call log_memory({label!r}) first")
        return _difference(self._labels[label].first, self.snapshots[-1])

    def print_memory_growth(self, baseline_label: str | None = None) -> None:
        """Log the change of every measure since the first snapshot with the baseline's label."""
        try:
            grown = self.growth(baseline_label)
        except KeyError as error:
            logger.warning("no memory growth to show: %s", error.args[0])
            return
        rows = [f"  {name:<18} {_amount(name, value, sign=True)}" for name, value in grown.items()]
        logger.info("memory growth since %s\n%s", baseline_label or self.baseline_label, "\n".join(rows))

    def trend(self, label: str, warm_up: int = WARM_UP_VISITS) -> dict[str, float]:
        """Theil-Sen slope of each measure per visit of `label` after the first `warm_up`; none below two visits."""
        later = [snapshot for snapshot in self.visits(label) if snapshot.visit >= warm_up]
        series: dict[str, list[tuple[int, float]]] = {}
        for snapshot in later:
            for name, value in snapshot.measures().items():
                series.setdefault(name, []).append((snapshot.visit, value))
        return {
            name: theil_sen([value for _, value in points], [visit for visit, _ in points])
            for name, points in series.items()
            if len(points) >= 2
        }

    def trend_table(self, label: str, warm_up: int = WARM_UP_VISITS) -> str:
        """First and last value and slope per visit of each measure of `label`, as lines of text."""
        visits = self.visits(label)
        if not visits:
            return f"no snapshots labelled {label!r}"
        slopes = self.trend(label, warm_up)
        first, last = visits[0].measures(), visits[-1].measures()
        rows = [f"{label}, {len(visits)} visits{'':<4} {'first':>16} {'last':>16} {'slope per visit':>20}"]
        width = len(rows[0]) - 54
        for name, value in last.items():
            slope = _amount(name, slopes[name], sign=True) if name in slopes else "-"
            start = _amount(name, first[name]) if name in first else "-"
            rows.append(f"{name:<{width}} {start:>16} {_amount(name, value):>16} {slope:>20}")
        return "\n".join(rows)

    def find_leaks(self, label: str) -> list[Leak]:
        """What grew at every one of the last three or more censuses of `label` after the first two.

        Growth that merely accompanies a more telling cause (the arrays of a leaked figure) is listed with that cause.
        """
        history = self._labels.get(label)
        if history is None:
            return []
        # The last warm-up census is what the first later one is compared with.
        usable = min(len(history.recent), history.censuses - WARM_UP_VISITS + 1)
        if usable <= LEAK_VISITS:
            return []
        table = np.zeros((usable, len(self._columns)), dtype=np.int64)
        for row, packed in zip(table, list(history.recent)[-usable:], strict=True):
            counts = np.frombuffer(packed, dtype=np.int64)
            row[: len(counts)] = counts  # causes that were first met later counted 0 here
        return name_leaks(list(self._columns), table)

    def largest_objects(self, min_mb: float = 10.0, top: int = 20, *, heap: Heap | None = None) -> list[LargeObject]:
        """The `top` largest objects of at least `min_mb` MiB by real storage size, and who refers to them.

        `heap` is a scan made just before, if there is one.
        """
        if heap is None:
            gc.collect()
            heap = self._scan()
        return _largest_objects(heap, min_mb, top)

    def final_summary(self, min_mb: float = 50.0) -> str:
        """Log and return the peak, the trend and leaks of each label, and the objects of at least `min_mb` MiB."""
        parts = [f"memory: peak resident {peak_rss_mb():,.1f} MB"]
        for label, history in self._labels.items():
            if history.visits >= 2:
                parts.append(self.trend_table(label))
            parts += [f"leak at {label!r}: {leak}" for leak in self.find_leaks(label)]
        large = self.largest_objects(min_mb)
        parts.append(f"objects of {min_mb:g} MB and more\n{large_object_table(large)}" if large else "")
        summary = "\n".join(part for part in parts if part)
        logger.info("%s", summary)
        return summary

    def _scan(self) -> Heap:
        return scan_heap(ignore=(Snapshot, _LabelHistory, MemoryProfiler, Cause, Leak))

    def _previous(self, label: str) -> Snapshot | None:
        return next((snapshot for snapshot in reversed(self.snapshots) if snapshot.label == label), None)

    def _take_snapshot(self, label: str, collect: bool) -> Snapshot:
        """All but the census; before it, because its own lists would be measured with the rest."""
        if collect:
            gc.collect()
        rss, vms, uss = _process_memory(self._process)
        allocated, reserved = gpu_memory()
        history = self._labels.get(label)
        return Snapshot(
            label=label,
            visit=0 if history is None else history.visits,
            seconds=time.monotonic() - self._start,
            rss_mb=rss / MB,
            vms_mb=vms / MB,
            uss_mb=uss / MB,
            gpu_allocated_mb=allocated / MB,
            gpu_reserved_mb=reserved / MB,
            figures=_open_figures(),
            counts=self.counts(),
        )

    def _record(self, snapshot: Snapshot, census: Census | None) -> None:
        self.snapshots.append(snapshot)
        history = self._labels.get(snapshot.label)
        if history is None:
            self._make_room()
            history = self._labels[snapshot.label] = _LabelHistory(snapshot)
        history.visits += 1
        if census is not None:
            history.censuses += 1
            history.recent.append(self._pack(causes_of(census, snapshot.figures, snapshot.counts)))

    def _make_room(self) -> None:
        """Forget the oldest label but the baseline when there are too many: labels may be made up at each call."""
        if len(self._labels) >= MAX_LABELS:
            del self._labels[next(label for label in self._labels if label != self.baseline_label)]

    def _pack(self, counts: dict[Cause, int]) -> bytes:
        for cause in counts:
            self._columns.setdefault(cause, len(self._columns))
        return np.array([counts.get(cause, 0) for cause in self._columns], dtype=np.int64).tobytes()


def theil_sen(values: Sequence[float], positions: Sequence[float] | None = None) -> float:
    """Median of the slopes between all pairs of the last 200 points; positions default to 0, 1, 2, ...

    Theil (1950), Sen (1968): up to 29% of the points may be arbitrarily wrong. ValueError below two points.
    """
    y = np.asarray(values, dtype=np.float64)[-MAX_TREND_VISITS:]
    x = (
        np.arange(len(y), dtype=np.float64)
        if positions is None
        else np.asarray(positions, np.float64)[-MAX_TREND_VISITS:]
    )
    if len(y) < 2 or len(x) != len(y):
        raise ValueError(f"expected two or more points with as many positions, got {len(y)} and {len(x)}")
    first, second = np.triu_indices(len(y), k=1)
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))


_profiler: MemoryProfiler | None = None


def get_profiler() -> MemoryProfiler:
    """The profiler of this process, made on the first call."""
    global _profiler
    if _profiler is None:
        _profiler = MemoryProfiler()
    return _profiler


def reset_profiler() -> None:
    """Forget the process's profiler: the next `get_profiler` starts afresh."""
    global _profiler
    _profiler = None


def _process_memory(process: psutil.Process) -> tuple[int, int, int]:
    """Resident, virtual and unique memory, bytes."""
    basic = process.memory_info()
    try:
        unique = process.memory_full_info().uss
    except (psutil.Error, AttributeError, OSError):
        unique = basic.rss
    return basic.rss, basic.vms, unique


def gpu_memory() -> tuple[int, int]:
    """Bytes allocated and reserved on all CUDA devices; never starts CUDA itself."""
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))


def _open_figures() -> int:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return 0 if pyplot is None else len(pyplot.get_fignums())


def _census_fields(census: Census) -> dict[str, Any]:
    names = ("tensors", "tensor_bytes", "arrays", "array_bytes", "objects", "graph_nodes")
    return {name: getattr(census, name) for name in names}


def _difference(first: Snapshot, last: Snapshot) -> dict[str, float]:
    before = first.measures()
    return {name: value - before[name] for name, value in last.measures().items() if name in before}


def _amount(name: str, value: float, sign: bool = False) -> str:
    """A measure with its unit."""
    plus = "+" if sign else ""
    if name.endswith("_bytes"):
        return f"{value / MB:{plus},.2f} MB"
    return f"{value:{plus},.2f} MB" if name.endswith("_mb") else f"{value:{plus},.6g}"


def _snapshot_line(snapshot: Snapshot, previous: Snapshot | None) -> str:
    """`memory [label] rss 812.30 MB (+1.20 MB), ...`; changes are since the label's previous snapshot."""
    changes = {} if previous is None else _difference(previous, snapshot)
    parts: Iterable[str] = (
        f"{name.removesuffix('_mb').replace('_', ' ')} {_amount(name, value)}"
        + (f" ({_amount(name, changes[name], sign=True)})" if changes.get(name) else "")
        for name, value in snapshot.measures().items()
        if value or not name.startswith("gpu")
    )
    return f"memory [{snapshot.label}] {', '.join(parts)}"
