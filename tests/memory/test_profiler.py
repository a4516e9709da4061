"""The memory profiler tells growth from noise, and what grew by what it counts."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.memory.thing import row_of
from utils import memory_profiler
from utils.memory_guard import MIB, peak_rss_mb, release_free_memory
from utils.memory_profiler import MemoryProfiler

pytestmark = pytest.mark.usefixtures("small_heap")
HEALTHY_MB = (531.59, 545.51, 545.53, 545.61, 546.04, 558.15, 561.71, 561.78, 561.76, 553.21)
"""Resident memory of a default run at the end of its ten generations; pictures are drawn after the fifth."""
STEPPING_MB = (500.0, 600.0, 640.0, 640.0, 640.1, 680.0, 680.0, 680.1, 680.1, 720.0, 720.1, 720.1)


@pytest.fixture
def resident_mb(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the process's memory by the values of this list, in MiB, then by zero."""
    values: list[float] = []

    def measure(process: psutil.Process) -> SimpleNamespace:
        size = (values.pop(0) if values else 0) * MIB
        return SimpleNamespace(rss=size, vms=3 * size, uss=2 * size)

    monkeypatch.setattr(psutil.Process, "memory_full_info", measure)
    return values


@pytest.mark.parametrize("sizes", [HEALTHY_MB, STEPPING_MB, (600.0,) * 8, tuple(700.0 - 10 * i for i in range(9))])
def test_a_healthy_run_is_steady_from_its_seventh_generation_on(
    profiler: MemoryProfiler, resident_mb: list[float], sizes: tuple[float, ...]
) -> None:
    resident_mb += [sizes[0], *sizes]
    profiler.log_memory("baseline")
    for generation in range(1, len(sizes) + 1):
        profiler.log_memory("generation")
        line = profiler.summary_line()
        assert line.endswith("; too early to tell" if generation < 7 else "; steady")
    assert f"({(sizes[-1] - sizes[0]) / 1024:+,.2f} GB since the baseline, " in line


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


def test_memory_that_grows_is_told_and_what_grew_is_counted(
    profiler: MemoryProfiler, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[Any] = []
    release_free_memory()
    profiler.log_memory("baseline", show_objects=True)
    for _ in range(7):
        kept.append(np.ones(20 * MIB // 8))
        kept += [(torch.ones(3, requires_grad=True) * 2).sum() for _ in range(2)]
        snapshot = profiler.log_memory("generation", show_objects=True)
    assert profiler.summary_line().endswith("; growing")
    assert "; GPU" not in profiler.summary_line()
    unique, resident, virtual = (snapshot.measures[name] for name in ("uss_mb", "rss_mb", "vms_mb"))
    assert 0 < unique <= resident <= virtual and peak_rss_mb() >= 0.99 * resident
    assert resident == pytest.approx(psutil.Process().memory_info().rss / MIB, rel=0.2)
    profiler.print_memory_growth()
    shown = capsys.readouterr().out
    grown = {name: float(row_of(name, shown)[2].replace(",", "")) for name in ("arrays", "retained_graphs", "tensors")}
    assert grown == {"arrays": 7, "retained_graphs": 14, "tensors": 28}


def test_the_line_tells_the_memory_of_a_gpu(profiler: MemoryProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 100, 200, 300, 400, 500, 600, 700, 800])
    monkeypatch.setattr(memory_profiler, "gpu_memory", lambda: (next(sizes) * MIB, 1024 * MIB))
    profiler.log_memory("baseline")
    for _ in range(8):
        profiler.log_memory("generation")
    line = profiler.summary_line()
    assert "; GPU 0.78 GB allocated (+0.68 GB), 1.00 GB reserved; " in line
    assert line.endswith("; growing")


def test_trend_and_growth_of_a_known_series(resident_mb: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Growth is since the first snapshot, also once that is no longer kept."""
    monkeypatch.setattr(memory_profiler, "MAX_SNAPSHOTS", 5)
    profiler, resident_mb[:] = MemoryProfiler(), [1024 * size for size in (100, 500, 10, 12, 14, 16)]
    for generation in range(6):
        profiler.log_memory(f"Gen {generation}: After evolve")
    trend = profiler.trend("evolve")
    assert (trend["rss_mb"], trend["vms_mb"], trend["uss_mb"], trend["agents"]) == pytest.approx(
        (2048.0, 6144.0, 4096.0, 0.0)
    )
    expected = ["GB", "100.000", "16.000", "-84.000", "-84.000", "2.000"]
    assert row_of("RAM", profiler.growth_table()) == row_of("RAM", profiler.growth_table("evolve")) == expected
    assert row_of("RAM", profiler.growth_table("Gen 0: After evolve")) == expected
    assert row_of("RAM", profiler.growth_table("Gen 4: After evolve"))[1:4] == ["14.000", "16.000", "2.000"]
    assert len(profiler.snapshots) == 5
