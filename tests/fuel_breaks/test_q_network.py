"""The Q-network, the symmetries of the grid and the targets, against known answers and independent computations."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment, static_channels
from models.fuel_breaks.config import QNetworkConfig
from models.fuel_breaks.q_network import SYMMETRIES, GridSymmetry, QNetwork, symmetric_values
from tests.fuel_breaks.run_cases import random_landscape, rotated, small_config, small_tiles
from training.fuel_breaks.dqn_trainer import double_dqn_target
from training.fuel_breaks.policies import (
    best_by,
    build_network,
    build_symmetry,
    downstream_value,
    greedy,
    place,
    proportional_choice,
)

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
    assert legal[torch.arange(3), values.argmax(dim=1)].all()
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
    placed = place(greedy(build_network(SMALL), build_symmetry(10)), env, [0, 3, 5], 7)
    assert (placed == place(best_by(downstream_value), env, [0, 3, 5], 7)).all()


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
    turned = build_symmetry(6).maps(whole, symmetry)
    np.testing.assert_allclose(turned[0, :14], static_channels(moved, small_config()), atol=2e-5)
    flipped = whole[0, 14:].numpy()[:, :, ::-1] if symmetry >= 4 else whole[0, 14:].numpy()
    assert (turned[0, 14:].numpy() == np.rot90(flipped, symmetry % 4, axes=(1, 2))).all()


@pytest.mark.parametrize("symmetry", range(SYMMETRIES))
def test_cells_and_actions_move_alike(symmetry: int) -> None:
    grid = GridSymmetry(3, 5, compass=(), east=1, north=2)
    values = torch.rand(2, 25)
    there = grid.cells(values, symmetry)
    assert (grid.cells_back(there, symmetry) == values).all()
    actions = torch.tensor([3, 17])
    moved = grid.action(actions, symmetry)
    assert (there[[0, 1], moved] == values[[0, 1], actions]).all()


def test_the_mean_over_symmetries_commutes_with_them() -> None:
    network, grid = network_of(4), GridSymmetry(3, 5, compass=(), east=0, north=2)
    observation, legal = inputs(4)
    values = symmetric_values(network, grid, observation, legal)
    for k in range(SYMMETRIES):
        turned = symmetric_values(network, grid, grid.maps(observation, k), grid.cells(legal, k))
        torch.testing.assert_close(turned, grid.cells(values, k))


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_double_dqn_target_by_hand(seed: int) -> None:
    generator = np.random.default_rng(seed)
    legal = generator.random((6, 7)) < 0.5
    terminated = ~legal.any(axis=1) | (generator.random(6) < 0.3)
    online, target = (np.where(legal, generator.normal(size=(6, 7)), -np.inf) for _ in range(2))
    rewards, factors = generator.normal(size=6), generator.random(6)
    chosen = [max(range(7), key=row.__getitem__) for row in online.tolist()]
    expected = [
        reward + (0.0 if is_last else factor * row[cell])
        for reward, is_last, factor, row, cell in zip(rewards, terminated, factors, target, chosen, strict=True)
    ]
    found = double_dqn_target(*(torch.from_numpy(v) for v in (rewards, factors, online, target, terminated)))
    np.testing.assert_allclose(found.numpy(), expected)


def test_proportional_choice_draws_in_proportion() -> None:
    values, legal = np.tile([1.0, 3.0, 6.0, 10.0], (4000, 1)), np.tile([True, True, True, False], (4000, 1))
    chosen = proportional_choice(values, legal, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(np.bincount(chosen, minlength=4) / 4000, [0.1, 0.3, 0.6, 0.0], atol=0.03)
