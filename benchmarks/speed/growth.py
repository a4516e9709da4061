"""Rows of `benchmarks.speed`: how time and memory of a generation grow as each dimension of the work doubles."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.speed.harness import MemoryGauge, Row, random_market, synchronize
from training.run.trainer import build_trainer
from utils.config.trader import Config, profile_config

logger = logging.getLogger(__name__)
GROUP = "growth"
DOUBLINGS = 3


@dataclass(frozen=True)
class Workload:
    """The dimensions of a generation, at their smallest; one at a time is doubled."""

    days: int = 1000
    columns: int = 128
    population: int = 4
    windows: int = 2
    """Training windows of each agent, as many to explore as to be judged on."""
    buffer: int = 512
    """Transitions; small enough that the first generations fill even the largest."""
    investable: int = 16

    def config(self) -> Config:
        """Return settings of this size."""
        config = profile_config("full")
        return replace(
            config,
            census_every=0,
            split=replace(config.split, context_window_days=64),
            env=replace(config.env, trading_days=60),
            learning=replace(config.learning, replay_capacity=self.buffer),
            evolution=replace(config.evolution, population_size=self.population),
            evaluation=replace(
                config.evaluation,
                fitness_windows=self.windows,
                exploration_windows=self.windows,
                validation_windows=2,
            ),
        )


DIMENSIONS = {
    "days": "days",
    "columns": "columns",
    "investable": "investable stocks",
    "population": "agents",
    "windows": "lanes of an agent",
    "buffer": "transitions in the buffer",
}
"""The dimensions and what each counts."""


@dataclass(frozen=True)
class Measured:
    """One point: seconds to prepare the market, and of a generation with a full buffer; memory that all of it took.

    On a CPU they are CPU seconds, which other programs hardly change.
    """

    prepare_seconds: float
    generation_seconds: float
    memory_mb: float


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the slope of the least-squares line through (log size, log value): 1 is proportional, 0 is flat.

    None where a value is not positive.
    """
    if min(values) <= 0:
        return None
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure_workload(work: Workload, device: torch.device) -> Measured:
    """Prepare a random market and run generations until the buffer is full: then the best of two."""
    config, gauge = work.config(), MemoryGauge(device)
    raw = random_market(config, work.days, work.columns, work.investable)
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def seconds_of(step: Callable[[], object]) -> float:
        started = clock()
        step()
        synchronize(device)
        return clock() - started

    started = clock()
    trainer = build_trainer(config, raw, device)
    synchronize(device)
    prepare = clock() - started
    # The first generation also pays for what is built once.
    trainer.run_generation()
    while trainer.replay.size < trainer.replay.capacity:
        trainer.run_generation()
    seconds = [seconds_of(trainer.run_generation) for _ in range(2)]
    return Measured(prepare, min(seconds), gauge.rise_mb())


def time_of(dimension: str) -> Callable[[Measured], float]:
    """Return the time that grows: with days also that of preparing the market, which reads them once."""
    if dimension == "days":
        return lambda point: point.prepare_seconds + point.generation_seconds
    return lambda point: point.generation_seconds


def growth_rows(device: torch.device, base: Workload | None = None) -> list[Row]:
    """Return two rows for each dimension, time and memory, with their exponents."""
    base, rows = base or Workload(), list[Row]()
    measure_workload(base, device)  # what is loaded or built once in a process is no part of the growth
    for dimension in DIMENSIONS:
        sizes = [getattr(base, dimension) * 2**step for step in range(DOUBLINGS + 1)]
        points = [measure_workload(replace(base, **{dimension: size}), device) for size in sizes]
        seconds = [time_of(dimension)(point) for point in points]
        memory = [point.memory_mb for point in points]
        what = "prepare the market and one generation" if dimension == "days" else "one generation"
        rows.append(_row(f"{DIMENSIONS[dimension]}: {what}", sizes, seconds, "s"))
        rows.append(_row(f"{DIMENSIONS[dimension]}: memory", sizes, memory, "MiB"))
        logger.info("growth with %s: %s; %s", DIMENSIONS[dimension], rows[-2].note, rows[-1].note)
    return rows


def _row(name: str, sizes: Sequence[int], values: Sequence[float], unit: str) -> Row:
    steps = ", ".join(f"{size}: {value:.3g}" for size, value in zip(sizes, values, strict=True))
    slope = exponent(sizes, values)
    fitted = "none" if slope is None or not math.isfinite(slope) else f"{slope:.2f}"
    return Row(
        GROUP, name, values[-1], unit, values[-1] / values[0], "largest / smallest", f"exponent {fitted}; {steps}"
    )
