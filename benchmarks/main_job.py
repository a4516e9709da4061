"""Time and memory of the main job: `python -m benchmarks.main_job --data FILE [--investable FILE] [--json FILE]`.

Each row is a separate process. Without --data only the built-in market is measured. `--large DAYS STOCKS` takes a
file of random walks of this size in place of --data. Further flags are those of main.py, for the full profile.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.stats import theilslopes

from benchmarks.harness import ROOT, machine, measure_run

LOAD = """
import json, sys, time
from pathlib import Path
from data.loader import StockDataLoader
from utils.memory_guard import peak_rss_mb
started = time.perf_counter(), time.process_time()
loader = StockDataLoader(Path(sys.argv[1]))
loader.load_and_prepare()
seconds = {"seconds": time.perf_counter() - started[0], "cpu_seconds": time.process_time() - started[1]}
print(json.dumps({**seconds, "peak_rss_mb": peak_rss_mb()}))
"""
FLAT_FROM = 2
"""Generations after which memory must be flat."""


def write_random_walks(path: Path, days: int, stocks: int) -> None:
    """Write bars of random walks, of which two in five are listed late, and as many delisted early."""
    rng, dates = np.random.default_rng(0), np.busday_offset(np.datetime64("2000-01-03"), np.arange(days))
    names = ("open", "high", "low", "close")
    schema = pa.schema([("date", pa.date32()), ("ticker", pa.string()), *((name, pa.float64()) for name in names)])
    with pq.ParquetWriter(path, schema) as writer:
        for stock in range(stocks):
            first = rng.integers(days // 2) if rng.random() < 0.4 else 0
            last = rng.integers(days // 2, days) if rng.random() < 0.4 else days
            own = dates[first:last]
            close = 30 * np.exp(np.cumsum(0.02 * rng.standard_normal(len(own))))
            open_ = close * np.exp(0.01 * rng.standard_normal(len(own)))
            prices = (open_, np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99, close)
            columns = [own, np.full(len(own), f"T{stock:05d}"), *prices]
            writer.write_table(pa.table(columns, schema=schema))


def measure_load(data: Path) -> dict[str, Any]:
    """Measure seconds and peak memory of loading and preparing the file."""
    command = [sys.executable, "-c", LOAD, str(data.resolve())]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(done.stdout))


def rows_of_run(name: str, summary: dict[str, Any]) -> dict[str, str]:
    """Return the figures of a run by what they are."""
    phases = ("evaluate", "evolve", "train", "validate")
    seconds = " / ".join(f"{summary['seconds'][phase][-1]:.1f}" for phase in phases)
    memory = summary["uss_mb_per_generation"][FLAT_FROM:]
    growth = float(theilslopes(memory).slope) if len(memory) > 1 else math.nan
    return {
        f"{name}, {summary['generations']} generations, judged: seconds": f"{summary['wall_seconds']:.0f}",
        f"  {' / '.join(phases)} of the last: seconds": seconds,
        "  peak resident memory, MiB": f"{summary['peak_rss_mb']:.0f}",
        "  unique set size, growth a generation after the second, MiB": f"{growth:.3f}",
        "  bytes a transition": f"{summary['replay_bytes_per_transition']}",
        "  environments / replay buffers": f"{summary['environments']} / {summary['replay_buffers']}",
    }


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--large", type=int, nargs=2, metavar=("DAYS", "STOCKS"))
    arguments, flags = parser.parse_known_args(words)
    results, rows = dict[str, Any](), [("machine", machine())]
    with tempfile.TemporaryDirectory() as folder:
        data: Path | None = arguments.data
        if arguments.large:
            data = Path(folder) / "bars.parquet"
            write_random_walks(data, *arguments.large)
        else:
            results["quick"] = measure_run("--profile", "quick", "--device", "cpu", "--generations", "40")
            rows += rows_of_run("quick profile", results["quick"]).items()
        if data:
            results["load"] = load = measure_load(data)
            taken = " / ".join(f"{value:.1f}" for value in load.values())
            rows.append(("load and prepare: seconds / CPU seconds / peak MiB", taken))
            command = ["--data", str(data.resolve()), "--profile", "full", "--device", "cpu", *flags]
            results["full"] = measure_run(*command)
            rows += rows_of_run("full profile", results["full"]).items()
    for name, value in rows:
        print(f"{name:<72} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), **results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
