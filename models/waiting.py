"""The value of waiting: what an account can still earn after its orders of a day.

Cash that is spent today cannot be spent on a better trade tomorrow; it comes back when the trade is closed. The value
is linear in products of piecewise linear functions of cash, time and opportunities. It is learned by least-squares
policy iteration (Lagoudakis and Parr 2003, "Least-squares policy iteration", JMLR 4) on states after the decision
(Powell 2011, "Approximate dynamic programming", section 4.6), so that nothing has to be known of how prices move.

Trades earn what the critic expects of them, not what one of them happened to earn: a result adds noise, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, SESSIONS_HELD, SIZE, TRADING_LEFT

BUCKETS = 4
"""Parts of the holding period by which the capital in open positions is told apart."""
_CASH = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Shares of the initial capital between which the value of cash bends."""
_OPPORTUNITIES = (0.05, 0.5, 0.95)
"""Quantiles of the opportunities between which values bend."""
_RIDGE = 1e-4
"""Penalty on the weights, in multiples of the number of transitions; features lie between 0 and 1."""
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class Accounts:
    """What the value of waiting depends on, in L accounts."""

    cash: Tensor
    """(L,) share of the initial capital."""
    pending: Tensor
    """(L, BUCKETS) value of open positions at their entry, share of the initial capital, those due first in front."""
    left: Tensor
    """(L,) days on which orders may still be given, today left out."""
    opportunity: Tensor
    """(L,) mean of the largest expected results of the day, see `models.trader.Outlook`."""

    def after(self, spent: Tensor, invested: Tensor) -> Accounts:
        """Return the accounts with so much less cash and so much more in new positions, (L,) each."""
        pending = torch.cat((self.pending[:, :-1], self.pending[:, -1:] + invested[:, None]), dim=1)
        return replace(self, cash=self.cash - spent, pending=pending)


@dataclass(frozen=True)
class Decision:
    """Orders for the k best stocks of L accounts."""

    size: Tensor
    """(L, k) shares of the largest order; 0: none."""
    reward: Tensor
    """(L,) expected results of the orders, percent of the initial capital."""
    after: Accounts


@dataclass(frozen=True)
class WaitingValue:
    """The expected sum of the results of all later orders, percent of the initial capital."""

    weights: Tensor
    """(features,)"""
    left_knots: Tensor
    """(j,) days left between which values bend; no order is given later than the first."""
    opportunity_knots: Tensor
    """(3,) opportunities between which values bend."""
    largest_order: float
    """Share of the initial capital."""
    cost_rate: float
    """Of a leg, as a share of the value traded."""
    cash_knots: Tensor
    """(5,) shares of the initial capital between which values bend."""

    @classmethod
    def zero(cls, rules: EnvironmentConfig, device: torch.device | str = "cpu") -> WaitingValue:
        """Return the value that has learned nothing: waiting is worth nothing."""
        held = rules.max_holding_days
        days = sorted({0.0, held / 4, float(held), 3.0 * held, float(rules.trading_days)})
        left = torch.tensor([day for day in days if day <= rules.trading_days], dtype=torch.float64, device=device)
        opportunity = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64, device=device)
        features = len(left) * 3 * len(_CASH) * len(opportunity)
        weights = torch.zeros(features, dtype=torch.float64, device=device)
        cash = torch.tensor(_CASH, dtype=torch.float64, device=device)
        return cls(weights, left, opportunity, rules.largest_order, rules.cost_rate, cash)

    def features(self, accounts: Accounts) -> Tensor:
        """Return (L, features) float32: each of `_context` times each of `_cash`."""
        context, cash = self._context(accounts), self._cash(accounts)
        return (context.float()[:, :, None] * cash.float()[:, None, :]).flatten(1)

    def _context(self, accounts: Accounts) -> Tensor:
        """Return (L, j * 3) weights of the time left and opportunities; 0 where no order can be given any more."""
        left = hats(accounts.left, self.left_knots) * (accounts.left > 0)[:, None]
        opportunity = hats(accounts.opportunity, self.opportunity_knots)
        return (left[:, :, None] * opportunity[:, None, :]).flatten(1)

    def _cash(self, accounts: Accounts) -> Tensor:
        """Return (L, 3 * knots) weights of cash now, of cash soon and of all cash in the end."""
        soon = accounts.cash + accounts.pending[:, : BUCKETS // 2].sum(1)
        in_the_end = accounts.cash + accounts.pending.sum(1)
        return hats(torch.stack((accounts.cash, soon, in_the_end), dim=1), self.cash_knots).flatten(1)

    def of(self, accounts: Accounts) -> Tensor:
        """Value (L,) accounts after their decision."""
        return (self._by_cash(accounts) * self._cash(accounts)).sum(1)

    def _by_cash(self, accounts: Accounts) -> Tensor:
        """Return the (L, 3 * knots) weights of cash on the day of the accounts."""
        return self._context(accounts) @ self.weights.view(-1, 3 * len(_CASH))

    def with_values(self, weights: Tensor, opportunity_knots: Tensor) -> WaitingValue:
        """Return the value with other weights, and the knots that they were learned with; ValueError if none fit."""
        if (weights.shape, opportunity_knots.shape) != (self.weights.shape, self.opportunity_knots.shape):
            raise ValueError(f"expected {tuple(self.weights.shape)} weights, got {tuple(weights.shape)}")
        return replace(self, weights=weights, opportunity_knots=opportunity_knots)

    def decide(
        self,
        best: Tensor,
        accounts: Accounts,
        *,
        patience: Tensor | float = 1.0,
        caution: Tensor | float = 0.0,
        largest: Tensor | float = 1.0,
    ) -> Decision:
        """Order the best stocks, one after the other, where they earn more than the cash would by waiting.

        Args:
            best: (L, k) expected results of the largest orders, percent of the initial capital, the best first; minus
                infinity where there is no candidate.
            patience: (L,) weight of the value that an order takes from waiting.
            caution: (L,) expected result, percent of an order's value, that it must have beyond that.
            largest: (L,) share of the largest order that an order has, if the cash suffices.
        """
        sizes, reward = [], torch.zeros_like(accounts.cash)
        by_cash = self._by_cash(accounts)  # orders change neither the day nor its opportunities
        per_order = self.largest_order * (1 + self.cost_rate)
        # Less is left in cash, but where all of it pays for no more.
        smallest = MIN_COEFFICIENT / MAX_COEFFICIENT * min(1.0, 1.0 / per_order)
        for expected in best.unbind(1):
            size = (accounts.cash / per_order).clamp(max=largest)
            after = accounts.after(size * per_order, size * self.largest_order)
            lost = (by_cash * (self._cash(accounts) - self._cash(after))).sum(1)
            gain = size * expected - patience * lost - caution * size * self.largest_order
            is_ordered = (gain > 0) & (size >= smallest) & (expected > -torch.inf)
            size = torch.where(is_ordered, size, 0.0)
            reward = reward + torch.where(is_ordered, size * expected, 0.0)
            accounts = accounts.after(size * per_order, size * self.largest_order)
            sizes.append(size)
        return Decision(torch.stack(sizes, dim=1), reward, accounts)


@dataclass(frozen=True)
class Waits:
    """N transitions between two decisions of an account."""

    after: Accounts
    """After the first."""
    next: Accounts
    """Before the second."""
    next_best: Tensor
    """(N, k) expected results of the best candidates of the second."""

    def rows(self, rows: slice) -> Waits:
        """Return some of the transitions."""
        after, following = (
            Accounts(**{name: value[rows] for name, value in vars(accounts).items()})
            for accounts in (self.after, self.next)
        )
        return Waits(after, following, self.next_best[rows])


def improve(waiting: WaitingValue, waits: Waits, gamma: float, iterations: int) -> WaitingValue:
    """Learn the value of the policy that orders by it: so many policy iterations, from the value there is.

    In each the policy is that of the value before; its value solves V(s) = gamma (r' + V(s')) over the transitions in
    the least-squares sense of temporal differences (Bradtke and Barto 1996).
    """
    quantiles = torch.tensor(_OPPORTUNITIES, dtype=torch.float64, device=waits.after.opportunity.device)
    knots = torch.quantile(waits.after.opportunity.double()[:: 1 + len(waits.next_best) // 100_000], quantiles)
    steps = torch.arange(len(knots), device=knots.device) * (1e-6 + 1e-6 * knots.abs().max())
    learned = replace(waiting, opportunity_knots=knots + steps)  # distinct where opportunities are all alike
    parts = [waits.rows(slice(row, row + _ROWS_AT_ONCE)) for row in range(0, len(waits.next_best), _ROWS_AT_ONCE)]
    features = [learned.features(part.after) for part in parts]
    gram = torch.stack([(now.T @ now).double() for now in features]).sum(0)
    gram = gram + _RIDGE * len(waits.next_best) * torch.eye(len(gram), dtype=torch.float64, device=knots.device)
    for _ in range(iterations):
        left, right = gram.clone(), torch.zeros_like(learned.weights)
        for now, part in zip(features, parts, strict=True):
            decision = waiting.decide(part.next_best, part.next)
            left -= gamma * (now.T @ learned.features(decision.after)).double()
            right += gamma * (now.T @ decision.reward.float()).double()
        waiting = replace(learned, weights=torch.linalg.solve(left, right))
    return waiting


def hats(values: Tensor, knots: Tensor) -> Tensor:
    """Return the (..., knots) weights of linear interpolation between the knots; beyond them the last one's is 1."""
    passed = ((values.double()[..., None] - knots[:-1]) / knots.diff()).clamp(0.0, 1.0)
    return torch.cat((1.0 - passed[..., :1], passed[..., :-1] - passed[..., 1:], passed[..., -1:]), dim=-1)


def accounts_of(positions: Tensor, account: Tensor, opportunity: Tensor, rules: EnvironmentConfig) -> Accounts:
    """Describe accounts by their (L, K, 6) positions, 0 where none is held, (L, 3) state and (L,) opportunities."""
    left = (account[:, TRADING_LEFT].double() * rules.trading_days).round() - 1
    return Accounts(account[:, 0].double().clamp(min=0.0), _pending(positions, rules), left.clamp(min=0), opportunity)


def _pending(positions: Tensor, rules: EnvironmentConfig) -> Tensor:
    """Sum the values of (L, K, 6) positions at their entry by the sessions that they have left: (L, BUCKETS)."""
    held = (positions[..., SESSIONS_HELD] * rules.max_holding_days).round()
    left = (rules.max_holding_days - held).clamp(1, rules.max_holding_days)
    bucket = ((left - 1) * BUCKETS / rules.max_holding_days).long()
    pending = torch.zeros(len(positions), BUCKETS, dtype=torch.float64, device=positions.device)
    return pending.scatter_add_(1, bucket, positions[..., SIZE].double() * rules.largest_order)
