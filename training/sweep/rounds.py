"""A round of a sweep: trials that are asked for together, trained seed by seed, and told when all have ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from training.sweep.space import Space
from training.sweep.study import FIRST_LOOK, ROUND, Record, is_given_up
from utils.jobs.job import Finished, require_all


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


def stages(seeds: int) -> Iterator[range]:
    """Yield the places of seeds that are trained together: those before a trial can be given up, then one by one."""
    first = min(seeds, FIRST_LOOK)
    yield range(first)
    for place in range(first, seeds):
        yield range(place, place + 1)


def play_round(record: Record, space: Space, numbers: range, seeds: int, seed: int, train: Train) -> None:
    """Ask for the trials of a round, train those that were not told yet, and tell what became of them.

    Nothing depends on the order in which runs end: settings and the choice of whom to give up follow from earlier
    rounds alone. A trial whose settings no run can use (exit code 2) has failed.

    Raises:
        JobsFailed: a run ended for another reason, or all of them failed; nothing of the round is told.
    """
    trials = [trial for trial in record.ask(space, numbers, seed) if not trial.state.is_finished()]
    earlier = record.trials[: numbers.start]
    profits: dict[int, list[float]] = {trial.number: [] for trial in trials}
    errors: dict[int, str] = {}
    ended: list[Finished] = []
    for places in stages(seeds):
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
