"""The benchmark's account: equal parts, bought once, trimmed a year later, and held through what happens to stocks."""

import numpy as np
import torch

from environment.account import Account
from environment.benchmark import BAND, REBALANCING_SESSIONS, benchmark_weights
from environment.quotes import Quotes
from tests.environment.test_account import FREE, tensors


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
