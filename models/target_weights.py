"""From what a unit of each stock is worth to how much of it is held: a no-trade band around the benchmark, on a budget.

A unit of a stock gains `q` over its horizon, and the same money elsewhere `p`, the shadow price of capital. Risk grows
with the square of what is held more or less than the benchmark, so that a unit more is worth

    m(a) = q - p - k (a - b)

by the weight `a` held and the weight `b` in the benchmark. Buying costs `c` and selling costs `c`: nothing is traded
while m lies between -h c and h c, else as much as brings m back to the nearer edge. With h = 1 this is the band of
Davis and Norman (1990, "Portfolio selection with transaction costs"); what the noise of forecasts moves today it takes
back tomorrow, for which the hurdle h is higher. All are fractions of value for one unit of weight.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

_STEPS, _FITS, _EXACT = 6, 2e-6, 1e-12
"""Of the search for the shadow price, and shares of the equity by which a budget may be missed."""
_MANY, _BEFORE = 512, 2
"""Stocks from which on those of which nothing is taken are left out of the search, and steps before that."""


@dataclass(frozen=True)
class Band:
    """What sizes the weights of L accounts."""

    k: Tensor
    """(L, n) price of risk: what a unit of weight more lowers the worth of the next one."""
    largest: Tensor
    """(L,) most weight of a stock, unless that is less than twice the benchmark's."""
    cost: float
    """Of a unit bought or sold."""
    hurdle: Tensor | float = 1.0
    """(L,) or for all, multiples of the cost that a trade must be worth."""


def target_weights(
    q: Tensor,
    weights: Tensor,
    held: Tensor,
    wanted: Tensor,
    can_trade: Tensor,
    band: Band,
    cash: Tensor | float = 0.0,
    may_buy: Tensor | None = None,
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
        may_buy: (L, n) bool; of others no weight grows, and what they would take goes elsewhere. Default: all.
    """
    own = torch.where(can_trade, wanted - held, 0.0)
    most = torch.where(can_trade, torch.maximum(band.largest[:, None], 2 * held), torch.inf)
    most = most if may_buy is None else torch.where(may_buy, most, torch.minimum(most, weights))
    hurdle = torch.as_tensor(band.hurdle, dtype=q.dtype, device=q.device)[..., None]
    centre, half = held + q / band.k, torch.where(can_trade, band.cost * hurdle / band.k, torch.inf)
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
    """Return the (L,) prices nearest to 0 at which weights and costs fit the budget.

    What weights and costs take is piecewise linear in the price and never rises. A few of Newton's steps in single
    precision find most prices; the others are looked up among the places at which it bends, which are sorted.

    Args:
        low, high: (L, n) edges of the bands at a price of 0.
        most: (L, n) largest weights.
        own: (L, n) trades that are added.
        fall: (L, n) by which the edges fall with the price.
    """
    lanes = _Lanes(weights, low, high, most, fall, weights - own, own.sum(1) - budget)
    single = _Lanes(*(part.float() for part in lanes))
    price = torch.zeros_like(single.added)
    value, falls = single.excess(price, cost)
    sign = value.sign()
    if price.device.type == "cpu" and weights.shape[1] >= _MANY and (value > -_FITS).all():
        price, value, falls = single.stepped(price, value, falls, sign, cost, _BEFORE)
        single = single.above(torch.where(value > 0, price, 0.0), cost)
    price, value, falls = single.stepped(price, value, falls, sign, cost)
    is_open = value.abs() > _FITS
    if price.device.type == "cpu" and is_open.any():  # of thousands of stocks most lanes take more steps
        begun = price[is_open], value[is_open], falls[is_open], sign[is_open]
        price[is_open], value[is_open], _ = single.at(is_open).stepped(*begun, cost)
    price, is_open = price.double(), value.abs() > _FITS
    if price.device.type != "cpu":  # a card would wait for its host
        return torch.where(is_open, lanes.looked_up(sign, cost), price)
    if is_open.any():
        price[is_open] = lanes.at(is_open).looked_up(sign[is_open], cost)
    return price


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

    def above(self, price: Tensor, cost: float) -> Self:
        """Return the lanes without the stocks of which nothing is taken in any of them from these prices on."""
        some = (self.kept(price) > 0).any(0)
        paid = cost * self.before[:, ~some].abs().sum(1)
        parts = {name: getattr(self, name)[:, some] for name in self._fields[:-1]}
        return self._replace(**parts, added=self.added + paid)

    def kept(self, price: Tensor) -> Tensor:
        """Return the (L, n) weights within the bands at (L,) prices."""
        moved = price[:, None] * self.fall
        return torch.minimum(torch.maximum(self.weights, self.low - moved), self.high - moved)

    def excess(self, price: Tensor, cost: float) -> tuple[Tensor, Tensor]:
        """Return what is taken beyond the budget, and about how it falls with the price."""
        kept = self.kept(price)
        active = torch.minimum(kept.clamp(min=0.0), self.most)
        total = active.sum(1) + cost * (active - self.before).abs().sum(1) + self.added
        return total, (self.fall * ((active == kept) & (kept != self.weights))).sum(1)

    def stepped(
        self, price: Tensor, value: Tensor, falls: Tensor, sign: Tensor, cost: float, steps: int = _STEPS
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (L,) prices after some of Newton's steps, and what is taken there."""
        for _ in range(steps):
            step = price + value / falls
            goes = (value.abs() > _FITS) & (step * sign > 0) & step.isfinite()
            if price.device.type == "cpu" and not goes.any():
                break
            price = torch.where(goes, step, price)
            value, falls = self.excess(price, cost)
        return price, value, falls

    def looked_up(self, sign: Tensor, cost: float) -> Tensor:
        """Return the (L,) prices nearest to 0, on the side of the sign, at which nothing is taken beyond the budget.

        With the price a weight falls along the lower edge to what is held, waits, and falls along the upper edge to 0.
        """
        held = torch.minimum(self.weights, self.most)
        begins = torch.cat((self.low - self.most, self.high - held), 1) / torch.cat((self.fall, self.fall), 1)
        ends = torch.cat((self.low - held, self.high), 1) / torch.cat((self.fall, self.fall), 1)
        rate = torch.cat((self.fall * (1 + cost), self.fall * (1 - cost)), 1)
        rate = torch.where(begins.isfinite() & ends.isfinite(), rate, 0.0)
        place, order = torch.cat((begins, ends), 1).nan_to_num(0.0, 0.0, 0.0).sort(1)
        slope = _running_sums(torch.cat((rate, -rate), 1).gather(1, order))
        total = self.excess(place[:, 0], cost)[0][:, None]
        total = torch.cat((total, total - _running_sums(slope[:, :-1] * place.diff(dim=1))), 1)
        # Of those who take too much the last bend at which they still do, of others the last at which they do not yet.
        is_above = torch.where(sign[:, None] > 0, total > _EXACT, total >= -_EXACT)
        last = (is_above.sum(1, keepdim=True) - 1).clamp(min=0)
        at, left, falls = (part.gather(1, last)[:, 0] for part in (place, total, slope))
        found = torch.where(falls > _EXACT * self.fall.sum(1), at + left / falls, at)
        value, falls = self.excess(found, cost)
        return torch.where(falls > 0, found + value / falls, found)  # where the benchmark trades, costs bend elsewhere


def _running_sums(values: Tensor) -> Tensor:
    """Return the sums of (L, n) values up to each place; `cumsum` has no fixed order on a card."""
    if values.device.type == "cpu":
        return values.cumsum(1)
    shift = 1
    while shift < values.shape[1]:
        values = values + torch.nn.functional.pad(values[:, :-shift], (shift, 0))
        shift *= 2
    return values
