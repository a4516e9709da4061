"""The trials of a sweep by Optuna: which settings to try, and when to give a trial up.

Trials are asked for in rounds and trained seed by seed. Suggestions and pruning use the results of earlier rounds
alone, so that they do not depend on the order in which runs end. Optuna's study stays in memory and nothing is stored
but the runs: a sweep that goes on asks for the same trials again, whose results are there.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from training.sweep.space import Space
from utils.errors import ConfigError
from utils.jobs.job import Finished, require_all

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial

ROUND = 8
"""Trials that are asked for together; settings of a round do not depend on each other's results."""
GIVE_UP_CHANCE = 0.1
"""Level of the signed-rank test below which a trial is given up as worse than the best one."""
FIRST_LOOK = math.floor(-math.log2(GIVE_UP_CHANCE)) + 1
"""Seeds of a trial that are always trained: the p-value of n seeds that all lose is 2^-n."""
_STATES = {"COMPLETE": "complete", "PRUNED": "given up", "FAIL": "failed"}
"""States in which a trial can end, by Optuna's names; the best come first."""
_ERROR = "error"


def require_optuna() -> None:
    """Import Optuna and silence it. Raises ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "expected Optuna for a sweep, got none; install it with pip install -r requirements-sweep.txt"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@quiet()
def new_study() -> Study:
    """Return a study without trials that prunes by Wilcoxon's signed-rank test of the differences of equal seeds."""
    import optuna

    pruner = optuna.pruners.WilcoxonPruner(p_threshold=GIVE_UP_CHANCE, n_startup_steps=FIRST_LOOK)
    return optuna.create_study(direction="maximize", pruner=pruner)


def profits_of(trial: FrozenTrial) -> list[float]:
    """Return the profits of a trial's champions on validation days, percent, by seed; fewer where it was given up."""
    return list(trial.intermediate_values.values())


def values_of(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial that has ended as JSON values; `value` is the median of its profits, NaN without any."""
    profits = profits_of(trial)
    return {
        "number": trial.number,
        "settings": trial.params,
        "profits": profits,
        "state": _STATES[trial.state.name],
        "error": trial.user_attrs.get(_ERROR, ""),
        "value": statistics.median(profits) if profits else math.nan,
    }


def ranked(trials: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return trials, as by `values_of`: those trained on all seeds, the best first, then pruned, then failed ones."""
    states = list(_STATES.values())
    return sorted(
        trials, key=lambda one: (states.index(one["state"]), -one["value"] if one["profits"] else 0.0, one["number"])
    )


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

    Settings come at random in the first round, then by tree-structured Parzen estimators (Watanabe 2023,
    "Tree-structured Parzen estimator") on earlier rounds; beside these they depend on `seed` and the trial's number
    alone. A trial that loses clearly against the best one of earlier rounds is given up; one whose settings no run can
    use (exit code 2) fails. The seeds before a trial can be given up are trained together.

    Raises:
        JobsFailed: a run ended for another reason, or all of them failed.
    """
    from optuna.samplers import TPESampler
    from optuna.trial import TrialState

    first, asked = len(study.trials), {}
    for number in range(first, min(first + ROUND, trials)):
        (word,) = np.random.SeedSequence([seed, number]).generate_state(1)
        with quiet():
            study.sampler = TPESampler(seed=int(word), n_startup_trials=ROUND, multivariate=True, constant_liar=False)
            asked[number] = study.ask(dict(space))
    remaining, ended = dict(asked), list[Finished]()
    start = min(seeds, FIRST_LOOK)
    for places in (range(start), *(range(place, place + 1) for place in range(start, seeds))):
        runs = {Run(number, place): trial.params for number, trial in remaining.items() for place in places}
        ends = train(runs) if runs else {}
        require_all([end for end in ends.values() if end.exit_code != 2])
        ended += ends.values()
        for run in runs:
            if (error := ends[run].error) is None:
                asked[run.number].report(ends[run].result, run.place)
            elif remaining.pop(run.number, None) is not None:
                asked[run.number].set_user_attr(_ERROR, error)
        if places.stop < seeds:
            with quiet():
                remaining = {number: trial for number, trial in remaining.items() if not trial.should_prune()}
    if all(end.error is not None for end in ended):
        require_all(ended)
    for number, trial in asked.items():
        if number in remaining:
            study.tell(trial, statistics.median(profits_of(study.trials[number])))
        else:
            study.tell(trial, state=TrialState.FAIL if _ERROR in trial.user_attrs else TrialState.PRUNED)
