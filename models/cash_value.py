"""The value of cash: what an account can still earn after today's orders.

Cash spent today cannot buy a better trade tomorrow; it returns when the trade is closed. The value function is linear
in products of piecewise linear functions of cash, time and opportunity. It is learned by least-squares
policy iteration (Lagoudakis and Parr 2003, "Least-squares policy iteration", JMLR 4) on states after the decision
(Powell 2011, "Approximate dynamic programming", section 4.6), so that no model of prices is needed.

The rewards are forecasts, not realised results, which would only add noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

import torch
from torch import Tensor

from models.risk import best_size
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, SESSIONS_HELD, SIZE, TRADING_LEFT

BUCKETS = 4
"""Parts of the holding period by which the capital in open positions is grouped."""
_CASH = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Knots of the value function in cash, shares of the initial capital."""
_OPPORTUNITIES = (0.05, 0.5, 0.95)
"""Knots of the value function in opportunity, as quantiles."""
_RIDGE = 1e-4
"""Penalty on the weights, in multiples of the number of transitions; features lie between 0 and 1."""
_ROWS_AT_ONCE = 16_384
FEATURES = 8
"""Features of an account, or of a candidate, that networks see."""
_LARGEST_FEATURE = 4.0
_MONTH = 21.0
Adjustment = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From (L, 3) levels of cash, (L,) expected results of a candidate, and what the largest order of it gains beyond the
cash that it takes, to the share of that order by which an actor departs from the greedy rule."""


@dataclass(frozen=True)
class Accounts:
    """The state of L accounts, as far as the value of cash depends on it."""

    cash: Tensor
    """(L,) share of the initial capital."""
    pending: Tensor
    """(L, BUCKETS) value of open positions at their entry, share of the initial capital, those due first in front."""
    left: Tensor
    """(L,) days on which orders may still be given, today left out."""
    opportunity: Tensor
    """(L,) mean of the largest expected results of the day, see `models.trader.Forecasts`."""

    def after(self, spent: Tensor, invested: Tensor) -> Accounts:
        """Return the accounts with (L,) cash spent and (L,) invested in new positions."""
        pending = torch.cat((self.pending[..., :-1], self.pending[..., -1:] + invested[..., None]), dim=-1)
        return replace(self, cash=self.cash - spent, pending=pending)

    def map(self, change: Callable[[Tensor], Tensor]) -> Accounts:
        """Return accounts of the changed parts."""
        return Accounts(**{name: change(value) for name, value in vars(self).items()})

    @property
    def levels(self) -> Tensor:
        """Return (L, 3) cash now, cash soon and all cash in the end."""
        soon, in_the_end = self.pending[..., : BUCKETS // 2].sum(-1), self.pending.sum(-1)
        return torch.stack((self.cash, self.cash + soon, self.cash + in_the_end), dim=-1)


@dataclass(frozen=True)
class Decision:
    """Orders for the k best stocks of L accounts."""

    size: Tensor
    """(L, k) shares of the largest order; 0: none."""
    best: Tensor
    """(L, k) expected results of the largest orders, percent of the initial capital."""
    before: Accounts
    largest_order: float
    purchase_factor: float
    penalty: Tensor | None = None
    """(L, k) what the risk of the largest orders costs, in the same unit; it grows with the square of the size."""

    @property
    def reward(self) -> Tensor:
        """Return the (L,) expected results of the orders less what their risk costs, percent of the initial capital."""
        # Nothing is ordered where there is no candidate; its minus infinity must not reach a gradient.
        result = self.size * torch.where(self.best > -torch.inf, self.best, 0.0)
        if self.penalty is not None:
            result = result - self.size.square() * self.penalty
        return result.sum(-1)

    @property
    def after(self) -> Accounts:
        """Return the accounts after the orders."""
        invested = self.size.sum(-1) * self.largest_order
        return self.before.after(invested * self.purchase_factor, invested)


@dataclass(frozen=True)
class CashValue:
    """The expected sum of the results of all later orders, percent of the initial capital."""

    weights: Tensor
    """(features,)"""
    by_left: Tensor
    """(trading days + 1, j) weights of the knots of time, by days left; 0 where no order can be given any more."""
    opportunity_knots: Tensor
    """(3,) knots of the value function in opportunity."""
    largest_order: float
    """Share of the initial capital."""
    purchase_factor: float
    """Cash that an order takes, as a multiple of its value."""
    cash_knots: Tensor
    """(5,) knots in cash, shares of the initial capital."""
    spent: Tensor
    """(3,) what the largest order takes from `Accounts.levels`: in the end only its costs."""

    @classmethod
    def zero(cls, rules: EnvironmentConfig, device: torch.device | str = "cpu") -> CashValue:
        """Return a value function that is zero everywhere."""
        held = rules.max_holding_days
        days = sorted({0.0, held / 4, float(held), 3.0 * held, float(rules.trading_days)})
        knots = torch.tensor([day for day in days if day <= rules.trading_days], dtype=torch.float64, device=device)
        left = torch.arange(rules.trading_days + 1, device=device)
        opportunity = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, device=device)
        features = len(knots) * 3 * len(_CASH) * len(opportunity)
        weights = torch.zeros(features, dtype=torch.float64, device=device)
        cash = torch.tensor(_CASH, dtype=torch.float64, device=device)
        paid = rules.largest_order * rules.purchase_factor
        spent = torch.tensor((paid, paid, paid - rules.largest_order), dtype=torch.float64, device=device)
        by_left = hats(left, knots) * (left > 0)[:, None]
        return cls(weights, by_left, opportunity, rules.largest_order, rules.purchase_factor, cash, spent)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what was learned."""
        return {"weights": self.weights, "opportunity_knots": self.opportunity_knots}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], rules: EnvironmentConfig, device: torch.device | str) -> CashValue:
        """Restore what `state_dict` gave under the same rules."""
        return cls.zero(rules, device).with_values(**{name: value.to(device) for name, value in state.items()})

    def features(self, accounts: Accounts) -> Tensor:
        """Return (L, features) float32: weights of days left, of opportunities and of levels of cash, multiplied."""
        left = self.by_left[self._days(accounts.left)]
        context = (left[:, :, None] * hats(accounts.opportunity, self.opportunity_knots)[:, None, :]).flatten(1)
        cash = hats(accounts.levels, self.cash_knots).flatten(1)
        return (context.float()[:, :, None] * cash.float()[:, None, :]).flatten(1)

    def of(self, accounts: Accounts) -> Tensor:
        """Value (L,) accounts after their decision."""
        by_cash = self._on_days(self._by_left, accounts.left, accounts.opportunity)
        return (by_cash * hats(accounts.levels, self.cash_knots)).sum((-2, -1))

    @cached_property
    def good_order(self) -> Tensor:
        """Return what is expected of the largest order on one of the best days, percent of the initial capital."""
        return self.opportunity_knots[-1].clamp(min=1e-3)

    def slopes(self, left: Tensor, opportunity: Tensor) -> Tensor:
        """Return the slopes of the value function in each level of cash: (..., 3, knots - 1)."""
        return self._on_days(self._by_left.diff(dim=-1), left, opportunity)

    @cached_property
    def _by_left(self) -> Tensor:
        """Return the value at the knots of cash by days left: (trading days + 1, knots of opportunity, 3, knots)."""
        weights = self.weights.view(self.by_left.shape[1], -1)
        return (self.by_left @ weights).view(len(self.by_left), -1, len(self.spent), len(_CASH))

    def _on_days(self, by_left: Tensor, left: Tensor, opportunity: Tensor) -> Tensor:
        """Interpolate (days left, knots of opportunity, ...) to (...,) days left and opportunities.

        Number by number and not as a product of matrices, whose bits would depend on how many accounts there are.
        """
        days, passed = self._days(left), ramps(opportunity, self.opportunity_knots)[..., None, None]
        rises = by_left.diff(dim=1)
        value = by_left[:, 0][days]
        for place in range(rises.shape[1]):
            value = value + passed[..., place, :, :] * rises[:, place][days]
        return value

    def _days(self, left: Tensor) -> Tensor:
        return left.long().clamp(max=len(self.by_left) - 1)

    def with_values(self, weights: Tensor, opportunity_knots: Tensor) -> CashValue:
        """Return the value function with other weights and knots; ValueError where shapes differ."""
        if (weights.shape, opportunity_knots.shape) != (self.weights.shape, self.opportunity_knots.shape):
            raise ValueError(f"expected {tuple(self.weights.shape)} weights, got {tuple(weights.shape)}")
        return replace(self, weights=weights, opportunity_knots=opportunity_knots)

    def greedy(
        self,
        best: Tensor,
        accounts: Accounts,
        *,
        value_weight: Tensor | float = 1.0,
        exploration_threshold: Tensor | float = 0.0,
        largest: Tensor | float = 1.0,
        slopes: Tensor | None = None,
        adjustment: Adjustment | None = None,
        penalty: Tensor | None = None,
    ) -> Decision:
        """Decide greedily: order the best stocks in turn while each earns more than the value of the cash it takes.

        Args:
            best: (L, k) expected results of the largest orders, percent of the initial capital, the best first; minus
                infinity where there is no candidate.
            value_weight: (L,) weight of the value of the cash that an order takes.
            exploration_threshold: (L,) percent of an order's value that it must earn beyond that.
            largest: (L,) share of the largest order that an order has, if the cash suffices.
            slopes: see `slopes`; computed if not given.
            adjustment: the actor's residual; without one an order is as large as pays best, or none.
            penalty: (L, k) what the risk of the largest orders costs; with it the largest may be too large.
        """
        if slopes is None:
            slopes = self.slopes(accounts.left, accounts.opportunity)
        per_order = self.largest_order * self.purchase_factor
        # Smaller orders are not placed, unless all of the cash pays for no more.
        smallest = MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1.0 / per_order)
        sizes: list[Tensor] = []
        levels, margin = accounts.levels, exploration_threshold * self.largest_order
        for rank, expected in enumerate(best.unbind(1)):
            if sizes:
                levels = levels - sizes[-1][:, None] * self.spent
            size = (levels[:, 0] / per_order).clamp(max=largest)
            cost = value_weight * self._worth(levels, size, slopes)
            is_candidate = expected > -torch.inf
            expected = torch.where(is_candidate, expected, 0.0)  # minus infinity would spoil gradients
            gain = size * (expected - margin) - cost
            ordered: Tensor | float = 1.0
            if penalty is not None:
                risk, unit = penalty[:, rank], size.clamp(min=1e-9)
                chosen = torch.minimum(size, best_size(expected - margin - cost / unit, risk))
                cost = value_weight * self._worth(levels, chosen, slopes)
                gain = chosen * (expected - margin) - chosen.square() * risk - cost
                ordered = chosen / unit
            is_ordered = (gain > 0) & is_candidate
            if adjustment is not None:
                share = (is_ordered * ordered + adjustment(levels, expected, gain)).clamp(0.0, 1.0)
                size = size * share * is_candidate
                # Straight-through: the gradient also reaches orders that are too small to be placed.
                sizes.append(size + (size * (size >= smallest) - size).detach())
            else:
                size = size * ordered
                sizes.append(size * (is_ordered & (size >= smallest)))
        orders = self.largest_order, self.purchase_factor
        return Decision(torch.stack(sizes, dim=1), best, accounts, *orders, penalty)

    def _worth(self, levels: Tensor, size: Tensor, slopes: Tensor) -> Tensor:
        """Return the (L,) value of the cash that orders of these sizes take from (L, 3) levels."""
        after = levels - size[:, None] * self.spent
        passed = ramps(levels, self.cash_knots) - ramps(after, self.cash_knots)
        return (slopes * passed).sum((-2, -1))


def improve(
    cash_value: CashValue,
    after: Accounts,
    following: Accounts,
    next_best: Tensor,
    gamma: float,
    iterations: int,
    next_penalty: Tensor | None = None,
) -> CashValue:
    """Improve the value function by least-squares policy iteration over N transitions between two decisions.

    Each iteration evaluates the policy that is greedy with respect to the value before: V(s) = gamma (r' + V(s')) is
    solved over the transitions by least-squares temporal differences (Bradtke and Barto 1996).

    Args:
        after: accounts after the first decision.
        following: before the second, with the (N, k) expected results of its best candidates, `next_best`, and with
            what their risk costs, `next_penalty`.
    """
    quantiles = torch.tensor(_OPPORTUNITIES, dtype=torch.float64, device=next_best.device)
    knots = torch.quantile(after.opportunity.double()[:: 1 + len(next_best) // 100_000], quantiles)
    steps = torch.arange(len(knots), device=knots.device) * (1e-6 + 1e-6 * knots.abs().max())
    learned = replace(cash_value, opportunity_knots=knots + steps)  # distinct even where all opportunities are equal
    parts = [itemgetter(slice(row, row + _ROWS_AT_ONCE)) for row in range(0, len(next_best), _ROWS_AT_ONCE)]
    features = [learned.features(after.map(part)) for part in parts]
    gram = torch.stack([(now.T @ now).double() for now in features]).sum(0)
    gram = gram + _RIDGE * len(next_best) * torch.eye(len(gram), dtype=torch.float64, device=knots.device)
    for _ in range(iterations):
        left, right = gram.clone(), torch.zeros_like(learned.weights)
        for now, part in zip(features, parts, strict=True):
            penalty = None if next_penalty is None else part(next_penalty)
            decision = cash_value.greedy(part(next_best), following.map(part), penalty=penalty)
            left -= gamma * (now.T @ learned.features(decision.after)).double()
            right += gamma * (now.T @ decision.reward.float()).double()
        cash_value = replace(learned, weights=torch.linalg.solve(left, right))
    return cash_value


def ramps(values: Tensor, knots: Tensor) -> Tensor:
    """Return (..., knots - 1): the fraction, 0 to 1, of each interval between knots that lies below the value."""
    return ((values.double()[..., None] - knots[:-1]) / knots.diff()).clamp(0.0, 1.0)


def hats(values: Tensor, knots: Tensor) -> Tensor:
    """Return the (..., knots) weights of linear interpolation between the knots; beyond them the last one's is 1."""
    passed = ramps(values, knots)
    return torch.cat((1.0 - passed[..., :1], passed[..., :-1] - passed[..., 1:], passed[..., -1:]), dim=-1)


def accounts_of(positions: Tensor, account: Tensor, opportunity: Tensor, rules: EnvironmentConfig) -> Accounts:
    """Describe accounts by their (L, K, 6) positions, 0 where none is held, (L, 3) state and (L,) opportunities."""
    left = (account[:, TRADING_LEFT].double() * rules.trading_days).round() - 1
    buckets = buckets_of((positions[..., SESSIONS_HELD] * rules.max_holding_days).round(), rules)
    return accounts_in(account[:, 0], positions[..., SIZE], buckets, left.clamp(min=0), opportunity, rules)


def accounts_in(
    cash: Tensor, size: Tensor, buckets: Tensor, left: Tensor, opportunity: Tensor, rules: EnvironmentConfig
) -> Accounts:
    """Describe accounts by what is observed of them.

    Args:
        cash: (L,) float32 share of the initial capital.
        size: (L, K) float32 sizes of positions at their entry, shares of the largest order; 0 where none is held.
        buckets: of these positions, see `buckets_of`.
    """
    # A sum of float32 numbers of that size is exact in float64: the same in any order.
    pending = (size.double()[:, None] @ buckets)[:, 0] * rules.largest_order
    return Accounts(cash.double().clamp(min=0.0), pending, left, opportunity)


def buckets_of(sessions_held: Tensor, rules: EnvironmentConfig) -> Tensor:
    """Return (..., K, BUCKETS) float64 from (..., K) sessions held: 1 where the sessions left belong to the bucket."""
    left = (rules.max_holding_days - sessions_held).clamp(1, rules.max_holding_days)
    bucket = ((left - 1) * BUCKETS / rules.max_holding_days).long()
    return (bucket[..., None] == torch.arange(BUCKETS, device=bucket.device)).double()


def account_features(accounts: Accounts, cash_value: CashValue) -> Tensor:
    """Describe (...,) accounts to a network: (..., 8) float32 of the order of 1."""
    parts = (accounts.cash[..., None], accounts.pending, _time_features(accounts, cash_value))
    return torch.cat([part.float() for part in parts], dim=-1)


def candidate_features(
    accounts: Accounts, cash_value: CashValue, levels: Tensor, expected: Tensor, gain: Tensor
) -> Tensor:
    """Describe a candidate of (...,) accounts to a network: (..., 8) float32; see `Adjustment` for the last three."""
    result = (torch.stack((expected, gain), dim=-1) / cash_value.good_order).nan_to_num(0.0, 0.0, 0.0)
    parts = levels, _time_features(accounts, cash_value), result.clamp(-_LARGEST_FEATURE, _LARGEST_FEATURE)
    return torch.cat([part.float() for part in parts], dim=-1)


def _time_features(accounts: Accounts, cash_value: CashValue) -> Tensor:
    """Return (..., 3): the share of the trading days that is left, that of a month, and the day's opportunity."""
    days = len(cash_value.by_left) - 1
    opportunity = (accounts.opportunity / cash_value.good_order).clamp(-_LARGEST_FEATURE, _LARGEST_FEATURE)
    return torch.stack((accounts.left / days, (accounts.left / _MONTH).clamp(max=1.0), opportunity), dim=-1)
