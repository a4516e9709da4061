"""What is asked of Optuna is a function of earlier rounds, and a trial is given up only where it clearly loses."""

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from optuna import Study
from optuna.trial import TrialState, create_trial

from training.sweep.space import space_of
from training.sweep.study import (
    FIRST_LOOK,
    ROUND,
    Run,
    new_study,
    play_round,
    quiet,
    values_of,
)
from utils.jobs.job import Finished

SPACE = space_of(
    {
        "evolution.mutation_strength": {"low": 0.01, "high": 1.0, "log": True},
        "learning.gradient_accumulation": {"choices": [1, 2, 4]},
        "generations": {"low": 2, "high": 10, "step": 4},
    },
)


def study_of(*trials: Sequence[float]) -> Study:
    """A study of complete trials with these profits by seed."""
    study = new_study()
    for profits in trials:
        study.add_trial(create_trial(value=profits[-1], intermediate_values=dict(enumerate(profits))))
    return study


def is_given_up(study: Study, profits: Sequence[float]) -> bool:
    with quiet():
        trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(profits)))
        return study.pruner.prune(study, trial)


def worth(params: Mapping[str, object], run: Run) -> float:
    strength = params["evolution.mutation_strength"]
    assert isinstance(strength, float)
    return run.place / 100 - abs(strength - 0.3) - 5 * (run.number % ROUND == 1)


def trials_of(*, seed: int = 5, is_reversed: bool = False) -> list[dict[str, Any]]:
    """Three rounds, in each of which one trial fails and the one before it loses on every seed."""

    def train(runs: Mapping[Run, Mapping[str, object]]) -> dict[Run, Finished]:
        found = {}
        for run, params in sorted(runs.items(), reverse=is_reversed):
            found[run] = Finished(str(run), worth(params, run))
            if run.number % ROUND == 2:
                found[run] = Finished(str(run), error="expected less, got too much", exit_code=2)
        return found

    study = new_study()
    for _ in range(3):
        play_round(study, SPACE, 3 * ROUND, 6, seed, train)
    return [values_of(trial) for trial in study.trials]


def test_the_trials_are_the_same_whoever_finishes_first() -> None:
    whole = trials_of()
    assert str(whole) == str(trials_of(is_reversed=True)) and [one["number"] for one in whole] == list(range(3 * ROUND))
    assert [(one["state"], one["error"]) for one in whole[2::ROUND]] == [("fail", "expected less, got too much")] * 3
    losing = [one["state"] for one in whole[1::ROUND]]
    assert losing == ["complete", "pruned", "pruned"], "the first round has nobody to lose to"
    assert all(len(one["profits"]) == FIRST_LOOK for one in whole if one["state"] == "pruned")
    strengths = [abs(one["settings"]["evolution.mutation_strength"] - 0.3) for one in whole]
    assert sum(strengths[-ROUND:]) < sum(strengths[:ROUND]), "later rounds come nearer to the best"
    settings = [str(one["settings"]) for one in whole]
    assert len(set(settings)) == len(settings) and settings != [str(one["settings"]) for one in trials_of(seed=6)]


def test_a_trial_is_given_up_after_four_seeds_that_all_lose() -> None:
    """The known answer: n losses of n have a chance of 2^-n, which is below 0.1 from four on."""
    assert FIRST_LOOK == 4
    earlier = study_of([2.0] * 6, [5.0, 6.0, 7.0, 8.0, 9.0, 9.5])
    losing = [4.0, 5.5, 5.0, 7.2, 8.9]
    assert [is_given_up(earlier, losing[:count]) for count in range(1, 6)] == [False, False, False, True, True]
    assert not is_given_up(earlier, [4.0, 6.5, 5.0, 7.2]), "it won on a seed"
    assert not is_given_up(study_of(), losing), "the first round has nobody to lose to"


@given(st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.lists(st.floats(-50, 50), min_size=1, max_size=6))
def test_a_trial_with_the_better_mean_is_never_given_up(best: list[float], values: list[float]) -> None:
    if is_given_up(study_of(best), values):
        assert sum(values) / len(values) < sum(best) / len(best) and len(values) >= FIRST_LOOK
