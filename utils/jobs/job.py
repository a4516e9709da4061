"""Independent jobs, their outcomes, and the executors that run them."""

import contextlib
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from utils.errors import ClusterError, JobsFailed, ProgramError, StopRequested, as_program_error, first_line

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
    """The outcome of a job: its result or its exception."""

    name: str
    result: Any = None
    exception: Exception | None = None
    seconds: float = 0.0
    """Wall-clock time of the attempt that finished."""

    @property
    def error(self) -> str | None:
        """One line on what went wrong; None for a result."""
        if self.exception is None:
            return None
        line = first_line(self.exception)
        return line if isinstance(self.exception, ProgramError) else f"{type(self.exception).__name__}: {line}"

    @property
    def exit_code(self) -> int:
        """0 for a result, else the exit code of its exception."""
        return 0 if self.exception is None else getattr(self.exception, "exit_code", 1)


Notify = Callable[[str, str], None]
"""Receives a job's name and its new state: `running`, or how its worker was lost."""


class InProcess:
    """An executor that runs jobs one after the other in this process; they handle signals themselves."""

    is_apart = False  # jobs run in other processes, so that this terminal shows none of their output

    def run(self, jobs: Iterable[Job], notify: Notify = lambda *_: None) -> Iterator[Finished]:
        """Run jobs and yield their outcomes in the order in which they finish.

        A job is drawn from `jobs` only once there is room for it, so that a generator can decide by earlier outcomes.

        Raises StopRequested, once no job is running, if a signal asks this program to stop.
        """
        for job in jobs:
            notify(job.name, "running")
            yield perform(job)


def perform(job: Job) -> Finished:
    """Run a job in this process; its exception becomes part of its outcome.

    Raises StopRequested or KeyboardInterrupt if the job was asked to stop: it is not finished.
    """
    started, result = time.perf_counter(), None
    exception: Exception | None = None
    try:
        result = job.work()
    except StopRequested:
        raise
    except Exception as error:
        exception = as_program_error(error) or error
        if exception is error and not isinstance(error, ProgramError):  # a bug fails one job, not the others
            logger.exception("%s", job.name)
    return Finished(job.name, result, exception, time.perf_counter() - started)


def perform_pickled(name: str, pickled: bytes, logs: Path | None) -> bytes:
    """Run a pickled job in a worker and return its pickled outcome; ends the worker if the job was asked to stop.

    The job is unpickled as part of its work: if a module is missing here, this job fails. Tensors are pickled by value,
    not as shared memory that ends with the process.

    Args:
        logs: folder for what jobs print, one file each; None leaves the output where it goes.
    """
    try:
        with output_to(logs, name):
            finished = perform(Job(name, lambda: pickle.loads(pickled).work()))
            if logs is not None and finished.error is not None:
                logger.error("%s: %s", name, finished.error)
    except StopRequested as stop:
        os._exit(stop.exit_code)
    try:
        answer, reason = pickle.dumps(finished), finished.error
        # An exception that the other process may not know is described; not every other one can be unpickled.
        if reason is None or (isinstance(finished.exception, ProgramError) and pickle.loads(answer)):
            return answer
    except Exception as error:
        reason = finished.error or f"expected a result that can be pickled, got: {error}"
    return pickle.dumps(replace(finished, result=None, exception=ClusterError(str(reason))))


def require_all(finished: Sequence[Finished]) -> None:
    """Raise JobsFailed, with the highest exit code, if any job failed."""
    failed = [one for one in finished if one.error is not None]
    if failed:
        alike: dict[str, list[str]] = {}
        for one in failed:
            alike.setdefault(f"{one.error} (exit code {one.exit_code})", []).append(one.name)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in alike.items())
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
    with (logs / f"{name.replace('/', '-')}.log").open("ab") as file:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            yield
        finally:
            for number, earlier in zip((1, 2), kept, strict=True):
                (sys.stdout, sys.stderr)[number - 1].flush()
                os.dup2(earlier, number)
                os.close(earlier)
