"""Checkpoints: one immutable directory per generation, sealed by a manifest and verified whenever it is read.

    generation-000012/
        manifest.json             schema, run, config hash, generation, time, size and sha256 of each file and of itself
        <key>.safetensors         the tensors of state[key], under dotted names
        <key>.json                the rest of state[key], with {"$tensor": name} in place of a tensor

Nothing is ever unpickled.
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
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from utils import checkout
from utils.errors import CheckpointError, ConfigError, as_program_error
from utils.runs.durable import fsync, is_litter, new_directory, remove_directory

if TYPE_CHECKING:
    from torch import Tensor

    Encoded = dict[str, tuple[dict[str, Tensor], bytes]]  # by name of a part, its tensors and the JSON of the rest

log = logging.getLogger(__name__)

State = dict[str, dict[str, Any]]
Used = TypeVar("Used")
SCHEMA, READABLE = 25, (22, 23, 24, 25)
"""Version of the content of a state, and those that are read: formulas of 22 have no slopes of each stock, and those of
23 none of a season; up to 24 steps are counted by agent, not by fold."""
READ_BY = {15: "0.12.0", 16: "0.13.0", 17: "0.14.0", 18: "0.15.0", 19: "0.16.0", 20: "0.17.0", 21: "0.19.0"}
"""The last versions that read earlier ones."""
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20

_FILE_NAME = re.compile(r"[a-z][a-z0-9_]*\.(json|safetensors)")
_GENERATION_NAME = re.compile(r"generation-([0-9]{6,15})")


@dataclass(frozen=True)
class Manifest:
    """The content of `manifest.json`: `created` in UTC (ISO 8601), and `size` and `sha256` (hex) of each file."""

    schema: int
    run_id: str
    config_hash: str
    generation: int
    created: str
    files: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Checkpoint:
    """A saved state with its run and generation."""

    generation: int
    run_id: str
    config_hash: str
    state: State


def generation_name(generation: int) -> str:
    """Return the name of a generation's checkpoint directory."""
    return f"generation-{generation:06d}"


def generation_of(name: str) -> int | None:
    """Return the generation of a checkpoint directory's name; None for any other name."""
    named = _GENERATION_NAME.fullmatch(name)
    return int(named[1]) if named and name == generation_name(int(named[1])) else None


def encode_state(state: Mapping[str, Mapping[str, Any]]) -> Encoded:
    """Return a copy of a state, ready to be written while training continues.

    The state maps names (a-z, 0-9, _) to nested mappings with string keys, lists, tuples, tensors and JSON scalars with
    inf and nan. Shared memory is not restored as shared. Raises CheckpointError for other types.
    """
    from utils.runs.state_tree import flatten  # imported here, as torch below: most that read a run need none of it

    try:
        split = {key: flatten(part) for key, part in state.items()}
        return {key: (tensors, json.dumps(rest).encode()) for key, (tensors, rest) in split.items()}
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"cannot save the state: {error}") from error


def save_checkpoint(root: Path, generation: int, state: Encoded, *, run_id: str, config_hash: str) -> Path:
    """Write or replace a checkpoint durably and atomically; return its directory. Raises CheckpointError."""
    import safetensors.torch

    path = root / generation_name(generation)
    try:
        with new_directory(path) as temporary:
            for key, (tensors, rest) in state.items():
                # Serialising to bytes first takes ten times as long while training runs.
                safetensors.torch.save_file(tensors, temporary / f"{key}.safetensors")
                (temporary / f"{key}.json").write_bytes(rest)
                # The library's own mode shuts out a group that the umask lets in.
                shutil.copymode(temporary / f"{key}.json", temporary / f"{key}.safetensors")
            names = [f"{key}.{kind}" for key in state for kind in ("safetensors", "json")]
            files = {name: _record(temporary / name) for name in names}
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = Manifest(SCHEMA, run_id, config_hash, generation, created, files)
            (temporary / MANIFEST).write_bytes(_sealed(vars(manifest)))
            fsync(temporary / MANIFEST)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointError(f"cannot save {path}: {reason}; earlier checkpoints are as they were") from error
    return path


def _record(written: Path) -> dict[str, Any]:
    """Make a file durable, and return its size and sha256."""
    fsync(written)
    with written.open("rb") as file:
        return {"size": written.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint onto the CPU; every byte is verified before it is parsed. Raises CheckpointError."""
    import safetensors.torch

    from utils.runs.state_tree import unflatten

    manifest = read_manifest(path)
    files = dict(_verified_files(path, manifest))
    state: State = {}
    for key in [name.removesuffix(".json") for name in manifest.files if name.endswith(".json")]:
        with _parsing(f"cannot read {key!r}"):
            # Popped, so that the bytes of a part are released once it is parsed.
            tensors = safetensors.torch.load(files.pop(f"{key}.safetensors"))
            state[key] = unflatten(tensors, json.loads(files.pop(f"{key}.json")))
    return Checkpoint(manifest.generation, manifest.run_id, manifest.config_hash, state)


def load_latest(root: Path, *, run_id: str | None = None) -> Checkpoint | None:
    """Return the newest checkpoint that verifies and belongs to `run_id` (None: any run); unusable ones are logged."""
    return newest_usable(root, run_id, lambda checkpoint: checkpoint)


def newest_usable(root: Path, run_id: str | None, use: Callable[[Checkpoint], Used]) -> Used | None:
    """Return what `use` makes of the newest checkpoint that verifies, belongs to `run_id` and that it can use."""
    for path in reversed(list_checkpoints(root).values()):
        try:
            checkpoint = load_checkpoint(path)
            named = f"expected one of run {run_id!r}, got run {checkpoint.run_id!r}"
            _require(run_id in (None, checkpoint.run_id), named)
            with _parsing("cannot use"):
                return use(checkpoint)
        except CheckpointError as error:
            log.warning("checkpoint %s is not used: %s", path, error)
    return None


@contextlib.contextmanager
def _parsing(what: str) -> Iterator[None]:
    """Raise CheckpointError for an error that content of another form causes."""
    try:
        yield
    except Exception as error:
        if as_program_error(error) is not None:  # such as out of memory
            raise
        raise CheckpointError(f"{what}: {type(error).__name__}: {error}") from error


def verify_checkpoint(path: Path) -> Manifest:
    """Verify every byte of a checkpoint and return its manifest. Raises CheckpointError."""
    manifest = read_manifest(path)
    for _ in _verified_files(path, manifest):
        pass
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint, verified by its own sha256.

    Raises CheckpointError, and ConfigError for one of another version.
    """
    data = _read(path / MANIFEST, limit=MAX_MANIFEST_BYTES)
    with _parsing(f"{MANIFEST} is not one"):
        body = {name: value for name, value in json.loads(data).items() if name != "sha256"}
        # Sealing again must give the same bytes, so that no bit can change unnoticed.
        _require(_sealed(body) == data, f"{MANIFEST} is damaged: its sha256 does not match")
        if (schema := body["schema"]) not in READABLE:
            version = READ_BY.get(schema)
            how = "use the version that wrote it" if version is None else f"{checkout(version)} continues it"
            raise ConfigError(
                f"expected a checkpoint of schema {SCHEMA}, got {schema!r} in {path}; {how}, or start a new run"
            )
        files = {name: {"size": int(item["size"]), "sha256": item["sha256"]} for name, item in body["files"].items()}
        manifest = Manifest(**{**body, "files": files})
    for name in files:
        _require(_FILE_NAME.fullmatch(name) is not None, f"expected a plain file name in {MANIFEST}, got {name!r}")
    wanted = f"expected generation {manifest.generation} by {MANIFEST}, got the directory {path.name}"
    _require(generation_of(path.name) in (None, manifest.generation), wanted)
    return manifest


def list_checkpoints(root: Path) -> dict[int, Path]:
    """Return checkpoint directories by generation, lowest first, good or bad."""
    if not root.is_dir():
        return {}
    named = ((generation_of(path.name), path) for path in root.iterdir() if path.is_dir())
    return dict(sorted((generation, path) for generation, path in named if generation is not None))


def prune_checkpoints(root: Path, keep: int, always_keep: Collection[int] = ()) -> None:
    """Delete checkpoints except the `keep` newest and those in `always_keep`. Raises CheckpointError if one stays."""
    checkpoints = list_checkpoints(root)
    kept = {*always_keep, *list(checkpoints)[-keep:]}
    try:
        for path in (path for generation, path in checkpoints.items() if generation not in kept):
            remove_directory(path)
    except OSError as error:
        raise CheckpointError(f"cannot remove a checkpoint from {root}: {error.strerror or error}") from error


@contextlib.contextmanager
def checkpoint_writer(
    root: Path, *, run_id: str, config_hash: str, keep: int, on_written: Callable[[Path], None] = lambda _: None
) -> Iterator[Callable[[int, Mapping[str, Any]], None]]:
    """Yield a function that copies a generation's state and writes it in the background; wait for the last at the end.

    A second checkpoint waits for the first, so that at most one copy of the state is held, and raises its error. Once
    one is verified, older ones are pruned and `on_written` is called in the thread with its directory.
    """

    def write(generation: int, state: Encoded) -> None:
        path = save_checkpoint(root, generation, state, run_id=run_id, config_hash=config_hash)
        verify_checkpoint(path)
        prune_checkpoints(root, keep, {generation})
        on_written(path)

    # An error that ends the block comes before one of the last checkpoint.
    with ThreadPoolExecutor(1, thread_name_prefix="checkpoint") as pool:
        pending: Future[None] = pool.submit(lambda: None)

        def submit(generation: int, state: Mapping[str, Any]) -> None:
            nonlocal pending
            pending.result()
            pending = pool.submit(write, generation, encode_state(state))

        yield submit
        pending.result()


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest with the sha256 of its other content."""
    digest = hashlib.sha256((json.dumps(body, indent=1) + "\n").encode()).hexdigest()
    return (json.dumps({**body, "sha256": digest}, indent=1) + "\n").encode()


def _verified_files(path: Path, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    try:
        present = {name for name in os.listdir(path) if not is_litter(name)}
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    expected = {MANIFEST, *manifest.files}
    _require(present == expected, f"missing or added files: {sorted(present ^ expected)}")
    for name, record in manifest.files.items():
        size = record["size"]
        data = _read(path / name, limit=size)
        _require(len(data) == size, f"expected {size} bytes in {name}, got {len(data)}")
        _require(hashlib.sha256(data).hexdigest() == record["sha256"], f"{name} is damaged: its sha256 does not match")
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


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise CheckpointError(message)
