"""Decisions of a population, the agents stacked along the first dimension.

An agent orders the stocks with the best forecasts while they earn more than the value of the cash that they take.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from models.cash_value import Accounts, Adjustment, CashValue, Decision, account_features, candidate_features
from models.networks import Critic, Perceptrons
from utils.config.trader import EnvironmentConfig
from utils.spaces import ACTION_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_COEFFICIENT, rank_stocks

_BEST = 5
"""Stocks whose mean forecast is the opportunity of a day."""
ACTOR_BOUND = 0.5
"""Bound of the actor's residual on the greedy rule, as a share of the largest order."""
_STEP_DOWN = 1e-6
"""Share by which each order of a day is smaller than the one before, so that the best is bought first."""


@dataclass(frozen=True)
class Traders:
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

    @classmethod
    def of_market(cls, rules: EnvironmentConfig, inputs: int) -> Traders:
        """Return an agent without forecasts, whose order size spreads its capital over the most positions.

        So many are open when all orders of each day are placed and held for the longest time.
        """
        share = 1 / (rules.max_new_positions_per_day * rules.max_holding_days) / rules.largest_order
        numbers = (MAX_TARGET_PERCENT, 0.0, min(1.0, max(share, MIN_COEFFICIENT / MAX_COEFFICIENT)))
        weights = torch.zeros(1, inputs, dtype=torch.float64)
        return cls(weights, *(torch.tensor([number], dtype=torch.float64) for number in numbers))

    def to(self, device: torch.device | str) -> Traders:
        """Return the agents on a device, in one copy."""
        numbers = torch.column_stack((self.weights, self.target_percent, self.value_weight, self.size)).to(device)
        return Traders(*(part.clone() for part in (numbers[:, :-3], *numbers[:, -3:].unbind(1))))

    def rows(self, rows: Tensor | slice) -> Traders:
        """Return some of the agents."""
        return Traders(**{name: value[rows] for name, value in vars(self).items()})

    def mean(self) -> Traders:
        """Return the mean agent: the average of linear forecasts is a linear forecast."""
        return Traders(**{name: value.mean(0, keepdim=True) for name, value in vars(self).items()})


def day_mean(values: Tensor, tradable: Tensor) -> Tensor:
    """Return the (..., days, 1) mean of (..., days, n) values over the stocks with a bar, (days, n)."""
    total = torch.where(tradable, values, 0.0).sum(-1, keepdim=True)
    return total / tradable.sum(-1, keepdim=True).clamp(min=1)


def relative_to_day(values: Tensor, tradable: Tensor) -> Tensor:
    """Return (..., days, n) values less their mean over the stocks with a bar."""
    return values - day_mean(values, tradable)


@dataclass(frozen=True)
class Forecasts:
    """Forecasts of A agents for the orders of each day, of all n stocks or of the best k."""

    expected: Tensor
    """(A, days, k) float32 results of the largest orders, percent of the initial capital; minus infinity: none."""
    opportunity: Tensor
    """(A, days) mean of the largest forecasts of the day."""
    stock: Tensor | None = None
    """(A, days, k) int64 of each forecast, in their order; None: of all stocks."""

    @classmethod
    def of(cls, expected: Tensor, tradable: Tensor, most: int | None = None) -> Forecasts:
        """Build from (A, days, n) expected results; stocks without a bar, (days, n), get none.

        Args:
            most: number of the best stocks of a day of which forecasts are kept; default: of all.
        """
        expected = torch.where(tradable & expected.isfinite(), expected, -torch.inf)
        stock = None if most is None else best_stocks(expected, max(most, _BEST))
        expected = expected if stock is None else expected.gather(2, stock)
        best = expected.topk(min(_BEST, expected.shape[2]), dim=2).values
        count = best.isfinite().sum(2)
        total = torch.where(best.isfinite(), best, 0.0).sum(2)
        return cls(expected, torch.where(count > 0, total / count.clamp(min=1), 0.0).double(), stock)

    @classmethod
    def on_days(cls, parts: Iterable[tuple[slice, Forecasts]], days: int) -> Forecasts:
        """Join the forecasts of the best stocks on some of so many days; none on the others."""
        found: dict[str, Tensor] = {}
        for some, part in parts:
            own = vars(part)
            if not found:
                shapes = {name: (len(value), days, *value.shape[2:]) for name, value in own.items()}
                found = {name: value.new_zeros(shapes[name]) for name, value in own.items()}
                found["expected"].fill_(-torch.inf)
            for name, value in own.items():
                found[name][:, some] = value
        return cls(**found)

    def best(self, most: int) -> Forecasts:
        """Return the forecasts of so many of the best stocks of each day."""
        if self.stock is not None:
            return self
        stock = best_stocks(self.expected, most)
        return Forecasts(self.expected.gather(2, stock), self.opportunity, stock)

    @classmethod
    def none(cls, tradable: Tensor) -> Forecasts:
        """Return the forecasts of an agent that has none: 0 for every stock with a bar, (days, n)."""
        return cls.of(torch.zeros(1, *tradable.shape, device=tradable.device), tradable)


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


_NETWORKS = ("actor", "continuation")


@dataclass(frozen=True)
class PolicyNetworks:
    """Residual policies (Silver et al. 2018, "Residual policy learning") and the learned part of their value.

    L accounts belong to G groups, one after the other; the networks of a group are averaged. Agents of a population are
    groups of one member each, a committee is one group.
    """

    actor: Perceptrons
    """(G, members)"""
    continuation: Perceptrons
    """(G, members), see `models.networks.Critic`."""
    gate: Tensor
    """(G, members) 1 where the actor's residual is played, else 0."""
    calibration: Tensor
    """(G, members) scale of the closed-form part of Q, see `models.networks.Networks`."""

    @classmethod
    def of(cls, actor: Perceptrons, critic: Critic, calibration: Tensor, gate: Tensor | None = None) -> PolicyNetworks:
        """Return the networks of a population; (A,) gates, default: all residuals are played."""
        own, follows = (part.map(lambda tensor: tensor[:, None]) for part in (actor, critic.continuation))
        gate = torch.ones_like(own.flat[:, 0, 0]) if gate is None else gate
        return cls(own, follows, gate[:, None], calibration[:, None])

    @classmethod
    def of_committee(cls, actor: Perceptrons, critic: Critic, calibration: Tensor, gate: Tensor) -> PolicyNetworks:
        """Return the networks of a committee of all these agents."""
        own, follows = (part.map(lambda tensor: tensor[None]) for part in (actor, critic.continuation))
        return cls(own, follows, gate[None], calibration[None])

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        parts = {f"{name} {n}": part for name in _NETWORKS for n, part in enumerate(getattr(self, name).parts)}
        return {**parts, "gate": self.gate, "calibration": self.calibration}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> PolicyNetworks:
        """Build from what `tensors` gave, among others."""
        actor, continuation = (Perceptrons.named(tensors, name) for name in _NETWORKS)
        return cls(actor, continuation, tensors["gate"], tensors["calibration"])

    def adjusting(self, accounts: Accounts, cash_value: CashValue, noise: Tensor | float = 0.0) -> Adjustment:
        """Return the actors' residual on the orders of these accounts, plus (L,) exploration noise."""

        def adjustment(levels: Tensor, expected: Tensor, gain: Tensor) -> Tensor:
            features = candidate_features(accounts, cash_value, levels, expected, gain)
            residual = torch.tanh(self._of_groups(self.actor, features))
            return ACTOR_BOUND * (self.gate[..., None] * residual).mean(1).flatten() + noise

        return adjustment

    def value(self, decision: Decision, cash_value: CashValue) -> Tensor:
        """Return Q(s, a) of decisions, (L,) percent of the initial capital."""
        after = decision.after
        learned = self._of_groups(self.continuation, account_features(after, cash_value)).mean(1).flatten()
        known = (decision.reward + cash_value.of(after)).view(len(self.gate), -1)
        calibrated = (self.calibration.mean(1, keepdim=True) * known).flatten()
        return calibrated + cash_value.good_order * learned * (after.left > 0)

    def _of_groups(self, networks: Perceptrons, features: Tensor) -> Tensor:
        """Map (L, features) to (G, members, L / G)."""
        return networks(features.view(len(self.gate), 1, -1, features.shape[-1]))[..., 0]


@dataclass(frozen=True)
class DailyOrders:
    """The orders of L accounts on one day, best first."""

    stock: Tensor
    """(L, k)"""
    coefficient: Tensor
    """(L, k) float32; 0: none."""
    target_percent: Tensor
    """(L,) float32"""

    def action(self, stocks: int) -> Tensor:
        """Return the (L, n, 2) actions of an environment."""
        action = self.coefficient.new_zeros(len(self.stock), stocks, ACTION_FEATURES)
        action[..., 0].scatter_(1, self.stock, self.coefficient)
        action[..., 1] = self.target_percent[:, None]
        return action


@dataclass(frozen=True)
class GreedyOrders(DailyOrders):
    """Orders by forecasts."""

    decision: Decision


def daily_orders(
    traders: Traders,
    cash_value: CashValue,
    expected: Tensor,
    accounts: Accounts,
    exploration_threshold: Tensor,
    orders: int,
    slopes: Tensor | None = None,
    adjustment: Adjustment | None = None,
) -> GreedyOrders:
    """Choose the orders of L accounts, one row of traders each.

    Args:
        expected: (L, n) expected results of the candidates, minus infinity for all others.
        exploration_threshold: (L,) percent of an order's value that it must earn beyond the value of the cash it
            takes; 0 except to explore.
        orders: k, largest number of orders of a day.
        slopes: of the value of cash, where they are known.
        adjustment: of an actor; default: none.
    """
    best, stock = rank_stocks(expected, orders)
    decision = cash_value.greedy(
        best.double(),
        accounts,
        value_weight=traders.value_weight,
        exploration_threshold=exploration_threshold,
        largest=traders.size,
        slopes=slopes,
        adjustment=adjustment,
    )
    return GreedyOrders(stock, coefficients(decision.size), traders.target_percent.float(), decision)


def coefficients(size: Tensor) -> Tensor:
    """Return the (L, k) float32 coefficients of orders of these sizes, shares of the largest order, the best first.

    Each is a tiny share smaller than the one before, so that the best is bought first.
    """
    last = MAX_COEFFICIENT * (1 - _STEP_DOWN * (size.shape[1] - 1))
    largest = torch.linspace(MAX_COEFFICIENT, last, size.shape[1], dtype=torch.float64, device=size.device)
    # Orders below the smallest coefficient are placed at it, and cut to the cash.
    return ((size * largest).clamp(min=MIN_COEFFICIENT) * (size > 0)).float()
