"""The pool behind every executor with workers: who gets which job, and what follows when a worker is lost."""

import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Self

from utils.errors import ClusterError
from utils.jobs.job import Finished, Job, Notify

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is resubmitted after its worker was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their workers are killed."""
POLL_SECONDS = 0.2


class WorkerLost(Exception):
    """A worker that is gone, and how."""


class Worker(ABC):
    """A process, here or on another machine, that runs one job at a time."""

    call: Future[Any] | None = None
    """Answer that it owes: to its start or to its job. None while it is idle."""
    job: Job | None = None

    def poll(self) -> Finished | None:
        """Return the outcome of its job as soon as there is one. Raises WorkerLost."""
        if self.call is not None and self.call.done():
            call, self.call = self.call, None
            return self.outcome(call)
        return None

    @abstractmethod
    def begin(self, job: Job) -> Future[Any]:
        """Send it a job; return the answer to come."""

    @abstractmethod
    def outcome(self, call: Future[Any]) -> Finished | None:
        """Return what an answer says: the outcome of a job, or None after the start. Raises WorkerLost."""

    @abstractmethod
    def stop(self) -> None:
        """Ask it to stop its job at a safe point."""

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""


class Pool:
    """An executor with workers; use it in a `with` block, which ends them.

    A worker is lost if its process or machine is gone. Its job is then resubmitted, at most `MOST_LOSSES` times; other
    workers go on.
    """

    is_apart = True

    def __init__(
        self, capacity: Callable[[], int], start: Callable[[], Worker], safe_point: Callable[[], None]
    ) -> None:
        """Take what returns how many jobs may run at once, what starts a worker, and what may raise to stop.

        The last one is called several times a second.
        """
        self._capacity, self._start, self._safe_point = capacity, start, safe_point
        self._workers: list[Worker] = []

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
                wait([worker.call for worker in self._workers if worker.call], POLL_SECONDS, FIRST_COMPLETED)
                for worker in list(self._workers):
                    try:
                        end = worker.poll()
                    except WorkerLost as lost:
                        self._workers.remove(worker)
                        worker.kill()
                        end = _after_loss(worker.job, str(lost), queue, losses, notify)
                    if end is not None:
                        worker.job = None
                        losses.pop("", None)
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
            if queue and worker.call is None:
                worker.job = queue.popleft()
                notify(worker.job.name, "running")
                worker.call = worker.begin(worker.job)
        return bool(queue) or any(worker.job is not None for worker in self._workers)

    def _stop(self) -> None:
        """Ask all workers to stop at a safe point, and kill those that do not in time."""
        workers, self._workers = self._workers, []
        running = [worker for worker in workers if worker.job is not None]
        for worker in running:
            worker.stop()
        wait([worker.call for worker in running if worker.call], STOP_SECONDS)
        for worker in workers:
            worker.kill()


def _after_loss(job: Job | None, why: str, queue: deque[Job], losses: Counter[str], notify: Notify) -> Finished | None:
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
        queue.append(job)
    return None
