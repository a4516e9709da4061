"""How scores and target weights of anybody become orders, wherever they are played: judged, or in a paper account."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from data.features.own import OwnFeature, audit_features, own_columns
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, tune_rule
from training.evaluation.play import EvaluationSetup, OwnAccount
from training.forecasts.look_ahead import require_past
from training.policies.read import aligned, wide_scores
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError
from utils.metrics import TRADING_DAYS_PER_YEAR

_EXCESS = 1e-4
"""By which weights may miss their bounds, as sums in single precision do."""
WEIGHTS = "weights"
"""Value of a function's attribute `returns` that makes its frame one of target weights."""
_OFTEN = 0.1
"""Share of the days with new positions on which there must be more than an account buys for it to be told."""


def rule_of(name: str, policy: Any, market: Market, env: Portfolio, tuning: Tensor) -> ScoreRule:
    """Return how a policy's scores become orders: tuned on training days, as those of ridge and LightGBM are.

    A score above 0 asks for a stock, the largest first; without training days in the scores it is bought above 0 and
    sold below. Target weights are neither tuned nor rebalanced: a stock is bought in its weight, and sold at 0.

    Args:
        policy: a frame of scores, or a function of wide bars, which is audited first.
        env: with windows of the rules' length.
        tuning: (W,) first days of the training windows.

    Raises:
        DataError: it fails or looks ahead.
    """
    if isinstance(policy, pd.DataFrame):
        scores = wide_scores(policy, repr(name)) if "ticker" in policy.columns else policy
        table = aligned(name, scores, market)
        require_past({name: table}, market)
        return tune_rule(env, table, 0.0, tuning)
    audit_features({name: policy}, market, np.random.default_rng(0))
    rule = rule_of_function(name, policy, market, env.rules)
    require_past({name: rule.scores}, market)
    return tune_rule(env, rule.scores, 0.0, tuning) if rule.sizes is None else rule


def rule_of_function(
    name: str,
    function: OwnFeature,
    market: Market,
    rules: EnvironmentConfig,
    numbers: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> ScoreRule:
    """Return the rule of a function of wide bars.

    Args:
        numbers: of the rule, by `RULE_NUMBERS`; default: those of scores or weights that are not tuned.
        stop: day up to which it is given data, that one excluded; default: all.
    """
    values = own_columns({name: function}, market.wide(stop=stop))[name][:, market.investable_columns]
    if getattr(function, "returns", "scores") != WEIGHTS:
        return ScoreRule(values, **(numbers or {}))
    _require_weights(name, values)
    sizes = np.nan_to_num(values / np.float32(rules.largest_order)).clip(0.0, 1.0)
    return ScoreRule(values, sizes=sizes, **(numbers or {"keep_above": float(np.finfo(np.float32).tiny)}))


def _require_weights(name: str, weights: NDArray[np.float32]) -> None:
    """Raise DataError where (days, n) target weights ask for shorts or leverage, which no account has."""
    least, most = float(np.nanmin(weights)), float(np.nansum(weights, axis=1).max())
    if least < -_EXCESS or most > 1.0 + _EXCESS:
        got = f"one of {least:.3g}" if least < -_EXCESS else f"a day on which they add up to {most:.3g}"
        raise DataError(
            f"expected target weights of {name!r} from 0 on that add up to at most 1 on each day, got {got}; accounts "
            "are never short and do not borrow: clip weights, or divide each day's by their sum"
        )


def asked_and_done(rule: ScoreRule, account: OwnAccount, setup: EvaluationSetup) -> str:
    """Say how far an account is from the target weights that it was asked to hold, and which sales were not asked for;
    empty of a rule of scores, which asks for nothing in particular."""
    if rule.sizes is None:
        return ""
    days, curves, close = setup.days, account.curves, setup.market.close
    asked = np.nan_to_num(rule.scores[days].astype(np.float64))  # (W, D + 1, n)
    held = np.zeros_like(asked)
    for trade in account.trades:
        first, last = days[trade["window"], 0], trade["exit_day"] or days[trade["window"], -1] + 1
        here = slice(trade["entry_day"] - first, last - first)
        held[trade["window"], here, trade["stock"]] += (
            trade["shares"] * close[trade["entry_day"] : last, trade["stock"]]
        )
    held /= curves.equity[0][..., None]
    years = days[:, 1:].size / TRADING_DAYS_PER_YEAR
    wanted = np.abs(np.diff(asked, axis=1, prepend=0.0)).sum() / 2 / years
    done = curves.traded[0].sum() / curves.capital / 2 / years
    gap = 0.5 * np.abs(np.nan_to_num(held)[:, 1:] - asked[:, :-1]).sum(axis=2).mean()
    ends = Counter(trade["reason"] for trade in account.trades if trade["reason"] not in (None, "sold"))
    others = ", ".join(f"{reason} {count}" for reason, count in ends.most_common())
    return (
        f"Asked: a turnover of {wanted:.1f} a year; done: {done:.1f}, by {setup.env.orders_per_day} a day of at most "
        f"{setup.env.rules.largest_order:.0%}, never rebalanced. On the mean day {gap:.0%} of the capital was "
        f"elsewhere than asked; {sum(ends.values())} of {len(account.trades)} sales were not the policy's"
        f"{f' ({others})' if others else ''}."
    )


def require_wanted(name: str, scores: NDArray[Any], dates: NDArray[np.datetime64]) -> None:
    """Raise DataError where no score of these days asks for a stock."""
    if not (scores > 0).any():
        first, last = dates[[0, -1]].astype("datetime64[D]")
        raise DataError(
            f"expected scores of {name!r} above 0, which ask for a stock, from {first} to {last}, got "
            f"{np.isfinite(scores).sum():,} scores, none above 0; give scores of these days around 0, such as ranks "
            "less their median"
        )


def limit_warning(name: str, rule: ScoreRule, limit: int, days: slice = slice(None)) -> str:
    """Say that an account cannot follow weights which often ask for more new positions on a day than its limit.

    Empty where it can, and of scores, the largest of which are meant.
    """
    new = (np.diff((rule.scores[days] > 0).astype(np.int8), axis=0, prepend=0) > 0).sum(axis=1)
    if rule.sizes is None or (new > limit).sum() <= _OFTEN * (new > 0).sum():
        return ""
    return f"{name}: {purchase_limit_text(int(new.max()), limit)}, the others on later days"


def purchase_limit_text(purchases: int, limit: int) -> str:
    """Say how many of a day's purchases an account takes."""
    return f"of up to {purchases} purchases a day env.max-new-positions-per-day takes {limit}"


def rule_text(name: str, rule: ScoreRule, market: Market) -> str:
    """Say from which score on a policy is followed, and whether that was tuned on training days."""
    if rule.sizes is not None:
        return f"{name}: bought in its weights, and sold at 0"
    levels = f"bought above {rule.threshold:.3g} and sold below {rule.keep_above:.3g}"
    is_tuned = np.isfinite(rule.scores[: market.splits.train.last + 1]).any()
    return (
        f"{name}: {levels}, {'which earned most on training days' if is_tuned else 'without scores of training days'}"
    )
