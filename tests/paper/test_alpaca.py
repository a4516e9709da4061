"""No order is lost or doubled at a venue whose acknowledgements are."""

import contextlib
import dataclasses
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.events import Event
from data.features.nine import CLOSE, OPEN, PRICES
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import AGENT, DATES, MARKET, START, Walk, agent_of, multiplied, price
from tests.paper.fake_alpaca import FakeAlpaca, at_broker, market_order, stepped
from tests.small_market import TINY_RULES
from training.paper import alpaca
from training.paper.book import NoAnswer
from training.signals.broker_orders import Order
from utils.errors import ConfigError, DataError

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
FAULTS = [
    *(["lost before", "lost", "late", "503", "doubled"], ["lost", "fine"], ["late", "503", "lost"], ["doubled"]),
    *(["503", "503", "lost before"], ["late"]),
]
"""Of the orders of each session, one after the other."""
DAYS = 9
START_OF_2010 = np.datetime64("2010-01-01")


def prices(day: int, feature: int) -> dict[str, float]:
    found = MARKET.data_array[day, :, feature]
    return {ticker: float(price) for ticker, price in zip(MARKET.tickers, found, strict=True) if np.isfinite(price)}


def walked(folder: Path, faults: list[list[str]], agent: DDPGAgent = AGENT) -> tuple[FakeAlpaca, Walk, int]:
    """An account after some sessions, with the faults of each; every step is repeated until it succeeds."""
    account, silences = FakeAlpaca(), 0
    walk = Walk(folder, agent, broker=account.venue)
    for day, now in zip(range(START, START + DAYS), [*faults, *[[]] * DAYS], strict=False):
        account.fill(DATES[day], prices(day, OPEN))
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


@pytest.mark.parametrize("agent", [AGENT, agent_of(1), AGENT.shrunk(0.0)], ids=["one", "committee", "benchmark"])
def test_faults_of_the_venue_change_nothing(tmp_path: Path, agent: DDPGAgent) -> None:
    """Whole shares are bought and sold; a lost answer is unknown until the venue says what became of the order."""
    plain, undisturbed, _ = walked(tmp_path / "one", [], agent)
    account, walk, silences = walked(tmp_path / "other", FAULTS, agent)
    assert [order["client_order_id"] for order in account.orders] == [o["client_order_id"] for o in plain.orders]
    assert account.held == plain.held and account.cash == plain.cash and not walk.of("doubt")
    # Besides what was not known for a while the journals are equal.
    rows = [[row[:3] for row in each.rows() if row[0] != "unknown"] for each in (walk, undisturbed)]
    assert rows[0] == rows[1] and silences > 1 and any(row[0] == "unknown" for row in walk.rows())
    assert all(float(order["qty"]).is_integer() and float(order["qty"]) > 0 for order in account.orders)
    assert {(order["type"], order["time_in_force"]) for order in account.orders} == {("market", "opg")}
    by_day = [(order["client_order_id"][4:14], order["symbol"]) for order in account.orders]
    assert len({*by_day}) == len(by_day), "one order a stock"
    last, close = walk.of("session")[-1], prices(START + DAYS - 1, CLOSE)
    assert last["cash"] == account.cash and last["positions"] == account.held
    if account.held.keys() <= close.keys():
        held = sum(shares * close[ticker] for ticker, shares in account.held.items())
        assert last["equity"] == pytest.approx(account.cash + held)


def test_without_forecasts_equal_parts_are_bought_in_whole_shares(tmp_path: Path) -> None:
    """At the first open, for no more than the cash; the benchmark beside is that of recorded prices."""
    account, walk, _ = walked(tmp_path, [], AGENT.shrunk(0.0))
    first = [order for order in account.orders if DATES[START] in order["client_order_id"]]
    closes = prices(START, CLOSE)
    bought = {order["symbol"]: int(order["qty"]) for order in first}
    assert bought == {one: pytest.approx(12_345.67 / len(closes) / closes[one], abs=1.02, rel=2e-3) for one in closes}
    rate = TINY_RULES.cost_rate
    assert sum(size * closes[one] * (1 + rate) for one, size in bought.items()) <= 12_345.67
    embedded = Walk(tmp_path / "embedded", AGENT.shrunk(0.0))
    embedded.step(*range(START, START + DAYS))
    assert [one["benchmark"] for one in walk.of("session")] == [one["benchmark"] for one in embedded.of("session")]


@pytest.mark.parametrize("lock", [0.0, 30.0])
def test_a_benchmark_is_rebalanced_when_it_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: float) -> None:
    """What has grown out of its band is sold down, and the others are bought, on the fourth session; nothing is bought
    where the fall of the others has locked the account."""
    monkeypatch.setattr("environment.benchmark.REBALANCING_SESSIONS", 4)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which would ask about such moves
    ticker, market, day = "T02", MARKET, DATES[START + 4]
    for one in MARKET.tickers:
        market = multiplied(market, one, slice(START + 2, None), 1.2 if one == ticker else 0.4, list(PRICES))
    rules = dataclasses.replace(TINY_RULES, drawdown_lock=lock)
    account, _ = at_broker(tmp_path, AGENT.shrunk(0.0), *range(START, START + 8), rules=rules, market=market)
    due = [order for order in account.orders if day in order["client_order_id"]]
    sold = {order["symbol"]: float(order["qty"]) for order in due if order["side"] == "sell"}
    filled = {order["symbol"] for order in due if order["side"] == "buy"}
    assert bool(filled) == (lock == 0) and ticker not in filled and (lock or [*sold] == [ticker])
    bought = {order["client_order_id"][4:14] for order in account.orders if order["side"] == "buy"}
    assert not lock or bought <= {DATES[START], DATES[START + 1]}


@pytest.mark.parametrize(
    "address",
    ["https://api.alpaca.markets", "https://paper-api.alpaca.markets.evil.com", "http://paper-api.alpaca.markets"],
)
def test_keys_are_sent_to_paper_accounts_only_and_encrypted(address: str) -> None:
    with pytest.raises(ConfigError, match="paper accounts only, and encrypted"):
        alpaca.AlpacaVenue("key", "secret", address)
    # Alpaca's page shows the address of paper accounts with its version.
    assert alpaca.AlpacaVenue("key", "secret", f"{alpaca.PAPER}/v2/")._client._base_url == alpaca.PAPER


@pytest.mark.parametrize("status", ["403", "422"])
def test_a_rejected_order_is_told_with_its_reason_and_the_others_are_sent(
    tmp_path: Path, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    """403 is how Alpaca says that buying power does not suffice: no word about keys, and no step ends. What was a
    request too many is sent again."""
    account, walk, silences = walked(tmp_path, [["429", "429"], [status], [status, status], ["fine", status]])
    answers = walk.of("answer")
    refused = [one for one in answers if one["status"] == "rejected"]
    assert silences == 0 and 3 <= len(refused) <= 4 and len(answers) > len(refused) + 3
    assert all(one["reason"].startswith(f"{status}: ") and f"no, by {status}" in one["reason"] for one in refused)
    assert len(account.orders) == len(answers) - len(refused) and "no, by" in caplog.text


def test_a_venue_that_hangs_has_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is there nevertheless, and not doubled."""
    account = FakeAlpaca()
    with monkeypatch.context() as patch:
        patch.setattr(alpaca, "_SECONDS", 0.1)
        walk = Walk(tmp_path, AGENT, broker=account.venue)
    account.faults = ["hangs"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    account.hung.set()
    walk.broker = account.venue
    walk.step(START)
    answers = walk.of("answer")
    assert {one["status"] for one in answers} == {"accepted"} and len(account.orders) == len(answers)


def test_silence_is_not_flat_and_what_the_venue_holds_is_doubted_once_and_wins(tmp_path: Path) -> None:
    """Ten shares of a stock that is not in the data, and seven more of one that is held; later none of the former."""
    account, walk, _ = walked(tmp_path, [])
    day, rows = START + DAYS, walk.rows()
    account.faults = ["silent"]
    with pytest.raises(NoAnswer):
        walk.step(day)
    assert walk.rows() == rows
    account.faults = []
    account.fill(DATES[day], prices(day, OPEN))
    own = max(account.held, key=lambda one: account.held[one])
    account.held |= {"AAPL": 10.0, own: account.held[own] + 7}
    stepped(walk, account, day, day + 1)
    (doubt,) = walk.of("doubt")
    found = {
        name: (float(has), float(due)) for name, has, due in re.findall(r"(\w+) ([\d.]+), not ([\d.]+)", doubt["text"])
    }
    assert {name: has - due for name, (has, due) in found.items()} == {"AAPL": 10, own: 7}
    book = walk.at(day).book
    assert doubt["text"] == book.journal.stop_reason() and not [one for one in book.orders(day) if one.side == "buy"]
    assert walk.of("session")[-1]["positions"] == account.held
    walk.go()
    del account.held["AAPL"]
    stepped(walk, account, day + 2)
    walk.go()
    stepped(walk, account, *range(day + 3, day + 8))
    assert len(walk.of("doubt")) == 2 and walk.of("session")[-1]["positions"] == account.held


def test_a_class_of_shares_keeps_its_name(tmp_path: Path) -> None:
    """BRK-B of the data is BRK.B at Alpaca, also when it comes back."""
    market = dataclasses.replace(MARKET, tickers=[f"BRK-{letter}" for letter in "ABCDE"])
    account, walk = at_broker(tmp_path, agent_of(1, market=market), *range(START, START + 4), market=market)
    assert account.held and all(symbol.startswith("BRK.") for symbol in account.held)
    held = walk.of("session")[-1]["positions"]
    assert held == {symbol.replace(".", "-"): shares for symbol, shares in account.held.items()}
    assert not walk.of("doubt")


@pytest.mark.parametrize(("size", "is_late"), [(0.02, False), (0.02, True), (0.2, False)])
def test_a_dividend_is_paid_to_who_held_at_its_ex_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: float, is_late: bool
) -> None:
    """On the pay date, and no doubt, however large it is; the event is noted once."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which may ask about a price that did not fall
    day = START + 3
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0), *range(START, day))
    ticker, shares = next(iter(walk.of("session")[-1]["positions"].items()))
    cash, pay, shown = size * price(ticker, day - 1), day + 2, day + (4 if is_late else 0)
    after = multiplied(MARKET, ticker, slice(day), 1 - size, list(PRICES))
    walk.named = [Event(ticker, DATES[day], "dividend", cash, DATES[pay])]
    for today in range(day, day + 7):
        account.cash += shares * cash if today == pay else 0.0
        walk.market = after if today >= shown else MARKET
        stepped(walk, account, today)
    assert [row[1] for row in walk.rows() if row[0] == "event"] == [f"{ticker} {DATES[day]} dividend"]
    assert not walk.of("doubt") and walk.of("session")[-1]["cash"] == account.cash


def test_orders_beyond_a_page_are_read() -> None:
    account, ids = FakeAlpaca(1e6), [f"o{number}" for number in range(1203)]
    for one in ids:
        account.post(market_order(one, "A", 1))
    assert account.venue.orders_since(np.datetime64("2010-01-04")) == dict.fromkeys(ids, "")
    account.fill("2010-01-05", {"A": 1.0})
    assert len(account.venue.fills_since(np.datetime64("2010-01-04"))) == 1203


def test_parts_of_orders_are_fills() -> None:
    """They have no time of their own yet."""
    account = FakeAlpaca()
    account.post(market_order("part", "T0", 3))
    account.orders[-1] |= {"filled_qty": "1", "filled_avg_price": "9", "updated_at": "2024-01-03T15:00:00Z"}
    fills = account.venue.fills_since(np.datetime64("2024-01-02"))
    assert [(fill.id, fill.side, fill.shares, fill.price, fill.value) for fill in fills] == [("part", "buy", 1, 9, 9)]


@pytest.mark.parametrize(
    ("ask", "path", "status"),
    [(("cash",), "account", 400), (("positions",), "positions", 404), (("orders_since", START_OF_2010), "orders", 422)],
)
def test_an_answer_that_refuses_or_lacks_its_fields_is_one_line(ask: tuple[Any, ...], path: str, status: int) -> None:
    account = FakeAlpaca(1.0)
    for code, said in ((status, f"got {status}: .*no {path}"), (200, "with its fields, got none for")):
        account.refused = {path: code}
        with pytest.raises(DataError, match=said):
            getattr(account.venue, ask[0])(*ask[1:])


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-1e400", None, "none"])
def test_numbers_that_are_none_are_no_answer(number: Any) -> None:
    account = FakeAlpaca(1.0)
    account.cash, account.held = number, {"T0": number}
    for ask in (account.venue.cash, account.venue.positions):
        with pytest.raises(DataError, match="with its fields, got none for"):
            ask()


ORDER = Order("ours", "T0", "buy", 1.0, request=market_order("ours", "T0", 1))


@pytest.mark.parametrize(
    ("hour", "is_sent"), [((9, 28), False), ((12, 0), False), ((18, 59), False), ((19, 0), True), ((9, 27), True)]
)
def test_an_order_waits_where_alpaca_would_refuse_it(
    hour: tuple[int, int], is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would be final: it stays without an answer, and the next step sends it."""
    monkeypatch.setattr("training.paper.alpaca.new_york", lambda: datetime(2024, 1, 2, *hour))
    account = FakeAlpaca()
    with contextlib.nullcontext() if is_sent else pytest.raises(NoAnswer, match="step again after 19:00"):
        assert account.venue.submit(ORDER) == ""
    assert bool(account.orders) == is_sent


@pytest.mark.parametrize(
    "change", [{"status": "canceled"}, {"qty": "2"}, {"side": "sell"}, {"symbol": "T1"}, {"status": "new"}]
)
def test_an_id_that_stands_for_another_order_is_a_refusal(change: dict[str, str]) -> None:
    account = FakeAlpaca()
    assert account.venue.submit(ORDER) == ""
    account.orders[-1] |= change
    assert account.venue.submit(ORDER).startswith("422: ") == (change != {"status": "new"})
