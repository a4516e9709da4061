"""The space of a sweep: what may vary is read, and a mistake gets one line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from training.sweep.space import VARIABLE, read_space, space_of
from utils.config.settings import from_dict, settings_of
from utils.config.trader import Config
from utils.errors import ConfigError

GOOD = """
["evolution.mutation_strength"]
low = 0.01
high = 1
log = true
[evolution.population-size]
low = 4
high = 12
step = 4
[generations]
choices = [2, 3]
"""


def test_tables_are_read_quoted_or_not(tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(GOOD)
    assert space_of(read_space(path)) == {
        "evolution.mutation_strength": FloatDistribution(0.01, 1.0, log=True),
        "evolution.population_size": IntDistribution(4, 12, step=4),
        "generations": CategoricalDistribution((2, 3)),
    }


def test_what_may_vary_are_settings_that_leave_days_prices_and_costs_alone() -> None:
    assert set(VARIABLE) < settings_of(Config).keys()
    fixed = ("data", "seed", "device", "run", "env.cost_bps", "env.trading_days", "synthetic.kind", "split.input_clip")
    assert not set(VARIABLE) & set(fixed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a table for each setting that varies"),
        ("[evolution.mutation_strenght]\nlow = 1", "got 'evolution.mutation_strenght'; the nearest is"),
        ("[env.cost_bps]\nlow = 1\nhigh = 2", "settings that a sweep may vary"),
        ("[generations]\nlow = 0\nhigh = 2", "--generations: expected INT >= 1, got 0"),
        ("[learning.gamma]\nchoices = [0.5, 1.5]", "--learning.gamma: expected NUMBER >= 0 and <= 1, got 1.5"),
        ("[generations", "TOML in"),
        *(
            (f"[{name}]\n{table}", "expected low and high, with")
            for name in ("generations", "env.loss_multiplier")
            for table in (
                "low = 1\nhihg = 2",
                "low = 3\nhigh = 2",
                "low = 1\nhigh = 6\nstep = 2",
                "low = 1\nhigh = 6\nstep = nan",
                "choices = [1, 1]",
                "choices = [1, 2]\nlow = 1",
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
