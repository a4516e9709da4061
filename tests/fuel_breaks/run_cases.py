"""Small settings, tiles and trainers for the tests of the fuel-break learner."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from data.fuel_breaks.config import TileConfig
from data.fuel_breaks.landscape import Tile
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from models.fuel_breaks.config import QNetworkConfig
from tests.fuel_breaks.fire_cases import GRASS, WATER, flat_landscape, small_config, small_tiles
from training.fuel_breaks.config import BoundsConfig, DQNConfig, FuelBreakRunConfig
from training.fuel_breaks.dqn_trainer import DQNTrainer
from utils.runs.seeding import seed_everything

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
    learning = DQNConfig(
        lanes=4, lanes_per_tile=2, batch_size=8, updates_per_episode=1, warm_up_episodes=4, epsilon_episodes=20
    )
    return FuelBreakRunConfig(
        **{
            "minutes": 0,
            "episodes": 16,
            "generation_episodes": 8,
            "validation_tiles": 2,
            "tiles": TileConfig(tile_cells=10),
            "env": small_config(),
            "network": QNetworkConfig(width=4, dilations=1),
            "learning": learning,
            "bounds": BoundsConfig(experience_per_collector=30),
            **changes,
        }
    )


def with_learning(config: FuelBreakRunConfig, **changes: Any) -> FuelBreakRunConfig:
    """The settings with other settings of learning."""
    return replace(config, learning=replace(config.learning, **changes))


def trainer_of(config: FuelBreakRunConfig, train: Any = None, validation: Any = None) -> DQNTrainer:
    """A trainer on a few tiles, begun."""
    seed_everything(config.seed)
    tiles = small_tiles()
    trainer = DQNTrainer(config, train or tiles[:5], validation or tiles[5:], CPU, lambda: None)
    trainer.begin()
    return trainer


SIDE = 9


def two_fields(bridge_row: int, is_turned: bool) -> Tile:
    """Two fields of grass parted by water, which fire crosses by one cell only."""
    fuel = np.full((SIDE, SIDE), GRASS)
    fuel[:, SIDE // 2] = WATER
    fuel[bridge_row, SIDE // 2] = GRASS
    return Tile(0, 0, flat_landscape(SIDE, SIDE, fuel_model=fuel.T if is_turned else fuel))


def bridge_cell(bridge_row: int, is_turned: bool) -> int:
    """The number of the cell by which fire crosses."""
    row, column = (SIDE // 2, bridge_row) if is_turned else (bridge_row, SIDE // 2)
    return row * SIDE + column


def bridge_config(n_steps: int) -> FuelBreakRunConfig:
    """One cell to clear, fires that last until all has burned, and no hint from the heuristic."""
    scenarios = ScenarioConfig(
        winds=4,
        min_wind_km_h=1,
        max_wind_km_h=1,
        duration_minutes=10_000,
        planning_ignitions_per_wind=10,
        reward_ignitions_per_wind=5,
        judging_ignitions_per_wind=10,
    )
    return run_config(
        tiles=TileConfig(tile_cells=SIDE),
        env=FuelBreakConfig(budget_cells=1, scenarios=scenarios),
        network=QNetworkConfig(width=12, dilations=1, downstream_prior=False),
        learning=DQNConfig(
            lanes=16,
            lanes_per_tile=8,
            demonstration_share=0.25,
            epsilon_start=0.5,
            epsilon_end=0.5,
            n_steps=n_steps,
            batch_size=32,
            updates_per_episode=0.75,
            warm_up_episodes=64,
            learning_rate=3e-3,
            target_tau=0.05,
        ),
        bounds=BoundsConfig(experience_per_collector=100),
        generation_episodes=240,
        validation_tiles=4,
    )
