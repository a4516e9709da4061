"""What a sweep set out to do: its plan, in its folder, and the names of its runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.run.study_folder import StudyKind
from training.sweep.space import Space, space_of

KIND = StudyKind("sweep", "sweep_plan.json", "trial-*")


@dataclass(frozen=True)
class SweepPlan:
    """The size of a sweep and the tables of its space."""

    trials: int
    seeds: int
    space: dict[str, dict[str, Any]]
    """By the dotted name of the setting."""

    @property
    def distributions(self) -> Space:
        """Return the space as Optuna's distributions. Raises ConfigError where this version cannot use it."""
        return space_of(self.space, KIND.plan)


def run_name(number: int, seed: int) -> str:
    """Return the name of a run's folder, by the number of its trial and its seed."""
    return f"trial-{number:03d}-seed-{seed}"


def trials_beside(run: Path) -> int:
    """Count the trials of the sweep that a run belongs to, which are compared on the same days; 1 for a run alone."""
    return KIND.read(run.parent, SweepPlan)[0].trials if (run.parent / KIND.plan).is_file() else 1
