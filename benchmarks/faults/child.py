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
from training import learner
from training.ddpg import critic_loss
from training.erl_trainer import ERLTrainer
from training.rollout import Recorder
from utils.runs import checkpoint_writer
from utils.runs.checkpoint import save_checkpoint

PHASES = ("evaluate", "train", "evolve", "validate")
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
        with mock.patch.object(checkpoint_writer, "save_checkpoint", save):
            yield
    else:
        with mock.patch.object(ERLTrainer, phase, method(getattr(ERLTrainer, phase))):
            yield


@contextlib.contextmanager
def leaking(megabytes: int) -> Iterator[None]:
    """Keep that much more memory after each validation."""
    kept: list[Tensor] = []
    validate = ERLTrainer.validate

    def leak(self: ERLTrainer) -> dict[str, Any]:
        kept.append(torch.ones(megabytes << 18))
        return validate(self)

    with mock.patch.object(ERLTrainer, "validate", leak):
        yield


@contextlib.contextmanager
def non_finite(kind: str, generation: int) -> Iterator[None]:
    """Put NaN into a generation: the first agent's `loss`, every other `reward`, or the first agent's `actions`."""
    loss, transitions = critic_loss, Recorder.transitions
    evaluate, evolve = ERLTrainer.evaluate, ERLTrainer.evolve
    now: list[int] = []

    def noted(self: ERLTrainer) -> Any:
        now[:] = [self.generation]
        return evaluate(self)

    def spoilt_loss(values: list[Tensor], target: Tensor) -> Tensor:
        found = loss(values, target)
        is_first = torch.arange(len(found)) == 0
        # A factor: where() would carry the NaN into every agent's gradient.
        return found * torch.where(is_first, torch.nan, 1.0) if now == [generation] else found

    def spoilt_transitions(self: Recorder, *arguments: Any) -> dict[str, Tensor]:
        rows = transitions(self, *arguments)
        if now == [generation]:
            rows["reward"][::2] = torch.nan
        return rows

    def spoilt_evolve(self: ERLTrainer, fitness: Tensor) -> None:
        evolve(self, fitness)
        if now == [generation]:
            next(self.population.networks.actor.parameters()).data[0] = torch.nan

    spoilt: dict[str, Any] = {
        "loss": mock.patch.object(learner, "critic_loss", spoilt_loss),
        "reward": mock.patch.object(Recorder, "transitions", spoilt_transitions),
        "actions": mock.patch.object(ERLTrainer, "evolve", spoilt_evolve),
    }
    with mock.patch.object(ERLTrainer, "evaluate", noted), spoilt[kind]:
        yield


FAULTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {"pause": pausing, "leak": leaking}


def main() -> int:
    """Run the program with the fault; return its exit code."""
    fault = json.loads(sys.argv[1])
    with FAULTS[fault.pop("kind")](**fault):
        return program(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
