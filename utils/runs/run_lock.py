"""One process per run: a lock that names its owner and tells a live owner from a dead one."""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any, Self

from filelock import Timeout, UnixFileLock

from utils.errors import ConfigError

LOCK = "lock"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 90.0  # a lock of another host without a heartbeat for this long is abandoned
_TRY_SECONDS = 0.2  # again after an owner that removes its lock at this moment


class RunLock:
    """A lock held by the one process that writes into a run's folder; use it in a `with` block.

    On one machine the system's file lock decides, which ends with its process. Machines that share a volume may not
    share such locks, so the owner also renews the file's time as a heartbeat.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._lock = UnixFileLock(self._path, timeout=_TRY_SECONDS, fallback_to_soft=False)
        self._released = threading.Event()

    def __enter__(self) -> Self:
        """Raises ConfigError, naming the owner, if another live process holds the lock."""
        try:
            self._lock.acquire()
        except Timeout:
            raise self._held() from None
        if _is_held_elsewhere(self._path):
            self._lock.release()
            raise self._held()
        self._path.write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        threading.Thread(target=self._beat, name="run lock", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        # Unlinked before it is unlocked: nobody must lock a file that has lost its name.
        self._path.unlink(missing_ok=True)
        self._lock.release()

    def _held(self) -> ConfigError:
        owner = _owner(self._path)
        return ConfigError(
            f"expected a folder that nobody else works on, got {self._path.parent}, which process {owner.get('pid')} "
            f"on {owner.get('host')} holds; wait for it, or choose another name (a lock that is not renewed for "
            f"{STALE_SECONDS:.0f} s is taken over)"
        )

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def require_free(folder: Path) -> None:
    """Raise ConfigError, naming the owner, if a live process holds the lock of a run."""
    if (folder / LOCK).exists():
        with RunLock(folder):
            pass


def _owner(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text()))
    return {}


def _is_held_elsewhere(path: Path) -> bool:
    """Return whether another machine has renewed its lock lately."""
    host = socket.gethostname()
    return _owner(path).get("host", host) != host and is_held(path.parent)


def is_held(folder: Path) -> bool:
    """Return whether a process works on a run, by the heartbeat of its lock; one that was killed counts for a while."""
    with contextlib.suppress(OSError):
        return abs(time.time() - (folder / LOCK).stat().st_mtime) < STALE_SECONDS  # its machine's clock may be ahead
    return False


def wait_for_lost_owner(folder: Path) -> None:
    """Wait, at most `STALE_SECONDS`, until another machine's lock proves abandoned: for a job submitted again."""
    deadline = time.monotonic() + STALE_SECONDS
    while _is_held_elsewhere(folder / LOCK) and time.monotonic() < deadline:
        time.sleep(1.0)
