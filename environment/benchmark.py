"""The benchmark: an account that holds stocks in fixed parts, bought at its first fill and trimmed once a year.

Agents decide relative to it, policies are judged against it, and where nothing is known it is what is held.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from environment.account import Account

REBALANCING_SESSIONS = 252
BAND = 1.5
"""Multiple of its part to which a stock may grow; at a rebalancing what is above is sold."""
_DUST = 1e-6
"""Share of the equity below which the stocks are rounding leftovers."""


def benchmark_weights(account: Account, parts: Tensor, rebalances: Tensor | bool) -> Tensor:
    """Return the (L, n) target weights by which an account holds a benchmark; where nothing is traded, its weights.

    At a rebalancing what has grown beyond the band is cut back to it, and all cash is spent on what is too small. An
    account that holds nothing buys as soon as there is something to buy.

    Args:
        parts: (n,) or (L, n) of the stocks, up to a factor; 0: not traded.
        rebalances: (L,) or for all: today is such a day.
    """
    weights, rate = account.weights, account.rules.cost_rate
    is_traded = account.has_bar & (parts > 0)
    if account.quotes.is_member is not None:
        is_traded = is_traded & account.quotes.is_member[account.day]
    parts, held = torch.where(is_traded, parts, 0.0), torch.where(is_traded, weights, 0.0)
    cash = account.cash / account.equity
    target = (cash + held.sum(1))[:, None] * parts / parts.sum(1, keepdim=True).clamp(min=1e-300)
    sold, lacking = (held - BAND * target).clamp(min=0.0), (target - held).clamp(min=0.0)
    budget = (cash + sold.sum(1) * (1 - rate)) / (1 + rate)
    spent = (budget / lacking.sum(1).clamp(min=1e-300)).clamp(0.0, 1.0)
    is_due = (weights.sum(1) < _DUST) | torch.as_tensor(rebalances, device=weights.device)
    is_due = is_due & ~account.is_locked & account.is_trading
    return torch.where(is_traded & is_due[:, None], weights + lacking * spent[:, None] - sold, weights)


def hold_benchmark(account: Account, parts: Tensor, rebalanced: Collection[int] | None = None) -> None:
    """Hold a benchmark in accounts that were reset, to the end of their windows.

    Args:
        rebalanced: numbers of steps before which it is rebalanced; default: the first one, and each a year later.
    """
    for step in range(account.steps):
        is_due = step % REBALANCING_SESSIONS == 0 if rebalanced is None else step in rebalanced
        account.step(benchmark_weights(account, parts, is_due))
