"""Types of settings, each with the rule for its values, stated once for check, message and help.

A string among the annotations is the help of a setting without a docstring of its own.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any


@dataclass(frozen=True)
class Rule:
    """A constraint on the values of a setting."""

    words: str
    """The constraint as error messages and help state it; {} stands for the value."""
    holds: Callable[[Any], object]
    """Returns something true for a valid value."""
    of_machine: bool = False
    """Checked by the command line only: a saved run may have begun on another machine, where the value was valid."""


class Mark(Enum):
    """Properties of a setting besides its type."""

    SHORT = auto()
    """Its flag also exists without the name of its concern: --population-size."""
    FREE = auto()
    """It does not affect the result of a generation, up to rounding, so that a resumed run may change it."""
    POSITIONAL = auto()
    """It is a positional argument."""
    NEWEST_IF_BARE = auto()
    """Its flag without a value means the newest run."""


_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def limits(words: str) -> Rule:
    """Return the rule of a finite number that is written as `{} >= 1`, `0 < {} <= 1` or `{} < 2^31`."""
    terms, comparisons = words.split()[::2], [_COMPARISONS[word] for word in words.split()[1::2]]

    def holds(value: float) -> bool:
        numbers = [value if term == "{}" else _number(term) for term in terms]
        pairs = zip(comparisons, numbers, numbers[1:], strict=False)
        return math.isfinite(value) and all(compare(left, right) for compare, left, right in pairs)

    return Rule(words, holds)


def _number(text: str) -> float:
    base, _, exponent = text.partition("^")
    return float(base) ** int(exponent or 1)


def has_cuda() -> bool:
    """Return whether there is a CUDA device; imports torch, which takes a second."""
    import torch

    return torch.cuda.is_available()


PositiveInt = Annotated[int, limits("{} >= 1")]
NonNegativeInt = Annotated[int, limits("{} >= 0")]
PositiveFloat = Annotated[float, limits("{} > 0")]
NonNegativeFloat = Annotated[float, limits("{} >= 0")]
Share = Annotated[float, limits("0 <= {} <= 1")]
PositiveShare = Annotated[float, limits("0 < {} <= 1")]
InnerShare = Annotated[float, limits("0 < {} < 1")]
InputFile = Annotated[Path, Rule("an existing file", Path.is_file, of_machine=True)]
FolderName = Annotated[str, Rule("a plain folder name", re.compile(r"(?!\.{1,2}\Z)[^/\\\0]+").fullmatch)]
Device = Annotated[
    str,
    Rule("auto, cpu, cuda or cuda:N", re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch),
    Rule(
        "cpu or auto on a machine without CUDA",
        lambda name: not name.startswith("cuda") or has_cuda(),
        of_machine=True,
    ),
    "Device of tensor operations; `auto` is CUDA where there is one.",
    Mark.FREE,
]
Verbose = Annotated[bool, Mark.FREE, "Show every message of the run's log on the console."]
Threads = Annotated[
    NonNegativeInt, "CPU threads of tensor operations; 0: torch's default, one per physical core.", Mark.FREE
]
RunName = Annotated[FolderName | None, "Name of the run's folder; default: a new one by date and time.", Mark.FREE]
SavedRunName = Annotated[FolderName | None, "Name of the run; default: the newest one."]
ResumedRunName = Annotated[
    FolderName | None,
    "Continue the named run, or the newest one if no name is given.",
    Mark.NEWEST_IF_BARE,
    Mark.FREE,
]
ExtendedRunName = Annotated[
    FolderName | None,
    "Start a new run with the settings and genes of the named run, or the newest one, on data extended since then.",
    Mark.NEWEST_IF_BARE,
]
VOLUME = Path(os.environ.get("BOX_VOLUME", "/workspace"))
"""Where a rented machine mounts its volume, which outlives the machine."""
RUNS = VOLUME / "runs" if "RUNPOD_POD_ID" in os.environ or VOLUME.is_dir() else Path("runs")
RunsFolder = Annotated[Path, "Folder of all runs.", Mark.FREE]
MemoryLimit = Annotated[
    NonNegativeFloat,
    "Resident memory (MiB) at which the run stops itself; 0: 90% of what machine and cgroup allow.",
    Mark.FREE,
]
Jobs = Annotated[
    PositiveInt | None,
    "Parallel jobs, each a process with one thread; default: 1, on a cluster one per processor or GPU.",
    Mark.FREE,
]
ClusterAddress = Annotated[
    str | None,
    "Ray cluster for the jobs: its address, `auto` for a running one here or else a new one, `local` for a new one on "
    "this machine.",
    Mark.FREE,
]
SettingsFile = Annotated[
    Path | None,
    "TOML file of settings, with a table per concern (for example [env] cost_bps = 5.0); flags override it.",
]
