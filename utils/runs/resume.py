"""What any resumed run is held to: the settings that it began with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from utils.errors import ConfigError
from utils.runs.checkpoint import Checkpoint, load_latest
from utils.runs.run_log import CHECKPOINTS, CONFIG, RunLog

MOVABLE = frozenset({"data", "investable", "landscape"})
"""Files that may lie elsewhere when a run is resumed, under the same name."""


def load_under(run: RunLog, settings_hash: str) -> Checkpoint:
    """The newest usable checkpoint of a run, whose settings must have this hash. Raises ConfigError otherwise."""
    checkpoint = load_latest(run.path / CHECKPOINTS, run_id=run.name)
    if checkpoint is None:
        raise ConfigError(f"expected a complete generation in {run.path}, got none; start a new run")
    if checkpoint.config_hash != settings_hash:
        raise ConfigError(f"expected the settings that {run.path} began with, got others; mend its {CONFIG}")
    return checkpoint


def refuse_changes(began: dict[str, Any], now: dict[str, Any], explicit: frozenset[str], free: frozenset[str]) -> None:
    """A run goes on with the settings it began with; only `free` ones may change, and paths of data."""
    for name in sorted(explicit - free):
        if began[name] != now[name] and not _is_moved(name, began[name], now[name]):
            raise ConfigError(
                f"expected {name} = {began[name]!r}, with which the run began, got {now[name]!r}; "
                "leave it out, or start a new run without --resume"
            )


def _is_moved(name: str, before: str | None, after: str | None) -> bool:
    return name in MOVABLE and None not in (before, after) and Path(str(before)).name == Path(str(after)).name
