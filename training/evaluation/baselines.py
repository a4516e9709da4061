"""Baselines that a champion must beat: rules that order by scores, rules that know what is planted, and held stocks."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.benchmark import LONGEST_GAP_DAYS, read_benchmark
from data.market import Market
from data.splits import spaced_windows
from data.synthetic.built_in import PlantedScores
from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from training.rollout import Policy, play
from utils.arrays import Float64Array
from utils.errors import DataError
from utils.spaces import (
    ACCOUNT_FEATURES,
    MAX_COEFFICIENT,
    MAX_TARGET_PERCENT,
    MIN_COEFFICIENT,
    MIN_TARGET_PERCENT,
    rank_stocks,
)

logger = logging.getLogger(__name__)
Scores = NDArray[np.float32] | Float64Array
CHAMPION, RANDOM, EQUAL, HOLD = "champion", "random picker", "equal weight", "buy and hold"
ALL_ORDERS, BASKET = "agents, all orders theirs", "basket"
EQUAL_RISK, BENCHMARK = "equal risk", "benchmark"
RULE, ORACLE = "planted rule", "oracle"
BEST_AGENT, CLOSED = "best agent", "closed form"
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
YEAR_MOMENTUM, LOW_VOLATILITY = "12-1 momentum", "low volatility"
RIDGE, LIGHTGBM = "ridge", "LightGBM"
RESERVED = {CHAMPION, RANDOM, EQUAL, HOLD, ALL_ORDERS, BASKET, EQUAL_RISK, BENCHMARK, RULE, ORACLE, BEST_AGENT, CLOSED}
RESERVED |= {MOMENTUM, REVERSAL, YEAR_MOMENTUM, LOW_VOLATILITY, RIDGE, LIGHTGBM}
"""Names that no policy of the user may have."""
NEVER_BEST = (ALL_ORDERS, BASKET, RANDOM, EQUAL, HOLD, RULE, ORACLE)
"""They are never the best baseline: they have comparisons of their own, or know what is planted."""
_TUNING_WINDOWS = 32
_YEAR, _MONTH = 252, 21
RULE_NUMBERS = ("threshold", "coefficient", "target_percent", "cash_price", "full_score", "keep_above")
"""Of a `ScoreRule`, what is tuned."""
_VOLATILITY_DAYS = 60
_MARGIN = 2.0
"""Standard errors by which a setting must be better: windows overlap, and the best of many is biased upwards."""
_COEFFICIENTS = (MAX_COEFFICIENT, 7.0, 5.0)
_TARGETS = (MAX_TARGET_PERCENT, 30.0, 20.0, 15.0, 12.0, MIN_TARGET_PERCENT)
_KEEPS = (0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Quantiles of all scores that are tried as those below which positions are sold."""
_LEVELS = (0.25, 0.5, 0.75, 0.9, 0.97)
"""Quantiles of the scores that are tried as thresholds, prices of cash and full scores."""


@dataclass(frozen=True)
class ScoreRule:
    """A rule that every day orders the stocks with the largest scores above a threshold, and sells by them too."""

    scores: Scores
    """(days, n), known at each day's close; NaN: no order."""
    threshold: float = 0.0
    coefficient: float = MAX_COEFFICIENT
    """Largest size."""
    target_percent: float = MAX_TARGET_PERCENT
    cash_price: float = 0.0
    """Rise of the threshold with no cash and all trading days left; proportional to both."""
    full_score: float = 0.0
    """Score from which an order has the largest size; below it sizes are proportional. 0: all have the largest."""
    sizes: Scores | None = None
    """(days, n) shares of these sizes, 0 to 1; None: all."""
    keep_above: float = 0.0
    """Score below which a position is sold at the next fill; read with daily exits only."""


def simple_rules(market: Market) -> dict[str, ScoreRule]:
    """Return momentum over 60 days and over the year before the last month, 5-day reversal and low volatility.

    Sources: Jegadeesh & Titman (1993), "Returns to buying winners and selling losers"; Jegadeesh (1990), "Evidence of
    predictable behavior of security returns"; Ang et al. (2006), "The cross-section of volatility and expected
    returns".
    """
    close = pd.DataFrame(np.log(market.close.astype(np.float64)))

    def rule(scores: Float64Array) -> ScoreRule:  # one by one: scores of a large market are large
        return ScoreRule(scores.astype(np.float32))

    return {
        MOMENTUM: rule(close.diff(60).to_numpy()),
        REVERSAL: rule(-close.diff(5).to_numpy()),
        YEAR_MOMENTUM: rule(close.shift(_MONTH).diff(_YEAR - _MONTH).to_numpy()),
        LOW_VOLATILITY: rule(inverse_volatility(market.close)),
    }


def tune_planted(env: Portfolio, scores: PlantedScores, starts: Tensor) -> dict[str, ScoreRule]:
    """Tune the planted rule and the oracle on (training) windows.

    Their scores are the expected returns of a trade; nothing is ordered that would earn less than a round trip costs.
    """
    planted, round_trip = {RULE: scores.rule, ORACLE: scores.oracle}, 2 * env.rules.cost_rate
    return {name: tune_rule(env, known, round_trip, starts, scores.sizes) for name, known in planted.items()}


def tuning_windows(market: Market, env: Portfolio) -> Tensor:
    """Return the (W,) first days of the training windows on which rules are tuned."""
    return spaced_windows(market.splits.train, env.rules.episode_steps, _TUNING_WINDOWS).to(env.device)


def score_policy(env: Portfolio, rules: ScoreRule | Sequence[ScoreRule], days: slice | None = None) -> Policy:
    """Return the policy that every day orders by a rule, as many of the candidates as may be bought.

    Several rules play as many lanes each, rule by rule.

    Args:
        days: on which it may be asked, default: all; scores of others take no memory.
    """
    rules = [rules] if isinstance(rules, ScoreRule) else rules
    days = slice(0, env.bars.days) if days is None else days
    # Rules that are tuned differ in numbers alone: a table of scores is put on the device once.
    keys = [(id(rule.scores), id(rule.sizes)) for rule in rules]
    tables = dict(zip(keys, rules, strict=True))
    whole = torch.stack([_scores_on(env, rule, days) for rule in tables.values()])
    best = [_best(env, scores, rule.sizes, days) for scores, rule in zip(whole, tables.values(), strict=True)]
    known, stocks, shares = (torch.stack(tensors) for tensors in zip(*best, strict=True))
    table_of_rule = torch.tensor([[*tables].index(key) for key in keys], device=env.device)
    numbers = [[getattr(rule, name) for name in RULE_NUMBERS] for rule in rules]
    columns = torch.tensor(numbers, dtype=torch.float64, device=env.device)
    has_price = any(rule.cash_price > 0 for rule in rules)

    def act(env: Portfolio, step: int) -> Orders:
        of_rule = len(env.day) // len(rules)
        here = table_of_rule.repeat_interleave(of_rule), env.day - days.start
        score, stock = known[here], stocks[here]
        lanes = columns.repeat_interleave(of_rule, dim=0)[..., None].unbind(1)
        number = dict(zip(RULE_NUMBERS, lanes, strict=True))
        threshold, largest, full = number["threshold"], number["coefficient"], number["full_score"]
        if has_price:
            free, _, left = env.account_features()[..., :ACCOUNT_FEATURES].double().unbind(-1)
            threshold = threshold + number["cash_price"] * ((1 - free).clamp(min=0) * left.clamp(min=0))[:, None]
        is_candidate = ~env.held().gather(1, stock) & (score > threshold)
        above, rank = rank_stocks(torch.where(is_candidate, score - threshold, 0.0), env.orders_per_day)
        share = torch.where(full > 0, (above + threshold) / full, 1.0).clamp(max=1.0)
        share = share * shares[here].gather(1, rank)
        size = torch.where((above > 0) & (largest * share >= MIN_COEFFICIENT), largest * share, 0.0)
        size = size.float().double()  # as an action gives it
        orders = Orders(stock.gather(1, rank).T, size.T, number["target_percent"].float().double().expand_as(size).T)
        if env.rules.exits == "target":
            return orders
        lane, held = env.open_stocks()
        has_bar = env.bars.tradable[env.day[lane], held]
        now = whole[here[0][lane], here[1][lane], held].double()
        return replace(orders, sold=has_bar & (now < number["keep_above"][lane, 0]))

    return act


def _scores_on(env: Portfolio, rule: ScoreRule, days: slice) -> Tensor:
    """Return a rule's (days, n) scores on some days, minus infinity without one or without a bar."""
    known = torch.from_numpy(np.nan_to_num(rule.scores[days], nan=-np.inf)).to(env.device)
    return known.masked_fill_(~env.bars.tradable[days], -torch.inf)


def _best(env: Portfolio, known: Tensor, sizes: Scores | None, days: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest of a rule's (days, n) scores, (days, k), minus infinity: none; their stocks and sizes."""
    stocks = best_stocks(known, env.ranked)
    best = known.gather(1, stocks).double()
    if sizes is None:
        return best, stocks, torch.ones_like(best)
    return best, stocks, torch.from_numpy(sizes[days]).to(env.device).double().gather(1, stocks)


def best_stocks(scores: Tensor, most: int) -> Tensor:
    """Return the stocks of the largest of (days, n) scores, (days, most), in their order; ties go to the lower ones."""
    if most >= scores.shape[1]:
        return torch.arange(scores.shape[1], device=scores.device).expand(scores.shape).contiguous()
    best = scores.topk(most, dim=1)
    stock, least = best.indices, best.values[:, -1:]
    is_tied = ((scores >= least).sum(1) > most) & least[:, 0].isfinite()
    if bool(is_tied.any()):
        stock[is_tied] = scores[is_tied].sort(dim=1, descending=True, stable=True).indices[:, :most]
    return stock.sort(dim=1).values


def tune_rule(
    env: Portfolio, scores: Scores, threshold: float, starts: Tensor, sizes: Scores | None = None
) -> ScoreRule:
    """Tune threshold and price of cash together, then size and sale target, then the full score, by mean fitness on
    windows. With daily exits the level below which positions are sold comes after the threshold, which is then tuned
    once more.

    Losses count once, whatever their multiplier in fitness: rules are compared by money.

    A setting replaces the one before it only if it is better by more than two standard errors of the paired difference.

    Args:
        threshold: the smallest that is tried.
        starts: (W,) first days of the (training) windows.
    """
    rule = ScoreRule(scores, threshold, sizes=sizes)
    if env.rules.loss_multiplier > 1:
        env = Portfolio(env.bars, replace(env.rules, loss_multiplier=1.0))
    first, last = int(starts.min()), int(starts.max()) + env.rules.episode_steps
    ordered = np.sort(np.nan_to_num(scores[first:last], nan=-np.inf), axis=1)[:, -env.orders_per_day :]
    if not (ordered > threshold).any():
        return rule
    rises = np.quantile(ordered[ordered > threshold].astype(np.float64) - threshold, _LEVELS).tolist()
    # Thresholds first: the best target depends on how selective the rule is.
    thresholds: list[dict[str, Any]] = [
        {"threshold": threshold + rise, "cash_price": price} for rise in (0.0, *rises) for price in (0.0, *rises)
    ]
    seen = scores[first:last][np.isfinite(scores[first:last])].astype(np.float64)
    keeps = [-np.inf, 0.0, threshold, *np.quantile(seen, _KEEPS).tolist()]
    sales: list[list[dict[str, Any]]] = [[{"keep_above": level} for level in keeps], thresholds]
    steps: list[list[dict[str, Any]]] = [
        thresholds,
        *(sales if env.rules.exits == "daily" else []),
        [{"coefficient": size, "target_percent": target} for size in _COEFFICIENTS for target in _TARGETS],
        [{"full_score": threshold + rise} for rise in rises],
    ]
    for settings in steps:
        rules = [rule, *(replace(rule, **values) for values in settings)]
        policy = score_policy(env, rules, slice(first, last))
        summary, _ = play(env, policy, starts.repeat(len(rules)))
        fitness = summary.fitness.view(len(rules), -1)
        best = int(fitness.mean(1).argmax())
        gain = fitness[best] - fitness[0]
        error = float(gain.std(correction=1)) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
        rule = rules[best] if float(gain.mean()) > _MARGIN * error else rule
    return rule


def inverse_volatility(close: NDArray[np.float32]) -> Float64Array:
    """Return one over the deviation of the last 60 daily log returns of (days, n) closes; NaN where it is not known."""
    returns = pd.DataFrame(np.log(close.astype(np.float64))).diff()
    spread = returns.rolling(_VOLATILITY_DAYS, min_periods=_VOLATILITY_DAYS // 2).std().to_numpy()
    inverse: Float64Array = np.divide(1.0, spread, out=np.full(spread.shape, np.nan), where=spread > 0)
    return inverse


def equal_risk(close: NDArray[np.float32], day: int) -> Float64Array:
    """Return the same at the close of one day, (n,); 0 where it is not known."""
    returns = pd.DataFrame(np.log(close[max(0, day - _VOLATILITY_DAYS) : day + 1].astype(np.float64))).diff()
    spread = returns.std().where(returns.count() >= _VOLATILITY_DAYS // 2).to_numpy()
    shares: Float64Array = np.divide(1.0, spread, out=np.zeros(close.shape[1]), where=spread > 0)
    return shares


def benchmark_close(path: Path | None, market: Market, env: Portfolio, starts: Tensor) -> Float64Array | None:
    """Return the (days,) closes of the user's benchmark; None, with a warning, if it does not cover all windows."""
    if path is None:
        return None
    days = slice(int(starts[0]), int(starts[-1]) + env.rules.episode_steps + 1)
    try:
        close = read_benchmark(path, market.dates)
        if np.isnan(close[days]).any():
            first, *_, last = market.dates[days].astype("datetime64[D]")
            raise DataError(f"expected closes from {first} to {last} in {path}, at most {LONGEST_GAP_DAYS} days apart")
    except DataError as error:
        logger.warning("the benchmark is left out: %s", error)
        return None
    return close
