"""The fuel-break environment and baselines: rules, rewards, states rebuilt exactly, scores with known answers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.config import ScenarioConfig
from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_behaviour import Wind
from environment.fuel_breaks.fire_spread import BurnState, Hazard
from tests.fuel_breaks.run_cases import WATER, flat_landscape, observe_anew, small_config, small_tiles
from training.fuel_breaks.policies import (
    at_start,
    baselines,
    best_by,
    burn_probability,
    domirank,
    downstream_value,
    judging_environment,
    reductions,
    tree_betweenness,
)


def corridor(cells: int, ignitions: list[int], **values: Any) -> BurnState:
    config = small_config(scenarios=ScenarioConfig(duration_minutes=1e6))
    landscape = flat_landscape(1, cells, **values)
    return BurnState(Hazard(landscape, [Wind(0, 0)], np.array([ignitions], dtype=np.int32), config))


def test_scores_of_a_corridor() -> None:
    state = corridor(5, [0, 2])
    assert burn_probability(state).tolist() == [2, 2, 2, 2, 2]
    assert downstream_value(state).tolist() == [5 + 1, 4 + 2, 3 + 5, 2 + 2, 1 + 1]
    assert tree_betweenness(state).tolist() == [0, 1 * 3 + 1 * 1, 2 * 2, 3 * 1 + 1 * 1, 0]
    state.clear(2)
    assert downstream_value(state).tolist() == [2, 1, 0, 0, 0]


def test_domirank_solves_its_equation() -> None:
    state = corridor(7, [3])
    scores = domirank(state)
    links = np.diag(np.ones(6), 1) + np.diag(np.ones(6), -1)
    sigma = 0.5 / -np.linalg.eigvalsh(links)[0]
    # In equilibrium what a node gains by dominating its neighbours is what it loses: x = sigma A (1 - x).
    np.testing.assert_allclose(scores, sigma * links @ (1 - scores))
    np.testing.assert_allclose(scores, scores[::-1])
    alone = corridor(2, [0], fuel_model=[186, WATER])
    assert domirank(alone).tolist() == [1, 0]


def test_evaluation_is_repeatable_and_the_mean_over_fires() -> None:
    policy, env = best_by(at_start(downstream_value)), judging_environment(small_tiles()[:3], small_config())
    both, *single = (reductions(policy, env, seeds, lanes=2) for seeds in ([0, 1], [0], [1]))
    np.testing.assert_allclose(both, np.mean(single, axis=0))
    assert both.shape == (3,) and (both > 0).all() and (both < 100).all()


def test_looking_at_the_fires_beats_chance() -> None:
    """By legal breaks, for others are refused, as many as the budget has."""
    config, scores = small_config(scenarios=ScenarioConfig(winds=4, planning_ignitions_per_wind=25)), {}
    env = judging_environment(small_tiles(), config)
    for name, policy in baselines().items():
        scores[name] = reductions(policy, env).mean()
        assert (env.cleared.sum(axis=1) == config.budget_cells).all(), name
    assert min(score for name, score in scores.items() if name != "random") > scores["random"]
    assert scores["adaptive downstream value"] > scores["burn probability"]


def play(env: VectorFuelBreakEnvironment, seed: int, steps: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Legal random cells; the last observation and the (lanes,) sums of rewards."""
    rng = np.random.default_rng(seed)
    total = np.zeros(len(env.states))
    for _ in range(steps):
        cells = [int(rng.choice(np.flatnonzero(mask))) for mask in env.action_masks()]
        total += env.step(cells)
    return env.observe(), total


def test_an_illegal_cell_is_refused() -> None:
    env = VectorFuelBreakEnvironment(small_tiles(), small_config())
    env.reset([0], [1])
    illegal = int(np.flatnonzero(env.action_masks()[0])[0])
    env.step([illegal])
    before = env.observe()
    for cell in (illegal, -1, 100):
        with pytest.raises(ValueError, match="action mask"):
            env.step([cell])
    assert (env.observe() == before).all()


def test_channels_say_what_they_are_called() -> None:
    env = VectorFuelBreakEnvironment(small_tiles(), small_config())
    env.reset([0], [3])
    observation, _ = play(env, 0, 3)
    channel = dict(zip(CHANNELS, observation[0], strict=True))
    landscape = small_tiles()[0].landscape
    state = env.states[0]
    assert len(CHANNELS) == 18 and observation.dtype == np.float32
    assert (channel["cleared"].ravel() == state.cleared).all() and channel["cleared"].sum() == 3
    assert (channel["unburnable"] == ~landscape.burnable).all()
    assert not np.array_equal(state.hazard.minutes, env.rewarding(0, 3).minutes), "rewards are by other fires"
    np.testing.assert_allclose(channel["burn_probability"].ravel(), np.isfinite(state.arrival).mean(axis=0))
    share = state.downstream.sum(axis=0) / state.hazard.start_burned_cells
    np.testing.assert_allclose(channel["downstream_value"].ravel(), share, rtol=1e-6)
    assert (channel["budget_left"] == 0.25).all()
    has_aspect = landscape.aspect_degrees >= 0
    unit = channel["aspect_sine"] ** 2 + channel["aspect_cosine"] ** 2
    np.testing.assert_allclose(unit, has_aspect, atol=1e-6)
    assert (channel["spread_rate_e"][landscape.burnable] > 0).all()


@settings(max_examples=8)
@given(st.integers(0, 2**31), st.integers(0, 4), st.integers(0, 1000))
def test_a_state_is_rebuilt_from_tile_breaks_and_seed(scenario_seed: int, steps: int, seed: int) -> None:
    env = VectorFuelBreakEnvironment(small_tiles(), small_config())
    tiles, seeds = np.array([1, 4, 1]), np.array([scenario_seed, scenario_seed, scenario_seed + 1])
    env.reset(tiles, seeds)
    observation, total = play(env, seed, steps)
    cleared, other = env.cleared, VectorFuelBreakEnvironment(small_tiles(), small_config(), kept=1)
    assert (observe_anew(other, tiles, cleared, seeds) == observation).all()
    assert np.abs(observation).max() <= 1
    hazards = [other.rewarding(*lane) for lane in zip(tiles.tolist(), seeds.tolist(), strict=True)]
    burned = [BurnState(*pair).burned_cells for pair in zip(hazards, cleared, strict=True)]
    saved = 100 * (1 - np.array(burned) / [hazard.start_burned_cells for hazard in hazards])
    np.testing.assert_allclose(total, saved, atol=1e-9)
    np.testing.assert_allclose(env.reductions, saved)


def test_a_finished_lane_stays_as_it_is() -> None:
    is_wood = np.zeros((10, 10), dtype=bool)
    is_wood[4, 4:6] = True
    islet = Tile(0, 0, flat_landscape(10, 10, fuel_model=np.where(is_wood, 186, WATER)))
    env = VectorFuelBreakEnvironment([islet, small_tiles()[0]], small_config())
    env.reset([0, 1], [0, 0])
    legal = np.flatnonzero(env.action_masks()[1])
    rewards = env.step([44, legal[0]])
    assert env.terminated.tolist() == [False, False] and rewards[0] > 0
    rewards += env.step([45, legal[1]])
    assert env.terminated.tolist() == [True, False] and rewards[0] == 100
    before = env.observe()[0]
    rewards = env.step([-1, legal[2]])
    assert (env.observe()[0] == before).all() and rewards[0] == 0 and env.terminated.tolist() == [True, False]
