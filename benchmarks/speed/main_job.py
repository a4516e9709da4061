"""Time and memory of the main job: `python -m benchmarks.speed.main_job --data FILE [--investable FILE] [--json FILE]`.

Each row is a process of its own. Without --data only the rows of the built-in market are measured. With `--large DAYS
STOCKS` a file of random walks of this size is loaded, and nothing else is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.stats import theilslopes

ROOT = Path(__file__).resolve().parents[2]
LOAD = """
import json, sys, time
from pathlib import Path
from data.loader import StockDataLoader
from utils.memory.guard import peak_rss_mb
started = time.perf_counter(), time.process_time()
loader = StockDataLoader(Path(sys.argv[1]))
loader.load_and_prepare()
seconds = {"seconds": time.perf_counter() - started[0], "cpu_seconds": time.process_time() - started[1]}
print(json.dumps({**seconds, "peak_rss_mb": peak_rss_mb()}))
"""
FLAT_FROM = 2
"""Generations after which memory must be flat."""


def machine() -> str:
    """Return processor, cores, GPU and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return f"{processor}, {os.cpu_count()} cores, {gpu}; Python {platform.python_version()}, torch {torch.__version__}"


def measure_load(data: Path) -> dict[str, Any]:
    """Measure seconds and peak memory of loading and preparing the file."""
    command = [sys.executable, "-c", LOAD, str(data.resolve())]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def measure_large(days: int, stocks: int) -> dict[str, Any]:
    """Measure loading a made file, of whose stocks two in five are listed late, and as many delisted early."""
    rng, dates = np.random.default_rng(0), np.busday_offset(np.datetime64("2000-01-03"), np.arange(days))
    names = ("open", "high", "low", "close")
    schema = pa.schema([("date", pa.date32()), ("ticker", pa.string()), *((name, pa.float64()) for name in names)])
    with tempfile.TemporaryDirectory() as folder, pq.ParquetWriter(Path(folder) / "bars.parquet", schema) as writer:
        for stock in range(stocks):
            first = rng.integers(days // 2) if rng.random() < 0.4 else 0
            last = rng.integers(days // 2, days) if rng.random() < 0.4 else days
            own = dates[first:last]
            close = 30 * np.exp(np.cumsum(0.02 * rng.standard_normal(len(own))))
            open_ = close * np.exp(0.01 * rng.standard_normal(len(own)))
            prices = (open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close)
            columns = [own, np.full(len(own), f"T{stock:05d}"), *prices]
            writer.write_table(pa.table(columns, schema=schema))
        writer.close()
        return measure_load(Path(folder) / "bars.parquet")


def measure_run(*flags: str) -> dict[str, Any]:
    """Run main.py in a folder of its own; return its summary, with the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(ROOT / "main.py"), "--runs-dir", folder, "--run", "measured", *flags]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True)
        seconds = time.perf_counter() - started
        summary = json.loads((Path(folder) / "measured" / "summary.json").read_text())
    return {**summary, "wall_seconds": seconds}


def growth_mb(values: list[float]) -> float:
    """Return the Theil-Sen slope of memory a generation, MiB, after the first generations."""
    return float(theilslopes(values[FLAT_FROM:]).slope)


def full_scale(data: list[str]) -> dict[str, Any]:
    """Run the full profile on the CPU, judging included."""
    return measure_run(*data, "--profile", "full", "--device", "cpu")


def rows_of_data(data: Path, investable: Path | None) -> dict[str, Any]:
    """Measure everything that needs a data file."""
    flags = ["--data", str(data.resolve())] + (["--investable", str(investable.resolve())] if investable else [])
    return {"load": measure_load(data), "full": full_scale(flags)}


def table(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Format the figures as lines of text."""
    quick = results["quick"]
    lines = [
        ("machine", results["machine"]),
        ("quick profile, 40 generations: seconds", f"{quick['wall_seconds']:.0f}"),
        (
            "  unique set size, growth a generation after the second, MiB",
            f"{growth_mb(quick['uss_mb_per_generation']):.3f}",
        ),
    ]
    if "load" in results:
        load = results["load"]
        lines.append(("load and prepare: seconds / peak MiB", f"{load['seconds']:.1f} / {load['peak_rss_mb']:.0f}"))
        lines += _lines_of_full_scale(results["full"])
    return lines


def _lines_of_full_scale(summary: dict[str, Any]) -> list[tuple[str, str]]:
    kept = " / ".join(str(summary[name]) for name in ("environments", "replay_buffers"))
    return [
        ("full profile, 25 generations, judged: seconds", f"{summary['wall_seconds']:.0f}"),
        ("  evaluate / evolve / train / validate, second generation", _phases(summary, 1)),
        ("  peak resident memory, MiB", f"{summary['peak_rss_mb']:.0f}"),
        ("  bytes a transition", f"{summary['replay_bytes_per_transition']}"),
        ("  environments / replay buffers", kept),
    ]


def _phases(summary: dict[str, Any], generation: int) -> str:
    seconds = summary["seconds"]
    return " / ".join(f"{seconds[name][generation]:.1f} s" for name in ("evaluate", "evolve", "train", "validate"))


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--investable", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--large", type=int, nargs=2, metavar=("DAYS", "STOCKS"))
    arguments = parser.parse_args()
    if arguments.large:
        load = measure_large(*arguments.large)
        print(f"load and prepare: {load['cpu_seconds']:.1f} CPU s, {load['peak_rss_mb']:.0f} MiB at most")
        return
    results: dict[str, Any] = {
        "machine": machine(),
        "quick": measure_run("--profile", "quick", "--device", "cpu", "--generations", "40"),
    }
    if arguments.data:
        results |= rows_of_data(arguments.data, arguments.investable)
    for name, value in table(results):
        print(f"{name:<64} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
