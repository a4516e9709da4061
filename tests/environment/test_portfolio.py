"""Portfolios: accounts and their benchmark side by side, of any columns, that go on to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from environment.account import Account
from environment.benchmark import Benchmark, benchmark_weights
from environment.portfolio import Portfolio, play
from tests.market_cases import random_panel, random_targets
from tests.tiny import INVESTABLE, random_world, tiny_rules, world_of
from utils.errors import ConfigError

STARTS = torch.tensor([8, 11, 20])


def by_day(portfolio: Portfolio) -> Tensor:
    """Return target weights that differ by day and lane; as wide as the investable stocks."""
    rng = np.random.default_rng(0)
    table = torch.from_numpy(random_targets(rng, 200, 4)).double()
    return table[portfolio.account.day + 40 * (torch.arange(portfolio.account.lanes) // len(STARTS))]


def test_copies_share_the_benchmark_of_their_window_and_lanes_are_what_each_is_alone() -> None:
    portfolio = random_world(3, 60).env
    portfolio.begin(STARTS, steps=20, copies=2)
    while not portfolio.account.is_done:
        portfolio.trade(by_day(portfolio))
    assert portfolio.account.lanes == 6 and portfolio.benchmark.lanes == 3
    assert portfolio.held.shape == portfolio.wanted.shape == (6, 4)
    assert torch.equal(portfolio.held[:3], portfolio.held[3:])
    alone = Account(portfolio.quotes, portfolio.rules)
    for window, start in enumerate(STARTS):
        alone.reset(start[None], steps=20)
        while not alone.is_done:
            alone.step(benchmark_weights(alone, torch.ones(4)))
        assert torch.equal(alone.equity_curve[:, 0], portfolio.benchmark.equity_curve[:, window])
        other = portfolio.under()
        play(other, by_day, start[None], steps=20)
        assert torch.equal(other.account.equity_curve[:, 0], portfolio.account.equity_curve[:, window])


def test_whoever_wants_what_the_benchmark_wants_is_the_benchmark() -> None:
    """To the bit, through gaps and ends of stocks."""
    portfolio = random_world(5, 60).env
    play(portfolio, lambda one: one.wanted, STARTS, steps=20)
    assert torch.equal(portfolio.account.equity_curve, portfolio.benchmark.equity_curve)


def test_a_benchmark_may_hold_what_nobody_may_buy() -> None:
    """It comes after the investable columns; targets that are narrower hold nothing of it."""
    market = random_world(2, 60).market
    benchmark = Benchmark.of(market, "S1=3, S2")
    assert benchmark.columns.tolist() == [*INVESTABLE, 1] and benchmark.parts.tolist() == [0.0, 1.0, 0.0, 0.0, 3.0]
    portfolio = Portfolio.on(market, tiny_rules(cost_bps=0.0, slippage_bps=0.0), benchmark=benchmark)
    play(portfolio, lambda one: torch.full((1, 4), 0.25).double(), STARTS[:1], steps=1)
    assert not portfolio.account.shares[:, 4:].any() and portfolio.account.shares[:, :4].any()
    bought = (portfolio.benchmark.shares * portfolio.quotes.close[STARTS[:1]])[0]
    np.testing.assert_allclose(bought / bought.sum(), [0.0, 0.25, 0.0, 0.0, 0.75])
    np.testing.assert_array_equal(Benchmark.of(market).columns, INVESTABLE)
    for wrong in ("SPY=1", "S1=-1", "S1=x", "S1,S1", "S1=inf"):
        with pytest.raises(ConfigError, match=r"--benchmark-weights as S0=1, .* got '"):
            Benchmark.of(market, wrong)


def test_of_many_stocks_a_sample_is_held_whatever_their_order() -> None:
    market = world_of(random_panel(np.random.default_rng(0), 12, 420), rules=tiny_rules(trading_days=1)).market
    order = np.random.default_rng(1).permutation(420)
    tickers = [market.tickers[place] for place in order]
    moved = replace(market, data_array=market.data_array[:, order], tickers=tickers)

    def sample(of: Benchmark, names: list[str]) -> list[str]:
        return sorted(names[column] for column in of.columns[of.parts.numpy() > 0])

    found = sample(Benchmark.of(market, seed=5), market.tickers)
    assert 100 <= len(set(found)) == len(found) < 300
    assert found == sample(Benchmark.of(moved, seed=5), tickers) != sample(Benchmark.of(market, seed=6), market.tickers)
