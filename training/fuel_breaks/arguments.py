"""What the commands of the fuel-break experiment take."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from training.fuel_breaks.config import FuelBreakRunConfig
from utils.config.settings import require
from utils.config.trader import DEVICES


@dataclass(frozen=True)
class FuelBreakTrainArguments:
    """Train a deep Q-network that places fuel breaks on a landscape, such that wildfires burn less.

    `fuel-breaks evaluate` then judges it on tiles that it has not seen, `fuel-breaks show` draws them.
    """

    settings: Annotated[FuelBreakRunConfig, tyro.conf.arg(name="")] = field(default_factory=FuelBreakRunConfig)
    config: Path | None = None
    """TOML file of settings, tables named as the concerns (for example [learning] lanes = 32); flags override it."""


@dataclass(frozen=True)
class FuelBreakEvaluateArguments:
    """Compare the best network of a run with every baseline, tile by tile, on fires that none of them saw."""

    run: str | None = None
    """Name of the run; default: the newest one."""
    split: Literal["validation", "test"] = "test"
    """Tiles on which it is judged; the network was chosen on the validation tiles."""
    tiles: int = 0
    """At most this many tiles, evenly spaced; 0: all."""
    scenario_seeds: int = 3
    """Sets of fires that each tile is judged by; breaks are placed anew for each."""
    runs_dir: Path = Path("runs/fuel-breaks")
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""

    def __post_init__(self) -> None:
        require(self.tiles >= 0, "tiles >= 0", self.tiles)
        require(self.scenario_seeds >= 1, "scenario-seeds >= 1", self.scenario_seeds)
        _require_machine(self.device, self.threads)


@dataclass(frozen=True)
class FuelBreakShowArguments:
    """Draw a tile: breaks by the network and by baselines, burn probability before and after, one fire as animation."""

    run: str | None = None
    """Name of the run; default: the newest one."""
    split: Literal["train", "validation", "test"] = "test"
    tile: int = 0
    """Number of the tile in its split, from the north-west."""
    scenario_seed: int = 0
    """Set of fires that the policies plan for and are judged by."""
    runs_dir: Path = Path("runs/fuel-breaks")
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""

    def __post_init__(self) -> None:
        require(self.tile >= 0, "tile >= 0", self.tile)
        require(self.scenario_seed >= 0, "scenario-seed >= 0", self.scenario_seed)
        _require_machine(self.device, self.threads)


def _require_machine(device: str, threads: int) -> None:
    require(re.fullmatch(DEVICES, device) is not None, "device to be auto, cpu, cuda or cuda:N", device)
    require(threads >= 0, "threads >= 0", threads)
