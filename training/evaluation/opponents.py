"""Policies that a champion is compared with: simple rules, learned rivals, and a benchmark of the user's own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.benchmark import read_benchmark
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule
from training.evaluation.rivals import fit_rivals
from utils.config.trader import EvaluationConfig
from utils.errors import DataError

logger = logging.getLogger(__name__)
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


def known_rules(market: Market, env: Portfolio, judging: EvaluationConfig) -> dict[str, ScoreRule]:
    """Return the rules that know prices only: rivals learned on the training days, unless left out, and simple ones."""
    learned = fit_rivals(market, env, refit_days=judging.rival_refit) if judging.rivals == "learned" else {}
    return {**{name: rival.rule for name, rival in learned.items()}, **simple_rules(market)}


def benchmark_close(path: Path | None, market: Market, first_day: int, last_day: int) -> Array | None:
    """Return the (days,) closes of a benchmark; None, with a warning, where it cannot be held on days first..last."""
    if path is None:
        return None
    try:
        close = read_benchmark(path, market.dates)
        if np.isnan(close[[first_day, last_day]]).any():
            first, last = market.dates[[first_day, last_day]].astype("datetime64[D]")
            known = market.dates[np.isfinite(close)].astype("datetime64[D]")
            got = f"{known[0]} to {known[-1]}" if len(known) else "none on the market's days"
            raise DataError(f"expected closes from {first} to {last} in {path}, got {got}")
    except DataError as error:
        logger.warning("the benchmark is left out: %s", error)
        return None
    return close
