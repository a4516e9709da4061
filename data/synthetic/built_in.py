"""The built-in market made ready for training, with the scores of its best simple rule and its oracle."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data.features import NormalizationStats
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.synthetic.prices import bars_frame, synthetic_market
from data.synthetic.rules import oracle_scores, rule_scores
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

MARKET_SEED = 7
"""Seed of the path that a run trains on."""


@dataclass(frozen=True)
class PlantedScores:
    """(days, n) log returns expected, at a day's close, of a trade opened after it and held to its last session."""

    rule: NDArray[np.float64]
    """Of the best simple rule, which knows the structure and prices only."""
    oracle: NDArray[np.float64]
    """Of the oracle, which knows the latent state too."""


def built_in_market(
    synthetic: SyntheticConfig,
    split: DataConfig,
    env: EnvironmentConfig,
    *,
    seed: int = MARKET_SEED,
    stats: NormalizationStats | None = None,
) -> tuple[Market, PlantedScores]:
    """Draw a path of the built-in market and prepare it as a data file would be.

    Args:
        seed: another seed gives another path of the same law.
        stats: normalisation fitted elsewhere, for a path that nothing is trained on; default: this path's own.
    """
    drawn = synthetic_market(synthetic, seed)
    tickers = drawn.tickers[: drawn.stocks]
    loader = StockDataLoader.from_frame(bars_frame(drawn), config=split, investable_tickers=tickers)
    loader.load_and_prepare()
    market = build_market(loader, split, env)
    rule, oracle = (
        scores(synthetic, known, env.max_holding_days)[:, : drawn.stocks]
        for scores, known in ((rule_scores, drawn.close), (oracle_scores, drawn.drift))
    )
    return market if stats is None else replace(market, stats=stats), PlantedScores(rule, oracle)
