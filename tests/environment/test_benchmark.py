"""The benchmark's account: equal parts, bought once, trimmed a year later, and held through what happens to stocks."""

import numpy as np
import torch

from environment.account import Account
from environment.benchmark import BAND, REBALANCING_SESSIONS, benchmark_weights
from environment.quotes import Quotes
from models.band import Band, target_weights
from tests.environment.test_account import FREE, RULES, panel, tensors


def test_equal_parts_are_bought_once_and_trimmed_a_year_later() -> None:
    """The first of four stocks grows tenfold in the year; it is cut to 1.5 times its part, which the others share."""
    days = REBALANCING_SESSIONS + 3
    close = np.full((days, 4), 10.0)
    close[5:, 0] = 100.0
    account = Account(Quotes.of(**tensors(open_=close, close=close)), FREE)
    account.reset(torch.tensor([0]), steps=days - 1)
    parts, weights = torch.ones(4), []
    for _ in range(days - 1):
        account.step(benchmark_weights(account, parts))
        weights.append(account.weights[0])
    np.testing.assert_allclose(weights[0], [0.25] * 4)
    np.testing.assert_allclose(weights[10], [10 / 13, 1 / 13, 1 / 13, 1 / 13])
    np.testing.assert_allclose(weights[-1], [BAND / 4, *[(1 - BAND / 4) / 3] * 3])
    assert account.summary().traded.item() == 1e6 * (1 + 2 * 3.25 * (10 / 13 - BAND / 4))


def test_a_late_stock_joins_at_the_next_rebalancing_and_cash_of_a_lost_one_waits_for_it() -> None:
    close = np.full((20, 3), 10.0)
    close[:4, 1], close[6:, 2] = np.nan, np.nan
    account = Account(Quotes.of(**tensors(open_=close, close=close)), FREE)
    account.reset(torch.tensor([0]), steps=19)
    while not account.is_done:
        account.step(benchmark_weights(account, torch.ones(3), rebalanced=(0, 15)))
    curve = account.equity_curve[:, 0]
    torch.testing.assert_close(curve, torch.full_like(curve, 1e6))
    torch.testing.assert_close(account.weights, torch.tensor([[0.5, 0.5, 0.0]]).double())


def test_agents_without_forecasts_are_the_benchmark_to_the_bit() -> None:
    """In one account each, over gaps, ends of stocks and rebalancings, from the first fill on."""
    rng = np.random.default_rng(4)
    open_, close = panel(rng, 120, 6, 0.3)
    quotes, start = Quotes.of(**tensors(open_=open_, close=close)), torch.tensor([0, 7, 30])
    agents, benchmark, parts = Account(quotes, RULES), Account(quotes, RULES), torch.ones(6)
    for account in (agents, benchmark):
        account.reset(start, steps=80)
    band = Band(torch.full((3, 6), 0.02).double(), torch.full((3,), 0.1).double(), RULES.cost_rate)
    for _ in range(80):
        held, wanted = benchmark.weights, benchmark_weights(benchmark, parts, range(0, 80, 25))
        target, _ = target_weights(torch.zeros_like(held), agents.weights, held, wanted, agents.has_bar, band)
        assert torch.equal(agents.step(target), benchmark.step(wanted))
        assert torch.equal(agents.shares, benchmark.shares) and torch.equal(agents.cash, benchmark.cash)
    assert (agents.summary().positions_opened > 3).all()
