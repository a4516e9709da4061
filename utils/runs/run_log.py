"""The folder of a run: its settings, metrics, TensorBoard events and summary."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_jsonable_python

from utils.config.kinds import Mark
from utils.config.settings import (
    as_toml,
    flatten,
    from_saved,
    named_values,
    read_json,
    repeated,
    settings_of,
    with_settings,
)
from utils.errors import ConfigError
from utils.runs.checkpoint import Checkpoint, Used, list_checkpoints, newest_usable
from utils.runs.durable import is_litter, new_file
from utils.runs.find import CONFIG, METRICS, SUMMARY, newest_run
from utils.runs.tracker import Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

logger = logging.getLogger(__name__)
REPORT = "report.html"
SETTINGS = "config.toml"
"""The settings once more, as --config of another run takes them."""
_BEGAN_IN = "began_in"
CHECKPOINTS, EVENTS = "checkpoints", "tensorboard"
Settings = TypeVar("Settings")
Records = Sequence[Mapping[str, Any]]
"""Generations, as metrics.jsonl tells them."""


class RunLog:
    """Writes a run's files into `runs/<name>/`; close it at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._purge_step: int | None = None
        self._events: SummaryWriter | None = None
        self.tracker = Tracker("none", path, {})
        """Listens where TensorBoard's writer does."""

    @classmethod
    def create(cls, runs_dir: Path, name: str | None, config: Mapping[str, Any]) -> RunLog:
        """Create a run with its settings, and the folder from which relative paths go; see `new_folder`."""
        path = new_folder(runs_dir, name, CONFIG, {**config, _BEGAN_IN: str(Path.cwd())})
        write_atomically(path / SETTINGS, as_toml(repeated(config)))
        return cls(path)

    @classmethod
    def open(cls, runs_dir: Path, name: str | None) -> RunLog:
        """Open the run of that name, or the newest one. Raises ConfigError if there is none."""
        return cls(newest_run(runs_dir, name))

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.path.name

    def settings(self, kind: type[Settings]) -> Settings:
        """Read the settings that the run began with; input files are found from here, or from where it began.

        Raises ConfigError if this version cannot read them.
        """
        path = self.path / CONFIG
        try:
            values = read_json(path)
            began_in = Path(values.pop(_BEGAN_IN, "")) if isinstance(values, dict) else Path()
            began = from_saved(values, kind)
            given, moved = named_values(began), dict[str, Any]()
            for name in (name for name, one in settings_of(kind).items() if Mark.INPUT in one.field.metadata):
                if (file := given[name]) and not Path(file).exists() and (began_in / file).exists():
                    moved[name] = str(began_in / file)
            return with_settings(began, moved)
        except (ConfigError, OSError, RecursionError, ValueError) as error:
            raise ConfigError(
                f"expected settings of this version in {path}, got: {error}; use the version that the run began with, "
                "or start a new run"
            ) from None

    def use_newest(self, settings_hash: str, use: Callable[[Checkpoint], Used]) -> Used:
        """Return what `use` makes of the newest checkpoint that it can use; earlier ones are tried after it.

        Raises ConfigError if there is none, or its settings have another hash.
        """

        def checked(checkpoint: Checkpoint) -> Used:
            if checkpoint.config_hash != settings_hash:
                raise ConfigError(
                    f"expected the settings that {self.path} began with, got others: its {CONFIG} was changed, or "
                    "another version wrote it; mend it, or start a new run"
                )
            return use(checkpoint)

        used = newest_usable(self.path / CHECKPOINTS, self.name, checked)
        if used is None:
            copy = "bring its checkpoints back from a copy"  # else resuming it would fail as this did
            advice = f"train it with --resume {self.name}" if self.is_stopped_at_first() else copy
            raise ConfigError(
                f"expected a complete generation of this version in {self.path}, got none; {advice}, or start a new run"
            )
        return used

    def end(self) -> int | None:
        """Return the generation with which the run ended; None for one that has not, or has gone on since."""
        try:
            last = read_json(self.path / SUMMARY)["generations"]
            return int(last) if self.records()[-1]["generation"] == last else None
        except (ConfigError, IndexError, KeyError, OSError, TypeError, ValueError):
            return None

    def is_stopped_at_first(self) -> bool:
        """Return whether the run was stopped before its first generation was complete, so that it begins anew."""
        # A checkpoint is written while the next generation trains, whose record may precede it.
        is_early = all(record["generation"] <= 2 for record in self.records())
        return is_early and not list_checkpoints(self.path / CHECKPOINTS)

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a generation's record to metrics.jsonl and its numbers to TensorBoard and the tracker; non-finite floats
        become null."""
        plain = _plain(record)
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(plain))
            file.flush()
            os.fsync(file.fileno())  # as durable as the checkpoint that follows
        flat = flatten(plain, separator="/")
        numbers = {name: value for name, value in flat.items() if isinstance(value, int | float)}
        self._write_events(numbers, record["generation"])
        self.tracker.log(numbers, record["generation"])

    def records(self) -> list[dict[str, Any]]:
        """Return the records of metrics.jsonl, without a torn last line. Raises ConfigError if another is damaged."""
        path = self.path / METRICS
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        records = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                records.append(dict(json.loads(line)))
                records[-1]["generation"]
            except (KeyError, TypeError, ValueError):
                message = f"expected a record with its generation on line {number} of {path}, got {line[:60]!r}"
                raise ConfigError(message) from None
        return records

    def truncate_to(self, generation: int) -> None:
        """Drop records and TensorBoard events after that generation before a resumed run appends; tell what is lost."""
        kept = [record for record in self.records() if record["generation"] <= generation]
        path = self.path / METRICS
        if torn := path.read_bytes().rpartition(b"\n")[2] if path.exists() else b"":
            logger.warning("the last line of %s is torn and is dropped: %r", path, torn[:60])
        if lost := sorted({*range(1, generation + 1)} - {record["generation"] for record in kept}):
            logger.warning("%s has no record of %d generations, the first of them %d", path, len(lost), lost[0])
        write_atomically(path, "".join(_line(record) for record in kept))
        self._purge_step = generation + 1

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Replace summary.json."""
        write_json(self.path / SUMMARY, summary)

    def close(self) -> None:
        """Flush and close the TensorBoard events, and end the run at the tracker."""
        if self._events is not None:
            self._events.close()
        self.tracker.close()

    def _write_events(self, numbers: Mapping[str, float], generation: int) -> None:
        if self._events is None:
            # Imported late: it takes seconds, and commands that only read a run do not need it.
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(self.path / EVENTS), purge_step=self._purge_step)
        for name, value in numbers.items():
            self._events.add_scalar(name, value, generation)
        self._events.flush()


def new_folder(runs_dir: Path, name: str | None, file: str, contents: Mapping[str, Any]) -> Path:
    """Create a folder, by default named by date and time, with a JSON file; ConfigError if used or unwritable."""
    try:
        path = _fresh_folder(runs_dir) if name is None else runs_dir / name
        path.mkdir(parents=True, exist_ok=True)
        # Hidden files are leftovers of a process that was killed before it wrote the first file.
        if any(not item.name.startswith(".") and not is_litter(item.name) for item in path.iterdir()):
            raise ConfigError(
                f"expected a new name for --run, got {name!r}, which is in {runs_dir} already;"
                f" continue it with --resume {name} or choose another name"
            )
        write_json(path / file, contents)
    except OSError as error:
        got = f"{str(runs_dir)!r} ({error.strerror})"
        raise ConfigError(f"expected a folder to write to for --runs-dir, got {got}") from None
    return path


def _fresh_folder(runs_dir: Path) -> Path:
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    attempt = 1
    while True:
        path = runs_dir / (stamp if attempt == 1 else f"{stamp}_{attempt}")
        with contextlib.suppress(FileExistsError):  # another run began in the same second
            path.mkdir(parents=True)
            return path
        attempt += 1


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file atomically; NaN and infinities become null."""
    write_atomically(path, json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """Return values as the text of a JSON file."""
    return json.dumps(_plain(values), indent=2, allow_nan=False) + "\n"


def write_atomically(path: Path, text: str | bytes) -> None:
    """Replace a file such that a crash leaves the old one or the new one, never a part."""
    with new_file(path) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def _plain(value: Any) -> Any:
    """Convert arrays and tensors to lists, paths to strings and non-finite numbers to None."""
    return to_jsonable_python(value, inf_nan_mode="null", fallback=lambda array: array.tolist())


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
