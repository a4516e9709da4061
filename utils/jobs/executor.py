"""Executors of jobs: in this process, in several processes, or on a cluster, as --jobs and --cluster ask for."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from utils.errors import ConfigError
from utils.jobs.job import Finished, Job, begin_worker, perform, perform_pickled
from utils.jobs.pool import Executor, Pool

logger = logging.getLogger(__name__)
LOGS = "jobs"
THREADS = "OMP_NUM_THREADS"


class InProcess(Executor):
    """Runs jobs one after the other in this process; they handle signals themselves."""

    def _outcomes(self, jobs: Sequence[Job]) -> Iterator[Finished]:
        for job in jobs:
            logger.info("%s: running", job.name)
            yield perform(job)


class Processes(Pool):
    """Runs jobs in processes of this machine, one thread each."""

    def __init__(self, count: int, logs: Path | None, safe_point: Callable[[], None]) -> None:
        super().__init__(safe_point)
        self._count, self._logs = count, logs
        self._processes: list[BaseProcess] = []
        self._calls: dict[ProcessPoolExecutor, Future[bytes]] = {}
        """The last call of each process, whose executor has no other, because one that is lost breaks its executor."""

    def capacity(self) -> int:
        return self._count

    def submit(self, name: str, pickled: bytes) -> Future[bytes]:
        ended = [executor for executor, call in self._calls.items() if call.done()]
        idle = [executor for executor in ended if not self.is_lost(self._calls[executor].exception())]
        executor = idle[0] if idle else self._start()
        call = self._calls[executor] = executor.submit(perform_pickled, name, pickled, self._logs)
        return call

    def is_lost(self, error: BaseException | None) -> bool:
        return isinstance(error, BrokenExecutor)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
        for executor in self._calls:
            executor.shutdown()

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
def open_executor(
    jobs: int | None = None,
    cluster: str | None = None,
    *,
    logs: Path | None = None,
    files: Sequence[Path] = (),
    gpus: int = 0,
) -> Iterator[Executor]:
    """Open an executor: on a cluster if one is named, else in several processes, or in this one for a single job.

    Args:
        jobs: largest number of jobs at once; default: 1, on a cluster one per CPU or GPU.
        cluster: address of a Ray cluster, or `auto`; see `connect`.
        logs: folder for what jobs in other processes print, one file each; None leaves their output where it goes.
        files: read by jobs; must be equal on all nodes of a cluster.
        gpus: whole GPUs of each job on a cluster that has any.

    Raises:
        ConfigError: the cluster cannot be used, or the number of jobs is below 1.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"expected --jobs >= 1, got {jobs}")
    if cluster is None and jobs in (None, 1):
        yield InProcess()
        return
    # Imported late: workers, which import this module, begin sooner without them.
    from utils.jobs.cluster import ClusterTasks, connect
    from utils.memory.guard import MemoryGuard
    from utils.runs.stopping import SafePoint

    connection = contextlib.nullcontext() if cluster is None else connect(cluster)
    with connection, SafePoint(MemoryGuard()) as safe_point:
        is_here = cluster is None
        pool = Processes(jobs or 1, logs, safe_point) if is_here else ClusterTasks(files, jobs, logs, safe_point, gpus)
        with pool:
            yield pool
