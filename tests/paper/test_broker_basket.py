"""Agents and basket in one account at a broker: ledger, venue and page agree, whatever happens to a stock or order."""

from pathlib import Path

import numpy as np
import pytest

from data.features.nine import CLOSE, PRICES
from tests.paper.cases import MARKET, START, Walk, keeper, multiplied
from tests.paper.fake_alpaca import FakeAlpaca, stepped
from training.paper.backtest import backtest
from training.paper.known import units
from training.paper.report import write_report
from utils.charts import number

pytest.importorskip("alpaca.trading.client", reason="requirements-alpaca.txt is not installed")
AGENT, EVENT, DAYS = keeper().with_share(0.4), START + 4, 7


class Broker:
    """A venue, and an account at it that steps session by session."""

    def __init__(self, folder: Path) -> None:
        self.account = FakeAlpaca()
        self.walk = Walk(folder, AGENT, broker=self.account.venue)

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

    def said(self, day: int) -> dict[str, float]:
        row = self.walk.at(day).book.session(day)
        return {name: row[name] for name in ("whole", "equity", "basket")}

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
    said = other.walk.at(EVENT - 1).book.session(EVENT - 1)
    ordered = (order for order in other.account.orders if order["status"] == "new" and order["type"] != "limit")
    both = {*said["positions"]} & {*said["basket_positions"]} - {order["symbol"] for order in ordered}
    closes = MARKET.data_array[EVENT, :, CLOSE]
    ticker = next(one for one in sorted(both) if closes[MARKET.tickers.index(one)] > 0)
    other.readjust(ticker, ratio, EVENT)
    for day in range(EVENT, EVENT + 3):
        for one in (plain, other):
            one.step(day)
            one.check(day)
        if day == EVENT:
            parts = ("whole",) if ratio == 0.97 else ("whole", "equity", "basket")
            for part in parts:
                assert other.said(day)[part] == pytest.approx(plain.said(day)[part], rel=1e-5), part
    events = [one["kind"] for one in other.walk.of("event")]
    assert events == ["dividend" if ratio == 0.97 else "split"]


def test_a_split_that_the_data_tell_late_is_doubted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the shares before the past is adjusted are a doubt; what is adjusted later is none."""
    monkeypatch.setattr("training.paper.account.doubts", lambda *_: ())  # which asks about such a move
    broker = Broker(tmp_path)
    for day in range(START, EVENT):
        broker.step(day)
    ticker = max(broker.walk.at(EVENT - 1).book.session(EVENT - 1)["basket_positions"])
    broker.readjust(ticker, 0.5, EVENT, since=EVENT)
    broker.step(EVENT)
    assert f"the venue holds {ticker}" in broker.walk.at(EVENT).journal.stop_reason()
    broker.walk.go()
    broker.read(ticker, 0.5)
    broker.step(EVENT + 1)
    assert len(broker.walk.of("doubt")) == len(broker.walk.of("event")) == 1


@pytest.mark.parametrize("fault", ["rejected", "partial"])
def test_an_order_of_the_basket_that_is_not_filled_in_full(tmp_path: Path, fault: str) -> None:
    """It holds less, and the rest is its cash."""
    broker = Broker(tmp_path)
    if fault == "rejected":
        broker.account.faults = ["fine", "fine", "403", "fine", "403"]
    else:
        broker.account.most = {"T00": 2.0, "T02": 1.0}
    for day in range(START, START + DAYS):
        broker.step(day)
        broker.check(day)
    of_basket = [order for order in broker.account.orders if "-basket-" in order["client_order_id"]]
    held = broker.walk.of("session")[-1]["basket_positions"]
    refused = [one for one in broker.walk.of("answer") if one["status"] == "rejected"]
    assert held == {one["symbol"]: float(one["filled_qty"]) for one in of_basket}
    assert (len(refused) > 0) == (fault == "rejected") and (fault == "rejected" or held["T00"] == 2.0)
