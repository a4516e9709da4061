"""Runs restored from the cloud; downloads are verified against their manifest and never executed."""

import contextlib
import logging
import tempfile
from pathlib import Path, PurePath

from utils.cloud.store import ObjectStore, safe_name
from utils.cloud.sync import list_generations
from utils.errors import CheckpointError, CloudError, ConfigError, DamagedError, MissingError, UnavailableError
from utils.runs import checkpoint
from utils.runs.console import LOG
from utils.runs.durable import make_directory, new_directory
from utils.runs.find import CONFIG, METRICS
from utils.runs.run_lock import LOCK, RunLock
from utils.runs.run_log import CHECKPOINTS

log = logging.getLogger(__name__)


class AnotherRunError(ConfigError):
    """The cloud has another run under the name of one on the disk."""


def require_unused(store: ObjectStore, run: str) -> None:
    """Raise ConfigError if the store has anything under the name of a new run. An outage is logged."""
    try:
        names = store.list(f"{run}/")
    except UnavailableError as error:
        log.warning("%s; the run starts nevertheless", error)
        return
    if names:
        raise ConfigError(
            f"expected a new name for --run, got {run!r}, which is in the cloud already;"
            f" continue it with --resume {run} or choose another name"
        )


def fetch_newer(store: ObjectStore, folder: Path, *, is_reached: bool) -> None:
    """Fetch a run, or a generation later than any on disk; if the disk has a usable one, errors are only logged."""
    is_here = (folder / CONFIG).is_file()
    newest = checkpoint.load_latest(folder / CHECKPOINTS, run_id=folder.name) if is_here else None
    make_directory(folder)
    try:
        with RunLock(folder):
            if newest is None or is_reached:
                restore_run(store, folder, above=-1 if newest is None else newest.generation)
    except AnotherRunError:
        raise
    except (CloudError, ConfigError) as error:
        if newest is None:
            raise
        log.warning("%s; going on from generation %d, which is here", error, newest.generation)
    finally:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


def restore_run(store: ObjectStore, folder: Path, *, above: int = -1) -> None:
    """Fetch a run's newest complete generation and its files into `folder`, named as the run.

    The settings come last, so that a folder with settings is whole, and the other files first, so that no generation
    lacks its records. Nothing is fetched if the store has no generation after `above`, or none of a run on the disk.
    Raises ConfigError if the store has no such run, another one of that name, or no usable generation, CloudError if it
    is unavailable.
    """
    run, is_here = folder.name, (folder / CONFIG).is_file()
    try:
        files = [name for name in store.list(f"{safe_name(run)}/") if not name.startswith(f"{run}/{CHECKPOINTS}/")]
        newest = max(complete_generations(store, run), default=None)
        if is_here if newest is None else newest <= above:
            return
        settings = f"{run}/{CONFIG}"
        if is_here:
            _require_same(store, settings, folder / CONFIG)
        for name in files:
            if name != settings and PurePath(name).name != LOCK:
                make_directory((folder.parent / name).parent)
                try:
                    store.get(name, folder.parent / name)
                except DamagedError as error:
                    if not name.endswith((METRICS, LOG)):
                        raise
                    log.warning("%s in the cloud is not used: %s", name, error)
        if newest is not None and restore_latest(store, run, folder / CHECKPOINTS, above=above) is None:
            raise ConfigError(f"expected a usable generation of {run!r} in the cloud, got none; start a new run")
        if not is_here:
            store.get(settings, folder / CONFIG)
    except (DamagedError, MissingError) as error:
        raise ConfigError(f"expected a run to resume in the cloud, got {run!r}: {error}") from None
    log.info("restored run %s from the cloud into %s", run, folder)


def _require_same(store: ObjectStore, name: str, settings: Path) -> None:
    """Raise AnotherRunError, before anything is written, where the settings of the run in the store are others."""
    with tempfile.TemporaryDirectory() as scratch:
        store.get(name, Path(scratch) / CONFIG)
        if (Path(scratch) / CONFIG).read_bytes() != settings.read_bytes():
            raise AnotherRunError(
                f"expected the run of {settings.parent} in the cloud, got another one of that name; rename the folder, "
                "or give another bucket"
            )


def complete_generations(store: ObjectStore, run: str) -> list[int]:
    """Return a run's complete generations, unverified, lowest first."""
    return sorted(
        number for number, files in list_generations(store, safe_name(run)).items() if checkpoint.MANIFEST in files
    )


def restore_latest(store: ObjectStore, run: str, target_root: Path, *, above: int = -1) -> Path | None:
    """Fetch the newest generation after `above` that verifies; return its directory. Raises CloudError."""
    for generation in reversed(complete_generations(store, run)):
        if generation <= above:
            break
        path = target_root / checkpoint.generation_name(generation)
        try:
            with new_directory(path) as temporary:
                _fetch_generation(store, f"{run}/{CHECKPOINTS}/{path.name}", temporary, generation)
            return path
        except (CheckpointError, DamagedError, MissingError) as error:
            log.warning("generation %d in the cloud is not used: %s", generation, error)
    return None


def _fetch_generation(store: ObjectStore, base: str, target: Path, generation: int) -> None:
    store.get(f"{base}/{checkpoint.MANIFEST}", target / checkpoint.MANIFEST, checkpoint.MAX_MANIFEST_BYTES)
    manifest = checkpoint.read_manifest(target)
    if manifest.generation != generation:
        raise DamagedError(f"expected the manifest of generation {generation}, got that of {manifest.generation}")
    for name, record in manifest.files.items():
        store.get(f"{base}/{name}", target / name, record["size"])
    checkpoint.verify_checkpoint(target)
