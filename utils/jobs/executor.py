"""The executor that the flags --jobs and --cluster ask for."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from utils.errors import ConfigError
from utils.jobs.cluster import ClusterTasks, connect
from utils.jobs.job import InProcess
from utils.jobs.pool import Pool, Processes
from utils.memory.guard import MemoryGuard
from utils.runs.stopping import SafePoint

Executor = InProcess | Pool
"""Runs jobs: in this process, in several processes, or on a cluster."""


@contextlib.contextmanager
def open_executor(
    jobs: int | None = None,
    cluster: str | None = None,
    *,
    logs: Path | None = None,
    files: Sequence[Path] = (),
    folder: Path | None = None,
    gpus: int = 0,
    safe_point: Callable[[], None] | None = None,
) -> Iterator[Executor]:
    """Open an executor: on a cluster if one is named, else in several processes, or in this one for a single job.

    Args:
        jobs: largest number of jobs at once; default: 1, on a cluster one per CPU or GPU.
        cluster: address of a Ray cluster, or `auto`; see `connect`, which also takes `files` and `folder`.
        logs: folder for what jobs in other processes print, one file each; None leaves their output where it goes.
        gpus: whole GPUs of each job on a cluster that has any.
        safe_point: called several times a second, and may raise to stop; default: raises after a signal.

    Raises:
        ConfigError: the cluster cannot be used, or the number of jobs is below 1.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"expected --jobs >= 1, got {jobs}")
    if cluster is None and jobs in (None, 1):
        yield InProcess()
        return
    with contextlib.ExitStack() as stack:
        nodes = None if cluster is None else stack.enter_context(connect(cluster, jobs, files, folder))
        safe_point = safe_point or stack.enter_context(SafePoint(MemoryGuard()))
        if nodes is None:
            yield stack.enter_context(Processes(jobs or 1, logs, safe_point))
        else:
            yield stack.enter_context(ClusterTasks(nodes, jobs, logs, safe_point, gpus))
