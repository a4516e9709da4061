"""The memory profiler names each kind of leak, counts shared storage once and stays out of the way."""

import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from matplotlib.figure import Figure

from tests.memory.thing import Environment, Thing
from utils import memory_profiler
from utils.memory.guard import MIB, peak_rss_mb, release_free_memory
from utils.memory.living import count_living, counted
from utils.memory_profiler import TYPE, MemoryProfiler, get_profiler

pytestmark = pytest.mark.usefixtures("small_heap")
LEAK_FREE_VISITS = 5
HEALTHY_MB = (531.59, 545.51, 545.53, 545.61, 546.04, 558.15, 561.71, 561.78, 561.76, 553.21)
"""Resident memory of a default run at the end of its ten generations; pictures are drawn after the fifth."""
STEPPING_MB = (500.0, 600.0, 640.0, 640.0, 640.1, 680.0, 680.0, 680.1, 680.1, 720.0, 720.1, 720.1)


@counted("agents")
class Agent(torch.nn.Linear):
    """What is counted as an agent."""


@counted("replay_buffers")
class Buffer(Thing):
    """What is counted as a replay buffer."""


Step = Callable[[int], Sequence[Any]]
"""Makes what is kept of a visit."""


def figure(visit: int) -> list[Any]:
    made = Figure()
    made.subplots().plot([1, 2, 3])
    return [made]


def tensors(visit: int) -> list[Any]:
    return [torch.zeros(10)]


LEAKS: dict[str, tuple[Step, str]] = {
    "tensors": (tensors, "tensors"),
    "arrays": (lambda visit: [np.zeros(10)], "arrays"),
    "arrays in dicts": (lambda visit: [{"values": (np.zeros(10),)}], "arrays"),
    "objects": (lambda visit: [Thing([visit]) for _ in range(100)], f"{TYPE}{Thing.__module__}.Thing"),
    "graph": (lambda visit: [(torch.ones(3, requires_grad=True) * 2).sum()], "retained graphs"),
    "environment": (lambda visit: [Environment([np.zeros(100), torch.zeros(100)])], "environments"),
    "agent": (lambda visit: [Agent(3, 3)], "agents"),
    "replay buffer": (lambda visit: [Buffer()], "replay buffers"),
    "figure": (figure, "figures"),
}


def visit_times(profiler: MemoryProfiler, visits: int, kept: list[Any], step: Step = lambda _: []) -> None:
    for visit in range(visits):
        kept.extend(step(visit))
        profiler.log_memory("evolve", census=True)


@pytest.mark.parametrize(("step", "kind"), LEAKS.values(), ids=LEAKS)
def test_each_leak_is_named_and_nothing_else(profiler: MemoryProfiler, step: Step, kind: str) -> None:
    kept: list[Any] = []
    visit_times(profiler, LEAK_FREE_VISITS - 1, kept, step)
    assert profiler.find_leaks() == {}  # two visits of warm-up and two more do not convict
    visit_times(profiler, 1, kept, step)
    assert list(profiler.find_leaks()) == [kind]
    assert f"leak: {kind} +" in profiler.history()


def test_without_a_leak_nothing_is_named(profiler: MemoryProfiler) -> None:
    environment, history = Environment([np.zeros(9)]), []
    bounded: deque[np.ndarray] = deque(maxlen=2)

    def step(visit: int) -> list[Any]:
        for leak, _ in LEAKS.values():
            leak(visit)
        history.append({"generation": visit, "fitness": [0.5, 0.25]})
        bounded.append(np.zeros(3))
        return []

    visit_times(profiler, 8, [], step)
    assert profiler.find_leaks() == {}
    assert environment.value and count_living() == {"environments": 1, "agents": 0, "replay_buffers": 0}


@pytest.fixture
def resident_mb(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the process's memory by the values of this list, in MiB, then by zero."""
    values: list[float] = []

    def measure(process: psutil.Process) -> SimpleNamespace:
        size = (values.pop(0) if values else 0) * MIB
        return SimpleNamespace(rss=size, vms=3 * size, uss=2 * size)

    monkeypatch.setattr(psutil.Process, "memory_full_info", measure)
    return values


def test_snapshots_are_bounded(resident_mb: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_profiler, "MAX_SNAPSHOTS", 20)
    profiler, resident_mb[:] = MemoryProfiler(), [5.0] + [1.0] * 30
    for visit in range(31):
        profiler.log_memory(f"label {visit}")
    assert len(profiler.snapshots) == 20
    assert row_of("rss_mb", profiler.growth_table())[:3] == ["5.00", "1.00", "-4.00"]


def row_of(measure: str, text: str) -> list[str]:
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(measure))


def test_traced_allocations_are_named_by_their_lines(profiler: MemoryProfiler) -> None:
    tracemalloc.start()
    try:
        profiler.log_memory("baseline")
        kept = [bytes(1000) for _ in range(5000)]
        text = profiler.report()
    finally:
        tracemalloc.stop()
    first = text.split("allocations that grew")[1].splitlines()[3]
    assert len(kept) == 5000 and "test_profiler.py" in first and float(first.split()[1]) > 4.5
    assert "allocations" not in profiler.report()


def lines_of(profiler: MemoryProfiler, resident_mb: list[float], sizes: list[float]) -> list[str]:
    """The memory line after each generation of these sizes, and a baseline as large as the first."""
    resident_mb += [sizes[0], *sizes]
    profiler.log_memory("baseline")
    lines = []
    for _ in sizes:
        profiler.log_memory("generation")
        lines.append(profiler.summary_line())
    return lines


@pytest.mark.parametrize("sizes", [HEALTHY_MB, STEPPING_MB, (600.0,) * 8, tuple(700.0 - 10 * i for i in range(9))])
def test_a_healthy_run_is_steady_from_its_seventh_generation_on(
    profiler: MemoryProfiler, resident_mb: list[float], sizes: tuple[float, ...]
) -> None:
    lines = lines_of(profiler, resident_mb, list(sizes))
    assert all(line.endswith("; too early to tell") for line in lines[:6])
    assert all(line.endswith("; steady") for line in lines[6:])
    assert f"({sizes[-1] - sizes[0]:+,.0f} MiB since the baseline, " in lines[-1]


@pytest.mark.parametrize(("leak_mb", "least", "most"), [(0, 0, 0), (3, 0, 0), (5, 95, 100)])
def test_a_leak_is_found_in_noise_and_noise_alone_is_not(
    profiler: MemoryProfiler, resident_mb: list[float], leak_mb: float, least: float, most: float
) -> None:
    noise = np.random.default_rng(0).normal(0, 2, (100, 10))
    growing = 0
    for series in 600 + noise + leak_mb * np.arange(10):
        profiler.snapshots.clear()
        resident_mb[:] = series
        for _ in range(10):
            profiler.log_memory("generation")
        growing += profiler.is_growing()
    assert least <= growing <= most


def test_real_memory_that_grows_is_named(profiler: MemoryProfiler) -> None:
    kept: list[Any] = []
    release_free_memory()
    profiler.log_memory("baseline")
    for _ in range(7):
        kept.append(np.ones(20 * MIB // 8))
        profiler.log_memory("evolve", census=True)
        profiler.log_memory("generation")
    assert profiler.summary_line().endswith("; growing: arrays")
    assert "; GPU" not in profiler.summary_line()


def test_the_line_tells_the_memory_of_a_gpu(profiler: MemoryProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 100, 200, 300, 400, 500, 600, 700, 800])
    monkeypatch.setattr(memory_profiler, "gpu_memory", lambda: (next(sizes) * MIB, 1024 * MIB))
    profiler.log_memory("baseline")
    for _ in range(8):
        profiler.log_memory("generation")
    line = profiler.summary_line()
    assert "; GPU 800 MiB allocated (+700 MiB), 1,024 MiB reserved; " in line
    assert line.endswith("; growing: nothing named yet")


def test_trend_and_growth_of_a_known_series(profiler: MemoryProfiler, resident_mb: list[float]) -> None:
    resident_mb += [100, 500, 10, 12, 14, 16]
    for _ in range(6):
        profiler.log_memory("evolve")
    trend = profiler.trend("evolve")
    assert (trend["rss_mb"], trend["vms_mb"], trend["uss_mb"], trend["agents"]) == pytest.approx((2.0, 6.0, 4.0, 0.0))
    assert row_of("rss_mb", profiler.growth_table()) == ["100.00", "16.00", "-84.00", "-84.00", "2.00"]


def test_snapshot_agrees_with_the_system(profiler: MemoryProfiler) -> None:
    assert get_profiler() is profiler
    snapshot = profiler.log_memory("now")
    sizes = [snapshot.measures[name] for name in ("uss_mb", "rss_mb", "vms_mb")]
    assert 0 < sizes[0] <= sizes[1] <= sizes[2]
    assert sizes[1] == pytest.approx(psutil.Process().memory_info().rss / MIB, rel=0.2)
    assert peak_rss_mb() >= 0.99 * sizes[1]
