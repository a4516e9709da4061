"""Work of jobs in the tests: picklable, because it runs in other processes."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from utils.errors import DataError, JobsFailed, StopRequested


def square(number: int) -> int:
    return number * number


def who() -> tuple[int, str | None]:
    """The process that runs the job, and the number of threads that its libraries may use."""
    return os.getpid(), os.environ.get("OMP_NUM_THREADS")


def refuse(message: str) -> None:
    raise DataError(message)


def mistake() -> None:
    raise KeyError("absent")


def fail_jobs() -> None:
    raise JobsFailed("two failed", 1)


def say(text: str) -> None:
    print(text, flush=True)


def die_until(log: Path, times: int) -> int:
    """Be killed this many times, then return how often the job began."""
    with log.open("a") as file:
        file.write("x")
    begun = log.stat().st_size
    if begun <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return begun


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note signals as `SafePoint` does; to import it, and torch with it, would take longer than all this work."""
    noted: list[int] = []
    earlier = {
        number: signal.signal(number, lambda number, _: noted.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield noted
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def count_until_stopped(folder: Path) -> int:
    """A miniature run: resumes counting where it was stopped, and stops at safe points."""
    state = folder / f"{os.getpid()}.began"
    count = folder / "count"
    with noted_signals() as noted:
        while True:
            done = int(count.read_text()) if count.exists() else 0
            if noted:
                state.with_suffix(".stopped").touch()
                raise StopRequested(noted[0], time.monotonic())
            if done >= 1000:
                return done
            temporary = folder / f".{os.getpid()}"
            temporary.write_text(str(done + 1))
            temporary.replace(count)
            state.touch()
            time.sleep(0.05)


def never_stop(folder: Path) -> None:
    """Work that ignores signals."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    (folder / f"{os.getpid()}.began").touch()
    time.sleep(600)
