"""The executor that the flags --jobs and --cluster ask for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from utils.errors import ConfigError
from utils.jobs.cluster import connect
from utils.jobs.here import Here
from utils.jobs.job import Executor
from utils.jobs.processes import Processes
from utils.jobs.tasks import Tasks
from utils.memory.guard import MemoryGuard
from utils.runs.stopping import SafePoint


@contextlib.contextmanager
def open_executor(
    jobs: int | None = None,
    cluster: str | None = None,
    *,
    logs: Path | None = None,
    files: Sequence[Path] = (),
    folder: Path | None = None,
) -> Iterator[Executor]:
    """Give an executor: on a cluster if one is named, else in so many processes, and for one job in this process.

    Args:
        jobs: largest number of jobs at once; default: 1 here, on a cluster one a processor.
        cluster: address of a Ray cluster, or `auto`; see `connect`, which is also given `files` and `folder`.
        logs: folder for what jobs in other processes print, a file each; none: they print where this process does.

    Raises:
        ConfigError: the cluster cannot be used, or the number of jobs is not above 0.
    """
    if jobs is not None and jobs < 1:
        raise ConfigError(f"expected --jobs >= 1, got {jobs}")
    if cluster is None and jobs in (None, 1):
        yield Here()
        return
    with contextlib.ExitStack() as stack:
        there = None if cluster is None else stack.enter_context(connect(cluster, jobs, files, folder))
        safe_point = stack.enter_context(SafePoint(MemoryGuard()))
        if there is None:
            yield stack.enter_context(Processes(jobs or 1, logs, safe_point))
        else:
            yield stack.enter_context(Tasks(there, jobs, logs, safe_point))
