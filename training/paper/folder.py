"""The folder of a paper account: how it begins, and how it is opened again."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from data.events import read_events
from data.features.own import require_alone
from data.market import Market
from data.record import MARKET, pin_market, record_market, sealed
from training.paper.account import Account
from training.paper.arguments import PaperOpenArguments
from training.paper.certificate import TERMS
from training.paper.decider import Decider, load_decider
from training.paper.journal import JOURNAL, Journal
from training.paper.known import known_market, under_known_names
from training.paper.sessions import NO_CALENDAR, Sessions
from training.run.market import load_market, read_market_record
from training.signals.broker_orders import require_symbol
from utils import checkout
from utils.config.settings import from_dict, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError, DataError
from utils.runs.durable import fsync, new_directory
from utils.runs.run_lock import RunLock
from utils.runs.run_log import write_json

if TYPE_CHECKING:
    from training.paper.alpaca import AlpacaVenue

logger = logging.getLogger(__name__)
LAYOUT = 3
"""Version of the journal's contents; increased when accounts of an earlier version cannot continue as they are."""
READ_BY = {2: "0.13.0"}
"""The version that goes on with accounts of an earlier version."""
_FEATURES = "features.py"
"""Copy of the file of own features, if there is one."""


def open_account(arguments: PaperOpenArguments, decider: Decider, market: Market, config: Config) -> None:
    """Begin an account at the last session of a market, in a new folder with all that it needs.

    Raises:
        ConfigError, DataError: there is such a folder, orders are filled at the close, there is no such calendar, or
            the venue cannot know a ticker.
    """
    path, last = arguments.path, market.dates[-1]
    if path.exists():
        raise ConfigError(f"expected a new name for the account, got {path.name!r}, which is in {path.parent} already")
    if config.env.fill != "next_open":
        raise ConfigError(f"expected orders that are filled at the next open, got --env.fill {config.env.fill}")
    if config.features is not None:
        require_alone(config.features, "features")
    if arguments.venue == "alpaca":
        for column in market.investable_columns.tolist():
            require_symbol(market.tickers[column])
    source = arguments.data or config.data
    calendar = arguments.calendar or ("XNYS" if arguments.venue == "alpaca" else NO_CALENDAR)
    Sessions.of(calendar, last, last)
    with new_directory(path) as folder:
        write_json(folder / MARKET, sealed(record_market(market, len(market.dates) - 1)))
        if config.features is not None:
            shutil.copyfile(config.features, folder / _FEATURES)
        opening = {
            "account": path.name,
            **decider.save(folder),
            "settings": to_dict(dataclasses.replace(config, data=None if source is None else source.resolve())),
            "capital": arguments.capital,
            "calendar": calendar,
            "venue": arguments.venue,
            "layout": LAYOUT,
            "start": str(last),
            "certificate": TERMS,
        }
        if arguments.venue == "alpaca":  # where another account of the same name may trade, too
            opening["orders"] = f"{path.name}-{secrets.token_hex(3)}"
        Journal.create(folder / JOURNAL, opening)
        for item in folder.iterdir():
            fsync(item)


@contextmanager
def opened(path: Path, head: str | None = None, *, reads_only: bool = False) -> Iterator[Journal]:
    """Yield the verified journal of an account that no other process works on.

    What only reads it may do so on a read-only disk, where nobody writes.

    Raises:
        ConfigError: another process does, there is no account, or it is of an earlier version.
        DataError: its journal is damaged, or has no row with the hash `head`.
    """
    if not (path / JOURNAL).is_file():
        raise ConfigError(f"expected a paper account in {path}, got none; `paper open {path.name}` begins one")
    with ExitStack() as stack:
        copied = None
        if reads_only and not os.access(path, os.W_OK):
            copied = Path(stack.enter_context(tempfile.TemporaryDirectory())) / JOURNAL
            for file in path.glob(f"{JOURNAL}*"):
                shutil.copyfile(file, copied.with_name(file.name))
        else:
            stack.enter_context(RunLock(path))
        journal = stack.enter_context(Journal(path / JOURNAL, copied))
        if head is not None and head not in journal.hashes:
            raise DataError(
                f"expected a row with the hash {head} in {journal.path}, got none: rows were cut off or written anew; "
                "restore the file from a copy"
            )
        if (layout := journal.opening.get("layout")) != LAYOUT:
            reader = f"{checkout(READ_BY[layout])} goes on with it, or " if layout in READ_BY else ""
            raise ConfigError(
                f"expected an account of this version, got {path.name} of an earlier one; {reader}open a new one with "
                "`paper open`"
            )
        yield journal


def load_account(journal: Journal, broker: AlpacaVenue | None = None) -> Account:
    """Return an account on a market as long as the data are.

    Raises:
        ConfigError, DataError: who decides or the data have changed.
    """
    opening, path = journal.opening, journal.path.parent
    config = from_dict(opening["settings"], Config)
    sessions = [opening["start"], *journal.of("session")]
    if (path / _FEATURES).exists():
        config = dataclasses.replace(config, features=path / _FEATURES)
    record = read_market_record(path)
    market = load_market(dataclasses.replace(config, investable=None), sessions=sessions)
    market = pin_market(under_known_names(market, journal.renamed), record, owner="account")
    known = {new: first for first, new in journal.renamed.items()}
    named = [dataclasses.replace(one, ticker=known.get(one.ticker, one.ticker)) for one in read_events(config.data)]
    market, changes = known_market(market, record, journal, named)
    last = max(market.dates[-1], np.datetime64("today"))
    calendar = Sessions.of(opening["calendar"], np.datetime64(sessions[-1]), last)
    return Account(path, journal, config, load_decider(path, opening), market, calendar, broker, changes)
