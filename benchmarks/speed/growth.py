"""Rows of `benchmarks.speed`: how time and memory of a generation grow as each dimension of the work doubles."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from benchmarks.speed.harness import MemoryGauge, Row, full_scale, random_market, seconds_of
from benchmarks.trainers import build_trainer, run_generation
from training.erl_trainer import ERLTrainer
from utils.config.trader import Config

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
        config = full_scale()
        return replace(
            config,
            split=replace(config.split, context_window_days=64),
            env=replace(config.env, trading_days=60),
            learning=replace(config.learning, replay_capacity=self.buffer),
            evolution=replace(config.evolution, population_size=self.population),
            evaluation=replace(
                config.evaluation, fitness_windows=self.windows, exploration_windows=self.windows, validation_windows=2
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


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through (log size, log value): 1 is proportional, 0 is flat.

    NaN where a value is not positive.
    """
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) if min(values) > 0 else math.nan


def measure_workload(work: Workload, device: torch.device) -> tuple[float, float, float]:
    """Prepare a random market and run generations until the buffer is full.

    Returns:
        Seconds to prepare and of a generation, the best of two (on a CPU those of the CPU, which other programs hardly
        change), and MiB that all of it took.
    """
    config, gauge = work.config(), MemoryGauge(device)
    raw = random_market(config, work.days, work.columns, work.investable)
    clock, built = time.process_time if device.type == "cpu" else time.perf_counter, list[ERLTrainer]()
    prepare = seconds_of(lambda: built.append(build_trainer(config, raw, device)), device, clock)
    (trainer,) = built
    # The first generation also pays for what is built once.
    while trainer.generation == 0 or trainer.replay_buffer.size < trainer.replay_buffer.capacity:
        run_generation(trainer)
    generation = min(seconds_of(partial(run_generation, trainer), device, clock) for _ in range(2))
    return prepare, generation, gauge.rise_mb()


def growth_rows(device: torch.device) -> list[Row]:
    """Return two rows for each dimension, time and memory, with their exponents."""
    base, rows = Workload(), list[Row]()
    measure_workload(base, device)  # what is loaded or built once in a process is no part of the growth
    for dimension, counted in DIMENSIONS.items():
        sizes = [getattr(base, dimension) * 2**step for step in range(DOUBLINGS + 1)]
        points = [measure_workload(replace(base, **{dimension: size}), device) for size in sizes]
        # With days grows what reads them once, too: the preparation of the market.
        seconds = [prepare * (dimension == "days") + generation for prepare, generation, _ in points]
        what = "prepare the market and one generation" if dimension == "days" else "one generation"
        rows.append(_row(f"{counted}: {what}", sizes, seconds, "s"))
        rows.append(_row(f"{counted}: memory", sizes, [memory for *_, memory in points], "MiB"))
    return rows


def _row(name: str, sizes: Sequence[int], values: Sequence[float], unit: str) -> Row:
    steps = ", ".join(f"{size}: {value:.3g}" for size, value in zip(sizes, values, strict=True))
    return Row(name, values[-1], unit, f"exponent {exponent(sizes, values):.2f}; {steps}")
