"""The run that is asked for: a new folder, one on this disk, or one that comes back from the cloud."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

from training.checkpoint import Checkpoint, load_latest, newest_whole, verify_checkpoint
from training.run_market import MARKET
from utils.cli import LATEST
from utils.cloud_restore import newest_generation, newest_run, require_new_run, restore_run
from utils.cloud_store import CloudError, ConflictError, ObjectStore, UnavailableError
from utils.config import UNHASHED, Config, config_from_dict, config_hash, config_to_dict, replace_settings
from utils.durable import make_directory
from utils.run_lock import RunLock
from utils.run_log import CHECKPOINTS, CONFIG, RunLog, latest_run
from utils.settings import ConfigError, flatten

logger = logging.getLogger(__name__)
MOVABLE = frozenset({"data", "investable", "landscape"})
"""Files that may lie elsewhere when a run is resumed, under the same name."""


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
    refuse_changes(flatten(config_to_dict(began)), flatten(config_to_dict(config)), explicit)
    return run, replace_settings(began, config, (explicit & (UNHASHED | MOVABLE)) | {"resume", "runs_dir"})


def load_resumed(run: RunLog, config: Config) -> Checkpoint:
    """The newest usable checkpoint of a run; ConfigError if there is none or it was made under other settings."""
    return load_under(run, config_hash(config))


def load_under(run: RunLog, settings_hash: str) -> Checkpoint:
    """The newest usable checkpoint of a run, whose settings must have this hash. Raises ConfigError otherwise."""
    checkpoint = load_latest(run.path / CHECKPOINTS, run_id=run.name)
    if checkpoint is None:
        raise ConfigError(f"expected a complete generation in {run.path}, got none; start a new run")
    if checkpoint.config_hash != settings_hash:
        raise ConfigError(f"expected the settings that {run.path} began with, got others; mend its {CONFIG}")
    return checkpoint


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


def refuse_changes(
    began: dict[str, Any], now: dict[str, Any], explicit: frozenset[str], free: frozenset[str] = UNHASHED
) -> None:
    """A run goes on with the settings it began with; only `free` ones may change, and paths of data."""
    for name in sorted(explicit - free):
        if began[name] != now[name] and not _is_moved(name, began[name], now[name]):
            raise ConfigError(
                f"expected {name} = {began[name]!r}, with which the run began, got {now[name]!r}; "
                "leave it out, or start a new run without --resume"
            )


def _is_moved(name: str, before: str | None, after: str | None) -> bool:
    return name in MOVABLE and None not in (before, after) and Path(str(before)).name == Path(str(after)).name
