"""Baselines that a champion must beat: rules that hold by scores, rules that know what is planted, and held stocks."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.benchmark import LONGEST_GAP_DAYS, read_benchmark
from data.market import Market
from data.synthetic.built_in import PlantedScores
from training.evaluation.rules import BandRule, Tuning
from utils.arrays import Float64Array
from utils.errors import DataError

logger = logging.getLogger(__name__)
CHAMPION, RANDOM, EQUAL, HOLD = "champion", "random picker", "equal weight", "buy and hold"
IN_FULL = "agents, in full"
EQUAL_RISK, BENCHMARK, INDEX = "equal risk", "benchmark", "index"
RULE, ORACLE = "planted rule", "oracle"
BEST_AGENT, CLOSED = "best agent", "closed form"
MOMENTUM, REVERSAL = "60-day momentum", "5-day reversal"
YEAR_MOMENTUM, LOW_VOLATILITY = "12-1 momentum", "low volatility"
RIDGE, LIGHTGBM = "ridge", "LightGBM"
CASH, SURVIVORS, NEXT_CLOSE = "cash", "survivors alone", "filled at the next close"
RESERVED = {CHAMPION, RANDOM, EQUAL, HOLD, IN_FULL, EQUAL_RISK, BENCHMARK, INDEX, RULE, ORACLE, BEST_AGENT, CLOSED}
RESERVED |= {MOMENTUM, REVERSAL, YEAR_MOMENTUM, LOW_VOLATILITY, RIDGE, LIGHTGBM, CASH, SURVIVORS, NEXT_CLOSE}
"""Names that no policy of the user may have."""
NEVER_BEST = (IN_FULL, BEST_AGENT, CLOSED, RANDOM, HOLD, RULE, ORACLE, SURVIVORS, NEXT_CLOSE)
"""They are never the best baseline, nor is the benchmark: they are compared apart, or know what is planted."""
_YEAR, _MONTH = 252, 21
_VOLATILITY_DAYS = 60


def simple_rules(market: Market, tuning: Tuning) -> dict[str, BandRule]:
    """Tune momentum over 60 days and over the year before the last month, 5-day reversal and low volatility.

    Sources: Jegadeesh & Titman (1993), "Returns to buying winners and selling losers"; Jegadeesh (1990), "Evidence of
    predictable behavior of security returns"; Ang et al. (2006), "The cross-section of volatility and expected
    returns".
    """
    close = pd.DataFrame(np.log(market.close))
    scores = {
        MOMENTUM: close.diff(60).to_numpy(),
        REVERSAL: -close.diff(5).to_numpy(),
        YEAR_MOMENTUM: close.shift(_MONTH).diff(_YEAR - _MONTH).to_numpy(),
        LOW_VOLATILITY: inverse_volatility(market.close).astype(np.float32),
    }
    return dict(zip(scores, tuning.tuned_together(*([one] for one in scores.values())), strict=True))


def planted_rules(scores: PlantedScores, tuning: Tuning) -> dict[str, BandRule]:
    """Tune the planted rule and the oracle, each with the best of its horizons."""
    rule, oracle = tuning.tuned_together([*scores.rule.values()], [*scores.oracle.values()])
    return {RULE: rule, ORACLE: oracle}


def inverse_volatility(close: NDArray[np.float32]) -> Float64Array:
    """Return one over the deviation of the last 60 daily log returns of (days, n) closes; NaN where it is not known."""
    returns = pd.DataFrame(np.log(close.astype(np.float64))).diff()
    spread = returns.rolling(_VOLATILITY_DAYS, min_periods=_VOLATILITY_DAYS // 2).std().to_numpy()
    inverse: Float64Array = np.divide(1.0, spread, out=np.full(spread.shape, np.nan), where=spread > 0)
    return inverse


def index_close(path: Path | None, market: Market, days: NDArray[np.int64]) -> Float64Array | None:
    """Return the closes of the user's index on some days; None, with a warning, if it does not cover them all."""
    if path is None:
        return None
    try:
        close = read_benchmark(path, market.dates)[days]
        if np.isnan(close).any():
            first, *_, last = market.dates[days].astype("datetime64[D]")
            raise DataError(f"expected closes from {first} to {last} in {path}, at most {LONGEST_GAP_DAYS} days apart")
    except DataError as error:
        logger.warning("the index is left out: %s", error)
        return None
    return close
