"""The vector environment: it is Gymnasium's vector of single environments, on windows that it draws."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from data.splits import Span
from environment.trading_env import windows_from
from environment.vector_env import VectorTradingEnvironment
from tests.market_cases import random_orders
from tests.small_market import TINY_RULES, environment_of, small_market

STEPS, LANES = TINY_RULES.episode_steps, 3
DAYS = Span(16, 120)


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(seed=1, columns=6, investable=[1, 4, 5])


class OnGivenWindows(gym.Wrapper[Any, Any, Any, Any]):
    """A single environment that is reset to one window after the other."""

    def __init__(self, env: gym.Env[Any, Any], starts: list[int]) -> None:
        super().__init__(env)
        self.starts = iter(starts)

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.env.reset(options=windows_from(next(self.starts), TINY_RULES))


def assert_same(found: Any, expected: Any) -> None:
    """Bit for bit, in dictionaries and arrays of objects too."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same(found[name], expected[name])
    elif isinstance(expected, np.ndarray) and expected.dtype == object and isinstance(expected[0], dict):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    else:
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype or expected.dtype == object


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_equals_a_vector_of_single_environments_bit_for_bit(market: Market, seed: int) -> None:
    actions = random_orders(np.random.default_rng(seed), LANES * (2 * STEPS + 4), 3).reshape(-1, LANES, 3, 2)
    env = environment_of(market, 40)
    vector = VectorTradingEnvironment(env, LANES, DAYS)
    found = [vector.reset(seed=seed), *(vector.step(action) for action in actions)]
    starts = np.array([reply[-1]["day_index"] for reply in found[::STEPS]]).T
    assert len(np.unique(starts)) > 1 and starts.min() >= DAYS.first and starts.max() <= DAYS.last - STEPS
    lanes = [lambda own=own: OnGivenWindows(environment_of(market), own) for own in starts.tolist()]
    single = SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(vector, name) == getattr(single, name)
    assert vector.metadata == single.metadata
    played = [single.reset(), *(single.step(action) for action in actions)]
    for reply, expected in zip(found, played, strict=True):
        assert_same(dict(enumerate(reply)), dict(enumerate(expected)))
        assert vector.observation_space.contains(reply[0])
    assert vector.reset(seed=seed)[1]["day_index"].tolist() == starts[:, 0].tolist()
    assert env.account.lanes == 1 and env.step(np.zeros((3, 2)))[-1]["day_index"] == 41


def test_every_possible_window_is_drawn_and_no_other(market: Market) -> None:
    vector = VectorTradingEnvironment(environment_of(market), 200, Span(20, 20 + STEPS + 3))
    assert set(vector.reset(seed=0)[1]["day_index"].tolist()) == {20, 21, 22, 23}
    with pytest.raises(ValueError, match=rf"^expected days for an episode of {STEPS} steps, got 16\.\.{15 + STEPS}$"):
        VectorTradingEnvironment(environment_of(market), 2, Span(16, 15 + STEPS))
