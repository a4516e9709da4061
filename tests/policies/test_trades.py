"""Trades of another backtester against accounts that are known: computed by hand, or the ones that they came from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from data.splits import consecutive_windows
from environment.portfolio import Portfolio
from tests.policies.test_judge import evaluate, judged, results
from tests.small_market import TINY_RULES, small_market
from training.api import Trades, load_market
from training.evaluation.baselines import ScoreRule, score_policy
from training.evaluation.play import EvaluationSetup, OwnAccount, account_by
from training.policies.trades import account_of_trades
from training.rollout import step_by

pytestmark = pytest.mark.usefixtures("small_heap")
MARKET = small_market()
TICKERS = [MARKET.tickers[column] for column in MARKET.investable_columns]
WASHED = TICKERS[-1]
"""Ticker that is bought and sold at one close, in one way to write an account."""


def setup_of(*, is_continuing: bool = False, market: Market = MARKET, **changes: Any) -> EvaluationSetup:
    """Three windows that follow one another, or one account over equally many days."""
    rules = replace(TINY_RULES, **{"max_new_positions_per_day": 2, **changes})
    if is_continuing:
        rules = replace(rules, trading_days=3 * TINY_RULES.episode_steps, settlement_days=0)
    starts = [30] if is_continuing else [30 + TINY_RULES.episode_steps * window for window in range(3)]
    return EvaluationSetup(market, Portfolio.on(market, rules, is_continuing=is_continuing), torch.tensor(starts))


def account_of_scores(scores_seed: int, setup: EvaluationSetup, **rule: float) -> OwnAccount:
    """The account of random scores, which decides on sales too."""
    scores = np.random.default_rng(scores_seed).standard_normal((len(MARKET.dates), len(TICKERS))).astype(np.float32)
    policy = score_policy(setup.env, ScoreRule(scores, **rule))
    return account_by(setup, lambda step: step_by(setup.env, policy, step))


def rows_of(own: OwnAccount) -> pd.DataFrame:
    """What another backtester would write of an account: its purchases, and the sales that it decided on."""
    rows = [(trade["order_day"], TICKERS[trade["stock"]], "buy", trade["value"]) for trade in own.trades]
    rows += [
        (trade["exit_day"] - 1, TICKERS[trade["stock"]], "sell", trade["shares"] * trade["exit_price"])
        for trade in own.trades
        if trade["reason"] == "sold"
    ]
    frame = pd.DataFrame(rows, columns=["day", "ticker", "side", "value"])
    return frame.assign(date=MARKET.dates[frame["day"].to_numpy()]).drop(columns="day")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), is_continuing=st.booleans(), stop=st.sampled_from([0.0, 4.0]))
def test_trades_of_an_account_replayed_are_the_account(seed: int, is_continuing: bool, stop: float) -> None:
    setup = setup_of(is_continuing=is_continuing, stop_percent=stop)
    original = account_of_scores(seed, setup, full_score=1.5, keep_above=-0.8)
    assert original.trades
    again = account_of_trades("again", Trades(rows_of(original)), setup)
    np.testing.assert_allclose(again.curves.equity, original.curves.equity, rtol=1e-6)
    assert ends(again) == ends(original)


def ends(own: OwnAccount) -> list[tuple[Any, ...]]:
    """Of each trade, in order of their days and stocks."""
    return sorted((trade["order_day"], trade["stock"], trade["exit_day"], trade["reason"]) for trade in own.trades)


def quiet_market(prices: dict[int, float]) -> Market:
    """A copy of the market in which the first stock trades at 100, or at the given opens and closes by day."""
    data = MARKET.data_array.copy()
    data[:, MARKET.investable_columns[0], :4] = 100.0
    for day, price in prices.items():
        data[day, MARKET.investable_columns[0], :4] = price
    return replace(MARKET, data_array=data)


def trades_of(*rows: tuple[int, str, float], unit: str = "value") -> Trades:
    frame = pd.DataFrame(rows, columns=["day", "side", unit])
    return Trades(frame.assign(ticker=TICKERS[0], date=MARKET.dates[frame["day"].to_numpy()]).drop(columns="day"))


@pytest.mark.parametrize("unit", ["value", "shares"])
def test_an_account_computed_by_hand(unit: str) -> None:
    """Ordered at the close of day 31, bought at 102 on day 32, sold at 107 on day 34: not at the closes before."""
    market = quiet_market({31: 101.0, 32: 102.0, 33: 105.0, 34: 107.0})
    amount = {"value": 200_000.0, "shares": 200_000.0 / 101.0}[unit]
    orders = trades_of((31, "buy", amount), (33, "sell", 1.0), unit=unit)
    own = account_of_trades("own", orders, setup_of(market=market))
    shares, rate = 200_000.0 / 102.0, 0.001
    cash = 1_000_000.0 - 200_000.0 * (1 + rate)
    expected = [1e6, 1e6, cash + 102 * shares, cash + 105 * shares, cash + 107 * shares * (1 - rate)]
    np.testing.assert_allclose(own.curves.equity[0, 0, :5], expected, rtol=1e-7)
    assert (own.curves.equity[0, 0, 4:] == own.curves.equity[0, 0, 4]).all()
    assert [trade["reason"] for trade in own.trades] == ["sold"]


def test_sizes_are_clipped_sales_close_and_nothing_is_short(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    none_to_sell, small, sale = (30, "sell", 5e5), (31, "buy", 1.0), (33, "sell", 1.0)
    large, again, larger_sale = (35, "buy", 9e8), (36, "buy", 1e5), (37, "sell", 9e8)
    orders = trades_of(none_to_sell, small, sale, large, again, larger_sale)
    own = account_of_trades("own", orders, setup_of(market=quiet_market({})))
    assert [trade["value"] for trade in own.trades] == pytest.approx([50_000.0, 500_000.0])
    assert [(trade["entry_day"], trade["exit_day"]) for trade in own.trades] == [(32, 34), (36, 38)]
    assert "2 of 3 purchases" in caplog.text and "2 of 3 sales" in caplog.text
    assert "2 sizes were clipped to 1 to 10 stakes of 50,000" in caplog.text


def test_the_largest_purchases_of_a_day_come_first(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bars = np.isfinite(MARKET.close[31:33]).all(axis=0)
    stocks = np.flatnonzero(bars)[:3]
    assert len(stocks) == 3
    rows = pd.DataFrame({"date": MARKET.dates[31], "ticker": [TICKERS[s] for s in stocks], "value": [6e4, 9e4, 8e4]})
    own = account_of_trades("own", Trades(rows), setup_of())
    assert [trade["stock"] for trade in own.trades] == [stocks[1], stocks[2]]
    assert "2 of 3 purchases" in caplog.text
    assert "of up to 3 purchases a day env.max-new-positions-per-day takes 2" in caplog.text
    every = account_of_trades("own", Trades(rows), setup_of(max_new_positions_per_day=3))
    assert len(every.trades) == 3


def test_one_account_may_be_written_in_many_ways() -> None:
    """Unsorted, in parts, with what is bought and sold at one close; and with negative amounts in place of sides."""
    setup = setup_of()
    rows = rows_of(account_of_scores(0, setup, keep_above=-0.5))
    rows = rows[(rows["date"] != MARKET.dates[40]) | (rows["ticker"] != WASHED)]
    part = rows.assign(value=rows["value"] / 4, date=rows["date"].astype("datetime64[s]") + np.timedelta64(10, "h"))
    wash = rows.iloc[:1].assign(ticker=WASHED, date=MARKET.dates[40], value=7e4)
    parts = [wash.assign(side="SELL "), *[part] * 4, wash.assign(side="buy")]
    signs = np.where(rows["side"] == "sell", -1, 1)
    one = account_of_trades("own", Trades(rows), setup)
    for written in (
        pd.concat(parts).sample(frac=1.0, random_state=1),
        rows.assign(value=rows["value"] * signs).drop(columns="side"),
    ):
        other = account_of_trades("own", Trades(written), setup)
        np.testing.assert_allclose(one.curves.equity, other.curves.equity, rtol=1e-6)
        assert len(one.trades) == len(other.trades) > 5


def test_a_file_of_trades_is_judged(tmp_path: Path, tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    market, path = load_market(settings=tiny).market, tmp_path / "orders.csv"
    first = int(consecutive_windows(market.splits.validation, 16)[0])
    days = market.dates[first : first + 4].astype("datetime64[D]").astype(str).tolist()
    path.write_text(f"date,ticker,side,value\n{days[0]},S000,buy,50000\n{days[2]},S000,sell,50000\n")
    assert evaluate(tmp_path, "--trades", str(path), "--config", str(tiny)) == 0
    shown = capfd.readouterr()
    assert "orders: 1 of 1 purchases" in shown.out and "orders: 1 of" not in shown.err
    folder = judged(tmp_path, "orders")
    trades = pd.read_csv(folder / "trades.csv")[["ticker", "order_date", "entry_date", "exit_date"]]
    assert trades.to_numpy().tolist() == [["S000", *days[:2], days[3]]]
    assert results(folder)["policies"]["orders"]
