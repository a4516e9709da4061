"""The built-in market: prices with a planted structure, prepared for training, with the scores of rule and oracle.

The log return of a column over day t + 1 is its latent drift at the close of day t, plus noise. Each kind of market has
its own drift and scores (`data/synthetic/kinds/`); bars and dates are the same for all.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from data.features import NormalizationStats
from data.loader import StockDataLoader, require_memory
from data.market import Market, build_market
from data.synthetic.law import Float64Array, PlantedKind
from data.synthetic.planted import oracle_scores, planted_kind, rule_scores, rule_sizes
from utils.config.trader import DataConfig, EnvironmentConfig, SyntheticConfig

MARKET_SEED = 7
"""Seed of the path that a run trains on."""
_OVERNIGHT_SHARE = 0.1
"""Share of the noise variance that falls between close and open."""
_PRICE_RANGE = (20.0, 200.0)
_BYTES_PER_BAR = 300
"""Memory that a market takes while it is drawn, about."""
_FIRST_DATE = "2000-01-03"


@dataclass(frozen=True)
class SyntheticMarket:
    """Bars and the latent `drift`, all (days, columns) float64; float32 holds the bars exactly.

    `drift[t]` is the predictable part of the log return of day t + 1, known at the close of day t. The first `stocks`
    columns may be bought, the others are context.
    """

    open: Float64Array
    high: Float64Array
    low: Float64Array
    close: Float64Array
    drift: Float64Array
    tickers: list[str]
    dates: npt.NDArray[np.datetime64]
    stocks: int


def synthetic_market(config: SyntheticConfig, seed: int) -> SyntheticMarket:
    """Draw a market; the same settings and seed give the same market on every platform."""
    law = planted_kind(config.kind)
    require_memory(config.days, config.stocks, _BYTES_PER_BAR)
    # A stream per purpose: noise and bars do not change with the drift's draws.
    for_noise, for_drift, for_bars, for_common, for_volatility = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(5)
    )
    std = law.noise_std(config)
    shape = (config.days, len(std))
    night, session = math.sqrt(_OVERNIGHT_SHARE), math.sqrt(1.0 - _OVERNIGHT_SHARE)
    own, shared = (for_noise.standard_normal((2, *shape)), for_common.standard_normal((2, config.days, 1)))
    own = math.sqrt(1.0 - law.common_share) * std * law.mix(own, config.stocks)
    shared = math.sqrt(law.common_share) * std * shared
    volatility = law.volatility(config, for_volatility)[:, None]
    overnight = night * (own[0] + shared[0]) * volatility[:-1]
    noise = overnight + session * (own[1] + shared[1]) * volatility[:-1]
    drift = law.latent_drift(config, night * own[0] + session * own[1], for_drift)
    if not law.is_drift_steady:
        drift *= volatility[1:]
    log_return = noise - law.log_growth(config)
    log_return[1:] += drift[:-1]
    # The gap has its share of the variance but no drift, which is earned from open to close.
    std = std * volatility[:-1]
    bars = _bars(overnight - _OVERNIGHT_SHARE * std**2 / 2.0, log_return, (session * std) ** 2, for_bars)
    dates = np.busday_offset(np.datetime64(_FIRST_DATE), np.arange(config.days))
    return SyntheticMarket(*bars, drift, _tickers(config, law), dates, config.stocks)


def bars_frame(market: SyntheticMarket) -> pd.DataFrame:
    """Return the market's bars in long form: date, ticker, open, high, low, close; by date, then by ticker."""
    days, columns = market.close.shape
    values = {name: getattr(market, name).ravel() for name in ("open", "high", "low", "close")}
    dates = np.repeat(market.dates.astype("datetime64[s]"), columns)
    return pd.DataFrame({"date": dates, "ticker": np.tile(np.array(market.tickers), days), **values})


def _bars(
    gap: Float64Array, log_return: Float64Array, session_variance: Float64Array, generator: np.random.Generator
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Make open, high, low and close (days, columns) of the log returns from close to open and from close to close.

    Between open and close the log price is a Brownian bridge, whose maximum and minimum each have their exact law
    (Glasserman 2003, "Monte Carlo methods in financial engineering", section 6.4); given open and close they are drawn
    independently. A wider range would give free profits to sales at a target.
    """
    shape = log_return.shape
    cheapest, dearest = np.log(_PRICE_RANGE)
    start = cheapest + (dearest - cheapest) * generator.random(shape[1])
    log_close = start + np.cumsum(log_return, axis=0)
    log_open = log_close - log_return + gap
    middle, half = (log_open + log_close) / 2.0, (log_close - log_open) / 2.0
    up, down = (np.sqrt(half**2 + session_variance * generator.standard_exponential(shape) / 2.0) for _ in range(2))
    open_, close = _single(np.exp(log_open)), _single(np.exp(log_close))
    high = np.maximum(_single(np.exp(middle + up)), np.maximum(open_, close))
    low = np.minimum(_single(np.exp(middle - down)), np.minimum(open_, close))
    return open_, high, low, close


def _single(values: Float64Array) -> Float64Array:
    # Processors differ in the last bit of an exponential; rounded to single precision, they agree.
    return values.astype(np.float32).astype(np.float64)


def _tickers(config: SyntheticConfig, law: PlantedKind) -> list[str]:
    digits = max(3, len(str(config.stocks - 1)))  # as many in each, so that the order of names is that of columns
    context = [f"X{column:0{digits}d}" for column in range(len(law.context_noise_ratios(config)))]
    return [f"S{stock:0{digits}d}" for stock in range(config.stocks)] + context


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
        stats: normalisation of the training path, for a path without training; default: this path's own.
    """
    drawn = synthetic_market(synthetic, seed)
    tickers = drawn.tickers[: drawn.stocks]
    loader = StockDataLoader.from_frame(bars_frame(drawn), config=split, investable_tickers=tickers)
    loader.load_and_prepare()
    market = build_market(loader, split, env)
    rule, oracle = (
        scores(synthetic, known, env.trade_sessions)[:, : drawn.stocks]
        for scores, known in ((rule_scores, drawn.close), (oracle_scores, drawn.drift))
    )
    sizes = rule_sizes(synthetic, drawn.close)
    planted = PlantedScores(rule, oracle, None if sizes is None else sizes[:, : drawn.stocks])
    return market if stats is None else replace(market, stats=stats), planted
