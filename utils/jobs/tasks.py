"""Jobs as tasks of a Ray cluster, a processor and, if asked for, whole cards each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from utils.errors import StopRequested, first_line
from utils.jobs.cluster import Cluster
from utils.jobs.job import STOP_SECONDS, Finished, Job, Losses, Tell, perform_apart, tell_nobody

_LOOK_SECONDS = 0.2
_PASSED_ON = ("CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT", "GOOGLE_APPLICATION_CREDENTIALS")
"""Variables of this program's environment that its jobs on other machines have, too."""


class Tasks:
    """An executor that does jobs on a cluster; use it in a `with` block, which ends them."""

    is_apart = True

    def __init__(self, cluster: Cluster, most: int | None, logs: Path | None, safe_point: Callable[[], None]) -> None:
        """Take a cluster, the largest number of jobs at once, the folder of logs, and what raises StopRequested."""
        self._cluster, self._most, self._safe_point = cluster, most, safe_point
        environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        self._place = (Path.cwd(), None if logs is None else logs.absolute(), environment)
        self._running: dict[Any, Job] = {}

    def __enter__(self) -> Tasks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run(self, jobs: Iterable[Job], tell: Tell = tell_nobody) -> Iterator[Finished]:
        """Do jobs on the cluster; see `Executor`."""
        waiting, again, losses = iter(jobs), list[Job](), Losses()
        try:
            while self._begin(waiting, again, tell):
                self._safe_point()
                ready, _ = self._cluster.ray.wait([*self._running], timeout=_LOOK_SECONDS)
                for task in ready:
                    job = self._running.pop(task)
                    outcome = self._outcome(job, task)
                    if isinstance(outcome, Finished):
                        yield outcome
                    elif (end := losses.count(job, outcome, tell)) is not None:
                        yield end
                    else:
                        again.append(job)
        finally:
            self._stop()

    def _begin(self, waiting: Iterator[Job], again: list[Job], tell: Tell) -> bool:
        """Submit jobs while there is room; tell whether any is submitted."""
        ray, cards = self._cluster.ray, self._cluster.gpus()
        while self._has_room(cards):
            job = again.pop(0) if again else next(waiting, None)
            if job is None:
                break
            gpus = min(job.gpus, cards)
            task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=0)(_perform_there)
            tell(job.name, "running")
            self._running[task.options(name=job.name).remote(job, *self._place)] = job
        return bool(self._running)

    def _has_room(self, cards: int) -> bool:
        """Tell whether a job more may be submitted; where jobs take cards, one for each that is left."""
        taken = [min(job.gpus, cards) for job in self._running.values()]
        is_free = sum(taken) < cards if any(taken) else len(taken) < self._cluster.cpus()
        return is_free and (self._most is None or len(taken) < self._most)

    def _outcome(self, job: Job, task: Any) -> Finished | str:
        """Return what became of a task that ended, or why it is lost."""
        errors = self._cluster.ray.exceptions
        try:
            finished: Finished = self._cluster.ray.get(task)
            return finished
        except errors.RayTaskError as error:
            if isinstance(error.cause, StopRequested):
                return str(error.cause)  # by its machine, which is to be taken away
            reason = f"{type(error.cause).__name__}: {first_line(error.cause)}"
            return Finished(job.name, error=reason, exit_code=1)
        except errors.RayError as error:
            return type(error).__name__  # its text is a page of advice

    def _stop(self) -> None:
        """Ask all tasks to stop at a safe point, and end those that do not in time."""
        ray, tasks = self._cluster.ray, [*self._running]
        self._running.clear()
        if not tasks:
            return
        for task in tasks:
            ray.cancel(task)
        _, left = ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)
        for task in left:
            ray.cancel(task, force=True)
        ray.wait(tasks, num_returns=len(tasks), timeout=1.0)


def _perform_there(job: Job, folder: Path, logs: Path | None, environment: Mapping[str, str]) -> Finished:
    """Do a job in a process of the cluster, as the program that submitted it would."""
    os.environ.update(environment)
    with contextlib.suppress(OSError):  # relative paths are the submitter's
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
    return perform_apart(job, logs)
