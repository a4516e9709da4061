"""A study: many independent jobs, each result kept on disk as soon as it is there, so that a stopped study goes on."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.harness import log_level, threads
from training.commands.table import COMMANDS
from utils.config.cli import parse_command
from utils.config.settings import settings_hash
from utils.config.trader import Config
from utils.errors import as_program_error
from utils.jobs import Executor, Finished, InProcess, Job, open_executor, require_all
from utils.runs.console import setup_logging

Record = dict[str, Any]
_CONFIDENCE = 0.95
_LONGEST_NAME = 120


JOBS = "at once, each in a process; default: 1"


def add_study_flags(parser: argparse.ArgumentParser, count: str, seeds: int) -> None:
    """Add the flags that all studies on markets share; `count` is the flag for the number of seeds."""
    parser.add_argument(count, type=int, default=seeds, dest="seeds", help="each with a market path of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help=JOBS)
    parser.add_argument("--json", type=Path, help="file of results, a line each; what it holds is not done again")


@dataclass(frozen=True)
class Study:
    """A command line and its executor."""

    arguments: argparse.Namespace
    words: Sequence[str]
    """Flags that are settings of main.py."""
    executor: Executor

    @property
    def seeds(self) -> range:
        """Return the seeds that the flags ask for."""
        return range(self.arguments.first_seed, self.arguments.first_seed + self.arguments.seeds)

    def config(self, kind: str) -> Config:
        """Return the settings for a kind of market."""
        return study_config([*self.words, "--synthetic.kind", kind])

    def records(self, jobs: Sequence[Experiment]) -> list[Record]:
        """Do the jobs whose results are not known yet; return all results."""
        return list(run_study(jobs, self.arguments.json, self.executor))


@contextlib.contextmanager
def study_executor(jobs: int, results: Path | None) -> Iterator[Executor]:
    """Give the executor of this many jobs at once.

    Args:
        results: file beside which a folder takes what the jobs print in other processes, a file each.
    """
    with open_executor(jobs, logs=results and results.with_suffix(".jobs")) as executor:
        if not isinstance(executor, InProcess):
            setup_logging(results=False)
        yield executor


@contextlib.contextmanager
def ending(parser: argparse.ArgumentParser) -> Iterator[None]:
    """End the program with one line and its exit code where the block raises an error of its own."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if (known := as_program_error(error)) is None:
            raise
        print(f"{parser.prog}: {known}{'; what is done is kept' if known.is_resumable else ''}", file=sys.stderr)
        raise SystemExit(known.exit_code) from None


def add_training_flags(parser: argparse.ArgumentParser, generations: int) -> None:
    """Add the flags of studies that train populations."""
    parser.add_argument("--minutes", type=float, help="CPU minutes of each training, instead of --generations")
    parser.add_argument("--generations", type=int, help=f"of each training (default: {generations})")
    parser.set_defaults(default_generations=generations)


def study_config(words: Sequence[str]) -> Config:
    """Parse settings: the quick profile on the built-in market, overridden by the flags of main.py in `words`.

    Raises ConfigError for a flag that main.py does not know.
    """
    command = parse_command(["--profile", "quick", *words], COMMANDS)
    config: Config = command.arguments.settings
    return config if "data" in command.explicit else replace(config, data=None)


@dataclass(frozen=True)
class Experiment:
    """A task that returns plain numbers, and the key that names it in the file of results."""

    key: Mapping[str, Any]
    task: Callable[[], Record]


def each_seed(
    config: Config, seeds: Sequence[int], task: Callable[[Config], Record], /, **labels: Any
) -> list[Experiment]:
    """Make a job a seed; its key holds the labels, the seed and the hash of the settings."""
    configs = [replace(config, seed=seed, memory_report="off") for seed in seeds]
    return [
        Experiment({**labels, "seed": of_seed.seed, "settings": settings_hash(of_seed)[:16]}, partial(task, of_seed))
        for of_seed in configs
    ]


def run_study(
    jobs: Sequence[Experiment], path: Path | None, executor: Executor | None = None
) -> Generator[Record, None, None]:
    """Do the jobs whose results `path` does not hold yet; yield all results, those on disk first.

    A result is its key and what the task returned; it is appended to `path` (JSON lines) as soon as it is there. A last
    line that a stop cut short counts as not done. Without an executor jobs are done in this process; in others, tasks
    must pickle.

    Raises:
        JobsFailed: a task failed; the others are done.
        StopRequested: a signal ended the study.
    """
    known, todo, executor = read_results(path), dict[str, Experiment](), executor or InProcess()
    for number, job in enumerate(jobs):
        earlier = next((record for record in known if job.key.items() <= record.items()), None)
        if earlier is None:
            todo[f"{number} {' '.join(str(value) for value in job.key.values())}"[:_LONGEST_NAME]] = job
        else:
            yield earlier
    work = [Job(name, partial(_alone, job.task)) for name, job in todo.items()]
    ends = list[Finished]()
    for end in executor.run(work):
        ends.append(end)
        if end.error is None:
            record = {**todo[end.name].key, **end.result}
            if path is not None:
                append_result(path, record)
            yield record
    require_all(ends)


def _alone(task: Callable[[], Record]) -> Record:
    """Do a task on one thread, for others may run beside it, and without a log line for each market."""
    with threads(1), log_level("data", logging.WARNING):
        return task()


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


def ratio(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the sum of the first numbers over that of the second ones, and half the width of its 95% interval (delta
    method); NaN where the second ones sum to nothing."""
    if not pairs or not (below := float(np.mean([second for _, second in pairs]))) > 0:
        return math.nan, math.nan
    share = float(np.mean([first for first, _ in pairs])) / below
    return share, mean_interval([first - share * second for first, second in pairs])[1] / below


def rate_words(came_true: Sequence[bool]) -> str:
    """Format how often something came true, percent, with the 95% interval of its chance (Clopper and Pearson 1934)."""
    limits = stats.binomtest(sum(came_true), len(came_true)).proportion_ci(_CONFIDENCE, method="exact")
    return f"{100 * np.mean(came_true):.0f} ({100 * limits.low:.0f} to {100 * limits.high:.0f})"


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
