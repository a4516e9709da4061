"""One process per run: a lock that names its owner and tells a live owner from a dead one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from utils.errors import ConfigError

LOCK = "lock"
HEARTBEAT_SECONDS = 15.0
STALE_SECONDS = 90.0  # a lock of another host without a heartbeat for this long is abandoned


class RunLock:
    """A lock held by the one process that writes into a run's folder; use it in a `with` block.

    On one machine the system's file lock decides, which ends with its process. Machines that share a volume may not
    share such locks, so the owner also renews the file's time as a heartbeat.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._descriptor = -1
        self._released = threading.Event()

    def __enter__(self) -> RunLock:
        """Raises ConfigError, naming the owner, if another live process holds the lock."""
        descriptor = self._locked_file()
        host, age = socket.gethostname(), time.time() - self._path.stat().st_mtime
        if self._owner().get("host", host) != host and age < STALE_SECONDS:
            os.close(descriptor)
            raise self._held()
        owner = {"pid": os.getpid(), "host": host}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
        self._descriptor = descriptor
        threading.Thread(target=self._beat, name="run lock", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()
        # Unlinked before it is unlocked: nobody must lock a file that has lost its name.
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _locked_file(self) -> int:
        """Open and lock the lock file; return its descriptor."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise self._held() from None
            # The last owner may have unlinked the file between our opening and locking it.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(self._path).st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            os.close(descriptor)

    def _held(self) -> ConfigError:
        owner = self._owner()
        return ConfigError(
            f"expected a run that nobody else works on, got {self._path.parent}, which process {owner.get('pid')} on "
            f"{owner.get('host')} holds; wait for it, or choose another --run (a lock that is not renewed for "
            f"{STALE_SECONDS:.0f} s is taken over)"
        )

    def _owner(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._path.read_text()))
        except (OSError, ValueError, TypeError):
            return {}

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            with contextlib.suppress(OSError):
                os.utime(self._path)


def wait_for_lost_owner(folder: Path) -> None:
    """Wait, at most `STALE_SECONDS`, until another machine's lock proves abandoned: for a job submitted again."""
    path, deadline = folder / LOCK, time.monotonic() + STALE_SECONDS
    with contextlib.suppress(OSError, ValueError, AttributeError):
        while json.loads(path.read_text()).get("host") != socket.gethostname() and time.monotonic() < deadline:
            if time.time() - path.stat().st_mtime >= STALE_SECONDS:
                return
            time.sleep(1.0)
