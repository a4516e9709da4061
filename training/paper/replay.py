"""Recorded sessions, walked by an account as if each were today."""

import shutil

import numpy as np

from data.record import MARKET
from training.commands.table import PaperReplayArguments
from training.paper.account import Account
from training.paper.backtest import backtest
from training.paper.folder import CHAMPION
from training.paper.journal import JOURNAL, Journal
from training.paper.report import parity_sentence, write_report
from utils.errors import ConfigError
from utils.progress import progress
from utils.runs.durable import new_directory

REPLAY = "replay"
"""Folder of the account that walks the sessions, within that of the account whose champion and rules it has."""


def replay(account: Account, arguments: PaperReplayArguments) -> str:
    """Walk sessions of the data, by default those of the champion's holdout, and compare with the backtest.

    The account is read from its journal anew for each session, as by `paper step`.

    Returns:
        What the comparison found.

    Raises:
        ConfigError: there are no such sessions.
    """
    dates = account.market.dates.astype("datetime64[D]").astype(str)
    first = arguments.from_ or dates[account.market.splits.holdout.first]
    days = np.flatnonzero((dates >= first) & (dates <= (arguments.to or dates[-1]))).tolist()
    if len(days) < 2:
        raise ConfigError(
            f"expected two sessions or more from {dates[0]} to {dates[-1]}, as 2014-11-10, got {first} to "
            f"{arguments.to}"
        )
    folder = account.path / REPLAY
    with new_directory(folder) as fresh:
        for name in (CHAMPION, MARKET):
            shutil.copy2(account.path / name, fresh / name)
        Journal.create(fresh / JOURNAL, account.journal.opening | {"venue": "paper", "start": dates[days[0]]})
    for day in progress(days, "replay", "session"):
        with Journal(folder / JOURNAL) as journal:
            account.on(day, path=folder, journal=journal, changes=()).step()
    with Journal(folder / JOURNAL) as journal:
        today = account.on(days[-1], path=folder, journal=journal, changes=())
        played = backtest(today)
        write_report(today, played)
        return parity_sentence(today, played)
