"""The learner: it finds a break that is known to be best, keeps to its bounds, rebuilds its states, goes on exactly."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BurnState
from models.fuel_breaks.config import QNetworkConfig
from tests.fuel_breaks.run_cases import (
    CPU,
    GRASS,
    WATER,
    flat_landscape,
    observe_anew,
    run_config,
    small_tiles,
    trainer_of,
    with_learning,
)
from training.fuel_breaks.config import BoundsConfig, DQNConfig
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.policies import greedy, judging_environment, place
from training.fuel_breaks.replay import centre_by_group, n_step_returns
from utils.runs.state_tree import flatten

CLOCKS = ("seconds", "step_times", "collection_times")
SIDE = 9
FIELDS = FuelBreakConfig(1, scenarios=ScenarioConfig(4, 1, 1, 10_000, 10, 5, 10))
"""One cell to clear, fires that last until all has burned."""
SCHEDULE: dict[str, Any] = {"epsilon_start": 0.5, "epsilon_end": 0.5, "updates_per_episode": 0.75}
LEARNING = DQNConfig(lanes_per_tile=8, batch_size=32, learning_rate=3e-3, target_tau=0.05, **SCHEDULE)


def two_fields(bridge_row: int, is_turned: bool) -> Tile:
    """Two fields of grass parted by water, which fire crosses by one cell only."""
    fuel = np.full((SIDE, SIDE), GRASS)
    fuel[:, SIDE // 2] = WATER
    fuel[bridge_row, SIDE // 2] = GRASS
    return Tile(0, 0, flat_landscape(SIDE, SIDE, fuel_model=fuel.T if is_turned else fuel))


def bridge_cell(bridge_row: int, is_turned: bool) -> int:
    row, column = (SIDE // 2, bridge_row) if is_turned else (bridge_row, SIDE // 2)
    return row * SIDE + column


@pytest.mark.parametrize("n_steps", [0, 1])
def test_learns_the_cell_that_stops_the_fire(n_steps: int) -> None:
    """Without a hint from the heuristic."""
    shown = [(row, turned) for row in (1, 3, 4, 7) for turned in (False, True)]
    unseen = [(row, turned) for row in (2, 5, 6) for turned in (False, True)]
    tiles = [two_fields(*case) for case in unseen]
    judging = judging_environment(tiles, FIELDS).rewarding(0, 0)
    cells = np.flatnonzero(judging.burnable)
    by_cell = [BurnState(judging, np.arange(SIDE * SIDE) == cell).burned_cells for cell in cells]
    assert cells[int(np.argmin(by_cell))] == bridge_cell(*unseen[0]), "the bridge is the best break"
    network = QNetworkConfig(width=12, dilations=1, downstream_prior=False)
    parts = {"tiles": TileConfig(tile_cells=SIDE), "bounds": BoundsConfig(experience_per_collector=100)}
    config = run_config(env=FIELDS, network=network, learning=LEARNING, generation_episodes=240, **parts)
    trainer = trainer_of(with_learning(config, n_steps=n_steps), [two_fields(*case) for case in shown], tiles[:1])
    env = VectorFuelBreakEnvironment(tiles, FIELDS)

    def found() -> list[bool]:
        cleared = place(greedy(trainer.target, trainer.symmetry), env, range(len(tiles)), 3)
        return [bool(one[bridge_cell(*case)]) for one, case in zip(cleared, unseen, strict=True)]

    assert not all(found())
    trainer.run_generation()
    assert all(found())


@pytest.mark.parametrize("n_steps", [0, 2])
def test_goes_on_bit_for_bit(n_steps: int) -> None:
    config = with_learning(run_config(), n_steps=n_steps)
    straight, first = trainer_of(config), trainer_of(config)
    records = [straight.run_generation() for _ in range(3)]
    for _ in range(2):
        first.run_generation()
    state = first.state_dict()
    # Whatever was drawn since start-up must not matter: the state is all.
    torch.manual_seed(99)
    second = DQNTrainer(config, first.env.tiles, first.validation.tiles, CPU, lambda: None)
    second.load_state_dict(state)
    again = second.run_generation()
    for part, value in straight.state_dict().items():
        (tensors, rest), (others, other_rest) = flatten(value), flatten(second.state_dict()[part])
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors), part
        assert all(rest[name] == other_rest[name] for name in rest if name not in CLOCKS), part
    for name in ("validation", "loss", "return_percent", "updates", "episodes", "buffers"):
        assert records[2][name] == again[name], name


def test_everything_is_bounded_and_a_reset_empties_it() -> None:
    bounds = {"loss_history": 7, "reward_history": 5, "step_times": 6, "collection_times": 3}
    trainer = trainer_of(run_config(bounds=BoundsConfig(experience_per_collector=9, **bounds)))
    ring = trainer.replay.ring
    places = {name: tensor.data_ptr() for name, tensor in ring.data.items()}
    for _ in range(4):
        trainer.run_generation()
    assert [len(values) for values in trainer.histories.values()] == [7, 5, 6, 3]
    assert ring.size == ring.capacity == 9 * 4
    learned = {name: value.clone() for name, value in trainer.online.state_dict().items()}
    assert trainer.reset_memory() >= 0
    assert ring.size == 0 and not any(trainer.histories.values())
    assert not trainer.env.states and trainer.env.planning.cache_info().currsize == 0
    assert all(torch.equal(value, learned[name]) for name, value in trainer.online.state_dict().items())
    assert (trainer.generation, trainer.episodes) == (4, 32)
    trainer.play_round()
    assert ring.size > 0 and {name: tensor.data_ptr() for name, tensor in ring.data.items()} == places


def test_best_network_is_kept() -> None:
    trainer, kept = trainer_of(run_config()), dict[str, Any]()
    scores = iter((10.0, 30.0, 20.0))
    trainer.scores["best"] = 0.0
    trainer._validate = lambda: next(scores)  # type: ignore[method-assign]
    for generation in (1, 2, 3):
        trainer.run_generation()
        if generation == 2:
            kept = {name: value.clone() for name, value in trainer.target.state_dict().items()}
    assert (trainer.scores["best"], trainer.scores["best_generation"]) == (30.0, 2)
    assert all(torch.equal(value, kept[name]) for name, value in trainer.best.state_dict().items())
    assert not all(torch.equal(value, kept[name]) for name, value in trainer.target.state_dict().items())


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 6), st.sampled_from([1.0, 0.9, 0.5]))
def test_sums_of_rewards_by_hand(seed: int, n_steps: int, discount: float) -> None:
    rewards = np.random.default_rng(seed).normal(size=(3, 5))
    for reach in (5, n_steps):
        found = n_step_returns(rewards, reach, discount)
        for lane in range(3):
            for step in range(5):
                ahead = rewards[lane, step : min(step + reach, 5)]
                assert found[lane, step] == pytest.approx(sum(r * discount**k for k, r in enumerate(ahead)))


def test_centred_returns_are_relative_to_the_other_lanes() -> None:
    returns = np.array([[1.0, 2], [3, 4], [8, 0], [10, 20], [10, 20], [40, 80]])
    centred = centre_by_group(returns, 3)
    assert centred[0].tolist() == [1 - 5.5, 2 - 2] and centred[5].tolist() == [30, 60]
    np.testing.assert_allclose(centred.reshape(2, 3, 2).sum(axis=1), 0, atol=1e-12)
    # A lane's own return moves nothing that is subtracted from it.
    moved = returns.copy()
    moved[1] += 100
    np.testing.assert_allclose(centre_by_group(moved, 3)[1] - centred[1], 100)
    assert (centre_by_group(returns, 1) == returns).all()


@pytest.mark.parametrize("n_steps", [0, 3])
def test_states_are_rebuilt_from_indices(n_steps: int) -> None:
    """Capacity 30: the ring wraps in the middle of an episode, and comes back from a checkpoint the same."""
    config = with_learning(run_config(), n_steps=n_steps, lanes=2, warm_up_episodes=10_000)
    trainer = trainer_of(config)
    for _ in range(9):
        trainer.play_round()
    assert trainer.replay.ring.size == trainer.replay.ring.capacity == 60
    other = trainer_of(config)
    other.replay.ring.load_state_dict(trainer.replay.ring.state_dict())
    sample = other.replay.sample(100, torch.Generator().manual_seed(1))
    states = {"cleared": sample.state} | ({} if sample.following is None else {"next_cleared": sample.following})
    assert len(states) == 1 + (n_steps > 0)
    stored, env = trainer.replay.ring.data, VectorFuelBreakEnvironment(small_tiles()[:5], config.env)
    rows = torch.randint(60, (100,), generator=torch.Generator().manual_seed(1)).numpy()
    for mask, (observation, legal) in states.items():
        cleared = np.unpackbits(stored[mask].numpy()[rows], axis=1, count=100).astype(bool)
        expected = observe_anew(env, stored["tile"].numpy()[rows], cleared, stored["scenario_seed"].numpy()[rows])
        assert (observation.numpy() == expected).all()
        burnable = np.stack([small_tiles()[tile].landscape.burnable.ravel() for tile in stored["tile"][rows]])
        assert (legal.numpy() == (burnable & ~cleared)).all()


def test_n_step_transitions_lead_where_the_actions_lead() -> None:
    trainer = trainer_of(with_learning(run_config(), n_steps=3, discount=0.5, warm_up_episodes=10_000))
    trainer.play_round()
    data, budget = trainer.replay.ring.data, trainer.config.env.budget_cells
    for row in range(trainer.replay.ring.size):
        step = row % budget
        reach = min(3, budget - step)
        before, after = (np.unpackbits(data[name].numpy()[row], count=100) for name in ("cleared", "next_cleared"))
        added = data["action"][row : row + reach].tolist()
        assert sorted(np.flatnonzero(after & ~before)) == sorted(added) and before.sum() == step
        assert bool(data["terminated"][row]) == (step + reach == budget)
        assert float(data["factor"][row]) == 0.5**reach
