"""Signals are what the agent does in its account, know nothing of later days, and say what they came from."""

import csv
import dataclasses
import json
import re
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
from data.features.nine import CLOSE
from data.market import Market
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from main import main
from models.ddpg_agent import DDPGAgent
from tests.small_market import TINY_RULES, small_market
from tests.tiny import tiny_agent
from tests.tiny_run import TINY, frame, unjudged
from tests.tiny_run import run as train
from training.api import open_run, signals
from training.rollout import follow
from training.signals.holdings import Holding
from training.signals.signals import Signals, make_signals
from utils.errors import DataError

CONTEXT, CAPITAL = 16, TINY_RULES.initial_capital
MARKET = small_market(3)
FRAME = frame(301, 5)
DATES = np.unique(FRAME["date"].to_numpy().astype("datetime64[D]"))
days = st.integers(CONTEXT, len(MARKET.dates) - 2)


@cache
def agent(seed: int, shrink: float = 1.0) -> DDPGAgent:
    """Every second one is a committee."""
    return tiny_agent(MARKET, members=1 + seed % 2, seed=seed).shrunk(shrink)


def signals_of(
    seed: int, day: int, holdings: Sequence[Holding] = (), cash: float = CAPITAL, market: Market = MARKET, **how: Any
) -> Signals:
    options = {name: how.pop(name) for name in ("benchmark", "rules") if name in how}
    benchmark, rules = options.get("benchmark", Benchmark.of(market)), options.get("rules", TINY_RULES)
    return make_signals(how.pop("agent", agent(seed)), benchmark, market, day, rules, cash, list(holdings), **how)


@settings(max_examples=8)
@given(st.integers(0, 50), days, st.floats(0.0, 1.0))
def test_orders_are_those_of_an_account_that_holds_as_much(seed: int, day: int, invested: float) -> None:
    """Of whole shares, next to a benchmark that holds equal parts of what has a bar."""
    close = MARKET.close[day].astype(np.float64)
    has_bar = np.isfinite(close)
    value = np.random.default_rng(seed).dirichlet(np.ones(len(close))) * has_bar * invested * CAPITAL
    shares = np.floor(np.nan_to_num(value / close))
    held = [Holding(MARKET.tickers[one], one, shares[one]) for one in np.flatnonzero(shares).tolist()]
    cash = CAPITAL - float(shares @ np.nan_to_num(close))
    made = signals_of(seed, day, held, cash, least=0.0)
    portfolio = Portfolio.on(MARKET, TINY_RULES)
    portfolio.begin(torch.tensor([day]), steps=1)
    portfolio.hold(torch.from_numpy(shares)[None], torch.tensor([cash], dtype=torch.float64))
    equal = has_bar / has_bar.sum()
    np.testing.assert_allclose(portfolio.held[0], equal, atol=1e-9)
    np.testing.assert_array_equal(portfolio.held, portfolio.wanted)
    lacking = portfolio.orders(follow(agent(seed), agent(seed).forecasts(MARKET))(portfolio))[0].numpy()
    sizes = np.array([made.by_ticker.get(ticker, 0) for ticker in MARKET.tickers])
    assert np.abs(sizes - lacking).max() < 1 + 1e-6 * CAPITAL / np.nanmin(close)
    assert made.equity == pytest.approx(CAPITAL) and made.waiting == ((lacking != 0) & (sizes == 0)).sum()
    bought = np.maximum(sizes, 0) @ np.nan_to_num(close) * (1 + TINY_RULES.cost_rate)
    sold = np.maximum(-sizes, 0) @ np.nan_to_num(close) * (1 - TINY_RULES.cost_rate)
    assert bought <= cash + sold + 1e-6


@settings(max_examples=5)
@given(st.integers(0, 50), days)
def test_later_days_are_not_seen(seed: int, day: int) -> None:
    spoilt = MARKET.data_array.copy()
    spoilt[day + 1 :] = np.random.default_rng(seed).uniform(1, 1000, spoilt[day + 1 :].shape)
    assert signals_of(seed, day, market=dataclasses.replace(MARKET, data_array=spoilt)) == signals_of(seed, day)


def test_orders_tell_what_moved_their_forecasts_and_what_is_too_small_waits() -> None:
    day, last = 60, len(MARKET.dates) - 1
    made = signals_of(1, day)
    gains = agent(1).forecasts(MARKET).score[0, day]
    for order in made.orders:
        column = MARKET.tickers.index(order.ticker)
        assert order.expected_percent == pytest.approx(float(gains[column]), abs=1e-5) and order.moved_by
        assert order.value == order.shares * order.close and order.close == MARKET.close[day, column]
        assert order.target_percent == pytest.approx(100 * order.value / made.equity, abs=0.05)
    assert all(order.moved_by is None for order in signals_of(1, day, agent=agent(1, 0.0)).orders)
    values = sorted(order.value for order in made.orders)
    few = signals_of(1, day, least=1.01 * values[0])  # what is lacking is cut to whole shares
    assert len(few.orders) == len(values) - 1 and few.waiting == made.waiting + 1
    at_end = signals_of(1, last)
    assert at_end.date == str(MARKET.dates[last]) and at_end.next_session > at_end.date


def test_without_forecasts_the_benchmark_is_bought_and_then_held() -> None:
    day, close = 60, MARKET.close[60].astype(np.float64)
    parts = Benchmark.of(MARKET, "T00=3,T02=1")
    for benchmark, expected in ((Benchmark.of(MARKET), None), (parts, {"T00": 0.75, "T02": 0.25})):
        made = signals_of(0, day, agent=agent(0, 0.0), benchmark=benchmark)
        equal = {
            one: 1 / np.isfinite(close).sum() for one, price in zip(MARKET.tickers, close, strict=True) if price > 0
        }
        worth = {order.ticker: order.value / CAPITAL for order in made.orders}
        assert worth == pytest.approx(expected or equal, abs=2e-3)
        held = [Holding(one.ticker, MARKET.tickers.index(one.ticker), one.shares) for one in made.orders]
        cash = CAPITAL - sum(order.value for order in made.orders)
        assert signals_of(0, day, held, cash, agent=agent(0, 0.0), benchmark=benchmark).orders == []


def test_what_may_not_be_bought_is_sold_unless_the_benchmark_holds_it() -> None:
    market = small_market(3, investable=(0, 2, 3))
    own, day = tiny_agent(market, seed=3).shrunk(0.0), 60
    held = [Holding("T04", 4, 1000.0)]
    worth = 1000.0 * float(market.data_array[day, 4, CLOSE])
    for weights, is_sold in (("", True), ("T04=1", False)):
        benchmark = Benchmark.of(market, weights)
        made = signals_of(0, day, held, 10.0, market, agent=own, benchmark=benchmark)
        assert made.equity == pytest.approx(worth + 10.0)
        assert made.by_ticker.get("T04", 0) == (-1000 if is_sold else 0)
        assert made.positions[0]["target_percent"] == pytest.approx(0.0 if is_sold else 100.0, abs=0.1)


def test_a_locked_account_buys_nothing_until_it_is_released() -> None:
    rules, day = dataclasses.replace(TINY_RULES, drawdown_lock=10.0), 60
    for cash, peak, is_locked in (
        (0.95 * CAPITAL, CAPITAL, False),
        (0.9 * CAPITAL, CAPITAL, True),
        (CAPITAL, 0.0, False),
    ):
        made = signals_of(1, day, cash=cash, rules=rules, peak=peak)
        assert (made.is_locked, bool(made.orders)) == (is_locked, not is_locked)
    held = [Holding("T04", 4, 1e6)]  # more than any weight that an agent gives
    assert {one.side for one in signals_of(1, day, held, 0.0, rules=rules, peak=1e12).orders} == {"sell"}


def test_a_day_before_all_that_was_learned_from_is_refused() -> None:
    first = MARKET.splits.train.first
    assert signals_of(0, first).date == str(MARKET.dates[first])
    with pytest.raises(DataError, match=str(MARKET.dates[first])):
        signals_of(0, first - 1)


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
    assert again["orders"] == before["orders"] and again["next_session"] == str(DATES[-1])
    assert f"decided at the close of {DATES[-2]}" in shown and "target percent" in shown
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


def test_the_command_writes_both_files_and_asks_for_the_cash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    closes = FRAME["close"].to_numpy().reshape(301, 5)[299]
    (folder / "held.csv").write_text(
        f"ticker,shares,entry_date,entry_price\nT0,2000,,\nT1,10.75,{DATES[299]},{closes[1]:.4f}\n"
    )
    flags = ("--positions", str(folder / "held.csv"))
    assert command(folder, *flags)[0] == 2 and "expected --cash AMOUNT" in capsys.readouterr().err
    ib, alpaca = folder / "basket.csv", folder / "orders.json"
    _, before = command(folder, *flags, "--cash", "1000")
    code, made = command(folder, *flags, "--cash", "1000", "--ib", str(ib), "--alpaca", str(alpaca))
    assert (code, made) == (0, before)
    assert any("no drawdown lock" in note for note in command(folder, "--peak", "1000000")[1]["notes"])
    assert made["equity"] == pytest.approx(1000 + 2000 * closes[0] + 10.75 * closes[1], rel=1e-6)
    first, second = made["positions"]
    assert (first["unrealised_percent"], second["unrealised_percent"]) == (None, pytest.approx(0.0, abs=1e-3))
    with ib.open(newline="") as file:
        rows = list(csv.DictReader(file))
    requests = json.loads(alpaca.read_text())
    for one, row, order in zip(requests, rows, made["orders"], strict=True):
        assert (one["qty"], one["client_order_id"]) == (row["Quantity"], row["BasketTag"]) and one["side"] == order[
            "side"
        ]
        assert (one["symbol"], int(one["qty"]), one["time_in_force"]) == (order["ticker"], order["shares"], "opg")
    assert requests[0]["side"] == "sell" and len(requests) > 2
    shown = capsys.readouterr().out
    assert "nothing is sent" in shown and "holdings" in shown


def test_a_position_of_before_a_split_is_moved(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the event that is named, and the account is worth the same; one that nobody names is asked for."""
    data, prices, closes = folder / "split.parquet", ["open", "high", "low", "close"], FRAME["close"]
    split, is_past = FRAME.copy(), (FRAME["ticker"] == "T3") & (FRAME["date"] < FRAME["date"].unique()[300])
    split.loc[is_past, prices] *= 0.25
    split.to_parquet(data)
    bought, last = float(closes[297 * 5 + 3]), float(closes[300 * 5 + 3])
    held = folder / "held.csv"
    held.write_text(f"ticker,shares,entry_date,entry_price\nT3,20,{DATES[297]},{bought:.4f}\n")
    asked = ("--data", str(data), "--positions", str(held), "--cash", "500")
    assert command(folder, *asked)[0] == 2
    assert "after a split give its price and shares as they are since then" in capsys.readouterr().err
    events_file(data).write_text(f"ticker,date,split,dividend\nT3,{DATES[300]},4,\n")
    code, made = command(folder, *asked)
    event = f"split 4:1 of {DATES[300]}"
    line = f"T3: {event} applied to the position: 20 shares at {bought:.2f} are 80 at {bought / 4:.4g}"
    assert code == 0 and f"{line}\n" in capsys.readouterr().out and line in made["notes"]
    assert made["equity"] == pytest.approx(500 + 80 * last, abs=0.01)
    assert made["positions"][0]["shares"] == 80
    assert made["positions"][0]["unrealised_percent"] == pytest.approx(100 * (last / (bought / 4) - 1), abs=1e-2)
