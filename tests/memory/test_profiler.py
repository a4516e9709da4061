"""The memory profiler names each kind of leak, counts shared storage once and stays out of the way."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
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


Step = Callable[[MemoryProfiler, list[Any], int], None]


def leak_tensors(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append(torch.zeros(10))


def leak_arrays(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append(np.zeros(10))


def leak_arrays_in_dicts(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append({"values": (np.zeros(10),)})


def leak_objects(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.extend(Thing([visit]) for _ in range(100))


def leak_graph(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    weight = torch.ones(3, requires_grad=True)
    kept.append((weight * 2).sum())


def leak_environment(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append(Environment([np.zeros(100), torch.zeros(100)]))


def leak_agent(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append(Agent(3, 3))


def leak_replay_buffer(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    kept.append(Buffer())


def leak_open_figure(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    plt.subplots()[1].plot([1, 2, 3])


def leak_closed_figure(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
    figure = Figure()
    figure.subplots().plot([1, 2, 3])
    kept.append(figure)


LEAKS: list[tuple[Step, str]] = [
    (leak_tensors, "tensors"),
    (leak_arrays, "arrays"),
    (leak_arrays_in_dicts, "arrays"),
    (leak_objects, f"python objects of type {Thing.__module__}.Thing"),
    (leak_graph, "retained graph"),
    (leak_environment, "environments"),
    (leak_agent, "agents"),
    (leak_replay_buffer, "replay buffers"),
    (leak_open_figure, "figures"),
    (leak_closed_figure, "figures"),
]


def visit_times(profiler: MemoryProfiler, step: Step, visits: int, kept: list[Any]) -> None:
    for visit in range(visits):
        step(profiler, kept, visit)
        profiler.log_memory("evolve", census=True)


@pytest.mark.parametrize(("step", "kind"), LEAKS, ids=[step.__name__ for step, _ in LEAKS])
def test_each_leak_is_named_and_nothing_else(profiler: MemoryProfiler, step: Step, kind: str) -> None:
    kept: list[Any] = []
    visit_times(profiler, step, LEAK_FREE_VISITS - 1, kept)
    assert profiler.find_leaks("evolve") == []  # two visits of warm-up and two more do not convict
    visit_times(profiler, step, 1, kept)
    assert [leak.kind for leak in profiler.find_leaks("evolve")] == [kind]


def test_without_a_leak_nothing_is_named(profiler: MemoryProfiler) -> None:
    environment, history = Environment([np.zeros(9)]), []
    bounded: deque[np.ndarray] = deque(maxlen=2)

    def step(profiler: MemoryProfiler, kept: list[Any], visit: int) -> None:
        for leak, _ in LEAKS:
            leak(profiler, [], visit)
        plt.close("all")
        history.append({"generation": visit, "fitness": [0.5, 0.25]})
        bounded.append(np.zeros(3))

    visit_times(profiler, step, 8, [])
    assert profiler.find_leaks("evolve") == []
    assert environment.value and count_living() == {"environments": 1, "agents": 0, "replay_buffers": 0}


def test_the_profiler_itself_does_not_grow(profiler: MemoryProfiler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "utils")  # what is logged would be kept
    visit_times(profiler, lambda *_: None, 14, [])
    last = profiler.visits("evolve")[-4:]
    assert len({tuple(s.measures[name] for name in ("objects", "tensors", "arrays")) for s in last}) == 1


def test_a_leak_that_begins_late_or_ends_is_judged_by_the_latest_visits(profiler: MemoryProfiler) -> None:
    kept: list[Any] = []
    visit_times(profiler, lambda *_: None, 3, kept)
    visit_times(profiler, leak_tensors, 6, kept)
    assert [leak.kind for leak in profiler.find_leaks("evolve")] == ["tensors"]
    visit_times(profiler, lambda *_: None, 1, kept)
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
    visit_times(profiler, leak_tensors, 5, kept)
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
