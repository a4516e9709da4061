"""The space of a sweep, and its trials: a function of earlier rounds, given up only where they clearly lose."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna import Study
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from training.sweep import FIRST_LOOK, ROUND, Run, new_study, play_round, read_space, space_of, values_of
from utils.config.settings import from_dict
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.job import Finished

SPACE = space_of(
    {
        "evolution.mutation_strength": {"low": 0.01, "high": 1.0, "log": True},
        "learning.gradient_accumulation": {"choices": [1, 2, 4]},
        "generations": {"low": 2, "high": 10, "step": 4},
    }
)


def study_of(*trials: Sequence[float]) -> Study:
    """A study of complete trials with these profits by seed."""
    study = new_study()
    for profits in trials:
        study.add_trial(create_trial(value=profits[-1], intermediate_values=dict(enumerate(profits))))
    return study


def is_given_up(study: Study, profits: Sequence[float]) -> bool:
    with warnings.catch_warnings(action="ignore"):
        trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(profits)))
        return study.pruner.prune(study, trial)


def trials_of(*, seed: int = 5, is_reversed: bool = False) -> list[dict[str, Any]]:
    """Three rounds, in each of which one trial fails and the one before it loses on every seed."""

    def train(runs: Mapping[Run, Mapping[str, Any]]) -> dict[Run, Finished]:
        found = {}
        for run, params in sorted(runs.items(), reverse=is_reversed):
            worth = run.place / 100 - abs(params["evolution.mutation_strength"] - 0.3) - 5 * (run.number % ROUND == 1)
            found[run] = Finished(str(run), worth)
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


def test_tables_are_read_quoted_or_not(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        """
        generations.choices = [2, 3]
        "evolution.mutation_strength" = {low = 0.01, high = 1, log = true}
        [evolution.population-size]
        low = 4
        high = 12
        step = 4
        """
    )
    assert space_of(read_space(path)) == {
        "evolution.mutation_strength": FloatDistribution(0.01, 1.0, log=True),
        "evolution.population_size": IntDistribution(4, 12, step=4),
        "generations": CategoricalDistribution((2, 3)),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a table for each setting that varies"),
        ("[evolution.mutation_strenght]\nlow = 1", "got 'evolution.mutation_strenght'; the nearest is"),
        *(
            (f"[{name}]\nchoices = [1, 2]", "settings that a sweep may vary")  # all but days, prices and costs
            for name in ("data", "seed", "device", "run", "env.cost_bps", "env.trading_days", "split.input_clip")
        ),
        ("[generations]\nlow = 0\nhigh = 2", "--generations: expected INT >= 1, got 0"),
        ("[learning.tau]\nchoices = [0.5, 1.5]", "--learning.tau: expected NUMBER > 0 and <= 1, got 1.5"),
        ("[generations", "TOML in"),
        *(
            (f"[{name}]\n{table}", "expected low and high, with")
            for name in ("generations", "learning.exploration_noise")
            for table in (
                *("low = 1\nhihg = 2", "low = 3\nhigh = 2", "low = 1\nhigh = 6\nstep = 2"),
                *("low = 1\nhigh = 6\nstep = nan", "choices = [1, 1]", "choices = [1, 2]\nlow = 1"),
            )
        ),
    ],
)
def test_a_mistake_gets_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_space(path)
    assert says in str(caught.value) and "expected " in str(caught.value) and ", got" in str(caught.value)


@given(st.sampled_from(["evolution.mutation_strength", "generations"]), st.booleans(), st.floats(0, 1))
def test_every_value_of_a_range_is_a_setting_and_lies_in_it(name: str, is_log: bool, share: float) -> None:
    (distribution,) = space_of({name: {"low": 1, "high": 9, "log": is_log}}).values()
    value = 1 + round(8 * share) if name == "generations" else 1 + 8 * share
    assert distribution._contains(distribution.to_internal_repr(value))
    from_dict({name: value}, Config)
