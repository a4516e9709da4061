"""Uploads of a run's files that training never waits for."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

from utils.cloud.store import ObjectStore, is_safe
from utils.errors import CloudError, ConfigError, StopRequested
from utils.runs.checkpoint import MANIFEST, generation_of
from utils.runs.run_log import CHECKPOINTS, CONFIG

log = logging.getLogger(__name__)

UPLOAD_THREADS = 4
STOP_GRACE_SECONDS = 2.0
"""How long after a signal uploads may go on: a rented machine is gone 5 s after it."""
ERROR_GRACE_SECONDS = 60.0
"""How long they may go on when an error ends the run."""


@dataclass(frozen=True)
class UploadStatus:
    """Numbers of objects that wait or are on their way, that were stored, and that failed to be."""

    pending: int
    done: int
    failed: int

    def __str__(self) -> str:
        return f"uploads: {self.pending} pending, {self.done} done, {self.failed} failed"


@dataclass
class _Job:
    """One file, or one checkpoint directory, of which `stored` out of `objects` are in the store."""

    path: Path
    objects: int
    generation: int | None = None
    stored: int = 0
    reason: str = ""


class _Superseded(Exception):
    """A checkpoint that retention removed before its upload began."""


class CloudSync:
    """Uploads of a run's files, under the name of its folder, in threads of their own.

    Nothing but `drain` waits. Checkpoints are read from their immutable directories, newest first, and stay readable
    while they are uploaded even if retention removes them; `manifest.json` goes last. Other files go before the
    checkpoint that follows them, so that metrics are never behind it. The run's settings, which never change, claim its
    name: where another run's are in the store, nothing is uploaded. Use it in a `with` block.
    """

    def __init__(self, store: ObjectStore, folder: Path) -> None:
        """Start the threads. Raises ConfigError for a folder whose name no store should hold."""
        if not is_safe(folder.name):
            raise ConfigError(
                f"expected a run's name without colons and backslashes, got {folder.name!r}; choose another"
            )
        self._store, self._folder = store, folder
        self._changed = threading.Condition()
        self._waiting: dict[Path, _Job] = {}
        self._failed: dict[Path, _Job] = {}
        self._active: _Job | None = None
        self._kept: frozenset[int] | None = None
        self._prune_due = False
        self._done = 0
        self._is_claimed = False
        self._closed = False
        threading.Thread(target=self._work, name="cloud uploads", daemon=True).start()

    def __enter__(self) -> CloudSync:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and not self._closed:
            self._wait_idle(_end_of_grace(error))
            if missing := self.missing():
                log.warning("%s; not in the cloud: %s", self.status(), "; ".join(missing))
        self.close()

    def submit_files(self, paths: Iterable[Path]) -> None:
        """Upload files of the folder as they are when their turn comes; those that do not exist are left out."""
        with self._changed:
            for path in paths:
                if path.is_file():
                    self._waiting[path] = _Job(path, 1)
            self._changed.notify_all()

    def submit_generation(self, path: Path) -> None:
        """Upload a checkpoint directory of the folder; one that is in the store already costs a look only."""
        try:
            objects = len(os.listdir(path))
        except FileNotFoundError:
            return
        with self._changed:
            self._waiting[path] = _Job(path, objects, generation_of(path.name))
            self._changed.notify_all()

    def prune(self, keep: Collection[int]) -> None:
        """Keep these generations only from now on, as on disk; others go once one of these is in the store."""
        with self._changed:
            self._kept, self._prune_due = frozenset(keep), True
            for job in filter(self._is_superseded, list(self._waiting.values())):
                log.info("generation %d is not uploaded: newer ones supersede it", job.generation)
                del self._waiting[job.path]
            self._failed = {path: job for path, job in self._failed.items() if not self._is_superseded(job)}
            self._changed.notify_all()

    def status(self) -> UploadStatus:
        """Return the counts of objects at this moment."""
        with self._changed:
            pending = sum(job.objects - job.stored for job in self._unfinished())
            failed = sum(job.objects - job.stored for job in self._failed.values())
            return UploadStatus(pending, self._done, failed)

    def missing(self) -> list[str]:
        """Return the names of what failed or is not uploaded yet, with the reason."""
        with self._changed:
            jobs = [*self._failed.values(), *self._unfinished()]
            return [f"{self._name(job.path)} ({job.reason or 'not uploaded in time'})" for job in jobs]

    def drain(self, seconds: float, safe_point: Callable[[], None] = lambda: None) -> UploadStatus:
        """Wait with a bar until everything is uploaded, what failed before once more; for `seconds` at most.

        Raises CloudError, naming what is missing in the store, if anything is; uploads end then. `safe_point` is called
        meanwhile, and what it raises ends the waiting.
        """
        with self._changed:
            again = {path: _Job(path, job.objects, job.generation) for path, job in self._failed.items()}
            self._waiting = again | self._waiting
            self._failed.clear()
            self._changed.notify_all()
        with tqdm(desc="Uploading", unit="file", leave=False, disable=None, delay=0.5) as bar:

            def tick() -> None:
                safe_point()
                status = self.status()
                bar.total = status.pending + status.done
                bar.update(status.done - bar.n)

            self._wait_idle(time.monotonic() + seconds, tick)
        status, missing = self.status(), self.missing()
        if missing:
            self.close()
            raise CloudError(f"{status}; missing in the cloud: {'; '.join(missing)}; the files are in {self._folder}")
        return status

    def close(self) -> None:
        """End the uploads at once, and with them the store if any are under way; what is not stored yet is not."""
        with self._changed:
            self._closed = True
            if self._is_busy():
                self._store.cancel()
            self._changed.notify_all()

    def _unfinished(self) -> list[_Job]:
        return [*([] if self._active is None else [self._active]), *self._waiting.values()]

    def _is_superseded(self, job: _Job) -> bool:
        return job.generation is not None and self._kept is not None and job.generation not in self._kept

    def _is_busy(self) -> bool:
        return self._prune_due or bool(self._unfinished())

    def _name(self, path: Path) -> str:
        return f"{self._folder.name}/{path.relative_to(self._folder).as_posix()}"

    def _wait_idle(self, deadline: float, tick: Callable[[], None] = lambda: None) -> None:
        while (left := deadline - time.monotonic()) > 0:
            tick()
            with self._changed:
                if self._closed or not self._is_busy():
                    return
                self._changed.wait(min(left, 0.1))

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._is_busy())
                if self._closed:
                    return
                job = self._active = self._next()
            if job is None:
                self._prune()
            else:
                self._upload(job)

    def _next(self) -> _Job | None:
        """Return what to upload now; None if retention is due, which keeps pace with uploads that lag behind."""
        job = next((job for job in self._waiting.values() if job.generation is None), None)
        if job is None and self._prune_due:
            return None
        return self._waiting.pop(
            job.path if job else max(self._waiting.values(), key=lambda job: job.generation or 0).path
        )

    def _upload(self, job: _Job) -> None:
        failure = ""
        try:
            self._claim_name()
            if job.generation is not None:
                self._upload_generation(job)
            else:
                # A copy in memory: the file may grow while it is sent.
                self._store.put(self._name(job.path), job.path.read_bytes())
                self._note_stored(job)
        except _Superseded:
            log.info("%s is not uploaded: it has been removed", job.path.name)
        except CloudError as error:
            failure = str(error)
        except Exception as error:  # whatever it is, training goes on and the end of the run tells
            failure = f"{type(error).__name__}: {getattr(error, 'strerror', None) or 'unexpected'}"
        with self._changed:
            self._active = None
            self._failed.pop(job.path, None)
            # Older generations may go now that a newer one is stored.
            self._prune_due |= job.generation is not None and not failure and self._kept is not None
            if failure and not self._is_superseded(job):
                job.reason = failure
                self._failed[job.path] = job
            self._changed.notify_all()
        if failure and not self._closed:
            log.warning("upload of %s failed: %s", self._name(job.path), failure)

    def _claim_name(self) -> None:
        """Store the run's settings unless they are there; CloudError if another run's are."""
        settings = self._folder / CONFIG
        if not self._is_claimed and settings.is_file():
            self._store.put(self._name(settings), settings.read_bytes(), if_absent=True)
            self._is_claimed = True

    def _upload_generation(self, job: _Job) -> None:
        base = self._name(job.path)
        with contextlib.ExitStack() as stack:
            # All are opened first: what retention removes meanwhile can still be read.
            files = _open_all(job.path, stack)
            manifest = files.pop(MANIFEST)
            stored = {Path(info.name).name for info in self._store.list(f"{base}/")}
            if MANIFEST in stored:
                if self._store.holds(f"{base}/{MANIFEST}", manifest):
                    self._note_stored(job, job.objects)
                    return
                # The run went back to an earlier generation; without its manifest the other one is no longer complete.
                log.warning("%s in the cloud is replaced by a later one of the same generation", base)
                self._store.delete(f"{base}/{MANIFEST}")
            in_parallel([partial(self._put, job, f"{base}/{name}", file) for name, file in files.items()])
            self._store.put(f"{base}/{MANIFEST}", manifest, if_absent=True)
            self._note_stored(job)

    def _put(self, job: _Job, name: str, file: BinaryIO) -> None:
        if not self._store.holds(name, file):
            self._store.put(name, file)
        self._note_stored(job)

    def _note_stored(self, job: _Job, objects: int = 1) -> None:
        with self._changed:
            job.stored += objects
            self._done += objects
            self._changed.notify_all()

    def _prune(self) -> None:
        with self._changed:
            keep = self._kept
        try:
            prune_generations(self._store, self._folder.name, keep or ())
        except Exception as error:  # what stays costs room only; the next time it goes
            reason = str(error) if isinstance(error, CloudError) else type(error).__name__
            log.warning("old generations stay in the cloud: %s", reason)
        with self._changed:
            self._prune_due = self._kept is not keep
            self._changed.notify_all()


def list_generations(store: ObjectStore, run: str) -> dict[int, dict[str, str]]:
    """Return the objects of each generation of a run, complete or not: generation -> file name -> object name."""
    base = f"{run}/{CHECKPOINTS}/"
    found: dict[int, dict[str, str]] = {}
    for info in store.list(base):
        folder, _, name = info.name.removeprefix(base).partition("/")
        if name and (generation := generation_of(folder)) is not None:
            found.setdefault(generation, {})[name] = info.name
    return {generation: found[generation] for generation in sorted(found)}


def prune_generations(store: ObjectStore, run: str, keep: Collection[int]) -> list[int]:
    """Delete a run's generations except those to keep; manifest first, so that what is left is never taken for whole.

    Deletes nothing unless one to keep is complete. Returns what was deleted.
    """
    generations = list_generations(store, run)
    if not any(MANIFEST in files for generation, files in generations.items() if generation in keep):
        return []
    removed = [generation for generation in generations if generation not in keep]
    for generation in removed:
        files = generations[generation]
        for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
            store.delete(files[name])
    return removed


def in_parallel(tasks: list[Callable[[], None]], threads: int = UPLOAD_THREADS) -> None:
    """Run tasks in a few threads; the first error is raised once all threads have ended, and no task begins after it.

    The threads are daemons: a connection that hangs does not keep the program from ending.
    """
    waiting, errors = list(reversed(tasks)), list[Exception]()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while not errors:
                task = waiting.pop()
                try:
                    task()
                except Exception as error:
                    errors.append(error)

    workers = [threading.Thread(target=work, name="cloud upload", daemon=True) for _ in tasks[:threads]]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


def _open_all(folder: Path, stack: contextlib.ExitStack) -> dict[str, BinaryIO]:
    try:
        return {
            path.name: stack.enter_context(open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb"))
            for path in sorted(folder.iterdir())
        }
    except FileNotFoundError:
        raise _Superseded from None


def _end_of_grace(error: BaseException) -> float:
    if isinstance(error, StopRequested):
        return error.asked_at + STOP_GRACE_SECONDS
    return time.monotonic() + (0.0 if isinstance(error, KeyboardInterrupt) else ERROR_GRACE_SECONDS)
