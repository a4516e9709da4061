"""The rules of orders as pure functions, shared by the account, the learner and the signals; the account applies them
in `environment/portfolio.py` and `environment/exits.py`.

Stocks are numbered 0..n-1. All functions work on any leading dimensions.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from utils.config.trader import EnvironmentConfig
from utils.spaces import MIN_COEFFICIENT, rank_stocks

Price = TypeVar("Price", float, Tensor)


@dataclass(frozen=True)
class Orders:
    """Purchases at a close, best first, (orders, lanes) each; and what is decided on open positions."""

    stock: Tensor
    coefficient: Tensor
    """Size in stakes; 0 where nothing is ordered."""
    target_percent: Tensor
    sold: Tensor | None = None
    """(N,) bool: open positions that are sold at the next fill, if their stock has a bar then; None: none."""
    moved_target: Tensor | None = None
    """(N,) sale targets of open positions, in percent; None: as they are."""
    sale_step: Tensor | None = None
    """(steps, orders, lanes) of a plan that is played again: the step at which the sale is decided, -1 where it is
    not."""
    moves: Tensor | None = None
    """(steps, lanes, stocks) of a plan: the sale target, in percent, that its positions get at each step."""
    until: Tensor | None = None
    """(steps, orders, lanes) of a plan: the step whose decision ends a position as early as it was ended, by whatever
    rule; -1 where it was held to its bound or to the end."""


def choose_orders(coefficient: Tensor, is_candidate: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest coefficients among the candidates, 0 below the smallest order, and their stocks."""
    # Multiplying by bytes is one vectorised pass; a coefficient of 0 is below the minimum and never ordered.
    best, stock = rank_stocks(coefficient * is_candidate.view(torch.uint8), count)
    return torch.where(best >= MIN_COEFFICIENT, best, 0.0), stock


def cut_to_cash(wanted: Tensor, cash: Tensor, least: float | Tensor) -> Tensor:
    """Cut (orders, lanes) payments, best first, to the (lanes,) cash that those before leave; there is no leverage.

    A payment that is left with less than `least` lapses. Payments are taken from the cash in place.
    """
    paid = []
    for payment in wanted.unbind():
        payment = torch.minimum(payment, cash.clamp(min=0))
        paid.append(payment * (payment >= least))
        cash -= paid[-1]
    return torch.stack(paid)


def target_price(entry_price: Price, target_percent: Price) -> Price:
    """Return the price at which a position is sold."""
    return entry_price * (1 + target_percent / 100)


def stop_price(entry_price: Price, stop_percent: float) -> Price:
    """Return the price at which a position is sold at a loss."""
    return entry_price * (1 - stop_percent / 100)


def is_delisted(days_without_bar: Tensor, rules: EnvironmentConfig) -> Tensor:
    """Tell which positions are closed, at their salvage value, because their stock had no bar for too many sessions."""
    return days_without_bar >= rules.max_days_without_bar


def salvage(last_price: Price, rules: EnvironmentConfig) -> Price:
    """Return what such a position is closed at: the last traded price less a delisting loss."""
    return last_price * (1 - rules.delisting_loss / 100)


def position_features(
    rules: EnvironmentConfig,
    *,
    sessions_held: Tensor,
    entry_price: Tensor,
    last_price: Tensor,
    target_price: Tensor,
    value: Tensor,
    days_without_bar: Tensor,
) -> Tensor:
    """Describe open positions as they are observed, (..., POSITION_FEATURES) float32; prices and money are float64."""
    features = (
        torch.ones_like(last_price),
        sessions_held / rules.longest_holding,
        last_price / entry_price - 1,
        value / (rules.initial_capital * rules.largest_order),
        target_price / last_price - 1,
        days_without_bar / rules.max_days_without_bar,
    )
    return torch.stack(torch.broadcast_tensors(*features), dim=-1).float()
