"""Settings of a run that learns to place fuel breaks, and arguments of its commands."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from data.fuel_breaks.config import TileConfig
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from models.fuel_breaks.config import QNetworkConfig
from utils.config.kinds import (
    Device,
    Mark,
    MemoryLimit,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    PositiveShare,
    ResumedRunName,
    RunName,
    RunsFolder,
    SavedRunName,
    SettingsFile,
    Share,
    Threads,
    Verbose,
    limits,
)
from utils.config.settings import checked_dataclass, require

RUNS = Path("runs/fuel-breaks")


@checked_dataclass
class DQNConfig:
    """Deep Q-learning."""

    lanes: Annotated[PositiveInt, Mark.SHORT] = 16
    """Episodes that are played in lockstep; each lane is a collector."""
    lanes_per_tile: PositiveInt = 16
    """Lanes that share a tile and its fires in a round, so that their returns can be compared."""
    demonstration_share: Share = 0.25
    """Share of the lanes played by the noisy heuristic."""
    demonstration_noise: NonNegativeFloat = 0.25
    """Standard deviation of the logarithm of the factors on the downstream value in demonstrations."""
    epsilon_start: Share = 0.1
    """Chance that a lane of the agent explores: it draws a legal cell in proportion to the downstream value."""
    epsilon_end: Share = 0.03
    """Chance of exploring in the end."""
    epsilon_episodes: PositiveInt = 500
    """Episodes over which the chance falls from its start to its end."""
    n_steps: Annotated[NonNegativeInt, Mark.SHORT] = 0
    """Rewards before a target bootstraps by double Q-learning; 0 takes the whole return (Monte Carlo)."""
    discount: PositiveShare = 1.0
    """Discount factor of a step."""
    centre_returns: bool = True
    """Subtract from each whole return the mean of the other lanes on the same tile and fires (Monte Carlo only)."""
    learning_rate: PositiveFloat = 5e-4
    """Learning rate of the network."""
    batch_size: Annotated[PositiveInt, Mark.SHORT] = 128
    """Transitions of a gradient step."""
    updates_per_episode: NonNegativeFloat = 1.5
    """Gradient steps for each episode played."""
    warm_up_episodes: NonNegativeInt = 64
    """Episodes before the first gradient step."""
    target_tau: PositiveShare = 0.002
    """Step of the target network, an average of the network over time, which is also what is validated."""
    max_gradient_norm: PositiveFloat = 10.0
    """Norm to which gradients are clipped."""
    symmetry: bool = True
    """Learn from states turned and mirrored at random, and act by the mean over all eight."""

    def __post_init__(self) -> None:
        require(self.lanes_per_tile <= self.lanes, "1 <= lanes-per-tile <= lanes", self.lanes_per_tile)
        require(self.lanes % self.lanes_per_tile == 0, "lanes to be a multiple of lanes-per-tile", self.lanes)


@checked_dataclass
class BoundsConfig:
    """Lengths of histories, and how often memory is checked."""

    loss_history: PositiveInt = 1000
    """Losses of the last gradient steps that are kept."""
    reward_history: PositiveInt = 1000
    """Returns of the last episodes that are kept."""
    experience_per_collector: PositiveInt = 2000
    """Transitions that the replay holds for each lane."""
    step_times: PositiveInt = 100
    """Environment steps whose times are kept."""
    collection_times: PositiveInt = 20
    """Rounds of episodes whose times are kept."""
    check_every_episodes: PositiveInt = 10
    """Episodes between two memory checks that also give free memory back to the system."""
    check_every_environment_steps: PositiveInt = 50
    """Environment steps between two memory checks."""
    check_every_training_steps: PositiveInt = 100
    """Gradient steps between two memory checks."""


@checked_dataclass
class FuelBreakRunConfig:
    """Settings of a whole run."""

    landscape: Path | None = None
    """An .npz file or a folder of GeoTIFF bands; default: a generated landscape."""
    terrain_seed: NonNegativeInt = 0
    """Seed of the generated landscape."""
    minutes: Annotated[NonNegativeFloat, Mark.FREE] = 10.0
    """Minutes of training, resumed ones included, after which the run ends with its generation; 0: no limit."""
    episodes: Annotated[NonNegativeInt, Mark.FREE] = 0
    """Episodes of training, rounded up to whole generations; 0: no limit."""
    generation_episodes: PositiveInt = 256
    """Episodes, rounded up to whole rounds of lanes, between two validations and checkpoints."""
    validation_tiles: PositiveInt = 64
    """At most this many validation tiles, evenly spaced, on which the best network is chosen."""
    seed: Annotated[int, limits("0 <= {} < 2^31")] = 0
    """Seed of all random numbers."""
    device: Device = "auto"
    run: RunName = None
    resume: ResumedRunName = None
    runs_dir: RunsFolder = RUNS
    keep_checkpoints: Annotated[PositiveInt, Mark.FREE] = 2
    """Newest generations whose checkpoints stay on disk; each holds the best network so far."""
    memory_limit_mb: MemoryLimit = 0.0
    threads: Threads = 0
    verbose: Verbose = False
    tiles: TileConfig = field(default_factory=TileConfig)
    # Rewards by 160 fires: with 40 the noise drowns the effect of one cell. Small caches, which soon stop growing.
    env: FuelBreakConfig = field(
        default_factory=lambda: FuelBreakConfig(
            scenarios=ScenarioConfig(reward_ignitions_per_wind=20), cached_states=256, cached_episodes=16
        )
    )
    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    learning: DQNConfig = field(default_factory=DQNConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)

    def __post_init__(self) -> None:
        require(self.minutes > 0 or self.episodes > 0, "minutes > 0 or episodes > 0", (self.minutes, self.episodes))


@checked_dataclass
class FuelBreakTrainArguments:
    """Train a deep Q-network that places fuel breaks on a landscape, such that wildfires burn less.

    `fuel-breaks evaluate` then judges it on unseen tiles, `fuel-breaks show` draws them.
    """

    settings: FuelBreakRunConfig = field(default_factory=FuelBreakRunConfig)
    config: SettingsFile = None


@checked_dataclass
class FuelBreakEvaluateArguments:
    """Compare the best network of a run with every baseline, tile by tile, on unseen fires."""

    run: SavedRunName = None
    split: Literal["validation", "test"] = "test"
    """Tiles on which it is judged; the network was chosen on the validation tiles."""
    tiles: NonNegativeInt = 0
    """At most this many tiles, evenly spaced; 0: all."""
    scenario_seeds: PositiveInt = 3
    """Sets of fires per tile; breaks are placed anew for each."""
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
