"""Conventions of environment and agents: the ranges of an action and the layout of an account's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MIN_COEFFICIENT, MAX_COEFFICIENT = 1.0, 10.0
"""An order's size in stakes; below the minimum nothing is ordered."""
MIN_TARGET_PERCENT, MAX_TARGET_PERCENT = 10.0, 50.0
"""Sale target above the fill price."""
TARGET_PERCENTS = (MIN_TARGET_PERCENT, 20.0, 30.0, 40.0, MAX_TARGET_PERCENT)
"""Sale targets at which the results of orders are known, and among which agents choose."""
ACTION_FEATURES = 2
"""Coefficient, sale target in percent."""
POSITION_FEATURES = 6
"""Held, days held / maximum, unrealised return, size / maximum, distance to target, days without bar / maximum."""
SESSIONS_HELD = 1
"""The place of the sessions held, as a share of the most, among a position's features."""
SIZE = 3
"""The place of a position's size among its features."""
ACCOUNT_FEATURES = 3
"""Cash and exposure as fractions of the initial capital, fraction of the trading period left.

The last is negative in settlement: how long until the forced close decides rewards too.
"""
TRADING_LEFT = 2
"""The place of the fraction of the trading period left in the account."""


def spread_positions(slot_stock: Tensor, slot_features: Tensor, stocks: int) -> Tensor:
    """Open positions from slots to stocks: (..., K) and (..., K, 6) to (..., stocks, 6), 0 where nothing is held.

    The stock index of an empty slot is `stocks`.
    """
    dense = slot_features.new_zeros(*slot_stock.shape[:-1], stocks + 1, slot_features.shape[-1])
    dense.scatter_(-2, slot_stock.unsqueeze(-1).expand_as(slot_features), slot_features)
    return dense[..., :stocks, :]


def rank_stocks(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of (..., n) scores, best first, and their stocks; ties go to the lower stock."""
    if count == 1:
        best, stock = score.max(dim=-1, keepdim=True)
        return best, stock
    ranked, order = score.sort(dim=-1, descending=True, stable=True)
    return ranked[..., :count], order[..., :count]
