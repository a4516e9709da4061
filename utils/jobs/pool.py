"""The pool behind every executor with workers: who gets which job, and what follows when a worker is lost."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Self, TypeVar

from utils.errors import ClusterError
from utils.jobs.job import Finished, Job, Notify, ignore

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is resubmitted after its worker was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their workers are killed."""
POLL_SECONDS = 0.2
LEAST_SECONDS = 60.0
"""Shortest time after which a job with a deadline can be late."""
_LATE = 10.0
"""Multiple of the longest time so far after which it is."""
_FIRST_SECONDS = 1800.0
"""Deadline while no such job has finished."""


class Worker(ABC):
    """A process, here or on another machine, that runs one job at a time."""

    is_ready = True
    """Can be given a job; False while it starts."""
    is_new = True
    """Has not finished a job yet: the first one also loads modules and data."""
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

    A worker is lost if its process or machine is gone, or if its job is late. Its job is then resubmitted, at most
    `MOST_LOSSES` times; other workers go on.
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

    def run(self, jobs: Iterable[Job], notify: Notify = ignore) -> Iterator[Finished]:
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
                        self._note(worker, job)
                        losses.pop("", None)
                        yield outcome
                        continue
                    self._workers.remove(worker)
                    worker.kill()
                    if (end := _lost(job, outcome, losses, notify)) is not None:
                        yield end
                    elif job is not None:
                        queue.append(job)
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
        reports = [(worker, worker.outcome()) for worker in self._reporting()]
        heard = [worker for worker, _ in reports]
        late = [worker for worker in self._workers if worker not in heard and self._is_late(worker)]
        found: list[tuple[W, Finished | str]] = [(worker, report) for worker, report in reports if report is not None]
        return found + [(worker, f"no answer within {self._deadline(worker):.0f} s") for worker in late]

    def _is_late(self, worker: W) -> bool:
        has_deadline = worker.job is not None and worker.job.has_deadline
        return has_deadline and time.monotonic() - worker.since > self._deadline(worker)

    def _deadline(self, worker: W) -> float:
        known = self._longest.get(worker.is_new, self._longest.get(True))
        return _FIRST_SECONDS if known is None else max(LEAST_SECONDS, _LATE * known)

    def _note(self, worker: W, job: Job | None) -> None:
        """Remember how long a finished job took, if it had a deadline."""
        if job is not None and job.has_deadline:
            taken = time.monotonic() - worker.since
            self._longest[worker.is_new] = max(self._longest.get(worker.is_new, 0.0), taken)
        worker.is_new = False

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


def _lost(job: Job | None, why: str, losses: Counter[str], notify: Notify) -> Finished | None:
    """Count a loss; return the job's outcome if it must not be resubmitted. Raises ClusterError, see `Pool.run`."""
    name = "" if job is None else job.name
    losses[name] += 1
    if losses[name] > MOST_LOSSES:
        error = ClusterError(f"expected a worker to finish, got {losses[name]} that were lost, the last one: {why}")
        if job is None:
            raise error
        return Finished(name, exception=error)
    again = "" if job is None else f" and is resubmitted, {losses[name]} of {MOST_LOSSES}"
    logger.warning("%s: worker was lost (%s)%s", name or "no job", why, again)
    if job is not None:
        notify(name, f"lost: {why}")
    return None
