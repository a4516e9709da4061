"""Errors that end the program with one line and an exit code rather than a traceback."""

import re
import signal
import sys
import time
from dataclasses import dataclass

PACKAGES = ("data", "environment", "models", "training", "utils", "main")
"""The program's own modules, after which its loggers are named."""
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt"


@dataclass(frozen=True)
class Remains:
    """The remains of a stopped run, and how it continues."""

    saved: str
    """What is saved, as the beginning of a sentence."""
    flags: tuple[str, ...]
    """Flags with which its command continues it."""


class ProgramError(Exception):
    """An error whose message says in one line what was expected, what came and what to do."""

    exit_code = 1
    is_resumable = False  # a run that it ended can be continued
    remains: Remains | None = None
    """Set by the run that it ended."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ConfigError(ProgramError):
    """A setting that cannot be used."""

    exit_code = 2


class DataError(ProgramError):
    """Data that cannot be used."""

    exit_code = 2


class LookAheadError(DataError):
    """Features, scores or decisions that follow from data of later days."""

    exit_code = 4


class FileError(ProgramError):
    """A file that cannot be read or written."""

    is_resumable = True


class CheckpointError(ProgramError):
    """A checkpoint that cannot be written or is damaged."""

    is_resumable = True


class CloudError(ProgramError):
    """An operation that the object store refused; the message reveals no secret."""


class UnavailableError(CloudError):
    """A transient failure of the object store."""


class MissingError(CloudError):
    """An object that does not exist."""


class DamagedError(CloudError):
    """An object with unexpected content; a retry does not help."""


class ConflictError(CloudError):
    """An object that exists already, with other content."""


class JobsFailed(ProgramError):
    """Jobs some of which failed; it has the worst of their exit codes."""

    is_resumable = True

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MemoryLimitReached(ProgramError):
    """The process exceeded its memory limit; raised at a safe point."""

    exit_code = 3
    is_resumable = True


class OutOfMemory(MemoryLimitReached):
    """An allocation, of the machine or the GPU, that failed."""


class StopRequested(ProgramError):
    """A signal asked the run to stop, at `asked_at` in time.monotonic(); raised at a safe point."""

    is_resumable = True

    def __init__(self, signal_number: int, asked_at: float) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number
        self.asked_at = asked_at


def as_program_error(error: BaseException) -> ProgramError | None:
    """Convert an error of Python or torch to the program's own; None for a defect of the program."""
    if isinstance(error, ProgramError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return StopRequested(signal.SIGINT, time.monotonic())
    if isinstance(error, OSError):
        return FileError(f"expected files that can be read and written, got: {error}")
    if isinstance(error, ModuleNotFoundError) and (name := str(error.name).partition(".")[0]) not in PACKAGES:
        return ConfigError(f"expected {name} to be installed for {sys.executable}, got none; install all by: {INSTALL}")
    # Known by name and words: torch takes seconds to import, and its CPU allocator raises plain RuntimeErrors.
    is_of_torch = isinstance(error, RuntimeError) and re.search("can't allocate memory|not enough memory", str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or is_of_torch:
        return OutOfMemory(
            f"expected enough memory, got: {first_line(error).rpartition('DefaultCPUAllocator: ')[2][:200]}; choose a "
            "smaller population, replay buffer or number of windows, fewer days or stocks, or a larger machine"
        )
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, or the error's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
