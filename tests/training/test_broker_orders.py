"""Files for brokers: the right orders in the right form, never more than the cash, and the same ids when made again."""

import csv
import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.commands.signals import signal_lines
from training.signals.broker_orders import Order as BrokerOrder
from training.signals.broker_orders import alpaca_request, broker_orders, ib_basket, whole_shares
from training.signals.signals import Order, Signals
from utils.errors import DataError

RATE = 0.001
WANTED = {"CCC": 303, "AAA": -40, "BRK.B": -7, "DDD": 0}


def made(wanted: dict[str, int], run: str = "one") -> list[BrokerOrder]:
    return broker_orders(run, "2020-01-02", wanted)


def request(ticker: str, side: str, shares: int) -> dict[str, object]:
    """What Alpaca is asked, of a run named one."""
    plain = {"symbol": ticker, "qty": str(shares), "side": side, "type": "market", "time_in_force": "opg"}
    return {**plain, "client_order_id": f"one-2020-01-02-{ticker}-{side}"}


def test_a_basket_by_hand() -> None:
    """Sales first, nothing of no share."""
    head, *rows = list(csv.reader(io.StringIO(ib_basket(made(WANTED)))))
    assert ",".join(head) == "Action,Quantity,Symbol,SecType,Exchange,Currency,TimeInForce,OrderType,LmtPrice,BasketTag"
    assert [",".join(row) for row in rows] == [
        "SELL,40,AAA,STK,SMART,USD,OPG,MKT,,one-2020-01-02-AAA-sell",
        "SELL,7,BRK B,STK,SMART,USD,OPG,MKT,,one-2020-01-02-BRK.B-sell",
        "BUY,303,CCC,STK,SMART,USD,OPG,MKT,,one-2020-01-02-CCC-buy",
    ]


def test_requests_by_hand() -> None:
    assert [*map(alpaca_request, made(WANTED))] == [
        request("AAA", "sell", 40),
        request("BRK.B", "sell", 7),
        request("CCC", "buy", 303),
    ]


def test_class_shares_have_a_brokers_spelling() -> None:
    orders = made(dict.fromkeys(("BRK.B", "BF-A", "BRK B", "RY.TO", "A"), 10))
    at_ib = [row["Symbol"] for row in csv.DictReader(io.StringIO(ib_basket(orders)))]
    assert at_ib == ["BRK B", "BF A", "BRK B", "RY.TO", "A"]
    assert [one["symbol"] for one in map(alpaca_request, orders)] == ["BRK.B", "BF.A", "BRK.B", "RY.TO", "A"]
    assert not any(" " in order.id for order in orders)


HOSTILE = ["A\nBUY,9,GME,STK,SMART,USD,OPG,MKT,,x", "A\n", "A\x1b[2J", '=HYPERLINK("a")', "A,B", 'A"', "-A", ""]


@given(st.sampled_from(HOSTILE) | st.text(max_size=12))
def test_a_ticker_puts_nothing_but_itself_into_a_file(ticker: str) -> None:
    """Into a file for brokers only with characters of tickers; on the terminal never as code."""
    order = Order(ticker, "buy", 100, 1000.0, 10.0, 0.0, 1.0, 0.5)
    signals = Signals("2020-01-02", "2020-01-03", 1e6, 1e6, 1.0, [order], 0, [])
    is_plain = re.fullmatch(r"[A-Za-z0-9.^/ -]+", ticker) is not None and ticker[0] not in "/ -"
    assert not (is_plain and ticker in HOSTILE)
    try:
        orders = made(signals.by_ticker)
    except DataError as error:
        assert not is_plain and " ".join(repr(ticker).split()) in str(error) and str(error).isprintable()
    else:
        assert is_plain and [len(row) for row in csv.reader(io.StringIO(ib_basket(orders)))] == [10, 10]
        assert len(ib_basket(orders).splitlines()) == 2 and alpaca_request(orders[0])["qty"] == "100"
    shown, _ = signal_lines(signals)
    assert shown.replace("\n", "").isprintable() and len(shown.splitlines()) == 4


stocks = st.tuples(st.floats(0.01, 5000), st.floats(-1, 1), st.floats(0, 300))


@given(st.floats(0, 1e6), st.lists(stocks, min_size=1, max_size=8), st.floats(0, 500))
def test_whole_shares_cost_no_more_than_the_cash(
    cash: float, drawn: list[tuple[float, float, float]], least: float
) -> None:
    """By an account that is asked for more than it has; what is sold is held, and nothing else is traded in vain."""
    price, part, held = np.array(drawn).T
    lacking = np.where(part < 0, np.maximum(part * 300, -held), part * cash / price)
    sizes = whole_shares(lacking, price, held, cash, RATE, least)
    bought, sold = np.maximum(sizes, 0), np.maximum(-sizes, 0)
    assert bought @ price * (1 + RATE) <= (cash + sold @ price * (1 - RATE)) * (1 + 1e-9)
    assert (sold <= held + 1e-6).all() and ((sizes == 0) | (np.sign(sizes) == np.sign(lacking))).all()
    assert (sizes[np.abs(lacking) * price < least] == 0).all()
    assert (np.abs(sizes) < np.abs(lacking) + 1).all()
    assert (((bought + 1) * price)[bought > 0] >= least * (1 - 1e-9)).all()  # also of those that the cash cuts


@pytest.mark.parametrize(
    ("lacking", "cash", "expected"),
    [
        ([2.4, 2.7, -1.5], 10_000.0, [2, 3, -2]),  # what is left of 5.1 goes to the larger remainder
        ([2.4, 2.4, 2.4], 10_000.0, [3, 2, 2]),
        ([-10.2, 0.2, 0.0], 0.0, [-10, 0, 0]),  # a part of a share is not sold
        ([-5.0, 20.0, 0.0], 500.0, [-5, 9, 0]),  # sales pay for purchases, costs included
        ([20.0, 0.0, 0.0], 0.0, [0, 0, 0]),
    ],
)
def test_whole_shares_by_hand(lacking: list[float], cash: float, expected: list[int]) -> None:
    held = np.array([10.2, 0.0, 5.0])
    assert whole_shares(np.array(lacking), np.full(3, 100.0), held, cash, RATE, 1.0).tolist() == expected


def test_an_id_tells_run_date_ticker_and_side_apart_and_stays() -> None:
    names = ["one", "two", "a b", "a,b", "a" * 200, "a" * 201, "\udcff"]
    ids = [order.id for name in names for order in made(WANTED, run=name)]
    assert ids == [order.id for name in names for order in made(WANTED, run=name)]
    assert len(set(ids)) == len(ids) == 3 * len(names)
    assert all(len(one) <= 48 and one.isascii() and not set(one) & {" ", ",", '"'} for one in ids)
