"""The built-in market, prepared for training, with the scores of rule and oracle."""

from collections.abc import Mapping
from dataclasses import dataclass

from data.loader import StockDataLoader
from data.market import Market, build_market
from data.synthetic.draw import MARKET_SEED, bars_frame, synthetic_market
from data.synthetic.planted import oracle_scores, rule_scores
from utils.arrays import Float64Array
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

SESSIONS = (1, 5, 20)
"""Over which rule and oracle look ahead."""


@dataclass(frozen=True)
class PlantedScores:
    """(days, n) log returns expected at a day's close of a stock from the next open on, by the number of sessions."""

    rule: Mapping[int, Float64Array]
    """Of the best simple rule, which knows structure and prices only."""
    oracle: Mapping[int, Float64Array]
    """Of the oracle, which knows the latent state too."""


def built_in_loader(synthetic: SyntheticConfig, split: DataConfig, *, seed: int = MARKET_SEED) -> StockDataLoader:
    """Draw a path of the built-in market, another one for each seed; return its loader, as that of a data file."""
    drawn = synthetic_market(synthetic, seed)
    return StockDataLoader.from_frame(bars_frame(drawn), config=split, investable_tickers=drawn.tickers[: drawn.stocks])


def planted_scores(synthetic: SyntheticConfig, *, seed: int = MARKET_SEED) -> PlantedScores:
    """Return the scores of rule and oracle on that path."""
    drawn = synthetic_market(synthetic, seed)
    rule = {ahead: rule_scores(synthetic, drawn.bars, ahead)[:, : drawn.stocks] for ahead in SESSIONS}
    oracle = {ahead: oracle_scores(synthetic, drawn.drift, ahead)[:, : drawn.stocks] for ahead in SESSIONS}
    return PlantedScores(rule, oracle)


def built_in_market(
    synthetic: SyntheticConfig, split: DataConfig, env: EnvironmentConfig, *, seed: int = MARKET_SEED
) -> tuple[Market, PlantedScores]:
    """Return a path of the built-in market, prepared as a data file would be, with its scores."""
    loader = built_in_loader(synthetic, split, seed=seed)
    loader.load_and_prepare()
    return build_market(loader, split, env), planted_scores(synthetic, seed=seed)
