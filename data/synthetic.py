"""The built-in market: prices with a planted, known structure, and the best rule for who knows it.

The log return of a stock over day t + 1 is what its latent drift was at the close of day t, plus noise. A kind of
market says how the drift comes about; all else (bars, fairness, dates) is the same for all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pandas as pd

from utils.config import SyntheticConfig

Float64Array = npt.NDArray[np.float64]

FAIR_SESSIONS = 20
"""Holding a stock this long from a random day on earns nothing on average, before costs."""
_OVERNIGHT_SHARE = 0.1
"""Share of the noise variance that falls between close and open."""
_PRICE_RANGE = (20.0, 200.0)
_FIRST_DATE = "2000-01-03"


@dataclass(frozen=True)
class SyntheticMarket:
    """Bars (days, stocks) of all stocks, and what nobody sees in a real market: the latent `drift` (days, stocks).

    `drift[t]` is the predictable part of the log return of day t + 1, known at the close of day t. All values are
    float64 arrays of numbers that float32 holds exactly, except the drift.
    """

    open: Float64Array
    high: Float64Array
    low: Float64Array
    close: Float64Array
    volume: Float64Array
    drift: Float64Array
    tickers: list[str]
    dates: npt.NDArray[np.datetime64]


LatentDrift = Callable[[SyntheticConfig, Float64Array, np.random.Generator], Float64Array]
DriftVariance = Callable[[SyntheticConfig, int], float]


@dataclass(frozen=True)
class MarketKind:
    """How the latent drift comes about.

    `latent_drift(config, noise, generator)` returns it as (days, stocks) from the noise (days, stocks) in the log
    returns; row t may depend on rows 0..t of the noise only (a reversal, for one, is a negative share of it).
    `drift_variance(config, sessions)` is the variance of one stock's drift summed over consecutive sessions.
    """

    latent_drift: LatentDrift
    drift_variance: DriftVariance


def synthetic_market(config: SyntheticConfig, seed: int, kind: str = "momentum") -> SyntheticMarket:
    """Draw a market; the same settings, seed and kind give the same market on every platform.

    Raises:
        KeyError: `kind` is not one of `MARKET_KINDS`.
    """
    law = MARKET_KINDS[kind]
    # A stream for each purpose: the noise and the bars stay as they are when the drift is drawn in another way.
    for_noise, for_drift, for_bars = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(3)
    )
    shape = (config.days, config.stocks)
    overnight_variance = config.daily_noise**2 * _OVERNIGHT_SHARE
    session_variance = config.daily_noise**2 - overnight_variance
    overnight = math.sqrt(overnight_variance) * for_noise.standard_normal(shape)
    noise = overnight + math.sqrt(session_variance) * for_noise.standard_normal(shape)
    drift = law.latent_drift(config, noise, for_drift)
    log_return = noise - _log_growth(config, law)
    log_return[1:] += drift[:-1]
    # The gap takes its own share of the variance only: the drift is earned from open to close, by who buys at the open.
    bars = _bars(overnight - overnight_variance / 2.0, log_return, session_variance, for_bars)
    volume = _single(np.rint(1e6 * np.exp(0.5 * for_bars.standard_normal(shape))))
    dates = np.busday_offset(np.datetime64(_FIRST_DATE), np.arange(config.days))
    return SyntheticMarket(*bars, volume, drift, _tickers(config.stocks), dates)


def bars_frame(market: SyntheticMarket) -> pd.DataFrame:
    """Return the market's bars in long form: date, ticker, open, high, low, close, volume; by date, then by ticker."""
    days, stocks = market.close.shape
    columns = {name: getattr(market, name).ravel() for name in ("open", "high", "low", "close", "volume")}
    dates = np.repeat(market.dates.astype("datetime64[s]"), stocks)
    return pd.DataFrame({"date": dates, "ticker": np.tile(np.array(market.tickers), days), **columns})


def oracle_scores(market: SyntheticMarket) -> Float64Array:
    """Return the latent drift itself, (days, stocks), in log return a day: what a rule without doubt would know."""
    return market.drift


def planted_rule_scores(close: Float64Array, config: SyntheticConfig) -> Float64Array:
    """Best estimate of the momentum market's latent drift from its closes alone, by the steady-state Kalman filter.

    Takes (days, stocks) closes, NaN where there is no bar; returns (days, stocks) drifts in log return a day, those of
    the day after. With x the estimate, z the log return, phi the persistence and K the gain,
    x[t] = phi (x[t-1] + K (z[t] - x[t-1])): an exponentially weighted mean of past returns. A day without a return from
    the day before only predicts, x[t] = phi x[t-1]. Row t depends on closes up to t only. Source: Kalman (1960), "A new
    approach to linear filtering and prediction problems".
    """
    phi, gain = persistence(config), kalman_gain(config)
    returns = _daily_log_returns(close) + _log_growth(config, MARKET_KINDS["momentum"])
    scores = np.zeros(close.shape)
    for day in range(1, len(close)):
        surprise = returns[day] - scores[day - 1]
        scores[day] = phi * (scores[day - 1] + gain * np.where(np.isfinite(surprise), surprise, 0.0))
    return scores


def persistence(config: SyntheticConfig) -> float:
    """Share of the latent drift that is left a day later."""
    return math.exp(_log_persistence(config))


def prediction_variance(config: SyntheticConfig) -> float:
    """Steady-state variance of the filter's error in the latent drift, in squared log return.

    It solves the Riccati equation P = phi^2 P R / (P + R) + Q, with R the variance of the noise and
    Q = (1 - phi^2) drift_std^2 that of the drift's shocks: P^2 + (R (1 - phi^2) - Q) P - Q R = 0.
    """
    noise = config.daily_noise**2
    forgotten = -math.expm1(2.0 * _log_persistence(config))  # 1 - phi^2, exact where phi is nearly 1
    shock = forgotten * config.drift_std**2
    slope = noise * forgotten - shock
    root = math.hypot(slope, 2.0 * math.sqrt(shock * noise))
    # Of the two forms of the positive root, the one that subtracts no near-equal numbers.
    return (root - slope) / 2.0 if slope < 0 else 2.0 * shock * noise / (root + slope)


def kalman_gain(config: SyntheticConfig) -> float:
    """Share of a day's surprise by which the filter moves its estimate: P / (P + R)."""
    variance = prediction_variance(config)
    return variance / (variance + config.daily_noise**2)


def expected_trade_return(score: Float64Array, config: SyntheticConfig, holding_days: int) -> Float64Array:
    """Log return expected of `holding_days` sessions from the next one on: score * (1 + phi + phi^2 + ...)."""
    return score * float(np.sum(persistence(config) ** np.arange(holding_days)))


def _autoregressive_drift(config: SyntheticConfig, noise: Float64Array, generator: np.random.Generator) -> Float64Array:
    phi = persistence(config)
    shock = config.drift_std * math.sqrt(-math.expm1(2.0 * _log_persistence(config)))
    normal = generator.standard_normal(noise.shape)
    drift = np.empty(noise.shape)
    drift[0] = config.drift_std * normal[0]  # from the stationary distribution: no day is special
    for day in range(1, len(drift)):
        drift[day] = phi * drift[day - 1] + shock * normal[day]
    return drift


def _autoregressive_variance(config: SyntheticConfig, sessions: int) -> float:
    # The covariance of two days' drifts is drift_std^2 phi^lag, and `sessions - lag` pairs lie a lag apart.
    lag = np.arange(1, sessions)
    pairs = float(np.sum((sessions - lag) * persistence(config) ** lag))
    return config.drift_std**2 * (sessions + 2.0 * pairs)


def _no_drift(config: SyntheticConfig, noise: Float64Array, generator: np.random.Generator) -> Float64Array:
    return np.zeros(noise.shape)


def _no_variance(config: SyntheticConfig, sessions: int) -> float:
    return 0.0


MARKET_KINDS: Mapping[str, MarketKind] = MappingProxyType(
    {
        "momentum": MarketKind(_autoregressive_drift, _autoregressive_variance),
        "martingale": MarketKind(_no_drift, _no_variance),
    }
)
"""Momentum: the drift of each stock is an autoregressive process of order one. Martingale: there is none."""


def _log_persistence(config: SyntheticConfig) -> float:
    return -math.log(2.0) / config.drift_half_life_days


def _log_growth(config: SyntheticConfig, law: MarketKind) -> float:
    """Return what is taken from each log return, so that prices grow by nothing on average.

    E[exp(x)] = exp(variance / 2) for a normal x of mean zero. Where drifts last, the variance of a sum of returns grows
    faster than their number, and no constant is right for all horizons: this one is right over `FAIR_SESSIONS`.
    """
    return config.daily_noise**2 / 2.0 + law.drift_variance(config, FAIR_SESSIONS) / (2.0 * FAIR_SESSIONS)


def _bars(
    gap: Float64Array, log_return: Float64Array, session_variance: float, generator: np.random.Generator
) -> tuple[Float64Array, Float64Array, Float64Array, Float64Array]:
    """Open, high, low and close (days, stocks) from the log returns between close and open, and close and close.

    Between open and close the log price is a Brownian bridge, whose maximum and minimum each have their exact law
    (Glasserman 2003, "Monte Carlo methods in financial engineering", section 6.4); given open and close they are drawn
    apart. A range drawn more freely would give money away to whoever sells at a target.
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


def _daily_log_returns(close: Float64Array) -> Float64Array:
    """(days, stocks) log returns, NaN where the day or the day before has no price; NaN on the first day."""
    log_close = np.full(close.shape, np.nan)
    np.log(close, out=log_close, where=close > 0)
    return np.diff(log_close, axis=0, prepend=np.nan)


def _tickers(stocks: int) -> list[str]:
    digits = max(3, len(str(stocks - 1)))  # as many in each, so that the order of names is the order of columns
    return [f"S{stock:0{digits}d}" for stock in range(stocks)]
