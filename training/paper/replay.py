"""Recorded sessions, walked by an account as if each were today."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from data.record import MARKET
from training.commands.table import PaperReplayArguments
from training.paper.account import Account
from training.paper.backtest import backtest
from training.paper.folder import CHAMPION
from training.paper.journal import JOURNAL, Journal
from training.paper.report import parity_sentence, write_report
from utils.errors import ConfigError, FileError
from utils.progress import progress
from utils.runs.durable import new_directory

PROGRAM = Path(__file__).parents[2] / "main.py"
REPLAY = "replay"
"""Folder of the account that walks the sessions, within that of the account whose champion and rules it has."""


def replay(account: Account, arguments: PaperReplayArguments) -> str:
    """Walk sessions of the data, by default those of the champion's holdout, and compare with the backtest.

    Returns:
        What the comparison found.

    Raises:
        ConfigError: there are no such sessions.
        FileError: the process of a session failed.
    """
    dates = account.market.dates.astype("datetime64[D]").astype(str)
    days, folder = _days(account, arguments.from_, arguments.to), account.path / REPLAY
    with new_directory(folder) as fresh:
        for name in (CHAMPION, MARKET):
            shutil.copy2(account.path / name, fresh / name)
        Journal.create(fresh / JOURNAL, account.journal.opening | {"venue": "paper", "start": dates[days.start]})
    for day in progress(days, "replay", "session"):
        if arguments.processes:
            _start(folder, dates[day])
            continue
        with Journal(folder / JOURNAL) as journal:
            account.on(day, path=folder, journal=journal).step()
    with Journal(folder / JOURNAL) as journal:
        today = account.on(days[-1], path=folder, journal=journal)
        played = backtest(today)
        write_report(today, played)
        return parity_sentence(today, played)


def _days(account: Account, first: str | None, last: str | None) -> range:
    dates, start = account.market.dates.astype("datetime64[D]"), account.market.splits.holdout.first
    try:
        if first is not None:
            start = int(np.searchsorted(dates, np.datetime64(first, "D")))
        end = len(dates) if last is None else int(np.searchsorted(dates, np.datetime64(last, "D"), side="right"))
    except ValueError as error:
        raise ConfigError(f"expected dates like 2014-11-10 for --from and --to, got: {error}") from None
    if end - start < 2:
        raise ConfigError(f"expected two sessions or more from {dates[0]} to {dates[-1]}, got {first} to {last}")
    return range(start, end)


def _start(folder: Path, date: str) -> None:
    words = ["paper", "step", folder.name, "--runs-dir", str(folder.parent), "--date", date]
    done = subprocess.run([sys.executable, str(PROGRAM), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FileError(f"expected a step at {date} that ends with 0, got {done.returncode}: {done.stderr[-500:]}")
