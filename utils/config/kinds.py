"""Types of settings, each with the limits of its values, which check, message and help share."""

import os
import re
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from utils.errors import ConfigError


class Mark(Enum):
    """Properties of a setting besides its type."""

    SHORT = auto()
    """Its flag has no name of a concern: --population-size."""
    FREE = auto()
    """It does not affect the result of a generation, up to rounding, so that a resumed run may change it."""
    POSITIONAL = auto()
    NEWEST_IF_BARE = auto()
    """Its flag without a value means the newest run."""
    INPUT = auto()
    """A file that must exist where its flag is given."""
    MAIN = auto()
    """A setting of runs that `--help` shows; the others are shown by `--help-all`."""
    OUTPUT = auto()
    """A file to write, in a folder that must exist."""


def rule(words: str, holds: Callable[[Any], object]) -> AfterValidator:
    """Return a check that a value other than None is what the words say."""

    def check(value: Any) -> Any:
        if value is not None and not holds(value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


UP_TO_A_BILLION = rule("a number up to 10^9", lambda number: number <= 10**9)
"""Larger ones would overflow the integers of libraries."""
PositiveInt = Annotated[int, Field(ge=1), UP_TO_A_BILLION]
NonNegativeInt = Annotated[int, Field(ge=0), UP_TO_A_BILLION]
PositiveFloat = Annotated[float, Field(gt=0)]
Capital = Annotated[float, Field(gt=0, le=1e12)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
InnerShare = Annotated[float, Field(gt=0, lt=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
BasisPoints = Annotated[float, Field(ge=0, lt=10_000)]
InputFile = Annotated[Path | None, Mark.INPUT]
OutputFile = Annotated[Path | None, Mark.OUTPUT]
_PLAIN_NAME = rule(
    "a plain folder name of up to 100 characters, which begins with no -",
    re.compile(r"(?!\.{1,2}\Z|-)[^/\\\0-\x1f\x7f]{1,100}").fullmatch,
)
FolderName = Annotated[str | None, _PLAIN_NAME]
AccountName = Annotated[str, _PLAIN_NAME, Mark.POSITIONAL, Field(description="Name of the account.")]
Device = Annotated[
    str,
    rule("auto, cpu, cuda or cuda:N", re.compile(r"auto|cpu|cuda(:\d+)?").fullmatch),
    Field(description="Device of tensor operations; `auto` is CUDA where there is one."),
    Mark.FREE,
    Mark.MAIN,
]
Threads = Annotated[
    int,
    Field(ge=0, le=1024, description="CPU threads of tensor operations; 0: torch's default, one per physical core."),
    Mark.FREE,
]
SpendLook = Annotated[bool, Field(description="Look at the holdout, which is recorded and counts against the result.")]
SavedRunName = Annotated[FolderName, Field(description="Name of the run; default: the newest one.")]
VOLUME = Path(os.environ.get("BOX_VOLUME", ""))
"""Where a box mounts its volume, which outlives the machine; the image says so."""
RUNS = VOLUME / "runs"
RunsFolder = Annotated[Path, Field(description="Folder of all runs."), Mark.FREE]
SettingsFile = Annotated[
    InputFile,
    Field(description="TOML file of settings, a table per concern ([env] cost_bps = 5), or a run's config.json."),
]


def require_spent(is_spent: bool) -> None:
    """Raise ConfigError unless a look at the holdout was asked for."""
    if not is_spent:
        raise ConfigError(
            "expected --spend-look for days of the holdout, got none; each look is recorded and leaves them less "
            "independent: give it for a look on purpose, or stay on validation days"
        )
