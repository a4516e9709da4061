"""Conventions of environment and agents: ranges of an action and layout of an account's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

MIN_COEFFICIENT, MAX_COEFFICIENT = 1.0, 10.0  # an order's size in stakes; nothing is ordered below the minimum
MIN_TARGET_PERCENT, MAX_TARGET_PERCENT = 10.0, 50.0  # sale target above the fill price
TARGET_PERCENTS = (MIN_TARGET_PERCENT, 20.0, 30.0, 40.0, MAX_TARGET_PERCENT)
"""Sale targets among which agents choose."""
POSITION_FEATURES = 6
"""Held, days held / maximum, unrealised return, size / maximum, distance to target, days without bar / maximum."""
ACCOUNT_FEATURES = 3
"""Cash and exposure as fractions of the initial capital, fraction of trading days left (negative in settlement); with a
drawdown lock also the part of the allowed drawdown that is used, 1 once the account is locked."""
TRADING_LEFT = 2  # index of the fraction of trading days left


def rank_stocks(score: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of (..., n) scores, best first, and their stocks; ties go to the lower stock."""
    if count == 1:
        best, stock = score.max(dim=-1, keepdim=True)
        return best, stock
    ranked, order = score.sort(dim=-1, descending=True, stable=True)
    return ranked[..., :count], order[..., :count]
