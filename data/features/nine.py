"""Nine causal features of daily bars, and the stationary features that are observed made from them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import talib

from utils.arrays import Float32Array, Float64Array

FEATURES = ("open", "close", "high", "low", "rsi", "macd", "macd_signal", "trix", "percent_to_ma20")
OPEN, CLOSE, HIGH, LOW, RSI, MACD, MACD_SIGNAL, TRIX, PERCENT_TO_MA20 = range(9)
NUM_FEATURES = len(FEATURES)
PRICES = (OPEN, CLOSE, HIGH, LOW)

# In the statistics, and only there, an input counts at most this much: one misplaced decimal point would otherwise set
# the scale of a whole feature.
_STATISTICS_BOUND = (0.5, 0.5, 0.5, 0.5, 100.0, 0.5, 0.5, 10.0, 50.0)


@dataclass(frozen=True)
class NormalizationStats:
    """Mean and standard deviation of each stationary input, both (9,) float32, over training days only."""

    mean: Float32Array
    std: Float32Array


def indicators(close: Float64Array) -> Float64Array:
    """Compute the features that are no prices of one ticker's own consecutive closes, NaN while one warms up.

    Takes (bars,) finite positive closes, days without a bar left out. Returns (bars, 5): RSI(14) in 0..100 (0 where the
    price never moved), MACD(12, 26, 9) line and signal in price units, TRIX(15) in percent a bar, and
    100 * (close / SMA(20) - 1). Row t depends on rows up to t only, bit for bit.
    """
    values = np.full((len(close), NUM_FEATURES - len(PRICES)), np.nan)
    if len(close) == 0:
        return values
    # TA-Lib compares with absolute thresholds; relative to the first close they mean the same at every price level.
    unit = close[0]
    relative = close / unit
    macd, signal, _ = talib.MACD(relative, fastperiod=12, slowperiod=26, signalperiod=9)
    values[:, 0] = talib.RSI(relative, timeperiod=14)
    values[:, 1], values[:, 2] = macd * unit, signal * unit
    values[:, 3] = talib.TRIX(relative, timeperiod=15)
    values[:, 4] = 100.0 * (relative / talib.SMA(relative, timeperiod=20) - 1.0)
    return values


def stationary_inputs(data_array: Float32Array) -> Float32Array:
    """Return the features in scale-free form: (days, columns, 9) float32, NaN where there is no value.

    Prices become the change since the column's last traded close before the day (0.01 is one percent), MACD and its
    signal are divided by the day's close, the others are scale free already. Causal, bit for bit.
    """
    inputs = np.empty(data_array.shape, dtype=np.float32)
    for feature, values in enumerate(_stationary(data_array)):
        inputs[:, :, feature] = values
    return inputs


def _stationary(data_array: Float32Array) -> Iterator[Float32Array]:
    """Yield each feature in scale-free form, (days, columns)."""
    close = data_array[:, :, CLOSE]
    previous = pd.DataFrame(close).ffill().shift().to_numpy(np.float32)
    for feature in range(NUM_FEATURES):
        values = data_array[:, :, feature]
        with np.errstate(all="ignore"):  # beyond float32 is infinite, and clipped later
            # float64 up to here: in float32 the quotient's rounding would show in small returns
            if feature in PRICES:
                values = (values.astype(np.float64) / previous - 1.0).astype(np.float32)
            elif feature in (MACD, MACD_SIGNAL):
                values = (values.astype(np.float64) / close).astype(np.float32)
        yield values


def normalization_stats(data_array: Float32Array, last_day: int) -> NormalizationStats:
    """Return mean and standard deviation of the stationary inputs over days 0 to `last_day`, inclusive.

    Values beyond a fixed bound (50% for returns) count as the bound. A feature without values, or one that never
    varies, gets a standard deviation of 1.
    """
    mean = np.zeros(NUM_FEATURES, dtype=np.float32)
    std = np.ones(NUM_FEATURES, dtype=np.float32)
    for feature, stationary in enumerate(_stationary(data_array[: last_day + 1])):
        bound = _STATISTICS_BOUND[feature]
        values = stationary[~np.isnan(stationary)].astype(np.float64)
        np.clip(values, -bound, bound, out=values)
        if values.size:
            mean[feature] = values.mean()
            spread = values.std()
            std[feature] = spread if spread > 1e-9 * bound else 1.0
    return NormalizationStats(mean=mean, std=std)


def observed_features(data_array: Float32Array, stats: NormalizationStats, clip: float) -> Float32Array:
    """Return the observed features: (days, columns, 9) float32, standardised and clipped to +-`clip`; a missing value
    is 0, the mean."""
    inputs = stationary_inputs(data_array)
    inputs -= stats.mean
    inputs /= stats.std
    np.clip(inputs, -clip, clip, out=inputs)
    return np.nan_to_num(inputs, copy=False, nan=0.0)
