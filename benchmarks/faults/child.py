"""The program with one fault in it, as the target of a process.

`{"kind": "pause", "phase": "train", "generation": 2, "marker": PATH}` creates the marker when that phase begins and
waits until it is gone; `{"kind": "leak", "megabytes": 64}` keeps memory in every generation; `{"kind": "none"}`
is none. Runs are not judged.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from main import main as program
from training.erl_trainer import ERLTrainer
from utils.runs import checkpoint

METHODS = {
    "evaluate": "evaluate_population",
    "evolve": "evolve_population",
    "train": "train_population",
    "validate": "validate_best_agent",
}
PHASES = tuple(METHODS)
SAVING = "saving"


@contextlib.contextmanager
def unjudged() -> Iterator[None]:
    """Let runs end without their judgement and pictures, which take most of the time of a small one."""
    with mock.patch("training.train.finish", lambda trainer, run, *_: run.write_summary({})):
        yield


@contextlib.contextmanager
def pausing(phase: str, generation: int, marker: str) -> Iterator[None]:
    """Announce that a phase has begun, and wait in it until whoever reads that has removed the marker."""
    owner, name = (checkpoint, "save_checkpoint") if phase == SAVING else (ERLTrainer, METHODS[phase])
    real = getattr(owner, name)

    def met(first: Any, *arguments: Any, **named: Any) -> Any:
        if generation == (arguments[0] if phase == SAVING else first.generation):
            Path(marker).touch()
            while Path(marker).exists():
                time.sleep(0.01)
        return real(first, *arguments, **named)

    with mock.patch.object(owner, name, met):
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


FAULTS: dict[str, Callable[..., contextlib.AbstractContextManager[None]]] = {
    "pause": pausing,
    "leak": leaking,
    "none": contextlib.nullcontext,
}


def run(words: Sequence[str], fault: Mapping[str, Any], environ: Mapping[str, str], shown: str) -> None:
    """Run the program with the fault and these variables, and end the process; what it shows goes to a file."""
    os.environ.clear()
    os.environ.update(environ)
    output = os.open(shown, os.O_WRONLY | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    with unjudged(), FAULTS[fault["kind"]](**{name: value for name, value in fault.items() if name != "kind"}):
        sys.exit(program(list(words)))
