"""Stores of a run's files off the machine: their interface, their retries, and one on a mounted folder."""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import itertools
import os
import random
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

import google_crc32c

from utils.config.settings import require
from utils.errors import CloudError, ConfigError, ConflictError, DamagedError, LateError, MissingError, UnavailableError
from utils.runs.durable import fsync, make_directory

READ_BYTES = 1 << 20
TEMPORARY = ".tmp-"

Source = bytes | Path | BinaryIO
"""Bytes to store, or a file by its path or open at any position."""

Result = TypeVar("Result")
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK}


@dataclass(frozen=True)
class ObjectInfo:
    """An object in a listing: its size in bytes and the time it was stored (seconds since 1970)."""

    name: str
    size: int
    updated: float


Listing = list[ObjectInfo]


class ObjectStore(Protocol):
    """Named objects of bytes. Each call retries what may pass, and raises CloudError when it gives up."""

    def check(self) -> bool:
        """Return whether the store can be reached now.

        Raises ConfigError, at once, if it is not there or its owner refuses what a run needs.
        """

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """Store an object and compare its checksum; with `if_absent`, ConflictError where another content has it."""

    def holds(self, name: str, source: Source) -> bool:
        """Return whether the object exists with this content, judged by size and crc32c."""

    def get(self, name: str, target: Path, limit: int) -> None:
        """Fetch an object into a new, fsynced file of at most `limit` bytes. MissingError, DamagedError if larger."""

    def list(self, prefix: str) -> Listing:
        """Return the objects whose name begins so, sorted by name; names that no run would write are left out."""

    def delete(self, name: str) -> None:
        """Remove an object; nothing happens where there is none."""

    def cancel(self) -> None:
        """Make calls in other threads give up soon, and later ones at once."""


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

    def __post_init__(self) -> None:
        for name, seconds in vars(self).items():
            require(seconds > 0, f"{name} > 0", seconds)


class Retrier:
    """Repeats what is unavailable until it works, the deadline passes or the store is cancelled."""

    def __init__(self, policy: RetryPolicy) -> None:
        self.policy = policy
        self.cancelled = threading.Event()

    def run(self, what: str, attempt: Callable[[float], Result], seconds: float | None = None) -> Result:
        """Return the result of `attempt(deadline)`, in time.monotonic(); UnavailableError when it gives up."""
        started = time.monotonic()
        deadline = started + (seconds or self.policy.deadline_s)
        wait = self.policy.first_wait_s
        reason = ""
        for number in itertools.count(1):
            try:
                self.keep_going(deadline)
                return attempt(deadline)
            except UnavailableError as error:
                # An earlier reason tells more than that the time is over.
                reason = reason if reason and isinstance(error, LateError) else str(error)
                pause = wait * random.uniform(0.5, 1.0)
                # The cause is dropped: what libraries say may hold a session's address, which is a key to it.
                if time.monotonic() + pause > deadline or self.cancelled.wait(pause):
                    passed = time.monotonic() - started
                    raise UnavailableError(
                        f"cannot {what}: {reason} (gave up after {number} attempts, {passed:.1f} s)"
                    ) from None
                wait = min(2 * wait, self.policy.longest_wait_s)
        raise AssertionError("unreachable")

    def keep_going(self, deadline: float) -> None:
        """Raises UnavailableError once the store is cancelled or the deadline has passed."""
        if self.cancelled.is_set():
            raise UnavailableError("cancelled")
        if time.monotonic() > deadline:
            raise LateError("the deadline has passed")


def safe_name(name: str) -> str:
    """Return the object's name if it stays within a folder when used as a path below it; DamagedError if it may not."""
    plain = name.isprintable() and "\\" not in name and ":" not in name and len(name) <= 1024
    if not plain or any(part in ("", ".", "..") for part in name.split("/")):
        raise DamagedError(f"expected an object name that is a plain relative path, got {name!r}")
    return name


def is_safe(name: str) -> bool:
    """Return whether `safe_name` accepts the name."""
    with contextlib.suppress(DamagedError):
        return safe_name(name) == name
    return False


@contextlib.contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """Give the source as a file at its beginning; one that came open stays open."""
    if isinstance(source, bytes):
        yield io.BytesIO(source)
    elif isinstance(source, Path):
        with source.open("rb") as file:
            yield file
    else:
        source.seek(0)
        yield source


def checksum(file: BinaryIO, copy_to: BinaryIO | None = None) -> tuple[int, int]:
    """Return size and crc32c of the rest of the file, which is copied on the way if so wished."""
    size = crc = 0
    while chunk := file.read(READ_BYTES):
        crc = google_crc32c.extend(crc, chunk)
        size += len(chunk)
        if copy_to is not None:
            copy_to.write(chunk)
    return size, crc


def source_checksum(source: Source) -> tuple[int, int]:
    """Return size and crc32c of a source."""
    with opened(source) as file:
        return checksum(file)


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Give a new file, fsynced if the block succeeds and removed if it fails."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


class LocalStore:
    """Objects as files below a mounted folder, each published by one rename."""

    def __init__(self, root: Path, policy: RetryPolicy | None = None) -> None:
        self._root = root
        self._retrier = Retrier(policy or RetryPolicy())

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

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """See ObjectStore."""
        self._run(f"store {name}", lambda: self._put(self._path(name), source, if_absent))

    def holds(self, name: str, source: Source) -> bool:
        """See ObjectStore."""
        path = self._path(name)
        return self._run(f"look at {name}", lambda: path.is_file() and source_checksum(path) == source_checksum(source))

    def get(self, name: str, target: Path, limit: int) -> None:
        """See ObjectStore."""
        self._run(f"fetch {name}", lambda: self._get(self._path(name), target, limit))

    def list(self, prefix: str) -> Listing:
        """See ObjectStore."""
        return self._run(f"list {prefix}", lambda: self._list(prefix))

    def delete(self, name: str) -> None:
        """See ObjectStore."""
        self._run(f"delete {name}", lambda: self._delete(self._path(name)))

    def cancel(self) -> None:
        """See ObjectStore."""
        self._retrier.cancelled.set()

    def _run(self, what: str, action: Callable[[], Result]) -> Result:
        def attempt(_: float) -> Result:
            try:
                return action()
            except OSError as error:
                kind = CloudError if error.errno in _REFUSED else UnavailableError
                raise kind(f"cannot {what}: {error.strerror or type(error).__name__}") from None

        return self._retrier.run(what, attempt)

    def _path(self, name: str) -> Path:
        return self._root / safe_name(name)

    def _put(self, path: Path, source: Source, if_absent: bool) -> None:
        # Created one by one below the root only: a volume that is not mounted must not be made up.
        if not self._root.is_dir():
            raise UnavailableError(f"{self._root} is not mounted")
        make_directory(path.parent)
        # A run has one writer: what another left under this object's name died with it.
        for left in path.parent.glob(f"{TEMPORARY}{glob.escape(path.name)}-*"):
            left.unlink(missing_ok=True)
        temporary = path.with_name(f"{TEMPORARY}{path.name}-{secrets.token_hex(8)}")
        try:
            with opened(source) as file, new_file(temporary) as copy:
                sent = checksum(file, copy)
            _publish(temporary, path, if_absent, sent)
        finally:
            temporary.unlink(missing_ok=True)
        fsync(path.parent)
        if source_checksum(path) != sent:
            raise UnavailableError("what is stored differs from what was sent")

    def _get(self, path: Path, target: Path, limit: int) -> None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            raise MissingError(f"no object {path.relative_to(self._root)}") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise DamagedError(f"expected a file of at most {limit} bytes, got {status.st_size}: {path.name}")
        with path.open("rb") as file, new_file(target) as copy:
            size, _ = checksum(file, copy)
            if size != status.st_size:
                raise UnavailableError(f"expected {status.st_size} bytes, got {size}")

    def _list(self, prefix: str) -> Listing:
        folder = self._root / safe_name(prefix.rpartition("/")[0]) if "/" in prefix else self._root
        found = []
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(self._root).as_posix()
            if not name.startswith(prefix) or path.name.startswith(TEMPORARY) or not is_safe(name):
                continue
            # A file may vanish while its neighbours are read.
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    found.append(ObjectInfo(name, status.st_size, status.st_mtime))
        return found

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        if path.parent == self._root or not path.parent.is_dir():
            return
        left = list(path.parent.iterdir())
        if all(item.name.startswith(TEMPORARY) for item in left):
            for item in left:
                item.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another object may have come meanwhile
                path.parent.rmdir()


def _publish(temporary: Path, path: Path, if_absent: bool, sent: tuple[int, int]) -> None:
    if not if_absent:
        temporary.replace(path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        _require_same(path, sent)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Volumes without links (FAT, many network mounts) leave a short time in which another writer may come between.
        if path.exists():
            _require_same(path, sent)
        else:
            temporary.replace(path)


def _require_same(path: Path, sent: tuple[int, int]) -> None:
    if source_checksum(path) != sent:
        raise ConflictError(f"{path.name} exists with other content; does another run write under the same name?")
