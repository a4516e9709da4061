"""How scores and target weights of anybody become an account, wherever they are played."""

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.features.own import OwnFeature, audit_features, own_columns
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.rules import BandRule, Tuning
from training.forecasts.look_ahead import require_past
from training.policies.read import WEIGHTS, aligned
from utils.arrays import Float64Array
from utils.errors import DataError

_EXCESS = 1e-4
"""By which weights may miss their bounds, as sums in single precision do."""


def is_weights(policy: Any) -> bool:
    """Tell whether a function, by its attribute `returns`, or a frame, by `attrs["returns"]`, gives target weights."""
    returns = policy.attrs.get("returns") if isinstance(policy, pd.DataFrame) else getattr(policy, "returns", None)
    return bool(returns == WEIGHTS)


def table_of(name: str, policy: Any, market: Market) -> Float64Array:
    """Return a policy's (days, n) scores or target weights of the investable stocks.

    Args:
        policy: a frame of days by tickers, or a function of wide bars, which is audited first.

    Raises:
        DataError: it fails or looks ahead.
    """
    if isinstance(policy, pd.DataFrame):
        values = aligned(name, policy, market)
    else:
        audit_features({name: policy}, market, np.random.default_rng(0))
        values = values_of_function(name, policy, market)
    require_past({name: values.astype(np.float32)}, market)
    return values


def values_of_function(name: str, function: OwnFeature, market: Market, stop: int | None = None) -> Float64Array:
    """Return what a function of wide bars says of the investable stocks, (days, n).

    Args:
        stop: day up to which it is given data, that one excluded; default: all.
    """
    columns = own_columns({name: function}, market.wide(stop=stop))[name]
    return columns[:, market.investable_columns].astype(np.float64)


def is_signed(weights: NDArray[Any]) -> bool:
    """Tell whether (days, n) target weights ask for shorts or leverage."""
    return bool((weights < -_EXCESS).any() or (np.nansum(weights, axis=1) > 1.0 + _EXCESS).any())


def require_weights(name: str, weights: NDArray[Any]) -> None:
    """Raise DataError where (days, n) target weights ask for shorts or leverage, which only the judge has."""
    if is_signed(weights):
        least, most = float(np.nanmin(weights)), float(np.nansum(weights, axis=1).max())
        got = f"one of {least:.3g}" if least < -_EXCESS else f"a day on which they add up to {most:.3g}"
        raise DataError(
            f"expected target weights of {name!r} from 0 on that add up to at most 1 on each day, got {got}; only "
            "`evaluate` has shorts and leverage: clip weights, or divide each day's by their sum"
        )


def best_of(scores: Float64Array, count: int, can_be_bought: NDArray[np.bool_]) -> Float64Array:
    """Return (days, n) equal weights of the best stocks by their scores of the day, NaN on days without any.

    Args:
        can_be_bought: (days, n), the others are left out.
    """
    known = np.where(can_be_bought & np.isfinite(scores), scores, -np.inf)
    rank = (-known).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    is_held = (rank < count) & np.isfinite(known)
    held = is_held.sum(axis=1, keepdims=True)
    return np.where(held > 0, is_held / np.maximum(held, 1), np.nan)


def rule_of(name: str, scores: Float64Array, tuning: Tuning, dates: NDArray[np.datetime64], days: slice) -> BandRule:
    """Return how scores are held: tuned on training days, as those of ridge and LightGBM are.

    Args:
        dates: of all days.
        days: on which they are played.

    Raises:
        DataError: no two stocks have different scores on a day of these.
    """
    if not any(np.ptp(row[np.isfinite(row)]) for row in scores[days] if np.isfinite(row).any()):
        first, last = dates[days][[0, -1]].astype("datetime64[D]")
        raise DataError(
            f"expected scores of {name!r} that differ between stocks from {first} to {last}, got "
            f"{np.isfinite(scores[days]).sum():,} scores, none different; the higher a score, the more is held"
        )
    return tuning.tuned(scores.astype(np.float32))


def rule_text(name: str, rule: BandRule, scores: Float64Array) -> str:
    """Say how scores are held, and whether that was tuned on training days."""
    is_tuned = np.array_equal(rule.scores, scores.astype(np.float32), equal_nan=True)
    return (
        f"{name}: a unit of score is worth {rule.unit:.3g}%, price of risk {rule.risk:g}, at most {rule.largest:.0%} "
        f"in a stock, {'tuned on' if is_tuned else 'without scores of'} training days"
    )


class GivenWeights:
    """The policy that holds (days, n) target weights as they are given, NaN keeps."""

    def __init__(self, weights: Float64Array) -> None:
        self.weights = torch.tensor(weights)

    def __call__(self, portfolio: Portfolio) -> Tensor:
        """Return the weights of today."""
        account = portfolio.account
        return self.weights[account.day.cpu()].to(account.device)
