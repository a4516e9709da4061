"""Drifts that past closes do not tell, but other features of the data do.

`gap`, `range` and `volume`: overnight returns, the width of bars and volume foretell a drift that fades. `column` and
`macro`: columns of the data do, one by stock, one for the whole market, which tells whether trends last or turn.
`indicator`: prices rise where a relative strength index (RSI) is below a threshold, and fall where it is above another.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import scipy  # submodules are loaded when they are used: the help reads this file, too

from data.synthetic.kinds.drifts import MARTINGALE
from data.synthetic.law import (
    OVERNIGHT_SHARE,
    VOLUME_LOG_PHI,
    VOLUME_STD,
    Bars,
    Draws,
    PlantedKind,
    Signal,
    busyness,
    fading_state,
    fading_sum,
    log_persistence,
    register,
    volume_level,
)
from utils.arrays import Float64Array
from utils.config.trader import SyntheticConfig

DRIFT_STD = 0.0035
"""Of the daily drift."""
LOG_PHI = log_persistence(2.0)
"""Logarithm of the share of a drift that is left a day later: so little that past closes hardly tell it."""
MACRO_SWITCH_CHANCE = 1 / 60
"""Chance a day that the regime switches between trends that last and trends that turn."""
RSI_BARS, OVERSOLD, OVERBOUGHT, RSI_DRIFT = 14, 35.0, 65.0, 0.006
_SAMPLE = (4000, 64)
"""Days and columns from which moments are taken."""


def signal_kind(
    state: Callable[[SyntheticConfig, Draws], Float64Array],
    read: Callable[[SyntheticConfig, Bars], Float64Array],
    columns: Callable[[Draws], Bars] = lambda draws: {},
    log_phi: float = LOG_PHI,
    size: float = DRIFT_STD,
) -> PlantedKind:
    """Return the law of a drift in proportion to a state of the market.

    Args:
        state: (days, columns) from the draws, of variance 1 or less.
        read: the same from bars, as well as they tell it.
        log_phi: logarithm of the share of the state that is left a day later.
        size: daily drift of a state of 1.
    """

    @lru_cache
    def summed_variance(config: SyntheticConfig, sessions: int) -> float:
        rng, shares = np.random.default_rng(0), np.sqrt((OVERNIGHT_SHARE, 1.0 - OVERNIGHT_SHARE))
        specific = config.daily_noise * shares[:, None, None] * rng.standard_normal((2, *_SAMPLE))
        up, down = rng.standard_exponential((2, *_SAMPLE))
        for_shares, for_further = rng.standard_normal((2, *_SAMPLE))
        draws = Draws(specific[0], specific[1], up, down, volume=for_shares, further=for_further)
        drift = np.concatenate((np.zeros((1, _SAMPLE[1])), size * state(config, draws)[:-1]))
        total = np.cumsum(_noise(draws) + drift, axis=0)
        return 2.0 * math.log(np.exp(total[sessions:] - total[:-sessions]).mean())

    return replace(
        MARTINGALE,
        summed_variance=lambda config, sessions: np.full(config.stocks, summed_variance(config, sessions)),
        oracle=lambda config, drift, sessions: fading_sum(log_phi, sessions) * drift,
        signal=Signal(
            lambda config, draws: size * state(config, draws),
            lambda config, bars, sessions: size * fading_sum(log_phi, sessions) * read(config, bars),
            columns,
        ),
    )


def _noise(draws: Draws) -> Float64Array:
    return draws.overnight + draws.session


def _log_returns(values: Float64Array, before: Float64Array) -> Float64Array:
    """Return the log returns from one price to another, 0 on the first day, whose price before is not known."""
    return np.concatenate((np.zeros((1, values.shape[1])), np.log(values[1:] / before[:-1])))


def _tug_of_war(config: SyntheticConfig, overnight: Float64Array, session: Float64Array) -> Float64Array:
    """Return what is left of overnight returns, less what sessions tell of them: returns of whole days tell nothing."""
    night, day = math.sqrt(OVERNIGHT_SHARE), math.sqrt(1.0 - OVERNIGHT_SHARE)
    return fading_state(LOG_PHI, (day / night * overnight - night / day * session) / config.daily_noise)


register(
    "gap",
    "overnight returns that the session does not share foretell a drift that fades",
    signal_kind(
        lambda config, draws: _tug_of_war(config, draws.overnight, draws.session),
        lambda config, bars: _tug_of_war(
            config, _log_returns(bars["open"], bars["close"]), np.log(bars["close"] / bars["open"])
        ),
    ),
)


def _wicks(up: Float64Array, down: Float64Array) -> Float64Array:
    """Return what is left of surprises about how far high and low are from open and close.

    Sums of two exponential variables have a gamma law, whose normal score has variance 1.
    """
    chance = -np.expm1(-(up + down)) - (up + down) * np.exp(-(up + down))
    return fading_state(LOG_PHI, scipy.special.ndtri(np.clip(chance, 1e-6, 1 - 1e-6)))


def _read_wicks(config: SyntheticConfig, bars: Bars) -> Float64Array:
    """Solve a bar for the variables that decided its high and low."""
    open_, close = np.log(bars["open"]), np.log(bars["close"])
    middle, square = (open_ + close) / 2.0, ((close - open_) / 2.0) ** 2
    unit = (1.0 - OVERNIGHT_SHARE) * config.daily_noise**2 / 2.0
    reach = ((np.log(bars[side]) - middle) ** 2 - square for side in ("high", "low"))
    return _wicks(*(np.maximum(part, 0.0) / unit for part in reach))


register(
    "range",
    "stocks rise after bars that are wide beside their move, and fall after narrow ones",
    signal_kind(lambda config, draws: _wicks(draws.up, draws.down), _read_wicks),
)


register(
    "volume",
    "stocks rise while their volume is above its level, and fall while it is below",
    signal_kind(
        lambda config, draws: busyness(draws),
        lambda config, bars: (np.log(bars["volume"]) - volume_level(bars["volume"].shape[1])) / VOLUME_STD,
        log_phi=VOLUME_LOG_PHI,
    ),
)


def _column(draws: Draws) -> Float64Array:
    return fading_state(LOG_PHI, draws.further)


register(
    "column",
    "a column of the data, sentiment, tells the drift of each stock",
    signal_kind(
        lambda config, draws: _column(draws),
        lambda config, bars: bars["sentiment"],
        lambda draws: {"sentiment": _column(draws)},
    ),
)


def _macro(draws: Draws) -> Float64Array:
    """Return 1 while trends last and -1 while they turn, the same for all columns."""
    switches = np.cumsum(draws.further[:, :1] < NormalDist().inv_cdf(MACRO_SWITCH_CHANCE), axis=0)
    return np.repeat(1.0 - 2.0 * (switches % 2), draws.further.shape[1], axis=1)


def _read_macro(config: SyntheticConfig, bars: Bars) -> Float64Array:
    """Return the state by the trends of the noise, which is what returns are without the drift of the state before."""
    returns, state = _log_returns(bars["close"], bars["close"]), np.zeros(bars["close"].shape)
    trend, kept = np.zeros(returns.shape[1]), math.exp(LOG_PHI)
    for day, specific in enumerate(returns):
        trend = kept * trend + math.sqrt(1.0 - kept**2) * (specific - DRIFT_STD * state[day - 1]) / config.daily_noise
        state[day] = bars["macro"][day] * trend
    return state


register(
    "macro",
    "a column that all stocks share, macro, tells whether trends last or turn",
    signal_kind(
        lambda config, draws: _macro(draws) * fading_state(LOG_PHI, _noise(draws) / config.daily_noise),
        _read_macro,
        lambda draws: {"macro": _macro(draws)},
        log_phi=LOG_PHI + math.log1p(-2.0 * MACRO_SWITCH_CHANCE),
    ),
)


def _by_rsi(rsi: Float64Array) -> Float64Array:
    """Return 1 below the lower threshold, -1 above the upper one."""
    return (rsi < OVERSOLD).astype(np.float64) - (rsi > OVERBOUGHT)


def _indicator(config: SyntheticConfig, draws: Draws) -> Float64Array:
    """Return the state by the RSI, as Wilder smoothes it, of prices that the state's own drift moves."""
    noise = _noise(draws)
    state, (up, down) = np.zeros(noise.shape), np.full((2, noise.shape[1]), 0.4 * config.daily_noise)
    for day, specific in enumerate(noise):
        move = np.expm1(specific + RSI_DRIFT * state[day - 1])  # before the first day there is no drift
        up += (np.maximum(move, 0.0) - up) / RSI_BARS
        down += (np.maximum(-move, 0.0) - down) / RSI_BARS
        state[day] = _by_rsi(100.0 * up / (up + down))
    return state


def _read_indicator(config: SyntheticConfig, bars: Bars) -> Float64Array:
    import talib  # the help reads this file, too

    by_column = [talib.RSI(np.ascontiguousarray(specific / specific[0]), RSI_BARS) for specific in bars["close"].T]
    return _by_rsi(np.nan_to_num(np.stack(by_column, axis=1), nan=50.0))


register(
    "indicator",
    "stocks whose RSI is below 35 rise, and those whose RSI is above 65 fall",
    signal_kind(_indicator, _read_indicator, log_phi=log_persistence(2.3), size=RSI_DRIFT),
)
