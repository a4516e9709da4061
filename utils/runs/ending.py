"""How runs end early: at a safe point on a signal or at the memory limit, with nothing half done.

One that is refused leaves no folder, one that is stopped says how it continues.
"""

import contextlib
import os
import shutil
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

from utils.config.settings import changed_flags
from utils.errors import ConfigError, DataError, OutOfMemory, Remains, StopRequested, as_program_error
from utils.memory_guard import MemoryGuard
from utils.runs.find import METRICS
from utils.runs.run_lock import LOCK, RunLock

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

    def __enter__(self) -> Self:
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
                with contextlib.suppress(OSError):
                    os.write(2, b"stopped at once; what was saved before stands, and --resume goes on\n")
                os._exit(128 + number)
            return
        self._signal, self._asked_at = number, time.monotonic()
        try:
            # A handler may interrupt a logging call: direct writing cannot deadlock on its lock.
            clear = b"\r\x1b[J" if os.isatty(2) else b""  # of bars, which are drawn anew below
            os.write(2, clear + b"stopping at the next safe point; once more to stop at once\n")
        except OSError:  # the terminal is closed: what follows is in the run's log
            null = os.open(os.devnull, os.O_WRONLY)
            for output in (1, 2):
                if not stat.S_ISREG(os.fstat(output).st_mode):
                    os.dup2(null, output)


@contextlib.contextmanager
def locked(folder: Path, *, is_new: bool) -> Iterator[None]:
    """Hold the lock of a run or study.

    A new one that the block refuses before a generation is recorded, by a user's mistake or for want of memory, is
    removed, so that its name stays free.
    """
    try:
        with RunLock(folder):
            try:
                yield
            except Exception as error:
                is_refused = isinstance(as_program_error(error), ConfigError | DataError | OutOfMemory)
                if is_new and is_refused and not any(folder.rglob(METRICS)):
                    _clear(folder)
                raise
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it holds a run
                folder.rmdir()


def _clear(folder: Path) -> None:
    """Remove everything but the lock, which its holder removes."""
    for item in folder.iterdir():
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        elif item.name != LOCK:
            item.unlink(missing_ok=True)


@contextlib.contextmanager
def resumable(folder: Path, began: Any, now: Any, saved: Callable[[], str]) -> Iterator[None]:
    """Attach to an error that stops the run or study in the block what is saved, and the flags that continue it.

    Args:
        began, now: the settings in its folder, and those that hold.
        saved: says what is saved.

    Raises:
        ProgramError: in place of an error of Python or torch that is no defect of the program.
    """
    try:
        yield
    except (Exception, KeyboardInterrupt) as raised:
        if (error := as_program_error(raised)) is None:
            raise
        if error.is_resumable and folder.exists():
            # Of the folder of runs only another than the default is named.
            before = replace(began, runs_dir=type(now)().runs_dir, run=now.run, resume=now.resume)
            error.remains = Remains(saved(), ("--resume", folder.name, *changed_flags(before, now)))
        raise error from raised.__cause__
