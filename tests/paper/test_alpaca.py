"""No order is lost or doubled at a venue whose acknowledgements are."""

import dataclasses
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from benchmarks.faults.alpaca import FakeAlpaca, served
from data.features.nine import CLOSE, OPEN
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper
from training.paper import alpaca
from training.paper.venue import NoAnswer
from utils.errors import ConfigError, DataError

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


@pytest.mark.parametrize("endpoint", ["http://paper-api.alpaca.markets", "ftp://paper-api.alpaca.markets"])
def test_keys_are_sent_encrypted_only(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="encrypted"):
        alpaca.AlpacaVenue("key", "secret", endpoint)


@pytest.mark.parametrize("status", ["400", "403", "404", "409", "422"])
def test_a_rejected_order_is_told_with_its_reason_and_the_others_are_sent(
    tmp_path: Path, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    """403 is how Alpaca says that buying power does not suffice: no word about keys, and no step ends."""
    account, walk, silences = walked(tmp_path, [[], [status], [status, status], ["fine", status]])
    answers = [row[2] for row in walk.rows() if row[0] == "answer"]
    refused = [one for one in answers if one["status"] == "rejected"]
    assert silences == 0 and 3 <= len(refused) <= 4 and len(answers) > len(refused) + 3
    assert all(one["reason"].startswith(f"{status}: ") and f"no, by {status}" in one["reason"] for one in refused)
    assert len(account.orders) == len(answers) - len(refused) and "no, by" in caplog.text


def stepped(walk: Walk, account: FakeAlpaca, days: range) -> Walk:
    """The account after some more sessions at the same venue."""
    with served(account, 0.0) as address:
        walk = dataclasses.replace(walk, broker=alpaca.AlpacaVenue("key", "secret", address))
        for day in days:
            account.fill(str(MARKET.dates[day]), prices(day, OPEN))
            walk.step(day)
    return walk


def test_what_a_person_holds_at_the_venue_is_doubted_once_and_nothing_ends(tmp_path: Path) -> None:
    """Ten shares of a stock that is not in the data, three bought by hand of one that is; later both are gone."""
    account, walk, _ = walked(tmp_path, [])
    day = START + DAYS
    ticker = next(one for one in prices(day - 1, CLOSE) if one not in account.held)
    account.held["AAPL"] = 10.0
    account.by_hand(str(MARKET.dates[day]), ticker, 3.0, prices(day - 1, CLOSE)[ticker])
    stepped(walk, account, range(day, day + 2))
    doubts = [row[2]["text"] for row in walk.rows() if row[0] == "doubt"]
    found = re.search(rf"AAPL 10, not 0; {ticker} (\d+), not (\d+)", doubts[0])
    assert len(doubts) == 1 and found and int(found[1]) - int(found[2]) == 3
    with walk.journal() as journal:
        assert "AAPL 10" in journal.stop_reason()
        journal.append("go", "1", {})
    del account.held["AAPL"]
    account.by_hand(str(MARKET.dates[day + 2]), ticker, -3.0, prices(day - 1, CLOSE)[ticker])
    stepped(walk, account, range(day + 2, day + 3))
    with walk.journal() as journal:
        journal.append("go", "2", {})
    stepped(walk, account, range(day + 3, day + 8))
    assert [row[0] for row in walk.rows()].count("doubt") == 2
    assert [row[2]["positions"] for row in walk.rows() if row[0] == "session"][-1] == account.held


def test_a_class_of_shares_keeps_its_name(tmp_path: Path) -> None:
    """BRK-B of the data is BRK.B at Alpaca, also when it comes back."""
    names = {ticker: f"BRK-{'ABCDE'[place]}" for place, ticker in enumerate(MARKET.tickers)}
    market = dataclasses.replace(MARKET, tickers=[*names.values()])
    account = FakeAlpaca(12_345.67)
    with served(account, 0.0) as address:
        walk = Walk(tmp_path, agent_of(0, market=market).betting(0.0), market=market)
        walk = dataclasses.replace(walk, broker=alpaca.AlpacaVenue("key", "secret", address))
        for day in range(START, START + 4):
            account.fill(
                str(MARKET.dates[day]), {n.replace("-", "."): prices(day, OPEN).get(t) for t, n in names.items()}
            )
            walk.step(day)
    assert account.held and all(symbol.startswith("BRK.") for symbol in account.held)
    held = [row[2]["positions"] for row in walk.rows() if row[0] == "session"][-1]
    assert held == {symbol.replace(".", "-"): shares for symbol, shares in account.held.items()}
    assert not any(row[0] == "doubt" for row in walk.rows())


@pytest.mark.parametrize("ratio", [0.5, 0.99])
def test_a_split_and_a_dividend_at_a_broker_are_no_doubt(tmp_path: Path, ratio: float) -> None:
    """The broker multiplies shares and pays cash; orders are sent in shares and prices of today."""
    account, walk, _ = walked(tmp_path, [])
    day, ticker = START + DAYS, next(iter(account.held))
    array, column = MARKET.data_array.copy(), MARKET.tickers.index(ticker)
    # Until now the account saw MARKET; from this day on prices are those times the ratio, and so is the whole past.
    array[:, column, :4] *= np.float32(ratio)
    shares, price = account.held[ticker], prices(day, OPEN).get(ticker, 0.0) * ratio
    if ratio == 0.5:
        account.held[ticker] = shares / ratio
    else:
        account.cash += shares * price * (1 / ratio - 1)
    walk = dataclasses.replace(walk, market=dataclasses.replace(MARKET, data_array=array))
    before = [row[2]["equity"] for row in walk.rows() if row[0] == "session"][-1]
    with served(account, 0.0) as address:
        walk = dataclasses.replace(walk, broker=alpaca.AlpacaVenue("key", "secret", address))
        opens = {one: known * (ratio if one == ticker else 1) for one, known in prices(day, OPEN).items()}
        account.fill(str(MARKET.dates[day]), opens)
        walk.step(day)
    assert not any(row[0] in ("doubt", "hold") for row in walk.rows())
    assert [row[2]["kind"] for row in walk.rows() if row[0] == "event"] == ["split" if ratio == 0.5 else "dividend"]
    after = [row[2]["equity"] for row in walk.rows() if row[0] == "session"][-1]
    assert after == pytest.approx(before, rel=0.03)
    limits = [order for order in account.orders if order["symbol"] == ticker and order["status"] == "new"]
    for order in limits:
        if order["type"] == "limit":
            assert float(order["limit_price"]) < 2 * prices(day, CLOSE)[ticker] * ratio
            assert float(order["qty"]) == account.held[ticker]


def test_orders_beyond_a_page_are_read(tmp_path: Path) -> None:
    account = FakeAlpaca(1e6)
    for number in range(1203):
        account.post({"client_order_id": f"o{number}", "symbol": "A", "qty": "1", "side": "buy", "type": "market"})
    with served(account, 0.0) as address:
        venue = alpaca.AlpacaVenue("key", "secret", address)
        assert venue.open_orders() == {f"o{number}" for number in range(1203)}
        account.fill("2010-01-05", {"A": 1.0})
        assert len(venue.fills_since(np.datetime64("2010-01-04"))) == 1203


@pytest.mark.parametrize("status", [400, 404, 422])
@pytest.mark.parametrize("path", ["account", "positions", "orders"])
def test_a_question_that_is_refused_is_one_line(path: str, status: int) -> None:
    account = FakeAlpaca(1.0)
    account.refused = {path: status}
    ask = {"account": "cash", "positions": "positions", "orders": "open_orders"}[path]
    with served(account, 0.0) as address, pytest.raises(DataError, match=f"got {status}: .*no {path}"):
        getattr(alpaca.AlpacaVenue("key", "secret", address), ask)()


def test_an_answer_without_cash_is_one_line() -> None:
    account = FakeAlpaca(1.0)
    words = "with its fields, got none for 'cash'"
    with mock.patch.object(account, "get", lambda *_: {"id": "1"}), served(account, 0.0) as address:
        venue = alpaca.AlpacaVenue("key", "secret", address)
        with pytest.raises(DataError, match=words):
            venue.cash()
