"""Columns of noise as own features, to see what they cost: `--features benchmarks/learning/noise.py` of any study.

Every second one is drawn anew each day, the others last for a month. NOISE_COLUMNS says how many there are.
"""

import os

import numpy as np
import pandas as pd
from scipy.signal import lfilter

from data.features.own import OwnFeature
from data.features.wide import WideBars

_KEPT = 0.5 ** (1 / 21)


def _noise(number: int) -> OwnFeature:
    def noise(bars: WideBars) -> pd.DataFrame:
        drawn = np.random.default_rng(number).standard_normal((len(bars.dates), len(bars.tickers)))
        lasting = lfilter([1 - _KEPT], [1, -_KEPT], drawn, axis=0) if number % 2 else drawn
        close = bars.close
        return pd.DataFrame(lasting, index=close.index, columns=close.columns)

    return noise


globals().update({f"noise_{number}": _noise(number) for number in range(int(os.environ.get("NOISE_COLUMNS", "30")))})
