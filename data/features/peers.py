"""What all stocks together tell of each: its peers, and the market that it trades in.

Peers are the stocks whose returns, apart from the market's, go with a stock's own; or, where the data have a column
`sector`, the others of a stock's sector. Their past returns tell those of their industry (Moskowitz and Grinblatt 1999,
"Do industries explain momentum?": 0.4% a month; Hou 2007, "Industry information diffusion and the lead-lag effect in
stock returns").
"""

from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from data.bars import SECTOR
from data.features.bank import exponential_mean
from data.features.catalogue import register
from data.features.wide import WideBars
from utils.arrays import Float64Array, Int64Array

_PEERS, _LEAST = 6, 126
"""Most peers of a stock, and the fewest sessions of the past from which they are told."""
_WINDOW, _REFRESHED = 2016, 126
"""Most sessions over which correlations are taken, and after which they are taken anew."""
_CHANCE = 2.0
"""Standard errors below which a correlation tells of no peer."""
_MOST_DEVIATIONS = 5.0
"""To which returns are clipped."""


class _Peers(NamedTuple):
    """The peers of n stocks, or fewer, for some days."""

    of: Int64Array
    """(n, peers) places."""
    weight: Float64Array
    """(n, peers), 1 in the sum, or 0 where there is none."""

    @classmethod
    def told_by(cls, moves: Float64Array) -> Self:
        """Take the stocks that go most with each in a window of (sessions, n) moves, 0 where there is none."""
        known, moves = (moves != 0).astype(np.float32), moves.astype(np.float32)
        together = known.T @ known if (known == 0).any() else np.float32(len(moves))
        norm = np.sqrt(np.maximum((moves**2).sum(axis=0), 1e-12))
        alike = moves.T @ moves
        alike /= norm
        alike /= norm[:, None]
        alike[(together < _LEAST) | (alike < _CHANCE / np.sqrt(np.maximum(together, 1)))] = 0.0
        np.fill_diagonal(alike, 0.0)
        of = np.argpartition(-alike, min(_PEERS, len(alike)) - 1, axis=1)[:, :_PEERS].copy()  # not all n x n
        weight = np.take_along_axis(alike, of, axis=1).astype(np.float64) ** 2
        return cls(of, weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-12))

    def mean(self, values: Float64Array) -> Float64Array:
        """Return the (days, n) means of (days, n) values over each stock's peers."""
        return np.asarray(sum(values[:, of] * weight for of, weight in zip(self.of.T, self.weight.T, strict=True)))


class _Sectors(NamedTuple):
    """The sectors of n stocks for some days."""

    is_in: Float64Array
    """(n, sectors), 1 of a stock's own one."""

    @classmethod
    def of(cls, numbers: Float64Array) -> Self:
        """Take (n,) numbers of sectors, NaN: none."""
        return cls((numbers[:, None] == np.unique(numbers[np.isfinite(numbers)])).astype(np.float64))

    def mean(self, values: Float64Array) -> Float64Array:
        """Return the (days, n) means of (days, n) values over the others of each stock's sector, 0 without any."""
        others = self.is_in @ self.is_in.sum(axis=0) - self.is_in.sum(axis=1)
        total = (values @ self.is_in) @ self.is_in.T - values * self.is_in.sum(axis=1)
        return np.asarray(np.divide(total, others, out=np.zeros(values.shape), where=others > 0))


def _relative_moves(bars: WideBars) -> Float64Array:
    """Return (days, n) log returns less their mean over the stocks, in deviations; 0 where there is none."""
    moves = bars.relative_returns
    spread = np.sqrt((moves**2).ewm(halflife=_LEAST, min_periods=_LEAST // 6).mean().shift())
    return np.asarray((moves / spread).clip(-_MOST_DEVIATIONS, _MOST_DEVIATIONS).fillna(0.0).to_numpy())


def peers_returns(bars: WideBars, half_life: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the past returns of each stock and of its peers, apart from the market's, in deviations."""
    close = bars.close
    if "peers" not in bars.memo:
        moves, told = _relative_moves(bars), list[tuple[int, _Peers | _Sectors]]()
        if SECTOR in bars.columns:
            sectors = bars[SECTOR].ffill().to_numpy()
            told = [(day, _Sectors.of(sectors[day])) for day in range(0, len(moves), _REFRESHED)]
        else:
            firsts = range(_LEAST, len(moves), _REFRESHED)
            told = [(day, _Peers.told_by(moves[max(0, day - _WINDOW) : day])) for day in firsts]
        bars.memo["peers"] = moves, told
    moves, peers = bars.memo["peers"]
    past, values = exponential_mean(moves, half_life), np.zeros(moves.shape)
    for first, of in peers:
        values[first : first + _REFRESHED] = of.mean(past[first : first + _REFRESHED])
    own, of_peers = (pd.DataFrame(part, close.index, close.columns).where(close.notna()) for part in (past, values))
    return own, of_peers


@register("peers", "deviations", "relative", reads_all=True)
def peers_day(bars: WideBars) -> pd.DataFrame:
    """Return the last returns of a stock's peers, apart from the market's."""
    return peers_returns(bars, 1)[1]


@register("peers", "deviations", "relative", reads_all=True)
def peers_week(bars: WideBars) -> pd.DataFrame:
    """Return the same in the mean, with a half-life of a week."""
    return peers_returns(bars, 5)[1]


@register("peers", "deviations", "relative", reads_all=True)
def peers_month(bars: WideBars) -> pd.DataFrame:
    """Return the same with a half-life of a month."""
    return peers_returns(bars, 21)[1]


@register("market", "logarithm", "past", reads_all=True)
def market_volatility(bars: WideBars) -> pd.DataFrame:
    """Return the volatility of the mean stock, with a half-life of two weeks."""
    close = bars.close
    market = bars.log_returns.mean(axis=1)
    volatility = np.log(np.sqrt((market**2).ewm(halflife=10, min_periods=10).mean()).clip(lower=1e-5))
    return pd.DataFrame(np.full(close.shape, volatility.to_numpy()[:, None]), close.index, close.columns)
