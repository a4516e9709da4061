"""The backtest of an account: the same champion on the same windows, as `evaluate` and `walk-forward` play it."""

import dataclasses
import json
import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from data.market import Market, span_of
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from models.trader import Forecasts
from training.evaluation.play import EvaluationSetup, play_agent
from training.paper.account import Account
from training.paper.venue import Fill, fills_of
from utils.runs.run_log import write_json

logger = logging.getLogger(__name__)
CACHE = "backtest.json"


@dataclass(frozen=True)
class Backtest:
    """What the account should be: by session, from its first one on."""

    equity: NDArray[np.float64]
    fills: list[list[Fill]]

    def first_difference(self, account: Account) -> str:
        """Return the first session on which the account differs, and in what; empty where it never does."""
        book = account.book
        for place, day in enumerate(range(book.start, book.last + 1)):
            expected, fills = self.fills[place], book.fills(day)
            if fills != expected:
                other = next((one for one in (*fills, *expected) if (one in fills) != (one in expected)), None)
                what = "order of the fills" if other is None else f"{other.side} {other.ticker}"
                return f"{book.date(day)}: {what}"
            if book.equity(day) != float(self.equity[place]):
                return f"{book.date(day)}: equity {book.equity(day)!r}, backtest {float(self.equity[place])!r}"
        return ""


def backtest(account: Account, *, uses_cache: bool = True) -> Backtest:
    """Play the champion on the account's windows, each with all that the one before it left, up to its last session.

    Args:
        uses_cache: windows that are over are taken from the account's folder if they were played before.
    """
    book, steps = account.book, account.config.env.episode_steps
    path, last = account.path / CACHE, book.last
    cache: dict[str, Any] = json.loads(path.read_text()) if uses_cache and path.is_file() else {}
    capital, known = float(account.journal.opening["capital"]), len(cache)
    equity, fills = [capital], list[list[Fill]]([[]])
    for start in range(book.start, last, steps):
        end = min(start + steps, last)
        if (found := cache.get(book.date(start))) is None:
            found = _window(account, start, end, capital)
            if end == start + steps:
                cache[book.date(start)] = found
        equity += found["equity"]
        fills += [[Fill(**fill) for fill in session] for session in found["fills"]]
        capital = equity[-1]
    if len(cache) > known:
        write_json(path, cache)
    return Backtest(np.array(equity), fills)


def _window(account: Account, start: int, end: int, capital: float) -> dict[str, Any]:
    """Return the equity and the fills of the sessions after `start` up to `end`, of an account that begins there."""
    rules = dataclasses.replace(account.config.env, initial_capital=capital)
    market = span_of(account.market, 0, end)
    padded = span_of(market, 0, start + rules.episode_steps)
    setup = EvaluationSetup(padded, Portfolio.on(padded, rules), torch.tensor([start]))
    curves, trades, _ = play_agent(setup, account.agent, _forecasts(account.agent, market, start, len(padded.dates)))
    fills = fills_of(account.name, market, 0, trades)
    return {
        "equity": curves.equity[0, 0, 1 : end - start + 1].tolist(),
        "fills": [[dataclasses.asdict(fill) for fill in fills.get(day, ())] for day in range(start + 1, end + 1)],
    }


def _forecasts(agent: DDPGAgent, market: Market, first: int, days: int) -> Forecasts:
    """Return forecasts from `first` to the market's last day, each day's by itself; there are none on the others.

    The account forecasts one day at a time, and the last bit of a product may depend on how many rows it has.
    """
    inputs = agent.inputs.of(market, slice(first, None))
    every = range(first, first + len(inputs))
    parts = ((slice(day, day + 1), _of_day(agent, market, day, inputs[day - first, None])) for day in every)
    return Forecasts.on_days(parts, days)


def _of_day(agent: DDPGAgent, market: Market, day: int, x: NDArray[np.float32]) -> Forecasts:
    today = dataclasses.replace(market, data_array=market.data_array[day : day + 1])
    return agent.forecasts(today, x, slice(0, 1))
