"""Signals are what the agent does in the environment, know nothing of later days, and say what they came from."""

import csv
import dataclasses
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.events import events_file
from data.market import Market
from environment.basket import Basket
from main import main
from models.ddpg_agent import DDPGAgent
from tests.small_market import TINY_RULES, environment_of, random_action, small_market
from tests.tiny import tiny_agent
from tests.tiny_run import TINY, frame, unjudged
from tests.tiny_run import run as train
from training.api import open_run, signals
from training.signals.holdings import Holding, read_holdings
from training.signals.signals import Signals, cash_left, make_signals
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError, DataError

CONTEXT = 16
MARKET = small_market(3)
BASKET = Basket.of(MARKET, "", 0)
FRAME = frame(301, 5)
DATES = np.unique(FRAME["date"].to_numpy().astype("datetime64[D]"))
HEADER = "ticker,entry_date,entry_price,target_percent,shares\n"
days = st.integers(CONTEXT, len(MARKET.dates) - TINY_RULES.episode_steps - 1)


@cache
def agent(seed: int, rules: EnvironmentConfig = TINY_RULES) -> DDPGAgent:
    """An agent that finds something to order on many days; every second one is a committee."""
    return tiny_agent(MARKET, rules=rules, target=10.0 + seed % 40, members=1 + seed % 2, seed=seed)


def signals_of(
    market: Market,
    seed: int,
    day: int,
    cash: float | None = None,
    holdings: Sequence[Holding] = (),
    rules: EnvironmentConfig = TINY_RULES,
) -> Signals:
    cash = rules.initial_capital if cash is None else cash
    return make_signals(agent(seed, rules), Basket.of(market, "", 0), market, day, rules, cash, list(holdings))


@settings(max_examples=10)
@given(st.integers(0, 50), days, st.sampled_from(["next_open", "same_close"]), st.sampled_from([1, 2]))
def test_orders_are_those_of_a_backtest(seed: int, day: int, fill: str, orders: int) -> None:
    rules = dataclasses.replace(TINY_RULES, fill=fill, max_new_positions_per_day=orders)
    made = signals_of(MARKET, seed, day, rules=rules)
    chosen, env = agent(seed, rules), environment_of(MARKET, day, rules=rules)
    forecasts, (observation, info) = chosen.forecasts(MARKET), env.reset()
    env.step(chosen.act(observation, forecasts, info["day_index"]))
    # An order on a stock without a bar in the next session lapses in the environment; nobody knows that today.
    trades = {trade["stock"]: trade for trade in env.get_trades()}
    tradable = np.isfinite(MARKET.close[day + (fill == "next_open")])
    ordered = {MARKET.tickers.index(order.ticker): order for order in made.orders}
    assert {stock for stock in ordered if tradable[stock]} == set(trades)
    for stock, trade in trades.items():
        order = ordered[stock]
        if len(trades) == len(ordered):
            assert order.value == pytest.approx(trade["value"], rel=1e-5)
        else:  # what lapses leaves its cash to the others
            assert order.value <= trade["value"] * (1 + 1e-5)
        target_percent = 100 * (trade["target_price"] / trade["entry_price"] - 1)
        assert order.target_percent == pytest.approx(target_percent, rel=1e-4)
        assert order.target_price == pytest.approx(order.close * (1 + order.target_percent / 100), rel=1e-6)
        assert order.close == MARKET.close[day, stock]
        gain = float(forecasts.score[0, day, stock])
        assert order.expected_percent == pytest.approx(gain - 100 * rules.cost_rate, abs=1e-4)
        last_day = trade["entry_day"] + rules.longest_holding - 1
        assert order.latest_exit == str(MARKET.dates[last_day])


@settings(max_examples=6)
@given(st.integers(0, 50), days)
def test_later_days_are_not_seen(seed: int, day: int) -> None:
    spoilt = MARKET.data_array.copy()
    spoilt[day + 1 :] = np.random.default_rng(seed).uniform(1, 1000, spoilt[day + 1 :].shape)
    assert signals_of(dataclasses.replace(MARKET, data_array=spoilt), seed, day) == signals_of(MARKET, seed, day)


def test_at_the_end_of_the_data_later_dates_are_estimates() -> None:
    last = len(MARKET.dates) - 1
    made = next(made for seed in range(50) if (made := signals_of(MARKET, seed, last)).orders)
    assert made.date == str(MARKET.dates[last])
    assert np.busday_count(MARKET.dates[last], np.datetime64(made.orders[0].latest_exit)) == TINY_RULES.longest_holding
    assert made.next_session > made.date


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_a_position_is_told_to_be_closed_when_the_environment_stops_it(fill: str) -> None:
    rules = dataclasses.replace(TINY_RULES, fill=fill, stop_percent=2.0, max_new_positions_per_day=3)
    rng, env = np.random.default_rng(0), environment_of(MARKET, CONTEXT, rules=rules)
    env.reset()
    for _ in range(rules.episode_steps):
        env.step(random_action(rng, len(MARKET.tickers)))
    stops = 0
    for trade in env.get_trades():
        stock, entry, leave = trade["stock"], trade["entry_day"], trade["exit_day"]
        bars = MARKET.data_array[entry : leave + 1, stock]
        one = Holding(MARKET.tickers[stock], stock, entry, trade["entry_price"], 50.0, trade["shares"], bars)
        stopped = one.stop_day(rules)
        assert (stopped == leave) if trade["reason"].startswith("stop") else stopped in (None, leave)
        if stopped is not None:
            (position,) = signals_of(MARKET, 1, leave, holdings=[one], rules=rules).positions
            assert position["status"] == f"stop reached on {MARKET.dates[leave]}, to be closed"
            assert position["stop_price"] == pytest.approx(0.98 * trade["entry_price"])
        stops += trade["reason"].startswith("stop")
    assert stops > 5


def test_orders_are_cut_to_the_cash() -> None:
    day = next(day for day in range(40, 60) if signals_of(MARKET, 1, day).orders)
    (order,) = signals_of(MARKET, 1, day, 1000.0).orders
    assert 0 < order.value * TINY_RULES.purchase_factor <= 1000 + 1e-6
    assert not signals_of(MARKET, 1, day, 0.0).orders
    with pytest.raises(ConfigError, match="positions that cost at most the capital"):
        held = [Holding("T00", 0, 20, 10.0, 20.0, 1000.0, MARKET.data_array[20:31, 0])]
        cash_left(held, dataclasses.replace(TINY_RULES, initial_capital=1000.0))


def test_a_position_that_is_due_is_still_held_at_the_close() -> None:
    """Its stock is not ordered again, however much is expected of it."""
    free = [(day, seed, signals_of(MARKET, seed, day)) for day, seed in itertools.product(range(40, 60, 7), range(3))]
    ordering = [(day, seed, made) for day, seed, made in free if made.orders]
    assert len(ordering) > 3
    for day, seed, made in ordering:
        held = bought(MARKET.tickers.index(made.orders[0].ticker), day - TINY_RULES.longest_holding, day)
        again = signals_of(MARKET, seed, day, holdings=[held])
        assert held.ticker not in {order.ticker for order in again.orders}


def bought(stock: int, entry_day: int, day: int, target_percent: float = 50.0, shares: float = 100.0) -> Holding:
    price = float(MARKET.close[entry_day, stock])
    bars = MARKET.data_array[entry_day : day + 1, stock]
    return Holding(MARKET.tickers[stock], stock, entry_day, price, target_percent, shares, bars)


def test_the_status_of_a_position_says_when_it_is_sold() -> None:
    """By hand, under rules of five sessions held and two without a bar, of an agent that keeps it and one that sells.

    One without a bar on the day of the decision would be kept.
    """
    sells = agent(0)
    gain = sells.forecasts(MARKET).score[0]
    stock, day = next(
        (stock, day)
        for stock, day in itertools.product(range(5), range(40, 60))
        if np.isfinite(MARKET.data_array[day - 6 : day + 1, stock]).all() and gain[day, stock] < -1
    )
    due = "to be closed at the next close"
    keeps = dataclasses.replace(agent(0), hurdles=torch.tensor([-1e6]))
    for age, expected in enumerate([*(f"open, {left} sessions left" for left in (4, 3, 2)), *[due] * 3]):
        held = bought(stock, day - age, day, target_percent=1e4)
        silent = dataclasses.replace(held, bars=held.bars.copy())
        silent.bars[-2:] = np.nan
        reached = dataclasses.replace(held, target_percent=1e-4 - 100)
        for chosen, kept in ((keeps, True), (sells, False)):
            parts = chosen, Basket.of(MARKET, "", 0), MARKET, day, TINY_RULES, 1e5
            made = [make_signals(*parts, [one]).positions[0]["status"] for one in (held, silent, reached)]
            plain = [expected, due if age else expected] if kept else 2 * ["to be sold at the next open"]
            assert made == [*plain, f"target reached on {MARKET.dates[day - age]}"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, its data file, and the same file with one more day."""
    path = tmp_path_factory.mktemp("runs")
    (path / "tiny.toml").write_text(TINY)
    FRAME.to_parquet(path / "more.parquet")
    FRAME.head(300 * 5).to_parquet(path / "data.parquet")
    with unjudged():
        assert train(path / "tiny.toml", "--run", "one", "--data", str(path / "data.parquet")) == 0
    return path


def command(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    path = folder / "out.json"
    code = main(["signals", "--runs-dir", str(folder / "runs"), "--threads", "1", "--json", str(path), *flags])
    return code, {} if code else json.loads(path.read_text())


def test_a_file_longer_by_one_day_gives_signals_for_that_day(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, before = command(folder)
    shown = capsys.readouterr().out
    code, after = command(folder, "--data", str(folder / "more.parquet"))
    assert code == 0 and shown.splitlines()[0] == before["evidence"]
    assert (before["date"], after["date"]) == (str(DATES[-2]), str(DATES[-1]))
    _, again = command(folder, "--data", str(folder / "more.parquet"), "--date", str(DATES[-2]))
    # Of the orders only what the calendar says differs: the day added is no estimate any more.
    for order in (*again["orders"], *before["orders"]):
        del order["latest_exit"]
    assert again["orders"] == before["orders"]
    assert again["next_session"] == str(DATES[-1])
    assert f"decided at the close of {DATES[-2]}" in shown and ("latest exit" in shown or "no order" in shown)
    capsys.readouterr()
    assert command(folder, "--date", "2010-01-03")[0] == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("ERROR ")]
    assert len(errors) == 1 and "expected a session from" in errors[0]


@pytest.mark.parametrize(("bars", "is_told"), [(1, True), (2, True), (3, False)])
def test_a_newest_day_with_few_bars_is_told_and_not_acted_on(
    folder: Path, capsys: pytest.CaptureFixture[str], bars: int, is_told: bool
) -> None:
    last, data = str(DATES[-1]), folder / "few.parquet"
    FRAME.head(300 * 5 + bars).to_parquet(data)
    run = open_run(folder / "runs")
    short = dataclasses.replace(run, market=dataclasses.replace(run.market, data_array=run.market.data_array.copy()))
    short.market.data_array[-1, bars:] = np.nan
    capsys.readouterr()
    if is_told:
        assert command(folder, "--data", str(data))[0] == 2
        words = f"expected some 5 bars on {last} as before, got {bars} of 5 tickers; .* --date {DATES[-2]} for the last"
        assert re.search(words, capsys.readouterr().err)
        with pytest.raises(DataError, match=f"got {bars} of 5 tickers"):
            signals(short)
        assert command(folder, "--data", str(data), "--date", last)[1]["date"] == last
    else:
        assert command(folder, "--data", str(data))[1]["date"] == last and signals(short).date == str(DATES[-2])


def test_the_command_writes_orders_of_both_parts_to_both_files_and_leaves_the_others_as_they_are(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DDPGAgent.from_state
    monkeypatch.setattr(DDPGAgent, "from_state", classmethod(lambda _, *parts: real(*parts).with_share(0.5)))
    held = (0, 299, 100), (1, 297, 10.75), (2, 299, 0.5)
    closes = FRAME["close"].to_numpy().reshape(301, 5).round(3)
    rows = [f"T{stock},{DATES[day]},{closes[day, stock]},50,{shares}" for stock, day, shares in held]
    (folder / "held.csv").write_text(HEADER + "\n".join(rows) + "\n")
    ib, alpaca, flags = folder / "basket.csv", folder / "orders.json", ("--positions", str(folder / "held.csv"))
    before = command(folder, *flags)
    capsys.readouterr()
    code, made = command(folder, *flags, "--ib", str(ib), "--alpaca", str(alpaca))
    assert (code, made) == before and code == 0
    assert made["cash"] == pytest.approx(made["capital"] - 1.001 * sum(n * closes[day, own] for own, day, n in held))
    assert not {order["ticker"] for order in made["orders"]} & {"T0", "T1", "T2"}
    with ib.open(newline="") as file:
        basket = list(csv.DictReader(file))
    requests, sales = json.loads(alpaca.read_text()), made["sales"]
    assert [row["Quantity"] for row in basket] == [one["qty"] for one in requests]
    assert [row["BasketTag"] for row in basket] == [one["client_order_id"] for one in requests]
    assert {"T0", "T1"} <= {*sales} and {one["time_in_force"] for one in requests} == {"opg"}
    net = Counter({"T0": -100, "T1": -10})  # one order for each stock: the sales of agents and what is bought
    net.update({order["ticker"]: int(order["value"] / order["close"]) for order in made["orders"]})
    net.update({order["ticker"]: int(order["shares"]) for order in made["basket"]["orders"]})
    signs = {"buy": 1, "sell": -1}
    assert [(one["symbol"], signs[one["side"]] * int(one["qty"])) for one in requests] == [*sorted(net.items())]
    shown, warned = capsys.readouterr()
    assert 0.49 < made["basket"]["value"] / made["capital"] < 0.5
    assert f"basket: 5 stocks, {made['basket']['value']:,.0f}" in shown and "open positions" in shown
    assert (f"to be sold at the next open: {', '.join(sales)}" in shown) == bool(sales)
    assert "nothing is sent" in shown and "less than a share, and not in the files for brokers: T2" in warned


@pytest.mark.parametrize("is_named", [True, False])
def test_a_position_of_before_a_split_is_moved(
    folder: Path, capsys: pytest.CaptureFixture[str], is_named: bool
) -> None:
    """By the event that is named, or else by the ratio to prices that the run knew; the account is worth the same."""
    data, prices, closes = folder / f"split-{is_named}.parquet", ["open", "high", "low", "close"], FRAME["close"]
    split, is_past = FRAME.copy(), (FRAME["ticker"] == "T3") & (FRAME["date"] < FRAME["date"].unique()[300])
    split.loc[is_past, prices] *= 0.25
    split.to_parquet(data)
    bought, last = float(closes[297 * 5 + 3]), float(closes[300 * 5 + 3])
    if is_named:
        events_file(data).write_text(f"ticker,date,split,dividend\nT3,{DATES[300]},4,\n")
    (folder / "held.csv").write_text(f"{HEADER}T3,{DATES[297]},{bought:.4f},20,20\n")
    code, made = command(folder, "--data", str(data), "--positions", str(folder / "held.csv"))
    event = f"split 4:1 of {DATES[300]}" if is_named else "split that no file names"
    line = f"T3: {event} applied to the position: 20 shares at {bought:.2f} are 80 at {bought / 4:.4g}"
    assert code == 0 and f"{line}\n" in capsys.readouterr().out and line in made["notes"]
    assert made["cash"] == pytest.approx(made["capital"] - 20 * bought * 1.001, abs=0.01)
    assert made["equity"] == pytest.approx(made["cash"] + 80 * last, abs=0.01)
    assert made["positions"][0]["shares"] == 80
    assert made["positions"][0]["target_price"] == pytest.approx(1.2 * bought / 4, abs=1e-3)


def test_a_day_before_all_that_was_learned_from_is_refused() -> None:
    first = MARKET.splits.train.first
    assert signals_of(MARKET, 0, first).date == str(MARKET.dates[first])
    with pytest.raises(DataError, match=str(MARKET.dates[first])):
        signals_of(MARKET, 0, first - 1)


def test_a_locked_account_gets_no_orders_until_it_is_released() -> None:
    rules, capital = dataclasses.replace(TINY_RULES, drawdown_lock=10.0), TINY_RULES.initial_capital
    day = next(day for day in range(40, 60) if signals_of(MARKET, 1, day).orders)
    for cash, peak, is_locked in ((0.95 * capital, 0.0, False), (0.9 * capital, 0.0, True), (capital, 1.2e9, True)):
        made = make_signals(agent(1, rules), BASKET, MARKET, day, rules, cash, [], peak)
        free = signals_of(MARKET, 1, day, cash)
        assert (made.is_locked, made.orders) == (is_locked, [] if is_locked else free.orders)
        assert free.orders and not free.is_locked
    made = make_signals(agent(1, rules).with_share(0.5), BASKET, MARKET, day, rules, 0.8 * capital, [])
    assert made.is_locked and made.orders == [] and made.basket is not None
    assert (made.basket.orders, made.basket.stocks, made.basket.value) == ([], 0, 0.0)


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_rest_of_the_capital_buys_the_basket_at_once(share: float) -> None:
    """In equal parts, costs included; the agents' orders are those of an account of their capital."""
    rules, day = dataclasses.replace(TINY_RULES, exposure=0.5), 45
    capital, exposed = rules.initial_capital, 0.5 * rules.initial_capital
    made = make_signals(agent(1, rules).with_share(share), BASKET, MARKET, day, rules, capital, [])
    assert made.basket is not None
    tradable = int(np.isfinite(MARKET.close[day]).sum())
    assert made.basket.stocks == tradable > 3
    each = (1 - share) * exposed / rules.purchase_factor / tradable
    assert [order.value for order in made.basket.orders] == pytest.approx([each] * tradable)
    whole = dataclasses.replace(rules, initial_capital=share * exposed or 1.0, exposure=1.0)
    alone = make_signals(agent(1, rules), BASKET, MARKET, day, whole, share * exposed, [])
    assert alone.basket is None and bool(alone.orders) == (share > 0)
    assert [order.value for order in made.orders] == pytest.approx([order.value for order in alone.orders])


def test_a_row_without_a_target_is_of_the_basket(tmp_path: Path) -> None:
    """A stock may be in both; a basket's stock need not be one that agents buy."""
    of_basket, of_agents = "T00,2010-02-01,119,,5\n", "T00,2010-02-01,119,20,5\n"

    def read(rows: str, columns: Sequence[int] = range(len(MARKET.tickers))) -> list[bool]:
        path = tmp_path / "held.csv"
        path.write_text(HEADER + rows)
        return [one.is_of_basket for one in read_holdings(path, MARKET, 60, columns)]

    assert read(of_basket + of_agents) == [True, False]
    with pytest.raises(DataError, match=r"line 4 of .*a second time"):
        read(of_basket + of_agents + of_basket)
    with pytest.raises(DataError, match="which the basket cannot buy"):
        read(of_basket, [1])
