"""The rules of orders, on answers that are known."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.orders import candidate_stocks, choose_orders, cut_to_cash
from utils.spaces import rank_stocks


@settings(max_examples=100)
@given(st.integers(1, 90), st.integers(1, 4), st.integers(0, 1000))
def test_ties_go_to_the_lower_stock_however_many_are_ordered(stocks: int, count: int, seed: int) -> None:
    score = torch.randint(4, (3, stocks), generator=torch.Generator().manual_seed(seed)).float()
    found, chosen = rank_stocks(score, count)
    for row, best, order in zip(score.tolist(), found.tolist(), chosen.tolist(), strict=True):
        assert order == sorted(range(stocks), key=lambda stock: (-row[stock], stock))[:count]
        assert best == [row[stock] for stock in order]


def test_a_coefficient_below_one_and_a_stock_that_is_no_candidate_are_not_ordered() -> None:
    coefficient = torch.tensor([[9.0, 3.0, 0.99, 0.0]])
    size, stock = choose_orders(coefficient, torch.tensor([[False, True, True, True]]), 3)
    assert size.tolist() == [[3.0, 0.0, 0.0]] and stock[0, 0] == 1


def test_held_stocks_and_those_without_a_bar_are_no_candidates() -> None:
    slots = torch.tensor([[4, 2, 4], [0, 4, 3]])  # 4: the slot is empty
    free = candidate_stocks(torch.ones(2, 4, dtype=torch.bool), slots)
    assert free.tolist() == [[True, True, False, True], [False, True, True, False]]
    tradable = torch.tensor([True, False, True, True])
    assert candidate_stocks(tradable.expand(2, 4), slots).tolist() == [
        [True, False, False, True],
        [False, False, True, False],
    ]


@pytest.mark.parametrize("dim", [0, -1])
def test_later_orders_get_the_cash_that_is_left(dim: int) -> None:
    wanted = torch.tensor([[5.0, 4.0, 3.0]])
    cash = torch.tensor([[7.0]])
    found = cut_to_cash(wanted if dim else wanted.T, cash if dim else cash[0], dim)
    assert found.flatten().tolist() == [5.0, 2.0, 0.0]
