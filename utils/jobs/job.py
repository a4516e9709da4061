"""Jobs that know nothing of one another, what becomes of them, and who does them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from utils.errors import JobsFailed, ProgramError, StopRequested, as_program_error, first_line

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is submitted again whose process or machine was lost."""
STOP_SECONDS = 8.0
"""How long jobs that are asked to stop may take to come to a safe point; they are ended after it."""


@dataclass(frozen=True)
class Job:
    """A piece of work that needs no other one: done again, it goes on from its own checkpoint."""

    name: str
    """For people, and for the file of its log; no other job of the list has it."""
    work: Callable[[], Any]
    """Picklable, and so is what it returns; a ProgramError that it raises ends this job alone."""
    gpus: int = 0
    """Whole cards that it has for itself on a cluster which has any."""


@dataclass(frozen=True)
class Finished:
    """A job's end: its result, or one line that says why there is none."""

    name: str
    result: Any = None
    error: str | None = None
    exit_code: int = 0
    """0 for a result, else that of the error."""
    seconds: float = 0.0
    """Wall-clock time of its work, without that of processes which were lost."""


Tell = Callable[[str, str], None]
"""Is given a job's name, and `running` when it begins or why it is `lost`."""


def tell_nobody(name: str, state: str) -> None:
    """Do nothing with a change of state."""


class Executor(Protocol):
    """A way to do jobs: in this process, in several, or on a cluster."""

    is_apart: bool
    """Jobs are done elsewhere, so that this process's terminal shows nothing of them."""

    def run(self, jobs: Iterable[Job], tell: Tell = tell_nobody) -> Iterator[Finished]:
        """Do jobs, and yield the end of each as it comes, in any order.

        A job is taken from `jobs` only when there is room for it, so that a generator may choose it by what others
        gave. A job whose process is lost is submitted again, `MOST_LOSSES` times at most.

        Raises StopRequested, once no job runs any more, if a signal asks this program to stop.
        """


def perform(job: Job) -> Finished:
    """Do a job in this process; its errors become its end.

    Raises StopRequested or KeyboardInterrupt if the job was asked to stop: then it did not end.
    """
    started = time.perf_counter()

    def end(**fields: Any) -> Finished:
        return Finished(job.name, seconds=time.perf_counter() - started, **fields)

    try:
        return end(result=job.work())
    except StopRequested:
        raise
    except (ProgramError, OSError) as error:
        known = error if isinstance(error, ProgramError) else as_program_error(error)
        return end(error=str(known), exit_code=known.exit_code)
    except Exception as error:  # a mistake of the program ends one job, not those beside it
        logger.exception("%s", job.name)
        return end(error=f"{type(error).__name__}: {first_line(error)}", exit_code=1)


def perform_apart(job: Job, logs: Path | None) -> Finished:
    """Do a job in a process that does nothing else; what it prints goes to a file of that folder, if there is one."""
    with output_to(logs, job.name):
        finished = perform(job)
        if finished.error is not None:
            logger.error("%s: %s", job.name, finished.error)
        return finished


class Losses:
    """The number of times that each job's process was lost."""

    def __init__(self) -> None:
        self._of: dict[str, int] = {}

    def count(self, job: Job, why: str, tell: Tell) -> Finished | None:
        """Count a loss; return the job's end if it was one too many, else None: submit it again."""
        losses = self._of[job.name] = self._of.get(job.name, 0) + 1
        if losses > MOST_LOSSES:
            return Finished(job.name, error=f"lost {losses} times, at last: {why}", exit_code=1)
        logger.warning("%s was lost (%s) and is submitted again, %d of %d", job.name, why, losses, MOST_LOSSES)
        tell(job.name, f"lost: {why}")
        return None


def require_all(finished: Sequence[Finished]) -> None:
    """Raise JobsFailed, with the worst exit code, if any job has no result."""
    failed = [one for one in finished if one.error is not None]
    if failed:
        alike: dict[str, list[str]] = {}
        for one in failed:
            alike.setdefault(f"{one.error} (exit code {one.exit_code})", []).append(one.name)
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in alike.items())
        raise JobsFailed(
            f"expected {len(finished)} jobs to end well, got {len(failed)} that failed: {reasons}",
            max(one.exit_code for one in failed),
        )


@contextlib.contextmanager
def output_to(logs: Path | None, name: str) -> Iterator[None]:
    """Append all that this process prints to the log of a job; without a folder of logs nothing changes."""
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
