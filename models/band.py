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
from typing import NamedTuple, Self

import torch
from torch import Tensor

_STEPS, _FITS = 16, 2e-6
"""Of the search for the shadow price, and share of the equity by which a budget may be missed."""


@dataclass(frozen=True)
class Band:
    """What sizes the weights of L accounts."""

    k: Tensor
    """(L, n) price of risk: what a unit of weight more lowers the worth of the next one."""
    largest: Tensor
    """(L,) most weight of a stock, unless that is less than twice the benchmark's."""
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
    own = torch.where(can_trade, wanted - held, 0.0)
    most = torch.where(can_trade, torch.maximum(band.largest[:, None], 2 * held), torch.inf)
    centre, half = held + q / band.k, torch.where(can_trade, band.cost / band.k, torch.inf)
    budget = (wanted + band.cost * (wanted - held).abs()).sum(1) - cash
    price = _shadow_price(weights, centre - half, centre + half, most, own, 1.0 / band.k, budget, band.cost)
    moved = price[:, None] / band.k
    kept = torch.minimum(torch.maximum(weights, centre - half - moved), centre + half - moved)
    active = torch.minimum(kept.clamp(min=0.0), most)
    # Not active + own: who holds what the benchmark holds is to give its orders exactly.
    return torch.where(can_trade & (active == held), wanted, (active + own).clamp(min=0.0)), price


def _shadow_price(
    weights: Tensor, low: Tensor, high: Tensor, most: Tensor, own: Tensor, fall: Tensor, budget: Tensor, cost: float
) -> Tensor:
    """Return the (L,) prices nearest to 0 at which weights and costs fit the budget: Newton's steps in a bracket, in
    single precision, for what weights and costs take is piecewise linear in the price and never rises.

    Args:
        low, high: (L, n) edges of the bands at a price of 0.
        most: (L, n) largest weights.
        own: (L, n) trades that are added.
        fall: (L, n) by which the edges fall with the price.
    """
    on_host = budget.device.type == "cpu"
    weights, low, high, most, own, fall = (x.float() for x in (weights, low, high, most, own, fall))
    lanes = _Lanes(weights, low, high, most, fall, weights - own, own.sum(1) - budget.float())
    value, falls = lanes.excess(torch.zeros_like(lanes.added), cost)
    found = torch.zeros_like(value)
    sign = torch.sign(value)
    # At this price every stock is at an edge, whichever the sign.
    edge = torch.where(high.isfinite(), torch.maximum(high.abs(), most - low) / fall, 0.0).amax(1)
    search = _Search(found, sign, found, sign * edge * (1 + 1e-6), value, falls)
    place = torch.arange(len(found), device=found.device)
    for _ in range(_STEPS):
        is_open = search.value.abs() > _FITS
        if on_host and 2 * int(is_open.sum()) < len(is_open):  # a card would wait for its host
            lanes, search, place = lanes.at(is_open), search.at(is_open), place[is_open]
            is_open = is_open[is_open]
            if not len(place):
                break
        search = search.step(lanes, cost, is_open)
        found[place] = search.price
    return found.double()


class _Lanes(NamedTuple):
    """What is searched: see `_shadow_price`; (L, n) each, (L,) `added`."""

    weights: Tensor
    low: Tensor
    high: Tensor
    most: Tensor
    fall: Tensor
    before: Tensor
    added: Tensor

    def at(self, rows: Tensor) -> Self:
        """Return some lanes."""
        return type(self)(*(part[rows] for part in self))

    def excess(self, price: Tensor, cost: float) -> tuple[Tensor, Tensor]:
        """Return what is taken beyond the budget, and about how it falls with the price."""
        moved = price[:, None] * self.fall
        kept = torch.minimum(torch.maximum(self.weights, self.low - moved), self.high - moved)
        active = torch.minimum(kept.clamp(min=0.0), self.most)
        total = active.sum(1) + cost * (active - self.before).abs().sum(1) + self.added
        return total, (self.fall * ((active == kept) & (kept != self.weights))).sum(1)


class _Search(NamedTuple):
    """Where the search of each lane stands, (L,) each."""

    price: Tensor
    sign: Tensor
    near: Tensor
    far: Tensor
    """Prices on either side of the one that is sought."""
    value: Tensor
    falls: Tensor

    def at(self, rows: Tensor) -> Self:
        """Return some lanes."""
        return type(self)(*(part[rows] for part in self))

    def step(self, lanes: _Lanes, cost: float, is_open: Tensor) -> Self:
        """Take a Newton step inside the bracket, else halve it."""
        step = self.price + self.value / self.falls
        is_inside = (step > torch.minimum(self.near, self.far)) & (step < torch.maximum(self.near, self.far))
        price = torch.where(is_open, torch.where(is_inside, step, (self.near + self.far) / 2), self.price)
        value, falls = lanes.excess(price, cost)
        is_near = value * self.sign > 0
        near, far = torch.where(is_near, price, self.near), torch.where(is_near, self.far, price)
        return type(self)(price, self.sign, near, far, value, falls)
