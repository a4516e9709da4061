"""Arguments of the fuel-break commands."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from training.fuel_breaks.config import RUNS, FuelBreakRunConfig
from utils.config.kinds import Device, NonNegativeInt, PositiveInt, RunsFolder, SavedRunName, SettingsFile, Threads
from utils.config.settings import checked_dataclass


@checked_dataclass
class FuelBreakTrainArguments:
    """Train a deep Q-network that places fuel breaks on a landscape, such that wildfires burn less.

    `fuel-breaks evaluate` then judges it on tiles that it has not seen, `fuel-breaks show` draws them.
    """

    settings: FuelBreakRunConfig = field(default_factory=FuelBreakRunConfig)
    config: SettingsFile = None


@checked_dataclass
class FuelBreakEvaluateArguments:
    """Compare the best network of a run with every baseline, tile by tile, on fires that none of them saw."""

    run: SavedRunName = None
    split: Literal["validation", "test"] = "test"
    """Tiles on which it is judged; the network was chosen on the validation tiles."""
    tiles: NonNegativeInt = 0
    """At most this many tiles, evenly spaced; 0: all."""
    scenario_seeds: PositiveInt = 3
    """Sets of fires that each tile is judged by; breaks are placed anew for each."""
    runs_dir: RunsFolder = RUNS
    device: Device = "auto"
    threads: Threads = 0


@checked_dataclass
class FuelBreakShowArguments:
    """Draw a tile: breaks by the network and by baselines, burn probability before and after, one fire as animation."""

    run: SavedRunName = None
    split: Literal["train", "validation", "test"] = "test"
    """Split that the tile is in."""
    tile: NonNegativeInt = 0
    """Number of the tile in its split, from the north-west."""
    scenario_seed: NonNegativeInt = 0
    """Set of fires that the policies plan for and are judged by."""
    runs_dir: RunsFolder = RUNS
    device: Device = "auto"
    threads: Threads = 0
