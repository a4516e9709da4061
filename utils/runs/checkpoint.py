"""One immutable directory a generation: tensors and JSON, sealed by a manifest, verified whenever it is read.

    generation-000012/
        manifest.json             schema, run, config hash, generation, time, size and sha256 of each file; seals itself
        <key>.safetensors         the tensors of state[key], under dotted names
        <key>.json                the rest of state[key], with {"$tensor": name} where a tensor was

The caller gives the state its meaning. Nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
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
from utils.runs.durable import fsync_file, new_directory, remove_directory, write_file
from utils.runs.state_tree import flatten, unflatten

log = logging.getLogger(__name__)

State = dict[str, dict[str, Any]]

SCHEMA = 3
"""Counts the versions of what a state holds; no version reads another's."""
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20

_KEY = re.compile(r"[a-z][a-z0-9_]*")
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


def save_checkpoint(
    root: Path, generation: int, state: Mapping[str, Mapping[str, Any]], *, run_id: str, config_hash: str
) -> Path:
    """Write a generation's state as `root/generation-NNNNNN`, durably and all or nothing; return that directory.

    The state maps names to nested mappings with string keys, lists, tuples, tensors on any device, numpy arrays and
    JSON scalars; inf and nan are allowed. Mappings come back as dicts, tuples as tuples, numpy arrays as tensors, numpy
    scalars as Python's; tensors that share memory come back apart. A checkpoint of the same generation is replaced.
    Raises CheckpointError, leaving earlier checkpoints as they were, for a state that has no such form and where the
    disk is full or fails.
    """
    _require(generation >= 0, f"expected a generation >= 0, got {generation}")
    parts = {key: _encode(key, part) for key, part in state.items()}
    path = root / generation_name(generation)
    try:
        with new_directory(path) as temporary:
            files: dict[str, FileRecord] = {}
            for key, (tensors, rest) in parts.items():
                files[f"{key}.safetensors"] = _write_tensors(temporary / f"{key}.safetensors", tensors)
                files[f"{key}.json"] = _write(temporary / f"{key}.json", rest)
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = Manifest(SCHEMA, run_id, config_hash, generation, created, files)
            _write(temporary / MANIFEST, _seal(asdict(manifest)))
    except (OSError, safetensors.SafetensorError) as error:
        needed = sum(len(rest) + sum(tensor.nbytes for tensor in tensors.values()) for tensors, rest in parts.values())
        raise CheckpointError(
            f"cannot save {path}: {getattr(error, 'strerror', None) or error}; it needs {needed} bytes, "
            f"{_free_bytes(root)} are free; earlier checkpoints are as they were"
        ) from error
    return path


def load_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a directory, its tensors on the CPU; every byte is verified before anything is parsed.

    Raises CheckpointError for anything missing, added, changed or made up, and for another version's schema.
    """
    manifest = read_manifest(path)
    files = dict(_verified_files(path, manifest))
    state: State = {}
    for key in [name.removesuffix(".json") for name in manifest.files if name.endswith(".json")]:
        # Popped, so that the bytes of a part are released once it is parsed.
        state[key] = _decode(key, files.pop(f"{key}.safetensors"), files.pop(f"{key}.json"))
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


def newest_whole(root: Path, *, run_id: str) -> int | None:
    """Return the highest generation that verifies and belongs to `run_id`, not parsed; None if there is none."""
    for generation, path in reversed(list_checkpoints(root).items()):
        with contextlib.suppress(CheckpointError):
            if verify_checkpoint(path).run_id == run_id:
                return generation
    return None


def verify_checkpoint(path: Path) -> Manifest:
    """Read every byte of a checkpoint again and return its manifest. Raises CheckpointError if anything is wrong."""
    manifest = read_manifest(path)
    for _ in _verified_files(path, manifest):
        pass
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint directory, verified by its seal; the other files are not read.

    Raises CheckpointError if it is damaged, names impossible files or has another version's schema.
    """
    manifest = _manifest(_unseal(_read(path / MANIFEST, limit=MAX_MANIFEST_BYTES)))
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


def prune_checkpoints(
    root: Path, keep: int, always_keep: Collection[int] = (), verified: Path | None = None
) -> list[Path]:
    """Delete checkpoints except the `keep` newest generations, those in `always_keep` and the newest that verifies.

    Verifies from the newest on until one is good, and deletes nothing if none is; `verified` was found good just now.
    Returns what was deleted. Raises CheckpointError if `keep` < 1 or a directory cannot be removed.
    """
    _require(keep >= 1, f"expected keep >= 1, got {keep}")
    checkpoints = list_checkpoints(root)
    good = (number for number, path in reversed(checkpoints.items()) if path == verified or _is_whole(path))
    newest_good = next(good, None)
    if newest_good is None:
        return []
    kept = {newest_good, *always_keep, *list(checkpoints)[-keep:]}
    removed = [path for generation, path in checkpoints.items() if generation not in kept]
    try:
        for path in removed:
            remove_directory(path)
    except OSError as error:
        raise CheckpointError(f"cannot remove a checkpoint from {root}: {error.strerror or error}") from error
    return removed


def _encode(key: str, part: Mapping[str, Any]) -> tuple[dict[str, Tensor], bytes]:
    _require(
        _KEY.fullmatch(key) is not None and f"{key}.json" != MANIFEST,
        f"expected a top-level key of a-z, 0-9 and _ that is not 'manifest', got {key!r}",
    )
    _require(isinstance(part, Mapping), f"expected a mapping at {key!r}, got {type(part).__name__}")
    try:
        tensors, rest = flatten(part)
        return tensors, json.dumps(rest, allow_nan=False).encode()
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"cannot save {key!r}: {error}") from error


def _decode(key: str, tensors: bytes, rest: bytes) -> dict[str, Any]:
    try:
        return unflatten(safetensors.torch.load(tensors), json.loads(rest))
    except _UNPARSABLE as error:
        raise CheckpointError(f"cannot read {key!r}: {error}") from error


def _seal(body: Mapping[str, Any]) -> bytes:
    digest = hashlib.sha256(_canonical(body)).hexdigest()
    return _canonical({**body, "sha256": digest})


def _unseal(data: bytes) -> dict[str, Any]:
    try:
        body = {name: value for name, value in json.loads(data).items() if name != "sha256"}
        whole = _seal(body) == data
    except (AttributeError, RecursionError, ValueError) as error:
        raise CheckpointError(f"{MANIFEST} is not one: {error}") from error
    # Sealing again must give the same bytes: so no bit of the file is free to change.
    _require(whole, f"{MANIFEST} is damaged: its sha256 does not match")
    return body


def _canonical(body: Mapping[str, Any]) -> bytes:
    return (json.dumps(body, indent=1) + "\n").encode()


def _manifest(body: dict[str, Any]) -> Manifest:
    """Return the manifest with these fields, each of its type. Raises CheckpointError for any others."""
    schema = body.get("schema")
    _require(
        type(schema) is int and schema == SCHEMA,
        f"expected a checkpoint of schema {SCHEMA}, got {schema!r}; use the version that wrote it",
    )
    try:
        files = {name: FileRecord(**record) for name, record in body["files"].items()}
        manifest = Manifest(**{**body, "files": files})
    except (AttributeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{MANIFEST} has not the expected fields: {error}") from error
    for part in (manifest, *files.values()):
        for name, value in vars(part).items():
            kind = type(part).__annotations__[name]
            _require(name == "files" or type(value).__name__ == kind, f"expected {name} as {kind}, got {value!r}")
    for name, record in files.items():
        _require(_FILE_NAME.fullmatch(name) is not None, f"expected a plain file name in {MANIFEST}, got {name!r}")
        _require(record.size >= 0, f"expected the size of {name}, got {record.size}")
    keys = {name.partition(".")[0] for name in files}
    _require(
        files.keys() == {f"{key}{suffix}" for key in keys for suffix in (".json", ".safetensors")},
        f"expected pairs of .json and .safetensors files in {MANIFEST}, got {sorted(files)}",
    )
    return manifest


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


def _write(path: Path, data: bytes) -> FileRecord:
    write_file(path, data)
    return FileRecord(len(data), hashlib.sha256(data).hexdigest())


def _is_whole(path: Path) -> bool:
    try:
        verify_checkpoint(path)
    except CheckpointError as error:
        log.warning("checkpoint %s does not verify: %s", path, error)
        return False
    return True


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> FileRecord:
    # Written by the library: making the bytes first takes ten times as long, beside the training.
    safetensors.torch.save_file(tensors, path)
    fsync_file(path)
    with path.open("rb") as file:
        return FileRecord(path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest())


def _free_bytes(root: Path) -> int:
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckpointError(message)
