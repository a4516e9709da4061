"""The plan of a sweep: its size, and which settings vary between which values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.run.study_folder import StudyKind
from utils.config.settings import flatten, from_dict, hint, read_toml, require, settings_of, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KIND = StudyKind("sweep", "sweep_plan.json", "trial-*")
VARIABLE = (
    *(name for name in settings_of(Config) if name.startswith(("learning.", "evolution."))),
    *("generations", "evaluation.fitness_windows", "evaluation.exploration_windows"),
    *("env.stake_percent", "env.max_new_positions_per_day"),
    *("env.inaction_penalty", "env.loss_multiplier", "env.zero_trades_penalty"),
)
"""Settings that may vary: they affect learning and trading but not days, prices or costs, so that profits compare."""
_KEYS = ("low", "high", "log", "step", "choices")


Space = Mapping[str, "BaseDistribution"]
"""Optuna's distribution of each setting that varies, by its dotted name."""


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
    """Count the trials of the sweep that a run belongs to, all compared on the same days; 1 for a single run."""
    return KIND.read(run.parent, SweepPlan)[0].trials if (run.parent / KIND.plan).is_file() else 1


def read_space(path: Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file by the dotted name of their setting, checked; hyphens count as underscores.

    Raises:
        ConfigError: it is no TOML, names what may not vary, or gives values that the setting may not have.
    """
    tables: dict[str, dict[str, Any]] = {}
    for name, value in flatten(read_toml(path, "--space")).items():
        setting, _, key = name.rpartition(".")
        tables.setdefault(setting.replace("-", "_"), {})[key] = value
    space_of(tables, path.name)
    return tables


def space_of(tables: Mapping[str, Mapping[str, Any]], source: str) -> Space:
    """Return the distributions that tables describe; `source` is named in messages. ConfigError as `read_space`."""
    require(tables, f"a table for each setting that varies in {source}", "none")
    return {name: _distribution(name, table, source) for name, table in tables.items()}


def _distribution(name: str, table: Mapping[str, Any], source: str) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    if name not in VARIABLE:
        what = "a setting that a sweep may vary (see --help)" if name in settings_of(Config) else "a known setting"
        shown = name or next(iter(table))
        raise ConfigError(f"expected {what} in {source}, got {shown!r}{hint(shown, VARIABLE, '; see sweep --help')}")
    where = f"{name} in {source}"
    for key in table:
        require(key in _KEYS, f"low and high (with log or step), or choices, for {where}", key)
    if "choices" not in table:
        return _range(table, name, where)
    values = table["choices"]
    require(len(table) == 1, f"either choices or a range for {where}", "both")
    require(isinstance(values, list), f"a list of choices for {where}", values)
    choices = [_checked(value, name, where) for value in values]
    require(len(set(choices)) == len(choices) > 1, f"two or more different choices for {where}", values)
    return CategoricalDistribution(choices)


def _checked(value: Any, name: str, where: str) -> Any:
    """Return a value that the setting may have, as its type; ConfigError, which names it `where`, for another one."""
    return flatten(to_dict(from_dict({name: value}, Config, {name: where})))[name]


def _range(table: Mapping[str, Any], name: str, where: str) -> BaseDistribution:
    from optuna.distributions import FloatDistribution, IntDistribution

    require({"low", "high"} <= table.keys(), f"low and high, or choices, for {where}", ", ".join(table))
    low, high = (_checked(table[end], name, where) for end in ("low", "high"))
    require(low < high, f"low < high for {where}", (low, high))
    step, is_log = table.get("step"), table.get("log", False)
    require(isinstance(is_log, bool), f"true or false for log of {where}", is_log)
    if is_log:
        require(step is None and low > 0, f"a low above 0 and no step with log for {where}", dict(table))
    if step is not None:
        is_valid = type(step) in (int, type(low)) and math.isfinite(step)
        require(is_valid, f"a finite number, of the kind of low and high, for step of {where}", step)
        step = type(low)(step)
        times = (high - low) / step if step > 0 else 0.5
        require(math.isclose(times, round(times)), f"a step above 0 that divides high - low for {where}", step)
    if isinstance(low, int):
        return IntDistribution(low, high, log=is_log, step=step or 1)
    return FloatDistribution(low, high, log=is_log, step=step)
