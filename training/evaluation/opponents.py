"""Policies that a champion is compared with: simple rules, learned rivals, and a benchmark of the user's own."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from data.benchmark import LONGEST_GAP_DAYS, read_benchmark
from data.market import Market
from data.synthetic.built_in import PlantedScores
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, inverse_volatility, tune_rule
from training.evaluation.rivals import fit_rivals
from training.evaluation.tracks import ORACLE, RULE
from utils.config.trader import EvaluationConfig
from utils.errors import DataError

logger = logging.getLogger(__name__)
Array = NDArray[np.float64]
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
YEAR_MOMENTUM, LOW_VOLATILITY = "12-1 momentum", "low volatility"
_YEAR, _MONTH = 252, 21


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


def known_rules(market: Market, env: Portfolio, judging: EvaluationConfig) -> dict[str, ScoreRule]:
    """Return the rules that know prices only: rivals learned on the training days, unless left out, and simple ones."""
    learned = fit_rivals(market, env, refit_days=judging.rival_refit) if judging.rivals == "learned" else {}
    return {**{name: rival.rule for name, rival in learned.items()}, **simple_rules(market)}


def benchmark_close(path: Path | None, market: Market, env: Portfolio, starts: Tensor) -> Array | None:
    """Return the (days,) closes of a benchmark; None, with a warning, where it cannot be held over all windows."""
    if path is None:
        return None
    first_day, last_day = int(starts[0]), int(starts[-1]) + env.rules.episode_steps
    try:
        close = read_benchmark(path, market.dates)
        if np.isnan(close[first_day : last_day + 1]).any():
            first, last = market.dates[[first_day, last_day]].astype("datetime64[D]")
            known = market.dates[np.isfinite(close)].astype("datetime64[D]")
            got = f"{known[0]} to {known[-1]}" if len(known) else "none on the market's days"
            raise DataError(
                f"expected closes from {first} to {last} in {path}, none more than {LONGEST_GAP_DAYS} days after the "
                f"one before, got {got}"
            )
    except DataError as error:
        logger.warning("the benchmark is left out: %s", error)
        return None
    return close


def tune_planted(env: Portfolio, scores: PlantedScores, starts: Tensor) -> dict[str, ScoreRule]:
    """Give the rule and the oracle, by name, as `tune_rule` leaves them on (training) windows.

    They know what is planted: their scores are the expected returns of a trade, and what would earn less than a round
    trip costs is not ordered.
    """
    round_trip = 2 * env.rules.cost_rate
    return {
        name: tune_rule(env, known, round_trip, starts)
        for name, known in ((RULE, scores.rule), (ORACLE, scores.oracle))
    }
