"""The policy with known answers: what is believed of scores, and what is held of stocks that nobody can tell."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.policy import Decision, Forecasts, decide
from tests.tiny import seeded

K, CASH = 0.1, 0.02


def decided(score: Tensor, *, risk: Tensor | None = None, cost: float = 0.0, **changes: Any) -> Decision:
    """By accounts that hold the benchmark, which holds equal parts and trades nothing."""
    lanes, stocks = score.shape
    equal = torch.full((lanes, changes.pop("stocks", stocks)), 1.0 / changes.pop("of", stocks)).double()
    accounts: dict[str, Any] = {"weights": equal, "held": equal, "wanted": equal, "can_trade": equal > 0} | changes
    genes = torch.tensor([[K, 1.0, CASH, accounts.pop("hurdle", 1.0)]] * lanes).double()
    level = accounts.pop("level", torch.zeros(lanes))
    return decide(score, level, torch.ones_like(score) if risk is None else risk, genes, cost=cost, **accounts)


def test_differences_are_believed_as_far_as_said_and_the_level_is_the_price() -> None:
    """Without costs a stock is held beyond the benchmark by its worth less the price, over its risk."""
    score, risk = torch.tensor([[1.0, 2.0, 0.5, 0.5]]), torch.tensor([[1.0, 2.0, 1.0, 0.5]])
    for shrink in (1.0, 0.25):
        worth = shrink * (score - 1.0) / 100
        price = (worth / risk).sum() / (1 / risk).sum()
        found = decided(score, risk=risk, shrink=shrink)
        expected = 0.25 + (worth - price) / (K * risk)
        torch.testing.assert_close(found.target, expected.double(), atol=1e-5, rtol=0)
        assert float(found.price) == pytest.approx(100 * float(price) + 1.0, abs=1e-4)
        higher = decided(score + 7.0, risk=risk, shrink=shrink)
        torch.testing.assert_close(higher.target, found.target, atol=1e-5, rtol=0)
        torch.testing.assert_close(higher.price, found.price + 7.0, atol=1e-4, rtol=0)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([0.0, 0.002]))
def test_budget_and_stocks_that_cannot_be_traded_or_told(seed: int, shrink: float, cost: float) -> None:
    """Also where the account has stocks beyond those with scores, of which it holds what the benchmark does."""
    generator, lanes = seeded(seed), 6
    part, believed = torch.rand(lanes, 8, generator=generator), torch.rand(lanes, 6, generator=generator) < 0.8
    held = (part / part.sum(1, keepdim=True)).double()
    score = torch.where(believed, torch.randn(lanes, 6, generator=generator), -torch.inf)
    can_trade = torch.rand(lanes, 8, generator=generator) < 0.9
    accounts = {"weights": held, "held": held, "wanted": held, "can_trade": can_trade}
    found = decided(score, stocks=8, of=8, cost=cost, shrink=shrink, **accounts)
    fixed = ~can_trade | torch.nn.functional.pad(~believed, (0, 2))
    assert torch.equal(found.target[fixed], held[fixed])
    spent = found.target.sum(1) + cost * (found.target - held).abs().sum(1)
    assert float((spent - 1.0).abs().max()) < 1e-5 and bool((found.target >= 0).all())
    if shrink == 0.0:
        assert torch.equal(found.target, held)
    else:
        beyond = (found.target - held)[:, 6:]
        assert float(beyond.abs().max()) <= 1.0 and not torch.equal(found.target, held)


def test_cash_is_held_by_what_levels_lack() -> None:
    """What the benchmark gains less than usual, beyond costs, over the price of the risk of cash; what is in cash stays
    there within the band, and is invested as soon as nothing is lacking."""
    none, cost = torch.zeros(1, 4), 0.001

    def invested(level: float, weight: float = 0.25, **how: float) -> float:
        weights = torch.full((1, 4), weight).double()
        found = decided(none, weights=weights, held=none.double() + 0.25, wanted=none.double() + 0.25, **how,
                        level=torch.tensor([level]), cost=cost)  # fmt: skip
        return float(found.target.sum() + cost * (found.target - weights).abs().sum())

    for timing in (1.0, 0.5):
        lacking = timing * 0.8 / 100
        assert invested(-0.8, timing=timing) == pytest.approx(1 - (lacking - cost) / CASH, abs=1e-5)
        assert invested(-0.8, 0.1, timing=timing) == pytest.approx(1 - (lacking + cost) / CASH, abs=1e-5)
        assert invested(-0.8, 0.16, timing=timing) == pytest.approx(max(0.64, 1 - (lacking + cost) / CASH), abs=1e-5)
    assert invested(-9.0, timing=1.0) == pytest.approx(cost, abs=1e-5)  # of selling everything
    for level, timing in ((-0.05, 1.0), (0.5, 1.0), (-0.8, 0.0)):
        assert invested(level, timing=timing) == pytest.approx(1.0, abs=1e-5)
    assert invested(0.5, 0.1, timing=1.0) == pytest.approx(1.0, abs=1e-5)


def test_stocks_without_a_bar_have_no_part_in_the_level() -> None:
    """The level of a day is the mean of the others, less the usual one; without any scores it is that."""
    score = torch.tensor([[[1.0, 2.0], [-torch.inf, 3.0], [-torch.inf, -torch.inf]]])
    found = Forecasts.of(score, torch.tensor([[0.5]]), torch.ones(3, 2))
    assert found.score is score and found.level.tolist() == [[1.0, 2.5, 0.0]]


@pytest.mark.parametrize(
    ("hurdle", "shrink", "multiple"), [(1, 1, 1), (4, 1, 4), (4, 0.5, 4), (4, 0.1, 10), (0.5, 0.5, 1)]
)
def test_what_is_believed_in_part_must_still_be_worth_its_costs(hurdle: float, shrink: float, multiple: float) -> None:
    """A difference moves nothing below a multiple of the costs of a trade: a hurdle that is higher already is kept."""
    for beyond, is_traded in ((0.98, False), (1.02, True)):
        half = 100 * 0.001 * multiple * beyond
        found = decided(torch.tensor([[half, -half, 0.0]]), cost=0.001, hurdle=hurdle, shrink=shrink)
        assert bool((found.target[0, :2] - 1 / 3).abs().min() > 1e-6) == is_traded
