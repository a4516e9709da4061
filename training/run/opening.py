"""The run that is asked for: a new folder, one on this disk, or one that comes back from the cloud."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from training.run.market import MARKET
from utils.cloud.restore import newest_generation, newest_run, require_new_run, restore_run
from utils.cloud.store import ObjectStore
from utils.config.cli import LATEST
from utils.config.settings import flatten
from utils.config.trader import UNHASHED, Config, config_from_dict, config_hash, config_to_dict, replace_settings
from utils.errors import CloudError, ConfigError, ConflictError, UnavailableError
from utils.runs.checkpoint import Checkpoint, newest_whole, verify_checkpoint
from utils.runs.durable import make_directory
from utils.runs.resume import MOVABLE, load_under, refuse_changes
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CHECKPOINTS, CONFIG, RunLog, latest_run

logger = logging.getLogger(__name__)


def open_run(config: Config, explicit: frozenset[str], store: ObjectStore | None = None) -> tuple[RunLog, Config]:
    """A new run, or the one to resume, with the settings that hold for it.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed run to honour or refuse.
        store: where runs are kept besides the disk. A resumed run that is not on this disk, or of which the store has a
            later generation, is fetched from there.

    Raises:
        ConfigError: there is no such run, its name is taken, settings differ that may not, or the store is not there.
        CloudError: a run must come from the store, which cannot be reached.
    """
    is_reached = store is not None and store.check()
    if config.resume is None:
        return _new_run(config, store if is_reached else None), config
    name = _name_to_resume(config, store)
    if store is not None:
        _bring_back(store, name, config.runs_dir, is_reached)
    run = RunLog.open(config.runs_dir, name)
    began = config_from_dict(run.config())
    refuse_changes(flatten(config_to_dict(began)), flatten(config_to_dict(config)), explicit, UNHASHED)
    return run, replace_settings(began, config, (explicit & (UNHASHED | MOVABLE)) | {"resume", "runs_dir"})


def load_resumed(run: RunLog, config: Config) -> Checkpoint:
    """The newest usable checkpoint of a run; ConfigError if there is none or it was made under other settings."""
    return load_under(run, config_hash(config))


def _new_run(config: Config, store: ObjectStore | None) -> RunLog:
    if store is not None and config.run is not None:
        require_new_run(store, config.run)
    run = RunLog.create(config.runs_dir, config.run, config_to_dict(config))
    if store is not None:
        _claim_name(store, run)
    return run


def _claim_name(store: ObjectStore, run: RunLog) -> None:
    """Two machines may name their runs alike in the same second: the first one to store its settings has the name."""
    try:
        require_new_run(store, run.name)
        store.put(f"{run.name}/{CONFIG}", run.path / CONFIG, if_absent=True)
    except ConflictError:
        raise ConfigError(f"expected a new name, got {run.name!r}, which is in the cloud already; give --run") from None
    except UnavailableError as error:
        logger.warning("%s; the run starts nevertheless", error)


def _name_to_resume(config: Config, store: ObjectStore | None) -> str:
    if config.resume is not None and config.resume != LATEST:
        return config.resume
    try:
        return latest_run(config.runs_dir)
    except ConfigError:
        if store is None:
            raise
        return newest_run(store)


def _bring_back(store: ObjectStore, name: str, runs_dir: Path, is_reached: bool) -> None:
    """Fetch what the disk lacks: the whole run, or a generation later than any usable one here."""
    folder = runs_dir / name
    here = newest_whole(folder / CHECKPOINTS, run_id=name) if (folder / CONFIG).is_file() else None
    if here is None:
        _restore(store, name, folder)
    elif is_reached:
        try:
            there = newest_generation(store, name)
            if there is not None and there > here:
                _restore(store, name, folder, above=here)
        except (CloudError, ConfigError) as error:
            logger.warning("%s; going on from generation %d, which is here", error, here)


def _restore(store: ObjectStore, name: str, folder: Path, above: int = -1) -> None:
    is_new = not folder.exists()
    make_directory(folder)
    try:
        with RunLock(folder):
            restore_run(store, name, folder.parent, verify_checkpoint, above=above, extras=(MARKET,))
        logger.info("restored run %s from the cloud into %s", name, folder)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it holds what came
                folder.rmdir()
