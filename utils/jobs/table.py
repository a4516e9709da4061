"""Progress of jobs: a table below the terminal's messages, a log line per change, and a file of outcomes."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tqdm import tqdm

from utils.errors import ProgramError
from utils.jobs.job import Finished
from utils.progress import Progress

logger = logging.getLogger(__name__)
LOGS, ENDS = "jobs", "jobs.jsonl"
"""The folder of the jobs' log files, and the file of their outcomes."""
_REDRAW_SECONDS = 1.0
_NAME_WIDTH = 50


class JobTable:
    """A table of jobs that run in other processes; use it in a `with` block.

    On a terminal, one line per running job and one for the total are redrawn every second.
    """

    def __init__(
        self,
        total: int | None,
        folder: Path | None,
        *,
        is_drawn: bool,
        progress: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Take the number of jobs, the folder for the file of outcomes, and what gives a job's progress by its name."""
        self.ends: list[Finished] = []
        self._total, self._folder, self._progress = total, folder, progress
        self._hidden = None if is_drawn else True
        self._all = Progress("jobs", "job", total, detail=self._running)
        self._rows: dict[str, tuple[tqdm[Any], float]] = {}
        """Of running jobs, with their start times (time.monotonic())."""
        self._changing, self._closed = threading.Lock(), threading.Event()

    def __enter__(self) -> JobTable:
        self._all.__enter__()
        if self._hidden is None and not self._all.bar.disable:
            threading.Thread(target=self._redraw, name="table of jobs", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._changing:
            for line, _since in self._rows.values():
                line.close()
            self._all.__exit__()

    def update(self, name: str, state: str) -> None:
        """Show that a job is running, or that its worker was lost and it is queued again."""
        with self._changing:
            if state == "running":
                logger.info("%s: running", name)
                line: tqdm[Any] = tqdm(bar_format="{desc}", disable=self._hidden, leave=False)
                self._rows[name] = (line, time.monotonic())
            else:
                self._rows.pop(name)[0].close()

    def add(self, end: Finished) -> None:
        """Show the outcome of a job, and append it to the file."""
        self.ends.append(end)
        of = "" if self._total is None else f", {len(self.ends)} of {self._total}"
        if end.error is None:
            logger.info("%s: done in %.1f s%s", end.name, end.seconds, of)
        else:
            logger.error("%s: %s (exit code %d)%s", end.name, end.error, end.exit_code, of)
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            record = {"name": end.name, "exit_code": end.exit_code, "seconds": end.seconds, "error": end.error}
            with (self._folder / ENDS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        with self._changing:
            if end.name in self._rows:
                self._rows.pop(end.name)[0].close()
            self._all.update()

    def _redraw(self) -> None:
        while not self._closed.wait(_REDRAW_SECONDS):
            with self._changing:
                for name, (line, since) in self._rows.items():
                    minutes, seconds = divmod(int(time.monotonic() - since), 60)
                    line.set_description_str(
                        f"{name[:_NAME_WIDTH]:<12} {minutes:3d}:{seconds:02d} {self._progress_of(name)}"
                    )
                self._all.bar.refresh()

    def _running(self) -> str:
        return ", ".join(f"{name} {self._progress_of(name)}".strip() for name in list(self._rows))

    def _progress_of(self, name: str) -> str:
        with contextlib.suppress(OSError, ProgramError):  # its folder is still being created
            return self._progress(name)
        return ""
