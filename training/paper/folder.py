"""The folder of a paper account: how it begins, and how it is opened again."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data.market import Market
from data.record import MARKET
from models.ddpg_agent import DDPGAgent
from training.paper.account import Account, cut_market
from training.paper.certificate import TERMS
from training.paper.journal import JOURNAL, Journal
from training.paper.sessions import Sessions
from training.paper.venue import Venue
from training.run.market import load_market, pinned
from training.run.saved import SavedRun
from utils.config.settings import from_dict, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, DataError
from utils.runs.durable import fsync, new_directory
from utils.runs.run_lock import RunLock

logger = logging.getLogger(__name__)
CHAMPION = "champion.safetensors"
VenueName = Literal["paper", "alpaca"]


def open_account(
    run: SavedRun, path: Path, *, name: str, capital: float, calendar: str, venue: VenueName, data: Path | None
) -> None:
    """Begin an account at the last session of a run's data: its folder keeps all that it needs of the run.

    Raises:
        ConfigError: there is such a folder, the run fills orders at the close, or there is no such calendar.
    """
    if path.exists() and any(not item.name.startswith(".") for item in path.iterdir()):
        raise ConfigError(f"expected a new name for the account, got {name!r}, which is in {path.parent} already")
    if run.config.env.fill != "next_open":
        raise ConfigError(
            f"expected a run that fills orders at the next open, got {run.name}, with --env.fill {run.config.env.fill}"
        )
    dates = run.market.dates.astype("datetime64[D]")
    Sessions.of(calendar, dates[-1], dates[-1])
    source = data or run.config.data
    with new_directory(path) as folder:
        run.champion.save(folder / CHAMPION)
        shutil.copy2(run.path / MARKET, folder / MARKET)
        opening = {
            "account": name,
            "run": run.name,
            "generation": run.generation,
            "champion": _digest(folder / CHAMPION),
            "settings": to_dict(dataclasses.replace(run.config, data=None if source is None else source.resolve())),
            "capital": capital,
            "calendar": calendar,
            "venue": venue,
            "start": str(dates[-1]),
            "certificate": TERMS,
        }
        Journal.create(folder / JOURNAL, opening)
        for item in folder.iterdir():
            fsync(item)


@contextmanager
def opened(path: Path) -> Iterator[Journal]:
    """Yield the verified journal of an account that no other process works on.

    Raises:
        ConfigError: another process does.
        DataError: there is no account, or its journal is damaged.
    """
    if not (path / JOURNAL).is_file():
        raise ConfigError(f"expected a paper account in {path}, got none; `paper open {path.name}` begins one")
    with RunLock(path), Journal(path / JOURNAL) as journal:
        yield journal


@dataclasses.dataclass(frozen=True)
class Parts:
    """What an account is played with, which a journal says nothing new about."""

    config: Config
    agent: DDPGAgent
    market: Market
    """As long as the data are."""

    @classmethod
    def of(cls, path: Path, opening: dict[str, Any]) -> Parts:
        """Load champion and market.

        Raises:
            ConfigError, DataError: the champion or the data have changed.
        """
        if _digest(path / CHAMPION) != opening["champion"]:
            raise DataError(f"expected the champion that the account began with in {path / CHAMPION}, got another file")
        config = from_dict(opening["settings"], Config)
        market, _ = load_market(dataclasses.replace(config, investable=None))
        return cls(config, DDPGAgent.load(path / CHAMPION), pinned(path, market))

    def account(self, path: Path, journal: Journal, day: int | None = None, broker: Venue | None = None) -> Account:
        """Return the account as it stands after the session `day`, by default the newest."""
        market = self.market if day is None else cut_market(self.market, day)
        dates = market.dates.astype("datetime64[D]")
        first, today = np.datetime64(journal.opening["start"]), np.datetime64("today")
        sessions = Sessions.of(journal.opening["calendar"], first, max(dates[-1], today))
        return Account(path, journal, self.config, self.agent, market, sessions, broker)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"expected the champion of the account in {path}, got: {error.strerror}") from None
