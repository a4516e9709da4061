"""Stopping on signals and at the memory limit: at a safe point, with nothing half done."""

from __future__ import annotations

import logging
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import psutil

from utils.errors import StopRequested
from utils.memory.clean_up import gpu_memory
from utils.memory.guard import MB, MemoryGuard

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class SafePoint:
    """A function called between two steps of work, which raises if the run should stop there.

    As a context manager it handles `SIGNALS`, but not SIGHUP under nohup: the first takes effect at the next safe
    point, a second at once, unless it is another SIGHUP, which shell and kernel both send.
    """

    def __init__(self, guard: MemoryGuard) -> None:
        self._guard = guard
        self._signal: int | None = None
        self._asked_at = 0.0
        self._earlier: dict[signal.Signals, Any] = {}

    def __call__(self) -> None:
        """Raise StopRequested after a signal, MemoryLimitReached above the limit."""
        if self._signal is not None:
            raise StopRequested(self._signal, self._asked_at)
        self._guard.check()

    def __enter__(self) -> SafePoint:
        # Only the main thread may set handlers.
        if threading.current_thread() is threading.main_thread():
            handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
            self._earlier = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            if number != signal.SIGHUP:
                os._exit(128 + number)
            return
        self._signal, self._asked_at = number, time.monotonic()
        try:
            # A handler may interrupt a logging call: direct writing cannot deadlock on its lock.
            os.write(2, b"stopping at the next safe point; once more to stop at once\n")
        except OSError:  # the terminal is closed: what follows is in the run's log
            null = os.open(os.devnull, os.O_WRONLY)
            for output in (1, 2):
                if not stat.S_ISREG(os.fstat(output).st_mode):
                    os.dup2(null, output)


class PeriodicChecks:
    """Calls a safe point and cleans up memory after a number of units of each kind of work."""

    def __init__(self, safe_point: Callable[[], None], every: Mapping[str, int], clean_up: Callable[[], float]) -> None:
        """Take how often each kind of work is checked, and a function that returns the MiB that it gave back."""
        self.safe_point, self._clean_up, self._every = safe_point, clean_up, every
        self.counts, self._since = dict.fromkeys(every, 0), dict.fromkeys(every, 0)
        self.freed_mb = dict.fromkeys(every, 0.0)

    def add(self, work: str, units: int) -> None:
        """Count work; if a check is due, make it and clean up."""
        self._since[work] += units
        if self._since[work] >= self._every[work]:
            self._since[work] %= self._every[work]
            self.counts[work] += 1
            self.safe_point()
            self.freed_mb[work] += (freed := self._clean_up())
            logger.debug("clean-up %d after %s gave back %.1f MB", self.counts[work], work, freed)

    def record(self) -> dict[str, Any]:
        """Return the memory in use (MiB), and by work the checks made and what their clean-ups gave back."""
        allocated, reserved = gpu_memory()
        sizes = {"rss": psutil.Process().memory_info().rss, "gpu_allocated": allocated, "gpu_reserved": reserved}
        in_use = {f"{name}_mb": size / MB for name, size in sizes.items()}
        return {**in_use, "checks": dict(self.counts), "freed_mb": dict(self.freed_mb)}
