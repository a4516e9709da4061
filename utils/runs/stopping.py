"""Stopping on signals and at the memory limit: at a safe point, with nothing half done."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from types import FrameType
from typing import Any

from utils.errors import StopRequested
from utils.memory.guard import MemoryGuard

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
