"""The trials of a sweep by Optuna: which settings to try, when to give a trial up, and which settings matter.

Each decision is taken by a study in memory that holds the results of earlier rounds alone, so that it does not depend
on the order in which runs end or on interruptions. The storage is a record only. Trials are asked for in rounds,
trained seed by seed, and told when the whole round has ended.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from training.sweep.space import Space
from utils.errors import ConfigError, first_line
from utils.jobs.job import Finished, require_all

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

STUDY = "study.db"
ROUND = 8
"""Trials that are asked for together; settings of a round do not depend on each other's results."""
GIVE_UP_CHANCE = 0.1
"""Level of the signed-rank test below which a trial is given up as worse than the best one."""
FIRST_LOOK = math.floor(-math.log2(GIVE_UP_CHANCE)) + 1
"""Seeds of a trial that are always trained: the p-value of n seeds that all lose is 2^-n."""
_NAME = "sweep"
ERROR = "error"
"""Attribute of a failed trial."""
_LEAST_FOR_IMPORTANCE = 20


def require_optuna() -> None:
    """Import Optuna and silence it. Raises ConfigError where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            "expected Optuna for a sweep, got none; install it with pip install -r requirements-sweep.txt"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)


class Record:
    """The trials of a sweep, kept in an SQLite file by its driver alone."""

    def __init__(self, folder: Path) -> None:
        """Open the file of a sweep's folder, or make it in one step.

        Raises ConfigError for a damaged file, or one that this version of Optuna cannot read.
        """
        from sqlalchemy.exc import SQLAlchemyError

        path = folder / STUDY
        if not path.is_file():
            fresh = folder / f".{STUDY}.tmp"
            fresh.unlink(missing_ok=True)
            storage = _storage(fresh)
            with quiet():
                _study(storage)
            storage.engine.dispose()
            fresh.replace(path)
        try:
            self._storage = _storage(path)
            self._study = _study(self._storage)
        except (RuntimeError, SQLAlchemyError) as error:
            # Trials follow from the seed and from results, so that nothing is lost with their record.
            raise ConfigError(
                f"expected a study that this Optuna can read in {path}, got: {first_line(error)}; remove it: it is "
                "made anew from the results of the runs"
            ) from None

    def close(self) -> None:
        """Let go of the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()

    @property
    def trials(self) -> list[FrozenTrial]:
        """Return all trials by number."""
        return self._study.get_trials(deepcopy=False)

    def ask(self, space: Space, numbers: range, seed: int) -> list[FrozenTrial]:
        """Return the trials of a round, asking for those that do not exist yet."""
        from optuna.trial import TrialState, create_trial

        known = self.trials
        for number in numbers[len(known) - numbers.start :]:
            # Written at once, settings and all: a process that dies leaves a whole trial or none.
            params = suggest(known[: numbers.start], space, seed, number)
            self._study.add_trial(create_trial(state=TrialState.RUNNING, params=params, distributions=dict(space)))
        return self.trials[numbers.start : numbers.stop]

    def tell(self, number: int, values: Sequence[float], *, is_given_up: bool = False, error: str = "") -> None:
        """Record the result of a trial: its values by seed and their median; ignored if it was told before."""
        from optuna.trial import TrialState

        if self.trials[number].state.is_finished():
            return
        study_id = self._storage.get_study_id_from_name(_NAME)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        for place, value in enumerate(values):
            self._storage.set_trial_intermediate_value(trial_id, place, value)
        if error:
            self._storage.set_trial_user_attr(trial_id, ERROR, error)
            self._study.tell(number, state=TrialState.FAIL)
        elif is_given_up:
            self._study.tell(number, state=TrialState.PRUNED)
        else:
            self._study.tell(number, statistics.median(values))


def _storage(path: Path) -> RDBStorage:
    from optuna.storages import RDBStorage

    # A path may hold what means something in an address.
    return RDBStorage("sqlite:///study.db", engine_kwargs={"creator": partial(sqlite3.connect, path)})


def _study(storage: RDBStorage) -> Study:
    import optuna

    return optuna.create_study(storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _remembered(trials: Sequence[FrozenTrial], **parts: Any) -> Study:
    """Return a study in memory that holds these trials."""
    import optuna

    study = optuna.create_study(direction="maximize", **parts)
    study.add_trials(trials)
    return study


def suggest(earlier: Sequence[FrozenTrial], space: Space, seed: int, number: int) -> dict[str, Any]:
    """Return the settings of a trial, by tree-structured Parzen estimators on earlier rounds, at random in the first.

    They are a function of the arguments alone (Watanabe 2023, "Tree-structured Parzen estimator").
    """
    from optuna.samplers import TPESampler

    (word,) = np.random.SeedSequence([seed, number]).generate_state(1)
    with quiet():
        sampler = TPESampler(seed=int(word), n_startup_trials=ROUND, multivariate=True, constant_liar=False)
        study = _remembered(earlier, sampler=sampler)
        return study.ask(dict(space)).params


def is_given_up(earlier: Sequence[FrozenTrial], values: Sequence[float]) -> bool:
    """Return whether a trial with these values by seed is clearly worse than the best one of the earlier rounds.

    By Wilcoxon's signed-rank test of the differences of equal seeds, from `FIRST_LOOK` seeds on.
    """
    from optuna.pruners import WilcoxonPruner
    from optuna.trial import TrialState, create_trial

    with quiet():
        pruner = WilcoxonPruner(p_threshold=GIVE_UP_CHANCE, n_startup_steps=FIRST_LOOK)
        trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(values)))
        return pruner.prune(_remembered(earlier), trial)


def valued_study(trials: Sequence[FrozenTrial]) -> Study:
    """Return a study in memory in which every trial that did not fail has the median of its values by seed."""
    from optuna.trial import create_trial

    return _remembered(
        [
            trial
            if trial.state.name == "FAIL"
            else create_trial(
                params=trial.params,
                distributions=trial.distributions,
                value=statistics.median(trial.intermediate_values.values()),
            )
            for trial in trials
        ]
    )


def importances(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Return each setting's share in what separates the best trials from all, the largest first; {} for few trials.

    By PED-ANOVA (Watanabe, Bansal & Hutter 2023), of all trials that did not fail, by the median of their values.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    if sum(trial.state.name != "FAIL" for trial in trials) < _LEAST_FOR_IMPORTANCE:
        return {}
    with quiet():
        return get_param_importances(valued_study(trials), evaluator=PedAnovaImportanceEvaluator())


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


def play_round(record: Record, space: Space, numbers: range, seeds: int, seed: int, train: Train) -> None:
    """Ask for the trials of a round, train the unfinished ones seed by seed, and tell their results.

    Results do not depend on the order in which runs end: settings and pruning follow from earlier rounds alone. A trial
    whose settings no run can use (exit code 2) fails. The seeds before a trial can be given up are trained together.

    Raises:
        JobsFailed: a run ended for another reason, or all of them failed; nothing of the round is told.
    """
    trials = [trial for trial in record.ask(space, numbers, seed) if not trial.state.is_finished()]
    earlier = record.trials[: numbers.start]
    profits: dict[int, list[float]] = {trial.number: [] for trial in trials}
    errors: dict[int, str] = {}
    ended: list[Finished] = []
    first = min(seeds, FIRST_LOOK)
    for places in (range(first), *(range(place, place + 1) for place in range(first, seeds))):
        trials = [one for one in trials if one.number not in errors and not is_given_up(earlier, profits[one.number])]
        runs = {Run(trial.number, place): trial.params for trial in trials for place in places}
        found = train(runs) if runs else {}
        require_all([one for one in found.values() if one.exit_code != 2])
        ended += found.values()
        for run in runs:
            if found[run].error is None:
                profits[run.number].append(found[run].result)
            else:
                errors.setdefault(run.number, str(found[run].error))
    if ended and all(one.error is not None for one in ended):
        require_all(ended)
    for number, values in profits.items():
        record.tell(number, values, is_given_up=len(values) < seeds, error=errors.get(number, ""))
