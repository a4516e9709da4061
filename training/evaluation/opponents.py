"""Rules that a champion is compared with: simple ones, and those that were learned on its training days."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.market import Market
from training.evaluation.baselines import ScoreRule

Array = NDArray[np.float64]
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
YEAR_MOMENTUM, LOW_VOLATILITY = "12-1 momentum", "low volatility"
_YEAR, _MONTH = 252, 21
_VOLATILITY_DAYS = 60


def simple_rules(market: Market) -> dict[str, ScoreRule]:
    """Buy what rose most in 60 days, or in the year before the last month; what fell most in 5 days; what moves least.

    Sources: Jegadeesh & Titman (1993), "Returns to buying winners and selling losers"; Jegadeesh (1990), "Evidence of
    predictable behavior of security returns"; Ang et al. (2006), "The cross-section of volatility and expected
    returns".
    """
    close = pd.DataFrame(np.log(market.close.astype(np.float64)))
    scores = {
        MOMENTUM: close.diff(60),
        REVERSAL: -close.diff(5),
        YEAR_MOMENTUM: close.shift(_MONTH).diff(_YEAR - _MONTH),
    }
    rules = {name: ScoreRule(score.to_numpy()) for name, score in scores.items()}
    return {**rules, LOW_VOLATILITY: ScoreRule(inverse_volatility(market.close))}


def inverse_volatility(close: NDArray[np.float32]) -> Array:
    """Return one over the deviation of the last 60 daily log returns of (days, n) closes; NaN where it is not known."""
    returns = pd.DataFrame(np.log(close.astype(np.float64))).diff()
    spread = returns.rolling(_VOLATILITY_DAYS, min_periods=_VOLATILITY_DAYS // 2).std().to_numpy()
    inverse: Array = np.divide(1.0, spread, out=np.full(spread.shape, np.nan), where=spread > 0)
    return inverse
