"""Baselines that a policy must beat: the whole market held equally, and rules that order by scores."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from environment.orders import rank_stocks
from environment.portfolio import Portfolio
from training.rollout import Policy, play
from utils.config.trader import EnvironmentConfig
from utils.spaces import ACTION_FEATURES, MAX_COEFFICIENT, MAX_TARGET_PERCENT, MIN_TARGET_PERCENT

_COEFFICIENTS = (MAX_COEFFICIENT, 7.0, 5.0)
_TARGETS = (MIN_TARGET_PERCENT, 20.0, 30.0, MAX_TARGET_PERCENT)


@dataclass(frozen=True)
class ScoreRule:
    """A rule that every day orders the stocks of the largest scores above a threshold, all in one size and target."""

    scores: NDArray[np.float64]
    """(days, n), known at each day's close; NaN: no order."""
    threshold: float = 0.0
    coefficient: float = MAX_COEFFICIENT
    target_percent: float = MAX_TARGET_PERCENT


def score_policy(rule: ScoreRule, device: torch.device) -> Policy:
    """Return the policy that every day orders by a rule, as many of the candidates as may be bought."""
    table = torch.from_numpy(np.nan_to_num(rule.scores - rule.threshold, nan=-1.0)).to(device)

    def act(env: Portfolio, step: int) -> Tensor:
        score = table[env.day]
        score = torch.where(env.candidates() & (score > 0), score, 0.0)
        best, stock = rank_stocks(score, env.orders_per_day)
        action = torch.zeros(*score.shape, ACTION_FEATURES, device=device)
        action[..., 0].scatter_(1, stock, torch.where(best > 0, rule.coefficient, 0.0))
        action[..., 1] = rule.target_percent
        return action

    return act


def tune_rule(env: Portfolio, scores: NDArray[np.float64], threshold: float, starts: Tensor) -> ScoreRule:
    """Return the rule on these scores with the size and target that earn most on the given (training) windows."""
    choices = itertools.product(_COEFFICIENTS, _TARGETS)
    grid = [ScoreRule(scores, threshold, *choice) for choice in choices]
    profits = [float(play(env, score_policy(rule, starts.device), starts)[0].profit_percent.mean()) for rule in grid]
    return grid[int(np.argmax(profits))]


def held_equity(
    close: NDArray[np.float32],
    open_: NDArray[np.float32],
    start: int,
    steps: int,
    rules: EnvironmentConfig,
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the equity of holding the stocks for a window: bought at the next open, sold at the last close.

    Args:
        close, open_: (days, n) prices, NaN without a bar.
        weights: (n,) shares of the money, up to a factor; default: equal.

    Returns:
        (steps + 1,) equity in currency units after costs on both legs. A stock without a bar keeps its last price; one
        without a bar on the day of purchase is left out. With a delisting loss, one that has no bar for
        `max_days_without_bar` sessions is sold as the account sells it; that sale's cost is taken at the end.
    """
    rate = rules.cost_rate
    bought = np.isfinite(open_[start + 1])
    if weights is not None:
        bought &= weights > 0
    if not bought.any():
        return np.full(steps + 1, rules.initial_capital)
    path = np.concatenate((open_[start + 1 : start + 2, bought], close[start + 1 : start + steps + 1, bought]))
    path = path.astype(np.float64)
    last_seen = np.maximum.accumulate(np.where(np.isfinite(path), np.arange(len(path))[:, None], 0), axis=0)
    growth = np.take_along_axis(path, last_seen, axis=0) / path[0]
    if rules.delisting_loss > 0:
        missing = np.arange(len(path))[:, None] - last_seen
        is_sold = np.logical_or.accumulate(missing >= rules.max_days_without_bar, axis=0)
        proceeds = growth[is_sold.argmax(axis=0), np.arange(growth.shape[1])] * (1 - rules.delisting_loss / 100)
        growth = np.where(is_sold, proceeds, growth)
    growth = np.average(growth, axis=1, weights=None if weights is None else weights[bought])[1:]
    invested = rules.initial_capital / (1 + rate)
    equity = np.concatenate(([rules.initial_capital], invested * growth))
    equity[-1] *= 1 - rate
    return equity
