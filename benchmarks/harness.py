"""Shared parts of benchmarks: random markets of a stated size, a clock, a memory gauge, the machine, a measured run."""

import gc
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.features.nine import NUM_FEATURES, PRICES, indicators, normalization_stats
from data.market import Market
from data.splits import make_splits
from utils.config.trader import Config, profile_config
from utils.memory_guard import MIB, peak_rss_mb, release_free_memory

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
FULL_DAYS, FULL_COLUMNS, FULL_INVESTABLE = 3781, 669, 108
_MISSING_SHARE = 0.01
_PEAK_RESET = Path("/proc/self/clear_refs")


def random_market(config: Config, days: int, columns: int, investable: int) -> Market:
    """Draw a market of independent random walks with real indicators and one bar in a hundred missing.

    `investable` columns, evenly spaced, may be bought.
    """
    rng = np.random.default_rng(0)
    has_bar = rng.random((columns, days)) >= _MISSING_SHARE
    data = np.full((days, columns, NUM_FEATURES), np.nan, dtype=np.float32)
    for column in range(columns):
        traded = np.flatnonzero(has_bar[column])
        log_close = np.log(50.0) + np.cumsum(rng.normal(0.0003, 0.02, len(traded)))
        close = np.exp(log_close)
        open_ = close * np.exp(rng.normal(0.0, 0.01, len(traded)))
        high = np.maximum(open_, close) * (1 + 0.01 * rng.random(len(traded)))
        low = np.minimum(open_, close) * (1 - 0.01 * rng.random(len(traded)))
        data[traded, column, : len(PRICES)] = np.stack((open_, close, high, low), axis=1)
        data[traded, column, len(PRICES) :] = indicators(close)
    splits = make_splits(days, config.split, config.env)
    return Market(
        data_array=data,
        dates=np.busday_offset(np.datetime64("2000-01-03"), np.arange(days)),
        tickers=[f"R{column:04d}" for column in range(columns)],
        investable_columns=np.linspace(0, columns - 1, investable).round().astype(np.int64),
        splits=splits,
        stats=normalization_stats(data, splits.train.last),
        input_clip=config.split.input_clip,
    )


def full_scale() -> Config:
    """Return the `full` profile's settings, without counts of live objects, which are no part of the work."""
    return replace(profile_config("full"), memory_report="off")


def synchronize(device: torch.device) -> None:
    """Wait for all work queued on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Return the seconds of `work`, the device's queue empty before and after."""
    synchronize(device)
    started = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - started


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use `count` CPU threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Let a logger pass only records of that level or above."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


class MemoryGauge:
    """Largest memory since it was made, MiB: resident on the CPU (of the whole process), allocated on a CUDA device."""

    def __init__(self, device: torch.device = CPU) -> None:
        gc.collect()
        release_free_memory()
        self.device = device
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        elif _PEAK_RESET.exists():
            _PEAK_RESET.write_text("5")  # proc(5): resets the peak resident set size

    def peak_mb(self) -> float:
        """Return the peak so far; where the system cannot forget an older peak, that of the process's whole life."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / MIB
        return peak_rss_mb()


def machine() -> str:
    """Return processor, cores, GPU and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor}, {os.cpu_count()} cores, {gpu}; Python {platform.python_version()}, torch {torch.__version__}"


def measure_run(*flags: str) -> dict[str, Any]:
    """Run main.py in a separate folder; return its summary, with the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "main.py"), "--runs-dir", folder, "--run", "measured", *flags]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True)
        seconds = time.perf_counter() - started
        summary = json.loads((Path(folder) / "measured" / "summary.json").read_text())
    return {**summary, "wall_seconds": seconds}
