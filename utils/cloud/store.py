"""Object stores for a run's files: five verbs, a mounted folder, and the store that the environment names."""

import contextlib
import io
import json
import logging
import os
import re
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from utils.errors import ConfigError, ConflictError, DamagedError, MissingError, UnavailableError
from utils.runs.durable import TEMPORARY, is_litter, make_directory, new_file

MAX_BYTES = 1 << 30  # of an object that is fetched
Source = bytes | BinaryIO  # bytes to store, or a file open at any position


class ObjectStore(ABC):
    """Named objects of bytes, all below one prefix that names do not carry.

    A call that fails raises CloudError; UnavailableError if a later one may succeed.
    """

    def __init__(self, below: str = "") -> None:
        self._prefix = f"{safe_name(below)}/" if below else ""

    @abstractmethod
    def check(self) -> bool:
        """Return whether the store can be reached; raise ConfigError if it does not exist or denies access."""

    @abstractmethod
    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        """Store an object; with `if_absent`, ConflictError if other content has the name."""

    @abstractmethod
    def get(self, name: str, target: Path, limit: int = MAX_BYTES) -> None:
        """Fetch an object into a file of at most `limit` bytes. MissingError; DamagedError if it is larger."""

    def list(self, prefix: str) -> dict[str, float]:
        """Return sorted safe names -> time stored (s, UTC) below a prefix that is empty or ends in a slash."""
        objects = sorted(one for one in self._list(self._prefix + prefix) if is_safe(one[0]) and not is_litter(one[0]))
        return {full.removeprefix(self._prefix): time for full, time in objects}

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object if it exists."""

    @abstractmethod
    def _list(self, prefix: str) -> Iterator[tuple[str, float]]: ...

    def _full_name(self, name: str) -> str:
        return self._prefix + safe_name(name)


def is_safe(name: str) -> bool:
    """Return whether an object's name, used as a path below a folder, stays within it."""
    plain = name.isprintable() and "\\" not in name and ":" not in name and len(name) <= 1024
    return plain and not any(part in ("", ".", "..") for part in name.split("/"))


def safe_name(name: str) -> str:
    """Return the name; raise DamagedError if it is not safe."""
    if not is_safe(name):
        raise DamagedError(f"expected an object name that is a plain relative path, got {name!r}")
    return name


def rewound(source: Source) -> BinaryIO:
    """Return the source as a file at its beginning."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    file.seek(0)
    return file


def require_content(name: str, stored: bytes, source: Source) -> None:
    """Raise ConflictError if an object that was there already is not the one to store."""
    if stored != rewound(source).read():
        raise ConflictError(f"{name} exists with other content; does another run write under the same name?")


class LocalStore(ObjectStore):
    """Objects as files below a mounted folder, each published by one rename."""

    def __init__(self, root: Path, below: str = "") -> None:
        super().__init__(below)
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

    def put(self, name: str, source: Source, *, if_absent: bool = False) -> None:
        path = self._root / self._full_name(name)
        with _translated(f"store {name}"):
            # Never creates the root: uploads must not go to the disk below a mount point.
            if not self._root.is_dir():
                raise UnavailableError(f"cannot store {name}: {self._root} is not mounted")
            make_directory(path.parent)
            try:
                with new_file(path, if_absent=if_absent) as stored:
                    shutil.copyfileobj(rewound(source), stored)
            except FileExistsError:
                require_content(name, path.read_bytes(), source)

    def get(self, name: str, target: Path, limit: int = MAX_BYTES) -> None:
        path = self._root / self._full_name(name)
        with _translated(f"fetch {name}"):
            if not path.is_symlink() and not path.exists():
                raise MissingError(f"cannot fetch {name}: no object {name}")
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                raise DamagedError(f"cannot fetch {name}: expected a file of at most {limit} bytes, got another")
            with path.open("rb") as source, new_file(target) as file:
                shutil.copyfileobj(source, file)

    def delete(self, name: str) -> None:
        path = self._root / self._full_name(name)
        with _translated(f"delete {name}"):
            path.unlink(missing_ok=True)
            if path.parent != self._root:
                with contextlib.suppress(OSError):  # it holds other objects
                    path.parent.rmdir()

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        for path in (self._root / prefix).rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                status = path.lstat()
                if stat.S_ISREG(status.st_mode) and not path.name.startswith(TEMPORARY):
                    yield path.relative_to(self._root).as_posix(), status.st_mtime


@contextlib.contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"cannot {what}: {error.strerror}") from None


logger = logging.getLogger(__name__)
KEY, KEY_CONTENTS = "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_APPLICATION_CREDENTIALS_JSON"
_KEY_FILE = Path(".config", "erl-trader", "gcs-credentials.json")
_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


def open_cloud(below: str = "") -> ObjectStore | None:
    """Return the store that CLOUD_PROVIDER, CLOUD_BUCKET and CLOUD_PROJECT name, if any. Raises ConfigError.

    Args:
        below: prefix of all names in the store.
    """
    names = "CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT"
    provider, bucket, project = (os.environ.get(name, "").strip() for name in names)
    if not provider and not bucket:
        return None
    if provider not in ("gcs", "local") or not bucket:
        raise ConfigError(
            f"expected CLOUD_PROVIDER=gcs or local with CLOUD_BUCKET, got {provider!r}, {bucket!r}; set both or neither"
        )
    if provider == "local":
        if not Path(bucket).is_absolute():
            raise ConfigError(f"expected CLOUD_BUCKET to be the absolute path of a mounted folder, got {bucket!r}")
        logger.info("cloud: uploads go to the folder %s", bucket)
        return LocalStore(Path(bucket), below)
    if not _BUCKET_NAME.fullmatch(bucket):
        raise ConfigError(f"expected CLOUD_BUCKET to be a bucket's name (without gs:// or a path), got {bucket!r}")
    _provide_key()
    logger.info("cloud: uploads go to the bucket %s", bucket)
    from utils.cloud.gcs import GcsStore  # imported late: it takes a second, and most runs do not need it

    return GcsStore(bucket, project or None, below)


def _provide_key() -> None:
    """Check the key file that the environment names, or write the key that it holds to a file and name that.

    Without either, the library looks for credentials where Google's own tools leave them.
    """
    path, contents = os.environ.get(KEY, ""), os.environ.get(KEY_CONTENTS, "")
    is_readable = os.access(path, os.R_OK)
    if contents and not is_readable:
        os.environ[KEY] = str(_write_key(contents))  # where the library reads it
    elif path and not is_readable:
        # People put the key itself there, which is not shown.
        named = re.fullmatch(r"[~./][\w~./ -]{0,250}|[\w.-]{1,100}\.json", path)
        got = f"{path!r}, which is absent or unreadable" if named else "another text"
        raise ConfigError(
            f"expected {KEY} to be the path of a readable file, got {got}; copy the key there, or put its contents "
            f"into {KEY_CONTENTS}"
        )


def _write_key(contents: str) -> Path:
    """Write a key to a file in the home folder that only its owner can read; return its path."""
    path = Path.home() / _KEY_FILE
    try:
        dict(json.loads(contents))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:  # mode 600
            file.write(contents)
        os.replace(file.name, path)
    except (TypeError, ValueError):
        raise ConfigError(
            f"expected the contents of a key file (JSON) in {KEY_CONTENTS}, got another text, which is not shown; if "
            "it should stand for a secret, create a secret of that name"
        ) from None
    except OSError as error:
        raise ConfigError(f"expected to keep the key of {KEY_CONTENTS} in {path}, got: {error.strerror}") from None
    return path
