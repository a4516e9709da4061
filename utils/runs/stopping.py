"""Stopping on SIGTERM, on Ctrl-C and short of the memory limit: at a safe point, with nothing half done."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

from utils.errors import MemoryLimitReached, StopRequested
from utils.memory.guard import MemoryGuard

logger = logging.getLogger(__name__)
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class SafePoint:
    """Call it between two steps of work: it raises if the run should stop there.

    As a context manager it takes over SIGTERM and SIGINT. The first signal is noted and heeded at the next safe point;
    a second one ends the process at once, which harms nothing, since files are published by one rename.
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
        status = self._guard.check()
        if status.exceeded:
            raise MemoryLimitReached(f"{status}; stopped before the system would have killed the run")

    def __enter__(self) -> SafePoint:
        # Only the main thread may set handlers; in another one (a notebook's, say) the program's own stay.
        if threading.current_thread() is threading.main_thread():
            self._earlier = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(128 + number)
        self._signal, self._asked_at = number, time.monotonic()
        # A handler may interrupt a logging call; writing directly cannot deadlock on its lock.
        os.write(2, b"stopping at the next safe point; once more to stop at once\n")
