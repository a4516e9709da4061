"""The baselines: scores with known answers, legal choices, and a fair, repeatable evaluation."""

from typing import Any

import numpy as np
import pytest

from environment.fuel_breaks.config import ScenarioConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_behaviour import Wind
from environment.fuel_breaks.fires import BurnState, Hazard
from tests.fuel_breaks.fire_cases import WATER, flat_landscape, small_config, small_tiles
from training.fuel_breaks.policies import (
    at_start,
    baselines,
    best_by,
    burn_probability,
    domirank,
    downstream_value,
    judging_environment,
    place,
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


@pytest.mark.parametrize("name", baselines())
def test_placements_are_legal_and_spend_the_budget(name: str) -> None:
    env = VectorFuelBreakEnvironment(small_tiles(), small_config())
    cleared = place(baselines()[name], env, range(4), 3)
    assert cleared.sum(axis=1).tolist() == [4] * 4
    assert not (cleared & ~np.stack([tile.landscape.burnable.ravel() for tile in small_tiles()[:4]])).any()


def test_evaluation_is_repeatable_and_the_mean_over_fires() -> None:
    policy, env = best_by(at_start(downstream_value)), judging_environment(small_tiles()[:3], small_config())
    both, *single = (reductions(policy, env, seeds, lanes=2) for seeds in ([0, 1], [0], [1]))
    np.testing.assert_allclose(both, np.mean(single, axis=0))
    assert both.shape == (3,) and (both > 0).all() and (both < 100).all()


def test_looking_at_the_fires_beats_chance() -> None:
    config = small_config(scenarios=ScenarioConfig(winds=4, planning_ignitions_per_wind=25))
    env = judging_environment(small_tiles(), config)
    scores = {name: reductions(policy, env).mean() for name, policy in baselines().items()}
    assert min(score for name, score in scores.items() if name != "random") > scores["random"]
    assert scores["adaptive downstream value"] > scores["burn probability"]
