"""Settings of the fuel-break experiment: tiles, fires, the network and its training; arguments of its commands."""

from dataclasses import field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from utils.config import kinds
from utils.config.settings import RunSettings, checked_dataclass, require


@checked_dataclass
class TileConfig:
    """Tiles that a landscape is cut into, and their splits."""

    tile_cells: Annotated[int, Field(ge=2, le=64)] = 20
    """Rows and columns of a tile."""
    min_burnable_share: kinds.PositiveShare = 0.75
    """Smallest share of cells that can burn; tiles with less are left out."""
    train_fraction: kinds.InnerShare = 0.6
    """Share of the tiles, from the north, that training may read."""
    validation_fraction: kinds.InnerShare = 0.2
    """Share of the tiles south of training, for choosing the checkpoint; the rest are for the test."""
    buffer_rows: kinds.NonNegativeInt = 1
    """Rows of tiles between two splits that belong to neither."""

    def __post_init__(self) -> None:
        total = self.train_fraction + self.validation_fraction
        require(total < 1 - 1e-9, "train-fraction + validation-fraction < 1", total)


_Moisture = Annotated[float, Field(gt=0, le=300)]
_Ignitions = Annotated[int, Field(ge=1, le=1000)]


@checked_dataclass
class FuelMoisture:
    """Moisture of the fuel, percent of its dry weight; by default very dry (Scott and Burgan 2005, D1L1)."""

    dead_1h_percent: _Moisture = 3.0
    """Moisture of dead fuel that dries within an hour."""
    dead_10h_percent: _Moisture = 4.0
    """Moisture of dead fuel that dries within 10 hours."""
    dead_100h_percent: _Moisture = 5.0
    """Moisture of dead fuel that dries within 100 hours."""
    live_herbaceous_percent: _Moisture = 30.0
    """Moisture of live herbs: below 120 a growing share of them counts as dead; at 30 all of it."""
    live_woody_percent: _Moisture = 60.0
    """Moisture of live shrubs."""


@checked_dataclass
class ScenarioConfig:
    """Winds and ignitions of sets of fires, which are independent by purpose.

    A policy sees planning fires, is rewarded by others, and is judged by yet others: otherwise it would learn to clear
    the very cells where the fires that it sees begin.
    """

    winds: Annotated[int, Field(ge=1, le=360)] = 8
    """Winds of a set: directions evenly around the compass from a random start, speeds uniform."""
    min_wind_km_h: kinds.NonNegativeFloat = 15.0
    """Lowest speed of the wind at midflame height."""
    max_wind_km_h: Annotated[float, Field(le=200)] = 25.0
    """Highest speed of the wind at midflame height."""
    duration_minutes: kinds.PositiveFloat = 120.0
    """Minutes that a fire burns."""
    planning_ignitions_per_wind: _Ignitions = 40
    """Fires behind the burn probability and the downstream value that are observed."""
    reward_ignitions_per_wind: _Ignitions = 20
    """Fires behind the reward: 160 with 8 winds, since with 40 the noise drowns the effect of one cell."""
    judging_ignitions_per_wind: _Ignitions = 25
    """Fires behind the figures of an evaluation."""

    def __post_init__(self) -> None:
        speeds = (self.min_wind_km_h, self.max_wind_km_h)
        require(speeds[0] <= speeds[1], "min-wind-km-h <= max-wind-km-h", speeds)


@checked_dataclass
class FuelBreakConfig:
    """The environment in which fuel breaks are placed, one cell a step."""

    budget_cells: kinds.PositiveInt = 20
    """Cells that an episode may clear; 5% of a tile of 20 x 20."""
    moisture: FuelMoisture = field(default_factory=FuelMoisture)
    scenarios: ScenarioConfig = field(default_factory=ScenarioConfig)


@checked_dataclass
class QNetworkConfig:
    """The fully convolutional dueling network."""

    width: Annotated[int, Field(ge=1, le=512)] = 24
    """Feature maps of each layer."""
    dilations: Annotated[int, Field(ge=0, le=5)] = 3
    """3 x 3 layers after the first, each reaching twice as far as the one before: 1, 2, 4, ... cells."""
    downstream_prior: bool = True
    """Start from advantages that are a learned multiple of the downstream value, which the network then corrects."""


RUNS = kinds.RUNS / "fuel-breaks"


@checked_dataclass
class DQNConfig:
    """Deep Q-learning."""

    lanes: Annotated[kinds.PositiveInt, kinds.Mark.SHORT] = 16
    """Episodes that are played in lockstep; each lane is a collector."""
    lanes_per_tile: kinds.PositiveInt = 16
    """Lanes that share a tile and its fires in a round: whole returns are relative to the mean of the others'."""
    demonstration_share: kinds.Share = 0.25
    """Share of the lanes played by the noisy heuristic."""
    demonstration_noise: kinds.NonNegativeFloat = 0.25
    """Standard deviation of the logarithm of the factors on the downstream value in demonstrations."""
    epsilon_start: kinds.Share = 0.1
    """Chance that a lane of the agent explores: it draws a legal cell in proportion to the downstream value."""
    epsilon_end: kinds.Share = 0.03
    """Chance of exploring in the end."""
    epsilon_episodes: kinds.PositiveInt = 500
    """Episodes over which the chance falls from its start to its end."""
    learning_rate: kinds.PositiveFloat = 5e-4
    """Learning rate of the network."""
    batch_size: Annotated[kinds.PositiveInt, kinds.Mark.SHORT] = 128
    """Transitions of a gradient step."""
    updates_per_episode: kinds.NonNegativeFloat = 1.5
    """Gradient steps for each episode played."""
    warm_up_episodes: kinds.NonNegativeInt = 64
    """Episodes before the first gradient step."""
    target_tau: kinds.PositiveShare = 0.002
    """Step of the target network, an average of the network over time, which is also what is validated."""
    max_gradient_norm: kinds.PositiveFloat = 10.0
    """Norm to which gradients are clipped."""

    def __post_init__(self) -> None:
        require(self.lanes_per_tile <= self.lanes, "1 <= lanes-per-tile <= lanes", self.lanes_per_tile)
        require(self.lanes % self.lanes_per_tile == 0, "lanes to be a multiple of lanes-per-tile", self.lanes)


@checked_dataclass
class BoundsConfig:
    """Lengths of histories, and how often memory is checked."""

    loss_history: kinds.PositiveInt = 1000
    """Losses of the last gradient steps that are kept."""
    reward_history: kinds.PositiveInt = 1000
    """Returns of the last episodes that are kept."""
    experience_per_collector: kinds.PositiveInt = 2000
    """Transitions that the replay holds for each lane."""
    step_times: kinds.PositiveInt = 100
    """Environment steps whose times are kept."""
    collection_times: kinds.PositiveInt = 20
    """Rounds of episodes whose times are kept."""
    check_every_episodes: kinds.PositiveInt = 10
    """Episodes between two memory checks that also give free memory back to the system."""
    check_every_environment_steps: kinds.PositiveInt = 50
    """Environment steps between two memory checks."""
    check_every_training_steps: kinds.PositiveInt = 100
    """Gradient steps between two memory checks."""


@checked_dataclass
class FuelBreakRunConfig(RunSettings):
    """Settings of a whole run."""

    landscape: Path | None = None
    """An .npz file or a folder of GeoTIFF bands; default: a generated landscape."""
    terrain_seed: kinds.NonNegativeInt = 0
    """Seed of the generated landscape."""
    minutes: Annotated[kinds.NonNegativeFloat, kinds.Mark.FREE] = 10.0
    """Minutes, those of resumed parts included; the run ends before a round that would go beyond them; 0: no limit."""
    episodes: Annotated[kinds.NonNegativeInt, kinds.Mark.FREE] = 0
    """Episodes of training, rounded up to whole generations; 0: no limit."""
    generation_episodes: kinds.PositiveInt = 256
    """Episodes, rounded up to whole rounds of lanes, between two validations and checkpoints."""
    validation_tiles: kinds.PositiveInt = 64
    """At most this many validation tiles, evenly spaced, on which the best network is chosen."""
    runs_dir: kinds.RunsFolder = RUNS
    threads: kinds.Threads = 0
    tiles: TileConfig = field(default_factory=TileConfig)
    env: FuelBreakConfig = field(default_factory=FuelBreakConfig)
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
    config: kinds.SettingsFile = None


@checked_dataclass
class FuelBreakEvaluateArguments:
    """Compare the best network of a run with every baseline, tile by tile, on unseen test tiles and fires."""

    run: kinds.SavedRunName = None
    tiles: kinds.NonNegativeInt = 0
    """At most this many tiles, evenly spaced; 0: all."""
    scenario_seeds: kinds.PositiveInt = 3
    """Sets of fires per tile; breaks are placed anew for each."""
    runs_dir: kinds.RunsFolder = RUNS
    device: kinds.Device = "auto"
    threads: kinds.Threads = 0


@checked_dataclass
class FuelBreakShowArguments:
    """Draw a test tile: breaks by network and baselines, burn probability before and after, a fire as animation."""

    run: kinds.SavedRunName = None
    tile: kinds.NonNegativeInt = 0
    """Number of the test tile, from the north-west."""
    scenario_seed: kinds.NonNegativeInt = 0
    """Set of fires that the policies plan for and are judged by."""
    runs_dir: kinds.RunsFolder = RUNS
    device: kinds.Device = "auto"
    threads: kinds.Threads = 0
