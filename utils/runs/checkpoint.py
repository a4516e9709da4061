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
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors

from utils.errors import CheckpointError, as_program_error
from utils.runs.durable import fsync, new_directory, remove_directory

if TYPE_CHECKING:
    from torch import Tensor

    Encoded = dict[str, tuple[dict[str, Tensor], bytes]]  # by name of a part, its tensors and the JSON of the rest

log = logging.getLogger(__name__)

State = dict[str, dict[str, Any]]
Used = TypeVar("Used")
SCHEMA = 10  # version of the content of a state; no version reads another's
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20

_FILE_NAME = re.compile(r"[a-z][a-z0-9_]*\.(json|safetensors)")
_GENERATION_NAME = re.compile(r"generation-([0-9]{6,15})")
_UNUSABLE = (
    *(safetensors.SafetensorError, struct.error, AssertionError, AttributeError, LookupError, OverflowError),
    *(RuntimeError, TypeError, ValueError),
)
"""Errors of parsers, and of a trainer that takes over a state of another form."""


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
            files: dict[str, dict[str, Any]] = {}
            for key, (tensors, rest) in state.items():
                # Serialising to bytes first takes ten times as long while training runs.
                safetensors.torch.save_file(tensors, temporary / f"{key}.safetensors")
                (temporary / f"{key}.json").write_bytes(rest)
                # The library's own mode shuts out a group that the umask lets in.
                shutil.copymode(temporary / f"{key}.json", temporary / f"{key}.safetensors")
                for written in (temporary / f"{key}.safetensors", temporary / f"{key}.json"):
                    fsync(written)
                    with written.open("rb") as file:
                        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                    files[written.name] = {"size": written.stat().st_size, "sha256": sha256}
            created = datetime.now(UTC).isoformat(timespec="seconds")
            manifest = Manifest(SCHEMA, run_id, config_hash, generation, created, files)
            (temporary / MANIFEST).write_bytes(_sealed(vars(manifest)))
            fsync(temporary / MANIFEST)
    except (OSError, safetensors.SafetensorError) as error:
        needed = sum(len(rest) + sum(tensor.nbytes for tensor in tensors.values()) for tensors, rest in state.values())
        existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
        raise CheckpointError(
            f"cannot save {path}: {getattr(error, 'strerror', None) or error}; it needs {needed} bytes, "
            f"{shutil.disk_usage(existing).free} are free; earlier checkpoints are as they were"
        ) from error
    return path


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
            _require(
                run_id in (None, checkpoint.run_id), f"expected one of run {run_id!r}, got run {checkpoint.run_id!r}"
            )
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
    except _UNUSABLE as error:
        if as_program_error(error) is not None:  # out of memory
            raise
        raise CheckpointError(f"{what}: {type(error).__name__}: {error}") from error


def verify_checkpoint(path: Path) -> Manifest:
    """Verify every byte of a checkpoint and return its manifest. Raises CheckpointError."""
    manifest = read_manifest(path)
    for _ in _verified_files(path, manifest):
        pass
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a checkpoint, verified by its own sha256. Raises CheckpointError."""
    data = _read(path / MANIFEST, limit=MAX_MANIFEST_BYTES)
    try:
        body = {name: value for name, value in json.loads(data).items() if name != "sha256"}
        # Sealing again must give the same bytes, so that no bit can change unnoticed.
        _require(_sealed(body) == data, f"{MANIFEST} is damaged: its sha256 does not match")
        _require(
            body["schema"] == SCHEMA,
            f"expected a checkpoint of schema {SCHEMA}, got {body['schema']!r}; use the version that wrote it",
        )
        files = {name: {"size": int(item["size"]), "sha256": item["sha256"]} for name, item in body["files"].items()}
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


class CheckpointWriter:
    """Writes one checkpoint at a time; use it in a `with` block, whose end waits for the last one.

    A second checkpoint waits for the first, so that at most one copy of the state is held. A CheckpointError in the
    thread is raised by the next call. `on_written` is called in the thread with each verified checkpoint's directory.
    """

    def __init__(
        self,
        root: Path,
        *,
        run_id: str,
        config_hash: str,
        keep: int,
        on_written: Callable[[Path], None] = lambda _: None,
    ) -> None:
        self._root, self._keep, self._on_written = root, keep, on_written
        self._run_id, self._config_hash = run_id, config_hash
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:  # the error that ended the block comes first
                raise
        finally:
            self._pool.shutdown()

    def submit(self, generation: int, state: Mapping[str, Any]) -> None:
        """Copy the state and write it in the background; older checkpoints are pruned once it is verified."""
        self.wait()
        self._pending = self._pool.submit(self._write, generation, encode_state(state))

    def wait(self) -> None:
        """Wait until everything submitted is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, generation: int, state: Encoded) -> None:
        path = save_checkpoint(self._root, generation, state, run_id=self._run_id, config_hash=self._config_hash)
        verify_checkpoint(path)
        prune_checkpoints(self._root, self._keep, {generation})
        self._on_written(path)


def _sealed(body: Mapping[str, Any]) -> bytes:
    """Return the bytes of a manifest with the sha256 of its other content."""
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
