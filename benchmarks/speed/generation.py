"""Rows of `benchmarks.speed`: one whole generation at full scale, by phase, with its peak memory."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from benchmarks.speed.harness import MemoryGauge, Row, synchronize
from data.market import Market
from training.run.trainer import build_trainer
from utils.config.trader import Config

GROUP = "generation at full scale"
MEASURED_PHASES = ("evaluate", "evolve", "train", "validate")


@dataclass(frozen=True)
class GenerationFigures:
    """The last generation that was run."""

    seconds: dict[str, float]
    """By phase, and their `total`."""
    peak_mb: float
    """Of the process since before the trainer was built (CPU), or allocated on the device."""
    build_seconds: float
    """Once a run: responses and inputs fitted, the results of all orders of the training days summed up."""


def measure_generation(config: Config, market: Market, device: torch.device, generations: int) -> GenerationFigures:
    """Build a trainer, which sums up the training days once, and run whole generations."""
    gauge = MemoryGauge(device)
    torch.manual_seed(config.seed)
    started = time.perf_counter()
    trainer = build_trainer(config, market, device)
    synchronize(device)
    build = time.perf_counter() - started
    for _ in range(generations):
        record = trainer.run_generation()
    seconds = {phase: record["seconds"][phase] for phase in MEASURED_PHASES}
    return GenerationFigures(seconds | {"total": sum(seconds.values())}, gauge.peak_mb(), build)


def generation_rows(name: str, figures: GenerationFigures) -> list[Row]:
    """Return a row a phase, with its share of the time, and one for memory."""
    total = figures.seconds["total"]
    rows = [
        Row(GROUP, f"{name}: {phase}", seconds, "s", seconds / total, "share of the generation")
        for phase, seconds in figures.seconds.items()
    ]
    return [
        *rows,
        Row(GROUP, f"{name}: the training days, once a run", figures.build_seconds, "s"),
        Row(GROUP, f"{name}: peak memory", figures.peak_mb, "MiB"),
    ]
