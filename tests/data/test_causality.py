"""Nothing known on a day depends on a later one, bit for bit, from the bars to the orders of an agent."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import observed_features, stationary_inputs
from data.market import Market
from models.ddpg_agent import DDPGAgent
from tests.market_cases import random_panel
from tests.small_market import TINY_RULES, environment_of, loader_of, market_of
from tests.tiny import acted, tiny_agent
from utils.arrays import Float32Array
from utils.config.trader import Fill

DAYS, COLUMNS, INVESTABLE = 160, 5, [0, 2, 4]
LAST_TRAINING_DAY = 79


def panel_of(seed: int = 0) -> Float32Array:
    return random_panel(np.random.default_rng(seed), DAYS, COLUMNS)


def with_another_future(panel: Float32Array, day: int, seed: int) -> Float32Array:
    """Every bar after `day` is noise; some are gone, some are new, some have impossible prices."""
    rng, changed = np.random.default_rng(seed), panel.copy()
    shape = changed[day + 1 :].shape
    noise = np.exp(rng.uniform(-6, 12, shape)).astype(np.float32)
    noise[rng.random(shape) < 0.02] = -1.0
    noise[rng.random(shape) < 0.02] = np.inf
    noise[rng.random(shape[:2]) < 0.3] = np.nan
    changed[day + 1 :] = noise
    return changed


def play(market: Market, agent: DDPGAgent, start: int, fill: Fill = "next_open") -> tuple[list[Any], ...]:
    """Actions, observations and equity of one agent; the first ones are of the first day, without an action."""
    env = environment_of(market, start, rules=dataclasses.replace(TINY_RULES, fill=fill))
    actions, observations, infos = map(list, zip(*acted(agent, env, market), strict=True))
    return actions[1:], observations, [info["equity"] for info in infos]


@given(day=st.integers(0, DAYS - 2), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_features_and_inputs_up_to_a_day_ignore_what_follows(day: int, seed: int) -> None:
    panel = panel_of(seed % 3)
    loader, other = loader_of(panel), loader_of(with_another_future(panel, day, seed))
    known = slice(0, day + 1)
    np.testing.assert_array_equal(other.dates, loader.dates)
    np.testing.assert_array_equal(other.data_array[known], loader.data_array[known])
    assert not np.array_equal(other.data_array[day + 1 :], loader.data_array[day + 1 :], equal_nan=True)
    stats = loader.compute_normalization_stats(LAST_TRAINING_DAY)
    for inputs in (stationary_inputs, lambda data: observed_features(data, stats, 8.0)):
        np.testing.assert_array_equal(inputs(other.data_array)[known], inputs(loader.data_array)[known])


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
@pytest.mark.parametrize("day", [LAST_TRAINING_DAY, 101, 137])
def test_observations_and_actions_up_to_a_day_ignore_what_follows(day: int, fill: Fill) -> None:
    """From the frame through loader, market, environment and agent, in a window that has begun before the day.

    The normalisation is that of the training days, which are over by then.
    """
    panel = panel_of()
    start = min(day - 7, DAYS - 1 - TINY_RULES.episode_steps)
    known = day - start + 1
    market = market_of(panel, investable=INVESTABLE)
    assert market.splits.train.last == LAST_TRAINING_DAY
    agent = tiny_agent(market, seed=4)
    actions, observations, equity = play(market, agent, start, fill)
    assert len({int(action.argmax()) for action in actions}) > 1
    for seed in (0, 1):
        other = market_of(with_another_future(panel, day, seed), investable=INVESTABLE)
        np.testing.assert_array_equal(np.stack([*vars(other.stats).values()]), [*vars(market.stats).values()])
        found = play(other, agent, start, fill)
        for seen, as_seen in zip(found[1][:known], observations[:known], strict=True):
            for name, value in as_seen.items():
                np.testing.assert_array_equal(seen[name], value, err_msg=name)
        np.testing.assert_array_equal(found[0][:known], actions[:known])
        assert found[2][:known] == equity[:known]
        assert found[2] != equity, "what follows does differ"
