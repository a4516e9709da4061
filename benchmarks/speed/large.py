"""Memory and time of a large market: `python -m benchmarks.speed.large [--stocks N] [--days D] [--generations G]`.

The market is drawn at random: stocks are listed and delisted on days of their own, all of them may be bought. One
process prepares it, trains with the defaults of the full profile and judges the champion as a run does; the row says
the peak memory, and the processor's seconds by phase. Nothing is written but the row.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.speed.harness import MemoryGauge, listed_market
from benchmarks.speed.main_job import machine
from training.commands.evaluate import judge_training
from training.run.trainer import build_trainer
from utils.config.trader import profile_config
from utils.memory.guard import keep_freed_memory

logger = logging.getLogger("benchmarks.speed.large")


class Phases:
    """Seconds of the wall clock, of the processor, and the largest resident memory, MiB, by phase."""

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}
        self.peak: dict[str, float] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Measure what runs in the block, added to what ran under the name before."""
        gauge, wall, cpu = MemoryGauge(), time.perf_counter(), time.process_time()
        yield
        self.wall[name] = self.wall.get(name, 0.0) + time.perf_counter() - wall
        self.cpu[name] = self.cpu.get(name, 0.0) + time.process_time() - cpu
        self.peak[name] = max(self.peak.get(name, 0.0), gauge.peak_mb())
        logger.info("%-9s %s", name, self.line(name))

    def line(self, name: str) -> str:
        """Return the figures of a phase."""
        return f"{self.wall[name]:8.1f} s, {self.cpu[name]:8.1f} CPU s, at most {self.peak[name]:6,.0f} MiB"


def measure(stocks: int, days: int, generations: int) -> Phases:
    """Prepare a market, train and judge."""
    phases = Phases()
    config = replace(profile_config("full"), generations=generations, census_every=0, device="cpu")
    keep_freed_memory()
    with phases.of("market"):
        market = listed_market(config, days, stocks)
    with phases.of("inputs"):
        trainer = build_trainer(config, market, torch.device("cpu"))
    for _ in range(generations):
        with phases.of("train"):
            record = trainer.run_generation()
        logger.info("          %s", {name: round(value, 1) for name, value in record["seconds"].items()})
    trainer.end_training()
    with phases.of("judge"), tempfile.TemporaryDirectory() as folder:
        judge_training(trainer, config, Path(folder), None)
    return phases


def main() -> None:
    """Measure, print the row, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stocks", type=int, default=5000)
    parser.add_argument("--days", type=int, default=6300)
    parser.add_argument("--generations", type=int, default=25)
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logger.setLevel(logging.INFO)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    phases = measure(arguments.stocks, arguments.days, arguments.generations)
    peak = max(phases.peak.values())
    size = f"{arguments.stocks:,} stocks x {arguments.days:,} days, {arguments.generations} generations"
    seconds = ", ".join(f"{name} {cpu:,.0f}" for name, cpu in phases.cpu.items())
    print(f"{size}: peak {peak:,.0f} MiB, {sum(phases.wall.values()):,.0f} s; CPU seconds {seconds}; {machine()}")
    if arguments.json:
        figures = {"size": size, "machine": machine(), "peak_rss_mb": peak, **vars(phases)}
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
