"""No order is lost or doubled at a venue whose acknowledgements are."""

import dataclasses
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from benchmarks.faults.alpaca import FakeAlpaca, served
from data.features import CLOSE, OPEN
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper
from training.paper import alpaca
from training.paper.venue import NoAnswer
from utils.errors import ConfigError

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
FAULTS = [
    ["lost before"],
    ["lost", "fine"],
    ["late", "503", "lost"],
    ["doubled"],
    ["503", "503", "lost before"],
    ["late"],
]
"""Of the orders of each session, one after the other."""
DAYS = 9
AGENT, SELLS = keeper(), agent_of(0)


def prices(day: int, feature: int) -> dict[str, float]:
    found = MARKET.data_array[day, :, feature]
    return {ticker: float(price) for ticker, price in zip(MARKET.tickers, found, strict=True) if np.isfinite(price)}


def walked(folder: Path, faults: list[list[str]], agent: DDPGAgent = AGENT) -> tuple[FakeAlpaca, Walk, int]:
    """An account after some sessions, with the faults of each; every step is repeated until it succeeds."""
    account, silences = FakeAlpaca(12_345.67), 0
    with served(account, seconds_late=0.3) as address, mock.patch.object(alpaca, "_SECONDS", 0.15):
        walk = Walk(folder, agent, broker=alpaca.AlpacaVenue("key", "secret", address))
        for day, now in zip(range(START, START + DAYS), [*faults, *[[]] * DAYS], strict=False):
            account.fill(str(MARKET.dates[day]), prices(day, OPEN))
            account.faults = list(now)
            for _ in range(20):
                try:
                    walk.step(day)
                    break
                except NoAnswer:
                    silences += 1
            else:
                raise AssertionError("the account never went on")
    return account, walk, silences


@pytest.mark.parametrize("agent", [AGENT, SELLS], ids=["keeps", "sells at the open"])
def test_faults_of_the_venue_change_nothing(tmp_path: Path, agent: DDPGAgent) -> None:
    """Whole shares are bought and sold; a lost answer is unknown until the venue says what became of the order."""
    plain, undisturbed, _ = walked(tmp_path / "one", [], agent)
    account, walk, silences = walked(tmp_path / "other", FAULTS, agent)
    assert [order["client_order_id"] for order in account.orders] == [o["client_order_id"] for o in plain.orders]
    assert account.held == plain.held and account.cash == plain.cash
    # Besides what was not known for a while the journals are equal.
    rows = [[row[:3] for row in each.rows() if row[0] != "unknown"] for each in (walk, undisturbed)]
    assert rows[0] == rows[1] and silences > 1 and any(row[0] == "unknown" for row in walk.rows())
    assert all(float(order["qty"]).is_integer() and float(order["qty"]) > 0 for order in account.orders)
    forms = {(order["side"], order["type"], order["time_in_force"]) for order in account.orders}
    assert ("buy", "market", "opg") in forms and (("sell", "market", "opg") in forms) == (agent is SELLS)
    assert ("sell", "limit", "day") in forms
    day = START + DAYS - 1
    with walk.journal() as journal:
        last = walk.account(journal, day).book.session(day)
        close = prices(day, CLOSE)
        if account.held.keys() <= close.keys():
            held = sum(shares * close[ticker] for ticker, shares in account.held.items())
            assert last["equity"] == pytest.approx(last["cash"] + held)


def test_silence_is_not_flat_and_what_the_venue_holds_wins(tmp_path: Path) -> None:
    account, walk, _ = walked(tmp_path, [])
    day = START + DAYS
    with served(account, 0.0) as address, mock.patch.object(alpaca, "_SECONDS", 0.15):
        walk = dataclasses.replace(walk, broker=alpaca.AlpacaVenue("key", "secret", address))
        account.faults, before = ["silent"], walk.rows()
        with pytest.raises(NoAnswer):
            walk.step(day)
        assert walk.rows() == before
        account.faults = []
        account.fill(str(MARKET.dates[day]), prices(day, OPEN))
        ticker = next(iter(account.held))
        account.held[ticker] += 7
        walk.step(day)
        with walk.journal() as journal:
            book = walk.account(journal, day).book
            assert book.session(day)["positions"][ticker] == account.held[ticker]
            assert re.search(f"holds.*{ticker}", journal.stop_reason())
            assert not [order for order in book.orders(day) if order.side == "buy"]


@pytest.mark.parametrize("endpoint", ["https://api.alpaca.markets", "https://paper-api.alpaca.markets.evil.com"])
def test_a_live_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="paper accounts only"):
        alpaca.AlpacaVenue("key", "secret", endpoint)
