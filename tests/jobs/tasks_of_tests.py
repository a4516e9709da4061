"""Work of jobs in the tests: picklable, because it runs in other processes."""

import os
import signal
import time
from pathlib import Path

from utils.errors import DataError, JobsFailed, StopRequested


def refuse(message: str) -> None:
    raise DataError(message)


def fail_jobs() -> None:
    raise JobsFailed("two failed", 1)


class Mute:
    """An outcome that cannot be sent back, and an error that does not say why."""

    def __reduce__(self) -> str:
        raise EOFError


def die_until(log: Path, times: int) -> int:
    """Be killed this many times, then return how often the job began."""
    with log.open("a") as file:
        file.write("x")
    begun = log.stat().st_size
    if begun <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return begun


def count_until_stopped(folder: Path) -> None:
    """A miniature run: counts, and stops at safe points."""
    noted: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):  # as by `SafePoint`, whose import takes longer than all this work
        signal.signal(number, lambda number, _: noted.append(number))
    state = folder / f"{os.getpid()}.began"
    while not noted:
        state.touch()
        time.sleep(0.05)
    state.with_suffix(".stopped").touch()
    raise StopRequested(noted[0], time.monotonic())


def never_stop(folder: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    (folder / f"{os.getpid()}.began").touch()
    time.sleep(600)
