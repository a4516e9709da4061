"""Decisions of a population, the agents stacked along the first dimension.

An actor scores the stocks of a day and buys the best, each as far as it earns more than the value of the cash that it
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Self

import torch
from torch import Tensor

from models.cash_value import Accounts, Adjustment, CashValue, Decision, account_features, candidate_features
from models.networks import ActorCritic, Perceptrons, at_target
from models.risk import utility
from utils.spaces import MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, rank_stocks

_BEST = 5
"""Stocks whose mean forecast is the opportunity of a day."""
_LEAST_UNIT = 0.02
"""Least deviation of forecasts that actors' scores are measured by, in deviations of results."""
_STEP_DOWN = 1e-6
"""Share by which each order of a day is smaller than the one before, so that the best is bought first."""


@dataclass(frozen=True)
class Stacked:
    """Tensors whose first dimension is the agent."""

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return it with all tensors changed."""
        return replace(self, **{name: change(part) for name, part in vars(self).items()})

    def rows(self, rows: Tensor | slice | Sequence[int]) -> Self:
        """Return that of some agents."""
        return self.map(itemgetter(rows))

    def mean(self) -> Self:
        """Return that of the mean agent: the average of linear forecasts is a linear forecast."""
        return self.map(partial(torch.mean, dim=0, keepdim=True))

    def to(self, device: torch.device | str) -> Self:
        """Return it on a device."""
        return self.map(lambda part: part.to(device))


@dataclass(frozen=True)
class Traders(Stacked):
    """The closed-form parts of A agents."""

    weights: Tensor
    """(A, inputs) of their ridge forecasts."""
    target_percent: Tensor
    """(A,) sale target of all orders."""
    value_weight: Tensor
    """(A,) weight of the value of cash."""
    size: Tensor
    """(A,) order size as a share of the largest order, cash permitting."""

    @property
    def count(self) -> int:
        """Number of agents."""
        return len(self.weights)

    def to(self, device: torch.device | str) -> Traders:
        """Return the agents on a device, in one copy."""
        numbers = torch.column_stack((self.weights, self.target_percent, self.value_weight, self.size)).to(device)
        return Traders(*(part.clone() for part in (numbers[:, :-3], *numbers[:, -3:].unbind(1))))


def day_mean(values: Tensor, tradable: Tensor) -> Tensor:
    """Return the (..., days, 1) mean of (..., days, n) values over the stocks with a bar, (days, n)."""
    total = torch.where(tradable, values, 0.0).sum(-1, keepdim=True)
    return total / tradable.sum(-1, keepdim=True).clamp(min=1)


@dataclass(frozen=True)
class Forecasts:
    """What A agents think of the orders of each day, of all n stocks or of the best k: the part of Q and of the actor
    that depends on the day alone. Of L accounts on their day: (L, k) in place of (A, days, k)."""

    expected: Tensor
    """(A, days, k) float32 results of the largest orders, percent of the initial capital; minus infinity: none."""
    score: Tensor
    """(A, days, k) float32: the actor buys the stocks with the largest; minus infinity: it may not be bought."""
    target: Tensor
    """(A, days, k) float32 sale targets in percent."""
    opportunity: Tensor
    """(A, days) mean of the results that are expected of the best stocks of the day."""
    stock: Tensor | None = None
    """(A, days, k) int64 of each forecast, in their order; None: of all stocks."""
    penalty: Tensor | None = None
    """(A, days, k) float32 what the risk of the largest orders costs, see `models.risk`; None: nothing."""

    @classmethod
    def of(
        cls,
        expected: Tensor,
        tradable: Tensor,
        target: Tensor,
        score: Tensor | None = None,
        most: int | None = None,
        penalty: Tensor | None = None,
    ) -> Forecasts:
        """Build from (A, days, n) expected results; stocks without a bar, (days, n), get none.

        Args:
            target: (A, days, n) sale targets, or (A,) of all orders.
            score: of an actor; default: the expected results.
            most: number of the best stocks of a day of which forecasts are kept; default: of all.
            penalty: (A, days, n) what the risk of the largest orders costs; stocks are then ranked by utility.
        """
        expected = torch.where(tradable & expected.isfinite(), expected, -torch.inf)
        score = expected if score is None else torch.where(expected.isfinite(), score, -torch.inf)
        if penalty is not None:
            score = utility(score, penalty)
        target = target.to(expected.dtype)
        target = target[:, None, None].expand(expected.shape) if target.dim() == 1 else target
        whole = cls(expected, score, target, expected.new_empty(0), None, penalty)
        kept = whole if most is None else whole.best(max(most, _BEST))
        return replace(kept, opportunity=opportunity_of(kept.expected, kept.score, kept.penalty))

    @classmethod
    def on_days(cls, parts: Iterable[tuple[slice, Forecasts]], days: int) -> Forecasts:
        """Join forecasts of the best stocks on some of all `days`; none on the others."""
        all_days: dict[str, Tensor] = {}
        for some, part in parts:
            values = {name: value for name, value in vars(part).items() if value is not None}
            if not all_days:
                shapes = {name: (len(value), days, *value.shape[2:]) for name, value in values.items()}
                all_days = {name: value.new_zeros(shapes[name]) for name, value in values.items()}
                all_days["expected"].fill_(-torch.inf)
                all_days["score"].fill_(-torch.inf)
            for name, value in values.items():
                all_days[name][:, some] = value
        return cls(**all_days)

    def best(self, most: int) -> Forecasts:
        """Return the forecasts of the `most` best stocks of each day."""
        if self.stock is not None:
            return self
        stock = best_stocks(self.score, most)
        penalty = None if self.penalty is None else self.penalty.gather(2, stock)
        expected, score, target = (part.gather(2, stock) for part in (self.expected, self.score, self.target))
        return Forecasts(expected, score, target, self.opportunity, stock, penalty)

    def at(self, agent: Tensor | slice, day: Tensor | int) -> Forecasts:
        """Return those of agents on a day each."""
        held = {name: part for name, part in vars(self).items() if part is not None}
        return Forecasts(**{name: part[agent, day] for name, part in held.items()})

    @classmethod
    def none(cls, tradable: Tensor) -> Forecasts:
        """Return zero forecasts for every tradable stock, (days, n)."""
        nothing = torch.zeros(1, *tradable.shape, device=tradable.device)
        return cls.of(nothing, tradable, nothing + MAX_TARGET_PERCENT)


def opportunity_of(expected: Tensor, score: Tensor, penalty: Tensor | None = None) -> Tensor:
    """Return the (A, days) mean of the results that are expected of the stocks with the largest (A, days, k) scores,
    less what their risk costs."""
    expected = expected if penalty is None else utility(expected, penalty)
    best = expected.gather(2, score.topk(min(_BEST, score.shape[2]), dim=2).indices)
    count = best.isfinite().sum(2)
    total = torch.where(best.isfinite(), best, 0.0).sum(2)
    return torch.where(count > 0, total / count.clamp(min=1), 0.0).double()


@dataclass(frozen=True)
class Blend(Stacked):
    """What A agents expect of orders, made of ridge regression and critic, both relative to the day's mean."""

    ridge: Tensor
    """(A,) weight of the ridge regression, 0 to 1."""
    network: Tensor
    """(A,) weight of the critic's reward, at least 0: the slope of results on what it expects."""
    explained: Tensor
    """(A, 2) share of the variance of relative results that is explained out of fold: by ridge regression, by both."""
    unit: Tensor
    """(A,) deviation of the blended forecasts, percent of the initial capital."""

    @classmethod
    def of_products(cls, sums: Tensor) -> Blend:
        """Fit the weights by least squares to out-of-fold forecasts and results, by their `products` over all rows."""
        aa, ab, bb, ay, by, yy, count = sums
        tiny = 1e-12 * yy + 1e-30
        weight = ((ay * bb - by * ab) / (aa * bb - ab**2 + tiny * aa + tiny**2)).clamp(0.0, 1.0)
        slope = ((by - weight * ab) / (bb + tiny)).clamp(min=0.0)
        # Where the slope is at its bound the other weight is solved again; without a network ridge keeps its weight 1.
        weight = torch.where(slope > 0, ((ay - slope * ab) / (aa + tiny)).clamp(0.0, 1.0), 1.0)
        square = weight**2 * aa + 2 * weight * slope * ab + slope**2 * bb
        error = yy - 2 * (weight * ay + slope * by) + square
        explained = torch.stack(((2 * ay - aa), yy - error), dim=1) / (yy + tiny)[:, None]
        least = _LEAST_UNIT * (yy / count.clamp(min=1)).sqrt()
        return cls(weight, slope, explained, torch.maximum((square / count.clamp(min=1)).sqrt(), least).clamp(min=1e-6))

    @classmethod
    def of_ridge(cls, agents: int) -> Blend:
        """Return the blend of agents without networks."""
        one = torch.ones(agents, dtype=torch.float64)
        return cls(one, 0 * one, torch.zeros(agents, 2, dtype=torch.float64), one)


def products(ridge: Tensor, network: Tensor, results: Tensor) -> Tensor:
    """Return the sums of products of (A, rows) forecasts and results, and their number, (7, A) float64."""
    a, b, y = ridge, network, results
    pairs = (a, a), (a, b), (b, b), (a, y), (b, y), (y, y)
    sums = [(one * other).sum(1, dtype=torch.float64) for one, other in pairs]
    return torch.stack([*sums, torch.full_like(sums[0], y.shape[1])])


def beyond_start(typical: Tensor, target: Tensor, start: Tensor) -> Tensor:
    """Return what an order earns on average beyond one at the sale target that its agent starts from.

    Args:
        typical: (targets,) mean results at `TARGET_PERCENTS`.
        target: (A, ...) sale targets, in percent.
        start: (A,) sale targets, in percent.
    """
    first = start.to(target.dtype).view(-1, *[1] * (target.dim() - 1))
    return at_target(typical, target) - at_target(typical, first)


def best_stocks(expected: Tensor, most: int) -> Tensor:
    """Return the stocks of the largest of (A, days, n) forecasts, (A, days, most), in their order; ties go to the lower
    ones."""
    stocks = expected.shape[2]
    if most >= stocks:
        return torch.arange(stocks, device=expected.device).expand(expected.shape).contiguous()
    best = expected.topk(most, dim=2)
    stock, least = best.indices, best.values[..., -1:]
    is_tied = ((expected >= least).sum(2) > most) & least[..., 0].isfinite()
    if bool(is_tied.any()):
        stock[is_tied] = expected[is_tied].sort(dim=1, descending=True, stable=True).indices[:, :most]
    return stock.sort(dim=2).values


@dataclass(frozen=True)
class AccountPolicy:
    """The part of actors and critics that depends on the account: the size of orders, and what follows them.

    L accounts belong to G groups, one after the other; the networks of a group are averaged. Agents of a population are
    groups of one member each, a committee is one group.
    """

    size: Perceptrons
    """(G, members), see `models.networks.Actor`."""
    continuation: Perceptrons
    """(G, members), see `models.networks.Critic`."""
    calibration: Tensor
    """(G, members) scale of the closed-form part of Q, see `models.networks.Networks`."""

    @classmethod
    def of(cls, agents: ActorCritic, *, is_committee: bool = False) -> AccountPolicy:
        """Return the networks of a population, or of a committee of all its agents."""
        dim, networks = 0 if is_committee else 1, (agents.actor.size, agents.critic.continuation)
        size, continuation = (part.map(lambda flat: flat.unsqueeze(dim)) for part in networks)
        return cls(size, continuation, agents.calibration.unsqueeze(dim))

    def adjusting(self, accounts: Accounts, cash_value: CashValue, noise: Tensor | float = 0.0) -> Adjustment:
        """Return the share of the largest order by which the actors depart from the greedy rule in these accounts, plus
        (L,) exploration noise."""

        def adjustment(levels: Tensor, expected: Tensor, gain: Tensor) -> Tensor:
            features = candidate_features(accounts, cash_value, levels, expected, gain)
            return self._of_groups(self.size, features).mean(1).flatten() + noise

        return adjustment

    def value(self, decision: Decision, cash_value: CashValue) -> Tensor:
        """Return Q(s, a) of decisions, (L,) percent of the initial capital."""
        return self._calibrated(decision.reward) + self.following(decision.after, cash_value)

    def following(self, after: Accounts, cash_value: CashValue) -> Tensor:
        """Return the value of accounts after the orders of a day that is not the last, (L,) percent."""
        learned = self._of_groups(self.continuation, account_features(after, cash_value)).mean(1).flatten()
        return self._calibrated(cash_value.of(after)) + cash_value.good_order * learned

    def _calibrated(self, known: Tensor) -> Tensor:
        return (self.calibration.mean(1, keepdim=True) * known.view(len(self.calibration), -1)).flatten()

    def _of_groups(self, networks: Perceptrons, features: Tensor) -> Tensor:
        """Map (L, features) to (G, members, L / G)."""
        return networks(features.view(len(self.calibration), 1, -1, features.shape[-1]))[..., 0]


@dataclass(frozen=True)
class DailyOrders:
    """The orders of L accounts on one day, best first."""

    stock: Tensor
    """(L, k)"""
    coefficient: Tensor
    """(L, k) float32; 0: none."""
    target_percent: Tensor
    """(L, k) float32"""

    def action(self, target: Tensor) -> Tensor:
        """Return the (L, n, 2) actions of an environment, with these (L, n) sale targets."""
        coefficient = target.new_zeros(target.shape).scatter_(1, self.stock, self.coefficient)
        return torch.stack((coefficient, target), dim=-1)


def daily_orders(
    traders: Traders,
    cash_value: CashValue,
    forecasts: Forecasts,
    accounts: Accounts,
    exploration_threshold: Tensor,
    orders: int,
    slopes: Tensor | None = None,
    adjustment: Adjustment | None = None,
) -> tuple[DailyOrders, Decision]:
    """Choose the orders of L accounts by the forecasts of their day, one row of traders each.

    Args:
        exploration_threshold: (L,) percent of an order's value that it must earn beyond the value of the cash it
            takes; 0 except to explore.
        orders: k, largest number of orders of a day.
        slopes: of the value of cash, where they are known.
        adjustment: of an actor; default: none.
    """
    score, stock = rank_stocks(forecasts.score, orders)
    best = forecasts.expected.gather(1, stock).masked_fill(score == -torch.inf, -torch.inf)
    decision = cash_value.greedy(
        best.double(),
        accounts,
        value_weight=traders.value_weight,
        exploration_threshold=exploration_threshold,
        largest=traders.size,
        slopes=slopes,
        adjustment=adjustment,
        penalty=None if forecasts.penalty is None else forecasts.penalty.gather(1, stock).double(),
    )
    return DailyOrders(stock, coefficients(decision.size), forecasts.target.gather(1, stock)), decision


def coefficients(size: Tensor) -> Tensor:
    """Return the (L, k) float32 coefficients of orders of these sizes, shares of the largest order, the best first.

    Each is a tiny share smaller than the one before, so that the best is bought first.
    """
    last = MAX_COEFFICIENT * (1 - _STEP_DOWN * (size.shape[1] - 1))
    largest = torch.linspace(MAX_COEFFICIENT, last, size.shape[1], dtype=torch.float64, device=size.device)
    # Orders below the smallest coefficient are placed at it, and cut to the cash.
    return ((size * largest).clamp(min=MIN_COEFFICIENT) * (size > 0)).float()
