"""The trials of a sweep by Optuna: which settings to try, and when to give a trial up.

Trials are asked for in rounds and trained seed by seed. Suggestions and pruning use the results of earlier rounds
alone, so that they do not depend on the order in which runs end. Optuna's study stays in memory and nothing is stored
but the runs: a sweep that goes on asks for the same trials again, whose results are there.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from training.sweep.space import Space
from utils.errors import ConfigError
from utils.jobs.job import Finished, require_all

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

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
