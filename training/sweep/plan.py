"""What a sweep set out to do: its plan, in its folder, and the names of its runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.sweep.space import Space, space_of
from utils.config.settings import from_dict
from utils.config.trader import Config
from utils.errors import ConfigError

PLAN = "sweep_plan.json"
"""The plan and the settings of a sweep, in its folder."""


@dataclass(frozen=True)
class SweepPlan:
    """The size of a sweep and the tables of its space."""

    trials: int
    seeds: int
    space: dict[str, dict[str, Any]]
    """By the dotted name of the setting."""

    @property
    def dimensions(self) -> Space:
        """Return the space. Raises ConfigError where this version cannot use it."""
        return space_of(self.space, PLAN)


def run_name(number: int, seed: int) -> str:
    """Return the name of a run's folder, by the number of its trial and its seed."""
    return f"trial-{number:03d}-seed-{seed}"


def read_plan(folder: Path) -> tuple[SweepPlan, Config]:
    """Return the plan of a sweep, and the settings that its trials vary. Raises ConfigError for a damaged file."""
    try:
        contents = json.loads((folder / PLAN).read_text(encoding="utf-8"))
        return SweepPlan(**contents["plan"]), from_dict(contents["settings"], Config)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"expected the plan of a sweep in {folder / PLAN}, got: {error}") from None


def trials_beside(run: Path) -> int:
    """Count the trials of the sweep that a run belongs to, which are compared on the same days; 1 for a run alone."""
    return read_plan(run.parent)[0].trials if (run.parent / PLAN).is_file() else 1
