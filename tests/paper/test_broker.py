"""What an account at a broker lives through: ledger, venue and page agree, whatever happens to a stock or an order."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.events import Event
from data.features.nine import CLOSE, OPEN, PRICES
from models.ddpg_agent import DDPGAgent
from tests.paper.cases import AGENT, DATES, MARKET, START, Walk, agent_of, multiplied, price
from tests.paper.fake_alpaca import FakeAlpaca, at_broker, stepped
from training.paper.book import NoAnswer
from training.paper.journal import STOP
from training.paper.report import backtest, write_report
from training.paper.sessions import Sessions
from utils.charts import number

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
EVENT = START + 4


class Broker:
    """A venue, and an account at it that steps session by session."""

    def __init__(self, folder: Path, agent: DDPGAgent = AGENT) -> None:
        self.account, self.walk = at_broker(folder, agent)

    def last(self, day: int, feature: int) -> dict[str, float]:
        found = self.walk.market.data_array[: day + 1, :, feature]
        known = ((one, prices[np.isfinite(prices)]) for one, prices in zip(MARKET.tickers, found.T, strict=True))
        return {ticker: float(prices[-1]) for ticker, prices in known if len(prices)}

    def step(self, day: int) -> None:
        """Fill what is due at the open, and step at the close."""
        stepped(self.walk, self.account, day)

    def check(self, day: int) -> None:
        """The account is what the venue has and is worth, and the page says so; nothing is doubted or held, and no sale
        is of more than is held."""
        assert not [row[2] for row in self.walk.rows() if row[0] in ("doubt", "hold")]
        account = self.walk.at(day)
        factors, said = account.journal.units(), account.book.session(day)
        now = {ticker: shares / factors.get(ticker, 1.0) for ticker, shares in said["positions"].items()}
        assert now == pytest.approx(self.account.held) and said["cash"] == self.account.cash
        closes = self.last(day, CLOSE)
        worth = self.account.cash + sum(shares * closes[one] for one, shares in self.account.held.items())
        assert said["equity"] == pytest.approx(worth)
        assert number(said["equity"], 2) in write_report(account, backtest(account)).read_text()
        for order in (one for one in self.account.orders if (one["status"], one["side"]) == ("new", "sell")):
            assert float(order["qty"]) <= self.account.held[order["symbol"]] + 1e-6

    def read(self, ticker: str, ratio: float, since: int = 0) -> None:
        """Multiply a stock's prices in the data from a day on."""
        self.walk.market = multiplied(MARKET, ticker, slice(since, None), ratio, list(PRICES))

    def readjust(self, ticker: str, ratio: float, day: int, since: int = 0) -> None:
        """Multiply a stock's prices; the broker splits what is held, or pays a dividend of less than a tenth."""
        self.read(ticker, ratio, since)
        price, shares = self.last(day, CLOSE)[ticker], self.account.held[ticker]
        if 0.9 < ratio < 1:
            self.account.cash += shares * price * (1 / ratio - 1)
        else:  # a fraction of a share is paid in cash
            whole = np.floor(shares / ratio + 1e-9)
            self.account.cash += (shares / ratio - whole) * price
            self.account.held |= {ticker: whole}
            self.account.held = {one: held for one, held in self.account.held.items() if held}


@pytest.mark.parametrize("ratio", [0.5, 2 / 3, 25.0, 0.97])
def test_splits_and_dividends(tmp_path: Path, ratio: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """2:1, 3:2, 1:25, and 3 percent, of a stock that is held: what the account is worth is as without."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    plain, other = Broker(tmp_path / "plain"), Broker(tmp_path / "other")
    for day in range(START, EVENT):
        for one in (plain, other):
            one.step(day)
            one.check(day)
    ordered = {order["symbol"] for order in other.account.orders if order["status"] == "new"}
    held = {*other.walk.of("session")[-1]["positions"]} - ordered
    ticker = next(one for one in sorted(held) if price(one, EVENT) > 0)
    other.readjust(ticker, ratio, EVENT)
    for day in range(EVENT, EVENT + 3):
        for one in (plain, other):
            one.step(day)
            one.check(day)
        if day == EVENT:
            undisturbed, event = (one.walk.of("session")[-1]["equity"] for one in (plain, other))
            assert event == pytest.approx(undisturbed, rel=1e-5)
    events = [one["kind"] for one in other.walk.of("event")]
    assert events == ["dividend" if ratio == 0.97 else "split"]


def test_a_split_that_the_data_tell_late_is_doubted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the shares before the past is adjusted are a doubt; what is adjusted later is none."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which asks about such a move
    broker = Broker(tmp_path)
    for day in range(START, EVENT):
        broker.step(day)
    held = broker.walk.of("session")[-1]["positions"]
    ticker = next(one for one in held if price(one, EVENT) > 0 and price(one, EVENT + 1) > 0)
    broker.readjust(ticker, 0.5, EVENT, since=EVENT)
    broker.step(EVENT)
    assert f"the venue holds {ticker}" in broker.walk.at(EVENT).journal.stop_reason()
    broker.walk.go()
    broker.read(ticker, 0.5)
    broker.step(EVENT + 1)
    assert len(broker.walk.of("doubt")) == len(broker.walk.of("event")) == 1


def test_orders_that_are_not_filled_in_full_are_given_again(tmp_path: Path) -> None:
    """Some are rejected, others filled in part; what is lacking is ordered at the next close."""
    broker = Broker(tmp_path, AGENT.shrunk(0.0))
    broker.account.faults = ["fine", "403", "403"]
    broker.account.most = {"T00": 2.0}
    for day in range(START, START + 2):
        broker.step(day)
        broker.check(day)
    refused = {row[1] for row in broker.walk.rows() if row[0] == "answer" and row[2]["status"] == "rejected"}
    first, second = (broker.walk.of("intent")[place]["orders"] for place in (0, 1))
    lacking = {one["ticker"] for one in first if one["id"] in refused} | {"T00"}
    assert len(refused) == 2 and lacking <= {one["ticker"] for one in second if one["side"] == "buy"}


def test_a_sale_that_is_refused_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that lasts; nothing is doubted."""
    account, walk = at_broker(tmp_path, agent_of(1))
    post = account.post
    monkeypatch.setattr(account, "post", lambda body: post(body) if body["side"] == "buy" else (403, {"message": "no"}))
    stepped(walk, account, *range(START, START + 12))
    sales = [[one["ticker"] for one in row["orders"] if one["side"] == "sell"] for row in walk.of("intent")]
    assert sum(map(bool, sales)) > 3 and not walk.of("doubt")
    assert not [order for order in account.orders if order["side"] == "sell"]


def test_many_orders_without_an_answer_are_asked_about_at_once(tmp_path: Path) -> None:
    account, walk = at_broker(tmp_path, AGENT)
    account.faults = ["lost before"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    assert len(list(walk.at(START).book.unanswered())) > 3
    asked = account.asked
    walk.step(START)
    assert account.asked - asked == 1 and not list(walk.at(START).book.unanswered())


def cut_off(account: FakeAlpaca, walk: Walk, day: int, **options: Any) -> None:
    """Step to where orders are intended, and the venue never answers."""
    account.faults = ["lost before"]
    with pytest.raises(NoAnswer):
        walk.step(day, **options)


def test_an_order_that_was_not_sent_in_time_lapses_and_is_given_on_the_next_evening(tmp_path: Path) -> None:
    dates = MARKET.dates.astype("datetime64[D]")
    calendar = Sessions.of("XNYS", dates[0], dates[-1])
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0), calendar=calendar)
    cut_off(account, walk, START, now=datetime(2010, 2, 1, 23, tzinfo=UTC))
    walk.step(START, now=datetime(2010, 2, 2, 23, tzinfo=UTC))
    assert {one["status"] for one in walk.of("answer")} == {"lapsed"} and not account.orders
    stepped(walk, account, START + 1, START + 2)
    assert len(account.held) == sum(np.isfinite(MARKET.data_array[START + 1, :, CLOSE]))


@pytest.mark.parametrize(
    ("later", "is_sent"), [("2010-02-02T13", True), ("2010-02-02T23", False), ("2010-02-04T23", False)]
)
def test_without_a_calendar_a_weekday_that_has_opened_is_a_session(tmp_path: Path, later: str, is_sent: bool) -> None:
    """What was decided on Monday evening is sent until Tuesday's opening auction and no later."""
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0))
    cut_off(account, walk, START, now=datetime(2010, 2, 1, 23, tzinfo=UTC))
    walk.step(START, now=datetime.fromisoformat(later).replace(tzinfo=UTC))
    assert {one["status"] for one in walk.of("answer")} == {"accepted" if is_sent else "lapsed"}
    assert bool(account.orders) == is_sent


def test_an_order_that_arrived_and_expired_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With or without an answer; the next close orders what is lacking."""
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0))
    account.faults = ["fine", "lost"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    account.fill(DATES[START + 1], {})
    walk.step(START + 1)
    answers = [one["status"] for one in walk.of("answer")]
    assert answers[:2] == ["accepted", "rejected"] and "rejected expired" in caplog.text
    (row,) = walk.of("unfilled")
    first, second = (walk.of("intent")[place]["orders"] for place in (0, 1))
    assert f"buy {first[0]['ticker']}, 0 of {first[0]['shares']:g} executed" in row["text"]
    assert {one["ticker"] for one in second} == {one["ticker"] for one in first} and not walk.of("doubt")


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_fills_far_from_the_prices_of_the_session_are_doubted(tmp_path: Path, factor: float) -> None:
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0), START)
    asked = [order["symbol"] for order in account.orders]
    account.fill(DATES[START + 1], {one: price(one, START + 1, OPEN) * factor for one in asked})
    walk.step(START + 1)
    doubts = walk.of("doubt")
    assert len([one for one in doubts if "in a session at" in one["text"]]) == len(asked)
    assert walk.of("session")[-1]["result"] <= 0
    assert {one["side"] for one in walk.of("intent")[-1]["orders"]} <= {"sell"}
    walk.go()
    stepped(walk, account, START + 2, START + 3)
    assert walk.of("doubt") == doubts


@pytest.mark.parametrize("gain", [6.0, 0.2])
def test_what_is_traded_by_hand_and_closed_on_one_day_is_doubted_and_shows_no_skill(
    tmp_path: Path, gain: float
) -> None:
    """A purchase and a sale of as many shares leave positions as they were; a loss counts."""
    account, walk = at_broker(tmp_path, AGENT, START, START + 1, START + 2)
    ticker, day = walk.one_held(), START + 3
    paid = price(ticker, day) * 0.5
    account.by_hand(DATES[day], ticker, 30.0, paid)
    account.by_hand(DATES[day], ticker, -30.0, paid * gain)
    stepped(walk, account, day)
    (doubt,) = walk.of("doubt")
    assert f"nobody here ordered: buy {ticker} 30 at {paid:g}; sell {ticker} 30 at" in doubt["text"]
    earned = walk.of("session")[-1]["equity"] / walk.of("session")[-2]["equity"] - 1
    assert walk.of("session")[-1]["result"] == 0 if gain > 1 else walk.of("session")[-1]["result"] < 0
    assert (earned > 0.05) == (gain > 1)


def test_an_account_that_is_worth_nothing_is_doubted(tmp_path: Path) -> None:
    """Whatever its cash does then."""
    account, walk = at_broker(tmp_path, AGENT, START, START + 1)
    account.cash -= 100_000.0
    stepped(walk, account, START + 2)
    assert any("the account is worth -" in one["text"] for one in walk.of("doubt"))
    account.cash += 5_000.0
    stepped(walk, account, START + 3)
    assert any("cash moved by +5,000.00" in one["text"] for one in walk.of("doubt"))


def test_unsent_purchases_are_cancelled_under_a_stop_and_sales_are_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Killed between intent and venue, and stopped before the next step: nothing is bought of it, ever."""
    statuses = set[tuple[str, str]]()
    for seed, last in ((1, START), (1, START + 2), (2, START + 5)):
        account, walk = at_broker(tmp_path / f"{seed} {last}", agent_of(seed), *range(START, last))
        account.fill(DATES[last], {})
        cut_off(account, walk, last)
        (walk.folder / STOP).touch()
        walk.step(last)
        answers = {row[1]: row[2]["status"] for row in walk.rows() if row[0] == "answer"}
        statuses |= {(order["side"], answers[order["id"]]) for order in walk.of("intent")[-1]["orders"]}
    assert statuses == {("sell", "accepted"), ("buy", "cancelled")} and "is cancelled" in caplog.text


@pytest.mark.parametrize("kind", ["split", "dividend"])
def test_a_session_that_is_caught_up_with_has_the_units_of_today(kind: str, tmp_path: Path) -> None:
    """Of a stock with an event on the day after the missed one: nothing is doubted, and the account is as if none was
    missed."""
    curves, day, is_split = list[list[float]](), START + 3, kind == "split"
    past, ratio = (slice(None), 0.5) if is_split else (slice(day + 1), 0.98)
    for is_missed in (False, True):
        account, walk = at_broker(tmp_path / str(is_missed), AGENT, *range(START, day))
        ticker = next(one for one in account.held if price(one, day) > 0 and price(one, day + 1) > 0)
        account.fill(DATES[day], {})  # no order is filled
        if not is_missed:
            walk.step(day)
        account.fill(DATES[day + 1], {})
        size = 2.0 if is_split else 0.02 * price(ticker, day)
        account.cash += 0.0 if is_split else account.held[ticker] * size
        account.held[ticker] *= 2 if is_split else 1
        walk.market = multiplied(MARKET, ticker, past, ratio, list(PRICES))
        walk.named = [Event(ticker, DATES[day + 1], kind, size, DATES[day + 1])]
        walk.step(day + 1)
        sessions = walk.of("session")
        assert not walk.of("doubt") and len(sessions) == 5
        curves.append([row["equity"] for row in sessions])
    assert curves[0][-1] == pytest.approx(curves[1][-1])
    # Cash is that of today: a dividend is there a session before.
    assert not is_split or curves[0] == pytest.approx(curves[1])


@pytest.mark.parametrize("is_dated", [True, False])
@pytest.mark.parametrize("bought", [START, START + 1])
def test_a_large_dividend_that_is_there_before_its_session_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bought: int, is_dated: bool
) -> None:
    """Its sessions are taken in by one step or one by one, after it was paid; the shares may be of these sessions."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which may ask about a price that did not fall
    account, walk = at_broker(tmp_path, AGENT.shrunk(0.0), *range(START, bought + 1))
    day, newest = START + 3, START + 6
    opens = zip(MARKET.tickers, MARKET.data_array[bought + 1, :, OPEN].tolist(), strict=True)
    account.fill(DATES[bought + 1], {ticker: price for ticker, price in opens if price > 0})
    ticker = next(one for one in account.held if price(one, day - 1) > 0)
    cash = 0.2 * price(ticker, day - 1)
    account.cash += account.held[ticker] * cash
    walk.market = multiplied(MARKET, ticker, slice(day), 0.8, list(PRICES))
    walk.named = [Event(ticker, DATES[day], "dividend", cash, DATES[day + 2])]
    for today in range(bought + 1, newest) if is_dated else ():
        walk.step(today, until=DATES[newest])
    walk.step(newest)
    stepped(walk, account, newest + 1)
    assert not walk.of("doubt") and walk.of("session")[-1]["cash"] == account.cash
    assert len(walk.of("session")) == newest + 2 - START


@pytest.mark.parametrize("missed", [0, 1])
def test_a_trade_by_hand_is_counted_once(tmp_path: Path, missed: int) -> None:
    """Also where it is dated to a session after the one that is taken in: in the evening, or in one that was missed."""
    account, walk = at_broker(tmp_path, AGENT, START, START + 1)
    ticker, day = "T01" if "T01" not in account.held else "T02", START + 2
    account.by_hand(DATES[day + 1], ticker, 40.0, 100.0)
    for today in range(day + missed, day + 3):
        account.fill(DATES[today], {})  # no order is filled
        walk.step(today)
        walk.go()
    assert not [one["text"] for one in walk.of("doubt") if "cash moved" in one["text"]]


def test_orders_of_a_close_that_is_caught_up_with_are_not_sent(tmp_path: Path) -> None:
    account, walk = at_broker(tmp_path, AGENT)
    walk.step(START, until=DATES[START + 1])
    assert not account.orders and not walk.of("intent") and len(walk.of("session")) == 1


@pytest.mark.parametrize("cash", [5000.0, -5000.0])
def test_cash_that_moves_without_a_trade_is_doubted(tmp_path: Path, cash: float) -> None:
    account, walk = at_broker(tmp_path, AGENT, START, START + 1)
    account.cash += cash
    stepped(walk, account, START + 2)
    assert f"cash moved by {cash:+,.2f} without a trade" in walk.at(START + 2).journal.stop_reason()
    walk.go()
    stepped(walk, account, START + 3)
    assert len(walk.of("doubt")) == 1
