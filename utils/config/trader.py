"""Settings of a run: frozen dataclasses by concern, each validated where it is built."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from utils.config.settings import from_dict, require, to_dict
from utils.config.trading_rules import EnvironmentConfig as EnvironmentConfig
from utils.config.trading_rules import Fill as Fill
from utils.errors import ConfigError as ConfigError

Representation = Literal["independent", "shared"]
Credit = Literal["entry", "daily"]
CriticForm = Literal["structured", "plain"]
Mutation = Literal["proximal", "gaussian"]
Crossover = Literal["distill", "head", "average"]
NonFinite = Literal["skip", "stop"]
Precision = Literal["auto", "float32", "bfloat16"]
Profile = Literal["quick", "full"]
MarketKind = Literal["momentum", "reversal", "lead-lag", "regime", "value", "martingale"]
DEVICES = r"auto|cpu|cuda(:\d+)?"
"""What a device may be called."""

FLAT = tyro.conf.arg(prefix_name=False)
"""Marks a setting whose flag leaves out the name of its concern: --population-size."""


def is_folder_name(name: str | None) -> bool:
    """Whether a name is that of one folder, without a path; None is."""
    return name is None or (name not in ("", ".", "..") and re.search(r"[/\\\0]", name) is None)


@dataclass(frozen=True)
class DataConfig:
    """What market is read and how its days are divided."""

    context_window_days: int = 504
    """Days of history that an encoding may see, the observed day included."""
    train_fraction: float = 0.70
    """Share of the days, from the first, that training may read."""
    validation_fraction: float = 0.15
    """Share of the days after training, used to choose the champion; the rest is the holdout."""
    input_clip: float = 8.0
    """Standardised network inputs are clipped to +- this many standard deviations."""
    max_bad_row_share: float = 0.01
    """Largest share of rows with a non-positive or infinite price that a file may have."""

    def __post_init__(self) -> None:
        require(self.context_window_days >= 2, "context-window-days >= 2", self.context_window_days)
        require(0 < self.train_fraction < 1, "0 < train-fraction < 1", self.train_fraction)
        require(0 < self.validation_fraction < 1, "0 < validation-fraction < 1", self.validation_fraction)
        require(
            self.train_fraction + self.validation_fraction <= 1,
            "train-fraction + validation-fraction <= 1",
            self.train_fraction + self.validation_fraction,
        )
        require(self.input_clip > 0, "input-clip > 0", self.input_clip)
        require(0 <= self.max_bad_row_share < 1, "0 <= max-bad-row-share < 1", self.max_bad_row_share)


@dataclass(frozen=True)
class SyntheticConfig:
    """The built-in market, used when there is no data file."""

    kind: MarketKind = "momentum"
    """What is planted: `momentum`, `reversal` (short term), `lead-lag` (a column that may not be bought leads some
    stocks), `regime` (all rise or all fall), `value` (stocks return to a slow anchor) or `martingale` (nothing)."""
    days: int = 4000
    stocks: int = 40
    daily_noise: float = 0.014
    """Standard deviation of the unpredictable part of a daily log return."""
    drift_std: float = 0.004
    """Standard deviation of the predictable part: a stock's latent daily drift. Momentum only."""
    drift_half_life_days: float = 10.0
    """Half-life of the latent drift (an autoregressive process of order one). Momentum only."""

    def __post_init__(self) -> None:
        require(self.days >= 2, "days >= 2", self.days)
        require(self.stocks >= 1, "stocks >= 1", self.stocks)
        require(self.daily_noise > 0, "daily-noise > 0", self.daily_noise)
        require(self.drift_std >= 0, "drift-std >= 0", self.drift_std)
        require(self.drift_half_life_days > 0, "drift-half-life-days > 0", self.drift_half_life_days)


@dataclass(frozen=True)
class NetworkConfig:
    """Shapes of the market encoder, the actor and the critic."""

    representation: Annotated[Representation, FLAT] = "independent"
    """`independent`: an encoder for each agent (ERL); `shared`: one for the population (ERL-Re2)."""
    encoder_channels: int = 32
    hidden_units: int = 64
    summary_queries: int = 4
    """Attention queries that summarise all columns of a day."""
    critic: CriticForm = "structured"
    """`structured`: state value + size x per-unit value of what is ordered; `plain`: no such knowledge."""
    twin_critics: bool = True
    """Learn two critics and use the smaller value (Fujimoto et al. 2018)."""
    precision: Precision = "auto"
    """Of the encoder's convolutions; parameters, optimisers, heads and accounts keep float32 or more. `auto`: bfloat16
    on CUDA, float32 on a CPU."""

    def __post_init__(self) -> None:
        for name in ("encoder_channels", "hidden_units", "summary_queries"):
            require(getattr(self, name) >= 1, f"{name.replace('_', '-')} >= 1", getattr(self, name))


@dataclass(frozen=True)
class LearningConfig:
    """Deep deterministic policy gradient (Lillicrap et al. 2016) and what surrounds it."""

    gradient_steps: Annotated[int, FLAT] = 32
    """Updates of each agent in a generation."""
    batch_size: int = 256
    """Transitions of an update, for each agent."""
    block_days: int = 64
    """Consecutive days from which the transitions of one update are drawn."""
    micro_batch_agents: int = 0
    """Agents whose gradients are computed at once; 0 chooses by the memory available."""
    gamma: float = 0.99
    tau: float = 0.005
    """Soft update of the target networks."""
    actor_learning_rate: float = 3e-3
    critic_learning_rate: float = 3e-3
    critic_weight_decay: float = 0.5
    """Of critics and encoder but its queries: each step shrinks them by the learning rate times this (Loshchilov and
    Hutter 2019, decoupled from the gradient). A market has few independent episodes of what moves all its stocks; they
    are soon learned by heart."""
    query_weight_decay: float = 0.25
    """The same of the encoder's queries: with less, each goes on picking columns by chance; with more, they mix a
    column that stands out with all others before it is found."""
    learning_rate_final: float = 0.1
    """Share of both learning rates that is left in the end: smaller steps average the noise of more batches."""
    learning_rate_decay_generations: int = 15
    """Generations over which the learning rates fall linearly to that share."""
    max_gradient_norm: float = 1.0
    """Gradients are clipped to this norm, for each agent."""
    credit: Credit = "entry"
    """`entry`: a trade's whole profit and cost count at the step that opened it; `daily`: as it accrues."""
    hindsight_orders: int = 16
    """Orders that were not given, for each state of an update, from whose known results the critic learns what a
    trade earns (`entry` credit and the structured critic only); 0 looks at none."""
    hindsight_steps: int = 4
    """Gradient steps of the critics on such orders for each one on transitions."""
    input_noise: float = 1.0
    """Standard deviation of the noise on the standardised inputs of days that are learned from in hindsight, against
    learning by heart the few independent episodes of what moves all stocks at once."""
    selection_temperature: float = 1.0
    """Softness, in units of the coefficient, with which the actor loss sees which stock is ordered."""
    noise_initial: float = 0.3
    """Gaussian exploration, standard deviation as a share of each action's range, at generation 1."""
    noise_final: float = 0.05
    noise_decay_generations: int = 15
    """Generations over which the noise falls linearly from its initial to its final value."""
    random_order_probability: float = 0.2
    """Chance, each exploration lane and day, that a uniformly random order replaces the actor's."""
    non_finite: NonFinite = "skip"
    """`skip`: an agent's update that is not finite is left out and counted, an agent whose actions or results are not
    has no fitness; `stop`: the run stops there."""

    def __post_init__(self) -> None:
        require(self.gradient_steps >= 0, "gradient-steps >= 0", self.gradient_steps)
        require(self.batch_size >= 1, "batch-size >= 1", self.batch_size)
        require(self.block_days >= 1, "block-days >= 1", self.block_days)
        require(self.micro_batch_agents >= 0, "micro-batch-agents >= 0", self.micro_batch_agents)
        require(0 <= self.gamma <= 1, "0 <= gamma <= 1", self.gamma)
        require(0 < self.tau <= 1, "0 < tau <= 1", self.tau)
        require(self.actor_learning_rate > 0, "actor-learning-rate > 0", self.actor_learning_rate)
        require(self.critic_learning_rate > 0, "critic-learning-rate > 0", self.critic_learning_rate)
        require(self.critic_weight_decay >= 0, "critic-weight-decay >= 0", self.critic_weight_decay)
        require(self.query_weight_decay >= 0, "query-weight-decay >= 0", self.query_weight_decay)
        require(0 < self.learning_rate_final <= 1, "0 < learning-rate-final <= 1", self.learning_rate_final)
        require(
            self.learning_rate_decay_generations >= 1,
            "learning-rate-decay-generations >= 1",
            self.learning_rate_decay_generations,
        )
        require(self.max_gradient_norm > 0, "max-gradient-norm > 0", self.max_gradient_norm)
        require(self.hindsight_orders >= 0, "hindsight-orders >= 0", self.hindsight_orders)
        require(self.hindsight_steps >= 1, "hindsight-steps >= 1", self.hindsight_steps)
        require(self.input_noise >= 0, "input-noise >= 0", self.input_noise)
        require(self.selection_temperature > 0, "selection-temperature > 0", self.selection_temperature)
        require(self.noise_initial >= 0, "noise-initial >= 0", self.noise_initial)
        require(self.noise_final >= 0, "noise-final >= 0", self.noise_final)
        require(self.noise_decay_generations >= 1, "noise-decay-generations >= 1", self.noise_decay_generations)
        require(
            0 <= self.random_order_probability <= 1,
            "0 <= random-order-probability <= 1",
            self.random_order_probability,
        )


@dataclass(frozen=True)
class ReplayConfig:
    """The shared replay buffer."""

    capacity: int = 50_000
    """Transitions kept; the oldest are overwritten."""
    training_starts: int = 10_000
    """Training waits until the buffer holds this many."""

    def __post_init__(self) -> None:
        require(self.capacity >= 1, "capacity >= 1", self.capacity)
        require(
            0 <= self.training_starts <= self.capacity,
            f"0 <= training-starts <= capacity ({self.capacity})",
            self.training_starts,
        )


@dataclass(frozen=True)
class EvolutionConfig:
    """Selection, crossover and mutation of the population."""

    population_size: Annotated[int, FLAT] = 16
    elite_fraction: float = 0.25
    """Best agents, kept unchanged with their optimiser state."""
    offspring_fraction: float = 0.25
    """Share of the next generation that are children of two tournament winners."""
    mutant_fraction: float = 0.25
    """Share that are mutated copies of a tournament winner; what is left over are unchanged tournament winners."""
    tournament_size: int = 3
    crossover: Crossover = "distill"
    """`distill`: a child learns, state by state, the better of its parents' actions (Bodnar et al. 2020); `head`: it
    takes its actor from one parent and its critics from the other (shared representation only); `average`: blended
    weights."""
    distillation_steps: int = 8
    """Gradient steps in which a child learns from its parents."""
    mutation: Mutation = "proximal"
    """`proximal`: noise scaled down where outputs are sensitive (Bodnar et al. 2020); `gaussian`: plain noise."""
    mutation_strength: float = 0.05
    """Standard deviation of the noise, relative to the weights' own scale."""

    def __post_init__(self) -> None:
        require(self.population_size >= 1, "population-size >= 1", self.population_size)
        require(0 <= self.elite_fraction <= 1, "0 <= elite-fraction <= 1", self.elite_fraction)
        require(0 <= self.offspring_fraction <= 1, "0 <= offspring-fraction <= 1", self.offspring_fraction)
        require(0 <= self.mutant_fraction <= 1, "0 <= mutant-fraction <= 1", self.mutant_fraction)
        total = self.elite_fraction + self.offspring_fraction + self.mutant_fraction
        require(total <= 1 + 1e-9, "elite-fraction + offspring-fraction + mutant-fraction <= 1", total)
        require(self.tournament_size >= 1, "tournament-size >= 1", self.tournament_size)
        require(self.distillation_steps >= 0, "distillation-steps >= 0", self.distillation_steps)
        require(self.mutation_strength >= 0, "mutation-strength >= 0", self.mutation_strength)


@dataclass(frozen=True)
class EvaluationConfig:
    """How policies are judged."""

    fitness_windows: int = 4
    """Training windows of a generation, the same for all agents; fitness is the mean over them."""
    exploration_lanes: int = 1
    """Noisy episodes of each agent on each of those windows, played only to fill the replay buffer."""
    validation_windows: int = 8
    """Evenly spaced validation windows on which the champion is chosen."""
    random_pickers: int = 200
    """Random pickers in the baseline table."""

    def __post_init__(self) -> None:
        require(self.fitness_windows >= 1, "fitness-windows >= 1", self.fitness_windows)
        require(self.exploration_lanes >= 0, "exploration-lanes >= 0", self.exploration_lanes)
        require(self.validation_windows >= 1, "validation-windows >= 1", self.validation_windows)
        require(self.random_pickers >= 1, "random-pickers >= 1", self.random_pickers)


@dataclass(frozen=True)
class Config:
    """A whole run. The common settings are flat; the others live with their concern."""

    data: Path | None = None
    """Parquet file of daily bars; default: data/stock_data.parquet if it is there, else the built-in market."""
    investable: Path | None = None
    """Text file, one ticker a line: the stocks that may be bought (default: all)."""
    profile: Profile = "quick"
    """Size of the run; the default is full with a CUDA device or a data file, else quick."""
    generations: int = 25
    seed: int = 0
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    run: str | None = None
    """Name of the run's folder; default: a new one by date and time."""
    resume: Annotated[str | None, tyro.conf.arg(metavar="[NAME]")] = None
    """Continue the named run, or the newest one if no name is given."""
    runs_dir: Path = Path("runs")
    keep_checkpoints: int = 3
    """Newest generations whose checkpoints stay on disk, besides the champion's."""
    plot_every: int = 5
    """Generations between two drawings of the pictures."""
    census_every: int = 5
    """Generations between two counts of all live objects, by which leaks are named; 0 counts none."""
    memory_limit_mb: float = 0.0
    """Resident memory (MiB) at which the run stops by itself; 0 takes 90% of what machine and cgroup allow."""
    threads: int = 0
    """CPU threads of tensor operations; 0 leaves torch's choice, one a physical core."""
    split: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evolution: EvolutionConfig = field(default_factory=EvolutionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def __post_init__(self) -> None:
        require(
            self.evolution.crossover != "head" or self.network.representation == "shared",
            "crossover head only with representation shared, whose heads read the same encoder",
            f"representation {self.network.representation}",
        )
        require(self.generations >= 1, "generations >= 1", self.generations)
        require(0 <= self.seed < 2**63, "0 <= seed < 2^63", self.seed)
        require(
            re.fullmatch(DEVICES, self.device) is not None,
            "device to be auto, cpu, cuda or cuda:N",
            self.device,
        )
        for name in ("run", "resume"):
            require(is_folder_name(getattr(self, name)), f"{name} to be a plain folder name", getattr(self, name))
        require(self.keep_checkpoints >= 1, "keep-checkpoints >= 1", self.keep_checkpoints)
        require(self.plot_every >= 1, "plot-every >= 1", self.plot_every)
        require(self.census_every >= 0, "census-every >= 0", self.census_every)
        require(self.memory_limit_mb >= 0, "memory-limit-mb >= 0", self.memory_limit_mb)
        require(self.threads >= 0, "threads >= 0", self.threads)


UNHASHED = frozenset(
    {
        "profile",
        "generations",
        "device",
        "run",
        "resume",
        "runs_dir",
        "keep_checkpoints",
        "plot_every",
        "census_every",
        "memory_limit_mb",
        "threads",
        "learning.micro_batch_agents",
        "learning.non_finite",
    }
)
"""Settings that leave the result of a generation as it is, up to rounding."""


def profile_config(profile: Profile) -> Config:
    """The settings of a profile: `full` for real data at full scale, `quick` for the built-in market on 2 CPU cores."""
    if profile == "full":
        return Config(profile="full")
    return Config(
        profile="quick",
        generations=20,
        split=DataConfig(context_window_days=64),
        network=NetworkConfig(encoder_channels=16, hidden_units=32),
        learning=LearningConfig(batch_size=128),
    )


def config_to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts of JSON values; paths become strings with forward slashes."""
    return to_dict(config)


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """The config that nested dicts describe; what they leave out takes the dataclass defaults.

    Raises ConfigError for a name that is no setting, a value of the wrong type or one that breaks a rule.
    """
    return from_dict(values, Config)
