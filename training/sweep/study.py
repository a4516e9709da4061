"""The trials of a sweep by Optuna: which settings to try, when to give a trial up, and which settings matter.

Trials are asked for in rounds and trained seed by seed. Each decision is taken by a study in memory that holds the
results of earlier rounds alone, so that it does not depend on the order in which runs end. Nothing is stored but the
runs: a sweep that goes on asks for the same trials again, whose results are there.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from training.sweep.space import Space
from utils.errors import ConfigError
from utils.jobs.job import Finished, require_all

if TYPE_CHECKING:
    from optuna import Study

ROUND = 8
"""Trials that are asked for together; settings of a round do not depend on each other's results."""
GIVE_UP_CHANCE = 0.1
"""Level of the signed-rank test below which a trial is given up as worse than the best one."""
FIRST_LOOK = math.floor(-math.log2(GIVE_UP_CHANCE)) + 1
"""Seeds of a trial that are always trained: the p-value of n seeds that all lose is 2^-n."""
_LEAST_FOR_IMPORTANCE = 20
State = Literal["complete", "given up", "failed"]
_STATES: Mapping[State, str] = {"complete": "COMPLETE", "given up": "PRUNED", "failed": "FAIL"}
"""Optuna's names."""


@dataclass(frozen=True)
class Trial:
    """A trial that has ended."""

    number: int
    settings: dict[str, Any]
    """Those that vary, by dotted name."""
    profits: tuple[float, ...]
    """Of the champion on validation days, percent, by seed; fewer than the seeds where the trial was given up."""
    state: State
    error: str = ""
    """Why it failed."""

    @property
    def value(self) -> float:
        """Return the median of its profits, NaN without any."""
        return statistics.median(self.profits) if self.profits else float("nan")


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


def study_of(trials: Sequence[Trial], space: Space, **parts: Any) -> Study:
    """Return Optuna's study, in memory, of trials that have ended."""
    import optuna

    study = optuna.create_study(direction="maximize", **parts)
    for trial in trials:
        ended = optuna.trial.create_trial(
            state=optuna.trial.TrialState[_STATES[trial.state]],
            value=None if trial.state == "failed" else trial.value,
            params=trial.settings,
            distributions=dict(space),
            intermediate_values=dict(enumerate(trial.profits)),
        )
        study.add_trial(ended)
    return study


def suggest(earlier: Sequence[Trial], space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return the settings of a trial, by tree-structured Parzen estimators on earlier rounds, at random in the first.

    They are a function of the arguments alone (Watanabe 2023, "Tree-structured Parzen estimator").
    """
    from optuna.samplers import TPESampler

    (word,) = np.random.SeedSequence([seed, number]).generate_state(1)
    with quiet():
        sampler = TPESampler(seed=int(word), n_startup_trials=ROUND, multivariate=True, constant_liar=False)
        return study_of(earlier, space, sampler=sampler).ask(dict(space)).params


def is_given_up(earlier: Sequence[Trial], space: Space, profits: Sequence[float]) -> bool:
    """Return whether a trial with these profits by seed is clearly worse than the best one of the earlier rounds.

    By Wilcoxon's signed-rank test of the differences of equal seeds, from `FIRST_LOOK` seeds on.
    """
    from optuna.pruners import WilcoxonPruner
    from optuna.trial import TrialState, create_trial

    with quiet():
        pruner = WilcoxonPruner(p_threshold=GIVE_UP_CHANCE, n_startup_steps=FIRST_LOOK)
        trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(profits)))
        return pruner.prune(study_of(earlier, space), trial)


def valued_study(trials: Sequence[Trial], space: Space) -> Study:
    """Return the study of the trials that did not fail, those given up counted as complete."""
    return study_of([replace(trial, state="complete") for trial in trials if trial.state != "failed"], space)


def importances(trials: Sequence[Trial], space: Space) -> dict[str, float]:
    """Return each setting's share in what separates the best trials from all, the largest first; {} for few trials.

    By PED-ANOVA (Watanabe, Bansal & Hutter 2023), of all trials that did not fail, by the median of their profits.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    with quiet():
        study = valued_study(trials, space)
        if len(study.trials) < _LEAST_FOR_IMPORTANCE:
            return {}
        return get_param_importances(study, evaluator=PedAnovaImportanceEvaluator())


class Run(NamedTuple):
    """A run of a sweep: a trial on one of its seeds."""

    number: int
    """Of the trial."""
    place: int
    """Of the seed among those of the sweep."""


Train = Callable[[Mapping[Run, Mapping[str, object]]], Mapping[Run, Finished]]
"""Trains runs with these settings to their ends, in any order; the result of a run is its profit."""


def rounds(trials: int) -> Iterator[range]:
    """Yield the numbers of the trials of each round."""
    for first in range(0, trials, ROUND):
        yield range(first, min(first + ROUND, trials))


def play_round(
    earlier: Sequence[Trial], space: Space, numbers: range, seeds: int, seed: int, train: Train
) -> list[Trial]:
    """Ask for the trials of a round, train them seed by seed, and return them with their results.

    Results do not depend on the order in which runs end: settings and pruning follow from earlier rounds alone. A trial
    whose settings no run can use (exit code 2) fails. The seeds before a trial can be given up are trained together.

    Raises:
        JobsFailed: a run ended for another reason, or all of them failed.
    """
    settings = {number: suggest(earlier, space, seed, number) for number in numbers}
    profits: dict[int, list[float]] = {number: [] for number in numbers}
    errors: dict[int, str] = {}
    runs_ended: list[Finished] = []
    first = min(seeds, FIRST_LOOK)
    for places in (range(first), *(range(place, place + 1) for place in range(first, seeds))):
        left = [
            number for number in numbers if number not in errors and not is_given_up(earlier, space, profits[number])
        ]
        runs = {Run(number, place): settings[number] for number in left for place in places}
        ends = train(runs) if runs else {}
        require_all([one for one in ends.values() if one.exit_code != 2])
        runs_ended += ends.values()
        for run in runs:
            if ends[run].error is None:
                profits[run.number].append(ends[run].result)
            else:
                errors.setdefault(run.number, str(ends[run].error))
    if all(one.error is not None for one in runs_ended):
        require_all(runs_ended)
    found: list[Trial] = []
    for number, earned in profits.items():
        ended: State = "complete" if len(earned) == seeds else "given up"
        state: State = "failed" if number in errors else ended
        found.append(Trial(number, settings[number], tuple(earned), state, errors.get(number, "")))
    return found
