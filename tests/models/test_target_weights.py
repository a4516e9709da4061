"""Target weights: no trade pays, the budget is met, and without forecasts they are the benchmark's, to the bit."""

from unittest.mock import patch

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import models.target_weights
from models.target_weights import Band, target_weights

COST = 0.002


def drawn(seed: int, lanes: int, stocks: int, spread: float, k: float) -> dict[str, torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)

    def uniform() -> torch.Tensor:
        return torch.rand(lanes, stocks, generator=draws, dtype=torch.float64)

    held, weights = uniform(), uniform() ** 3 * (uniform() < 0.7)
    return {
        "q": spread * (uniform() - 0.5),
        "weights": weights / weights.sum(1, keepdim=True).clamp(min=1e-9) * uniform()[:, :1],
        "held": held / held.sum(1, keepdim=True),
        "can_trade": uniform() < 0.9,
        "k": k * (0.3 + uniform()),
    }


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from([2, 5, 40]), st.sampled_from([0.01, 0.1]), st.sampled_from([0.005, 0.1]))
def test_no_trade_pays_and_the_budget_is_met(seed: int, stocks: int, spread: float, k: float) -> None:
    """Also where stocks of which nothing is taken are left out of the search, as of many."""
    no_trade_pays(seed, 20, stocks, spread, k)
    with patch.object(models.target_weights, "_MANY", 1):
        no_trade_pays(seed, 2, stocks, spread, k)


def no_trade_pays(seed: int, lanes: int, stocks: int, spread: float, k: float) -> None:
    given_ = drawn(seed, lanes, stocks, spread, k)
    q, weights, held, can_trade, risk = given_.values()
    largest = torch.full((lanes,), 3.0 / stocks).double()
    target, price = target_weights(q, weights, held, held, can_trade, Band(risk, largest, COST))
    traded, most = target - weights, torch.maximum(largest[:, None], held)
    assert (target >= 0).all() and (traded[~can_trade] == 0).all()
    worth = q - price[:, None] - risk * (target - held)
    tiny = 1e-6
    is_free = can_trade & (weights <= most)
    # What was bought is worth its cost, what was sold is not worth keeping, and what was left alone is neither.
    assert (worth[is_free & (traded > tiny)] >= COST - tiny).all()
    assert (worth[can_trade & (traded < -tiny) & (target < most - tiny)] <= -COST + tiny).all()
    is_still = is_free & (traded.abs() <= tiny) & (target > tiny) & (target < most - tiny)
    assert (worth[is_still].abs() <= COST + tiny).all()
    # Of an account that could spend or raise what the budget asks for, all is spent.
    total = (target + COST * traded.abs()).sum(1)
    least = torch.where(can_trade, 0.0, weights) + COST * torch.where(can_trade, weights, 0.0)
    room = torch.where(can_trade, most - COST * most, weights).sum(1)
    is_possible = (least.sum(1) < 1.0 - 1e-6) & (room > 1.0 + 1e-6)
    torch.testing.assert_close(total[is_possible], torch.ones_like(total[is_possible]), rtol=0, atol=1e-5)
    # A higher shadow price is never needed where less would fit.
    fits = (target_weights(q, weights, held, held, can_trade, Band(risk, largest, COST), cash=0.1)[1] >= price - 1e-6)[
        is_possible
    ]
    assert fits.all(), "cash makes capital dearer"


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 40]))
def test_without_forecasts_orders_are_the_benchmarks_to_the_bit(seed: int, stocks: int) -> None:
    """Also on the days on which it trades, and where nothing is held yet."""
    _, other, held, can_trade, risk = drawn(seed, 9, stocks, 0.1, 0.02).values()
    wanted = torch.where(torch.rand(9, 1, dtype=torch.float64) < 0.5, held, other)
    band, everything = Band(risk, torch.full((9,), 0.1).double(), COST), torch.ones_like(can_trade)
    target, price = target_weights(torch.zeros_like(held), held, held, wanted, everything, band)
    assert torch.equal(target, wanted) and (price == 0).all()
    some, _ = target_weights(torch.zeros_like(held), held, held, held, can_trade, band)
    assert torch.equal(some, held)


def test_a_trade_must_be_worth_its_hurdle() -> None:
    """Between the edges, multiples of the cost from the best weight, nothing moves."""
    held = torch.full((3, 2), 0.5).double()
    q = torch.tensor([[0.02, -0.02]] * 3).double()
    band = Band(torch.full((3, 2), 0.1).double(), torch.ones(3).double(), 0.005, torch.tensor([1.0, 3.0, 5.0]))
    target, price = target_weights(q, held, held, held, torch.ones(3, 2, dtype=torch.bool), band)
    moved = torch.tensor([[0.15, -0.15], [0.05, -0.05], [0.0, 0.0]]).double()
    torch.testing.assert_close(target - held, moved, atol=2e-3, rtol=0)  # costs are paid from the sum
    assert price.abs().max() < 2e-3 and torch.equal(target[2], held[2])


def test_cash_is_held_where_it_is_asked_for() -> None:
    q, weights, held, _, risk = drawn(3, 4, 12, 0.05, 0.03).values()
    band, everything = Band(risk, torch.full((4,), 0.3).double(), 0.0), torch.ones(4, 12, dtype=torch.bool)
    whole, _ = target_weights(q, weights, held, held, everything, band)
    part, price = target_weights(q, weights, held, held, everything, band, cash=torch.full((4,), 0.4).double())
    torch.testing.assert_close(part.sum(1), whole.sum(1) - 0.4)
    assert (price > 0).all()
