"""Uploads of a run's files in the background."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from utils.cloud.store import ObjectStore, is_safe
from utils.errors import CloudError, ConfigError, StopRequested
from utils.progress import Progress
from utils.runs.checkpoint import MANIFEST, generation_name, generation_of, list_checkpoints
from utils.runs.durable import is_litter
from utils.runs.find import CONFIG
from utils.runs.run_log import CHECKPOINTS

log = logging.getLogger(__name__)

STOP_GRACE_SECONDS = 2.0  # time left to uploads after a signal: a rented machine is gone 5 s after it
ERROR_GRACE_SECONDS = 60.0  # time left to uploads when an error ends the run


class CloudSync:
    """A thread that uploads a run's files and checkpoints, under the name of its folder; use it in a `with` block.

    Only `drain` waits. Uploads keep their order; of a checkpoint `manifest.json` is the last, and all of it stays
    readable even if retention removes it meanwhile. The run's settings claim its name: if the store holds another
    run's, nothing is uploaded.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        """Start the thread. Raises ConfigError for a folder whose name is no safe object name."""
        if not is_safe(folder.name):
            raise ConfigError(
                f"expected a run's name without colons and backslashes, got {folder.name!r}; choose another"
            )
        self._store, self._folder = store, folder
        self._changed = threading.Condition()
        self._pending: dict[Path, object] = {}  # in order, with what tells one request from a later one
        self._failed: dict[Path, str] = {}  # with the reason
        self._done = 0
        self._prunes = self._is_claimed = self._closed = False
        # A daemon: a hanging connection does not keep the program from ending.
        threading.Thread(target=self._work, name="cloud uploads", daemon=True).start()

    def __enter__(self) -> CloudSync:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not self._closed:
            deadline = time.monotonic() + ERROR_GRACE_SECONDS
            if isinstance(error, StopRequested):
                deadline = error.asked_at + STOP_GRACE_SECONDS
            self._wait_idle(deadline)
            if missing := self.missing():
                log.warning("%s; not in the cloud: %s", self.status(), "; ".join(missing))
        self.close()

    def submit(self, *paths: Path, prune: bool = False) -> None:
        """Upload files and checkpoints of the folder, as they are when their turn comes; missing ones are skipped.

        Args:
            prune: from now on the store loses the generations that the disk no longer has.
        """
        with self._changed:
            self._prunes |= prune
            self._pending |= {path: object() for path in paths if path.exists()}
            self._changed.notify_all()

    def status(self) -> str:
        """Return the numbers of pending, finished and failed uploads."""
        with self._changed:
            return f"Upload status: {len(self._pending)} pending, {self._done} done, {len(self._failed)} failed"

    def missing(self) -> list[str]:
        """Return the names of failed and pending uploads, with the reason."""
        with self._changed:
            reasons = dict.fromkeys(self._pending, "not uploaded in time") | self._failed
            return [f"{self._name(path)} ({reason})" for path, reason in reasons.items() if path.exists()]

    def drain(self, seconds: float, safe_point: Callable[[], None] = lambda: None) -> str:
        """Wait up to `seconds`, with a progress bar, for all uploads, failed ones tried once more; return the status.

        `safe_point` is called meanwhile and may raise. Raises CloudError, naming what is missing, if anything is.
        """
        deadline = time.monotonic() + seconds
        with Progress("Uploading files", "file") as bar:

            def tick() -> None:
                safe_point()
                with self._changed:
                    bar.update(self._done - bar.done, total=len(self._pending) + self._done)

            self._wait_idle(deadline, tick)
            self.submit(*self._failed)
            self._wait_idle(deadline, tick)
        if missing := self.missing():
            self.close()
            raise CloudError(
                f"{self.status()}; missing in the cloud: {'; '.join(missing)}; the files are in {self._folder}"
            )
        return self.status()

    def close(self) -> None:
        """Begin no more uploads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _name(self, path: Path) -> str:
        return f"{self._folder.name}/{path.relative_to(self._folder).as_posix()}"

    def _wait_idle(self, deadline: float, tick: Callable[[], None] = lambda: None) -> None:
        while self._pending and (left := deadline - time.monotonic()) > 0:
            tick()
            with self._changed:
                self._changed.wait(min(left, 0.1))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._pending)
                if self._closed:
                    return
                path, request = next(iter(self._pending.items()))
            failure = self._upload(path)
            if failure and not self._closed:
                log.warning("upload of %s failed: %s", self._name(path), failure)
            with self._changed:
                self._failed.pop(path, None)
                if failure:
                    self._failed[path] = failure
                if self._pending.get(path) is request:
                    del self._pending[path]
                self._changed.notify_all()

    def _upload(self, path: Path) -> str:
        """Upload a file or a checkpoint; return why it failed, or an empty string."""
        settings = self._folder / CONFIG
        try:
            if not self._is_claimed and settings.is_file():
                self._store.put(self._name(settings), settings.read_bytes(), if_absent=True)
                self._is_claimed = True
            if generation_of(path.name) is None:
                self._store.put(self._name(path), path.read_bytes())  # a copy: the file may grow meanwhile
            else:
                self._upload_generation(path)
            self._done += 1
        except FileNotFoundError:
            log.info("%s is not uploaded: it has been removed", path.name)
        except CloudError as error:
            return str(error)
        except Exception as error:  # training continues; the end of the run reports it
            return f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'unexpected'}"
        return ""

    def _upload_generation(self, path: Path) -> None:
        with contextlib.ExitStack() as stack:
            # All are opened first: retention may remove them meanwhile.
            paths = (file for file in path.iterdir() if not is_litter(file.name))
            files = {file.name: stack.enter_context(file.open("rb")) for file in paths}
            for name in sorted(files, key=lambda name: name == MANIFEST):
                self._store.put(f"{self._name(path)}/{name}", files[name])
        try:
            self._prune()
        except CloudError as error:  # the next time
            log.warning("old generations stay in the cloud: %s", error)

    def _prune(self) -> None:
        """Delete generations that the disk no longer has, unless none that it has is complete in the store."""
        kept, run = list_checkpoints(self._folder / CHECKPOINTS).keys(), self._folder.name
        generations = list_generations(self._store, run) if self._prunes else {}
        if not any(MANIFEST in generations.get(generation, ()) for generation in kept):
            return
        for generation in sorted(generations.keys() - kept):
            # The manifest first, so that the rest is never taken for a complete generation.
            for name in sorted(generations[generation], key=lambda name: name != MANIFEST):
                self._store.delete(f"{run}/{CHECKPOINTS}/{generation_name(generation)}/{name}")


def list_generations(store: ObjectStore, run: str) -> dict[int, set[str]]:
    """Return the file names of each generation of a run, complete or not."""
    files: dict[int, set[str]] = {}
    for name in store.list(f"{run}/{CHECKPOINTS}/"):
        folder, _, file = name.removeprefix(f"{run}/{CHECKPOINTS}/").partition("/")
        if file and (generation := generation_of(folder)) is not None:
            files.setdefault(generation, set()).add(file)
    return files
