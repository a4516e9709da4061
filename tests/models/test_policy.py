"""The policy with known answers: what is bought, kept and sold, and how capital's price decides it."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.policy import Forecasts, decide, invested_share
from utils.config.trader import EnvironmentConfig

RULES = EnvironmentConfig(cost_bps=30.0, slippage_bps=20.0, max_new_positions_per_day=2)
"""A leg costs half a percent."""


def decided(scores: list[float], price: float = 0.0, **changes: Tensor | float):  # type: ignore[no-untyped-def]
    score = torch.tensor([scores])
    given = {"cash": torch.ones(1), "candidate": score > -torch.inf, "target_percent": torch.tensor([30.0])} | changes
    return decide(Forecasts(score), torch.tensor([price]), rules=RULES, **given)  # type: ignore[arg-type]


def test_between_buying_and_selling_nothing_is_traded() -> None:
    decision = decided([0.6, 0.4, -0.4, -0.6, -torch.inf])
    assert decision.stock[decision.coefficient > 0].tolist() == [0]
    assert decision.keep.tolist() == [[True, True, True, False, True]], "one without a bar is kept"
    assert decision.moved_target.tolist() == [[30.0] * 5]


def test_a_position_earns_the_price_of_its_capital_or_is_sold() -> None:
    scores = [4.0, 5.0, 1.5]
    free, dear = decided(scores), decided(scores, price=4.0)
    assert (free.coefficient > 0).tolist() == [[True, True]] and free.keep.all()
    assert dear.stock[dear.coefficient > 0].tolist() == [1] and dear.keep.tolist() == [[True, True, False]]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(0, 5))
def test_a_position_that_would_be_ordered_again_is_kept(scores: list[float], price: float) -> None:
    """Whatever its forecast and the price of capital: nothing is sold and bought again at once."""
    decision = decided(scores, price=price)
    assert decision.keep[0, decision.stock[decision.coefficient > 0]].all()


def test_orders_are_ranked_and_ties_go_to_the_lower_stock() -> None:
    decision = decided([1.0, 2.0, 2.0, 0.0], candidate=torch.tensor([[True, False, True, True]]))
    assert decision.stock.tolist() == [[2, 0]]
    assert decision.coefficient[0, 0] > decision.coefficient[0, 1] > 9.99
    assert not bool(decided([3.0], cash=torch.tensor([0.005])).coefficient.any()), "less cash than the smallest order"


def test_capital_has_a_price_as_far_as_it_is_invested_while_something_may_be_bought() -> None:
    cash, left = torch.tensor([1.2, 1.0, 0.25, 0.0, -0.1, 0.25]), torch.tensor([9.0, 9.0, 1.0, 3.0, 3.0, 0.0])
    assert invested_share(cash, left).tolist() == [0.0, 0.0, 0.75, 1.0, 1.0, 0.0]


def test_an_action_keeps_sells_and_buys() -> None:
    decision = decided([0.6, -0.6, 0.1])
    held = torch.tensor([[False, True, True]])
    action = decision.action(held)[0]
    assert action[:, 1].tolist() == [30.0] * 3
    assert action[0, 0] > 9.99 and action[1, 0] == 0.0 and action[2, 0] == 10.0
