"""The built-in market, prepared for training, with the scores of rule and oracle."""

from dataclasses import dataclass

from data.loader import StockDataLoader
from data.market import Market, build_market
from data.synthetic.draw import MARKET_SEED, bars_frame, synthetic_market
from data.synthetic.planted import oracle_scores, rule_scores, rule_sizes
from utils.arrays import Float64Array
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig


@dataclass(frozen=True)
class PlantedScores:
    """(days, n) log returns expected at a day's close of a trade opened after it and held to its last session."""

    rule: Float64Array
    """Of the best simple rule, which knows structure and prices only."""
    oracle: Float64Array
    """Of the oracle, which knows the latent state too."""
    sizes: Float64Array | None = None
    """(days, n) shares of the largest size that orders of rule and oracle have; None: all."""


def built_in_market(
    synthetic: SyntheticConfig, split: DataConfig, env: EnvironmentConfig, *, seed: int = MARKET_SEED
) -> tuple[Market, PlantedScores]:
    """Draw a path of the built-in market, another one for each seed, and prepare it as a data file would be."""
    drawn = synthetic_market(synthetic, seed)
    tickers = drawn.tickers[: drawn.stocks]
    loader = StockDataLoader.from_frame(bars_frame(drawn), config=split, investable_tickers=tickers)
    loader.load_and_prepare()
    market = build_market(loader, split, env)
    rule = rule_scores(synthetic, drawn.bars, env.trade_sessions)[:, : drawn.stocks]
    oracle = oracle_scores(synthetic, drawn.drift, env.trade_sessions)[:, : drawn.stocks]
    sizes = rule_sizes(synthetic, drawn.close)
    planted = PlantedScores(rule, oracle, None if sizes is None else sizes[:, : drawn.stocks])
    return market, planted
