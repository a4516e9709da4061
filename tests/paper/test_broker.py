"""What an account at a broker lives through: ledger, venue and page agree, whatever happens to a stock or an order."""

from pathlib import Path

import numpy as np
import pytest

from data.events import Event
from data.features.nine import CLOSE, OPEN, PRICES
from tests.paper.cases import DATES, MARKET, START, keeper, multiplied, price
from tests.paper.fake_alpaca import at_broker, stepped
from tests.small_market import TINY_RULES
from training.paper.backtest import backtest
from training.paper.known import units
from training.paper.report import write_report
from training.paper.venue import NoAnswer
from utils.charts import number

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
AGENT, EVENT = keeper(), START + 4
LIMIT = TINY_RULES.longest_holding + TINY_RULES.max_days_without_bar


class Broker:
    """A venue, and an account at it that steps session by session."""

    def __init__(self, folder: Path) -> None:
        self.account, self.walk = at_broker(folder, AGENT.with_share(0.4))

    def last(self, day: int, feature: int) -> dict[str, float]:
        found = self.walk.market.data_array[: day + 1, :, feature]
        known = ((one, prices[np.isfinite(prices)]) for one, prices in zip(MARKET.tickers, found.T, strict=True))
        return {ticker: float(prices[-1]) for ticker, prices in known if len(prices)}

    def step(self, day: int) -> None:
        """Fill what is due at the open, limits apart, which no price reaches, and step at the close."""
        for order in self.account.orders:
            if order["status"] == "new" and order["type"] == "limit":
                order["status"] = "canceled"
        stepped(self.walk, self.account, day)

    def check(self, day: int) -> None:
        """Both parts are what the venue has and is worth, and the page says so; nothing is doubted or held.

        Limits are in shares and prices of the day.
        """
        assert not [row[2] for row in self.walk.rows() if row[0] in ("doubt", "hold")]
        account = self.walk.at(day)
        factors, said, held = units(account.journal), account.book.session(day), account.book.shares(day)
        now = {ticker: shares / factors.get(ticker, 1.0) for ticker, shares in held.items()}
        assert now == pytest.approx(self.account.held)
        closes = self.last(day, CLOSE)
        worth = self.account.cash + sum(shares * closes[one] for one, shares in self.account.held.items())
        assert said["whole"] == pytest.approx(worth) == pytest.approx(said["equity"] + said["basket"])
        assert number(said["whole"], 2) in write_report(account, backtest(account)).read_text()
        for order in (one for one in self.account.orders if (one["status"], one["type"]) == ("new", "limit")):
            own = said["positions"][order["symbol"]] / factors.get(order["symbol"], 1.0)
            assert float(order["qty"]) == np.floor(own + 1e-6)
            assert 0.8 < float(order["limit_price"]) / closes[order["symbol"]] < 2

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
    """2:1, 3:2, 1:25, and 3 percent, of a stock that both parts hold: what they are worth is as without."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # random prices may look split
    plain, other = Broker(tmp_path / "plain"), Broker(tmp_path / "other")
    for day in range(START, EVENT):
        for one in (plain, other):
            one.step(day)
            one.check(day)
    said = other.walk.of("session")[-1]
    ordered = (order for order in other.account.orders if order["status"] == "new" and order["type"] != "limit")
    both = {*said["positions"]} & {*said["basket_positions"]} - {order["symbol"] for order in ordered}
    ticker = next(one for one in sorted(both) if price(one, EVENT) > 0)
    other.readjust(ticker, ratio, EVENT)
    for day in range(EVENT, EVENT + 3):
        for one in (plain, other):
            one.step(day)
            one.check(day)
        if day == EVENT:
            undisturbed, event = (one.walk.of("session")[-1] for one in (plain, other))
            for part in ("whole",) if ratio == 0.97 else ("whole", "equity", "basket"):
                assert event[part] == pytest.approx(undisturbed[part], rel=1e-5), part
    events = [one["kind"] for one in other.walk.of("event")]
    assert events == ["dividend" if ratio == 0.97 else "split"]


def test_a_split_that_the_data_tell_late_is_doubted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the shares before the past is adjusted are a doubt; what is adjusted later is none."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which asks about such a move
    broker = Broker(tmp_path)
    for day in range(START, EVENT):
        broker.step(day)
    ticker = max(broker.walk.of("session")[-1]["basket_positions"])
    broker.readjust(ticker, 0.5, EVENT, since=EVENT)
    broker.step(EVENT)
    assert f"the venue holds {ticker}" in broker.walk.at(EVENT).journal.stop_reason()
    broker.walk.go()
    broker.read(ticker, 0.5)
    broker.step(EVENT + 1)
    assert len(broker.walk.of("doubt")) == len(broker.walk.of("event")) == 1


def test_orders_of_the_basket_that_are_not_filled_in_full(tmp_path: Path) -> None:
    """Some are rejected, others filled in part: it holds less, and the rest is its cash."""
    broker = Broker(tmp_path)
    broker.account.faults = ["fine", "fine", "403", "fine", "403"]
    broker.account.most = {"T00": 2.0, "T02": 1.0}
    for day in range(START, START + 7):
        broker.step(day)
        broker.check(day)
    of_basket = [order for order in broker.account.orders if "-basket-" in order["client_order_id"]]
    held = broker.walk.of("session")[-1]["basket_positions"]
    assert held == {one["symbol"]: float(one["filled_qty"]) for one in of_basket}
    refused = [one for one in broker.walk.of("answer") if one["status"] == "rejected"]
    assert refused and {"T00": 2.0, "T02": 1.0}.items() & held.items()


def test_a_position_that_is_never_sold_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever refuses its sale is asked again at every close, however long it lasts."""
    account, walk = at_broker(tmp_path, AGENT)
    post = account.post
    monkeypatch.setattr(account, "post", lambda body: post(body) if body["side"] == "buy" else (403, {"message": "no"}))
    stepped(walk, account, START, START + 1)
    first, last = {*account.held}, START + LIMIT + 4
    book = stepped(walk, account, *range(START + 2, last + 1)).at(last).book
    assert first and first <= {position.holding.ticker for position in book.positions(last)} and not walk.of("doubt")
    assert first <= {order.ticker for order in book.intended(last) if order.side == "sell"}


def test_many_orders_without_an_answer_are_asked_about_at_once(tmp_path: Path) -> None:
    account, walk = at_broker(tmp_path, AGENT.with_share(0.4))
    account.faults = ["lost before"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    assert len(list(walk.at(START).book.unanswered())) > 3
    asked = account.asked
    walk.step(START)
    assert account.asked - asked == 2 and not list(walk.at(START).book.unanswered())


def test_a_basket_whose_orders_lapsed_is_bought_on_the_next_evening(tmp_path: Path) -> None:
    account, walk = at_broker(tmp_path, AGENT.with_share(0.0))
    account.faults = ["fine", "lost before"]
    with pytest.raises(NoAnswer):
        walk.step(START)
    stepped(walk, account, START + 1, START + 2)
    days = [order["client_order_id"].split("-basket-")[1][:10] for order in account.orders]
    assert days[0] == DATES[START] and len({*days}) == 2 and days.count(DATES[START + 1]) >= 3
    assert len(account.held) == sum(np.isfinite(MARKET.data_array[START + 1, :, CLOSE]))


@pytest.mark.parametrize("kind", ["split", "dividend"])
def test_a_session_that_is_caught_up_with_has_the_units_of_today(kind: str, tmp_path: Path) -> None:
    """Of a stock with an event on the day after the missed one: nothing is doubted, and the account is as if none was
    missed."""
    curves, day, is_split = list[list[float]](), START + 3, kind == "split"
    past, ratio = (slice(None), 0.5) if is_split else (slice(day + 1), 0.98)
    for is_missed in (False, True):
        account, walk = at_broker(tmp_path / str(is_missed), AGENT, *range(START, day))
        ticker = next(iter(account.held))
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
        curves.append([row["whole"] for row in sessions])
    assert curves[0][-1] == pytest.approx(curves[1][-1])
    # Cash is that of today: a dividend is there a session before.
    assert not is_split or curves[0] == pytest.approx(curves[1])


def test_a_stock_that_a_person_bought_is_not_an_old_position_of_the_agents(tmp_path: Path) -> None:
    """Which had it once; theirs would be due, and sold."""
    account, walk = at_broker(tmp_path, AGENT, START, START + 1)
    ticker = next(iter(account.held))
    day = START + 2
    while ticker in account.held:  # until it is sold at its limit, which any open reaches here
        stepped(walk, account, day)
        day += 1
    walk.append("stop", {"text": "by hand"})
    stepped(walk, account, *range(day, day + LIMIT))
    day += LIMIT - 1
    account.by_hand(DATES[day + 1], ticker, 5.0, price(ticker, day + 1, OPEN))
    stepped(walk, account, day + 1, day + 2, day + 3)
    assert ticker not in {one.holding.ticker for one in walk.at(day + 3).book.positions(day + 3)}
    assert account.held[ticker] == 5.0


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
    walk.step(START, catches_up=True)
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
