"""No order is lost or doubled at a venue whose acknowledgements are."""

import dataclasses
import re
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from data.events import Event
from data.features.nine import CLOSE, OPEN, PRICES
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import MARKET, START, Walk, agent_of, keeper, multiplied
from tests.paper.fake_alpaca import FakeAlpaca, stepped
from tests.small_market import TINY_RULES
from training.paper import alpaca
from training.paper.journal import STOP
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
AGENT, SELLS = keeper(2), agent_of(2)


def prices(day: int, feature: int) -> dict[str, float]:
    found = MARKET.data_array[day, :, feature]
    return {ticker: float(price) for ticker, price in zip(MARKET.tickers, found, strict=True) if np.isfinite(price)}


def walked(folder: Path, faults: list[list[str]], agent: DDPGAgent = AGENT) -> tuple[FakeAlpaca, Walk, int]:
    """An account after some sessions, with the faults of each; every step is repeated until it succeeds."""
    account, silences = FakeAlpaca(), 0
    with mock.patch.object(alpaca, "_SECONDS", 0.15):
        walk = Walk(folder, agent, broker=account.venue)
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
    last, close = walk.of("session")[-1], prices(START + DAYS - 1, CLOSE)
    if account.held.keys() <= close.keys():
        held = sum(shares * close[ticker] for ticker, shares in account.held.items())
        assert last["equity"] == pytest.approx(last["cash"] + held)


def test_a_stop_is_a_fill_of_the_sale_that_it_is_a_leg_of() -> None:
    account = FakeAlpaca()
    order = {"client_order_id": "ours", "symbol": "T0", "side": "sell", "type": "limit", "qty": "3"}
    account.post(order)
    stopped = {"filled_qty": "3", "filled_avg_price": "9.5", "filled_at": "2024-01-03T15:00:00Z"}
    account.orders[-1]["legs"] = [{**order, "client_order_id": "theirs", "type": "stop", **stopped}]
    (fill,) = account.venue.fills_since(np.datetime64("2024-01-02"))
    assert (fill.id, fill.side, fill.shares, fill.price, fill.reason) == ("ours", "sell", 3.0, 9.5, "stop")


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_agents_and_basket_share_an_account_at_a_broker(tmp_path: Path, share: float) -> None:
    """Each part buys with its capital in whole shares; faults, and steps again, neither lose nor double an order."""
    agent = AGENT.with_share(share)
    plain, undisturbed, _ = walked(tmp_path / "one", [], agent)
    faults = [["lost before", "lost", "late", "503", "doubled"], ["lost"], ["late", "503"]]
    account, walk, silences = walked(tmp_path / "other", faults, agent)
    rows = [[row[:3] for row in each.rows() if row[0] != "unknown"] for each in (walk, undisturbed)]
    assert rows[0] == rows[1] and silences > 1 and not any(row[0] == "doubt" for row in walk.rows())
    ids = [order["client_order_id"] for order in account.orders]
    assert len({*ids}) == len(ids) and account.held == plain.held and account.cash == plain.cash
    of_basket = [order for order in account.orders if "-basket-" in order["client_order_id"]]
    opens = prices(START + 1, OPEN)
    bought = {o["symbol"]: int(o["qty"]) for o in of_basket}
    # Once, at the first open, equal parts of what does not follow the agents, cut to whole shares.
    part = (1 - share) * 12_345.67 / len(prices(START, CLOSE))
    closes = prices(START, CLOSE)
    assert bought == {ticker: pytest.approx(part / close, abs=1.02, rel=2e-3) for ticker, close in closes.items()}
    assert {order["filled_at"][:10] for order in of_basket} == {str(MARKET.dates[START + 1])[:10]}
    _, first, *_, last = walk.of("session")
    assert last["basket_positions"] == bought
    both = {one: last["positions"].get(one, 0) + bought.get(one, 0) for one in {**last["positions"], **bought}}
    assert both == account.held and (set(last["positions"]) == set()) == (share == 0)
    spent = sum(size * opens[ticker] for ticker, size in bought.items())
    close = prices(START + 1, CLOSE)
    worth = sum(size * close[ticker] for ticker, size in bought.items())
    assert first["basket"] == pytest.approx((1 - share) * 12_345.67 - spent + worth)
    assert last["whole"] == pytest.approx(last["equity"] + last["basket"])
    own = [order for order in account.orders if order["side"] == "buy" and order not in of_basket]
    paid = sum(float(order["qty"]) * float(order["filled_avg_price"]) for order in own if order["filled_avg_price"])
    assert bool(own) == (share > 0) and last["cash"] >= -0.02 * share * 12_345.67 and (share > 0) == (paid > 0)


@pytest.mark.parametrize("lock", [0.0, 30.0])
def test_a_basket_at_a_broker_is_rebalanced_when_it_is_due_and_as_its_band_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: float
) -> None:
    """What has grown out of its band is sold down, and the others are bought, on the fourth session only; never where
    the fall of the others has locked the basket."""
    monkeypatch.setattr("training.signals.basket.REBALANCING_SESSIONS", 4)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which would ask about such moves
    ticker, market, account = "T02", MARKET, FakeAlpaca()
    for one in MARKET.tickers:
        market = multiplied(market, one, slice(START + 2, None), 1.2 if one == ticker else 0.4, list(PRICES))
    rules = dataclasses.replace(TINY_RULES, drawdown_lock=lock)
    walk = Walk(tmp_path, AGENT.with_share(0.0), rules, market, account.venue)
    stepped(walk, account, *range(START, START + 7))
    days = {order["client_order_id"].split("-basket-")[1][:10] for order in account.orders}
    assert days == {str(MARKET.dates[day])[:10] for day in (START, *[START + 4] * (lock == 0))}
    if lock:
        return
    later = [order for order in account.orders if str(MARKET.dates[START + 4])[:10] in order["client_order_id"]]
    assert [order["symbol"] for order in later if order["side"] == "sell"] == [ticker]
    assert {order["symbol"] for order in later if order["side"] == "buy"} and later[0]["side"] == "sell"


def test_a_stop_ends_the_baskets_orders_at_a_broker(tmp_path: Path) -> None:
    """And they are given once it is over."""
    account = FakeAlpaca()
    walk = Walk(tmp_path, AGENT.with_share(0.0), broker=account.venue)
    (walk.folder / STOP).touch()
    walk.step(START)
    assert not account.orders
    (walk.folder / STOP).unlink()
    walk.step(START + 1)
    assert len(account.orders) > 2 and {order["side"] for order in account.orders} == {"buy"}


def test_silence_is_not_flat_and_what_the_venue_holds_wins(tmp_path: Path) -> None:
    account, walk, _ = walked(tmp_path, [])
    day = START + DAYS
    account.faults, before = ["silent"], walk.rows()
    with pytest.raises(NoAnswer):
        walk.step(day)
    assert walk.rows() == before
    account.faults = []
    account.fill(str(MARKET.dates[day]), prices(day, OPEN))
    ticker = next(iter(account.held))
    account.held[ticker] += 7
    walk.step(day)
    book = walk.at(day).book
    assert book.session(day)["positions"][ticker] == account.held[ticker]
    assert re.search(f"holds.*{ticker}", book.journal.stop_reason())
    assert not [order for order in book.orders(day) if order.side == "buy"]


@pytest.mark.parametrize(
    "host", ["api.alpaca.markets", "paper-api.alpaca.markets.evil.com", "paper-api.alpaca.markets"]
)
@pytest.mark.parametrize("scheme", ["http", "ftp", "https"])
def test_keys_are_sent_to_paper_accounts_only_and_encrypted(scheme: str, host: str) -> None:
    if f"{scheme}://{host}" != alpaca.PAPER:
        with pytest.raises(ConfigError, match="paper accounts only, and encrypted"):
            alpaca.AlpacaVenue("key", "secret", f"{scheme}://{host}")


@pytest.mark.parametrize("status", ["400", "403", "404", "409", "422"])
def test_a_rejected_order_is_told_with_its_reason_and_the_others_are_sent(
    tmp_path: Path, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    """403 is how Alpaca says that buying power does not suffice: no word about keys, and no step ends."""
    account, walk, silences = walked(tmp_path, [[], [status], [status, status], ["fine", status]])
    answers = walk.of("answer")
    refused = [one for one in answers if one["status"] == "rejected"]
    assert silences == 0 and 3 <= len(refused) <= 4 and len(answers) > len(refused) + 3
    assert all(one["reason"].startswith(f"{status}: ") and f"no, by {status}" in one["reason"] for one in refused)
    assert len(account.orders) == len(answers) - len(refused) and "no, by" in caplog.text


def test_what_a_person_holds_at_the_venue_is_doubted_once_and_nothing_ends(tmp_path: Path) -> None:
    """Ten shares of a stock that is not in the data, three bought by hand of one that is; later both are gone."""
    account, walk, _ = walked(tmp_path, [])
    day = START + DAYS
    ticker = next(one for one in prices(day - 1, CLOSE) if one not in account.held)
    account.held["AAPL"] = 10.0
    account.by_hand(str(MARKET.dates[day]), ticker, 3.0, prices(day - 1, CLOSE)[ticker])
    stepped(walk, account, day, day + 1)
    doubts = [one["text"] for one in walk.of("doubt")]
    found = re.search(rf"AAPL 10, not 0; {ticker} (\d+), not (\d+)", doubts[0])
    assert len(doubts) == 1 and found and int(found[1]) - int(found[2]) == 3
    assert "AAPL 10" in walk.at(day).journal.stop_reason()
    walk.go()
    del account.held["AAPL"]
    account.by_hand(str(MARKET.dates[day + 2]), ticker, -3.0, prices(day - 1, CLOSE)[ticker])
    stepped(walk, account, day + 2)
    walk.go()
    stepped(walk, account, *range(day + 3, day + 8))
    assert len(walk.of("doubt")) == 2 and walk.of("session")[-1]["positions"] == account.held


def test_a_class_of_shares_keeps_its_name(tmp_path: Path) -> None:
    """BRK-B of the data is BRK.B at Alpaca, also when it comes back."""
    market = dataclasses.replace(MARKET, tickers=[f"BRK-{letter}" for letter in "ABCDE"])
    account = FakeAlpaca()
    walk = Walk(tmp_path, agent_of(1, market=market), market=market, broker=account.venue)
    stepped(walk, account, *range(START, START + 4))
    assert account.held and all(symbol.startswith("BRK.") for symbol in account.held)
    held = walk.of("session")[-1]["positions"]
    assert held == {symbol.replace(".", "-"): shares for symbol, shares in account.held.items()}
    assert not walk.of("doubt")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_dividend_is_paid_to_who_held_at_its_ex_date(tmp_path: Path, is_late: bool) -> None:
    """On the pay date, to agents beside a basket, which would have it otherwise; once, and when it is known."""
    account = FakeAlpaca()
    walk = stepped(Walk(tmp_path, AGENT.with_share(0.5), broker=account.venue), account, *range(START, START + 3))
    day, dates = START + 3, MARKET.dates.astype("M8[D]").astype(str)
    ticker, shares = next(iter(walk.of("session")[-1]["positions"].items()))
    cash, pay, shown = 0.02 * prices(day - 1, CLOSE)[ticker], day + 2, day + (4 if is_late else 0)
    after = multiplied(MARKET, ticker, slice(day), 0.98, slice(4))
    walk.named = [Event(ticker, dates[day], "dividend", cash, dates[pay])]
    paid = dict[int, float]()
    for today in range(day, day + 7):
        account.cash += account.held.get(ticker, 0.0) * cash if today == pay else 0.0
        walk.market = after if today >= shown else MARKET
        book = stepped(walk, account, today).at(today).book
        own = [fill for fill in book.fills(today) if not book.known_orders[fill.id].is_of_basket]
        traded = sum(fill.value if fill.side == "sell" else -fill.value for fill in own)
        paid[today] = book.session(today)["cash"] - book.session(today - 1)["cash"] - traded
    assert {one: sum_ for one, sum_ in paid.items() if abs(sum_) > 1e-6} == {
        max(pay, shown): pytest.approx(shares * cash)
    }
    assert [row[1] for row in walk.rows() if row[0] == "event"] == [f"{ticker} {dates[day]} dividend"]
    assert not walk.of("doubt")


def test_orders_beyond_a_page_are_read(tmp_path: Path) -> None:
    account = FakeAlpaca(1e6)
    for number in range(1203):
        account.post({"client_order_id": f"o{number}", "symbol": "A", "qty": "1", "side": "buy", "type": "market"})
    assert account.venue.open_orders() == {f"o{number}" for number in range(1203)}
    account.fill("2010-01-05", {"A": 1.0})
    assert len(account.venue.fills_since(np.datetime64("2010-01-04"))) == 1203


@pytest.mark.parametrize("status", [400, 404, 422])
@pytest.mark.parametrize("path", ["account", "positions", "orders"])
def test_a_question_that_is_refused_is_one_line(path: str, status: int) -> None:
    account = FakeAlpaca(1.0)
    account.refused = {path: status}
    ask = {"account": "cash", "positions": "positions", "orders": "open_orders"}[path]
    with pytest.raises(DataError, match=f"got {status}: .*no {path}"):
        getattr(account.venue, ask)()


def test_an_answer_without_cash_is_one_line() -> None:
    account = FakeAlpaca()
    with mock.patch.object(account, "get", lambda *_: {"id": "1"}), pytest.raises(DataError, match="none for 'cash'"):
        account.venue.cash()
