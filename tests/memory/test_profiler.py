"""The memory profiler names each kind of leak, counts shared storage once and stays out of the way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import psutil
import pytest
import torch
from matplotlib.figure import Figure

from tests.memory.thing import Environment, Thing
from utils import memory_profiler
from utils.memory.guard import MB, peak_rss_mb
from utils.memory.leaks import TYPE
from utils.memory.living import count_living, counted
from utils.memory_profiler import MemoryProfiler, get_profiler

pytestmark = pytest.mark.usefixtures("small_heap")
LEAK_FREE_VISITS = 5


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    """Leave no figure to the next test."""
    yield
    plt.close("all")


@counted("agents")
class Agent(torch.nn.Linear):
    """What is counted as an agent."""


@counted("replay_buffers")
class Buffer(Thing):
    """What is counted as a replay buffer."""


Step = Callable[[int], Sequence[Any]]
"""Makes what is kept of a visit."""


def closed_figure(visit: int) -> list[Any]:
    figure = Figure()
    figure.subplots().plot([1, 2, 3])
    return [figure]


def open_figure(visit: int) -> list[Any]:
    plt.subplots()[1].plot([1, 2, 3])
    return []


def tensors(visit: int) -> list[Any]:
    return [torch.zeros(10)]


LEAKS: dict[str, tuple[Step, str]] = {
    "tensors": (tensors, "tensors"),
    "arrays": (lambda visit: [np.zeros(10)], "arrays"),
    "arrays in dicts": (lambda visit: [{"values": (np.zeros(10),)}], "arrays"),
    "objects": (lambda visit: [Thing([visit]) for _ in range(100)], f"{TYPE}{Thing.__module__}.Thing"),
    "graph": (lambda visit: [(torch.ones(3, requires_grad=True) * 2).sum()], "retained graph"),
    "environment": (lambda visit: [Environment([np.zeros(100), torch.zeros(100)])], "environments"),
    "agent": (lambda visit: [Agent(3, 3)], "agents"),
    "replay buffer": (lambda visit: [Buffer()], "replay buffers"),
    "open figure": (open_figure, "figures"),
    "closed figure": (closed_figure, "figures"),
}


def visit_times(profiler: MemoryProfiler, visits: int, kept: list[Any], step: Step = lambda _: []) -> None:
    for visit in range(visits):
        kept.extend(step(visit))
        profiler.log_memory("evolve", census=True)


@pytest.mark.parametrize(("step", "kind"), LEAKS.values(), ids=LEAKS)
def test_each_leak_is_named_and_nothing_else(profiler: MemoryProfiler, step: Step, kind: str) -> None:
    kept: list[Any] = []
    visit_times(profiler, LEAK_FREE_VISITS - 1, kept, step)
    assert profiler.find_leaks("evolve") == []  # two visits of warm-up and two more do not convict
    visit_times(profiler, 1, kept, step)
    assert [leak.kind for leak in profiler.find_leaks("evolve")] == [kind]


def test_without_a_leak_nothing_is_named(profiler: MemoryProfiler) -> None:
    environment, history = Environment([np.zeros(9)]), []
    bounded: deque[np.ndarray] = deque(maxlen=2)

    def step(visit: int) -> list[Any]:
        for leak, _ in LEAKS.values():
            leak(visit)
        plt.close("all")
        history.append({"generation": visit, "fitness": [0.5, 0.25]})
        bounded.append(np.zeros(3))
        return []

    visit_times(profiler, 8, [], step)
    assert profiler.find_leaks("evolve") == []
    assert environment.value and count_living() == {"environments": 1, "agents": 0, "replay_buffers": 0}


def test_the_profiler_itself_does_not_grow(profiler: MemoryProfiler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "utils")  # what is logged would be kept
    visit_times(profiler, 14, [])
    last = profiler.visits("evolve")[-4:]
    assert len({tuple(s.measures[name] for name in ("objects", "tensors", "arrays")) for s in last}) == 1


def test_a_leak_that_begins_late_or_ends_is_judged_by_the_latest_visits(profiler: MemoryProfiler) -> None:
    kept: list[Any] = []
    visit_times(profiler, 3, kept)
    visit_times(profiler, 6, kept, tensors)
    assert [leak.kind for leak in profiler.find_leaks("evolve")] == ["tensors"]
    visit_times(profiler, 1, kept)
    assert profiler.find_leaks("evolve") == []


@pytest.fixture
def free_measures(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the process's memory by the values of this list, in MiB, then by zero."""
    values: list[float] = []

    def measure(process: psutil.Process) -> tuple[int, int, int]:
        size = int((values.pop(0) if values else 0) * MB)
        return size, 3 * size, 2 * size

    monkeypatch.setattr(memory_profiler, "_process_memory", measure)
    return values


def test_snapshots_are_bounded_and_the_baseline_stays(profiler: MemoryProfiler, free_measures: list[float]) -> None:
    free_measures += [5.0] + [1.0] * 1500
    profiler.log_memory("baseline")
    for visit in range(1500):
        profiler.log_memory(f"label {visit % 300}")
    assert len(profiler.snapshots) == 1000
    assert row_of("rss_mb", profiler.final_summary()) == ["5.00", "1.00", "-4.00"]


def row_of(measure: str, text: str) -> list[str]:
    """The cells of the first table row of a measure."""
    return next(line.split()[1:] for line in text.splitlines() if line.startswith(measure))


def test_trend_growth_and_phases_of_a_known_series(profiler: MemoryProfiler, free_measures: list[float]) -> None:
    free_measures += [100, 500, 10, 12, 14, 16]
    for _ in range(6):
        profiler.log_memory("evolve")
    trend = profiler.trend("evolve")
    assert (trend["rss_mb"], trend["vms_mb"], trend["uss_mb"], trend["agents"]) == pytest.approx((2.0, 6.0, 4.0, 0.0))
    assert "tensors" not in trend
    trends = profiler.final_summary().partition("evolve, 6 visits")[2]
    assert row_of("rss_mb", trends) == ["100.00", "16.00", "-84.00", "2.00"]
    assert profiler.phases()[-1][0] == "evolve" and profiler.phases()[-1][2:] == (16.0, 32.0, 0.0)
    seconds = [point[1] for point in profiler.phases()]
    assert seconds == sorted(seconds)
    summary = profiler.final_summary()
    assert summary.startswith("memory growth since 'evolve'\n")
    assert row_of("rss_mb", summary) == ["100.00", "16.00", "-84.00"]


def test_final_summary_names_leaks_and_large_objects(profiler: MemoryProfiler) -> None:
    kept: list[Any] = [np.zeros(3 * MB // 8)]
    visit_times(profiler, 5, kept, tensors)
    summary = profiler.final_summary(min_mb=2)
    assert "leak at 'evolve': tensors: +1 a visit over 3 visits" in summary
    assert "objects of 2 MB and more" in summary and "393216" in summary
    assert "evolve, 5 visits" in summary


def test_snapshot_agrees_with_the_system(profiler: MemoryProfiler) -> None:
    assert get_profiler() is profiler
    plt.figure()
    snapshot = profiler.log_memory("now")
    sizes = [snapshot.measures[name] for name in ("uss_mb", "rss_mb", "vms_mb")]
    assert 0 < sizes[0] <= sizes[1] <= sizes[2]
    assert sizes[1] == pytest.approx(psutil.Process().memory_info().rss / MB, rel=0.2)
    assert peak_rss_mb() >= 0.99 * sizes[1]
    counts = {"figures": 1, "environments": 0, "agents": 0, "replay_buffers": 0}
    assert {name: snapshot.measures[name] for name in counts} == counts


def test_unique_memory_falls_back_to_resident_memory(profiler: MemoryProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: psutil.Process) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "memory_full_info", refuse)
    snapshot = profiler.log_memory("now")
    assert snapshot.measures["uss_mb"] == snapshot.measures["rss_mb"]
