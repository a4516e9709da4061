"""Stores of a run's files off the machine: their interface with its retries, and one on a mounted folder."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import os
import random
import secrets
import shutil
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import google_crc32c

from utils.errors import CloudError, ConfigError, ConflictError, DamagedError, MissingError, UnavailableError
from utils.runs.durable import fsync, make_directory

READ_BYTES = 1 << 20
TEMPORARY = ".tmp-"

Source = bytes | BinaryIO
"""Bytes to store, or a file open at any position."""
Content = tuple[int, int]
"""Size and crc32c of an object, by which contents are compared."""

Result = TypeVar("Result")
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR}


@dataclass(frozen=True)
class RetryPolicy:
    """Times and waits of retries, in seconds.

    A wait doubles from `first_wait_s` to `longest_wait_s`, of which a random half to whole is waited; a call gives up
    after `deadline_s`, at start-up after `check_s`; the transfer of an object may take longer by its size over
    `slow_bytes_per_s`. A connection that is silent for `timeout_s` counts as dead.
    """

    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    deadline_s: float = 600.0
    timeout_s: float = 60.0
    check_s: float = 30.0
    slow_bytes_per_s: float = 1 << 18


class ObjectStore(ABC):
    """Named objects of bytes. Each call retries what may pass, and raises CloudError when it gives up."""

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self.policy = policy or RetryPolicy()
        self._cancelled = threading.Event()

    @abstractmethod
    def check(self) -> bool:
        """Return whether the store can be reached now.

        Raises ConfigError, at once, if it is not there or its owner refuses what a run needs.
        """

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """Store an object and compare its checksum; with `if_absent`, ConflictError where another content has it."""
        safe_name(name)
        file = _rewound(source)
        content = checksum(file)

        def attempt(deadline: float) -> None:
            try:
                stored = self._put(name, _rewound(file), content[0], if_absent, deadline)
            except FileExistsError:
                # Perhaps by an earlier attempt of ours whose answer was lost.
                if self._content(name) != content:
                    raise ConflictError(
                        f"{name} exists with other content; does another run write under the same name?"
                    ) from None
                return
            if stored != content:
                raise UnavailableError("what is stored differs from what was sent")

        self._retry(f"store {name}", attempt, content[0])

    def holds(self, name: str, source: Source) -> bool:
        """Return whether the object exists with this content."""
        safe_name(name)
        content = checksum(_rewound(source))
        return self._retry(f"look at {name}", lambda _: self._content(name) == content)

    def get(self, name: str, target: Path, limit: int) -> None:
        """Fetch an object into a file of at most `limit` bytes. MissingError; DamagedError if it is larger."""
        safe_name(name)

        def attempt(deadline: float) -> None:
            with new_file(target) as file:
                self._get(name, file, limit, deadline)

        self._retry(f"fetch {name}", attempt, limit)

    def list(self, prefix: str) -> dict[str, float]:
        """Return the objects below a prefix, which ends in a slash or is empty: sorted names -> time stored (s, UTC).

        Names that no run would write are left out.
        """
        found = self._retry(f"list {prefix}", lambda _: dict(self._list(prefix)))
        return {name: found[name] for name in sorted(found) if is_safe(name)}

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""
        safe_name(name)
        self._retry(f"delete {name}", lambda _: self._delete(name))

    def cancel(self) -> None:
        """Make calls in other threads give up soon, and later ones at once."""
        self._cancelled.set()

    @abstractmethod
    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool, deadline: float) -> Content | None:
        """Store a file's bytes; return what is stored then. FileExistsError if the object must not be there, but is."""

    @abstractmethod
    def _content(self, name: str) -> Content | None:
        """Return what the object holds; None if it does not exist."""

    @abstractmethod
    def _get(self, name: str, file: BinaryIO, limit: int, deadline: float) -> None:
        """Write an object into a file."""

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Give names and times of objects."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Remove an object."""

    @abstractmethod
    def _translated(self, error: Exception) -> CloudError:
        """Return UnavailableError for what may pass, CloudError for the rest, in words that hold nothing secret."""

    def _retry(
        self, what: str, attempt: Callable[[float], Result], size: int = 0, seconds: float | None = None
    ) -> Result:
        """Return the result of `attempt(deadline)`, in time.monotonic(); UnavailableError when it gives up."""
        started = time.monotonic()
        deadline = started + (seconds or self.policy.deadline_s + size / self.policy.slow_bytes_per_s)
        wait, attempts, reason = self.policy.first_wait_s, 0, ""
        while True:
            attempts += 1
            try:
                self._keep_going(deadline)
                return attempt(deadline)
            except Exception as caught:
                error = caught if isinstance(caught, CloudError) else self._translated(caught)
            # Raised out here, without its cause: what libraries say may hold a session's address, which is a key to it.
            if not isinstance(error, UnavailableError):
                raise CloudError(f"cannot {what}: {error}") if type(error) is CloudError else error
            now = time.monotonic()
            # An earlier reason tells more than that the time is over.
            reason = reason if reason and now > deadline else str(error)
            pause = wait * random.uniform(0.5, 1.0)
            if now + pause > deadline or self._cancelled.wait(pause):
                passed = time.monotonic() - started
                raise UnavailableError(f"cannot {what}: {reason} (gave up after {attempts} attempts, {passed:.1f} s)")
            wait = min(2 * wait, self.policy.longest_wait_s)

    def _keep_going(self, deadline: float) -> None:
        """Raise UnavailableError once the store is cancelled or the deadline has passed."""
        if self._cancelled.is_set():
            raise UnavailableError("cancelled")
        if time.monotonic() > deadline:
            raise UnavailableError("the deadline has passed")


def is_safe(name: str) -> bool:
    """Return whether an object's name stays within a folder when used as a path below it."""
    plain = name.isprintable() and "\\" not in name and ":" not in name and len(name) <= 1024
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))


def safe_name(name: str) -> str:
    """Return the object's name if it is safe; raise DamagedError if it is not."""
    if not is_safe(name):
        raise DamagedError(f"expected an object name that is a plain relative path, got {name!r}")
    return name


def checksum(file: BinaryIO) -> Content:
    """Return size and crc32c of the rest of a file."""
    size = crc = 0
    while chunk := file.read(READ_BYTES):
        crc = google_crc32c.extend(crc, chunk)
        size += len(chunk)
    return size, crc


@contextlib.contextmanager
def new_file(path: Path, *, if_absent: bool = False) -> Iterator[BinaryIO]:
    """Give a file that is fsynced and takes this name if the block succeeds; with `if_absent`, FileExistsError."""
    # Each file has one writer: what another left under its name died with it.
    for left in path.parent.glob(f"{TEMPORARY}{glob.escape(path.name)}-*"):
        left.unlink(missing_ok=True)
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(8)}")
    try:
        with temporary.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if if_absent:
            _publish_first(temporary, path)
        else:
            temporary.replace(path)
        fsync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class LocalStore(ObjectStore):
    """Objects as files below a mounted folder, each published by one rename."""

    def __init__(self, root: Path, policy: RetryPolicy | None = None) -> None:
        super().__init__(policy)
        self._root = root

    def __repr__(self) -> str:
        return f"LocalStore({str(self._root)!r})"

    def check(self) -> bool:
        """Return True; raise ConfigError if the folder is not there or cannot be written to."""
        if not self._root.is_dir():
            raise ConfigError(f"expected CLOUD_BUCKET to be a mounted folder, got {str(self._root)!r}; mount it first")
        probe = self._root / f"{TEMPORARY}{secrets.token_hex(8)}"
        try:
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ConfigError(
                f"expected a CLOUD_BUCKET that can be written to, got {str(self._root)!r} ({error.strerror})"
            ) from None
        return True

    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool, deadline: float) -> Content | None:
        # Created one by one below the root only: a volume that is not mounted must not be made up.
        if not self._root.is_dir():
            raise UnavailableError(f"{self._root} is not mounted")
        path = self._root / name
        make_directory(path.parent)
        with new_file(path, if_absent=if_absent) as copy:
            shutil.copyfileobj(file, copy, READ_BYTES)
        return self._content(name)

    def _content(self, name: str) -> Content | None:
        try:
            with (self._root / name).open("rb") as file:
                return checksum(file)
        except FileNotFoundError:
            return None

    def _get(self, name: str, file: BinaryIO, limit: int, deadline: float) -> None:
        path = self._root / name
        try:
            status = path.lstat()
        except FileNotFoundError:
            raise MissingError(f"no object {name}") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise DamagedError(f"expected a file of at most {limit} bytes, got {status.st_size}: {path.name}")
        with path.open("rb") as source:
            shutil.copyfileobj(source, file, READ_BYTES)
        if file.tell() != status.st_size:
            raise UnavailableError(f"expected {status.st_size} bytes, got {file.tell()}")

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        folder = self._root / safe_name(prefix.removesuffix("/")) if prefix else self._root
        for path in folder.rglob("*"):
            # A file may vanish while its neighbours are read.
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and not path.name.startswith(TEMPORARY):
                    yield path.relative_to(self._root).as_posix(), status.st_mtime

    def _delete(self, name: str) -> None:
        path = self._root / name
        path.unlink(missing_ok=True)
        folder = path.parent
        is_below = folder != self._root and folder.is_dir()
        if is_below and all(left.name.startswith(TEMPORARY) for left in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)

    def _translated(self, error: Exception) -> CloudError:
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            return UnavailableError(error.strerror or type(error).__name__)
        return CloudError(getattr(error, "strerror", None) or type(error).__name__)


def _rewound(source: Source) -> BinaryIO:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    file.seek(0)
    return file


def _publish_first(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:
        # Volumes without links (FAT, many network mounts) leave a short time in which another writer may come between.
        if path.exists():
            raise FileExistsError from None
        temporary.replace(path)
