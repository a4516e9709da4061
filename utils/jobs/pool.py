"""The pool behind every executor with workers: who gets which job, and what follows when a worker is lost."""

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Generic, Self, TypeVar

from utils.errors import ClusterError
from utils.jobs.job import Finished, Job, Notify

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is resubmitted after its worker was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their workers are killed."""
POLL_SECONDS = 0.2


class Worker(ABC):
    """A process, here or on another machine, that runs one job at a time."""

    is_ready = True
    """Can be given a job; False while it starts."""
    job: Job | None = None
    since = 0.0
    """Time at which it was given its job (time.monotonic())."""

    @abstractmethod
    def begin(self, job: Job) -> None:
        """Send it a job."""

    @abstractmethod
    def outcome(self) -> Finished | str | None:
        """Return what it has to report: an outcome, how it was lost, or None once it is ready."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""


W = TypeVar("W", bound=Worker)


class Pool(ABC, Generic[W]):
    """An executor with workers; use it in a `with` block, which ends them.

    A worker is lost if its process or machine is gone, or if its job is late. Its job is then resubmitted with twice
    the time, at most `MOST_LOSSES` times; other workers go on.
    """

    is_apart = True

    def __init__(self, safe_point: Callable[[], None]) -> None:
        """Take a function that is called several times a second, and may raise to stop."""
        self._safe_point = safe_point
        self._workers: list[W] = []
        self._longest: dict[bool, float] = {}
        """Seconds of the longest job with a deadline, of new workers and of others."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, jobs: Iterable[Job], notify: Notify = lambda *_: None) -> Iterator[Finished]:
        """Run jobs side by side; see `Executor`.

        Raises:
            ClusterError: several workers in a row were lost before they had a job.
        """
        source, queue, losses = iter(jobs), deque[Job](), Counter[str]()
        try:
            while self._assign(source, queue, notify):
                self._safe_point()
                for worker, outcome in self._outcomes():
                    job, worker.job = worker.job, None
                    if isinstance(outcome, Finished):
                        losses.pop("", None)
                        yield outcome
                        continue
                    self._workers.remove(worker)
                    worker.kill()
                    if (end := _lost(job, outcome, queue, losses, notify)) is not None:
                        yield end
        finally:
            if any(worker.job is not None for worker in self._workers):
                self._stop()

    def _assign(self, source: Iterator[Job], queue: deque[Job], notify: Notify) -> bool:
        """Draw as many jobs as there is room for, and give them to workers; return whether any job is unfinished."""
        busy = sum(worker.job is not None for worker in self._workers)
        while busy + len(queue) < self._capacity() and (drawn := next(source, None)) is not None:
            queue.append(drawn)
        while len(self._workers) < busy + len(queue):
            self._workers.append(self._start())
        for worker in self._workers:
            if queue and worker.is_ready and worker.job is None:
                job = worker.job = queue.popleft()
                worker.since = time.monotonic()
                notify(job.name, "running")
                worker.begin(job)
        return bool(queue) or any(worker.job is not None for worker in self._workers)

    def _outcomes(self) -> list[tuple[W, Finished | str]]:
        """Wait briefly for reports, and add the workers whose jobs are late."""
        reports = {worker: worker.outcome() for worker in self._reporting()}
        for worker in self._workers:
            seconds = None if worker.job is None else worker.job.most_seconds
            if worker not in reports and seconds is not None and time.monotonic() - worker.since > seconds:
                reports[worker] = f"no answer within {seconds:.0f} s"
        return [(worker, report) for worker, report in reports.items() if report is not None]

    @abstractmethod
    def _capacity(self) -> int:
        """Return how many jobs may run at once."""

    @abstractmethod
    def _start(self) -> W:
        """Start a worker."""

    @abstractmethod
    def _reporting(self) -> list[W]:
        """Return the workers that have something to report, after a short wait for the first."""

    @abstractmethod
    def _stop(self) -> None:
        """Ask all workers to stop at a safe point, and kill those that do not in time."""


def _lost(job: Job | None, why: str, queue: deque[Job], losses: Counter[str], notify: Notify) -> Finished | None:
    """Resubmit the job of a lost worker, or return its outcome. Raises ClusterError, see `Pool.run`."""
    name = "" if job is None else job.name
    losses[name] += 1
    if losses[name] > MOST_LOSSES:
        error = ClusterError(f"expected a worker to finish, got {losses[name]} that were lost, the last one: {why}")
        if job is None:
            raise error
        return Finished(name, exception=error)
    logger.warning("%s: worker was lost (%s), %d of at most %d", name or "no job", why, losses[name], MOST_LOSSES)
    if job is not None:
        notify(name, f"lost: {why}")
        # On a busy machine the worker that replaces a late one is late as well, and starts besides.
        queue.append(replace(job, most_seconds=job.most_seconds and 2 * job.most_seconds))
    return None
