"""How far networks heed each input: by how clearly it tells of rewards to come."""

import math

import torch
from torch import Tensor

from data.features.formulas import FORECASTS
from data.features.inputs import BANK
from training.forecasts.transitions import StockTransitions

_ROWS = 200_000
"""Most rows that are read, evenly spaced where there are more."""
_LEAST = 0.1
"""Least evidence of an input: what tells nothing by itself may tell together with others."""
_RIDGE = 0.01
"""Of the regression on forecasts of formulas, in multiples of their squares."""


def input_gains(known: StockTransitions) -> Tensor:
    """Return the (folds, inputs) float32 factors of inputs as networks see them, each by days outside of a fold."""
    return torch.stack([_gains(known, allowed) for allowed in known.allowed]).float()


def _gains(known: StockTransitions, allowed: Tensor) -> Tensor:
    """Return (inputs,) factors.

    A weight of t-statistic t is best shrunk by about 1 - 1 / t^2 (James and Stein 1961, "Estimation with quadratic
    loss"); here t is by days, with what formulas leave of next rewards: of differences between stocks or of levels,
    whichever is clearer. The best of many inputs that tell nothing has a t^2 of some twice the logarithm of their
    number (Donoho and Johnstone 1994, "Ideal spatial adaptation by wavelet shrinkage"): only what lies above it is
    evidence. Past returns stand for one another, and have one t^2 together.
    """
    rows = allowed[known.x.days].repeat_interleave(known.x.counts).nonzero()[:, 0]
    rows = rows[:: 1 + len(rows) // _ROWS]
    x, reward = known.inputs.for_networks(known.x.take(rows)).double(), known.reward[rows].double()
    first = known.x.first_rows
    day = torch.searchsorted(first, rows, right=True) - 1

    def by_day(values: Tensor) -> Tensor:
        return values.new_zeros(len(first), *values.shape[1:]).index_add_(0, day, values)

    count = by_day(torch.ones_like(reward)).clamp(min=1)
    level, mean = by_day(reward) / count, by_day(x) / count[:, None]
    apart, formulas = reward - level[day], x[:, -FORECASTS:] - mean[day, -FORECASTS:]
    gram = formulas.T @ formulas
    loadings = torch.linalg.solve(gram + torch.diag(1e-9 + _RIDGE * gram.diag()), formulas.T @ apart)
    left = apart - formulas @ loadings
    both = by_day(x * left[:, None]), mean * (level - reward.mean())[:, None]
    evidence = torch.stack([_squared_t(products) for products in both]).amax(0) - 2 * math.log(x.shape[1])
    evidence[-FORECASTS:] = _squared_t(by_day(formulas * apart[:, None])) - 1
    evidence[: BANK - 1] = max(_mean_squared_t(products[:, : BANK - 1]) for products in both) - 1
    evidence = evidence.clamp(min=_LEAST)
    return evidence / (1 + evidence)


def _squared_t(products: Tensor) -> Tensor:
    """Return the squares of the t-statistics of sums of (days, inputs) products."""
    return products.sum(0).square() / products.square().sum(0).clamp(min=1e-12)


def _mean_squared_t(products: Tensor) -> float:
    """Return the statistic of a joint test (Hotelling 1931, "The generalization of Student's ratio") of sums of (days,
    inputs) products, an input."""
    products = products[:, products.square().sum(0) > 1e-12]
    square, total = products.T @ products, products.sum(0)
    return float(total @ torch.linalg.solve(square + 1e-3 * square.diag().diag(), total)) / max(len(total), 1)
