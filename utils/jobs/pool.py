"""What executors of jobs share: outcomes in the order in which jobs end, and jobs of lost processes once more."""

import logging
import pickle
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Self

from utils.jobs.job import Finished, Job
from utils.progress import Progress

logger = logging.getLogger(__name__)
MOST_LOSSES = 3
"""How often a job is resubmitted after its process was lost."""
STOP_SECONDS = 8.0
"""Time for running jobs to reach a safe point after a stop signal; then their processes are killed."""
_POLL_SECONDS = 0.2


class Executor(ABC):
    """Runs jobs, wherever that may be."""

    def run(self, jobs: Sequence[Job], prepare_log: Callable[[], object] = lambda: None) -> Iterator[Finished]:
        """Run jobs; log and yield their outcomes in the order in which they finish.

        Args:
            prepare_log: called before each outcome is logged: a job of this process may have set up logging for itself.

        Raises:
            StopRequested: a signal asks this program to stop; no job is running any more.
        """
        with Progress("jobs", "job", len(jobs)) as bar:
            for end in self._outcomes(jobs):
                bar.update()
                prepare_log()
                if end.error is None:
                    logger.info("%s: done in %.1f s, %d of %d", end.name, end.seconds, bar.done, len(jobs))
                else:
                    logger.error("%s: %s (exit code %d)", end.name, end.error, end.exit_code)
                yield end

    @abstractmethod
    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]: ...


class Pool(Executor):
    """Runs jobs in other processes; use it in a `with` block, which ends them.

    If a process or its machine is gone, its job is resubmitted, at most `MOST_LOSSES` times; other jobs go on.
    """

    def __init__(self, safe_point: Callable[[], None]) -> None:
        """Take a function that is called several times a second and may raise to stop."""
        self._safe_point = safe_point
        self._running: dict[Future[bytes], Job] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ask all jobs to stop at a safe point, and end their processes if they do not in time."""
        if self._running:
            self.stop()
            wait(self._running, STOP_SECONDS)
        self.kill()
        self._running.clear()

    @abstractmethod
    def capacity(self) -> int:
        """Return how many jobs may run at once."""

    @abstractmethod
    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        """Start a pickled job, see `perform_pickled`."""

    @abstractmethod
    def is_lost(self, error: Exception) -> bool:
        """Return whether a call ended with its process. Raises ConfigError where no process can take the job."""

    @abstractmethod
    def stop(self) -> None:
        """Ask all running jobs to stop at a safe point."""

    @abstractmethod
    def kill(self) -> None:
        """End all processes at once."""

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        waiting, losses = list(reversed(jobs)), Counter[str]()
        while waiting or self._running:
            while waiting and len(self._running) < self.capacity():
                job = waiting.pop()
                logger.info("%s: running", job.name)
                self._running[self.submit(job.name, pickle.dumps(job))] = job
            self._safe_point()
            for call in wait(self._running, _POLL_SECONDS, FIRST_COMPLETED).done:
                job = self._running.pop(call)
                try:
                    end: Finished = pickle.loads(call.result())
                except Exception as error:
                    is_lost = self.is_lost(error)
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
