"""All commands: what each is for, its arguments, and the function that it calls; `main.py` knows these."""

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from training.paper.arguments import (
    PaperArguments,
    PaperGoArguments,
    PaperOpenArguments,
    PaperRenameArguments,
    PaperReplayArguments,
    PaperReportArguments,
    PaperStepArguments,
    PaperStopArguments,
)
from utils.config import kinds
from utils.config.cli import DEFAULT_COMMAND, Command, Lists, in_short
from utils.config.fuel_breaks import FuelBreakEvaluateArguments, FuelBreakShowArguments, FuelBreakTrainArguments
from utils.config.prepare import Choices
from utils.config.settings import checked_dataclass
from utils.config.trader import Config, EnvironmentConfig, Rivals, default_settings
from utils.errors import ConfigError
from utils.runs.run_lock import require_free


@checked_dataclass
class SettingsArguments:
    """Arguments of commands that have the settings of a training run."""

    settings: Config = field(default_factory=Config)
    config: kinds.SettingsFile = None


@checked_dataclass
class TrainArguments(SettingsArguments):
    """Train a population of trading agents by evolutionary reinforcement learning."""

    extend: Annotated[kinds.FolderName, kinds.Mark.NEWEST_IF_BARE] = None
    """Start a new run with settings and genes of the named run, or the newest one, on data extended since then."""


@checked_dataclass
class PrepareArguments:
    """Turn files of daily bars into one validated parquet file, and a page about its contents."""

    source: Annotated[Path, kinds.Mark.POSITIONAL]
    """CSV or parquet file, or a folder of them: tickers in a column, one per file, or side by side."""
    target: Annotated[Path, kinds.Mark.POSITIONAL]
    """Parquet file to write; the page is written beside it."""
    overwrite: bool = False
    """Replace TARGET if it is there."""
    benchmark: str | None = None
    """Ticker of an index in the data that is written to a separate CSV file, for --benchmark, instead."""
    append: bool = False
    """Append to the bars of TARGET, which stay as they are but for dividends and splits; other changes are refused."""
    reading: Choices = field(default_factory=Choices)


@checked_dataclass
class FeaturesArguments(SettingsArguments):
    """Show what each feature of the data, and of --features, tells of future returns on training days.

    Settings of data, features, splits and trading rules are those of a training run.
    """

    page: kinds.OutputFile = None
    """HTML file to write: all of it, with charts."""
    json: kinds.OutputFile = None
    """JSON file to write everything to."""


@checked_dataclass
class SavedRunArguments:
    """Arguments of commands that open a run."""

    run: kinds.SavedRunName = None
    data: kinds.InputFile = None
    """Parquet file to read instead of the one that the run was trained on: the same past, perhaps with more days."""
    runs_dir: kinds.RunsFolder = kinds.RUNS
    threads: kinds.Threads = 1


@checked_dataclass
class EvaluateArguments(SavedRunArguments):
    """Judge a run's champion, or your own policy.

    Policies of your own need no run: without --run they are judged on --data, or on the built-in market.
    """

    policy: tuple[str, ...] = ()
    """Policies of your own: FILE.py or FILE.py:NAME, a function from wide bars to scores or a class with `act`, or the
    FILE.zip of a model of Stable-Baselines3."""
    scores: kinds.InputFile = None
    """CSV or parquet file of your own scores, known at that day's close, the higher the more is held: rows of `date,
    ticker, score`, or a column of dates and one a ticker."""
    weights: kinds.InputFile = None
    """The same of target weights, shares of the equity, which are held as they are: `date, ticker, weight`, or wide."""
    trades: kinds.InputFile = None
    """CSV or parquet file of another backtester's orders: `date, ticker`, `side` (buy, sell), and `value` or `shares`;
    known at that day's close, filled at the next open. With a `price` they are fills of that day, which are checked."""
    hold: Annotated[int | None, Field(ge=1)] = None
    """Hold scores as equal weights of this many stocks, the best of each day; default: by the band."""
    borrow_bps: kinds.BasisPoints = 50.0
    """Fee a year on what target weights are short, and on cash that they owe."""
    variants: kinds.PositiveInt = 1
    """Variants of these policies that were tried on the judged days, for which the verdict allows."""
    null: kinds.NonNegativeInt = 0
    """Number of markets of the same days drawn again, where nothing is foretold, on which the functions of --policy are
    judged, too, to tell how often they would be praised."""
    config: kinds.SettingsFile = None
    investable: kinds.InputFile = None
    """Text file of the tickers of --data that policies of your own may buy, one per line, or with the header
    `ticker,from,to` the days on which each is in the universe; default: all of them."""
    split: Literal["validation", "holdout"] = "validation"
    """Days on which it is judged; each look at the holdout is recorded, and asks for --spend-look."""
    spend_look: kinds.SpendLook = False
    random_pickers: kinds.PositiveInt = 1000
    """Random pickers that the champion is compared with: its weights, beside the benchmark's, in permuted stocks."""
    rivals: Rivals = "learned"
    """Supervised baselines. `learned`: ridge regression and LightGBM on the run's training days; `none`: none."""
    rival_refit: kinds.NonNegativeInt = 0
    """Sessions after which they are refitted to all results known by then; 0 fits them to the training days only."""
    benchmark: kinds.InputFile = None
    """CSV file (`date, close`) of an index that is shown beside the champion."""
    benchmark_weights: str = ""
    """What the benchmark of policies of your own holds, as `SPY=1` or `SPY=60,TLT=40`, of any columns; empty: equal
    weight."""
    json: bool = False
    """Print the contents of results.json, by policy, and nothing else."""
    env: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    device: kinds.Device = "auto"

    @property
    def is_of_policies(self) -> bool:
        """Whether policies of the user are judged, not a run's champion."""
        return bool(self.policy or self.scores or self.weights or self.trades)

    def __post_init__(self) -> None:
        if self.split == "holdout":
            kinds.require_spent(self.spend_look)
        given: dict[str, Any] = {"config": self.config, "benchmark-weights": self.benchmark_weights}
        given |= {"investable": self.investable, "env.*": self.env != EnvironmentConfig()}
        for flag, value in given.items():
            if value and (self.run or not self.is_of_policies):
                raise ConfigError(
                    f"expected --{flag} only with policies of your own and no --run: a run brings its own settings"
                )
        if self.null and (self.scores or self.weights or self.trades or not self.policy):
            raise ConfigError(
                "expected --null with --policy alone: files of scores, weights or trades are of one market"
            )
        if self.variants > 1 and not self.is_of_policies:
            raise ConfigError("expected --variants with policies of your own; for a champion trials are counted")


@checked_dataclass
class SignalsArguments(SavedRunArguments):
    """Show the orders of a run's champion for the next session."""

    date: str | None = None
    """Session at whose close the orders are decided, as 2014-11-10; default: the last one of the data."""
    positions: kinds.InputFile = None
    """CSV file of what is held: ticker,shares and perhaps entry_date,entry_price, which tell splits and dividends since
    then and the unrealised return; default: nothing."""
    cash: Annotated[float | None, Field(ge=0, le=10**15)] = None
    """Cash now; default, without positions: the run's initial capital."""
    peak: Annotated[float | None, Field(gt=0, le=10**15)] = None
    """Highest equity of the account so far, which a drawdown lock refers to; default: that of today."""
    least: Annotated[float | None, Field(ge=0, le=10**12)] = None
    """Smallest order, in currency units; what is lacking below it waits. Default: 0.1% of the equity."""
    release: bool = False
    """Buy although the account has fallen beyond --env.drawdown-lock."""
    json: kinds.OutputFile = None
    """JSON file to write everything to."""
    ib: kinds.OutputFile = None
    """CSV file to write orders to as a basket of Interactive Brokers' Trader Workstation; nothing is sent."""
    alpaca: kinds.OutputFile = None
    """JSON file to write orders to as a list of requests to Alpaca; nothing is sent."""
    device: kinds.Device = "cpu"


@checked_dataclass
class AuditArguments(SavedRunArguments):
    """Change all data after random days, and require a run's champion to see and decide the same on them."""

    days: kinds.PositiveInt = 10
    """Random days; after each, later data are cut, poisoned and scaled in turn."""


@checked_dataclass
class ReportArguments:
    """Compare runs on one page: settings, results on validation days, time and memory."""

    runs: Annotated[tuple[kinds.FolderName, ...], kinds.Mark.POSITIONAL] = ()
    """Names of the runs, of which the first one is drawn boldly; default: the newest run."""
    output: kinds.OutputFile = None
    """HTML file to write; default: report.html in the folder of all runs."""
    runs_dir: kinds.RunsFolder = kinds.RUNS


@checked_dataclass
class ServeArguments:
    """Show the runs' reports, pictures and logs, and TensorBoard, in a browser: read-only, for holders of a token.

    The token is shown at the start; the variable SERVE_TOKEN sets another one.
    """

    runs_dir: kinds.RunsFolder = kinds.RUNS
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 listens to all networks, unencrypted."""
    port: Annotated[int, Field(ge=0, le=65535)] = 6006
    """Port to listen on; 0: a free one."""


@checked_dataclass
class WalkForwardArguments(SettingsArguments):
    """Train, validate and test on successive folds: one equity curve over days that no champion has seen.

    Each fold is a training run in runs/NAME/fold-K, whose test days follow its validation days, and a separate job;
    --run, --resume and all settings of a training run apply.
    """

    folds: kinds.PositiveInt = 4
    """Number of folds, each of which trains a population; the test days of the last one end with the data."""
    test_windows: kinds.PositiveInt = 2
    """Length of a fold's test days, in episodes."""
    validation_days: kinds.PositiveInt = 290
    """Days before a fold's test days (less a purge) on which its champion is first evaluated."""
    train_days: kinds.NonNegativeInt = 0
    """Days before a fold's validation days (less a purge) on which it trains; 0: all of them."""
    jobs: Annotated[int, Field(ge=1), kinds.Mark.FREE] = 1
    """Folds that are trained at once, each in a process with one thread."""


def run_defaults(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `default_settings`; ConfigError for an unknown kind of market."""
    if "synthetic.kind" in stated:
        from data.synthetic.kinds import planted_kind  # takes long where no kind is needed

        planted_kind(stated["synthetic.kind"])
    return default_settings(stated)


def refuse_early(arguments: Any) -> None:
    """Refuse a run in use and data that are no bars before torch is imported, which takes seconds.

    Raises ConfigError, DataError.
    """
    asked = getattr(arguments, "settings", arguments)
    if (name := getattr(asked, "resume", None)) is not None:
        require_free(asked.runs_dir / name)
    elif (data := getattr(asked, "data", None)) is not None:
        from data.bars import COLUMNS, LongBars  # imported late: other commands need no pandas

        LongBars.of_file(data, COLUMNS)


EXAMPLES = {
    "python main.py": "Train on data/stock_data.parquet if it exists, else on the built-in market.",
    "python main.py --data bars.parquet --run first": "Train on prices of your own; `prepare` makes the file.",
    "python main.py --resume first": "Continue this run after a stop.",
}
ENVIRONMENT = {
    "CLOUD_PROVIDER": "Where runs are kept besides the disk: `gcs` (Google Cloud Storage) or `local` (a folder).",
    "CLOUD_BUCKET": "Name of the bucket, or absolute path of the folder.",
    "CLOUD_PROJECT": "Google Cloud project of the bucket, if the credentials name none.",
    "GOOGLE_APPLICATION_CREDENTIALS": "Path of the key file for the bucket.",
    "GOOGLE_APPLICATION_CREDENTIALS_JSON": "Contents of that file, where a machine gets secrets as variables.",
    "BOX_VOLUME": "Volume of a rented machine, which its image sets: runs and data lie below it.",
    "SERVE_TOKEN": "Token of `serve`, which else makes a new one each time.",
    "CUDA_VISIBLE_DEVICES": "GPUs that may be used; empty: none.",
}


def help_lists(name: str, is_whole: bool) -> Lists:
    """Return the lists with which the help of `train` or of a group begins, in short or whole; none of others."""
    texts = {key: str(command.arguments.__doc__).split("\n\n")[0] for key, command in COMMANDS.items()}
    if name in GROUPS:
        return {"commands, each with a --help of its own": {k: text for k, text in texts.items() if k.startswith(name)}}
    if name != DEFAULT_COMMAND:
        return {}
    if not is_whole:
        texts = {key: in_short(text) for key, text in texts.items() if " " not in key} | GROUPS
    commands = {"commands, each with a --help of its own (train may be left out)": texts, "examples": EXAMPLES}
    if not is_whole:
        return commands
    from data.synthetic.kinds import PLANTED_KINDS  # takes long where no kind is needed

    kinds = {name: kind.structure for name, kind in PLANTED_KINDS.items()}
    return {
        **commands,
        "environment variables": ENVIRONMENT,
        "what each --synthetic.kind plants in the built-in market": kinds,
    }


GROUPS = {
    "paper": "Trade with a champion, or a policy of your own, day after day",
    "fuel-breaks": "Place fuel breaks on a landscape",
}
"""Groups of commands by the first word of their names."""
COMMANDS = {
    "train": Command(TrainArguments, "training.train:run_train", run_defaults),
    "prepare": Command(PrepareArguments, "training.commands.prepare:run_prepare"),
    "features": Command(FeaturesArguments, "training.commands.features:run_features", run_defaults),
    "evaluate": Command(EvaluateArguments, "training.commands.evaluate:run_evaluation"),
    "signals": Command(SignalsArguments, "training.commands.signals:run_signals"),
    "audit": Command(AuditArguments, "training.commands.audit:run_audit"),
    "report": Command(ReportArguments, "training.commands.report:run_report"),
    "serve": Command(ServeArguments, "training.commands.serve:run_serve"),
    "walk-forward": Command(WalkForwardArguments, "training.commands.walk_forward:run_walk_forward", run_defaults),
    "paper open": Command(PaperOpenArguments, "training.commands.paper:run_open"),
    "paper step": Command(PaperStepArguments, "training.commands.paper:run_step"),
    "paper status": Command(PaperArguments, "training.commands.paper:run_status"),
    "paper report": Command(PaperReportArguments, "training.commands.paper:run_report"),
    "paper stop": Command(PaperStopArguments, "training.commands.paper:run_stop"),
    "paper go": Command(PaperGoArguments, "training.commands.paper:run_go"),
    "paper rename": Command(PaperRenameArguments, "training.commands.paper:run_rename"),
    "paper replay": Command(PaperReplayArguments, "training.commands.paper:run_replay"),
    "fuel-breaks train": Command(FuelBreakTrainArguments, "training.fuel_breaks.commands:run_train"),
    "fuel-breaks evaluate": Command(FuelBreakEvaluateArguments, "training.fuel_breaks.commands:run_evaluation"),
    "fuel-breaks show": Command(FuelBreakShowArguments, "training.fuel_breaks.commands:run_show"),
}
"""A command by its name, a word or two; the function is imported only when the command runs."""
