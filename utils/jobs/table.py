"""The state of all jobs: a table below the messages of a terminal, a line a change in a log, a file of their ends."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from utils.errors import ProgramError
from utils.jobs.job import Finished

logger = logging.getLogger(__name__)
LOGS, ENDS = "jobs", "jobs.jsonl"
"""The folder of what jobs print, a file each, and the file of their ends."""
_REDRAW_SECONDS = 1.0
_NAME_WIDTH = 50


@dataclass
class _Row:
    """A line of the terminal for a job that runs."""

    line: tqdm[Any]
    since: float = field(default_factory=time.monotonic)


class JobTable:
    """A table of jobs that are done elsewhere; use it in a `with` block.

    A line for each job that runs and one for all of them are redrawn every second, on a terminal only.
    """

    def __init__(
        self,
        total: int | None,
        folder: Path | None,
        *,
        is_drawn: bool,
        progress: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Take the number of jobs, the folder for the file of their ends, and what tells how far a job is."""
        self.ends: list[Finished] = []
        self._total, self._folder, self._progress = total, folder, progress
        self._hidden = None if is_drawn else True
        self._all: tqdm[Any] = tqdm(total=total, desc="jobs", unit="job", disable=self._hidden, leave=False)
        self._rows: dict[str, _Row] = {}
        self._changing, self._closed = threading.Lock(), threading.Event()

    def __enter__(self) -> JobTable:
        if not self._all.disable:
            threading.Thread(target=self._redraw, name="table of jobs", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        with self._changing:
            for row in self._rows.values():
                row.line.close()
            self._all.close()

    def tell(self, name: str, state: str) -> None:
        """Show that a job runs, or that it was lost and waits again."""
        if state == "running":
            logger.info("%s: running", name)
        with self._changing:
            if state == "running":
                line: tqdm[Any] = tqdm(bar_format="{desc}", disable=self._hidden, leave=False)
                self._rows[name] = _Row(line)
            else:
                self._rows.pop(name).line.close()

    def add(self, end: Finished) -> None:
        """Show that a job ended, and write its end down."""
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
                self._rows.pop(end.name).line.close()
            self._all.update()

    def _redraw(self) -> None:
        while not self._closed.wait(_REDRAW_SECONDS):
            with self._changing:
                for name, row in self._rows.items():
                    progress = ""
                    minutes, seconds = divmod(int(time.monotonic() - row.since), 60)
                    with contextlib.suppress(OSError, ProgramError):  # the run is just being made
                        progress = self._progress(name)
                    row.line.set_description_str(f"{name[:_NAME_WIDTH]:<12} {minutes:3d}:{seconds:02d} {progress}")
                self._all.refresh()
