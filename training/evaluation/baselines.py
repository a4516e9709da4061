"""Baselines that a champion must beat: rules that hold by scores, rules that know what is planted, and held stocks; and
the known biases of the data, which flatter all of them."""

import logging
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.benchmark import LONGEST_GAP_DAYS, read_benchmark
from data.features.nine import CLOSE
from data.market import Market
from data.synthetic.built_in import PlantedScores
from training.evaluation.rules import BandRule, Tuning
from utils.arrays import Float64Array
from utils.config.trader import Config
from utils.errors import DataError
from utils.tables import many

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
LAST_DAYS = 10
"""Days on one of which a survivor has a bar."""


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


def known_biases(market: Market, config: Config) -> dict[str, str]:
    """Return the known biases of the data and of the days that were used, by name."""
    biases, env = dict[str, str](), config.env
    has_bar = np.asarray(np.isfinite(market.data_array[..., CLOSE]))
    is_whole = np.asarray(has_bar.all(axis=0))
    if config.data is None:
        biases["Built-in market"] = "Its structure was planted: results say nothing about real markets."
    elif has_bar[-LAST_DAYS:].any(axis=0).all():
        biases["Survivors only"] = (
            f"All of {many(len(market.tickers), 'ticker')} trade to the last day. Stocks that failed are not in the "
            "data, which flatters every policy that buys: champion, random pickers and benchmark alike."
        )
    elif env.delisting_loss == 0:
        biases["Delisting"] = (
            "A stock that stops trading is sold at its last price, which flatters policies that hold failing "
            "stocks. --env.delisting-loss takes a loss, 30% in Shumway 1997."
        )
    if market.repairs:
        biases["Repaired data"] = f"{market.repairs}."
    if is_whole[market.investable_columns].all() and not is_whole.all():
        biases["Chosen in hindsight"] = (
            "The stocks that may be bought have bars on all days, and others do not. A list made today of stocks "
            "that lasted flatters every policy that buys."
        )
    when = "the close" if env.fill == "same_close" else "the open"
    size = "whatever their size" if env.volume_cap == 0 else f"up to {env.volume_cap:g}% of the day's volume"
    remedy = " --env.volume-cap limits them where the data have volume." if env.volume_cap == 0 else ""
    biases["Fills"] = (
        f"Orders fill at {when}, {size}: daily bars do not show market impact, which flatters large accounts.{remedy}"
    )
    return biases
