"""The policy: from what is known of stocks and accounts to what is bought, kept and sold.

Every day a position may be kept or sold: optimal stopping (Tsitsiklis and Van Roy 2001, "Regression methods for pricing
complex American-style options"). A stock's score is what a position in it gains until it is sold, in percent of its
value. The capital that a position takes has a price, what it would earn elsewhere:

    worth = score - price of capital        price of capital = hurdle x share of the capital that is invested

Each agent has a hurdle of its own. The price rises from 0, where all is cash, to the hurdle, where all is invested; it
is 0 once nothing may be bought any more. The stocks that are worth most are bought, if that is more than a purchase
costs, and a position is sold once its worth is below minus what a sale costs. In between nothing is traded (Davis and
Norman 1990, "Portfolio selection with transaction costs").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.order_size import best_size, utility
from utils.config.trader import EnvironmentConfig
from utils.spaces import MAX_COEFFICIENT, MIN_COEFFICIENT, rank_stocks

_STEP_DOWN = 1e-6
"""Share by which each order of a day is smaller than the one before, so that the best is bought first."""


@dataclass(frozen=True)
class Forecasts:
    """Scores of A actors for the n stocks of each day: the part of the policy that depends on the day alone."""

    score: Tensor
    """(A, days, n) float32 percent that a position gains until it is sold; minus infinity without a bar."""
    penalty: Tensor | None = None
    """(A, days, n) float32 what the risk of the largest orders costs, see `models.order_size`; None: nothing."""

    @classmethod
    def of(cls, score: Tensor, tradable: Tensor, penalty: Tensor | None = None) -> Forecasts:
        """Build from (A, days, n) scores; stocks without a bar, (days, n), get none."""
        return cls(torch.where(tradable & score.isfinite(), score, -torch.inf), penalty)

    def at(self, agent: Tensor | slice, day: Tensor | int) -> Forecasts:
        """Return those of agents on a day each, (L, n)."""
        tensors = {name: part for name, part in vars(self).items() if part is not None}
        return Forecasts(**{name: part[agent, day] for name, part in tensors.items()})


@dataclass(frozen=True)
class Decision:
    """What L accounts do with the n stocks of a day."""

    stock: Tensor
    """(L, k) to buy, the best first."""
    coefficient: Tensor
    """(L, k) float32 sizes of these orders; 0: none."""
    target_percent: Tensor
    """(L, k) float32 their sale targets."""
    keep: Tensor
    """(L, n) bool: a position in the stock is kept, not sold; stocks without a bar are kept."""
    moved_target: Tensor
    """(L, n) float32 sale target of a position in the stock, from the next session on."""

    def action(self, is_held: Tensor) -> Tensor:
        """Return the (L, n, 2) actions of an environment in which stocks are held, (L, n) bool."""
        kept = MAX_COEFFICIENT * (self.keep & is_held).float()
        bought = self.coefficient > 0  # where nothing may be bought, a stock is named that may be held
        pairs = (kept, self.coefficient), (self.moved_target, self.target_percent)
        chosen = [(whole, torch.where(bought, value, whole.gather(1, self.stock))) for whole, value in pairs]
        return torch.stack([whole.scatter(1, self.stock, value) for whole, value in chosen], dim=-1)


def invested_share(cash: Tensor, left: Tensor) -> Tensor:
    """Return the shares of the capital that accounts have invested, by which capital has a price; 0 once nothing may be
    bought any more.

    Args:
        cash: share of the initial capital.
        left: days on which the account may buy, today included.
    """
    return (1.0 - cash).clamp(0.0, 1.0) * (left > 0)


def decide(
    forecasts: Forecasts,
    price: Tensor,
    cash: Tensor,
    candidate: Tensor,
    target_percent: Tensor,
    rules: EnvironmentConfig,
    noise: Tensor | float = 0.0,
) -> Decision:
    """Decide in L accounts at a close, wherever agents act: the only way from what is known to orders.

    Args:
        forecasts: of their day, (L, n).
        price: (L,) of capital, percent of a position.
        cash: (L,) share of the initial capital.
        candidate: (L, n) bool: the stock may be bought.
        target_percent: (L,) sale targets.
        noise: (L, 1) percent added to the scores of all stocks alike, to explore how much is invested.
    """
    worth = forecasts.score - price.float()[:, None] + noise
    cost, largest = 100 * rules.cost_rate, rules.largest_order
    keep = (worth >= -cost) | (forecasts.score == -torch.inf)
    expected, penalty = worth - cost, forecasts.penalty
    useful = expected if penalty is None else utility(largest * expected, penalty)
    orders = min(rules.max_new_positions_per_day, worth.shape[1])
    best, stock = rank_stocks(torch.where(candidate, useful, -torch.inf), orders)
    size = torch.ones_like(best)
    if penalty is not None:
        size = best_size(largest * expected.gather(1, stock), penalty.gather(1, stock))
    # Nothing is begun with less cash than the smallest order takes, unless that is more than all of the capital.
    least = min(rules.stake_percent / 100 * MIN_COEFFICIENT, 1.0 / rules.purchase_factor)
    is_ordered = (best > 0) & (cash[:, None] >= least) & (size * MAX_COEFFICIENT >= MIN_COEFFICIENT)
    coefficient, target = coefficients(size.double() * is_ordered), target_percent.float()[:, None]
    return Decision(stock, coefficient, target.expand(stock.shape), keep, target.expand(keep.shape))


def coefficients(size: Tensor) -> Tensor:
    """Return the (L, k) float32 coefficients of orders of these sizes, shares of the largest order, the best first.

    Each is a tiny share smaller than the one before, so that the best is bought first.
    """
    last = MAX_COEFFICIENT * (1 - _STEP_DOWN * (size.shape[1] - 1))
    largest = torch.linspace(MAX_COEFFICIENT, last, size.shape[1], dtype=torch.float64, device=size.device)
    # Orders below the smallest coefficient are placed at it, and cut to the cash.
    return ((size * largest).clamp(min=MIN_COEFFICIENT) * (size > 0)).float()
