"""Arguments of the commands `paper ...`."""

from pathlib import Path
from typing import Annotated, Literal

from training.paper.journal import JOURNAL
from utils.config import kinds
from utils.config.settings import checked_dataclass
from utils.errors import ConfigError


@checked_dataclass
class PaperNameArguments:
    """Arguments of commands about a paper account."""

    name: kinds.AccountName = ""
    runs_dir: kinds.RunsFolder = kinds.RUNS

    @property
    def path(self) -> Path:
        """The account's folder. Raises ConfigError without a name."""
        if not self.name:
            known = ", ".join(sorted(path.parent.name for path in self.runs_dir.glob(f"*/{JOURNAL}")))
            raise ConfigError(
                f"expected the NAME of a paper account, got none; {self.runs_dir} has "
                f"{known or 'no account: `paper open NAME` begins one'}"
            )
        return self.runs_dir / self.name


@checked_dataclass
class PaperArguments(PaperNameArguments):
    """Show where a paper account stands."""

    head: str | None = None
    """Hash that the journal must contain: one that `paper status` or the page has shown. Without it rows that were cut
    off its end are not noticed."""


@checked_dataclass
class PaperOpenArguments(PaperNameArguments):
    """Open a paper account: a run's champion, or your own policy, trades day after day, in a folder beside the runs."""

    run: kinds.SavedRunName = None
    policy: str | None = None
    """Policy of your own in place of a run's champion, FILE.py or FILE.py:NAME: a function from wide bars to scores or
    target weights. It trades --data, and the account keeps a copy of it."""
    config: kinds.SettingsFile = None
    capital: kinds.Capital = 100_000.0
    """Capital that the account begins with."""
    calendar: str | None = None
    """Exchange whose sessions the data must have, as XNYS; `none`: each day of the data is a session. Default: XNYS at
    Alpaca, else `none`."""
    venue: Literal["paper", "alpaca"] = "paper"
    """Where orders are executed. `paper`: at recorded prices, by the rules of training; `alpaca`: Alpaca's paper
    account, by the variables APCA_API_KEY_ID and APCA_API_SECRET_KEY."""
    data: kinds.InputFile = None
    """Parquet file that grows, read at each step; default: the run's own."""

    def __post_init__(self) -> None:
        if self.policy is None and self.config:
            raise ConfigError("expected --config with --policy: a run has settings of its own")
        if self.policy is not None and (self.run or not self.data):
            raise ConfigError(
                f"expected --policy with --data FILE, the prices that it trades, and without a run, got "
                f"{f'--run {self.run}' if self.run else 'no --data'}; a run's settings are given as --config "
                "runs/NAME/config.json"
            )


@checked_dataclass
class PaperStepArguments(PaperArguments):
    """Take in new sessions and give the orders for the next one; call it after each close."""

    date: str | None = None
    """Session up to which the data are read, as 2014-11-10; default: the last one."""


@checked_dataclass
class PaperReportArguments(PaperArguments):
    """Write the page of a paper account, with its backtest."""


@checked_dataclass
class PaperStopArguments(PaperArguments):
    """Stop purchases of a paper account; sales go on."""


@checked_dataclass
class PaperGoArguments(PaperArguments):
    """Let a paper account go on: accept what was doubted or held, and end a stop."""


@checked_dataclass
class PaperRenameArguments:
    """Tell a paper account that a ticker of its data has another name now."""

    name: kinds.AccountName
    old: Annotated[str, kinds.Mark.POSITIONAL]
    """Name of the ticker until now."""
    new: Annotated[str, kinds.Mark.POSITIONAL]
    """Name that it has in the data now."""
    runs_dir: kinds.RunsFolder = kinds.RUNS


@checked_dataclass
class PaperReplayArguments(PaperArguments):
    """Walk recorded sessions as if each were today, and compare the account with its backtest bit for bit."""

    from_: str | None = None
    """Session at whose close the first order is given; default: the first validation day."""
    to: str | None = None
    """Last session; default: the last validation day, or that of the data if it begins later."""
    spend_look: kinds.SpendLook = False
