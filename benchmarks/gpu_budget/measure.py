"""Measures on a device what `benchmarks.gpu_budget.goals` predicts of it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu_budget.generation import FULL
from benchmarks.gpu_budget.goals import GENERATIONS, WIDE
from benchmarks.speed.harness import MemoryGauge, random_market, seconds_of, synchronize
from benchmarks.speed.updates import Drawn, Size, draw, stacked_generation
from training.commands.evaluate import judge_training
from training.run.trainer import build_trainer


def drawn_on(size: Size, device: torch.device, *, has_graphs: bool) -> Drawn:
    """Draw a population, whose updates become a CUDA graph or stay eager."""
    if has_graphs:
        return draw(size, device)
    with mock.patch.object(torch.backends.cuda, "is_built", lambda: False):
        return draw(size, device)


def update_milliseconds(size: Size, device: torch.device, *, has_graphs: bool, repeats: int = 5) -> float:
    """Measure an update of all agents: the median over generations, the first of which captures."""
    drawn = drawn_on(size, device, has_graphs=has_graphs)
    taken = []
    for _ in range(repeats + 1):
        drawn.begin()
        work = seconds_of(lambda: stacked_generation(drawn), device, repeats=1, warm_up=0)
        taken.append(1e3 * work / size.updates)
    return sorted(taken[1:])[repeats // 2]


def first_difference(size: Size, device: torch.device) -> str:
    """Update with a graph and without, from the same start; name the first tensor that differs, or nothing."""
    found: list[dict[str, Tensor]] = []
    for has_graphs in (True, False):
        drawn = drawn_on(size, device, has_graphs=has_graphs)
        for _ in range(3):
            drawn.begin()
            stacked_generation(drawn)
        tensors = {**drawn.learners.networks.tensors, **drawn.updates.losses}
        found.append({name: part.cpu() for name, part in tensors.items()})
    ours, theirs = found
    return next((name for name, part in theirs.items() if not torch.equal(ours[name], part)), "")


def run_seconds(device: torch.device, generations: int = GENERATIONS) -> tuple[float, float]:
    """Measure a run of wide networks at full scale: seconds of its generations, and of judging its champion."""
    learning = replace(FULL.config.learning, hidden=WIDE)
    config = replace(FULL.config, learning=learning, generations=generations)
    market = random_market(config, FULL.days, FULL.columns, FULL.investable)
    trainer = build_trainer(config, market, device)
    started = time.perf_counter()
    for _ in trainer.run(generations):
        pass
    synchronize(device)
    trained = time.perf_counter() - started
    with tempfile.TemporaryDirectory() as folder:
        judge_training(trainer, config, Path(folder) / "run", None)
    synchronize(device)
    return trained, time.perf_counter() - started - trained


def wide_generation(device: torch.device, agents: int, *, is_in_one: bool = False) -> tuple[float, float]:
    """Measure the third generation of wide networks at full scale: seconds, and the peak memory in GB.

    Args:
        is_in_one: the gradient is not accumulated over batches but is that of one large batch.
    """
    learning = replace(FULL.config.learning, hidden=WIDE)
    if is_in_one:
        rows = learning.batch_size * learning.gradient_accumulation
        learning = replace(learning, batch_size=rows, gradient_accumulation=1)
    evolution = replace(FULL.config.evolution, population_size=agents)
    config = replace(FULL.config, learning=learning, evolution=evolution)
    gauge = MemoryGauge(device)
    trainer = build_trainer(config, random_market(config, FULL.days, FULL.columns, FULL.investable), device)
    trainer.replay.size = trainer.replay.capacity
    taken = [seconds_of(trainer.run_generation, device, repeats=1, warm_up=0) for _ in range(3)]
    return taken[-1], gauge.peak_mb() * 2**20 / 1e9
