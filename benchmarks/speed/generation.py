"""Rows of `benchmarks.speed`: one whole generation at full scale, by phase, with its peak memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks.speed.harness import MemoryGauge, Row
from data.market import Market
from training.run.trainer import build_trainer
from utils.config.trader import Config

GROUP = "generation at full scale"
MEASURED_PHASES = ("evaluate", "train", "evolve", "validate")


@dataclass(frozen=True)
class GenerationFigures:
    """The last generation that was run."""

    seconds: dict[str, float]
    """By phase, and their `total`."""
    peak_mb: float
    """Of the process since before the trainer was built (CPU), or allocated on the device."""


def measure_generation(config: Config, market: Market, device: torch.device, generations: int) -> GenerationFigures:
    """Run whole generations; the buffer must hold enough after the first for training to happen in it."""
    gauge = MemoryGauge(device)
    torch.manual_seed(config.seed)
    trainer = build_trainer(config, market, device)
    for _ in range(generations):
        record = trainer.run_generation()
    assert record["learning"] is not None, "a generation without training is no measure of one"
    seconds = {phase: record["seconds"][phase] for phase in MEASURED_PHASES}
    return GenerationFigures(seconds | {"total": sum(seconds.values())}, gauge.peak_mb())


def generation_rows(name: str, figures: GenerationFigures) -> list[Row]:
    """Return a row a phase, with its share of the time, and one for memory."""
    total = figures.seconds["total"]
    rows = [
        Row(GROUP, f"{name}: {phase}", seconds, "s", seconds / total, "share of the generation")
        for phase, seconds in figures.seconds.items()
    ]
    return [*rows, Row(GROUP, f"{name}: peak memory", figures.peak_mb, "MiB")]
