"""Object stores for a run's files: their interface with its retries, and one in a mounted folder."""

import contextlib
import errno
import io
import shutil
import stat
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import google_crc32c
from google.api_core.exceptions import RetryError
from google.api_core.retry import Retry

from utils.errors import CloudError, ConfigError, ConflictError, DamagedError, MissingError, UnavailableError
from utils.runs.durable import TEMPORARY, make_directory, new_file

READ_BYTES = 1 << 20
MAX_BYTES = 1 << 30  # of an object that is fetched
Source = bytes | BinaryIO  # bytes to store, or a file open at any position
Content = tuple[int, bytes]  # size and crc32c of an object, by which contents are compared
Result = TypeVar("Result")
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR}


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff from `first_wait_s` to `longest_wait_s`, with jitter, up to `deadline_s` per call.

    At start-up the deadline is `check_s`. A connection that is silent for `timeout_s` counts as dead.
    """

    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    deadline_s: float = 600.0
    timeout_s: float = 60.0
    check_s: float = 30.0


class ObjectStore(ABC):
    """Named objects of bytes, all below one prefix that names do not carry.

    Each call retries transient errors, and raises CloudError when it gives up.
    """

    def __init__(self, policy: RetryPolicy | None = None, below: str = "") -> None:
        self.policy = policy or RetryPolicy()
        self._prefix = f"{safe_name(below)}/" if below else ""
        self._cancelled = threading.Event()

    @abstractmethod
    def check(self) -> bool:
        """Return whether the store can be reached; raise ConfigError if it does not exist or denies access."""

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """Store an object and verify its checksum; with `if_absent`, ConflictError if other content has the name.

        With `if_absent`, what is there already is not sent again.
        """
        full_name, content = self._full_name(name), checksum(_rewound(source))

        def attempt() -> None:
            stored = self._content(full_name) if if_absent else None
            stored = stored or self._put(full_name, _rewound(source), content[0], if_absent)
            if stored != content and if_absent:
                raise ConflictError(f"{name} exists with other content; does another run write under the same name?")
            if stored != content:
                raise UnavailableError("what is stored differs from what was sent")

        self._retry(f"store {name}", attempt)

    def get(self, name: str, target: Path, limit: int = MAX_BYTES) -> None:
        """Fetch an object into a file of at most `limit` bytes. MissingError; DamagedError if it is larger."""
        full_name = self._full_name(name)

        def attempt() -> None:
            content = self._content(full_name)
            if content is None:
                raise MissingError(f"no object {name}")
            if content[0] > limit:
                raise DamagedError(f"expected at most {limit} bytes in {name}, got {content[0]}")
            with self._reader(full_name) as source, new_file(target) as file:
                while data := source.read(min(READ_BYTES, content[0] - file.tell())):
                    self._require_not_cancelled()
                    file.write(data)
                file.seek(0)
                if checksum(file) != content:
                    raise UnavailableError(f"expected {content[0]} bytes with their checksum, got others")

        self._retry(f"fetch {name}", attempt)

    def list(self, prefix: str) -> dict[str, float]:
        """Return sorted safe names -> time stored (s, UTC) below a prefix that is empty or ends in a slash."""
        found = self._retry(f"list {prefix}", lambda: dict(self._list(self._prefix + prefix)))
        return {full.removeprefix(self._prefix): found[full] for full in sorted(found) if is_safe(full)}

    def delete(self, name: str) -> None:
        """Remove an object if it exists."""
        full_name = self._full_name(name)
        self._retry(f"delete {name}", lambda: self._delete(full_name))

    def cancel(self) -> None:
        """Make calls in other threads give up after their attempt under way, and later ones at once."""
        self._cancelled.set()

    def _full_name(self, name: str) -> str:
        return self._prefix + safe_name(name)

    @abstractmethod
    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool) -> Content | None:
        """Store a file and return what is stored then; with `if_absent`, a transient error if the object exists."""

    @abstractmethod
    def _content(self, name: str) -> Content | None:
        """Return what is stored under a name, if anything."""

    @abstractmethod
    def _reader(self, name: str) -> BinaryIO:
        """Open an object that exists."""

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[tuple[str, float]]: ...

    @abstractmethod
    def _delete(self, name: str) -> None: ...

    @abstractmethod
    def _translated(self, error: Exception) -> CloudError:
        """Return UnavailableError for transient errors, CloudError for others, in words that reveal no secret."""

    def _retry(self, what: str, attempt: Callable[[], Result], seconds: float | None = None) -> Result:
        """Return the result of the first attempt that succeeds; UnavailableError when it gives up."""

        def translated() -> Result:
            try:
                self._require_not_cancelled()
                return attempt()
            except Exception as caught:
                error = caught if isinstance(caught, CloudError) else self._translated(caught)
            # Raised outside the except block: a chained cause may quote a session's address, which is a key to it.
            raise type(error)(f"cannot {what}: {error}")

        retry = Retry(
            lambda error: isinstance(error, UnavailableError) and not self._cancelled.is_set(),
            initial=self.policy.first_wait_s,
            maximum=self.policy.longest_wait_s,
            timeout=seconds or self.policy.deadline_s,
        )
        try:
            return retry(translated)()
        except RetryError as error:
            last = error.cause
        raise UnavailableError(f"{last} (gave up after {seconds or self.policy.deadline_s:.0f} s)")

    def _require_not_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise UnavailableError("cancelled")


def is_safe(name: str) -> bool:
    """Return whether an object's name, used as a path below a folder, stays within it."""
    plain = name.isprintable() and "\\" not in name and ":" not in name and len(name) <= 1024
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))


def safe_name(name: str) -> str:
    """Return the name; raise DamagedError if it is not safe."""
    if not is_safe(name):
        raise DamagedError(f"expected an object name that is a plain relative path, got {name!r}")
    return name


def checksum(file: BinaryIO) -> Content:
    """Return size and crc32c of the rest of a file."""
    crc = google_crc32c.Checksum()
    return sum(len(chunk) for chunk in crc.consume(file, READ_BYTES)), crc.digest()


class LocalStore(ObjectStore):
    """Objects as files below a mounted folder, each published by one rename."""

    def __init__(self, root: Path, policy: RetryPolicy | None = None, below: str = "") -> None:
        super().__init__(policy, below)
        self._root = root

    def check(self) -> bool:
        try:
            tempfile.TemporaryFile(dir=self._root).close()
        except OSError as error:
            raise ConfigError(
                f"expected CLOUD_BUCKET to be a mounted folder that can be written to, got {str(self._root)!r} "
                f"({error.strerror}); mount it first"
            ) from None
        return True

    def _put(self, name: str, file: BinaryIO, size: int, if_absent: bool) -> Content | None:
        # Never creates the root: uploads must not go to the disk below a mount point.
        if not self._root.is_dir():
            raise UnavailableError(f"{self._root} is not mounted")
        make_directory((self._root / name).parent)
        with new_file(self._root / name, if_absent=if_absent) as stored:
            shutil.copyfileobj(file, stored, READ_BYTES)
        return self._content(name)

    def _content(self, name: str) -> Content | None:
        try:
            if not stat.S_ISREG((self._root / name).lstat().st_mode):
                raise DamagedError(f"expected a file, got something else: {name}")
            with self._reader(name) as file:
                return checksum(file)
        except FileNotFoundError:
            return None

    def _reader(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        folder = self._root / safe_name(prefix.removesuffix("/")) if prefix else self._root
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and not path.name.startswith(TEMPORARY):
                    yield path.relative_to(self._root).as_posix(), status.st_mtime

    def _delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)
        folder = (self._root / name).parent
        is_below = folder != self._root and folder.is_dir()
        if is_below and all(left.name.startswith(TEMPORARY) for left in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)

    def _translated(self, error: Exception) -> CloudError:
        is_transient = isinstance(error, OSError) and error.errno not in _REFUSED
        reason = getattr(error, "strerror", None) or type(error).__name__
        return UnavailableError(reason) if is_transient else CloudError(reason)


def _rewound(source: Source) -> BinaryIO:
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    file.seek(0)
    return file
