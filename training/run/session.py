"""One session of a run: opened or resumed, locked, guarded, trained generation by generation, saved and uploaded.

Knows nothing of what is trained. A command gives it settings and a trainer, and says what to report of a generation.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from utils.cloud.restore import claim_name, fetch_newer, newest_run, require_new_run
from utils.cloud.store import ObjectStore
from utils.cloud.sync import CloudSync
from utils.config.settings import LATEST, settings_hash, settings_to_resume, to_dict
from utils.errors import ConfigError, MemoryLimitReached
from utils.memory.guard import MemoryGuard, release_free_memory
from utils.memory.profiler import get_profiler
from utils.runs.checkpoint import CheckpointWriter, list_checkpoints
from utils.runs.console import setup_logging
from utils.runs.devices import choose_device, choose_threads
from utils.runs.durable import remove_leftovers
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CHECKPOINTS, CONFIG, METRICS, RunLog, latest_run
from utils.runs.seeding import seed_everything
from utils.runs.stopping import SafePoint

logger = logging.getLogger(__name__)
GENERATION = "generation"
"""Label of the memory snapshot at the end of a generation."""
DRAIN_SECONDS = 1800.0
"""How long the end of a run waits for its uploads."""


class RunSettings(Protocol):
    """The settings that every kind of run has."""

    @property
    def run(self) -> str | None: ...
    @property
    def resume(self) -> str | None: ...
    @property
    def runs_dir(self) -> Path: ...
    @property
    def seed(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def verbose(self) -> bool: ...
    @property
    def memory_limit_mb(self) -> float: ...
    @property
    def keep_checkpoints(self) -> int: ...


Settings = TypeVar("Settings", bound=RunSettings)


class Trainer(Protocol):
    """The state that a generation changes and a checkpoint holds."""

    generation: int
    """The last complete one; 0 before the first."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything needed to continue exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""


@dataclass(frozen=True)
class Session(Generic[Settings]):
    """An open run that this process alone writes to."""

    run: RunLog
    settings: Settings
    """Of a resumed run those that it began with, but for the few that may change."""
    device: torch.device
    safe_point: SafePoint
    _hash: str
    _files: tuple[str, ...]
    _results: tuple[str, ...]
    _sync: CloudSync | None

    def restore(self, trainer: Trainer) -> bool:
        """Load the newest generation of a resumed run; False for a run that begins.

        A run that was stopped in its first generation begins anew. Raises ConfigError where no generation is usable.
        """
        is_resumed = self.settings.resume is not None
        has_generation = is_resumed and not self.run.is_stopped_at_first()
        if has_generation:
            trainer.load_state_dict(self.run.newest_checkpoint(self._hash).state)
            logger.info("resumed after generation %d", trainer.generation)
        elif is_resumed:
            logger.info("no generation of %s is complete: it begins anew", self.run.path)
        if is_resumed:
            self.run.truncate_to(trainer.generation)
        self._upload(CONFIG, *self._files)
        if has_generation and self._sync is not None:
            # Nothing is pruned yet: a restored disk holds fewer generations than the store.
            self._upload(METRICS)
            self._sync.submit_generation(list_checkpoints(self.run.path / CHECKPOINTS)[trainer.generation])
        return has_generation

    def train(
        self,
        trainer: Trainer,
        records: Iterable[dict[str, Any]],
        report: Callable[[dict[str, Any], float], None],
        champion: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Train to the end: record, save and report each generation.

        Args:
            records: trains a generation for each record that is taken from it.
            report: shows a record; is also given the seconds for which training waited for the checkpoint.
            champion: generations whose checkpoints stay, besides the newest.
        """
        with CheckpointWriter(
            self.run.path / CHECKPOINTS,
            run_id=self.run.name,
            config_hash=self._hash,
            keep=self.settings.keep_checkpoints,
            on_written=self._upload_checkpoint,
        ) as writer:
            for record in records:
                release_free_memory()
                # Before the checkpoint, whose copy of the state comes and goes with the thread that writes it.
                get_profiler().log_memory(GENERATION)
                self.run.append(record)
                started = time.perf_counter()
                writer.submit(trainer.generation, trainer.state_dict(), champion())
                report(record, time.perf_counter() - started)
                if self._sync is not None:
                    logger.info("%s", self._sync.status())

    def _upload(self, *names: str) -> None:
        if self._sync is not None:
            self._sync.submit_files(self.run.path / name for name in names)

    def _upload_checkpoint(self, path: Path) -> None:
        """Upload a checkpoint that has been verified, the metrics up to it, and the retention that it brought."""
        if self._sync is not None:
            self._upload(METRICS)
            self._sync.submit_generation(path, keep=list_checkpoints(path.parent))

    def _finish_uploads(self) -> None:
        """Upload the results and wait until everything is stored. Raises CloudError, naming what is missing."""
        if self._sync is not None:
            self._upload(CONFIG, METRICS, *self._files, *self._results)
            logger.info("%s", self._sync.drain(DRAIN_SECONDS, self.safe_point))


@contextlib.contextmanager
def open_session(
    settings: Settings,
    explicit: frozenset[str],
    *,
    store: ObjectStore | None = None,
    files: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
) -> Iterator[Session[Settings]]:
    """Open the run that the settings ask for, and hold it while the block runs.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.
        store: where the run is kept besides the disk.
        files: names of files, written before the first generation, that are kept there too.
        results: names of files, written at the end, that are kept there too.

    Raises:
        ConfigError: there is no such run, its name is taken, settings differ that may not, or the store is not there.
        CloudError: a run must come from the store, which cannot be reached; or not all of it could be stored.
        StopRequested, MemoryLimitReached: the run stopped at a safe point; its last complete generation is on disk.
        CheckpointError: no checkpoint can be written.
    """
    run, settings = open_run(settings, explicit, store, files)
    with contextlib.ExitStack() as stack:
        stack.callback(run.close)
        stack.enter_context(RunLock(run.path))
        safe_point = stack.enter_context(SafePoint(MemoryGuard(settings.memory_limit_mb or None)))
        sync = None if store is None else stack.enter_context(CloudSync(store, run.path))
        setup_logging(run.path, verbose=settings.verbose)
        remove_leftovers(run.path / CHECKPOINTS)
        logger.debug("run %s, seed %d", run.path, settings.seed)
        device = choose_device(settings.device)
        choose_threads(settings.threads)
        get_profiler.cache_clear()
        seed_everything(settings.seed)
        session = Session(run, settings, device, safe_point, settings_hash(settings), files, results, sync)
        try:
            yield session
        except MemoryLimitReached:
            get_profiler().log_memory("memory limit", show_objects=True)
            raise
        session._finish_uploads()


def open_run(
    settings: Settings,
    explicit: frozenset[str],
    store: ObjectStore | None = None,
    files: Collection[str] = (),
) -> tuple[RunLog, Settings]:
    """Return a new run, or the one to resume, with the settings that hold for it; see `open_session`.

    A resumed run that is not on this disk, or of which the store has a later generation, is fetched from there.
    """
    is_reached = store is not None and store.check()
    if settings.resume is None:
        if store is not None and is_reached and settings.run is not None:
            require_new_run(store, settings.run)
        run = RunLog.create(settings.runs_dir, settings.run, to_dict(settings))
        if store is not None and is_reached:
            claim_name(store, run.path)
        return run, settings
    name = settings.resume if settings.resume != LATEST else _newest_name(settings.runs_dir, store)
    if store is not None:
        fetch_newer(store, settings.runs_dir / name, files, is_reached=is_reached)
    run = RunLog.open(settings.runs_dir, name)
    return run, settings_to_resume(run.settings(type(settings)), settings, explicit)


def _newest_name(runs_dir: Path, store: ObjectStore | None) -> str:
    try:
        return latest_run(runs_dir, to_resume=True)
    except ConfigError:
        if store is None:
            raise
        return newest_run(store)
