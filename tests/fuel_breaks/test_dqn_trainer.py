"""The learner: it finds a break known to be best, keeps to its bounds, rebuilds its states; its network and targets."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.fuel_breaks import Tile
from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment, static_channels
from models.fuel_breaks import SYMMETRIES, GridSymmetry, QNetwork, symmetric_values
from tests.fuel_breaks.run_cases import (
    GRASS,
    WATER,
    flat_landscape,
    observe_anew,
    random_landscape,
    rotated,
    run_config,
    small_config,
    small_tiles,
    trainer_of,
    with_learning,
)
from training.fuel_breaks import policies
from training.fuel_breaks.dqn_trainer import centre_by_group
from utils.config.fuel_breaks import (
    BoundsConfig,
    DQNConfig,
    FuelBreakConfig,
    QNetworkConfig,
    ScenarioConfig,
    TileConfig,
)

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


def test_learns_the_cell_that_stops_the_fire() -> None:
    """Without a hint from the heuristic."""
    shown = [(row, turned) for row in (1, 3, 4, 7) for turned in (False, True)]
    unseen = [(row, turned) for row in (2, 5, 6) for turned in (False, True)]
    tiles = [two_fields(*case) for case in unseen]
    network = QNetworkConfig(width=12, dilations=1, downstream_prior=False)
    parts = {"tiles": TileConfig(tile_cells=SIDE), "bounds": BoundsConfig(experience_per_collector=100)}
    config = run_config(env=FIELDS, network=network, learning=LEARNING, generation_episodes=240, **parts)
    trainer = trainer_of(config, [two_fields(*case) for case in shown], tiles[:1])
    env = VectorFuelBreakEnvironment(tiles, FIELDS)

    def found() -> list[bool]:
        cleared = policies.place(policies.greedy(trainer.target, trainer.symmetry), env, range(len(tiles)), 3)
        return [bool(one[bridge_cell(*case)]) for one, case in zip(cleared, unseen, strict=True)]

    assert not all(found())
    trainer.run_generation()
    assert all(found())


def test_everything_is_bounded_and_a_reset_empties_it() -> None:
    bounds = {"loss_history": 7, "reward_history": 5, "step_times": 6, "collection_times": 3}
    trainer = trainer_of(run_config(bounds=BoundsConfig(experience_per_collector=9, **bounds)))
    ring = trainer.replay
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


def test_centred_returns_are_relative_to_the_other_lanes() -> None:
    returns = np.array([[1.0, 2], [3, 4], [8, 0], [10, 20], [10, 20], [40, 80]])
    centred = centre_by_group(returns, 3)
    assert centred[0].tolist() == [1 - 5.5, 2 - 2] and centred[5].tolist() == [30, 60]
    # A lane's own return moves nothing that is subtracted from it.
    moved = returns.copy()
    moved[1] += 100
    np.testing.assert_allclose(centre_by_group(moved, 3)[1] - centred[1], 100)
    assert (centre_by_group(returns, 1) == returns).all()


def test_states_are_rebuilt_from_indices() -> None:
    """Capacity 30: the ring wraps in the middle of an episode, and comes back from a checkpoint the same."""
    config = with_learning(run_config(), lanes=2, warm_up_episodes=10_000)
    trainer = trainer_of(config)
    for _ in range(9):
        trainer.play_round()
    assert trainer.replay.size == trainer.replay.capacity == 60
    other = trainer_of(config)
    other.replay.load_state_dict(trainer.replay.state_dict())
    observation, legal, *_ = other.replay.sample(100, torch.Generator().manual_seed(1))
    stored, env = trainer.replay.data, VectorFuelBreakEnvironment(small_tiles()[:5], config.env)
    rows = torch.randint(60, (100,), generator=torch.Generator().manual_seed(1)).numpy()
    cleared = np.unpackbits(stored["cleared"].numpy()[rows], axis=1, count=100).astype(bool)
    expected = observe_anew(env, stored["tile"].numpy()[rows], cleared, stored["scenario_seed"].numpy()[rows])
    assert (observation.numpy() == expected).all()
    burnable = np.stack([small_tiles()[tile].landscape.burnable.ravel() for tile in stored["tile"][rows]])
    assert (legal.numpy() == (burnable & ~cleared)).all()


def test_transitions_have_the_sums_of_rewards_to_come() -> None:
    """Of lanes alone on their tiles: what a state without its first cell still saves of the reward fires."""
    trainer = trainer_of(with_learning(run_config(), lanes_per_tile=1, warm_up_episodes=10_000))
    trainer.play_round()
    data, budget = trainer.replay.data, trainer.config.env.budget_cells
    for lane, saved in enumerate(trainer.env.reductions):
        rows = slice(lane * budget, (lane + 1) * budget)
        before = np.unpackbits(data["cleared"].numpy()[rows], axis=1, count=100)
        assert before.sum(axis=1).tolist() == [*range(budget)]
        added = data["action"][rows].tolist()
        assert all(sorted(np.flatnonzero(before[step])) == sorted(added[:step]) for step in range(budget))
        env = VectorFuelBreakEnvironment(trainer.env.tiles, trainer.config.env)
        env.reset(trainer.env.lane_tiles[lane : lane + 1], trainer.env.scenario_seeds[lane : lane + 1])
        for action, left in zip(added, data["reward"][rows].tolist(), strict=True):
            assert left * policies.PERCENT_PER_UNIT == pytest.approx(saved - env.reductions[0], abs=1e-4)
            env.step([action])


SMALL = QNetworkConfig(width=6, dilations=2)


def network_of(seed: int, prior_channel: int | None = 1, channels: int = 3) -> QNetwork:
    torch.manual_seed(seed)
    network = QNetwork(channels, SMALL, prior_channel=prior_channel, prior_scale=2.0)
    torch.nn.init.normal_(network.advantage.weight)
    return network


def inputs(seed: int, count: int = 3, side: int = 5, channels: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    legal = torch.rand(count, side * side, generator=generator) < 0.6
    legal[:, 0] = True
    return torch.rand(count, channels, side, side, generator=generator), legal


@settings(max_examples=10)
@given(st.integers(0, 10_000), st.booleans())
def test_values_average_to_the_state_value_and_forbid_what_is_illegal(seed: int, has_prior: bool) -> None:
    network, (observation, legal) = network_of(seed, 1 if has_prior else None), inputs(seed)
    values = network(observation, legal)
    assert torch.isneginf(values[~legal]).all() and torch.isfinite(values[legal]).all()
    mean = torch.stack([row[mask].mean() for row, mask in zip(values, legal, strict=True)])
    with torch.no_grad():
        network.advantage.bias.add_(7.0)  # type: ignore[union-attr]
        network.advantage.weight.zero_()
        network.prior_log_scale.fill_(-100.0)
    alone = network(observation, legal)
    # Without advantages every legal action is worth the state's value, which is what the mean was before.
    for row, mask, expected in zip(alone, legal, mean, strict=True):
        torch.testing.assert_close(row[mask], expected.expand(int(mask.sum())), atol=1e-4, rtol=1e-4)


def test_an_untrained_network_clears_what_the_heuristic_clears() -> None:
    torch.manual_seed(0)
    env = VectorFuelBreakEnvironment(small_tiles(), small_config())
    untrained = policies.greedy(policies.build_network(SMALL), policies.build_symmetry(10))
    heuristic = policies.best_by(policies.downstream_value)
    one, other = (policies.place(policy, env, [0, 3, 5], 7) for policy in (untrained, heuristic))
    assert (one == other).all()


@pytest.mark.parametrize("symmetry", range(SYMMETRIES))
def test_symmetries_are_those_of_the_ground(symmetry: int) -> None:
    landscape = moved = random_landscape(6, 6, 3)
    if symmetry >= 4:  # west and east exchanged
        arrays: dict[str, Any] = {name: array[:, ::-1].copy() for name, array in landscape.arrays().items()}
        moved = replace(landscape, **{**arrays, "aspect_degrees": (360 - arrays["aspect_degrees"]) % 360})
    for _ in range(symmetry % 4):
        moved = rotated(moved)
    whole = torch.zeros(1, len(CHANNELS), 6, 6)
    whole[0, :14] = torch.from_numpy(static_channels(landscape, small_config()))
    whole[0, 14:] = torch.rand(4, 6, 6)
    turned = policies.build_symmetry(6).maps(whole, symmetry)
    np.testing.assert_allclose(turned[0, :14], static_channels(moved, small_config()), atol=2e-5)
    flipped = whole[0, 14:].numpy()[:, :, ::-1] if symmetry >= 4 else whole[0, 14:].numpy()
    assert (turned[0, 14:].numpy() == np.rot90(flipped, symmetry % 4, axes=(1, 2))).all()


def test_cells_and_actions_move_alike_and_the_mean_over_symmetries_with_them() -> None:
    network, grid = network_of(4), GridSymmetry(3, 5, compass=(), east=0, north=2)
    observation, legal = inputs(4)
    legal[range(3), [3, 17, 9]] = True
    values = symmetric_values(network, grid, observation, legal)
    for k in range(SYMMETRIES):
        turned = symmetric_values(network, grid, grid.maps(observation, k), grid.cells(legal, k))
        there, actions = grid.cells(values, k), torch.tensor([3, 17, 9])
        torch.testing.assert_close(turned, there)
        assert (grid.cells_back(there, k) == values).all()
        assert (there[range(3), grid.action(actions, k)] == values[range(3), actions]).all()


def test_proportional_choice_draws_in_proportion() -> None:
    values, legal = np.tile([1.0, 3.0, 6.0, 10.0], (4000, 1)), np.tile([True, True, True, False], (4000, 1))
    chosen = policies.proportional_choice(values, legal, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 4000, [0.1, 0.3, 0.6, 0.0], atol=0.03)
