"""Files for brokers: the right orders in the right form, never more than the cash, and the same ids when made again."""

import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.small_market import TINY_RULES
from training.commands.signals import signal_lines
from training.signals.broker_orders import BrokerOrder, alpaca_requests, broker_orders, ib_basket, netted
from training.signals.holdings import Holding
from training.signals.signals import Order, Signals
from utils.errors import DataError

LAST = TINY_RULES.longest_holding


def purchase(ticker: str, value: float, close: float) -> Order:
    return Order(ticker, 1.0, value, 0.5, close, 20.0, 1.2 * close, "2020-02-01")


def held(ticker: str, sessions: int, price: float, target_percent: float, shares: float) -> Holding:
    bars = np.full((sessions, 9), price, np.float32)
    return Holding(ticker, 0, 0, price, target_percent, shares, bars)


def made(
    orders: list[Order],
    holdings: list[Holding],
    *,
    run: str = "one",
    stop_percent: float = 0.0,
    sales: Sequence[str] = (),
) -> list[BrokerOrder]:
    purchases = {order.ticker: order.value / order.close for order in orders}
    rules = dataclasses.replace(TINY_RULES, stop_percent=stop_percent)
    return broker_orders(run, "2020-01-02", purchases, holdings, rules, sales)


def request(ticker: str, side: str, shares: int, form: str, until: str, **prices: object) -> dict[str, object]:
    """What Alpaca is asked, of a run named one."""
    plain = {"symbol": ticker, "qty": str(shares), "side": side, "type": form, "time_in_force": until}
    return {**plain, "client_order_id": f"one-2020-01-02-{ticker}-{side}", **prices}


HELD = [held("AAA", 2, 10.0, 12.345, 40.9), held("BRK.B", LAST - 1, 300.0, 20.0, 7)]
BOUGHT = [purchase("CCC", 10_000.0, 33.0), purchase("DDD", 50.0, 60.0)]
CLASSES = [purchase(ticker, 1000.0, 10.0) for ticker in ("BRK.B", "BF-A", "BRK B", "RY.TO", "A")]


def test_a_basket_by_hand() -> None:
    head, *rows = list(csv.reader(io.StringIO(ib_basket(made(BOUGHT, HELD)))))
    assert ",".join(head) == "Action,Quantity,Symbol,SecType,Exchange,Currency,TimeInForce,OrderType,LmtPrice,BasketTag"
    assert [",".join(row) for row in rows] == [
        "SELL,40,AAA,STK,SMART,USD,DAY,LMT,11.24,one-2020-01-02-AAA-sell",
        "SELL,7,BRK B,STK,SMART,USD,DAY,MOC,,one-2020-01-02-BRK.B-sell",
        "BUY,303,CCC,STK,SMART,USD,OPG,MKT,,one-2020-01-02-CCC-buy",
    ]


def test_requests_by_hand() -> None:
    assert alpaca_requests(made(BOUGHT, HELD)) == [
        request("AAA", "sell", 40, "limit", "day", limit_price="11.24"),
        request("BRK.B", "sell", 7, "market", "cls"),
        request("CCC", "buy", 303, "market", "opg"),
    ]


def test_a_stop_and_a_target_of_whole_shares_cancel_each_other() -> None:
    """Of AAA, bought at 10: the target of 11.2345 is rounded up, the stop of 9.178 down; nothing is added elsewhere."""
    orders = made(BOUGHT, HELD, stop_percent=8.22)
    first, *others = alpaca_requests(orders)
    prices = {"take_profit": {"limit_price": "11.24"}, "stop_loss": {"stop_price": "9.17"}}
    assert first == request("AAA", "sell", 40, "limit", "day", order_class="oco", **prices)
    assert others == alpaca_requests(made(BOUGHT, HELD))[1:] and ib_basket(orders) == ib_basket(made(BOUGHT, HELD))


def test_a_sale_that_is_decided_is_at_the_open() -> None:
    """Also of a position that is due; without limit or stop, under the same id. A part of a share is not sold."""
    holdings = [*HELD, held("DDD", 2, 5.0, 20.0, 0.9)]
    orders = made(BOUGHT, holdings, stop_percent=5.0, sales=["BRK.B", "AAA", "DDD"])
    assert ib_basket(orders).splitlines()[1:3] == [
        "SELL,40,AAA,STK,SMART,USD,OPG,MKT,,one-2020-01-02-AAA-sell",
        "SELL,7,BRK B,STK,SMART,USD,OPG,MKT,,one-2020-01-02-BRK.B-sell",
    ]
    sales = [request("AAA", "sell", 40, "market", "opg"), request("BRK.B", "sell", 7, "market", "opg")]
    assert alpaca_requests(orders)[:2] == sales
    assert orders[2:] == made(BOUGHT, holdings, stop_percent=5.0)[2:]


@pytest.mark.parametrize(
    ("orders", "sent"),
    [
        ("sell 10 open, buy 101 open", "buy 91 open"),
        ("sell 101 open, buy 10 open", "sell 91 open"),
        ("sell 10 open, buy 10 open", ""),
        ("buy 10 open, buy 101 open", "buy 111 open"),
        ("sell 10 close, buy 101 open", "buy 91 open"),
        ("sell 10 target, buy 101 open", "buy 101 open"),
        ("sell 10 target, sell 5 open", "sell 10 target, sell 5 open"),
        ("sell 10 target", "sell 10 target"),
    ],
)
def test_of_each_stock_one_order_at_the_open_and_none_against_it(orders: str, sent: str) -> None:
    def read(text: str, ticker: str = "A") -> list[BrokerOrder]:
        words = [one.split() for one in text.split(", ") if one]
        return [BrokerOrder(ticker, side, int(shares), when, f"{side}{shares}") for side, shares, when in words]  # type: ignore[arg-type]

    found = netted([*read("buy 1 open", "B"), *read(orders)])
    assert [one.side for one in found] == sorted((one.side for one in found), reverse=True)
    shown = [f"{one.side} {one.shares} {one.when}" for one in found if one.ticker == "A"]
    assert shown == [*filter(None, sent.split(", "))]
    assert {one.order_id for one in found} <= {one.order_id for one in read(f"buy 1 open, {orders}")}


def test_class_shares_have_a_brokers_spelling() -> None:
    orders = made(CLASSES, [])
    at_ib = [row["Symbol"] for row in csv.DictReader(io.StringIO(ib_basket(orders)))]
    assert at_ib == ["BRK B", "BF A", "BRK B", "RY.TO", "A"]
    assert [one["symbol"] for one in alpaca_requests(orders)] == ["BRK.B", "BF.A", "BRK.B", "RY.TO", "A"]
    assert not any(" " in order.order_id for order in orders)


HOSTILE = ["A\nBUY,9,GME,STK,SMART,USD,OPG,MKT,,x", "A\n", "A\x1b[2J", '=HYPERLINK("a")', "A,B", 'A"', "-A", ""]


@given(st.sampled_from(HOSTILE) | st.text(max_size=12))
def test_a_ticker_puts_nothing_but_itself_into_a_file(ticker: str) -> None:
    """Into a file for brokers only with characters of tickers; on the terminal never as code."""
    order = purchase(ticker, 1000.0, 10.0)
    signals = Signals("2020-01-02", "2020-01-03", 1e6, 1e6, 1e6, [order], [], [], True)
    is_plain = re.fullmatch(r"[A-Za-z0-9.^/ -]+", ticker) is not None and ticker[0] not in "/ -"
    assert not (is_plain and ticker in HOSTILE)
    try:
        orders = made([order], [])
    except DataError as error:
        assert not is_plain and " ".join(repr(ticker).split()) in str(error) and str(error).isprintable()
    else:
        assert is_plain and [len(row) for row in csv.reader(io.StringIO(ib_basket(orders)))] == [10, 10]
        assert len(ib_basket(orders).splitlines()) == 2 and alpaca_requests(orders)[0]["qty"] == "100"
    shown, _ = signal_lines(signals)
    assert shown.replace("\n", "").isprintable() and len(shown.splitlines()) == 4


sizes = st.tuples(st.floats(0.01, 5000), st.floats(1e-3, 1))


@given(st.floats(1, 1e7), st.lists(sizes, max_size=6))
def test_purchases_cost_no_more_than_the_cash(cash: float, stocks: list[tuple[float, float]]) -> None:
    total = sum(share for _, share in stocks)
    values = [cash / (1 + TINY_RULES.cost_rate) * share / total for _, share in stocks]
    bought = [purchase(f"T{i}", value, stocks[i][0]) for i, value in enumerate(values)]
    orders = made(bought, [])
    spent = sum(order.shares * bought[int(order.ticker[1:])].close for order in orders)
    assert spent * (1 + TINY_RULES.cost_rate) <= cash * (1 + 1e-9)
    for order in orders:
        own = bought[int(order.ticker[1:])]
        assert order.shares > 0 and own.value - order.shares * own.close <= own.close * (1 + 1e-9)


@example(11.0, 10.0)  # in floats 11 * (1 + 10 / 100) is above 12.1
@given(st.floats(0.01, 1e5), st.floats(10, 50))
def test_a_limit_is_the_target_rounded_up_to_a_tick(price: float, target_percent: float) -> None:
    one = held("A", 1, price, target_percent, 10)
    (order,) = made([], [one])
    tick = Decimal("0.01") if one.target_price >= 1 else Decimal("0.0001")
    limit = order.limit_price
    assert limit is not None and limit % tick == 0
    assert -1e-8 * one.target_price <= float(limit) - one.target_price <= float(tick) * (1 + 1e-8)


def test_an_id_tells_run_date_ticker_and_side_apart_and_stays() -> None:
    names = ["one", "two", "a b", "a,b", "a" * 200, "a" * 201, "\udcff"]
    ids = [order.order_id for name in names for order in made(BOUGHT, HELD, run=name)]
    assert ids == [order.order_id for name in names for order in made(BOUGHT, HELD, run=name)]
    assert len(set(ids)) == len(ids) == 3 * len(names)
    assert all(len(one) <= 48 and one.isascii() and not set(one) & {" ", ",", '"'} for one in ids)
