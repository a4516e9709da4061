"""The rules of orders, on answers that are known."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.orders import cut_to_cash
from utils.spaces import rank_stocks


@settings(max_examples=100)
@given(st.integers(1, 90), st.integers(1, 4), st.integers(0, 1000))
def test_ties_go_to_the_lower_stock_however_many_are_ordered(stocks: int, count: int, seed: int) -> None:
    score = torch.randint(4, (3, stocks), generator=torch.Generator().manual_seed(seed)).float()
    found, chosen = rank_stocks(score, count)
    for row, best, order in zip(score.tolist(), found.tolist(), chosen.tolist(), strict=True):
        assert order == sorted(range(stocks), key=lambda stock: (-row[stock], stock))[:count]
        assert best == [row[stock] for stock in order]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5), st.floats(0, 20), st.sampled_from((0.0, 0.5)))
def test_later_orders_get_the_cash_that_is_left(wanted: list[float], cash: float, least: float) -> None:
    left = torch.tensor([cash, 1e9], dtype=torch.float64)
    found = cut_to_cash(torch.tensor([wanted, wanted], dtype=torch.float64).T, left, least)
    expected, rest = [], cash
    for payment in wanted:
        paid = min(payment, rest)
        expected.append(paid if paid >= least else 0.0)
        rest -= expected[-1]
    assert found[:, 0].tolist() == expected and float(left[0]) == rest
    assert found[:, 1].tolist() == [payment if payment >= least else 0.0 for payment in wanted]
