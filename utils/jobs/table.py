"""Progress of jobs: a bar or a line that names those running, a log line per change."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from utils.errors import ProgramError
from utils.jobs.job import Finished
from utils.progress import Progress

logger = logging.getLogger(__name__)
LOGS = "jobs"
"""The folder of the jobs' log files."""


class JobTable:
    """The jobs that run and have ended; use it in a `with` block."""

    def __init__(self, total: int | None, progress: Callable[[str], str] = lambda _: "") -> None:
        """Take the number of jobs, and what gives a job's progress by its name."""
        self.ends: list[Finished] = []
        self._total, self._progress = total, progress
        self._bar = Progress("jobs", "job", total, detail=self._running)
        self._since: dict[str, float] = {}
        """Start times of running jobs (time.monotonic())."""

    def __enter__(self) -> JobTable:
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def update(self, name: str, state: str) -> None:
        """Note that a job is running, or that its worker was lost and it is queued again."""
        if state == "running":
            logger.info("%s: running", name)
            self._since[name] = time.monotonic()
        else:
            self._since.pop(name)

    def add(self, end: Finished) -> None:
        """Show the outcome of a job."""
        self.ends.append(end)
        of = "" if self._total is None else f", {len(self.ends)} of {self._total}"
        if end.error is None:
            logger.info("%s: done in %.1f s%s", end.name, end.seconds, of)
        else:
            logger.error("%s: %s (exit code %d)%s", end.name, end.error, end.exit_code, of)
        self._since.pop(end.name, None)
        self._bar.update()

    def _running(self) -> str:
        texts = []
        for name, since in list(self._since.items()):
            minutes, seconds = divmod(int(time.monotonic() - since), 60)
            texts.append(f"{name} {minutes}:{seconds:02d}")
            with contextlib.suppress(OSError, ProgramError):  # its folder is still being created
                texts[-1] = f"{texts[-1]} {self._progress(name)}".strip()
        return ", ".join(texts)
