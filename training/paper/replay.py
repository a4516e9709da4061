"""Recorded sessions, walked by an account as if each were today."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from data.record import MARKET
from training.paper.backtest import backtest
from training.paper.folder import CHAMPION, Parts
from training.paper.journal import JOURNAL, Journal
from training.paper.report import parity_sentence, write_report
from utils.errors import ConfigError, FileError
from utils.progress import progress
from utils.runs.durable import new_directory

logger = logging.getLogger(__name__)
REPLAY = "replay"
"""Folder of the account that walks the sessions, within that of the account whose champion and rules it has."""


def replay(
    path: Path, opening: dict[str, Any], first: str | None, last: str | None, *, in_process: bool, program: Path
) -> str:
    """Walk sessions of the data, by default those of the champion's holdout, and compare with the backtest.

    Args:
        path: folder of an account.
        first: date of the session at whose close the first order is given.
        in_process: do not start a process for each session.
        program: path of main.py.

    Returns:
        What the comparison found.

    Raises:
        ConfigError: there are no such sessions.
        FileError: the process of a session failed.
    """
    parts = Parts.of(path, opening)
    days = _days(parts, first, last)
    folder = path / REPLAY
    dates = parts.market.dates.astype("datetime64[D]").astype(str)
    with new_directory(folder) as fresh:
        for name in (CHAMPION, MARKET):
            shutil.copy2(path / name, fresh / name)
        Journal.create(fresh / JOURNAL, opening | {"venue": "paper", "start": dates[days.start]})
    for day in progress(days, "replay", "session"):
        if in_process:
            with Journal(folder / JOURNAL) as journal:
                parts.account(folder, journal, day).step()
        else:
            _start(program, folder, dates[day])
    with Journal(folder / JOURNAL) as journal:
        account = parts.account(folder, journal, days[-1])
        played = backtest(account)
        write_report(account, played)
        return parity_sentence(account, played)


def _days(parts: Parts, first: str | None, last: str | None) -> range:
    dates = parts.market.dates.astype("datetime64[D]")
    start = parts.market.splits.holdout.first
    try:
        if first is not None:
            start = int(np.searchsorted(dates, np.datetime64(first, "D")))
        end = len(dates) if last is None else int(np.searchsorted(dates, np.datetime64(last, "D"), side="right"))
    except ValueError as error:
        raise ConfigError(f"expected dates like 2014-11-10 for --from and --to, got: {error}") from None
    if end - start < 2:
        raise ConfigError(f"expected two sessions or more from {dates[0]} to {dates[-1]}, got {first} to {last}")
    return range(start, end)


def _start(program: Path, folder: Path, date: str) -> None:
    command = [sys.executable, str(program), "paper", "step", folder.name, "--runs-dir", str(folder.parent)]
    done = subprocess.run([*command, "--date", date], capture_output=True, text=True, check=False)
    if done.returncode:
        raise FileError(f"expected a step at {date} that ends with 0, got {done.returncode}: {done.stderr[-500:]}")
