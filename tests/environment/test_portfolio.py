"""The batched accounts against the oracle, trade by trade, and orders by plain arithmetic."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.ledger import Bars
from environment.portfolio import Portfolio
from environment.trading_env import trade_ledger
from tests.environment.oracle import Result
from tests.market_cases import MarketCase, market_cases, random_orders
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.spaces import rank_stocks

FLOATS = ("entry_price", "shares", "value", "target_price", "exit_price", "profit", "costs")
DISCRETE = ("stock", "order_day", "entry_day", "exit_day", "reason")


def bars_of(data: np.ndarray, volume: np.ndarray | None = None) -> Bars:
    """Bars of a (days, stocks, 4) panel of open, high, low, close, and their (days, stocks) volume."""
    open_, high, low, close = (torch.from_numpy(data[..., column].copy()) for column in range(4))
    return Bars.from_prices(open_, high, close, None if volume is None else torch.from_numpy(volume), low)


def play(portfolio: Portfolio, orders: np.ndarray, starts: list[int], steps: int, trading_steps: int) -> list[Any]:
    """Play (steps, lanes, stocks, 2) orders; the cash at each close."""
    portfolio.reset(torch.tensor(starts), steps=steps, trading_steps=trading_steps)
    cash = [portfolio.cash.tolist()]
    for step in range(steps):
        portfolio.step(torch.from_numpy(orders[step]))
        cash.append(portfolio.cash.tolist())
    return cash


def assert_same(portfolio: Portfolio, lane: int, cash: list[Any], expected: Result) -> None:
    steps, capital = portfolio.step_index, portfolio.rules.initial_capital
    close = {"rel": 1e-9, "abs": 1e-9 * capital}
    trades = trade_ledger(portfolio, lane)
    wanted = [dataclasses.asdict(trade) for trade in expected.trades]
    assert [{k: t[k] for k in DISCRETE} for t in trades] == [{k: t[k] for k in DISCRETE} for t in wanted]
    for trade, other in zip(trades, wanted, strict=True):
        for name in FLOATS:
            assert trade[name] == pytest.approx(other[name], **close), name
    assert [row[lane] for row in cash] == pytest.approx(expected.cash, **close)
    assert portfolio.equity_curve[: steps + 1, lane].tolist() == pytest.approx(expected.equity, **close)
    assert portfolio.rewards[:steps, lane].tolist() == pytest.approx(expected.rewards, rel=1e-9, abs=1e-7)
    summary = portfolio.summary()
    assert int(summary.trades[lane]) == len(expected.trades)
    for name in ("wins", "losses", "days_with_positions", "days_without_positions"):
        assert int(getattr(summary, name)[lane]) == getattr(expected, name), name
    assert float(summary.fitness[lane]) == pytest.approx(expected.fitness, rel=1e-9, abs=1e-7)
    assert float(summary.costs[lane]) == pytest.approx(expected.total_costs, **close)


@settings(max_examples=80, deadline=None)
@given(market_cases(), st.booleans())
def test_agrees_with_the_oracle(case: MarketCase, has_fixed_shapes: bool) -> None:
    """Also by the work of a GPU, whose shapes are the same every day."""
    steps = case.end - case.start
    other = random_orders(np.random.default_rng(steps), steps, case.data.shape[1], busy=0.5)
    portfolio = Portfolio(bars_of(case.data, case.volume), case.rules)
    portfolio.has_fixed_shapes = has_fixed_shapes
    lanes = np.stack([case.orders, other], axis=1)
    cash = play(portfolio, lanes, [case.start] * 2, steps, case.trading_end - case.start)
    assert_same(portfolio, 0, cash, case.expected)
    assert_same(portfolio, 1, cash, dataclasses.replace(case, orders=other).expected)


@settings(max_examples=20, deadline=None)
@given(market_cases(), st.booleans())
def test_a_bound_beyond_the_window_takes_no_more_rows_than_the_window_has(
    case: MarketCase, has_fixed_shapes: bool
) -> None:
    """What is held to the end by rules of any length is the same, also after longer and shorter windows."""
    steps, trading = case.end - case.start, case.trading_end - case.start
    endless = dataclasses.replace(case.rules, max_holding_days=10**9, max_days_without_bar=10**9)
    expected = dataclasses.replace(case, rules=endless).expected
    portfolio = Portfolio(bars_of(case.data, case.volume), endless)
    portfolio.has_fixed_shapes = has_fixed_shapes
    for length in (max(1, steps - 2), steps, max(1, steps - 1), steps):
        cash = play(portfolio, case.orders[:length, None], [case.start], length, min(length, trading))
    assert portfolio.ledger().stock.shape == (steps * portfolio.orders_per_day, 1)
    assert portfolio._money.shape[1] < 2 * steps * portfolio.orders_per_day
    assert_same(portfolio, 0, cash, expected)


def test_a_trade_is_credited_to_the_step_that_ordered_it() -> None:
    """Bought on day 1 at 100, sold at its target of 110 on day 3, without costs: 10 % of one stake, on step 0."""
    prices = torch.tensor([[100.0], [100.0], [100.0], [111.0], [111.0], [111.0]])
    portfolio = Portfolio(Bars.from_prices(prices, prices, prices), EnvironmentConfig(cost_bps=0, slippage_bps=0))
    order = torch.tensor([[[1.0, 10.0]]])
    portfolio.reset(torch.tensor([0]), steps=5, trading_steps=1)
    for _ in range(5):
        portfolio.step(order)
    # The open of day 3 is beyond the target and fills there: 11 % of a stake of 1 %.
    assert portfolio.entry_credited_rewards()[:, 0].tolist() == pytest.approx([0.11, 0, 0, 0, 0])
    assert portfolio.rewards[:5, 0].tolist() == pytest.approx([0, 0, 0.11, 0, 0])


def test_what_an_account_cannot_trade_is_refused() -> None:
    prices = torch.full((30, 2), 100.0)
    bars = Bars.from_prices(prices, prices, prices)
    with pytest.raises(ConfigError, match="expected bars with volume for a volume cap of 5%, got none"):
        Portfolio(bars, EnvironmentConfig(volume_cap=5.0))
    with pytest.raises(ValueError, match="bars with lows for a stop of 5%"):
        Portfolio(bars, EnvironmentConfig(stop_percent=5.0))
    with pytest.raises(ValueError, match=r"windows within days 0\.\.29"):
        Portfolio(bars, EnvironmentConfig()).reset(torch.tensor([5]), steps=25, trading_steps=20)


@settings(max_examples=100)
@given(st.integers(1, 90), st.integers(1, 4), st.integers(0, 1000))
def test_ties_go_to_the_lower_stock_however_many_are_ordered(stocks: int, count: int, seed: int) -> None:
    score = torch.randint(4, (3, stocks), generator=torch.Generator().manual_seed(seed)).float()
    found, chosen = rank_stocks(score, count)
    for row, best, order in zip(score.tolist(), found.tolist(), chosen.tolist(), strict=True):
        assert order == sorted(range(stocks), key=lambda stock: (-row[stock], stock))[:count]
        assert best == [row[stock] for stock in order]
