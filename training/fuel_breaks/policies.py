"""How a Q-network and a noisy heuristic choose cells."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from environment.fuel_breaks.env import CHANNELS, VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BoolArray, Float64Array
from models.fuel_breaks.config import QNetworkConfig
from models.fuel_breaks.grid_symmetry import CompassChannels, GridSymmetry
from models.fuel_breaks.q_network import QNetwork, symmetric_values
from training.fuel_breaks.baselines import Policy

DOWNSTREAM = CHANNELS.index("downstream_value")
COMPASS = CompassChannels(
    directions=[number for number, name in enumerate(CHANNELS) if name.startswith("spread_rate")],
    east=CHANNELS.index("aspect_sine"),
    north=CHANNELS.index("aspect_cosine"),
)
PERCENT_PER_UNIT = 10.0
"""Percent of reduction in one unit of the network's values."""
_PRIOR_SCALE = 100 / PERCENT_PER_UNIT
"""At first the advantage is the downstream value itself: what clearing the cell saves if fire finds no way around."""


def build_network(config: QNetworkConfig) -> QNetwork:
    """Build a network for the environment's observations; its values are in tens of percent."""
    prior = DOWNSTREAM if config.downstream_prior else None
    return QNetwork(len(CHANNELS), config, prior_channel=prior, prior_scale=_PRIOR_SCALE)


def build_symmetry(tile_cells: int) -> GridSymmetry:
    """Build the symmetries of the environment's observations."""
    return GridSymmetry(len(CHANNELS), tile_cells, COMPASS)


def greedy(network: QNetwork, device: torch.device, symmetry: GridSymmetry | None) -> Policy:
    """Choose the legal cell of the largest value; with a symmetry, of the largest mean value over all eight."""

    def choose(env: VectorFuelBreakEnvironment) -> NDArray[np.int64]:
        return np.asarray(action_values(network, env, device, symmetry).argmax(axis=1))

    return choose


@torch.no_grad()
def action_values(
    network: QNetwork, env: VectorFuelBreakEnvironment, device: torch.device, symmetry: GridSymmetry | None
) -> NDArray[np.float32]:
    """Return (lanes, cells) values of the environment's present states, -inf where a cell may not be cleared."""
    observation = torch.from_numpy(env.observe()).to(device)
    legal = torch.from_numpy(env.action_masks()).to(device)
    if symmetry is None:
        return np.asarray(network(observation, legal).cpu().numpy())
    return np.asarray(symmetric_values(network, symmetry, observation, legal).cpu().numpy())


def downstream_values(env: VectorFuelBreakEnvironment) -> Float64Array:
    """Return the (lanes, cells) downstream value, 0 where a cell may not be cleared."""
    values = np.stack([exposure.downstream for exposure in env.exposures]).astype(np.float64)
    return np.asarray(values * env.action_masks())


def noisy_choice(values: Float64Array, legal: BoolArray, noise: float, generator: torch.Generator) -> NDArray[np.int64]:
    """Choose each lane's best legal cell, every value times a random factor whose logarithm has deviation `noise`."""
    factors = np.exp(noise * torch.randn(values.shape, generator=generator, dtype=torch.float64).numpy())
    return np.asarray(np.where(legal, values * factors, -np.inf).argmax(axis=1))


def proportional_choice(values: Float64Array, legal: BoolArray, generator: torch.Generator) -> NDArray[np.int64]:
    """Draw a legal cell for each lane in proportion to its value, uniformly where all are 0."""
    weights = np.where(legal, values, 0.0)
    weights = np.where(weights.sum(axis=1, keepdims=True) > 0, weights, legal)
    totals = weights.cumsum(axis=1)
    draws = (1 - torch.rand(len(values), 1, generator=generator, dtype=torch.float64).numpy()) * totals[:, -1:]
    return np.asarray((totals < draws).sum(axis=1))
