"""What the way of a stock's prices tells beyond the returns that it adds up to: its highs, its extremes, its risk.

Investors take the year's high as an anchor (George and Hwang 2004, "The 52-week high and momentum investing": 0.45% a
month), pay for lotteries (Bali, Cakici and Whitelaw 2011, "Maxing out": the largest day of a month; Amaya,
Christoffersen, Jacobs and Vasquez 2015, "Does realized skewness predict the cross-section of equity returns?") and
for volatile stocks (Ang, Hodrick, Xing and Zhang 2006, "The cross-section of volatility and expected returns"), and
overreact to news of years (De Bondt and Thaler 1985, "Does the stock market overreact?").
"""

import numpy as np
import pandas as pd

from data.features.catalogue import register
from data.features.wide import WideBars

_WEEK, _MONTH, _QUARTER, _YEAR = 5, 21, 63, 252
"""Sessions."""


@register("path", "logarithm", "relative")
def to_year_high(bars: WideBars) -> pd.DataFrame:
    """Return the distance to the highest close of a year."""
    close = bars.close
    return np.log(close / close.rolling(_YEAR, min_periods=1).max())


@register("path", "logarithm", "relative")
def to_year_mean(bars: WideBars) -> pd.DataFrame:
    """Return the distance to the mean close, with a half-life of a year."""
    close = bars.close
    return np.log(close / close.ewm(halflife=_YEAR, ignore_na=True).mean()).where(close.notna())


@register("path", "logarithm", "relative", reads_all=True)
def largest_day(bars: WideBars) -> pd.DataFrame:
    """Return the largest return of a session in a month, apart from the market's."""
    return bars.relative_returns.rolling(_MONTH, min_periods=1).max()


@register("path", "logarithm of deviations", "relative", reads_all=True)
def own_volatility(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the volatility of a quarter, apart from the market's."""
    return np.log(bars.relative_returns.rolling(_QUARTER, min_periods=2).std().where(lambda std: std > 0))


@register("path", "logarithm of a ratio", "relative", reads_all=True)
def volatility_change(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the volatility of a week over that of a quarter."""
    squares = bars.relative_returns**2
    week, quarter = (squares.rolling(days, min_periods=2).mean() for days in (_WEEK, _QUARTER))
    return (0.5 * np.log(week / quarter).where((week > 0) & (quarter > 0))).clip(-3, 3)


@register("path", "skewness", "relative", reads_all=True)
def skewness(bars: WideBars) -> pd.DataFrame:
    """Return the skewness of a quarter's returns, apart from the market's."""
    return bars.relative_returns.rolling(_QUARTER, min_periods=3).skew()
