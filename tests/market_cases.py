"""Random prices, volumes and target weights with everything in them that goes wrong in real ones."""

import numpy as np
import numpy.typing as npt

from data.market import Market
from utils.arrays import Float32Array


def random_panel(
    rng: np.random.Generator,
    days: int,
    stocks: int,
    *,
    missing: float = 0.03,
    delist: float = 0.1,
    late_start: float = 0.15,
    halt: float = 0.2,
    gap: float = 0.015,
    jump: float = 0.03,
) -> Float32Array:
    """Prices (days, stocks, 4) float32, open, high, low, close, with rows of NaN where a stock has no bar.

    `missing` is the share of single days without a bar; `delist`, `late_start` and `halt` are the shares of stocks that
    end early, start late and stop trading for 6 to 12 days; `gap` is the standard deviation of overnight returns and
    `jump` the share of sessions (each of open and close) with a move of up to a third.
    """
    overnight = _moves(rng, days, stocks, gap, jump)
    intraday = _moves(rng, days, stocks, 0.02, jump)
    first = np.log(rng.uniform(5, 200, stocks))
    close = first + np.cumsum(overnight + intraday, axis=0)
    open_ = close - intraday
    high = np.maximum(open_, close) + _wick(rng, days, stocks)
    low = np.minimum(open_, close) - _wick(rng, days, stocks)
    prices = np.exp(np.clip(np.stack([open_, high, low, close], axis=-1), -2, 10))
    panel: Float32Array = prices.astype(np.float32)
    panel[~_has_bar(rng, days, stocks, missing, delist, late_start, halt)] = np.nan
    return panel


def _moves(rng: np.random.Generator, days: int, stocks: int, spread: float, jump: float) -> npt.NDArray[np.float64]:
    jumps = rng.uniform(-0.3, 0.35, (days, stocks)) * (rng.random((days, stocks)) < jump)
    moves: npt.NDArray[np.float64] = rng.normal(0.001, spread, (days, stocks)) + jumps
    return moves


def _wick(rng: np.random.Generator, days: int, stocks: int) -> npt.NDArray[np.float64]:
    wick: npt.NDArray[np.float64] = rng.exponential(0.01, (days, stocks)) * (rng.random((days, stocks)) < 0.75)
    return wick


def _has_bar(
    rng: np.random.Generator, days: int, stocks: int, missing: float, delist: float, late_start: float, halt: float
) -> npt.NDArray[np.bool_]:
    present: npt.NDArray[np.bool_] = rng.random((days, stocks)) >= missing
    for stock in range(stocks):
        if rng.random() < late_start:
            present[: rng.integers(1, days), stock] = False
        if rng.random() < delist:
            present[rng.integers(1, days) :, stock] = False
        if rng.random() < halt:
            first = rng.integers(0, days)
            present[first : first + rng.integers(6, 13), stock] = False
    return present


def random_volume(rng: np.random.Generator, data: Float32Array, money: float) -> Float32Array:
    """Shares traded (days, stocks) float32, mostly worth about so much `money`; some unknown, some 0."""
    volume = money / np.where(np.isnan(data[..., 3]), 1.0, data[..., 3]) * rng.lognormal(0, 1, data.shape[:2])
    odd = rng.choice([np.nan, np.inf, -1.0, 0.0], data.shape[:2])
    return np.where(rng.random(data.shape[:2]) < 0.2, odd, volume).astype(np.float32)


def random_targets(rng: np.random.Generator, steps: int, stocks: int) -> Float32Array:
    """Target weights (steps, stocks) float32 that add up to anything from 0 to 2; some are zero, some missing."""
    weights = rng.dirichlet(np.full(stocks, 0.5), steps) * rng.uniform(0.0, 2.0, (steps, 1))
    weights[rng.random(weights.shape) < 0.2] = np.nan
    weights[rng.random(weights.shape) < 0.2] = 0.0
    return weights.astype(np.float32)


def with_another_future(market: Market, day: int, rng: np.random.Generator) -> Market:
    """All that is known of a market, other after a day, a tenth of it missing."""

    def changed(values: Float32Array) -> Float32Array:
        factor = np.exp(rng.normal(0, 1, values.shape)).astype(np.float32)
        factor[rng.random(values.shape) < 0.1] = np.nan
        factor[: day + 1] = 1
        return values * factor

    return market.map_cells(changed)
