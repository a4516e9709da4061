"""Sweeps: which settings vary, trials by Optuna and when one is given up, results and how overfit the best one is.

Trials are asked for in rounds and trained seed by seed. Suggestions and pruning use the results of earlier rounds
alone, so that they do not depend on the order in which runs end. Optuna's study stays in memory and nothing is stored
but the runs: a sweep that goes on asks for the same trials again, whose results are there.
"""

from __future__ import annotations

import json
import math
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from training.evaluation.baselines import CHAMPION
from training.evaluation.export import EQUITY, RESULTS
from training.run.study_folder import StudyKind
from utils.config.settings import flatten, from_dict, hint, read_toml, require, settings_of, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, first_line
from utils.jobs.job import Finished, require_all
from utils.metrics import YEAR_ROOT, daily_returns
from utils.runs.find import SWEEP
from utils.statistics import expected_maximum, overfitting_probability, probabilistic_sharpe_ratio
from utils.tables import table

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

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


ROUND = 8
"""Trials that are asked for together; settings of a round do not depend on each other's results."""
GIVE_UP_CHANCE = 0.1
"""Level of the signed-rank test below which a trial is pruned as worse than the best one."""
FIRST_LOOK = math.floor(-math.log2(GIVE_UP_CHANCE)) + 1
"""Seeds of a trial that are always trained: the p-value of n seeds that all lose is 2^-n."""
_ERROR = "error"


def new_study() -> Study:
    """Return a study without trials that prunes by Wilcoxon's signed-rank test of the differences of equal seeds.

    Raises ConfigError where Optuna is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise ConfigError("expected Optuna for a sweep, got none; pip install -r requirements-sweep.txt") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings(action="ignore"):  # here and below: that a feature is experimental
        pruner = optuna.pruners.WilcoxonPruner(p_threshold=GIVE_UP_CHANCE, n_startup_steps=FIRST_LOOK)
    return optuna.create_study(direction="maximize", pruner=pruner)


def values_of(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial that has ended as JSON values; its profits are those of champions on validation days, percent.

    `value` is the median of the profits by seed, which are fewer where it was pruned; NaN without any.
    """
    profits = list(trial.intermediate_values.values())
    return {
        "number": trial.number,
        "settings": trial.params,
        "profits": profits,
        "state": trial.state.name.lower(),
        "error": trial.user_attrs.get(_ERROR, ""),
        "value": statistics.median(profits) if profits else math.nan,
    }


class Run(NamedTuple):
    """A run of a sweep: a trial on one of its seeds."""

    number: int
    """Of the trial."""
    place: int
    """Of the seed among those of the sweep."""


Train = Callable[[Mapping[Run, Mapping[str, object]]], Mapping[Run, Finished]]
"""Trains runs with these settings to their ends, in any order; the result of a run is its profit."""


def play_round(study: Study, space: Space, trials: int, seeds: int, seed: int, train: Train) -> None:
    """Ask for the next round of at most `trials` in all, train it seed by seed, and tell the study the results.

    A trial that loses clearly against the best one of earlier rounds is pruned; one whose settings no run can use (exit
    code 2) fails. The seeds before a trial can be pruned are trained together. Raises JobsFailed for any other failure.
    """
    from optuna.trial import TrialState

    first = len(study.trials)
    asked = {number: _ask(study, space, seed, number) for number in range(first, min(first + ROUND, trials))}
    going, start = dict(asked), min(seeds, FIRST_LOOK)
    for places in (range(start), *(range(place, place + 1) for place in range(start, seeds))):
        runs = {Run(number, place): trial.params for number, trial in going.items() for place in places}
        ends = train(runs) if runs else {}
        require_all([end for end in ends.values() if end.exit_code != 2])
        for run in runs:
            if (error := ends[run].error) is None:
                asked[run.number].report(ends[run].result, run.place)
            else:
                going.pop(run.number, None)
                asked[run.number].set_user_attr(_ERROR, error)
        if places.stop < seeds:
            with warnings.catch_warnings(action="ignore"):
                going = {number: trial for number, trial in going.items() if not trial.should_prune()}
    for number, trial in asked.items():
        if number in going:
            study.tell(trial, values_of(study.trials[number])["value"])
        else:
            study.tell(trial, state=TrialState.FAIL if _ERROR in trial.user_attrs else TrialState.PRUNED)


def _ask(study: Study, space: Space, seed: int, number: int) -> Trial:
    """Return the next trial, whose settings depend on `seed`, its number and earlier rounds alone.

    They come at random in the first round, then by tree-structured Parzen estimators (Watanabe 2023, "Tree-structured
    Parzen estimator").
    """
    from optuna.samplers import TPESampler

    (word,) = np.random.SeedSequence([seed, number]).generate_state(1)
    with warnings.catch_warnings(action="ignore"):
        study.sampler = TPESampler(seed=int(word), n_startup_trials=ROUND, multivariate=True, constant_liar=False)
    return study.ask(dict(space))


def results_of(run: Path) -> dict[str, Any]:
    """Return the results of a finished run's champion on validation days."""
    return dict(json.loads((run / RESULTS).read_text(encoding="utf-8")))


def outcome_of(folder: Path, plan: SweepPlan, first_seed: int, study: Study) -> dict[str, Any]:
    """Summarise a sweep whose trials have all ended, as JSON values without times: equal sweeps give equal ones.

    Raises ConfigError where no trial was trained on all seeds.
    """
    tried = [values_of(trial) for trial in study.trials]
    complete = [one for one in tried if one["state"] == "complete"]
    if not complete:
        raise ConfigError(f"expected a trial that ends, got {len(tried)} that failed, the first: {tried[0]['error']}")
    best = max(complete, key=lambda one: float(one["value"]))
    shown = [one for one in tried if one["state"] != "fail"]
    place, seeds = shown.index(best), range(first_seed, first_seed + plan.seeds)
    runs = [[folder / run_name(one["number"], seed) for seed in seeds] for one in shown]
    champion, held = _daily_returns(runs)
    # Means over seeds: the return of an account split evenly among them.
    excess = np.nanmean(champion - held, axis=1)
    deviation = excess.std(axis=1, ddof=1)
    ratios = np.divide(excess.mean(axis=1), deviation, out=np.zeros(len(shown)), where=deviation > 1e-12)
    threshold = expected_maximum(float(ratios.std(ddof=1)) if len(shown) > 1 else 0.0, len(shown))
    median_run = runs[place][best["profits"].index(statistics.median_low(best["profits"]))]
    return {
        "sweep": folder.name,
        "trials": plan.trials,
        "seeds": [*seeds],
        "space": plan.space,
        "best": best,
        # PBO of all trials' daily profits. Their sum is monotone in the profit that trials are compared by.
        "overfitting_probability": overfitting_probability(np.log1p(np.maximum(champion, -0.999999))),
        # Probability that the best trial's true Sharpe ratio over the benchmark is above that of the best of all trials
        # without skill, which follows per year.
        "deflated_sharpe": probabilistic_sharpe_ratio(excess[place], threshold),
        "expected_best_sharpe": YEAR_ROOT * threshold,
        # The verdict on the champion of its median seed, which allows for the number of trials.
        "sentence": results_of(median_run)["verdict"]["sentence"],
        "tried": tried,
    }


def _daily_returns(runs: Sequence[Sequence[Path]]) -> npt.NDArray[np.float64]:
    """Return daily returns of champions and of the benchmark, (2, trials, seeds, days); NaN where there is no run."""
    curves = {
        (row, place): daily_returns(pd.read_csv(run / EQUITY)[[CHAMPION, results_of(run)["benchmark"]]].to_numpy().T)
        for row, seeds in enumerate(runs)
        for place, run in enumerate(seeds)
        if (run / EQUITY).is_file()
    }
    returns = np.full((2, len(runs), len(runs[0]), next(iter(curves.values())).shape[1]), np.nan)
    for (row, place), curve in curves.items():
        returns[:, row, place] = curve
    return returns


def report(outcome: dict[str, Any]) -> str:
    """Return all trials, the best first, and how overfit the selection of the best is, as text."""
    rows = [
        {
            "trial": one["number"],
            "state": one["state"],
            "median %": one["value"],
            "by seed %": " ".join(f"{profit:+.2f}" for profit in one["profits"]),
            **{
                name.rpartition(".")[2]: f"{value:.4g}" if isinstance(value, float) else value
                for name, value in one["settings"].items()
            },
            "error": one["error"],
        }
        for one in sorted(outcome["tried"], key=lambda one: (one["state"], -one["value"]))
    ]
    overfit, deflated = outcome["overfitting_probability"], outcome["deflated_sharpe"]
    return (
        f"{table(rows, list(rows[0]))}\n\n"
        f"trial {outcome['best']['number']} is the best of {len(rows)} on validation days: a result biased upwards\n"
        f"probability of backtest overfitting: {'unknown' if overfit is None else f'{overfit:.2f}'}\n"
        f"deflated Sharpe ratio over the benchmark: {'unknown' if deflated is None else f'{deflated:.2f}'}\n"
        f"verdict on its median seed: {outcome['sentence']}"
    )
