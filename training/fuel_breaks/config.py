"""Settings of a run that learns to place fuel breaks: the network, its learning, what is bounded, the run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from data.fuel_breaks.config import TileConfig
from environment.fuel_breaks.config import FuelBreakConfig, ScenarioConfig
from models.fuel_breaks.q_network import QNetworkConfig
from utils.config.settings import require
from utils.config.trader import DEVICES, FLAT, is_folder_name


@dataclass(frozen=True)
class DQNConfig:
    """How the network learns."""

    lanes: Annotated[int, FLAT] = 16
    """Episodes that are played in lockstep; each lane is a collector."""
    lanes_per_tile: int = 16
    """Lanes that share a tile and its fires in a round, so that their returns can be compared."""
    demonstration_share: float = 0.25
    """Share of the lanes played by the noisy heuristic."""
    demonstration_noise: float = 0.25
    """Standard deviation of the logarithm of the factors on the downstream value in demonstrations."""
    epsilon_start: float = 0.1
    """Chance that a lane of the agent explores: it draws a legal cell in proportion to the downstream value."""
    epsilon_end: float = 0.03
    epsilon_episodes: int = 500
    """Episodes over which the chance falls from its start to its end."""
    n_steps: Annotated[int, FLAT] = 0
    """Rewards before a target bootstraps by double Q-learning; 0 takes the whole return (Monte Carlo)."""
    discount: float = 1.0
    centre_returns: bool = True
    """Subtract from each whole return the mean of the other lanes on the same tile and fires (Monte Carlo only)."""
    learning_rate: float = 5e-4
    batch_size: Annotated[int, FLAT] = 128
    updates_per_episode: float = 1.5
    """Gradient steps for each episode played."""
    warm_up_episodes: int = 64
    """Episodes before the first gradient step."""
    target_tau: float = 0.002
    """Step of the target network, an average of the network over time, which is also what is validated."""
    max_gradient_norm: float = 10.0
    symmetry: bool = True
    """Learn from states turned and mirrored at random, and act by the mean over all eight."""

    def __post_init__(self) -> None:
        require(self.lanes >= 1, "lanes >= 1", self.lanes)
        require(1 <= self.lanes_per_tile <= self.lanes, "1 <= lanes-per-tile <= lanes", self.lanes_per_tile)
        require(self.lanes % self.lanes_per_tile == 0, "lanes to be a multiple of lanes-per-tile", self.lanes)
        for name in ("demonstration_share", "epsilon_start", "epsilon_end"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"0 <= {name.replace('_', '-')} <= 1", value)
        require(0 < self.discount <= 1, "0 < discount <= 1", self.discount)
        require(0 < self.target_tau <= 1, "0 < target-tau <= 1", self.target_tau)
        require(self.demonstration_noise >= 0, "demonstration-noise >= 0", self.demonstration_noise)
        for name in ("n_steps", "warm_up_episodes", "updates_per_episode"):
            require(getattr(self, name) >= 0, f"{name.replace('_', '-')} >= 0", getattr(self, name))
        for name in ("epsilon_episodes", "batch_size"):
            require(getattr(self, name) >= 1, f"{name.replace('_', '-')} >= 1", getattr(self, name))
        for name in ("learning_rate", "max_gradient_norm"):
            require(getattr(self, name) > 0, f"{name.replace('_', '-')} > 0", getattr(self, name))


@dataclass(frozen=True)
class BoundsConfig:
    """What may grow, and how often memory is checked."""

    loss_history: int = 1000
    reward_history: int = 1000
    """Returns of the last episodes."""
    experience_per_collector: int = 2000
    """Transitions that the replay holds for each lane."""
    step_times: int = 100
    """Environment steps whose times are kept."""
    collection_times: int = 20
    """Rounds of episodes whose times are kept."""
    check_every_episodes: int = 10
    """Episodes between two memory checks that also give free memory back to the system."""
    check_every_environment_steps: int = 50
    check_every_training_steps: int = 100

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value >= 1, f"{name.replace('_', '-')} >= 1", value)


def _learning_environment() -> FuelBreakConfig:
    """Rewards by 160 fires, as the luck of 40 drowns what one cell changes; caches of a size that is soon reached."""
    return FuelBreakConfig(
        scenarios=ScenarioConfig(reward_ignitions_per_wind=20), cached_states=256, cached_episodes=16
    )


@dataclass(frozen=True)
class FuelBreakRunConfig:
    """A whole run."""

    landscape: Path | None = None
    """An .npz file or a folder of GeoTIFF bands; default: a generated landscape."""
    terrain_seed: int = 0
    """Seed of the generated landscape."""
    minutes: float = 10.0
    """Minutes of training, resumed ones included, after which the run ends with its generation; 0: no limit."""
    episodes: int = 0
    """Episodes of training, rounded up to whole generations; 0: no limit."""
    generation_episodes: int = 256
    """Episodes, rounded up to whole rounds of lanes, between two validations and checkpoints."""
    validation_tiles: int = 64
    """At most this many validation tiles, evenly spaced, on which the best network is chosen."""
    seed: int = 0
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    run: str | None = None
    """Name of the run's folder; default: a new one by date and time."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="[NAME]")] = None
    """Continue the named run, or the newest one if no name is given."""
    runs_dir: Path = Path("runs/fuel-breaks")
    keep_checkpoints: int = 2
    """Newest generations whose checkpoints stay on disk; each holds the best network so far."""
    memory_limit_mb: float = 0.0
    """Resident memory (MiB) at which the run stops by itself; 0 takes 90% of what machine and cgroup allow."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""
    tiles: TileConfig = field(default_factory=TileConfig)
    env: FuelBreakConfig = field(default_factory=_learning_environment)
    network: QNetworkConfig = field(default_factory=QNetworkConfig)
    learning: DQNConfig = field(default_factory=DQNConfig)
    bounds: BoundsConfig = field(default_factory=BoundsConfig)

    def __post_init__(self) -> None:
        require(self.minutes >= 0, "minutes >= 0", self.minutes)
        require(self.episodes >= 0, "episodes >= 0", self.episodes)
        require(self.minutes > 0 or self.episodes > 0, "minutes > 0 or episodes > 0", (self.minutes, self.episodes))
        for name in ("generation_episodes", "validation_tiles", "keep_checkpoints"):
            require(getattr(self, name) >= 1, f"{name.replace('_', '-')} >= 1", getattr(self, name))
        require(self.terrain_seed >= 0, "terrain-seed >= 0", self.terrain_seed)
        require(0 <= self.seed < 2**31, "0 <= seed < 2^31", self.seed)
        require(re.fullmatch(DEVICES, self.device) is not None, "device to be auto, cpu, cuda or cuda:N", self.device)
        for name in ("run", "resume"):
            require(is_folder_name(getattr(self, name)), f"{name} to be a plain folder name", getattr(self, name))
        require(self.memory_limit_mb >= 0, "memory-limit-mb >= 0", self.memory_limit_mb)
        require(self.threads >= 0, "threads >= 0", self.threads)

    @property
    def rounds_per_generation(self) -> int:
        """Rounds, of one episode a lane, in a generation."""
        return -(-self.generation_episodes // self.learning.lanes)


FREE_SETTINGS = frozenset(
    {"minutes", "episodes", "device", "run", "resume", "runs_dir", "keep_checkpoints", "memory_limit_mb", "threads"}
    | {"env.cached_states", "env.cached_episodes"}
)
"""Settings that leave the result of a generation as it is, up to rounding; a resumed run may change them."""
