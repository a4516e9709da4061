"""What an account at a broker lives through: refusals, silence, missed evenings, deposits, the exchange's hours."""

from datetime import datetime
from pathlib import Path

import numpy as np
import pytest

from data.events import Event
from data.features.nine import PRICES
from tests.paper.cases import MARKET, START, Walk, keeper, multiplied
from tests.paper.fake_alpaca import FakeAlpaca, stepped
from tests.small_market import TINY_RULES
from training.paper.venue import NoAnswer, Order

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
AGENT = keeper()
LIMIT = TINY_RULES.longest_holding + TINY_RULES.max_days_without_bar


def test_a_position_that_is_never_sold_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever refuses its sale is asked again at every close, however long it lasts."""
    account = FakeAlpaca()
    post = account.post
    monkeypatch.setattr(account, "post", lambda body: post(body) if body["side"] == "buy" else (403, {"message": "no"}))
    walk = stepped(Walk(tmp_path, AGENT, broker=account.venue), account, START, START + 1)
    first = sorted(account.held)
    for day in range(START + 2, START + LIMIT + 5):
        stepped(walk, account, day)
    book = walk.at(START + LIMIT + 4).book
    known = {position.holding.ticker: position.holding for position in book.positions(START + LIMIT + 4)}
    assert first and set(first) <= known.keys() and not walk.of("doubt")
    assert {order.ticker for order in book.intended(START + LIMIT + 4) if order.side == "sell"} >= set(first)


def test_many_orders_without_an_answer_are_asked_about_at_once(tmp_path: Path) -> None:
    account = FakeAlpaca()
    walk = Walk(tmp_path, AGENT.with_share(0.4), broker=account.venue)
    account.faults = ["lost before"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    assert len(list(walk.at(START).book.unanswered())) > 3
    asked = account.asked
    walk.step(START)
    assert account.asked - asked == 2 and not list(walk.at(START).book.unanswered())


def test_a_request_too_many_is_sent_again(tmp_path: Path) -> None:
    account = FakeAlpaca()
    account.faults = ["429", "429", "fine", "429"]
    walk = Walk(tmp_path, AGENT, broker=account.venue)
    walk.step(START)
    assert {one["status"] for one in walk.of("answer")} == {"accepted"} and account.orders


def test_a_basket_whose_orders_lapsed_is_bought_on_the_next_evening(tmp_path: Path) -> None:
    account = FakeAlpaca()
    walk = Walk(tmp_path, AGENT.with_share(0.0), broker=account.venue)
    account.faults = ["fine", "lost before"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    stepped(walk, account, START + 1, START + 2)
    days = [order["client_order_id"].split("-basket-")[1][:10] for order in account.orders]
    dates = [str(date)[:10] for date in MARKET.dates]
    assert days[0] == dates[START] and len({*days}) == 2 and days.count(dates[START + 1]) >= 3
    assert len(account.held) == sum(np.isfinite(MARKET.data_array[START + 1, :, 3]))


def test_a_missed_evening_does_not_put_off_the_rebalancing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.signals.basket.REBALANCING_SESSIONS", 4)
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which would ask about such moves
    market, account = multiplied(MARKET, "T02", slice(START + 2, None), 5.0, list(PRICES)), FakeAlpaca()
    walk = Walk(tmp_path, AGENT.with_share(0.0), market=market, broker=account.venue)
    stepped(walk, account, *(day for day in range(START, START + 8) if day != START + 4))
    days = {order["client_order_id"].split("-basket-")[1][:10] for order in account.orders}
    assert days == {str(MARKET.dates[day])[:10] for day in (START, START + 5)}


@pytest.mark.parametrize("kind", ["split", "dividend"])
def test_a_session_that_is_caught_up_with_has_the_units_of_today(kind: str, tmp_path: Path) -> None:
    """Of a stock with an event on the day after the missed one: nothing is doubted, and the account is as if none was
    missed."""
    curves, ratio = list[list[float]](), 0.5 if kind == "split" else 0.98
    for is_missed in (False, True):
        account = FakeAlpaca()
        walk = stepped(Walk(tmp_path / str(is_missed), AGENT, broker=account.venue), account, *range(START, START + 3))
        day, ticker = START + 3, next(iter(account.held))
        for today in (day, day + 1):
            for order in account.orders:
                order["status"] = "canceled" if order["status"] == "new" else order["status"]
            if today > day:
                past = slice(None) if kind == "split" else slice(today)
                walk.market = multiplied(MARKET, ticker, past, ratio, list(PRICES))
                date, close = (
                    str(MARKET.dates[today])[:10],
                    float(MARKET.data_array[day, MARKET.tickers.index(ticker), 3]),
                )
                walk.named = [Event(ticker, date, kind, 2.0 if kind == "split" else 0.02 * close, date)]
                account.held[ticker] *= 2 if kind == "split" else 1
                account.cash += 0 if kind == "split" else account.held[ticker] * 0.02 * close
            if today > day or not is_missed:
                walk.step(today)
        sessions = walk.of("session")
        assert not walk.of("doubt") and len(sessions) == 5
        curves.append([row["whole"] for row in sessions])
    assert curves[0][-1] == pytest.approx(curves[1][-1])
    # Cash is that of today: a dividend is there a session before.
    assert kind == "dividend" or curves[0] == pytest.approx(curves[1])


def test_a_stock_that_a_person_bought_is_not_an_old_position_of_the_agents(tmp_path: Path) -> None:
    """Which had it once; theirs would be due, and sold."""
    account = FakeAlpaca()
    walk = stepped(Walk(tmp_path, AGENT, broker=account.venue), account, START, START + 1)
    ticker = next(iter(account.held))
    day = START + 2
    while ticker in account.held:  # until it is sold at its limit, which any open reaches here
        stepped(walk, account, day)
        day += 1
    with walk.journal() as journal:
        journal.append("stop", str(journal.last.number), {"text": "by hand"})
    stepped(walk, account, *range(day, day + LIMIT))
    day += LIMIT - 1
    price = float(MARKET.data_array[day + 1, MARKET.tickers.index(ticker), 0])
    account.by_hand(str(MARKET.dates[day + 1])[:10], ticker, 5.0, price)
    stepped(walk, account, day + 1, day + 2, day + 3)
    assert ticker not in {one.holding.ticker for one in walk.at(day + 3).book.positions(day + 3)}
    assert account.held[ticker] == 5.0


@pytest.mark.parametrize("missed", [0, 1])
def test_a_trade_by_hand_is_counted_once(tmp_path: Path, missed: int) -> None:
    """Also where it is dated to a session after the one that is taken in: in the evening, or in one that was missed."""
    account = FakeAlpaca()
    walk = stepped(Walk(tmp_path, AGENT, broker=account.venue), account, START, START + 1)
    ticker, day = "T01" if "T01" not in account.held else "T02", START + 2
    later = str(MARKET.dates[day + 1])[:10]
    account.by_hand(later, ticker, 40.0, 100.0)
    for today in range(day + missed, day + 3):
        for order in account.orders:
            order["status"] = "canceled" if order["status"] == "new" else order["status"]
        walk.step(today)
        walk.go()
    assert not [one["text"] for one in walk.of("doubt") if "cash moved" in one["text"]]


def test_orders_of_a_close_that_is_caught_up_with_are_not_sent(tmp_path: Path) -> None:
    account = FakeAlpaca()
    walk = Walk(tmp_path, AGENT, broker=account.venue)
    walk.step(START, catches_up=True)
    assert not account.orders and not walk.of("intent") and len(walk.of("session")) == 1


@pytest.mark.parametrize("cash", [5000.0, -5000.0])
def test_cash_that_moves_without_a_trade_is_doubted(tmp_path: Path, cash: float) -> None:
    account = FakeAlpaca()
    walk = stepped(Walk(tmp_path, AGENT, broker=account.venue), account, START, START + 1)
    account.cash += cash
    stepped(walk, account, START + 2)
    assert f"cash moved by {cash:+,.2f} without a trade" in walk.at(START + 2).journal.stop_reason()
    walk.go()
    stepped(walk, account, START + 3)
    assert len(walk.of("doubt")) == 1


@pytest.mark.parametrize(
    ("form", "hour", "is_sent"),
    [
        *(("opg", (9, 28), False), ("opg", (18, 59), False), ("opg", (19, 0), True), ("opg", (9, 27), True)),
        *(("cls", (15, 50), False), ("cls", (15, 49), True), ("day", (12, 0), True)),
    ],
)
def test_an_order_waits_where_alpaca_would_refuse_it(
    form: str, hour: tuple[int, int], is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal would be final: it stays without an answer, and the next step sends it."""
    monkeypatch.setattr("training.paper.alpaca.new_york", lambda: datetime(2024, 1, 2, *hour))
    account = FakeAlpaca()
    request = {"symbol": "T0", "qty": "1", "side": "buy", "type": "market", "time_in_force": form}
    order = Order("ours", "T0", "buy", request=request | {"client_order_id": "ours"})
    if is_sent:
        assert account.venue.submit(order) == ""
    else:
        with pytest.raises(NoAnswer, match="step again after 19:00"):
            account.venue.submit(order)
    assert bool(account.orders) == is_sent


@pytest.mark.parametrize(
    "change", [{"status": "canceled"}, {"qty": "2"}, {"side": "sell"}, {"symbol": "T1"}, {"status": "new"}]
)
def test_an_id_that_stands_for_another_order_is_a_refusal(change: dict[str, str]) -> None:
    account = FakeAlpaca()
    request = {"symbol": "T0", "qty": "1", "side": "buy", "type": "market", "time_in_force": "opg"}
    order = Order("ours", "T0", "buy", request=request | {"client_order_id": "ours"})
    assert account.venue.submit(order) == ""
    account.orders[-1] |= change
    assert account.venue.submit(order).startswith("422: ") == (change != {"status": "new"})


def test_answers_of_alpaca_that_say_less_than_they_should() -> None:
    account = FakeAlpaca()
    assert account.venue._client._base_url == type(account.venue)("k", "s", f"{account.address}/v2/")._client._base_url
    account.post({"client_order_id": "ours", "symbol": "T0", "side": "buy", "qty": "3", "type": "market"})
    account.orders[-1] |= {"filled_qty": "1", "filled_avg_price": "9", "updated_at": "2024-01-03T15:00:00Z"}
    assert [fill.shares for fill in account.venue.fills_since(np.datetime64("2024-01-02"))] == [1.0]
