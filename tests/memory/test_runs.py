"""Memory of a trainer: what lives is counted, a leak is named soon, and a healthy run is called steady."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.trainers import run_generation
from tests.memory.thing import Thing, row_of
from tests.tiny import learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.generation_log import GenerationLog
from utils.config.trader import EvolutionConfig
from utils.memory_census import count_living
from utils.memory_guard import MIB
from utils.memory_profiler import (
    OWNER_STEPS,
    MemoryProfiler,
    get_profiler,
    log_memory,
    print_memory_growth,
    print_memory_summary,
)

pytestmark = pytest.mark.usefixtures("small_heap")


def trainer_of(profiler: MemoryProfiler, population: int = 16) -> ERLTrainer:
    log = GenerationLog(20, torch.device("cpu"), profiler)
    trainer = tiny_trainer(learnable_market(), evolution=EvolutionConfig(population_size=population), log=log)
    profiler.log_memory("baseline")
    return trainer


def train(profiler: MemoryProfiler, trainer: ERLTrainer) -> str:
    memory, line = run_generation(trainer)["memory"], profiler.summary_line()
    assert line.startswith(f"RAM {memory['rss_mb'] / 1024:,.2f} GB "), "all reports read one snapshot"
    return line


def test_a_trainer_has_two_environments_its_agents_a_champion_and_a_buffer(profiler: MemoryProfiler) -> None:
    trainer = trainer_of(profiler)
    expected = {"environments": 2, "agents": 17, "replay_buffers": 1}
    for _ in range(2):
        assert "environments 2, agents 17, replay buffers 1; too early to tell" in train(profiler, trainer)
    agents = [snapshot.measures["agents"] for snapshot in profiler.snapshots]
    assert agents == [16.0, 16.0, 16.0, *[17.0] * 8]  # the first champion is built at the end of training
    for snapshot in profiler.snapshots:
        assert {label: snapshot.measures[label] for label in expected} == expected | {"agents": agents.pop(0)}
    del trainer
    gc.collect()
    assert count_living() == dict.fromkeys(expected, 0)


def test_leaked_owners_are_named_by_the_second_generation(profiler: MemoryProfiler) -> None:
    trainer, kept = trainer_of(profiler, population=4), list[Any]()
    leaks: dict[str, Callable[[], Any]] = {
        "environments": lambda: copy.deepcopy(trainer.val_env),
        "agents": lambda: copy.copy(trainer.champion),
        "replay buffers": lambda: pickle.loads(pickle.dumps(trainer.replay_buffer)),
    }
    for owner, made in leaks.items():
        for is_named in (False, True):
            kept += [made() for _ in range(10)]
            assert train(profiler, trainer).endswith(f"growing: {owner}") == is_named
        begun = trainer.generation - OWNER_STEPS
        since = f"Gen {begun}: After generation" if begun else "baseline"
        assert profiler.leaks()[owner].startswith(f"+10 a generation since [{since}], now ")
        assert "growing" not in train(profiler, trainer)


def test_what_a_person_calls_by_hand_is_printed(profiler: MemoryProfiler, capsys: pytest.CaptureFixture[str]) -> None:
    log_memory("before", show_objects=True)
    kept = [np.ones(12 * MIB // 8), [{"a": [0]} for _ in range(100)]]
    log_memory("after", show_objects=True)
    shown = capsys.readouterr().out
    for text in ("memory [before] RAM ", "lists", "dicts", "TradingEnvironment 0", "largest objects", "1572864"):
        assert text in shown, text
    get_profiler().print_memory_growth(baseline_label="before")
    by_label = capsys.readouterr().out
    print_memory_growth()
    assert capsys.readouterr().out == by_label
    lists, dicts = (int(row_of(name, by_label)[2].replace(",", "")) for name in ("lists", "dicts"))
    assert lists >= 101 and dicts >= 100 and row_of("arrays GB", by_label)[3] >= "0.012" and len(kept) == 2
    print_memory_summary()
    summary = capsys.readouterr().out
    assert [line.split()[0] for line in summary.splitlines()[3:5]] == ["before", "after"]
    assert "memory growth since 'before'" in summary
    with pytest.raises(ValueError, match="labels so far: before, after"):
        print_memory_growth("none such")


class Cyclic(Thing):
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        super().__init__(self)


def test_garbage_is_collected_after_each_phase_and_old_garbage_once_a_generation(profiler: MemoryProfiler) -> None:
    log = GenerationLog(1, torch.device("cpu"), profiler)
    log.begin(1)
    old = Cyclic()
    gc.collect()
    gone = weakref.ref(old)
    del old
    for phase, lives in (("evaluate", True), ("train", False)):
        with log.phase(phase):
            young = weakref.ref(Cyclic())
        assert young() is None and (gone() is not None) == lives
    assert log.seconds[-1]["clean_up"] > 0
