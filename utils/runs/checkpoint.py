"""One immutable directory a generation: tensors and JSON, sealed by a manifest, verified whenever it is read.

    generation-000012/
        manifest.json             schema, run, config hash, generation, time, size and sha256 of each file; seals itself
        <key>.safetensors         the tensors of state[key], under dotted names
        <key>.json                the rest of state[key], with {"$tensor": name} where a tensor was

The caller gives the state its meaning. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import stat
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from utils.errors import CheckpointError
from utils.runs.durable import fsync, new_directory, remove_directory
from utils.runs.state_tree import flatten, unflatten

log = logging.getLogger(__name__)

State = dict[str, dict[str, Any]]
Encoded = dict[str, tuple[dict[str, Tensor], bytes]]
"""By name of a part, its tensors and the JSON of the rest."""

SCHEMA = 7
"""Counts the versions of what a state holds; no version reads another's."""
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20

_FILE_NAME = re.compile(r"[a-z][a-z0-9_]*\.(json|safetensors)")
_GENERATION_NAME = re.compile(r"generation-([0-9]{6,15})")
_UNPARSABLE = (safetensors.SafetensorError, struct.error, AssertionError, KeyError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class FileRecord:
    """A file's size in bytes and its sha256 (hex)."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A checkpoint's description of itself; `created` is the time in UTC (ISO 8601)."""

    schema: int
    run_id: str
    config_hash: str
    generation: int
    created: str
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class Checkpoint:
    """A state as it was saved, and the run and generation that it belongs to."""

    generation: int
    run_id: str
    config_hash: str
    state: State


def generation_name(generation: int) -> str:
    """Return the name of a generation's checkpoint directory."""
    return f"generation-{generation:06d}"


def generation_of(name: str) -> int | None:
    """Return the generation whose checkpoint directory has this name; None for any other name."""
    named = _GENERATION_NAME.fullmatch(name)
    return int(named[1]) if named and name == generation_name(int(named[1])) else None


def encode_state(state: Mapping[str, Mapping[str, Any]]) -> Encoded:
    """Return a copy of a state, ready to be written, that later training does not change.

    The state maps names (a-z, 0-9, _) to nested mappings with string keys, lists, tuples, tensors on any device and
    JSON scalars; inf and nan are allowed. Tensors that share memory come back apart. Raises CheckpointError for others.
    """
    try:
        split = {key: flatten(part) for key, part in state.items()}
        return {key: (tensors, json.dumps(rest).encode()) for key, (tensors, rest) in split.items()}
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"cannot save the state: {error}") from error


def save_checkpoint(root: Path, generation: int, state: Encoded, *, run_id: str, config_hash: str) -> Path:
    """Write a generation's state as `root/generation-NNNNNN`, durably and all or nothing; return that directory.

    A checkpoint of the same generation is replaced. Raises CheckpointError, leaving earlier checkpoints as they were,
    where the disk is full or fails.
    """
    path = root / generation_name(generation)
    try:
        with new_directory(path) as temporary:
            files: dict[str, FileRecord] = {}
            for key, (tensors, rest) in state.items():
                # Written by the library: making the bytes first takes ten times as long, beside the training.
                safetensors.torch.save_file(tensors, temporary / f"{key}.safetensors")
                (temporary / f"{key}.json").write_bytes(rest)
                for name in (f"{key}.safetensors", f"{key}.json"):
                    files[name] = _durable_record(temporary / name)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = Manifest(SCHEMA, run_id, config_hash, generation, created, files)
            (temporary / MANIFEST).write_bytes(_sealed(asdict(manifest)))
            fsync(temporary / MANIFEST)
    except (OSError, safetensors.SafetensorError) as error:
        needed = sum(len(rest) + sum(tensor.nbytes for tensor in tensors.values()) for tensors, rest in state.values())
        raise CheckpointError(
            f"cannot save {path}: {getattr(error, 'strerror', None) or error}; it needs {needed} bytes, "
            f"{_free_bytes(root)} are free; earlier checkpoints are as they were"
        ) from error
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a directory, its tensors on the CPU; every byte is verified before anything is parsed.

    Raises CheckpointError for anything missing, added or changed, and for another version's schema.
    """
    manifest = read_manifest(path)
    files = dict(_verified_files(path, manifest))
    state: State = {}
    for key in [name.removesuffix(".json") for name in manifest.files if name.endswith(".json")]:
        try:
            # Popped, so that the bytes of a part are released once it is parsed.
            tensors = safetensors.torch.load(files.pop(f"{key}.safetensors"))
            state[key] = unflatten(tensors, json.loads(files.pop(f"{key}.json")))
        except _UNPARSABLE as error:
            raise CheckpointError(f"cannot read {key!r}: {error}") from error
    return Checkpoint(manifest.generation, manifest.run_id, manifest.config_hash, state)


def load_latest(root: Path, *, run_id: str | None = None) -> Checkpoint | None:
    """Return the checkpoint of the highest generation that verifies and belongs to `run_id` (None: to any run).

    Bad ones are logged, with the reason, and left in place. None if there is no usable checkpoint.
    """
    for path in reversed(list_checkpoints(root).values()):
        try:
            checkpoint = load_checkpoint(path)
            _require(
                run_id in (None, checkpoint.run_id), f"expected one of run {run_id!r}, got run {checkpoint.run_id!r}"
            )
            return checkpoint
        except CheckpointError as error:
            log.warning("checkpoint %s is not used: %s", path, error)
    return None


def verify_checkpoint(path: Path) -> Manifest:
    """Read every byte of a checkpoint again and return its manifest. Raises CheckpointError if anything is wrong."""
    manifest = read_manifest(path)
    for _ in _verified_files(path, manifest):
        pass
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint directory, verified by its seal; the other files are not read.

    Raises CheckpointError if it is damaged, names files elsewhere or has another version's schema.
    """
    data = _read(path / MANIFEST, limit=MAX_MANIFEST_BYTES)
    try:
        body = {name: value for name, value in json.loads(data).items() if name != "sha256"}
        # Sealing again must give the same bytes: so no bit of the file is free to change.
        _require(_sealed(body) == data, f"{MANIFEST} is damaged: its sha256 does not match")
        _require(
            body["schema"] == SCHEMA,
            f"expected a checkpoint of schema {SCHEMA}, got {body['schema']!r}; use the version that wrote it",
        )
        files = {name: FileRecord(int(item["size"]), item["sha256"]) for name, item in body["files"].items()}
        manifest = Manifest(**{**body, "files": files})
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{MANIFEST} is not one: {error}") from error
    for name in files:
        _require(_FILE_NAME.fullmatch(name) is not None, f"expected a plain file name in {MANIFEST}, got {name!r}")
    _require(
        generation_of(path.name) in (None, manifest.generation),
        f"expected generation {manifest.generation} by {MANIFEST}, got the directory {path.name}",
    )
    return manifest


def list_checkpoints(root: Path) -> dict[int, Path]:
    """Return checkpoint directories by generation, lowest first, good or bad; empty if `root` does not exist."""
    if not root.is_dir():
        return {}
    named = ((generation_of(path.name), path) for path in root.iterdir() if path.is_dir())
    return dict(sorted((generation, path) for generation, path in named if generation is not None))


def prune_checkpoints(root: Path, keep: int, always_keep: Collection[int] = ()) -> None:
    """Delete checkpoints except the `keep` newest generations and those in `always_keep`, good or bad.

    Raises CheckpointError if a directory cannot be removed.
    """
    checkpoints = list_checkpoints(root)
    kept = {*always_keep, *list(checkpoints)[-keep:]}
    try:
        for path in (path for generation, path in checkpoints.items() if generation not in kept):
            remove_directory(path)
    except OSError as error:
        raise CheckpointError(f"cannot remove a checkpoint from {root}: {error.strerror or error}") from error


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest, which hold the sha256 of all else in it."""
    digest = hashlib.sha256((json.dumps(body, indent=1) + "\n").encode()).hexdigest()
    return (json.dumps({**body, "sha256": digest}, indent=1) + "\n").encode()


def _verified_files(path: Path, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    try:
        present = set(os.listdir(path))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    expected = {MANIFEST, *manifest.files}
    _require(present == expected, f"missing or added files: {sorted(present ^ expected)}")
    for name, record in manifest.files.items():
        data = _read(path / name, limit=record.size)
        _require(len(data) == record.size, f"expected {record.size} bytes in {name}, got {len(data)}")
        _require(hashlib.sha256(data).hexdigest() == record.sha256, f"{name} is damaged: its sha256 does not match")
        yield name, data


def _read(path: Path, *, limit: int) -> bytes:
    try:
        status = path.lstat()
        _require(stat.S_ISREG(status.st_mode), f"expected a plain file, got something else: {path.name}")
        _require(status.st_size <= limit, f"expected at most {limit} bytes in {path.name}, got {status.st_size}")
        with path.open("rb") as file:
            return file.read(limit)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error


def _durable_record(path: Path) -> FileRecord:
    fsync(path)
    with path.open("rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _free_bytes(root: Path) -> int:
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckpointError(message)
