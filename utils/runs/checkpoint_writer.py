"""Checkpoints written by a thread, from a copy of the state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from utils.runs.checkpoint import Encoded, encode_state, prune_checkpoints, save_checkpoint, verify_checkpoint


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

    def submit(self, generation: int, state: Mapping[str, Any], always_keep: Collection[int]) -> None:
        """Copy the state and write it in the background; older checkpoints are pruned once it is verified."""
        self.wait()
        self._pending = self._pool.submit(self._write, generation, encode_state(state), always_keep)

    def wait(self) -> None:
        """Wait until everything submitted is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, generation: int, state: Encoded, always_keep: Collection[int]) -> None:
        path = save_checkpoint(self._root, generation, state, run_id=self._run_id, config_hash=self._config_hash)
        verify_checkpoint(path)
        prune_checkpoints(self._root, self._keep, {generation, *always_keep})
        self._on_written(path)
