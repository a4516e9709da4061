"""How scores and target weights of anybody become orders, wherever they are played: judged, or in a paper account."""

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
from training.forecasts.look_ahead import require_past
from training.policies.read import aligned, wide_scores
from utils.config.trader import EnvironmentConfig
from utils.errors import DataError

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
    sizes = np.nan_to_num(values / np.float32(rules.largest_order)).clip(0.0, 1.0)
    return ScoreRule(values, sizes=sizes, **(numbers or {"keep_above": float(np.finfo(np.float32).tiny)}))


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


def rule_text(name: str, rule: ScoreRule) -> str:
    """Say from which score on a policy is followed."""
    if rule.sizes is not None:
        return f"{name}: bought in its weights, and sold at 0"
    levels = f"bought above {rule.threshold:.3g} and sold below {rule.keep_above:.3g}"
    return f"{name}: {levels}, which earned most on training days"
