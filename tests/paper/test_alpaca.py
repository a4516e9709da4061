"""No order is lost or doubled at a venue whose acknowledgements are."""

import dataclasses
import re
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.faults.alpaca import FakeAlpaca, served
from data.features import CLOSE, OPEN
from tests.paper.cases import MARKET, START, Walk, agent_of
from training.paper import alpaca
from training.paper.venue import NoAnswer
from utils.errors import ConfigError

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
FAULTS = ("fine", "lost before", "lost", "late", "doubled", "503")
# Round robin buys on every day, whatever is known of the stocks.
AGENT = agent_of(0).betting(0.0)


def prices(day: int, feature: int) -> dict[str, float]:
    found = MARKET.data_array[day, :, feature]
    return {ticker: float(price) for ticker, price in zip(MARKET.tickers, found, strict=True) if np.isfinite(price)}


def walked(folder: Path, faults: list[list[str]], days: int) -> tuple[FakeAlpaca, Walk, int]:
    """An account after some sessions, with the faults of each; every step is repeated until it succeeds."""
    account, silences = FakeAlpaca(12_345.67), 0
    with served(account, seconds_late=0.3) as address, mock.patch.object(alpaca, "_SECONDS", 0.15):
        walk = Walk(folder, AGENT, broker=alpaca.AlpacaVenue("key", "secret", address))
        for day, now in zip(range(START, START + days), [*faults, *[[]] * days], strict=False):
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


@settings(max_examples=8)
@given(st.lists(st.lists(st.sampled_from(FAULTS), max_size=4), max_size=5))
def test_faults_of_the_venue_change_nothing(faults: list[list[str]]) -> None:
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        plain, undisturbed, _ = walked(Path(one), [], 6)
        account, walk, _ = walked(Path(other), faults, 6)
        assert [order["client_order_id"] for order in account.orders] == [o["client_order_id"] for o in plain.orders]
        assert account.held == plain.held and account.cash == plain.cash and plain.held
        # Besides what was not known for a while the journals are equal.
        rows = [[row[:3] for row in each.rows() if row[0] != "unknown"] for each in (walk, undisturbed)]
        assert rows[0] == rows[1]


def test_a_lost_answer_is_unknown_and_silence_is_not_flat(tmp_path: Path) -> None:
    account, walk, silences = walked(tmp_path, [[], ["lost"], ["lost before"]], 4)
    assert silences == 2 and sum(row[0] == "unknown" for row in walk.rows()) == 2
    assert len({order["client_order_id"] for order in account.orders}) == len(account.orders)
    with served(account, 0.0) as address, mock.patch.object(alpaca, "_SECONDS", 0.15):
        walk = dataclasses.replace(walk, broker=alpaca.AlpacaVenue("key", "secret", address))
        account.faults, before = ["silent"], walk.rows()
        with pytest.raises(NoAnswer):
            walk.step(START + 4)
        assert walk.rows() == before
        # What the venue holds wins, and is doubted.
        account.faults = []
        account.fill(str(MARKET.dates[START + 4]), prices(START + 4, OPEN))
        ticker = next(iter(account.held))
        account.held[ticker] += 7
        walk.step(START + 4)
        with walk.journal() as journal:
            stated = walk.account(journal, START + 4)
            assert stated.book.shares(START + 4)[ticker] == account.held[ticker]
            assert re.search(f"holds.*{ticker}", journal.stop_reason())
            bought = [order for order in stated.book.orders(START + 4) if order.side == "buy"]
        assert not bought


def test_orders_are_whole_shares_and_sales_are_sent(tmp_path: Path) -> None:
    account, walk, _ = walked(tmp_path, [], 9)
    assert all(float(order["qty"]).is_integer() and float(order["qty"]) > 0 for order in account.orders)
    assert {order["side"] for order in account.orders} == {"buy", "sell"}
    with walk.journal() as journal:
        last = walk.account(journal, START + 8).book
        cash = journal.of("session")[last.date(START + 8)].body["cash"]
        held = sum(shares * prices(START + 8, CLOSE).get(ticker, np.nan) for ticker, shares in account.held.items())
        if np.isfinite(held):
            assert last.equity(START + 8) == pytest.approx(cash + held)


@pytest.mark.parametrize("endpoint", ["https://api.alpaca.markets", "https://paper-api.alpaca.markets.evil.com"])
def test_a_live_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="paper accounts only"):
        alpaca.AlpacaVenue("key", "secret", endpoint)
