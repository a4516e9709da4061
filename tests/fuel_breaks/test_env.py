"""The fuel-break environment and baselines: rules, rewards, states rebuilt exactly, scores with known answers."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from data.fuel_breaks import Tile
from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_behaviour import Wind
from environment.fuel_breaks.fire_spread import BurnState, Hazard
from tests.fuel_breaks.run_cases import WATER, burned_anew, flat_landscape, observe_anew, small_config, small_tiles
from training.fuel_breaks import policies
from utils.config.fuel_breaks import ScenarioConfig


def corridor(cells: int, ignitions: list[int], **values: Any) -> BurnState:
    config = small_config(scenarios=ScenarioConfig(duration_minutes=1e6))
    landscape = flat_landscape(1, cells, **values)
    return BurnState(Hazard(landscape, [Wind(0, 0)], np.array([ignitions], dtype=np.int32), config))


def test_scores_of_a_corridor() -> None:
    state = corridor(5, [0, 2])
    assert policies.burn_probability(state).tolist() == [2, 2, 2, 2, 2]
    assert policies.downstream_value(state).tolist() == [5 + 1, 4 + 2, 3 + 5, 2 + 2, 1 + 1]
    assert policies.tree_betweenness(state).tolist() == [0, 1 * 3 + 1 * 1, 2 * 2, 3 * 1 + 1 * 1, 0]
    state.clear(2)
    assert policies.downstream_value(state).tolist() == [2, 1, 0, 0, 0]


def test_domirank_solves_its_equation() -> None:
    state = corridor(7, [3])
    scores = policies.domirank(state)
    links = np.diag(np.ones(6), 1) + np.diag(np.ones(6), -1)
    sigma = 0.5 / -np.linalg.eigvalsh(links)[0]
    # In equilibrium what a node gains by dominating its neighbours is what it loses: x = sigma A (1 - x).
    np.testing.assert_allclose(scores, sigma * links @ (1 - scores))
    alone = corridor(2, [0], fuel_model=[186, WATER])
    assert policies.domirank(alone).tolist() == [1, 0]


def test_looking_at_the_fires_beats_chance() -> None:
    """By legal breaks, for others are refused, as many as the budget has, however many tiles are played at a time."""
    config, scores = small_config(scenarios=ScenarioConfig(winds=4, planning_ignitions_per_wind=25)), {}
    env = policies.judging_environment(small_tiles(), config)
    for name, policy in policies.baselines().items():
        scores[name] = policies.reductions(policy, env).mean()
        assert (env.cleared.sum(axis=1) == config.budget_cells).all(), name
    assert min(score for name, score in scores.items() if name != "random") > scores["random"]
    assert scores["adaptive downstream value"] > scores["burn probability"]
    few, all_ = (policies.reductions(policy, env, 1, lanes=lanes) for lanes in (3, len(env.tiles)))
    np.testing.assert_array_equal(few, all_)


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
    assert (channel["spread_rate_e"][landscape.burnable] > 0).all()


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(0, 12), st.integers(0, 1000))
def test_a_state_is_rebuilt_from_tile_breaks_and_seed(scenario_seed: int, steps: int, seed: int) -> None:
    """Bit for bit as from scratch, however many breaks were made one by one."""
    config = small_config(budget_cells=12)
    env, other = (VectorFuelBreakEnvironment(small_tiles(), config, kept=kept) for kept in (16, 1))
    tiles, seeds = np.array([1, 4, 1]), np.array([scenario_seed, scenario_seed, scenario_seed + 1])
    env.reset(tiles, seeds)
    observation, total = play(env, seed, steps)
    cleared = env.cleared
    for state in env.states:
        fresh = burned_anew(state.hazard, state.cleared)
        assert (state.arrival == fresh.arrival).all() and (state.downstream == fresh.downstream).all()
    assert (observe_anew(other, tiles, cleared, seeds) == observation).all()
    assert np.abs(observation).max() <= 1
    hazards = [other.rewarding(*lane) for lane in zip(tiles.tolist(), seeds.tolist(), strict=True)]
    burned = [burned_anew(*pair).burned_cells for pair in zip(hazards, cleared, strict=True)]
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
