"""Memory of a process: snapshots, trends, leaks and the largest objects.

A run takes a snapshot after each phase and writes all of this to its log. By hand, at any place:

    log_memory("before", show_objects=True)
    ...
    log_memory("after", show_objects=True)
    get_profiler().print_memory_growth(baseline_label="before")
"""

import gc
import logging
import math
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import psutil
import torch

from utils.memory_census import CLASSES, Heap, count_living, forget_living, large_object_table
from utils.memory_guard import MIB, peak_rss_mb, release_free_memory
from utils.tables import Rows, cell, table

MAX_SNAPSHOTS = 10_000
"""Those of 2,000 generations; a snapshot takes a kilobyte."""
BASELINE, GENERATION = "Trainer initialized (baseline)", "generation"
"""Labels of the snapshot before the first generation, and, after their numbers, of those at the ends of generations."""
_NUMBER = re.compile(r"^Gen \d+: (After )?")
_SIZES = {"rss": "RAM", "vms": "virtual", "uss": "unique", "gpu_allocated": "GPU", "gpu_reserved": "GPU reserved"}
_NAMES = {f"{key}_mb": f"{name} GB" for key, name in _SIZES.items()} | CLASSES
_NAMES |= {f"{kind}_bytes": f"{kind}s GB" for kind in ("array", "tensor")}
"""Of measures, as they are shown."""
_COLUMNS = dict(zip(CLASSES, ("envs", "agents", "buffers"), strict=True))
"""Of a table within 80 columns."""
MIN_MB = 10
"""Smallest of the largest objects."""
WARM_UP_VISITS = 2
OWNER_STEPS = 2
"""Generations in a row at which environments, agents or buffers that leak have become more."""
RECENT_VISITS, LEAST_VISITS = 10, 5
LEAK_MB = 5.0
"""Growth below this per visit is not called a leak."""
KINDS = ("lists", "dicts", "arrays", "tensors")
SHOWN_SNAPSHOTS = 6
"""In the report of a generation: its own, and the last one before it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Memory of the process at one moment."""

    label: str
    """A place, perhaps after a generation: `Gen 3: After evaluate_population`."""
    visit: int  # snapshots of this place before this one
    seconds: float  # since the profiler was created
    measures: dict[str, float]
    """Sizes in MiB, shown in GB (`uss_mb` is unique to this process), living objects by label, counts of a census."""

    @property
    def place(self) -> str:
        """The label without a generation: snapshots of one place are compared."""
        return _place(self.label)

    def __str__(self) -> str:
        texts = (
            f"{name[:-3]} {cell(value)} GB" if name.endswith(" GB") else f"{name} {cell(value)}"
            for name, value in _shown(self.measures).items()
        )
        return f"memory [{self.label}] {', '.join(texts)}"


class MemoryProfiler:
    """A bounded history of snapshots of this process: trends, growth, leaks and the largest objects."""

    def __init__(self) -> None:
        self.snapshots: deque[Snapshot] = deque(maxlen=MAX_SNAPSHOTS)
        self.baseline: Snapshot | None = None  # the first snapshot
        self.is_reporting = False
        """Every snapshot is shown."""
        self._start = time.monotonic()
        self._process = psutil.Process()
        self._visits: Counter[str] = Counter()

    def log_memory(
        self,
        label: str,
        show_objects: bool = False,
        *,
        show: Callable[[str], object] | None = None,
    ) -> Snapshot:
        """Take, keep and show a snapshot.

        Args:
            show_objects: count all objects and the bytes of tensors and arrays (0.7 s for 400,000 objects), which while
                it is reporting is done in any case, and show the largest ones.
            show: default: the log, and while it is reporting the console.
        """
        objects = ""
        is_census = show_objects or self.is_reporting
        if is_census:
            gc.collect()
        place = _place(label)
        snapshot = Snapshot(label, self._visits[place], time.monotonic() - self._start, self._measure())
        if is_census:
            heap = Heap()  # after the measurement, which would include its lists
            snapshot.measures.update(heap.counts())
            if show_objects:
                objects = f"\nlargest objects, of {MIN_MB} MB and more\n{large_object_table(heap, MIN_MB)}"
            del heap  # it keeps everything alive
        self._visits[place] += 1
        self.baseline = self.baseline or snapshot
        self.snapshots.append(snapshot)
        text = f"{snapshot}{objects}"
        if show is not None:
            show(text)
        else:
            logger.log(logging.INFO if self.is_reporting else logging.DEBUG, "%s", text, extra={"terminal": text})
        return snapshot

    def _measure(self) -> dict[str, float]:
        memory = self._process.memory_full_info()
        sizes = zip(_SIZES, (memory.rss, memory.vms, memory.uss, *gpu_memory()), strict=True)
        return {f"{name}_mb": size / MIB for name, size in sizes} | count_living()

    def visits(self, label: str) -> list[Snapshot]:
        """Return the kept snapshots with this label, or of this place, oldest first."""
        return [snapshot for snapshot in self.snapshots if label in (snapshot.label, snapshot.place)]

    def trend(self, label: str) -> dict[str, float]:
        """Return the Theil-Sen slope of each measure per visit of `label` after the warm-up, given two visits."""
        names = dict.fromkeys(name for snapshot in self.visits(label) for name in snapshot.measures)
        series = {name: self._series(label, name) for name in names}
        return {name: _slope(points)[0] for name, points in series.items() if len(points) > 1}

    def _series(self, label: str, name: str) -> list[tuple[float, float]]:
        """Return visits of `label` after the warm-up, and a measure then."""
        later = [s for s in self.visits(label) if s.visit >= WARM_UP_VISITS]
        return [(s.visit, s.measures[name]) for s in later if name in s.measures]

    def leaks(self) -> dict[str, str]:
        """Find owners that became more at the ends of each of the last two generations, with their growth."""
        seen = [s for s in (self.baseline, *self.visits(GENERATION)) if s is not None][-OWNER_STEPS - 1 :]
        found = dict[str, str]()
        for owner in count_living() if len(seen) > OWNER_STEPS else ():
            numbers = [int(s.measures[owner]) for s in seen]
            if all(later > earlier for earlier, later in pairwise(numbers)):
                growth = f"+{(numbers[-1] - numbers[0]) / OWNER_STEPS:,.4g} a generation since [{seen[0].label}]"
                found[owner.replace("_", " ")] = f"{growth}, now {numbers[-1]:,}"
        return found

    def is_growing(self) -> bool:
        """Tell whether resident or GPU memory grows by at least 5 MiB a generation, significantly.

        Growth in a few steps with plateaus between them, as of a process that warms up, is not significant.
        """
        for name in ("rss_mb", "gpu_allocated_mb"):
            if len(points := self._series(GENERATION, name)[-RECENT_VISITS:]) >= LEAST_VISITS:
                slope, lowest = _slope(points)
                # Rounded as it is shown: where 5 MiB leak, the estimate is a little below as often as above.
                if round(slope) >= LEAK_MB and lowest > LEAK_MB / 2:
                    return True
        return False

    def summary_line(self) -> str:
        """Return memory now, its growth since the baseline and a generation, owners, and a verdict."""
        last, points = self.snapshots[-1], self._series(GENERATION, "rss_mb")[-RECENT_VISITS:]
        now, before = last.measures, (self.baseline or last).measures
        grown = {name: f"{(now[name] - before[name]) / 1024:+,.2f} GB" for name in ("rss_mb", "gpu_allocated_mb")}
        trend = f", {_slope(points)[0] / 1024:+,.3f} GB a generation" if len(points) > 1 else ""
        resident = f"RAM {now['rss_mb'] / 1024:,.2f} GB ({grown['rss_mb']} since the baseline{trend})"
        texts = [f"{resident}, peak {peak_rss_mb() / 1024:,.2f} GB"]
        if now["gpu_reserved_mb"]:
            allocated = f"GPU {now['gpu_allocated_mb'] / 1024:,.2f} GB allocated ({grown['gpu_allocated_mb']})"
            texts.append(f"{allocated}, {now['gpu_reserved_mb'] / 1024:,.2f} GB reserved")
        texts.append(", ".join(f"{owner.replace('_', ' ')} {now[owner]}" for owner in count_living()))
        if (leaks := self.leaks()) or self.is_growing():
            texts.append(": ".join(filter(None, ("growing", ", ".join(leaks)))))
        else:
            texts.append("steady" if len(points) >= LEAST_VISITS else "too early to tell")
        return "; ".join(texts)

    def growth_table(self, baseline_label: str | None = None) -> str:
        """Return the growth of each measure since the first snapshot with this label, and its trend.

        By default since the first of all. Raises ValueError for a label without a snapshot.
        """
        seen = [self.baseline, *self.visits(baseline_label or BASELINE)]
        first = next((s for s in seen if s is not None and baseline_label in (None, s.label, s.place)), None)
        if first is None:
            known = ", ".join(self._visits) or "none"
            raise ValueError(f"expected the label of a snapshot, got {baseline_label!r}; labels so far: {known}")
        slopes = {name: slope for label in self._visits for name, slope in self.trend(label).items()}
        rows = []
        for name, now in _worth_showing(self.snapshots[-1].measures).items():
            before = first.measures.get(name, math.nan)
            row = {"first": before, "last": now, "change": now - before}
            if name in slopes:
                row["each time"] = slopes[name]
            growth = 100.0 * row["change"] / before if before else None
            row = {column: _in_gb(name, value) for column, value in row.items()}
            rows.append({"measure": _NAMES.get(name, name), **row, "growth %": growth})
        columns = ("measure", "first", "last", "change", "growth %", "each time")
        head = f"memory growth since {first.label!r}; each time: from one snapshot of a place to its next, usually"
        return f"{head}\n{table(rows, columns, digits=3)}"

    def trend_table(self, last: int = MAX_SNAPSHOTS, place: str | None = None, kinds: Sequence[str] = ()) -> str:
        """Return a row for each of the last snapshots, of all or of a place, with the change of RAM since the one
        before; also with counts of these kinds of objects."""
        seen, rows = [*self.snapshots] if place is None else self.visits(place), Rows()
        for before, now in zip([*seen[:1], *seen], seen, strict=False):
            change = _in_gb("rss_mb", now.measures["rss_mb"] - before.measures["rss_mb"])
            alive = {_COLUMNS[owner]: now.measures[owner] for owner in CLASSES}
            row = {**_shown(now.measures), **alive, "label": now.label, "seconds": round(now.seconds), "Change": change}
            rows.append(row)
        gpu = [name for name in ("GPU GB", "GPU reserved GB") if any(name in row for row in rows)]
        columns = ("label", "seconds", "RAM GB", "Change", *gpu, *_COLUMNS.values(), *kinds)
        return table(rows[-last:], columns, digits=3)

    def report(self) -> str:
        """Return the trend of the last snapshots and growth since the baseline."""
        return f"memory trend\n{self.trend_table(SHOWN_SNAPSHOTS)}\n{self.growth_table()}"

    def analysis(self, *, all_phases: bool, shows_objects: bool = True) -> str:
        """Return the trend over all phases, or generations, growth since the baseline, and objects of 50 MB on."""
        gc.collect()
        large = f"\nobjects of 50 MB and more\n{large_object_table(Heap(), 50.0)}" if shows_objects else ""
        trend = self.trend_table(place=None if all_phases else GENERATION, kinds=KINDS if self.is_reporting else ())
        return f"memory trend\n{trend}\n{self.growth_table()}{large}"

    def print_memory_growth(self, baseline_label: str | None = None) -> None:
        """Print growth since the first snapshot with this label, see `growth_table`."""
        print(self.growth_table(baseline_label))


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
    """Take a snapshot by hand and print it, see `MemoryProfiler.log_memory`."""
    return get_profiler().log_memory(label, show_objects, show=print)


def print_memory_growth(baseline_label: str | None = None) -> None:
    """Print growth since the first snapshot with this label, by default since the first of all."""
    get_profiler().print_memory_growth(baseline_label)


def print_memory_summary() -> None:
    """Print the table of phases, growth since the baseline and the largest objects."""
    print(get_profiler().analysis(all_phases=True))


def clean_up(generation: int = 2) -> float:
    """Collect garbage up to a generation, and give CUDA's unused cache to the driver; return the MiB given back.

    After a full collection free memory is given to the system, too.
    """
    process = psutil.Process()
    resident = process.memory_info().rss
    gc.collect(generation)
    if generation == 2:
        release_free_memory()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return max(0, resident - process.memory_info().rss) / MIB


def gpu_memory() -> tuple[int, int]:
    """Return the bytes allocated and reserved on all CUDA devices; never starts CUDA itself."""
    if not torch.cuda.is_initialized():
        return 0, 0
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))


def _place(label: str) -> str:
    return _NUMBER.sub("", label)


def _shown(measures: Mapping[str, float]) -> dict[str, float]:
    """Return measures by the names under which they are shown, sizes in GB."""
    return {_NAMES.get(name, name): _in_gb(name, value) for name, value in _worth_showing(measures).items()}


def _worth_showing(measures: Mapping[str, float]) -> dict[str, float]:
    """Return the measures of which there is something to tell: those of a GPU only where one is used."""
    has_gpu = measures["gpu_reserved_mb"] > 0
    return {name: value for name, value in measures.items() if has_gpu or not name.startswith("gpu_")}


def _in_gb(measure: str, value: float) -> float:
    if measure.endswith("_bytes"):
        return value / 2**30
    return value / 1024 if measure.endswith("_mb") else value


def _slope(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the Theil-Sen slope through (x, y) points, and its lower confidence limit (one-sided, 2.5%)."""
    from scipy.stats import theilslopes  # takes a second to import, which a script that takes snapshots need not wait

    times, values = zip(*points, strict=True)
    fit = theilslopes(values, times, alpha=0.95)
    return float(fit.slope), float(fit.low_slope)
