"""What is asked of Optuna is a function of earlier rounds, and a trial is given up only where it clearly loses."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState, create_trial

from training.sweep.space import space_of
from training.sweep.study import FIRST_LOOK, ROUND, Record, importances, is_given_up, require_optuna, suggest

SPACE = space_of(
    {
        "evolution.mutation_strength": {"low": 0.01, "high": 1.0, "log": True},
        "learning.policy_iterations": {"choices": [1, 2, 4]},
        "generations": {"low": 2, "high": 10, "step": 4},
    },
    "space.toml",
)


def told(number: int, values: list[float]) -> FrozenTrial:
    """A finished trial with values by seed."""
    params = suggest([], SPACE, 0, number)
    return create_trial(
        value=sorted(values)[len(values) // 2],
        params=params,
        distributions=dict(SPACE),
        intermediate_values=dict(enumerate(values)),
    )


def worth(trial: FrozenTrial) -> list[float]:
    strength: float = trial.params["evolution.mutation_strength"]
    return [seed / 100 - abs(strength - 0.3) for seed in range(3)]


def trials_of(folder: Path, *, reopened: bool) -> list[tuple[object, ...]]:
    """Three rounds, in each of which one trial fails and one is given up; the file opened anew in the midst of each."""
    record = Record(folder)
    for first in range(0, 3 * ROUND, ROUND):
        numbers = range(first, first + ROUND)
        if reopened:
            record.ask(SPACE, numbers[:3], 5)
            record.close()
            record = Record(folder)
        asked = record.ask(SPACE, numbers, 5)
        assert [trial.state for trial in asked] == [TrialState.RUNNING] * ROUND
        for trial in reversed(asked) if reopened else asked:
            is_bad = trial.number % ROUND == 2
            record.tell(
                trial.number, worth(trial), is_given_up=trial.number % ROUND == 1, error="too large" if is_bad else ""
            )
            record.tell(trial.number, [99.0])
    found = [(one.number, one.params, one.value, one.state, one.intermediate_values) for one in record.trials]
    record.close()
    return found


def test_the_trials_are_the_same_whoever_finishes_first_and_after_a_stop(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    whole, parts = trials_of(tmp_path / "a", reopened=False), trials_of(tmp_path / "b", reopened=True)
    assert whole == parts and len(whole) == 3 * ROUND
    assert len({row[3] for row in whole}) == 3
    strengths = [abs(params["evolution.mutation_strength"] - 0.3) for _, params, *_ in whole]  # type: ignore[index]
    assert sum(strengths[-ROUND:]) < sum(strengths[:ROUND]), "later rounds come nearer to the best"


def test_a_half_made_file_is_made_anew(tmp_path: Path) -> None:
    tmp_path = tmp_path / "50%20? #a=b"
    tmp_path.mkdir()
    (tmp_path / ".study.db.tmp").write_text("torn")
    record = Record(tmp_path)
    assert record.trials == [] and not (tmp_path / ".study.db.tmp").exists()
    record.close()


@settings(max_examples=10)
@given(st.integers(0, 2**63 - 1), st.integers(0, 100))
def test_settings_are_a_function_of_seed_and_number(seed: int, number: int) -> None:
    earlier = [told(place, [place / 3]) for place in range(ROUND)]
    assert suggest(earlier, SPACE, seed, number) == suggest(earlier, SPACE, seed, number)
    assert suggest([], SPACE, seed, number) != suggest([], SPACE, seed, number + 1)


def test_a_trial_is_given_up_after_four_seeds_that_all_lose() -> None:
    """The known answer: n losses of n have a chance of 2^-n, which is below 0.1 from four on."""
    assert FIRST_LOOK == 4
    earlier = [told(0, [2.0] * 6), told(1, [5.0, 6.0, 7.0, 8.0, 9.0, 9.5])]
    losing = [4.0, 5.5, 5.0, 7.2, 8.9]
    assert [is_given_up(earlier, losing[:count]) for count in range(1, 6)] == [False, False, False, True, True]
    assert not is_given_up(earlier, [4.0, 6.5, 5.0, 7.2]), "it won on a seed"
    assert not is_given_up([], losing), "the first round has nobody to lose to"


@given(st.lists(st.floats(-50, 50), min_size=6, max_size=6), st.lists(st.floats(-50, 50), min_size=1, max_size=6))
def test_a_trial_with_the_better_mean_is_never_given_up(best: list[float], values: list[float]) -> None:
    if is_given_up([told(0, best)], values):
        assert sum(values) / len(values) < sum(best) / len(best) and len(values) >= FIRST_LOOK


def test_the_setting_that_decides_is_the_most_important() -> None:
    trials = [told(number, [0.0]) for number in range(40)]
    for trial in trials:
        trial.intermediate_values[0] = -abs(trial.params["evolution.mutation_strength"] - 0.3)
    found = importances(trials)
    assert next(iter(found)) == "evolution.mutation_strength" and sum(found.values()) == pytest.approx(1)
    assert importances(trials[:19]) == {}


def test_optuna_is_there() -> None:
    require_optuna()
