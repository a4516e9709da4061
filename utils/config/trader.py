"""Settings of the trader: frozen dataclasses by concern, each validated where it is built."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from utils.config import kinds
from utils.config.kinds import Mark
from utils.config.settings import RunSettings, checked_dataclass, from_dict, require

Profile = Literal["quick", "full"]
Fill = Literal["next_open", "same_close"]
Rivals = Literal["learned", "none"]
PROFILES: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "quick": {
        "generations": 10,
        "split.context_window_days": 64,
        "learning.gradient_accumulation": 2,
        "learning.replay_capacity": 80_000,
    },
}
"""What profiles change: `full` is for real data at full scale, `quick` for the built-in market on two cores."""
_PROFILE_HELP = (
    "Size of the run; default: full, the other defaults, with a CUDA device or a data file, else quick: "
    + ", ".join(f"{name} = {value}" for name, value in PROFILES["quick"].items())
)
OUTCOME_SESSIONS = 20
"""Sessions over which outcomes are looked at: what is learned, and how far apart splits and folds are."""
DEFAULT_DATA = kinds.RUNS.parent / "data" / "stock_data.parquet"


@checked_dataclass
class DataConfig:
    """Settings of the market's days and of the environment's observations."""

    context_window_days: Annotated[int, Field(ge=2)] = 504
    """Sessions before the first training day, over which the means of past returns settle."""
    train_fraction: kinds.InnerShare = 0.70
    """Share of the days, from the first, that training may read."""
    validation_fraction: kinds.InnerShare = 0.15
    """Share of the days after training that are for validation; the rest is the holdout."""
    holdout_fraction: Annotated[float | None, Field(ge=0, lt=1)] = None
    """Share of the days, the last ones, that are the holdout: training and validation divide the others in proportion
    to their own shares. 0: validation ends with the data. Default: what the two leave."""
    input_clip: Annotated[float, Field(gt=0, le=10**6)] = 8.0
    """Standard deviations to which the standardised prices that an environment observes are clipped; networks read
    inputs of their own."""
    inputs: Annotated[Literal["all", "past"], Mark.SHORT] = "all"
    """What agents read: `all`: past returns and every feature of the data; `past`: past returns alone."""
    max_bad_row_share: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Largest share of rows with a non-positive or infinite price that a file may have."""

    def __post_init__(self) -> None:
        total = self.train_fraction + self.validation_fraction
        require(total <= 1, "--split.train-fraction + --split.validation-fraction <= 1", total)


@checked_dataclass
class SyntheticConfig:
    """The built-in market, used when there is no data file."""

    kind: str = "mixed"
    """Planted structure: one of the kinds of market that `python main.py --help-all` lists."""
    days: Annotated[int, Field(ge=2)] = 4000
    """Days of the market."""
    stocks: kinds.PositiveInt = 40
    """Stocks of the market."""
    daily_noise: Annotated[float, Field(gt=0, le=0.1)] = 0.014
    """Standard deviation of the unpredictable part of a daily log return."""
    drift_std: Annotated[float, Field(ge=0, le=0.1)] = 0.004
    """Standard deviation of the predictable part: a stock's latent daily drift. Momentum only."""
    drift_half_life_days: kinds.PositiveFloat = 10.0
    """Half-life of the latent drift (an autoregressive process of order one). Momentum only."""


@checked_dataclass
class EnvironmentConfig:
    """The trading rules. Money is in currency units, rates in basis points or percent as named."""

    trading_days: kinds.PositiveInt = 125
    """Sessions of an episode in which something may be bought."""
    settlement_days: kinds.NonNegativeInt = 20
    """Sessions after them, at the end of which an episode sells everything. Windows of training are as long as both
    together, and traded throughout."""
    initial_capital: Annotated[float, Field(ge=1, le=10**12)] = 1_000_000.0
    """Cash at the start of an account."""
    max_days_without_bar: kinds.PositiveInt = 5
    """A position whose stock has no bar for this many sessions is sold at its last traded price."""
    delisting_loss: kinds.Percent = 0.0
    """Percent of its last traded price that such a position loses in addition (30: Shumway 1997, "The delisting bias in
    CRSP data", Journal of Finance 52). It applies to halted stocks that trade again later too."""
    cost_bps: kinds.BasisPoints = 5.0
    """Commission, basis points of the value traded, on both legs."""
    slippage_bps: kinds.BasisPoints = 5.0
    """Slippage, basis points of the value traded, on both legs."""
    fill: Fill = "next_open"
    """Price at which an order is filled: `next_open`, or `same_close`, the close on which it was decided."""
    volume_cap: kinds.Percent = 0.0
    """Largest order, percent of the shares traded on the day of the fill; the rest of the order lapses. 0: no cap."""
    drawdown_lock: Annotated[float, Field(ge=0, lt=100)] = 0.0
    """Percent by which equity may fall from its highest close. Beyond it an account buys nothing: in an episode until
    its end, elsewhere until a person releases it. 0: no lock."""

    @property
    def episode_steps(self) -> int:
        """Steps of an episode: trading and settlement days."""
        return self.trading_days + self.settlement_days

    @property
    def cost_rate(self) -> float:
        """Costs and slippage of a leg, as a share of the value traded."""
        return (self.cost_bps + self.slippage_bps) / 10_000


@checked_dataclass
class LearningConfig:
    """How actors and critics learn by gradient (DDPG)."""

    gradient_steps: kinds.NonNegativeInt = 60
    """Updates of all agents' networks per generation; 0: none."""
    gradient_accumulation: kinds.PositiveInt = 6
    """Batches over which the gradient of an update is accumulated."""
    batch_size: kinds.PositiveInt = 128
    """Stocks of replayed days per batch and fold."""
    learning_rate: kinds.PositiveFloat = 0.004
    """Step size of actors and critics (AdamW)."""
    tau: kinds.PositiveShare = 0.05
    """Polyak averaging rate of the target networks per update."""
    hidden: kinds.PositiveInt = 32
    """Width of the two hidden layers of the critic, which the actor reads."""
    exploration_noise: kinds.NonNegativeFloat = 0.1
    """Deviation of the noise on scores in exploration windows, in standard deviations of a session's results."""
    replay_capacity: Annotated[int, Field(ge=1, le=10**9)] = 50_000
    """Transitions that the replay buffer keeps; the oldest are overwritten."""
    training_starts: kinds.NonNegativeInt = 10_000
    """Transitions that the replay buffer must hold before networks are trained."""


@checked_dataclass
class EvolutionConfig:
    """Selection, crossover and mutation of the population's genes and actors."""

    population_size: Annotated[int, Field(ge=2), kinds.UP_TO_A_BILLION, Mark.SHORT] = 16
    """Agents of the population."""
    elite_fraction: kinds.Share = 0.25
    """Share of the agents, the fittest, that survive unchanged; their committee is the champion."""
    tournament_size: kinds.PositiveInt = 3
    """Agents per tournament, whose fittest becomes a parent; each child has two parents."""
    mutation_share: kinds.Share = 0.3
    """Share of a child's genes that mutate."""
    mutation_strength: kinds.NonNegativeFloat = 0.15
    """Standard deviation of a mutation, as a share of the gene's range, and of the weights of an actor's layer."""


@checked_dataclass
class EvaluationConfig:
    """Evaluation of policies."""

    fitness_windows: kinds.PositiveInt = 16
    """Training windows per generation, the same for all agents; fitness is the mean over them."""
    exploration_windows: kinds.NonNegativeInt = 4
    """Additional windows with random exploration, which only fill the replay buffer."""
    validation_windows: kinds.PositiveInt = 8
    """Evenly spaced validation windows on which the champion is monitored; nothing is selected on them."""
    random_pickers: kinds.PositiveInt = 1000
    """Random pickers that the champion is compared with: its weights, beside the benchmark's, in permuted stocks."""
    evidence: Literal["weigh", "report", "require"] = "weigh"
    """How far the forecasts of the agents are followed: `weigh`: as far as their orders are worth it, else the
    benchmark is held; `report`: in full; `require`: in full where they are significant, else not at all."""
    benchmark_weights: Annotated[str, Mark.SHORT] = ""
    """What the benchmark holds, as `SPY=1` or `SPY=60,TLT=40`, of any columns; empty: all stocks that may be bought, in
    equal parts, or a sample of more than 300. It is bought once, and trimmed once a year."""
    rivals: Annotated[Rivals, Mark.SHORT, Mark.FREE] = "learned"
    """`learned`: evaluate a ridge regression and LightGBM, fitted to the training days, beside the champion; `none`: do
    not."""
    rival_refit: Annotated[kinds.NonNegativeInt, Mark.SHORT, Mark.FREE] = 0
    """Sessions after which they are refitted to all outcomes known by then; 0: fitted once, to the training days."""
    benchmark: Annotated[kinds.InputFile, Mark.SHORT, Mark.FREE] = None
    """CSV file (`date, close`) of a benchmark to evaluate beside the champion."""


@checked_dataclass
class Config(RunSettings):
    """Settings of a run: the common ones, then the others by concern."""

    CONTEXT_WINDOW_DAYS: ClassVar[int] = DataConfig.context_window_days
    """Defaults under the names of older scripts that place an environment's window themselves: sessions before
    the first training day, steps of an episode, and updates of a generation."""
    TRADING_PERIOD_DAYS: ClassVar[int] = EnvironmentConfig.trading_days
    SETTLEMENT_PERIOD_DAYS: ClassVar[int] = EnvironmentConfig.settlement_days
    GRADIENT_STEPS_PER_GENERATION: ClassVar[int] = LearningConfig.gradient_steps
    GRADIENT_ACCUMULATION_STEPS: ClassVar[int] = LearningConfig.gradient_accumulation
    data: Annotated[kinds.InputFile, Mark.MAIN] = None
    """Parquet file of daily bars, as written by `prepare`; default: data/stock_data.parquet if it exists, else the
    built-in market."""
    investable: Annotated[kinds.InputFile, Mark.MAIN] = None
    """Stocks that may be bought: a text file, one ticker per line; default: all."""
    features: Annotated[kinds.InputFile, Mark.MAIN] = None
    """Python file of own features of daily bars: each public function takes wide bars and returns one frame."""
    profile: Annotated[Profile, Mark.FREE, Mark.MAIN, Field(description=_PROFILE_HELP)] = "quick"
    generations: Annotated[kinds.PositiveInt, Mark.FREE, Mark.MAIN] = 25
    """Generation after which the run ends."""
    memory_report: Annotated[Literal["auto", "on", "off"], Mark.FREE] = "auto"
    """What is said of memory. `auto`: a line a generation, and in a file an analysis at the end; `on`: also counts of
    all objects after every phase, and tables after every generation; `off`: no counts."""
    split: DataConfig = field(default_factory=DataConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    learning: LearningConfig = field(default_factory=LearningConfig)
    evolution: EvolutionConfig = field(default_factory=EvolutionConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def profile_config(profile: Profile) -> Config:
    """Return a profile's settings."""
    return from_dict({"profile": profile, **PROFILES[profile]}, Config)


def default_settings(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted name, of the `stated` profile, else of the one that suits data and machine."""
    data = stated.get("data") or (DEFAULT_DATA if DEFAULT_DATA.exists() else None)
    profile = stated.get("profile")
    if profile is None:
        # A resumed run keeps its profile, so that nothing waits for torch to look for a GPU.
        profile = "full" if data is not None or ("resume" not in stated and _has_cuda()) else "quick"
    return {"profile": profile, "data": data, **PROFILES[profile]}


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
