"""Accounts of tiny agents on a tiny market, without a run."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from data.events import Event
from data.features.nine import CLOSE
from data.market import Market
from data.record import MarketRecord, record_market
from models.ddpg_agent import DDPGAgent
from tests.small_market import TINY_RULES, small_market
from tests.tiny import tiny_agent
from training.paper.account import Account
from training.paper.alpaca import AlpacaVenue
from training.paper.certificate import TERMS
from training.paper.decider import Champion, Decider
from training.paper.journal import JOURNAL, Journal
from training.paper.known import known_market
from training.paper.sessions import Sessions
from utils.config.trader import Config, EnvironmentConfig

_READ = ("gap", "place_in_range", "rsi", "intraday_quarter")


def traded_market(seed: int, days: int = 160) -> Market:
    """A random market of a few features: to compute all of a day takes most of a step."""
    market = small_market(seed, days)
    return dataclasses.replace(market, features=tuple(one for one in market.features if one.name in _READ))


MARKET = traded_market(3)
DATES = MARKET.dates.astype("M8[D]").astype(str).tolist()
START = 20


def agent_of(seed: int, rules: EnvironmentConfig = TINY_RULES, market: Market = MARKET) -> DDPGAgent:
    """An agent that trades on most days; every second one is a committee."""
    return tiny_agent(market, rules=rules, members=1 + seed % 2, seed=seed)


def price(ticker: str, day: int, feature: int = CLOSE) -> float:
    return float(MARKET.data_array[day, MARKET.tickers.index(ticker), feature])


def multiplied(
    market: Market, ticker: str, days: slice | int | list[int], factor: float, features: Any = slice(None)
) -> Market:
    """A market in which a ticker's values on some days are multiplied; by NaN: without its bars."""
    array = market.data_array.copy()
    array[days, market.tickers.index(ticker), features] *= np.float32(factor)
    return dataclasses.replace(market, data_array=array)


AGENT = agent_of(6)


@dataclasses.dataclass
class Walk:
    """An account that is opened anew for every step, as a process each day would."""

    folder: Path
    agent: DDPGAgent | Decider = AGENT
    rules: EnvironmentConfig = TINY_RULES
    market: Market = MARKET
    broker: AlpacaVenue | None = None
    calendar: Sessions = Sessions("none")  # noqa: RUF009 - it is frozen
    record: MarketRecord | None = None
    """Of the market at the opening."""
    named: Sequence[Event] = ()
    """Splits and dividends that a vendor names."""
    opening: dict[str, Any] | None = None
    """What its first row has besides."""

    def __post_init__(self) -> None:
        opening = {
            "account": "one",
            "run": "none",
            "generation": 0,
            "capital": 12_345.67,
            "calendar": "none",
            "venue": "paper" if self.broker is None else "alpaca",
            "start": DATES[START],
            "certificate": TERMS,
        } | (self.opening or {})
        self.record = self.record or record_market(self.market, START)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / JOURNAL).exists():
            Journal.create(self.folder / JOURNAL, opening)

    def journal(self) -> Journal:
        return Journal(self.folder / JOURNAL)

    def account(self, journal: Journal, day: int) -> Account:
        config = dataclasses.replace(Config(), env=self.rules)
        assert self.record is not None
        market, changes = known_market(self.market, self.record, journal, self.named)
        decider = Champion(self.agent) if isinstance(self.agent, DDPGAgent) else self.agent
        whole = Account(self.folder, journal, config, decider, market, self.calendar, self.broker, changes)
        return whole.on(day)

    def at(self, day: int) -> Account:
        with self.journal() as journal:
            return self.account(journal, day)

    def step(self, *days: int, **options: Any) -> bool:
        """Step at the closes of days; tell whether the last one was new."""
        for day in days:
            with self.journal() as journal:
                is_new = self.account(journal, day).step(**options)
        return is_new

    def replay(self, days: range) -> None:
        """Step at all closes of days in one account that is kept."""
        with self.journal() as journal:
            account = self.account(journal, days[-1])
            walked = account.new_portfolio()
            for day in days:
                account.on(day, walked=walked).step()

    def append(self, kind: str, body: dict[str, Any]) -> None:
        with self.journal() as journal:
            journal.append(kind, str(journal.last.number), body)

    def go(self) -> None:
        self.append("go", {})

    def of(self, kind: str) -> list[dict[str, Any]]:
        with self.journal() as journal:
            return [row.body for row in journal.of(kind).values()]

    def one_held(self) -> str:
        """A ticker that is held now."""
        return next(one for one in self.of("session")[-1]["positions"] if np.isfinite(price(one, START)))

    def rows(self) -> list[tuple[str, str, Any, str]]:
        with self.journal() as journal:
            kinds = ["open", "session", "intent", "answer", "unknown", "hold", "doubt", "stop", "go", "missed", "event"]
            rows = [row for kind in kinds for row in journal.of(kind).values()]
            return [(row.kind, row.key, row.body, row.hash) for row in sorted(rows, key=lambda row: row.number)]
