"""A run back from the cloud onto an empty disk; what comes is checked against the manifest and never executed."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from utils.cloud.store import ObjectStore, safe_name
from utils.cloud.sync import GENERATION_NAME, MANIFEST, list_generations
from utils.errors import ConfigError, DamagedError, MissingError, ProgramError
from utils.runs.durable import fsync_directory, make_directory, new_directory
from utils.runs.run_log import CHECKPOINTS, CONFIG, METRICS

log = logging.getLogger(__name__)

MAX_MANIFEST_BYTES = 1 << 20
MAX_CONFIG_BYTES = 1 << 20
MAX_METRICS_BYTES = 1 << 28

Verify = Callable[[Path], Any]
"""Raises RuntimeError or ValueError for a checkpoint directory that is not to be trusted."""


@dataclass(frozen=True)
class _File:
    name: str
    size: int
    sha256: str


def newest_run(store: ObjectStore) -> str:
    """Name of the run whose generation was completed last; ConfigError if the store has none."""
    completed = []
    for info in store.list(""):
        parts = info.name.split("/")
        if len(parts) == 4 and (parts[1], parts[3]) == (CHECKPOINTS, MANIFEST) and GENERATION_NAME.fullmatch(parts[2]):
            completed.append((info.updated, parts[0]))
    if not completed:
        raise ConfigError("expected a run to resume here or in the cloud, got none; start one without --resume")
    return max(completed)[1]


def require_new_run(store: ObjectStore, run: str) -> None:
    """Raises ConfigError if the store has anything under the name that a new run is to take."""
    if store.list(f"{run}/"):
        raise ConfigError(
            f"expected a new name for --run, got {run!r}, which is in the cloud already;"
            f" continue it with --resume {run} or choose another name"
        )


def restore_run(
    store: ObjectStore,
    run: str,
    runs_dir: Path,
    verify: Verify | None = None,
    *,
    above: int = -1,
    extras: Collection[str] = (),
) -> Path:
    """Fetch a run's metrics, newest complete generation and settings into `runs_dir/run`; returns that folder.

    Metrics come first and settings last, so that a generation never has records missing, and a folder with settings is
    whole; settings that are there stay.

    Args:
        above: only a later generation than this is of use.
        extras: names of further small files of the run, fetched where there are such.

    Raises:
        ConfigError: the store has no such run or no usable generation of it, or the disk is full.
        CloudError: the store cannot be reached.
    """
    try:
        folder = runs_dir / safe_name(run)
        newest = newest_generation(store, run)
        if newest is not None and newest > above:
            _fetch_if_there(store, run, folder, METRICS, MAX_METRICS_BYTES)
            for name in extras:
                _fetch_if_there(store, run, folder, name, MAX_CONFIG_BYTES)
        if restore_latest(store, run, folder / CHECKPOINTS, verify, above=above) is None:
            raise ConfigError(f"expected a complete generation of {run!r} in the cloud, got none; start a new run")
        if not (folder / CONFIG).is_file():
            _replace(store, f"{run}/{CONFIG}", folder / CONFIG, MAX_CONFIG_BYTES)
    except (DamagedError, MissingError) as error:
        raise ConfigError(f"expected a run to resume in the cloud, got {run!r}: {error}") from None
    except OSError as error:
        raise ConfigError(f"expected room for a run in {str(runs_dir)!r}, got {error.strerror}") from None
    return folder


def newest_generation(store: ObjectStore, run: str) -> int | None:
    """Number of a run's newest complete generation, not verified yet; None if there is none."""
    complete = [number for number, objects in list_generations(store, safe_name(run)).items() if MANIFEST in objects]
    return max(complete, default=None)


def restore_latest(
    store: ObjectStore, run: str, target_root: Path, verify: Verify | None = None, *, above: int = -1
) -> Path | None:
    """Fetch a run's newest complete generation into `target_root/generation-NNNNNN`; returns that directory.

    One that is damaged is logged and the one before it is taken; None if there is none later than `above`. Sizes and
    sha256 are checked against the manifest, then `verify` judges the directory before it gets its name. Raises
    CloudError if the store cannot be reached, OSError if the disk is full.
    """
    for generation, objects in reversed(list_generations(store, safe_name(run)).items()):
        if generation <= above:
            break
        if MANIFEST not in objects:
            log.info("generation %d in the cloud is not complete", generation)
            continue
        path = target_root / f"generation-{generation:06d}"
        try:
            with new_directory(path) as temporary:
                _fetch_generation(store, objects[MANIFEST].rpartition("/")[0], temporary, generation)
                _judge(verify, temporary)
            return path
        except (DamagedError, MissingError) as error:
            log.warning("generation %d in the cloud is not used: %s", generation, error)
    return None


def _fetch_generation(store: ObjectStore, base: str, target: Path, generation: int) -> None:
    store.get(f"{base}/{MANIFEST}", target / MANIFEST, MAX_MANIFEST_BYTES)
    files = parse_manifest((target / MANIFEST).read_bytes(), generation)
    needed, free = sum(file.size for file in files), shutil.disk_usage(target).free
    if needed > free:
        raise ConfigError(f"expected {needed} bytes of free disk to restore {base}, got {free}; free some")
    with tqdm(total=needed, desc="Restoring", unit="B", unit_scale=True, leave=False, delay=0.5) as bar:
        for file in files:
            store.get(f"{base}/{file.name}", target / file.name, file.size)
            _require_content(target / file.name, file)
            bar.update(file.size)


def parse_manifest(data: bytes, generation: int) -> list[_File]:
    """The files that a manifest names, each by a plain name; DamagedError for anything else."""
    try:
        body = json.loads(data)
        files = [_File(name, record["size"], record["sha256"]) for name, record in body["files"].items()]
        named = body["generation"]
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"{MANIFEST} is damaged ({type(error).__name__})") from None
    if type(named) is not int or named != generation:
        raise DamagedError(f"expected the manifest of generation {generation}, got that of {named!r}"[:200])
    for file in files:
        if "/" in safe_name(file.name) or file.name == MANIFEST:
            raise DamagedError(f"expected a plain file name in {MANIFEST}, got {file.name!r}")
        if type(file.size) is not int or file.size < 0 or not isinstance(file.sha256, str):
            raise DamagedError(f"expected size and sha256 of {file.name} in {MANIFEST}, got others")
    return files


def _require_content(path: Path, file: _File) -> None:
    size = path.stat().st_size
    if size != file.size:
        raise DamagedError(f"expected {file.size} bytes in {file.name}, got {size}")
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != file.sha256:
            raise DamagedError(f"{file.name} is damaged: its sha256 does not match")


def _judge(verify: Verify | None, path: Path) -> None:
    if verify is None:
        return
    try:
        verify(path)
    except (ProgramError, ValueError) as error:
        raise DamagedError(str(error)) from None


def _fetch_if_there(store: ObjectStore, run: str, folder: Path, name: str, limit: int) -> None:
    try:
        _replace(store, f"{run}/{name}", folder / name, limit)
    except MissingError:
        log.warning("the cloud has no %s of run %s", name, run)


def _replace(store: ObjectStore, name: str, target: Path, limit: int) -> None:
    make_directory(target.parent)
    temporary = target.with_name(f".{target.name}.cloud")
    temporary.unlink(missing_ok=True)
    store.get(name, temporary, limit)
    temporary.replace(target)
    fsync_directory(target.parent)
