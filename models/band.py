"""From what a unit of each stock is worth to how much of it is held: a no-trade band around the benchmark, on a budget.

A unit of a stock gains `q` over its horizon, and the same money elsewhere `p`, the shadow price of capital. Risk grows
with the square of what is held more or less than the benchmark, so that a unit more is worth

    m(a) = q - p - k (a - b)

by the weight `a` held and the weight `b` in the benchmark. Buying costs `c` and selling costs `c`: nothing is traded
while m lies between -c and c (Davis and Norman 1990, "Portfolio selection with transaction costs"), else as much as
brings m back to the nearer edge. All are fractions of value for one unit of weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_STEPS, _FITS = 16, 1e-12
"""Of the search for the shadow price, and share of the equity by which a budget may be missed."""


@dataclass(frozen=True)
class Band:
    """What sizes the weights of L accounts."""

    k: Tensor
    """(L, n) price of risk: what a unit of weight more lowers the worth of the next one."""
    largest: Tensor
    """(L,) most weight of a stock, unless the benchmark holds more."""
    cost: float
    """Of a unit bought or sold."""


def target_weights(
    q: Tensor,
    weights: Tensor,
    held: Tensor,
    wanted: Tensor,
    can_trade: Tensor,
    band: Band,
    cash: Tensor | float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return (L, n) target weights and the (L,) shadow prices at which they fit the budget.

    Weights are decided relative to what the benchmark holds, and its trades are added: without forecasts (q = 0) an
    account that holds the benchmark gives the benchmark's orders, to the bit.

    Args:
        q: worth of a unit of each stock, fraction of its value.
        weights: of the accounts at today's close.
        held, wanted: (L, n) of the benchmark's own account at today's close, and after its own orders.
        can_trade: (L, n) bool; others keep their weights.
        cash: (L,) share of the equity that is to be held in cash beyond the benchmark's.
    """
    most = torch.maximum(band.largest[:, None], held)
    centre, half = held + q / band.k, band.cost / band.k
    own = wanted - held
    budget = (wanted + band.cost * own.abs()).sum(1) - cash

    def at(price: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights at (L,) shadow prices, and how they fall with the price."""
        middle = centre - price[:, None] / band.k
        low, high = middle - half, middle + half
        kept = torch.minimum(torch.maximum(weights, low), high)
        active = torch.minimum(kept.clamp(min=0.0), most)
        # Not weights + own: equal weights are to give the benchmark's orders exactly.
        moved = torch.where(active == held, wanted, active + own).clamp(min=0.0)
        moves = can_trade & (active == kept) & ((weights < low) | (weights > high)) & (kept > 0.0)
        return torch.where(can_trade, moved, weights), moves / band.k

    def excess(price: Tensor) -> tuple[Tensor, Tensor]:
        """Return what weights and costs take beyond the budget, and how it falls with the price."""
        target, fall = at(price)
        traded = target - weights
        falls = (fall * (1.0 + band.cost * torch.sign(traded))).sum(1)
        return (target + band.cost * traded.abs()).sum(1) - budget, falls

    # Of the prices that fit the budget the one nearest to 0, by Newton's steps in a bracket, whose other end is one at
    # which every stock is at an edge: the excess is piecewise linear and never rises.
    first, falls = excess(torch.zeros_like(budget))
    sign = torch.sign(first)
    near, far = torch.zeros_like(budget), sign * (q.abs() + band.cost + band.k * (1.0 + most)).amax(1)
    price, value = near, first
    for _ in range(_STEPS):
        step = price + value / falls
        is_inside = (step > torch.minimum(near, far)) & (step < torch.maximum(near, far))
        price = torch.where(value.abs() <= _FITS, price, torch.where(is_inside, step, (near + far) / 2))
        value, falls = excess(price)
        is_near = value * sign > 0
        near, far = torch.where(is_near, price, near), torch.where(is_near, far, price)
        if price.device.type == "cpu" and bool((value.abs() <= _FITS).all()):
            break  # a card would wait for its host
    price = torch.where(first.abs() <= _FITS, torch.zeros_like(price), price)
    return at(price)[0], price
