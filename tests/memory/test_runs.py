"""Memory of a trainer: what lives is counted, a leak is named soon, and a healthy run is called steady."""

from __future__ import annotations

import copy
import gc
import logging
import pickle
import re
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tests.fuel_breaks.run_cases import run_config
from tests.fuel_breaks.run_cases import trainer_of as trainer_of_fuel_breaks
from tests.memory.thing import Thing
from tests.tiny import learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from utils import memory_profiler
from utils.config.trader import EvolutionConfig
from utils.memory.guard import MB, release_free_memory
from utils.memory.leaks import is_growing
from utils.memory.living import count_living
from utils.memory_profiler import (
    MemoryProfiler,
    get_profiler,
    log_memory,
    print_memory_growth,
    print_memory_summary,
)

pytestmark = pytest.mark.usefixtures("small_heap")
HEALTHY_MB = (531.59, 545.51, 545.53, 545.61, 546.04, 558.15, 561.71, 561.78, 561.76, 553.21)
"""Resident memory of a default run at the end of its ten generations; pictures are drawn after the fifth."""
STEPPING_MB = (500.0, 600.0, 640.0, 640.0, 640.1, 680.0, 680.0, 680.1, 680.1, 720.0, 720.1, 720.1)


def trainer_of(profiler: MemoryProfiler, population: int = 16) -> ERLTrainer:
    log = GenerationLog(20, torch.device("cpu"), profiler)
    trainer = tiny_trainer(learnable_market(), evolution=EvolutionConfig(population_size=population), log=log)
    profiler.log_memory("baseline")
    return trainer


def train(profiler: MemoryProfiler, trainer: ERLTrainer) -> str:
    """Train a generation; return the memory line."""
    trainer.run_generation()
    profiler.log_memory("generation")
    return profiler.summary_line()


def test_a_trainer_has_two_environments_its_agents_a_champion_and_a_buffer(profiler: MemoryProfiler) -> None:
    trainer = trainer_of(profiler)
    expected = {"environments": 2, "agents": 17, "replay_buffers": 1}
    for _ in range(2):
        assert "environments 2, agents 17, replay buffers 1; too early to tell" in train(profiler, trainer)
        for snapshot in profiler.snapshots:
            assert {label: snapshot.measures[label] for label in expected} == expected
    del trainer
    gc.collect()
    assert count_living() == dict.fromkeys(expected, 0)


def test_a_trainer_of_fuel_breaks_has_two_environments_three_networks_and_a_buffer(profiler: MemoryProfiler) -> None:
    trainer = trainer_of_fuel_breaks(run_config())
    trainer.run_generation()
    assert count_living() == {"environments": 2, "agents": 3, "replay_buffers": 1}


LEAKS: list[tuple[int, str, Callable[[ERLTrainer], Any]]] = [
    (0, "environments", lambda trainer: trainer.eval_env.twin()),
    (2, "environments", lambda trainer: copy.deepcopy(trainer.val_env)),
    (2, "agents", lambda trainer: trainer.champion.clone()),
    (0, "agents", lambda trainer: copy.copy(trainer.champion)),
    (0, "replay buffers", lambda trainer: pickle.loads(pickle.dumps(trainer.replay))),
]
"""Healthy generations before a leak, its owner, and what leaks."""


@pytest.mark.parametrize(("healthy", "owner", "copied"), LEAKS)
def test_leaked_owners_are_named_by_the_second_generation(
    profiler: MemoryProfiler, healthy: int, owner: str, copied: Callable[[ERLTrainer], Any]
) -> None:
    trainer, kept = trainer_of(profiler, population=4), []
    evaluate = trainer.evaluate_population

    def leaking() -> Any:
        kept.extend(copied(trainer) for _ in range(10))
        return evaluate()

    for _ in range(healthy):
        assert train(profiler, trainer).endswith("too early to tell")
    trainer.evaluate_population = leaking  # type: ignore[method-assign]
    train(profiler, trainer)
    assert train(profiler, trainer).endswith(f"; growing: {owner}")
    leak = profiler.leaks()[0]
    assert (leak.kind, leak.per_visit) == (owner, 10)
    trainer.evaluate_population = evaluate  # type: ignore[method-assign]
    assert "growing" not in train(profiler, trainer)


@pytest.fixture
def resident_mb(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Replace the process's memory by the values of this list, MiB."""
    values: list[float] = []

    def measure(process: psutil.Process) -> tuple[int, int, int]:
        size = int(values.pop(0) * MB)
        return size, size, size

    monkeypatch.setattr(memory_profiler, "_process_memory", measure)
    return values


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
    assert f"({sizes[-1] - sizes[0]:+,.0f} MB since the baseline, " in lines[-1]


@pytest.mark.parametrize("leak_mb", [5, 20, 100])
@pytest.mark.parametrize("base", [HEALTHY_MB, (600.0,) * 10])
def test_a_leak_of_5_mb_and_more_is_no_healthy_run(
    profiler: MemoryProfiler, resident_mb: list[float], base: tuple[float, ...], leak_mb: float
) -> None:
    lines = lines_of(profiler, resident_mb, [size + leak_mb * i for i, size in enumerate(base)])
    assert all(line.endswith("; growing: nothing named yet") for line in lines[6:]), lines


@pytest.mark.parametrize("leak_mb", [5, 20, 100])
def test_a_leak_is_found_in_noise_and_noise_alone_is_not(leak_mb: float) -> None:
    noise = np.random.default_rng(0).normal(0, 2, (1000, 10))
    assert not any(is_growing((600 + own).tolist()) for own in noise)
    assert not any(is_growing((600 + own + 3 * np.arange(10)).tolist()) for own in noise)
    found = [is_growing((600 + own + leak_mb * np.arange(10)).tolist()) for own in noise]
    assert np.mean(found) > 0.95


def test_real_memory_that_grows_is_named(profiler: MemoryProfiler) -> None:
    kept: list[Any] = []
    release_free_memory()
    profiler.log_memory("baseline")
    for _ in range(7):
        kept.append(np.ones(20 * MB // 8))
        profiler.log_memory("evolve", census=True)
        profiler.log_memory("generation")
    assert profiler.summary_line().endswith("; growing: arrays")
    assert "; GPU" not in profiler.summary_line()


def test_small_growth_of_histories_is_no_leak(profiler: MemoryProfiler, resident_mb: list[float]) -> None:
    """A bounded history of losses that fills adds thousands of entries a generation."""
    kept: list[dict[str, float]] = []
    resident_mb += [600.0] * 17
    profiler.log_memory("baseline")
    for generation in range(8):
        kept.extend({"loss": float(i) + generation} for i in range(1000))
        profiler.log_memory("evolve", census=True)
        profiler.log_memory("generation")
    assert [leak.kind for leak in profiler.find_leaks("evolve")] == ["python objects of type dict"]
    assert profiler.leaks() == [] and profiler.summary_line().endswith("; steady")


def test_the_line_tells_the_memory_of_a_gpu(profiler: MemoryProfiler, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter([100, 100, 200, 300, 400, 500, 600, 700, 800])
    monkeypatch.setattr(memory_profiler, "gpu_memory", lambda: (next(sizes) * MB, 1024 * MB))
    profiler.log_memory("baseline")
    for _ in range(8):
        profiler.log_memory("generation")
    line = profiler.summary_line()
    assert "; GPU 800 MB allocated (+700 MB), 1,024 MB reserved; " in line
    assert line.endswith("; growing: nothing named yet")


@pytest.fixture
def unset_logging() -> Iterator[None]:
    """Leave logging as in a program that never set it up."""
    package = logging.getLogger("utils")
    level = package.level
    package.setLevel(logging.NOTSET)
    yield
    package.setLevel(level)


@pytest.mark.usefixtures("unset_logging")
def test_what_a_person_calls_by_hand_is_printed(
    profiler: MemoryProfiler, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "utils")
    log_memory("before", show_objects=True)
    kept = [np.ones(12 * MB // 8), [{"a": [0]} for _ in range(100)]]
    log_memory("after", show_objects=True)
    shown = capsys.readouterr().out
    for text in ("memory [before] rss_mb", "lists", "dicts", "environments 0", "largest objects", "1572864"):
        assert text in shown, text
    get_profiler().print_memory_growth(baseline_label="before")
    by_label = capsys.readouterr().out
    print_memory_growth()
    assert capsys.readouterr().out == by_label
    lists, dicts = (int(row(by_label, name)[3].replace(",", "")) for name in ("lists", "dicts"))
    assert lists >= 101 and dicts >= 100 and len(kept) == 2
    assert float(row(by_label, "array_bytes")[3].replace(",", "")) >= 12 * MB
    get_profiler().print_generation_trend()
    table = capsys.readouterr().out
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["before", "after"]
    get_profiler().print_large_objects(min_mb=10)
    assert "1572864" in capsys.readouterr().out
    print_memory_summary()
    assert "memory growth since 'before'" in capsys.readouterr().out
    with pytest.raises(ValueError, match="labels so far: before, after"):
        print_memory_growth("none such")


def row(text: str, name: str) -> list[str]:
    """The cells of a table's row."""
    return next(line.split() for line in text.splitlines() if line.startswith(name))


def test_by_hand_in_a_run_goes_to_its_log(
    profiler: MemoryProfiler, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "utils")
    log_memory("here")
    assert "memory [here]" in caplog.text and capsys.readouterr().out == ""


def test_a_trace_names_the_line_that_allocates(profiler: MemoryProfiler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "utils")
    try:
        log_memory("start", show_objects=False, trace=True)
        assert "tracemalloc records allocations from now on" in caplog.text
        kept = bytearray(3 * MB)
        log_memory("end", show_objects=False, trace=True)
    finally:
        tracemalloc.stop()
    largest = caplog.text.partition("growth by line of code")[2].splitlines()[1]
    assert "test_runs.py" in largest and "size=3072 KiB" in largest and len(kept) == 3 * MB


def test_the_phase_table_has_the_phases_of_a_generation(profiler: MemoryProfiler) -> None:
    trainer = trainer_of(profiler, population=4)
    for _ in range(2):
        train(profiler, trainer)
    phases = ["evaluate", "evolve", "train", "validate", "generation"]
    first = [line.split()[0] for line in profiler.phase_table().splitlines()[2:]]
    assert first == ["baseline", *phases, *phases]
    last = profiler.phase_table(after="generation").splitlines()
    assert [line.split()[0] for line in last[2:]] == phases
    assert all(line.split()[-3:] == ["2", "5", "1"] for line in last[2:])


class Cyclic(Thing):
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        super().__init__(self)


def test_garbage_is_collected_after_each_phase_and_old_garbage_once_a_generation(
    profiler: MemoryProfiler, caplog: pytest.LogCaptureFixture
) -> None:
    log = GenerationLog(1, torch.device("cpu"), profiler)
    log.begin(1)
    old = Cyclic()
    gc.collect()
    gone = weakref.ref(old)
    del old
    with caplog.at_level(logging.DEBUG):
        for phase, lives in (("evaluate", True), ("train", False)):
            with log.phase(phase):
                young = weakref.ref(Cyclic())
            assert young() is None and (gone() is not None) == lives
            assert re.search(rf"clean-up after {phase}: .* s, [1-9]\d* objects, .* MB", caplog.text)
    assert log.seconds[-1]["clean_up"] > 0
