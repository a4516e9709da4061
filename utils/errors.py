"""Every error that ends the program with one line and an exit code rather than a traceback."""

from __future__ import annotations

import signal
import time


class ProgramError(Exception):
    """An error whose message says in one line what was expected, what came and what to do."""

    exit_code = 1
    is_resumable = False
    """A run that ends with it can go on as it is from its last complete generation."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ConfigError(ProgramError):
    """A setting that no run can use; the message names the rule and the value that broke it."""

    exit_code = 2


class DataError(ProgramError):
    """Data that cannot be used."""

    exit_code = 2


class FileError(ProgramError):
    """A file that cannot be read or written, where nothing else says so."""

    is_resumable = True


class CheckpointError(ProgramError):
    """A checkpoint that cannot be written, or cannot be trusted."""


class CloudError(ProgramError):
    """An operation that the cloud's store could not do; the message holds nothing secret."""


class UnavailableError(CloudError):
    """An operation that the store may do when asked again."""


class MissingError(CloudError):
    """An object that is not there."""


class DamagedError(CloudError):
    """An object with other content than was meant to be there; asking again does not help."""


class ConflictError(CloudError):
    """An object of that name with other content that exists already."""


class ClusterError(ProgramError):
    """Work that machines failed to do several times."""

    is_resumable = True


class JobsFailed(ProgramError):
    """Jobs of which some have no result; it has the worst of their exit codes."""

    is_resumable = True

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class MemoryLimitReached(ProgramError):
    """The process came too close to the memory that it may use; raised at a safe point."""

    exit_code = 3
    is_resumable = True


class StopRequested(ProgramError):
    """A signal asked the run to stop, at a time of time.monotonic(); raised at a safe point."""

    is_resumable = True

    def __init__(self, signal_number: int, asked_at: float) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number
        self.asked_at = asked_at


def as_program_error(error: OSError | KeyboardInterrupt) -> ProgramError:
    """Return the program's own error for one of Python's."""
    if isinstance(error, KeyboardInterrupt):
        return StopRequested(signal.SIGINT, time.monotonic())
    return FileError(f"expected files that can be read and written, got: {error}")


def first_line(error: Exception) -> str:
    """Return what an error of a library says in one line, its name if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
