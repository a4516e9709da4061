"""The plan of a sweep: its size, and which settings vary between which values."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.run.study_folder import StudyKind
from utils.config.settings import flatten, from_dict, hint, read_toml, require, settings_of, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, first_line
from utils.runs.find import SWEEP

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KIND = StudyKind("sweep", "sweep_plan.json", "trial-*", SWEEP)
VARIABLE = (
    *(name for name in settings_of(Config) if name.startswith(("learning.", "evolution."))),
    "generations",
    "evaluation.fitness_windows",
    "evaluation.exploration_windows",
)
"""Settings that may vary: they affect learning but not days, prices or costs, so that profits compare."""

Space = Mapping[str, "BaseDistribution"]
"""Optuna's distribution of each setting that varies, by its dotted name."""


@dataclass(frozen=True)
class SweepPlan:
    """The size of a sweep and the tables of its space."""

    trials: int
    seeds: int
    space: dict[str, dict[str, Any]]
    """By the dotted name of the setting."""


def run_name(number: int, seed: int) -> str:
    """Return the name of a run's folder, by the number of its trial and its seed."""
    return f"trial-{number:03d}-seed-{seed}"


def trials_beside(run: Path) -> int:
    """Count the trials of the sweep that a run belongs to, all compared on the same days; 1 for a single run."""
    return KIND.read(run.parent, SweepPlan)[0].trials if (run.parent / KIND.plan).is_file() else 1


def read_space(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file by the dotted name of their setting, checked; hyphens count as underscores.

    Raises:
        ConfigError: it is no TOML, names what may not vary, or gives values that the setting may not have.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in flatten(read_toml(path)).items():
        setting, _, key = name.rpartition(".")
        tables.setdefault(setting.replace("-", "_"), {})[key] = value
    space_of(tables)
    return tables


def space_of(tables: Mapping[str, Mapping[str, Any]]) -> Space:
    """Return the distributions that tables describe. Raises ConfigError as `read_space`."""
    require(tables, "a table for each setting that varies in --space", "none")
    return {name: _distribution(name, table) for name, table in tables.items()}


def _distribution(name: str, table: Mapping[str, Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if name not in VARIABLE:
        advice = hint(name, VARIABLE, "; see sweep --help")
        raise ConfigError(
            f"expected settings that a sweep may vary in --space, got {name or next(iter(table))!r}{advice}"
        )

    def checked(value: Any) -> Any:
        """Return a value that the setting may have, as its type. Raises ConfigError."""
        return flatten(to_dict(from_dict({name: value}, Config)))[name]

    reason: object = "one value"
    try:
        with warnings.catch_warnings(action="error"):  # such as that about a step that does not divide the range
            if "choices" in table:
                choices = tuple(dict.fromkeys(map(checked, table["choices"])))
                result: BaseDistribution = CategoricalDistribution(**{**table, "choices": choices})
            else:
                ends = {end: checked(table[end]) for end in ("low", "high")}
                result = (IntDistribution if isinstance(ends["low"], int) else FloatDistribution)(**{**table, **ends})
            if not result.single():
                return result
    except (ArithmeticError, LookupError, TypeError, ValueError, Warning) as error:
        reason = first_line(error)
    raise ConfigError(
        f"expected low and high, with log = true or a step, or two or more choices, for {name} in --space, "
        f"got {dict(table)}: {reason}"
    )
