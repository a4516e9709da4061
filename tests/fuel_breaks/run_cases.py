"""Small landscapes, settings, tiles and trainers for the tests of fire and of the fuel-break learner."""

import tomllib
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.fuel_breaks import Landscape, Tile, cut_tiles, generated_landscape, landscape_from_bands
from environment.fuel_breaks.env import VectorFuelBreakEnvironment
from environment.fuel_breaks.fire_spread import BurnState, Hazard, exposure_of
from training.fuel_breaks.dqn_trainer import DQNTrainer
from utils.arrays import BoolArray
from utils.config.fuel_breaks import BoundsConfig, FuelBreakConfig, FuelBreakRunConfig, ScenarioConfig, TileConfig
from utils.config.settings import from_dict
from utils.runs.devices import seed_everything

# Operations this small only lose time, and order of summation, to more threads.
torch.set_num_threads(1)

TINY = """
minutes = 0
episodes = 8
generation_episodes = 4
validation_tiles = 2
device = "cpu"
threads = 1
[tiles]
train_fraction = 0.9
validation_fraction = 0.07
buffer_rows = 0
[env]
budget_cells = 3
[env.scenarios]
winds = 2
planning_ignitions_per_wind = 6
reward_ignitions_per_wind = 3
judging_ignitions_per_wind = 5
[network]
width = 4
dilations = 1
[learning]
lanes = 4
lanes_per_tile = 2
batch_size = 8
warm_up_episodes = 4
[bounds]
experience_per_collector = 20
check_every_episodes = 4
"""
"""Settings of a run that takes about a second, on a landscape of which few tiles are left for the test."""
CPU = torch.device("cpu")


def run_config(**changes: Any) -> FuelBreakRunConfig:
    """Tiles of 10 x 10 cells, four lanes, a narrow network, generations of eight episodes."""
    known = from_dict(tomllib.loads(TINY), FuelBreakRunConfig)
    bounds = BoundsConfig(experience_per_collector=30)
    parts = {"tiles": TileConfig(tile_cells=10), "env": small_config(), "bounds": bounds, **changes}
    return replace(known, **{"episodes": 16, "generation_episodes": 8, **parts})


def with_learning(config: FuelBreakRunConfig, **changes: Any) -> FuelBreakRunConfig:
    return replace(config, learning=replace(config.learning, **changes))


def trainer_of(config: FuelBreakRunConfig, train: Any = None, validation: Any = None) -> DQNTrainer:
    seed_everything(config.seed)
    tiles = small_tiles()
    trainer = DQNTrainer(config, train or tiles[:5], validation or tiles[5:], CPU, lambda: None)
    trainer.begin()
    return trainer


GRASS, LITTER, WATER = 102, 186, 98


def stored_bands(rows: int, columns: int, **values: Any) -> dict[str, NDArray[Any]]:
    """Flat, valid ground under one fuel, in the units of a file; numbers or arrays by band replace it."""
    defaults = {
        "slope_percent": 0,
        "aspect_degrees": -1,
        "elevation_m": 100,
        "canopy_cover_percent": 50,
        "fuel_model": LITTER,
    }
    return {name: np.broadcast_to(value, (rows, columns)).copy() for name, value in {**defaults, **values}.items()}


def flat_landscape(rows: int, columns: int, **values: Any) -> Landscape:
    return landscape_from_bands(stored_bands(rows, columns, **values), "a test")


def random_landscape(rows: int, columns: int, seed: int) -> Landscape:
    """Independent random cells of several fuels and slopes; a fifth of them do not burn."""
    rng = np.random.default_rng(seed)
    return flat_landscape(
        rows,
        columns,
        slope_percent=rng.integers(0, 60, (rows, columns)),
        aspect_degrees=rng.integers(0, 360, (rows, columns)),
        elevation_m=rng.integers(100, 160, (rows, columns)),
        fuel_model=rng.choice([GRASS, LITTER, 122, 165, WATER], (rows, columns)),
    )


def rotated(landscape: Landscape) -> Landscape:
    """The landscape turned a quarter counterclockwise: what was north is west."""
    turned: dict[str, Any] = {name: np.rot90(array).copy() for name, array in landscape.arrays().items()}
    aspect = turned["aspect_degrees"]
    turned["aspect_degrees"] = np.where(aspect >= 0, (aspect - 90) % 360, aspect)
    return replace(landscape, **turned)


def random_mask(cells: int, share: float, seed: int) -> BoolArray:
    """(cells,) with about this share true."""
    return np.random.default_rng(seed).random(cells) < share


@lru_cache(maxsize=1)
def small_tiles() -> tuple[Tile, ...]:
    """A few tiles of 10 x 10 cells of the built-in landscape."""
    return tuple(cut_tiles(generated_landscape(1, 60, 60), TileConfig(tile_cells=10))[:8])


def small_config(**changes: Any) -> FuelBreakConfig:
    """Few fires and a budget of 4 cells."""
    scenarios = ScenarioConfig(
        winds=3, planning_ignitions_per_wind=12, reward_ignitions_per_wind=4, judging_ignitions_per_wind=10
    )
    return FuelBreakConfig(**{"budget_cells": 4, "scenarios": scenarios, **changes})


def burned_anew(hazard: Hazard, cleared: BoolArray) -> BurnState:
    """The fires of a hazard with all breaks made at once, burned from the start."""
    state = BurnState(hazard)
    state.cleared, state.arrival = cleared.copy(), hazard.burn(cleared)
    return state


def observe_anew(
    env: VectorFuelBreakEnvironment, tiles: NDArray[Any], cleared: BoolArray, scenario_seeds: NDArray[Any]
) -> NDArray[np.float32]:
    """(n, channels, rows, columns) of n states, burned from nothing but tile, cleared (n, cells) and scenario seed."""
    lanes = zip(tiles.tolist(), scenario_seeds.tolist(), strict=True)
    states = [burned_anew(env.planning(*lane), mask) for lane, mask in zip(lanes, cleared, strict=True)]
    return env.render(tiles, cleared, exposure_of(states))
