"""Markets of the same days drawn again, on which nothing is foretold, and how often a policy is praised there."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from data.features.nine import CLOSE, HIGH, LOW, OPEN
from data.market import Market
from utils.arrays import BoolArray, Float64Array
from utils.tables import many

_PRICES = [OPEN, HIGH, LOW, CLOSE]
_BLOCK = 20
"""Sessions that stay together, so that volatility comes in clusters as it did."""


@dataclass(frozen=True)
class Praise:
    """On how many null markets the verdict praised a policy."""

    markets: int
    has_skill: int
    is_better_than_benchmark: int

    @property
    def sentence(self) -> str:
        return (
            f"On {many(self.markets, 'market')} of the same days drawn again, where nothing is foretold, the same code "
            f"is called skilled {many(self.has_skill, 'time')}, and better than the benchmark "
            f"{many(self.is_better_than_benchmark, 'time')}."
        )


def redrawn(market: Market, rng: np.random.Generator) -> Market:
    """Draw the days of a market again, in blocks with replacement, and turn the moves of half of them around.

    Within blocks a move may foretell the next ones; of a day whose moves have a random sign, the same for all stocks,
    nothing is known before. See `rearranged`. Volume and columns come with their day. Who is a member and has a bar on
    which date stays; indicators, which functions of bars do not see, are left as they are.
    """
    days = len(market.dates) - 1
    starts = rng.integers(days, size=math.ceil(days / _BLOCK))
    chosen = (starts[:, None] + np.arange(_BLOCK)).ravel()[:days] % days
    bars = market.data_array[..., _PRICES].astype(np.float64)
    places, has_bar = _places(bars, chosen), np.isfinite(bars[..., -1])

    def drawn(values: NDArray[np.float32]) -> NDArray[np.float32]:
        again = np.take_along_axis(values[1:], places, axis=0)
        return np.where(has_bar, np.concatenate((values[:1], again)), np.float32(np.nan))

    array = market.data_array.copy()
    array[..., _PRICES] = rearranged(bars, chosen, rng.random(days) < 0.5)
    return replace(
        market,
        data_array=array,
        volume=None if market.volume is None else drawn(market.volume),
        columns={name: drawn(values) for name, values in market.columns.items()},
    )


def rearranged(bars: Float64Array, chosen: NDArray[np.int64], is_mirrored: BoolArray | None = None) -> Float64Array:
    """Make a market of (days, stocks, 4) open, high, low, close whose days after the first are the chosen ones.

    A day is each stock's bar relative to its close before: it keeps its cross-section and the shape of its bars. It is
    divided by the stock's mean relative close, so that each stock's expected daily return is 0: else one that did well
    in all years would be expected to go on, and finding it would be skill. Of a stock without a bar on a chosen day
    another of its days is taken; NaN, no bar, stays where it is.

    Args:
        chosen: (days - 1,) indices of days, the one after the first is 0.
        is_mirrored: (days - 1,) days that rise by the factor by which the chosen one fell; default: none.
    """
    close = pd.DataFrame(bars[..., 3]).ffill().to_numpy()
    relative, places = bars[1:] / close[:-1, :, None], _places(bars, chosen)
    mirrored = 1 / relative[..., [0, 2, 1, 3]]
    closes = relative[..., 3:] if is_mirrored is None else (relative[..., 3:] + mirrored[..., 3:]) / 2
    mean = np.nansum(closes, axis=0) / np.maximum(np.isfinite(closes).sum(axis=0), 1)
    drawn = np.take_along_axis(relative, places[..., None], axis=0)
    if is_mirrored is not None:
        drawn[is_mirrored] = np.take_along_axis(mirrored, places[..., None], axis=0)[is_mirrored]
    drawn /= mean
    first = pd.DataFrame(close).bfill().to_numpy()[0]
    before = np.concatenate((first[None], first * np.cumprod(drawn[..., 3], axis=0)))[:-1]
    made = np.concatenate((bars[:1], drawn * before[..., None]))
    return np.where(np.isfinite(bars), made, np.nan)


def _places(bars: Float64Array, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the (days - 1, stocks) days to take: the chosen ones, or others on which a stock has a bar and had one."""
    has_bar = np.isfinite(bars[..., 3])
    is_known = has_bar[1:] & np.maximum.accumulate(has_bar)[:-1]
    places = np.repeat(chosen[:, None], bars.shape[1], axis=1)
    for stock in np.flatnonzero(~is_known.all(axis=0) & is_known.any(axis=0)):
        known = np.flatnonzero(is_known[:, stock])
        places[:, stock] = np.where(is_known[chosen, stock], chosen, known[chosen % len(known)])
    return places
