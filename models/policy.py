"""The policy: from what a unit of each stock is worth to target weights, see `models.target_weights`.

A stock's score is what a unit of it gains until it is sold, in percent of its value. Differences between stocks decide
what is held; the shadow price of capital takes up their level. The level of a day, less its usual one, decides how much
is held in cash. How far both are followed is the evidence's word: without any the benchmark is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from models.target_weights import Band, target_weights


@dataclass(frozen=True)
class Forecasts:
    """Scores of A actors for the n stocks of each day: the part of the policy that depends on the day alone."""

    score: Tensor
    """(A, days, n) float32 percent that a unit gains until it is sold; minus infinity without a bar."""
    level: Tensor
    """(A, days) float32 percent, the mean of a day's scores less the usual one."""
    risk: Tensor
    """(all days, n) float32 variance of each stock apart from the market's, over that of the mean stock."""
    first: int = 0
    """The first of the days."""
    member: Tensor | None = None
    """(all days, n) bool, which stocks are in the universe, for who acts on observations, which do not say it."""

    @classmethod
    def of(cls, score: Tensor, usual: Tensor, risk: Tensor, first: int = 0) -> Forecasts:
        """Build from (A, days, n) scores and what is usual of each actor, (A, days or 1) percent."""
        means = list[Tensor]()
        for one in score:  # one by one: those of a large market are large
            known = one.isfinite()
            # In double precision: a day by itself has the same level.
            total, count = torch.where(known, one, 0.0).sum(1, dtype=torch.float64), known.sum(1)
            means.append(torch.where(count > 0, total / count.clamp(min=1), torch.nan))
        return cls(score, (torch.stack(means) - usual).nan_to_num(nan=0.0).float(), risk, first)

    @classmethod
    def joined(cls, parts: Sequence[Forecasts]) -> Forecasts:
        """Put the forecasts of several actors on one market together."""
        return cls(torch.cat([one.score for one in parts]), torch.cat([one.level for one in parts]), parts[0].risk)

    def at(self, actor: Tensor | int, day: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return (L, n) scores, (L,) levels and (L, n) risks of actors on (L,) days."""
        place = day - self.first
        return self.score[actor, place], self.level[actor, place], self.risk[day]


@dataclass(frozen=True)
class Decision:
    """What L accounts hold after a day's decision."""

    target: Tensor
    """(L, n) float64 weights."""
    price: Tensor
    """(L,) float64 shadow price of capital, percent."""


def decide(
    score: Tensor,
    level: Tensor,
    risk: Tensor,
    genes: Tensor,
    weights: Tensor,
    held: Tensor,
    wanted: Tensor,
    can_trade: Tensor,
    cost: float,
    *,
    may_buy: Tensor | None = None,
    shrink: Tensor | float = 1.0,
    timing: Tensor | float = 0.0,
) -> Decision:
    """Decide in L accounts at a close, wherever agents act: the only way from what is known to orders.

    Args:
        score, level, risk: (L, n), (L,) and (L, n) of the day, see `Forecasts`; of stocks beyond these nobody expects
            anything.
        genes: (L, 4 or more) price of risk, largest weight of a stock, price of the risk of cash, and hurdle, see
            `models.target_weights`.
        weights, held, wanted, can_trade, may_buy: see `target_weights`.
        cost: of a purchase or a sale, share of its value.
        shrink, timing: (L,) or for all, shares of the differences between scores and of levels that are believed.
    """
    known = score.isfinite()
    worth = torch.where(known, score, 0.0).double()
    mean = worth.sum(1) / known.sum(1).clamp(min=1)
    shrink, timing = (torch.as_tensor(part, dtype=torch.float64, device=mean.device) for part in (shrink, timing))
    q = torch.where(known, shrink[..., None] / 100 * (worth - mean[:, None]), 0.0)
    cash = _cash(timing / 100 * level.double(), genes[:, 2], weights.sum(1), held.sum(1), cost)
    beyond = (0, weights.shape[1] - score.shape[1])
    q, risk, known = pad(q, beyond), pad(risk.double(), beyond, value=1.0), pad(known, beyond, value=True)
    # Differences that are believed in part must still be worth their costs; a hurdle that is higher already is kept.
    hurdle = torch.maximum(shrink.clamp(max=1.0) * genes[:, 3], genes[:, 3].clamp(max=1.0))
    band = Band(genes[:, :1] * risk, genes[:, 1], cost, hurdle)
    target, price = target_weights(q, weights, held, wanted, can_trade & known, band, cash, may_buy)
    return Decision(target, 100 * price + mean)


def _cash(gain: Tensor, risk: Tensor, invested: Tensor, held: Tensor, cost: float) -> Tensor:
    """Return the (L,) shares of the equity that are to be held in cash beyond the benchmark's.

    The same no-trade band as that of a stock, for the benchmark as a whole: a unit of it gains (L,) `gain` more than
    usual, and what is held less has a price of risk. As long as it gains no less, nothing is kept in cash.

    Args:
        invested, held: (L,) weights of the account and of the benchmark in the sum.
    """
    low, high = (gain - cost) / risk, (gain + cost) / risk
    less = torch.minimum(torch.maximum(invested - held, low), high).clamp(max=0.0)
    return torch.where(gain < 0, torch.minimum(-less, held), 0.0)
