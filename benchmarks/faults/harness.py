"""Shared parts of the tests of faults: a row of their table, a short run, the program in and beside this process."""

import contextlib
import io
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

from benchmarks.faults import child
from benchmarks.faults.child import unjudged
from main import main as program
from utils.runs.checkpoint import list_checkpoints

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([child.__name__])
VOLATILE = ("seconds", "memory")
"""Fields of metrics.jsonl that may differ between equal runs."""
QUICK_RUN = """
device = "cpu"
threads = 1
memory_report = "off"
"""
SMALL_RUN = f"""{QUICK_RUN}[split]
context_window_days = 16
[synthetic]
kind = "momentum"
days = 300
stocks = 6
[env]
trading_days = 12
settlement_days = 4
[learning]
replay_capacity = 80
training_starts = 20
gradient_steps = 2
gradient_accumulation = 2
batch_size = 8
hidden = 4
[evolution]
population_size = 4
[evaluation]
fitness_windows = 2
exploration_windows = 1
validation_windows = 2
random_pickers = 5
rivals = "none"
evidence = "report"
"""


@dataclass(frozen=True)
class Row:
    """One test of the table; `is_ok` is None where it could not be measured here."""

    test: str
    count: int
    must_be: str
    measured: str
    is_ok: bool | None


@dataclass(frozen=True)
class Ended:
    """Exit code and output of a run of the program."""

    code: int
    shown: str

    def says(self, text: str) -> bool:
        """Return whether the output has exactly one error, in one line with this text, and no traceback."""
        errors = [line for line in self.shown.splitlines() if line.startswith("ERROR ")]
        return len(errors) == 1 and text in errors[0] and "Traceback" not in self.shown


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Make a temporary folder."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def flags(runs: Path, settings: str = SMALL_RUN) -> list[str]:
    """Write settings (TOML) and return the flags of a run with them below `runs`."""
    path = runs / "settings.toml"
    path.write_text(settings)
    return ["--config", str(path), "--profile", "quick", "--runs-dir", str(runs)]


def run_here(*words: str) -> Ended:
    """Run the program in this process, without judging its runs."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), unjudged():
        code = program(list(words))
    return Ended(code, shown.getvalue())


def run_beside(
    *words: str, fault: Mapping[str, Any] = MappingProxyType({"kind": "none"}), shown: Path = Path(os.devnull)
) -> BaseProcess:
    """Start the program in a separate process, with one fault of `benchmarks.faults.child` in it.

    It is forked from a process that has imported the program once for all.
    """
    arguments = words, dict(fault), dict(os.environ), str(shown)
    process = PROCESSES.Process(target=child.run, args=arguments, daemon=True)
    process.start()
    return process


def checkpoints_of(runs: Path, name: str) -> dict[int, Path]:
    """Return the checkpoints of a run by generation."""
    return list_checkpoints(runs / name / "checkpoints")


class WholeRun(NamedTuple):
    """A run of the program that nothing interrupted."""

    outcome: tuple[bytes, list[dict[str, Any]]]
    checkpoint_bytes: int


@cache
def whole_run(generations: int, settings: str = SMALL_RUN) -> WholeRun:
    """Run the program without a fault and without a cloud; the rows that compare with it share it."""
    with folder() as runs, mock.patch.dict(os.environ, {"CLOUD_PROVIDER": "", "CLOUD_BUCKET": ""}):
        ended = run_here(*flags(runs, settings), "--generations", str(generations), "--run", "whole")
        assert ended.code == 0, ended.shown
        last = max(checkpoints_of(runs, "whole").items())[1]
        return WholeRun(outcome(runs, "whole"), sum(path.stat().st_size for path in last.iterdir()))


def outcome(runs: Path, name: str) -> tuple[bytes, list[dict[str, Any]]]:
    """Return the tensors of the last checkpoint, and the metrics but for fields that may differ between equal runs."""
    last = max(checkpoints_of(runs, name).items())[1]
    return tensors(last), records(runs / name)


def tensors(checkpoint: Path) -> bytes:
    """Return all tensors of a checkpoint, as their files hold them."""
    parts = ("population", "champion", "replay", "random")
    return b"".join((checkpoint / f"{part}.safetensors").read_bytes() for part in parts)


def records(run: Path) -> list[dict[str, Any]]:
    """Return the metrics of a run, but for fields that may differ between equal runs."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in VOLATILE} for line in lines]
