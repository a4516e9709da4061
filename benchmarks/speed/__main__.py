"""Speed of the system: `python -m benchmarks.speed [--scale quick|full] [--json FILE]`.

One run, one table: every figure stands beside its reference, measured in the same run on the same machine. `quick`
takes a few minutes on 2 cores that are otherwise idle: where other work takes one of two cores, tensor operations on
two threads wait for it and may be ten times slower than on one (then give --threads 1). Prices are random walks; with
--data the full-scale rows use that file. Where a CUDA device is present its rows are measured too.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.environment import environment_rows
from benchmarks.speed.evaluation import evaluation_rows, measure_evaluation
from benchmarks.speed.generation import generation_rows, measure_generation
from benchmarks.speed.growth import DIMENSIONS, growth_rows
from benchmarks.speed.harness import (
    CPU,
    FULL_COLUMNS,
    FULL_DAYS,
    FULL_INVESTABLE,
    Row,
    full_scale,
    random_market,
)
from benchmarks.speed.main_job import machine
from data.loader import StockDataLoader
from data.market import Market, build_market
from utils.config.trader import Config

logger = logging.getLogger("benchmarks.speed")
SECTIONS = ("generation", "evaluation", "environment", "growth")
PACKAGES = ("torch", "numpy", "gymnasium")
_NO_DEVICE = "no CUDA device: its rows are open"


@dataclass(frozen=True)
class Scale:
    """Amounts of what is measured."""

    generations: int
    lanes: tuple[int, ...]
    lane_seconds: float


SCALES = {
    "quick": Scale(1, (1, 16, 256, 4096), 0.5),
    "full": Scale(2, (1, 4, 16, 64, 256, 1024, 4096), 2.0),
}


class Report:
    """Rows and figures of one device, as far as they were measured."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.figures: dict[str, Any] = {
            "population_evaluation_ratio": None,
            "lane_steps_per_second": None,
            "generation_seconds": None,
            "growth_exponents": dict.fromkeys(DIMENSIONS),
            "peak_rss_mb": None,
        }


@dataclass(frozen=True)
class Setup:
    """Settings, prices and device of a measurement."""

    scale: Scale
    config: Config
    market: Market
    device: torch.device


def measure(setup: Setup, sections: tuple[str, ...]) -> Report:
    """Run the named sections, the one whose peak memory counts first."""
    report = Report()
    for name in sections:
        started = time.perf_counter()
        _SECTIONS[name](setup, report)
        logger.info("%s on %s: %.0f s", name, setup.device, time.perf_counter() - started)
    return report


def _measure_generation(setup: Setup, report: Report) -> None:
    figures = measure_generation(setup.config, setup.market, setup.device, setup.scale.generations)
    report.rows += generation_rows("16 agents", figures)
    report.figures["generation_seconds"] = figures.seconds
    report.figures["peak_rss_mb"] = figures.peak_mb


def _measure_evaluation(setup: Setup, report: Report) -> None:
    figures = measure_evaluation(setup.config, setup.market, setup.device)
    report.rows += evaluation_rows("full scale", figures)
    report.figures["population_evaluation_ratio"] = figures.ratio


def _measure_environment(setup: Setup, report: Report) -> None:
    rows, headline = environment_rows(setup.config, setup.device, setup.scale.lanes, setup.scale.lane_seconds)
    report.rows += rows
    report.figures["lane_steps_per_second"] = headline


def _measure_growth(setup: Setup, report: Report) -> None:
    rows, exponents = growth_rows(setup.device)
    report.rows += rows
    report.figures["growth_exponents"] = exponents


_SECTIONS: dict[str, Callable[[Setup, Report], None]] = {
    "generation": _measure_generation,
    "evaluation": _measure_evaluation,
    "environment": _measure_environment,
    "growth": _measure_growth,
}


def full_market(config: Config, data: Path | None, investable: Path | None) -> Market:
    """Load the file's prices, or draw as many random ones."""
    if data is None:
        return random_market(config, FULL_DAYS, FULL_COLUMNS, FULL_INVESTABLE)
    loader = StockDataLoader(data, config=config.split, investable=investable)
    loader.load_and_prepare()
    return build_market(loader, config.split, config.env)


def versions() -> dict[str, str | None]:
    """Return the versions of the packages that decide the figures; None where one is missing."""
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def run(scale: str, sections: tuple[str, ...], data: Path | None, investable: Path | None) -> dict[str, Any]:
    """Measure on the CPU and, where there is one, on the CUDA device; return all that the JSON file holds."""
    config = full_scale()
    market = full_market(config, data, investable)
    on_cpu = measure(Setup(SCALES[scale], config, market, CPU), sections)
    rows = [{"device": "cpu", **asdict(row)} for row in on_cpu.rows]
    device: dict[str, Any] = {"name": None, "note": _NO_DEVICE}
    if torch.cuda.is_available():
        on_cuda = measure(Setup(SCALES[scale], config, market, torch.device("cuda")), sections)
        rows += [{"device": "cuda", **asdict(row)} for row in on_cuda.rows]
        device = {"name": torch.cuda.get_device_name(), "note": "", **on_cuda.figures}
        device["peak_gpu_mb"] = device.pop("peak_rss_mb")
    return {
        **on_cpu.figures,
        "device": device,
        "machine": machine().replace(", no GPU", ""),  # the key `device` tells
        "versions": versions(),
        "threads": torch.get_num_threads(),
        "rows": rows,
    }


def table(results: dict[str, Any]) -> str:
    """Format the rows by group, each with its ratio and what the ratio is."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    packages = ", ".join(f"{name} {found or 'missing'}" for name, found in results["versions"].items())
    device = results["device"]
    lines = [
        f"machine: {results['machine']}",
        f"versions: {packages}",
        f"CPU threads: {results['threads']} unless the row says otherwise; load average at the end {load:.1f}",
        f"CUDA device: {device['name'] or device['note']}",
    ]
    group = ""
    for row in results["rows"]:
        if row["group"] != group:
            group = row["group"]
            lines += ["", group]
        lines.append(_line(row))
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    value = "not measured" if row["value"] is None else f"{row['value']:,.4g} {row['unit']}"
    if row["value"] is not None and row["value"] >= 1000:
        value = f"{row['value']:,.0f} {row['unit']}"
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}x"
    name = row["name"] if row["device"] == "cpu" else f"[{row['device']}] {row['name']}"
    reference = f"({row['reference']})" if row["reference"] and ratio else ""
    return f"  {name:<72} {value:>24} {ratio:>8} {reference} {row['note']}".rstrip()


def main() -> None:
    """Measure, print the table, write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="quick")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--data", type=Path, help="parquet file of daily bars, for the rows at full scale")
    parser.add_argument("--investable", type=Path, help="tickers that may be bought, one a line")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0 leaves torch's choice")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, help="leave the other rows open")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    logging.getLogger("benchmarks").setLevel(logging.INFO)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    started = time.perf_counter()
    results = run(arguments.scale, tuple(arguments.only), arguments.data, arguments.investable)
    print(table(results))
    print(f"\nall of it: {time.perf_counter() - started:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
