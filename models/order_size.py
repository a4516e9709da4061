"""Risk: what an order costs an agent that is averse to it, and the size at which profit and risk balance.

The utility of an order is its profit less half the aversion times the square of its surprise (Markowitz 1952,
"Portfolio selection"). Profit grows with the size and the expected penalty with its square, so that the best size is
forecast / (aversion x forecast variance). The variance is linear in the square of volatility.
"""

import torch
from torch import Tensor

from models.inputs import BANK, InputRows

NUMBERS = 5
"""Weights of the penalty on the four numbers of a stock, and its least."""
_VOLATILITY = BANK - 1
_RECENT = [1, 3]
"""Places of a stock's own returns at half-lives of one day and four."""


def numbers(x: Tensor, scale: float) -> Tensor:
    """Return (..., 4) numbers of stocks by their (..., inputs): 1; the squared volatility, in typical ones; two squared
    recent returns, which count by their means over the stocks of a day.

    Args:
        scale: standard deviation of the logarithm of volatility, by which inputs are standardised.
    """
    squared = torch.exp(2.0 * scale * x[..., _VOLATILITY, None])
    return torch.cat((torch.ones_like(squared), squared, x[..., _RECENT].square()), dim=-1)


def numbers_of_days(rows: InputRows, days: slice, scale: float) -> Tensor:
    """Return the (rows, 4) numbers of the stocks of some days, the last two as means over the stocks of a day."""
    x = numbers(rows.x(days), scale)
    x[:, 2:] = rows.of_day(rows.mean(x[:, 2:].T, days), days).T
    return x


def penalties(known: Tensor, weights: Tensor) -> Tensor:
    """Return what the risk of the largest orders costs by (..., stocks, 4) numbers and (..., NUMBERS) weights."""
    total: Tensor = sum(known[..., place] * weights[..., place, None] for place in range(4))  # type: ignore[assignment]
    return torch.maximum(total, weights[..., 4, None])


def best_size(expected: Tensor, penalty: Tensor) -> Tensor:
    """Return the share of the largest order, 0 to 1, at which size x expected - size^2 x penalty is largest."""
    return (expected / (2.0 * penalty).clamp(min=1e-12)).clamp(0.0, 1.0)


def utility(expected: Tensor, penalty: Tensor) -> Tensor:
    """Return expected results less penalties at the best size; a loss, which is not ordered, stays what it is."""
    size = best_size(expected, penalty)
    return torch.where(expected > 0, size * expected - size.square() * penalty, expected)
