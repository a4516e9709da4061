"""Independent jobs, one after another in this process or side by side in as many others as --jobs asks for.

Outcomes come in the order in which jobs end, and jobs of lost processes are run once more.
"""

import contextlib
import logging
import multiprocessing
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from utils.errors import JobsFailed, StopRequested, as_program_error, first_line
from utils.progress import Progress

logger = logging.getLogger(__name__)
LOGS = "jobs"
"""Folder of what jobs print."""
THREADS = "OMP_NUM_THREADS"
MOST_LOSSES = 3
"""How often a job is resubmitted after its process was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their processes are killed."""
_POLL_SECONDS = 0.2


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
        with contextlib.ExitStack() as stack:
            if logs is not None:
                logs.mkdir(parents=True, exist_ok=True)
                path = logs / f"{name.replace('/', '-')}.log"
                file = stack.enter_context(path.open("a", buffering=1))
                stack.enter_context(contextlib.redirect_stdout(file))
                stack.enter_context(contextlib.redirect_stderr(file))
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


class Executor:
    """Runs jobs, wherever that may be."""

    def run(self, jobs: Sequence[Job], prepare_log: Callable[[], object] = lambda: None) -> Iterator[Finished]:
        """Run jobs; log and yield their outcomes in the order in which they finish.

        Args:
            prepare_log: called before each outcome is logged: a job of this process may have set up logging for itself.

        Raises:
            StopRequested: a signal asks this program to stop; no job is running any more.
        """
        with Progress("Running jobs", "job", len(jobs)) as bar:
            for end in self._outcomes(jobs):
                bar.update()
                prepare_log()
                if end.error is None:
                    logger.info("%s: done in %.1f s, %d of %d", end.name, end.seconds, bar.done, len(jobs))
                else:
                    logger.error("%s: %s (exit code %d)", end.name, end.error, end.exit_code)
                yield end

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        raise NotImplementedError


class InProcess(Executor):
    """Runs jobs one after the other in this process; they handle signals themselves."""

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        for job in jobs:
            logger.info("%s: running", job.name)
            yield perform(job)


class Processes(Executor):
    """Runs jobs in processes of this machine, one thread each; `close` ends them.

    If a process is gone, its job is resubmitted, at most `MOST_LOSSES` times; other jobs go on.
    """

    def __init__(self, count: int, logs: Path | None, safe_point: Callable[[], None]) -> None:
        """Take the largest number of processes, the folder of their logs, and a function that is called often and may
        raise to stop."""
        self._count, self._logs, self._safe_point = count, logs, safe_point
        self._running: dict[Future[bytes], Job] = {}
        self._processes: list[BaseProcess] = []
        self._calls: dict[ProcessPoolExecutor, Future[bytes]] = {}
        """The last call of each process, whose executor has no other, because one that is lost breaks its executor."""

    def close(self) -> None:
        """Ask all jobs to stop at a safe point, and end their processes if they do not in time."""
        if self._running:
            for process in self._processes:
                process.terminate()
            wait(self._running, STOP_SECONDS)
        for process in self._processes:
            process.kill()
        for executor in self._calls:
            executor.shutdown()
        self._running.clear()

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        waiting, losses = list(reversed(jobs)), Counter[str]()
        while waiting or self._running:
            while waiting and len(self._running) < self._count:
                job = waiting.pop()
                logger.info("%s: running", job.name)
                self._running[self._submit(job)] = job
            self._safe_point()
            for call in wait(self._running, _POLL_SECONDS, FIRST_COMPLETED).done:
                job = self._running.pop(call)
                try:
                    end: Finished = pickle.loads(call.result())
                except Exception as error:
                    is_lost = isinstance(error, BrokenExecutor)
                    losses[job.name] += is_lost
                    if is_lost and losses[job.name] <= MOST_LOSSES:
                        text = "%s: its process was lost, %d of at most %d times"
                        logger.warning(text, job.name, losses[job.name], MOST_LOSSES)
                        waiting.append(job)
                        continue
                    last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                    reason = "a process that was lost" if is_lost else last_line
                    end = Finished(job.name, error=f"expected an outcome of the job, got: {reason}", exit_code=1)
                yield end

    def _submit(self, job: Job) -> Future[bytes]:
        calls = self._calls.items()
        idle = (one for one, call in calls if call.done() and not isinstance(call.exception(), BrokenExecutor))
        executor = next(idle, None) or self._start()
        call = self._calls[executor] = executor.submit(perform_pickled, job.name, pickle.dumps(job), self._logs)
        return call

    def _start(self) -> ProcessPoolExecutor:
        executor = ProcessPoolExecutor(1, get_context("spawn"), begin_worker)
        threads = os.environ.get(THREADS)
        os.environ[THREADS] = "1"  # libraries read it when they are loaded
        executor.submit(int)
        if threads is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = threads
        self._processes += executor._processes.values()
        return executor


@contextlib.contextmanager
def open_executor(jobs: int, *, logs: Path | None = None) -> Iterator[Executor]:
    """Open an executor: several processes, or this one for a single job at once.

    Args:
        jobs: largest number of jobs at once.
        logs: folder for what jobs in other processes print, one file each; None leaves their output where it goes.
    """
    if jobs <= 1:
        yield InProcess()
        return
    # Imported late: workers, which import this module, begin sooner without them.
    from utils.memory_guard import MemoryGuard
    from utils.runs.ending import SafePoint

    with SafePoint(MemoryGuard()) as safe_point, contextlib.closing(Processes(jobs, logs, safe_point)) as processes:
        yield processes
