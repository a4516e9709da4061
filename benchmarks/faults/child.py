"""The program with one fault in it: `python -m benchmarks.faults.child FAULT WORDS...`, the fault in JSON.

`{"kind": "pause", "phase": "train", "generation": 2, "marker": PATH}` creates the marker when that phase begins and
gives a signal time to arrive; `{"kind": "leak", "megabytes": 64}` keeps memory in every generation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from main import main as program
from training.erl_trainer import ERLTrainer
from utils.runs import checkpoint
from utils.runs.checkpoint import save_checkpoint

METHODS = {
    "evaluate": "evaluate_population",
    "evolve": "evolve_population",
    "train": "train_population",
    "validate": "validate_best_agent",
}
PHASES = tuple(METHODS)
SAVING = "saving"
PAUSE_SECONDS = 0.3


@contextlib.contextmanager
def pausing(phase: str, generation: int, marker: str) -> Iterator[None]:
    """Announce that a phase has begun, and wait a moment in it."""

    def announce(now: int) -> None:
        if now == generation:
            Path(marker).touch()
            time.sleep(PAUSE_SECONDS)

    def method(real: Callable[..., Any]) -> Callable[..., Any]:
        def met(self: ERLTrainer, *arguments: Any) -> Any:
            announce(self.generation)
            return real(self, *arguments)

        return met

    def save(root: Path, number: int, *arguments: Any, **named: Any) -> Path:
        announce(number)
        return real_save(root, number, *arguments, **named)

    real_save = save_checkpoint
    if phase == SAVING:
        with mock.patch.object(checkpoint, "save_checkpoint", save):
            yield
    else:
        with mock.patch.object(ERLTrainer, METHODS[phase], method(getattr(ERLTrainer, METHODS[phase]))):
            yield


@contextlib.contextmanager
def leaking(megabytes: int) -> Iterator[None]:
    """Keep that much more memory after each validation."""
    kept: list[Tensor] = []
    validate = ERLTrainer.validate_best_agent

    def leak(self: ERLTrainer) -> dict[str, Any]:
        kept.append(torch.ones(megabytes << 18))
        return validate(self)

    with mock.patch.object(ERLTrainer, "validate_best_agent", leak):
        yield


FAULTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {"pause": pausing, "leak": leaking}


def main() -> int:
    """Run the program with the fault; return its exit code."""
    fault = json.loads(sys.argv[1])
    with FAULTS[fault.pop("kind")](**fault):
        return program(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
