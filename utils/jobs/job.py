"""Independent jobs and their outcomes."""

import contextlib
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from utils.errors import JobsFailed, StopRequested, as_program_error, first_line

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """An idempotent task that depends on no other; run again, it may resume from its own checkpoint."""

    name: str
    """Unique within a list of jobs; shown, and used as the name of its log file."""
    work: Callable[[], Any]
    """Picklable, as is its result. An exception fails this job only."""


@dataclass(frozen=True)
class Finished:
    """The outcome of a job: its result, or one line on what went wrong and an exit code."""

    name: str
    result: Any = None
    error: str | None = None
    exit_code: int = 0
    seconds: float = 0.0
    """Wall-clock time of the attempt that finished."""


def perform(job: Job) -> Finished:
    """Run a job in this process; its exception becomes part of its outcome.

    Raises StopRequested or KeyboardInterrupt if the job was asked to stop: it is not finished.
    """
    started = time.perf_counter()
    try:
        return Finished(job.name, job.work(), seconds=time.perf_counter() - started)
    except StopRequested:
        raise
    except Exception as error:
        if (known := as_program_error(error)) is not None:
            return Finished(job.name, error=str(known), exit_code=known.exit_code)
        logger.exception("%s", job.name)  # a bug fails one job, not the others
        return Finished(job.name, error=f"{type(error).__name__}: {first_line(error)}", exit_code=1)


def begin_worker() -> None:
    """Take a process away from the signals of its terminal, and end it with the one that started it."""

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    os.setsid()
    threading.Thread(target=end_with_parent, daemon=True).start()


def perform_pickled(name: str, pickled: bytes, logs: Path | None) -> bytes:
    """Run a pickled job in a worker and return its pickled outcome; ends the worker if the job was asked to stop.

    Tensors are pickled by value, not as shared memory that ends with the process.

    Args:
        logs: folder for what jobs print, one file each; None leaves the output where it goes.
    """
    try:
        with output_to(logs, name):
            return pickle.dumps(perform(Job(name, lambda: pickle.loads(pickled).work())))
    except StopRequested as stop:
        os._exit(stop.exit_code)


def require_all(finished: Sequence[Finished]) -> None:
    """Raise JobsFailed, with the highest exit code, if any job failed."""
    if failed := [one for one in finished if one.error is not None]:
        reasons = "; ".join(f"{one.name}: {one.error} (exit code {one.exit_code})" for one in failed)
        raise JobsFailed(
            f"expected {len(finished)} jobs to succeed, got {len(failed)} that failed: {reasons}",
            max(one.exit_code for one in failed),
        )


@contextlib.contextmanager
def output_to(logs: Path | None, name: str) -> Iterator[None]:
    """Append everything that this process prints to a job's log file; without a folder nothing changes."""
    if logs is None:
        yield
        return
    logs.mkdir(parents=True, exist_ok=True)
    path = logs / f"{name.replace('/', '-')}.log"
    with path.open("a", buffering=1) as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        yield
