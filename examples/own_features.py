"""Features of your own: each public function takes wide bars and returns one frame, days by tickers.

python main.py --features examples/own_features.py
python main.py features --features examples/own_features.py
"""

import numpy as np
import pandas as pd

from data.features.wide import WideBars


def volume_shock(bars: WideBars) -> pd.DataFrame:
    """Compare volume with its mean over a month."""
    return bars.volume / bars.volume.rolling(21, min_periods=5).mean() - 1


def distance_to_high(bars: WideBars) -> pd.DataFrame:
    """Return how far the close is below its highest price of a year (George and Hwang 2004)."""
    return bars.close / bars.high.rolling(252, min_periods=63).max() - 1


def beta(bars: WideBars) -> pd.DataFrame:
    """Return the slope of a stock's daily returns on the mean of all stocks over a quarter."""
    returns = np.log(bars.close).diff()
    market = returns.mean(axis=1)
    return returns.rolling(63, min_periods=21).cov(market).div(market.rolling(63, min_periods=21).var(), axis=0)
