"""A session of a run: opened or resumed, locked, guarded, trained generation by generation, saved and uploaded.

It is generic over the experiment: a command provides settings, a trainer and the report of a generation.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from utils.cloud.restore import fetch_newer, require_unused
from utils.cloud.store import ObjectStore
from utils.cloud.sync import CloudSync
from utils.config.settings import RunSettings, named_values, settings_hash, settings_to_resume, to_dict
from utils.errors import CheckpointError, MemoryLimitReached
from utils.memory_guard import MemoryGuard
from utils.memory_profiler import get_profiler, restart_profiler
from utils.runs.checkpoint import Checkpoint, checkpoint_writer, list_checkpoints, read_manifest
from utils.runs.console import LOG, setup_logging
from utils.runs.devices import choose_device, choose_threads, seed_everything
from utils.runs.durable import remove_leftovers
from utils.runs.ending import SafePoint, locked, resumable
from utils.runs.find import CONFIG, METRICS, name_to_resume
from utils.runs.run_log import CHECKPOINTS, EVENTS, SETTINGS, RunLog
from utils.runs.state_tree import misfit
from utils.runs.tracker import TRACKED, Tracker

logger = logging.getLogger(__name__)
DRAIN_SECONDS = 1800.0
"""Longest wait for uploads at the end of a run."""


Settings = TypeVar("Settings", bound=RunSettings)


class Trainer(Protocol):
    """State that a generation updates and a checkpoint saves."""

    @property
    def generation(self) -> int:
        """The last complete one; 0 before the first."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return all state needed to continue exactly."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of `state_dict`."""


@dataclass(frozen=True)
class Session(Generic[Settings]):
    """An open run to which only this process writes."""

    run: RunLog
    settings: Settings
    """Of a resumed run, those it began with, except the few that may change."""
    device: torch.device
    safe_point: SafePoint
    _hash: str
    _files: tuple[str, ...]
    _sync: CloudSync | None

    def restore(self, trainer: Trainer) -> bool:
        """Load the newest generation of a resumed run; False for a run that starts.

        A run stopped in its first generation starts again. Raises ConfigError where no generation is usable.
        """
        is_resumed = self.settings.resume is not None
        if has_generation := is_resumed and not self.run.is_stopped_at_first():
            began = trainer.state_dict()

            def take_over(checkpoint: Checkpoint) -> int:
                if problem := misfit(checkpoint.state, began):
                    raise CheckpointError(problem)
                trainer.load_state_dict(checkpoint.state)
                return checkpoint.generation

            self.run.use_newest(self._hash, take_over)
            logger.info("resumed after generation %d", trainer.generation)
        elif is_resumed:
            logger.info("no generation of %s is complete: it begins anew", self.run.path)
        if is_resumed:
            self.run.truncate_to(trainer.generation)
            self._upload(CONFIG, SETTINGS, *self._files)
        if has_generation and self._sync is not None:
            # Nothing is pruned yet: a restored disk may hold fewer generations than the store.
            self._sync.submit(list_checkpoints(self.run.path / CHECKPOINTS)[trainer.generation])
        return has_generation

    @contextlib.contextmanager
    def saving(self, trainer: Trainer) -> Iterator[Callable[[dict[str, Any]], float]]:
        """Yield what records a generation and begins its checkpoint, and returns the seconds that it took from
        training."""
        with checkpoint_writer(
            self.run.path / CHECKPOINTS,
            run_id=self.run.name,
            config_hash=self._hash,
            keep=self.settings.keep_checkpoints,
            on_written=self._upload_checkpoint,
        ) as write:

            def save(record: dict[str, Any]) -> float:
                self.run.append(record)
                started = time.perf_counter()
                write(trainer.generation, trainer.state_dict())
                if self._sync is not None:
                    logger.info("%s", self._sync.status())
                return time.perf_counter() - started

            yield save

    def _upload(self, *patterns: str) -> None:
        """Upload files of the run, with its metrics, log and TensorBoard events so far."""
        if self._sync is not None:
            patterns = (METRICS, LOG, TRACKED, f"{EVENTS}/*", *patterns)
            self._sync.submit(*(path for pattern in patterns for path in self.run.path.glob(pattern)))

    def _upload_checkpoint(self, path: Path) -> None:
        """Upload a verified checkpoint, and prune the store as the disk is."""
        if self._sync is not None:
            is_first = len(list_checkpoints(path.parent)) == 1  # a run that is refused before it takes no name there
            self._upload(*((CONFIG, SETTINGS, *self._files) if is_first else ()))
            self._sync.submit(path, prune=True)


@contextlib.contextmanager
def open_session(
    settings: Settings,
    explicit: frozenset[str],
    *,
    store: ObjectStore | None = None,
    files: tuple[str, ...] = (),
    results: tuple[str, ...] = (),
) -> Iterator[Session[Settings]]:
    """Open the run of the settings for the duration of the block.

    A new run that is refused, by the store or on this disk, leaves nothing behind. An error that stops one says how it
    continues.

    Args:
        explicit: dotted names of the settings that the user gave, which a resumed run takes over or refuses.
        store: store to which the run is uploaded.
        files: patterns of files and checkpoints, written before the first generation, to upload too.
        results: names of files, written at the end, to upload too.

    Raises:
        ConfigError: there is no such run, its name is taken, fixed settings differ, or the store does not exist.
        CloudError: a run must be fetched from an unreachable store, or not all of it could be stored.
        StopRequested, MemoryLimitReached: the run stopped at a safe point; its last complete generation is on disk.
        CheckpointError: no checkpoint can be written.
    """
    is_new = settings.resume is None
    is_reached = store is not None and store.check()
    run, settings = _open_run(settings, explicit, store, is_reached)
    with contextlib.ExitStack() as stack:
        began = run.settings(type(settings))
        stack.enter_context(resumable(run.path, began, settings, lambda: _saved(run, settings)))
        stack.callback(run.close)
        stack.enter_context(locked(run.path, is_new=is_new))
        if is_new and store is not None and is_reached:
            require_unused(store, run.name)
        safe_point = stack.enter_context(SafePoint(MemoryGuard(settings.memory_limit_mb or None)))
        sync = None if store is None else stack.enter_context(CloudSync(store, run.path))
        setup_logging(run.path, verbose=settings.verbose)
        remove_leftovers(run.path / CHECKPOINTS)
        logger.debug("run %s, seed %d", run.path, settings.seed)
        device = choose_device(settings.device)
        choose_threads(settings.threads)
        restart_profiler()
        run.tracker = Tracker(settings.log_to, run.path, named_values(settings))
        seed_everything(settings.seed)
        session = Session(run, settings, device, safe_point, settings_hash(settings), files, sync)
        try:
            yield session
        except MemoryLimitReached:
            get_profiler().log_memory("memory limit", show_objects=True)
            raise
        if sync is not None:
            sync.submit(*list(list_checkpoints(run.path / CHECKPOINTS).values())[-1:])
            session._upload(CONFIG, SETTINGS, *files, *results)
            logger.info("%s", sync.drain(DRAIN_SECONDS, safe_point))


def _saved(run: RunLog, settings: Any) -> str:
    """Return what is saved of a run, as the beginning of a sentence."""
    generation, last = max(list_checkpoints(run.path / CHECKPOINTS), default=0), getattr(settings, "generations", None)
    if generation == 0:
        return "no generation is saved yet, it begins anew"
    return f"generation {generation}{'' if last is None else f' of {last}'} is saved"


def _open_run(
    settings: Settings, explicit: frozenset[str], store: ObjectStore | None, is_reached: bool
) -> tuple[RunLog, Settings]:
    """Return a new run, or the one to resume, with its effective settings; it is fetched where the store has more."""
    if settings.resume is None:
        return RunLog.create(settings.runs_dir, settings.run, to_dict(settings)), settings
    name = name_to_resume(settings.resume, settings.runs_dir, store)
    if store is not None:
        fetch_newer(store, settings.runs_dir / name, is_reached=is_reached)
    run = RunLog.open(settings.runs_dir, name)
    for newest in [*list_checkpoints(run.path / CHECKPOINTS).values()][-1:]:
        with contextlib.suppress(CheckpointError):  # a damaged one
            read_manifest(newest)  # of another version: refused before data are read
    return run, settings_to_resume(run.settings(type(settings)), settings, explicit)
