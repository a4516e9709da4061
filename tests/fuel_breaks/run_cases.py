"""Small settings, tiles and trainers for the tests of the fuel-break learner."""

import tomllib
from dataclasses import replace
from typing import Any

import torch

from data.fuel_breaks.config import TileConfig
from tests.fuel_breaks.fire_cases import small_config, small_tiles
from training.fuel_breaks.config import BoundsConfig, FuelBreakRunConfig
from training.fuel_breaks.dqn_trainer import DQNTrainer
from utils.config.settings import from_dict
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
    known = from_dict(tomllib.loads(TINY), FuelBreakRunConfig)
    bounds = BoundsConfig(experience_per_collector=30)
    parts = {"tiles": TileConfig(tile_cells=10), "env": small_config(), "bounds": bounds, **changes}
    return replace(known, **{"episodes": 16, "generation_episodes": 8, **parts})


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
