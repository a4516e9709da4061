"""The built-in market: bars drawn from the law of a kind, prepared for training, with the scores of rule and oracle.

The log return of a column over day t + 1 is its latent drift at the close of day t, plus noise. Each kind of market has
its own drift and scores (`data/synthetic/kinds/`); bars and dates are the same for all.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from data.bars import PRICE_COLUMNS, VOLUME
from data.loader import StockDataLoader
from data.market import Market, build_market
from data.synthetic.kinds import oracle_scores, planted_kind, rule_scores
from data.synthetic.law import OVERNIGHT_SHARE, VOLUME_STD, Bars, busyness, volume_level
from utils.arrays import DateArray, Float64Array
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig
from utils.memory_guard import require_memory

MARKET_SEED = 7
"""Seed of the path that a run trains on."""
_PRICE_RANGE = (20.0, 200.0)
_BYTES_PER_BAR = 300
"""Memory that a market takes while it is drawn, about."""
_FIRST_DATE = "2000-01-03"
SESSIONS = (1, 5, 20)
"""Over which rule and oracle look ahead."""


@dataclass(frozen=True)
class SyntheticMarket:
    """Bars and the latent `drift`, all (days, columns) float64; float32 holds the prices exactly.

    `drift[t]` is the predictable part of the log return of day t + 1, known at the close of day t. The first `stocks`
    columns may be bought, the others are context.
    """

    open: Float64Array
    high: Float64Array
    low: Float64Array
    close: Float64Array
    drift: Float64Array
    tickers: list[str]
    dates: DateArray
    stocks: int
    volume: Float64Array

    @property
    def bars(self) -> Bars:
        """All that is observed, by name."""
        return {name: getattr(self, name) for name in (*PRICE_COLUMNS, VOLUME)}


def synthetic_market(config: SyntheticConfig, seed: int) -> SyntheticMarket:
    """Draw a market; the same settings and seed give the same market on every platform."""
    law = planted_kind(config.kind)
    size = {"--synthetic.days": config.days, "--synthetic.stocks": config.stocks, "bytes": _BYTES_PER_BAR}
    require_memory("built-in bars", size)
    # A stream per purpose: noise and bars do not change with the drift's draws.
    for_noise, for_drift, for_bars, for_common, for_volatility, for_volume = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(6)
    )
    std = law.noise_std(config)
    shape = (config.days, len(std))
    night, session = math.sqrt(OVERNIGHT_SHARE), math.sqrt(1.0 - OVERNIGHT_SHARE)
    specific = for_noise.standard_normal((2, *shape))
    shared = for_common.standard_normal((2, config.days, 1))
    specific = math.sqrt(1.0 - law.common_share) * std * specific
    shared = math.sqrt(law.common_share) * std * shared
    volatility = law.volatility(config, for_volatility)[:, None]
    overnight = night * (specific[0] + shared[0]) * volatility[:-1]
    noise = overnight + session * (specific[1] + shared[1]) * volatility[:-1]
    start = for_bars.random(shape[1])
    up, down = for_bars.standard_exponential((2, *shape))
    busy = busyness(for_volume.standard_normal(shape))
    own = night * specific[0] + session * specific[1]
    drift = (law.latent_drift(config, own, for_drift) + law.volume_drift * busy) * volatility[1:]
    log_return = noise - law.log_growth(config)
    log_return[1:] += drift[:-1]
    # The gap has its share of the variance but no drift, which is earned from open to close.
    std = std * volatility[:-1]
    gap = overnight - OVERNIGHT_SHARE * std**2 / 2.0
    prices = _bars(gap, log_return, (session * std) ** 2, start, (up, down))
    # Whole shares: a level of each stock, times what calm and busy times make of it.
    volume = np.exp(volume_level(shape[1]) + VOLUME_STD * busy).round()
    digits = max(3, len(str(config.stocks - 1)))  # as many in each, so that the order of names is that of columns
    tickers = [f"S{stock:0{digits}d}" for stock in range(config.stocks)]
    tickers += [f"X{column:0{digits}d}" for column in range(shape[1] - config.stocks)]
    dates = np.busday_offset(np.datetime64(_FIRST_DATE), np.arange(config.days))
    return SyntheticMarket(*prices, drift, tickers, dates, config.stocks, volume)


def bars_frame(market: SyntheticMarket) -> pd.DataFrame:
    """Return the market's bars in long form: date, ticker, prices and volume; by date, then ticker."""
    days, columns = market.close.shape
    values = {name: column.ravel() for name, column in market.bars.items()}
    dates = np.repeat(market.dates.astype("datetime64[s]"), columns)
    return pd.DataFrame({"date": dates, "ticker": np.tile(np.array(market.tickers), days), **values})


def _bars(
    gap: Float64Array,
    log_return: Float64Array,
    session_variance: Float64Array,
    start: Float64Array,
    reach: tuple[Float64Array, Float64Array],
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Make open, high, low and close (days, columns) of the log returns from close to open and from close to close.

    Between open and close the log price is a Brownian bridge, whose maximum and minimum each have their exact law
    (Glasserman 2003, "Monte Carlo methods in financial engineering", section 6.4); given open and close they are drawn
    independently. A wider range would give free profits to sales at a target.
    """
    cheapest, dearest = np.log(_PRICE_RANGE)
    log_close = cheapest + (dearest - cheapest) * start + np.cumsum(log_return, axis=0)
    log_open = log_close - log_return + gap
    middle, half = (log_open + log_close) / 2.0, (log_close - log_open) / 2.0
    up, down = (np.sqrt(half**2 + session_variance * drawn / 2.0) for drawn in reach)
    open_, close = _single(np.exp(log_open)), _single(np.exp(log_close))
    high = np.maximum(_single(np.exp(middle + up)), np.maximum(open_, close))
    low = np.minimum(_single(np.exp(middle - down)), np.minimum(open_, close))
    return open_, high, low, close


def _single(values: Float64Array) -> Float64Array:
    # Processors differ in the last bit of an exponential; rounded to single precision, they agree.
    return values.astype(np.float32).astype(np.float64)


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
