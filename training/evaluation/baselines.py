"""Baselines that a policy must beat: the whole market held equally, and rules that order by scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from environment.portfolio import Portfolio
from training.rollout import Policy, play
from utils.config.trader import EnvironmentConfig
from utils.spaces import (
    ACTION_FEATURES,
    MAX_COEFFICIENT,
    MAX_TARGET_PERCENT,
    MIN_COEFFICIENT,
    MIN_TARGET_PERCENT,
    rank_stocks,
)

_NUMBERS = ("threshold", "coefficient", "target_percent", "cash_price", "full_score")
_TRACE = 1e-6
"""Share by which each order of a day is smaller than the better one."""
_VOLATILITY_DAYS = 60
_MARGIN = 2.0
"""Standard errors by which a choice must be better; windows overlap, and the best of many is lucky."""
_COEFFICIENTS = (MAX_COEFFICIENT, 7.0, 5.0)
_TARGETS = (MAX_TARGET_PERCENT, 30.0, 20.0, 15.0, 12.0, MIN_TARGET_PERCENT)
_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.97)
"""Shares of the scores that may be ordered, at which thresholds, prices of cash and sizes are tried."""


@dataclass(frozen=True)
class ScoreRule:
    """A rule that every day orders the stocks of the largest scores above a threshold."""

    scores: NDArray[np.float64]
    """(days, n), known at each day's close; NaN: no order."""
    threshold: float = 0.0
    coefficient: float = MAX_COEFFICIENT
    """Largest size."""
    target_percent: float = MAX_TARGET_PERCENT
    cash_price: float = 0.0
    """Rise of the threshold where all cash is spent and all days to trade are left, in proportion to both."""
    full_score: float = 0.0
    """Score from which an order has the largest size; sizes below are in proportion. 0: all have it."""


def score_policy(rules: ScoreRule | Sequence[ScoreRule], device: torch.device) -> Policy:
    """Return the policy that every day orders by a rule, as many of the candidates as may be bought.

    Several rules play as many lanes each, rule by rule.
    """
    rules = [rules] if isinstance(rules, ScoreRule) else rules
    scores = {id(rule.scores): rule.scores for rule in rules}
    tables = torch.from_numpy(np.nan_to_num(np.stack([*scores.values()]), nan=-np.inf)).to(device)
    place = torch.tensor([[*scores].index(id(rule.scores)) for rule in rules], device=device)
    numbers = [[getattr(rule, name) for name in _NUMBERS] for rule in rules]
    columns = torch.tensor(numbers, dtype=torch.float64, device=device)
    has_price = any(rule.cash_price > 0 for rule in rules)

    def act(env: Portfolio, step: int) -> Tensor:
        of_rule = len(env.day) // len(rules)
        score = tables[place.repeat_interleave(of_rule), env.day]
        lanes = columns.repeat_interleave(of_rule, dim=0)
        threshold, largest, target, price, full = lanes[..., None].unbind(1)
        if has_price:
            free, _, left = env.account().double().unbind(-1)
            threshold = threshold + price * ((1 - free).clamp(min=0) * left.clamp(min=0))[:, None]
        above = torch.where(env.candidates() & (score > threshold), score - threshold, 0.0)
        best, stock = rank_stocks(above, env.orders_per_day)
        share = torch.where(full > 0, (best + threshold) / full, 1.0).clamp(max=1.0)
        size = torch.where((best > 0) & (largest * share >= MIN_COEFFICIENT), largest * share, 0.0)
        # Orders of one size are bought in the order of stocks: a trace less keeps the best first where cash is short.
        trace = 1 - _TRACE * torch.arange(size.shape[1], device=device)
        size = torch.maximum(size * trace, size.clamp(max=MIN_COEFFICIENT))
        action = torch.zeros(*score.shape, ACTION_FEATURES, device=device)
        action[..., 0].scatter_(1, stock, size.float())
        action[..., 1] = target
        return action

    return act


def tune_rule(env: Portfolio, scores: NDArray[np.float64], threshold: float, starts: Tensor) -> ScoreRule:
    """Return the rule on these scores whose threshold, price of cash, size and target did best on training windows.

    One after the other is chosen, the largest mean fitness first; a choice is kept where it is better than what was
    there by more than twice the standard error of the difference over windows.

    Args:
        threshold: the smallest that is tried.
        starts: (W,) first days of the (training) windows.
    """
    rule = ScoreRule(scores, threshold)
    first, last = int(starts.min()), int(starts.max()) + env.rules.episode_steps
    ordered = np.sort(np.nan_to_num(scores[first:last], nan=-np.inf), axis=1)[:, -env.orders_per_day :]
    if not (ordered > threshold).any():
        return rule
    rises = np.quantile(ordered[ordered > threshold] - threshold, _LEVELS).tolist()
    # Thresholds first: the best target of a rule that orders too much is not that of one that waits.
    steps: list[list[dict[str, Any]]] = [
        [{"threshold": threshold + rise, "cash_price": price} for rise in (0.0, *rises) for price in (0.0, *rises)],
        [{"coefficient": size, "target_percent": target} for size in _COEFFICIENTS for target in _TARGETS],
        [{"full_score": threshold + rise} for rise in rises],
    ]
    for choices in steps:
        rule = _better(env, rule, [replace(rule, **choice) for choice in choices], starts)
    return rule


def _better(env: Portfolio, rule: ScoreRule, others: Sequence[ScoreRule], starts: Tensor) -> ScoreRule:
    """Return the best of the others if it beats the rule on the same windows by more than chance, else the rule."""
    rules = [rule, *others]
    summary, _ = play(env, score_policy(rules, starts.device), starts.repeat(len(rules)))
    fitness = summary.fitness.view(len(rules), -1)
    best = int(fitness.mean(1).argmax())
    gain = fitness[best] - fitness[0]
    error = float(gain.std(correction=1)) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return rules[best] if float(gain.mean()) > _MARGIN * error else rule


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


def inverse_volatility(close: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return one over the deviation of the last 60 daily log returns of (days, n) closes; NaN where it is not known."""
    returns = pd.DataFrame(np.log(close.astype(np.float64))).diff()
    spread = returns.rolling(_VOLATILITY_DAYS, min_periods=_VOLATILITY_DAYS // 2).std().to_numpy()
    inverse: NDArray[np.float64] = np.divide(1.0, spread, out=np.full(spread.shape, np.nan), where=spread > 0)
    return inverse
