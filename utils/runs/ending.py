"""How runs end early: one that is refused leaves no folder, one that is stopped says how it continues."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from utils.config.settings import changed_flags
from utils.errors import ConfigError, DataError, OutOfMemory, Remains, as_program_error
from utils.runs.find import METRICS
from utils.runs.run_lock import LOCK, RunLock


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
