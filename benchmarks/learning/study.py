"""A study: many independent jobs, each result kept on disk as soon as it is there, so that a stopped study goes on."""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks.speed.harness import log_level
from training.commands.table import COMMANDS
from utils.config.cli import parse_command
from utils.config.trader import Config

Record = dict[str, Any]
_CONFIDENCE = 0.95


def add_study_flags(parser: argparse.ArgumentParser, count: str, seeds: int) -> None:
    """Add the flags that all studies on markets share; `count` is the flag for the number of seeds."""
    parser.add_argument(count, type=int, default=seeds, dest="seeds", help="each with a market path of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file of results, a line each; what it holds is not done again")
    parser.add_argument("--workers", type=int, default=1, help="processes")


def add_training_flags(parser: argparse.ArgumentParser, generations: int) -> None:
    """Add the flags of studies that train populations."""
    parser.add_argument("--minutes", type=float, help="CPU minutes of each training, instead of --generations")
    parser.add_argument("--generations", type=int, help=f"of each training (default: {generations})")
    parser.set_defaults(default_generations=generations)


def seeds_of(arguments: argparse.Namespace) -> range:
    """Return the seeds that the flags of a study ask for."""
    return range(arguments.first_seed, arguments.first_seed + arguments.seeds)


def study_config(words: Sequence[str]) -> Config:
    """Parse settings: the quick profile on the built-in market, overridden by the flags of main.py in `words`.

    Raises ConfigError for a flag that main.py does not know.
    """
    command = parse_command(["--profile", "quick", *words], COMMANDS)
    config: Config = command.arguments.settings
    return config if "data" in command.explicit else replace(config, data=None)


@dataclass(frozen=True)
class Job:
    """A task that returns plain numbers, and the key that names it in the file of results."""

    key: Mapping[str, Any]
    task: Callable[[], Record]


def run_study(jobs: Sequence[Job], path: Path | None, workers: int = 1) -> Generator[Record, None, None]:
    """Do the jobs whose results `path` does not hold yet; yield all results, those on disk first.

    A result is its key and what the task returned; it is appended to `path` (JSON lines) as soon as it is there. A last
    line that a stop cut short counts as not done. More than one worker takes a process each; tasks must then pickle.
    """
    known = read_results(path)
    todo = []
    for job in jobs:
        found = next((record for record in known if job.key.items() <= record.items()), None)
        if found is None:
            todo.append(job)
        else:
            yield found
    for job, result in _results(todo, workers):
        record = {**job.key, **result}
        if path is not None:
            append_result(path, record)
        yield record


def _results(jobs: Sequence[Job], workers: int) -> Iterator[tuple[Job, Record]]:
    if workers == 1:
        for job in jobs:
            yield job, _alone(job.task)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_end_with_parent) as pool:
        running = {pool.submit(_alone, job.task): job for job in jobs}
        for future in as_completed(running):
            yield running[future], future.result()


def _end_with_parent() -> None:
    """End this worker when the process that started it is gone: it would wait for work for ever."""

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _alone(task: Callable[[], Record]) -> Record:
    """Do a task on one thread, for others may run beside it, and without a log line for each market."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with log_level("data", logging.WARNING):
            return task()
    finally:
        torch.set_num_threads(threads)


def read_results(path: Path | None) -> list[Record]:
    """Read the whole lines of a file of results; none where there is no file."""
    if path is None or not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def append_result(path: Path, record: Record) -> None:
    """Add one line and sync it to the disk; half a line that a crash left is cut off first."""
    with path.open("ab+") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and half the width of its 95% interval by Student's t; NaN where there is one value."""
    mean = float(np.mean(values)) if values else math.nan
    return mean, float(stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)) * mean_error(values)


def mean_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; NaN for fewer than two values."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def rate_interval(count: int, of: int) -> tuple[float, float]:
    """Return the 95% interval of a chance that came true in `count` of so many runs (Clopper and Pearson 1934)."""
    found = stats.binomtest(count, of).proportion_ci(_CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


def mean_p_value(values: Sequence[float]) -> float:
    """Return the two-sided p-value of a mean other than 0 by Student's t; NaN for fewer than two values."""
    mean, error = float(np.mean(values)) if values else math.nan, mean_error(values)
    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stats.t.sf(abs(mean) / error, len(values) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values that allow for the number of tests, whatever their dependence (Holm 1979)."""
    order = np.argsort(p_values, kind="stable")
    factors = len(order) - np.arange(len(order))
    corrected = np.empty(len(order))
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(factors * np.asarray(p_values)[order]))
    return corrected.tolist()


def plus_minus(mean: float, half: float, form: str = ".2f") -> str:
    """Format a mean with half the width of its interval, if that is known."""
    return f"{mean:{form}}" + ("" if math.isnan(half) else f" +- {half:.2f}")
