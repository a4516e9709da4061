"""What the literature holds against the returns to come, as numbers of a stock and a day: quantities of formulas.

Networks do not read them: each would be an input that most often tells nothing. See `data.features.formulas`, which
searches among them.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from data.features.catalogue import CATALOGUE, LIBRARY, Feature, Form, money, overnight_return, session_return
from data.features.peers import peers_returns
from data.features.wide import WideBars

_WEEK, _MONTH, _QUARTER, _HALF, _YEAR = 5, 21, 63, 126, 252
"""Sessions."""
_WEEKDAYS = 5
_LEAST = 1e-9
_LARGE = 0.7
"""Share of stocks that are smaller than a large one."""


def _quantity(
    name: str,
    unit: str,
    of: Callable[..., pd.DataFrame],
    *,
    form: Form = "relative",
    needs_volume: bool = False,
    **settings: int,
) -> None:
    CATALOGUE[name] = Feature(name, LIBRARY, unit, form, partial(of, **settings), needs_volume, reads_all=True)


def _least(days: int) -> int:
    """Return the fewest sessions over which a mean is taken."""
    return min(days, max(1, days // 4))


def _window(values: pd.DataFrame, days: int) -> pd.api.typing.Rolling:
    """Return a window of some sessions, of which the fewest must be known."""
    return values.rolling(days, min_periods=_least(days))


def past_return(bars: WideBars, days: int, skipped: int = 0) -> pd.DataFrame:
    """Return the returns of some sessions but the last ones, apart from the market's (Jegadeesh and Titman 1993,
    "Returns to buying winners and selling losers"; Novy-Marx 2012, "Is momentum really momentum?")."""
    returns = bars.relative_returns.shift(skipped)
    return _window(returns, days - skipped).sum()


def move(bars: WideBars) -> pd.DataFrame:
    """Return the size of the last return, apart from the market's."""
    return bars.relative_returns.abs()


def to_high(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the distance of the close to the highest price of some sessions."""
    return np.log(bars.close / bars.high.rolling(days, min_periods=1).max())


def smooth_return(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the return of some sessions as far as it came in small steps (Da, Gurun and Warachka 2014, "Frog in the
    pan")."""
    gain = _window(bars.relative_returns, days).sum()
    return gain.abs() * _window(np.sign(bars.log_returns), days).mean()


def overhang(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the gain over the price at which the shares of some sessions were traded (Grinblatt and Han 2005,
    "Prospect theory, mental accounting, and momentum")."""
    paid, shares = (_window(part, days).sum() for part in (money(bars), bars.volume))
    return np.log(bars.close * shares.where(shares > 0) / paid)


def beta(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the regression of a stock's returns on the mean stock's (Frazzini and Pedersen 2014, "Betting against
    beta")."""
    returns = bars.log_returns
    market = returns.mean(axis=1)
    both, of_returns, square, of_market = (
        _window(values, days).mean() for values in (returns.mul(market, axis=0), returns, market**2, market)
    )
    return (both - of_returns.mul(of_market, axis=0)).div((square - of_market**2).clip(lower=_LEAST), axis=0)


def volatility(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the logarithm of the volatility of some sessions, apart from the market's."""
    deviation = bars.relative_returns.rolling(days, min_periods=_WEEK).std()
    return np.log(deviation.where(deviation > 0))


def largest(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the largest return of some sessions (Bali, Cakici and Whitelaw 2011, "Maxing out")."""
    return bars.log_returns.rolling(days, min_periods=1).max()


def skew(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the mean cube of the returns of some sessions over their mean square (Amaya, Christoffersen, Jacobs and
    Vasquez 2015, "Does realized skewness predict the cross-section of equity returns?")."""
    returns = bars.relative_returns
    cube, square = ((returns**power).rolling(days, min_periods=min(days, _WEEK)).mean() for power in (3, 2))
    return cube / (square + _LEAST) ** 1.5


def range_shock(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the logarithm of the mean range of some sessions over that of a year (Corwin and Schultz 2012, "A simple
    way to estimate bid-ask spreads")."""
    width = np.log(bars.high / bars.low)
    usual = width.rolling(_YEAR, min_periods=_MONTH).mean()
    return np.log((width.rolling(days, min_periods=1).mean() + 1e-5) / (usual + 1e-5))


def size(bars: WideBars) -> pd.DataFrame:
    """Return the logarithm of the money traded in a year (Lo and MacKinlay 1990, "When are contrarian profits due to
    stock market overreaction?")."""
    return np.log(money(bars)).rolling(_YEAR, min_periods=_WEEK).mean()


def led_return(bars: WideBars, days: int) -> pd.DataFrame:
    """Return how small a stock is times what large ones, which lead, returned in some sessions (Lo and MacKinlay
    1990)."""
    money = size(bars)
    large = money.ge(money.quantile(_LARGE, axis=1), axis=0)
    led = bars.log_returns.where(large).mean(axis=1).rolling(days, min_periods=1).sum()
    return -money.sub(money.mean(axis=1), axis=0).mul(led, axis=0)


def volume_shock(bars: WideBars, days: int, usual: int) -> pd.DataFrame:
    """Return the logarithm of the shares traded in some sessions against more of them (Gervais, Kaniel and Mingelgrin
    2001, "The high-volume return premium"; Medhat and Schmeling 2022, "Short-term momentum")."""
    volume = np.log(bars.volume.where(bars.volume > 0))
    return volume.rolling(days, min_periods=1).mean() - _window(volume, usual).mean()


def illiquidity_of(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the logarithm of the mean return by the money traded (Amihud 2002, "Illiquidity and stock returns")."""
    impact = bars.log_returns.abs() / money(bars)
    mean = _window(impact, days).mean()
    return np.log(mean.where(mean > 0))


def weekday_return(bars: WideBars, weeks: int) -> pd.DataFrame:
    """Return the returns on the weekday of the next session, summed over some weeks of five sessions (Keloharju,
    Linnainmaa and Nyberg 2016, "Return seasonalities")."""
    returns = bars.relative_returns.fillna(0.0)
    return sum((returns.shift(_WEEKDAYS * week - 1) for week in range(2, weeks + 1)), returns.shift(_WEEKDAYS - 1))


def peers_gap(bars: WideBars, half_life: int) -> pd.DataFrame:
    """Return a stock's past returns beyond those of its peers (Avellaneda and Lee 2010, "Statistical arbitrage in the
    US equities market"; Gatev, Goetzmann and Rouwenhorst 2006, "Pairs trading")."""
    own, peers = peers_returns(bars, half_life)
    return own - peers


def turnover_return(bars: WideBars, days: int) -> pd.DataFrame:
    """Return the returns of some sessions times how much was traded in them, both in deviations over the stocks (Medhat
    and Schmeling 2022, "Short-term momentum")."""
    gain, traded = past_return(bars, days), volume_shock(bars, days, 2 * _YEAR)
    apart = (part.sub(part.mean(axis=1), axis=0).div(part.std(axis=1), axis=0) for part in (gain, traded))
    return math.prod(apart)


_quantity("move_1", "logarithm", move)
for _days in (1, 2, _WEEK, 10, _MONTH, _QUARTER, _HALF, _YEAR, 2 * _YEAR):
    _quantity(f"return_{_days}", "logarithm", past_return, days=_days)
for _days, _skipped in ((_QUARTER, _MONTH), (_HALF, _MONTH), (_YEAR, _MONTH), (_YEAR, _HALF)):
    _quantity(f"return_{_days}_{_skipped}", "logarithm", past_return, days=_days, skipped=_skipped)
for _days in (_HALF, _YEAR):
    _quantity(f"to_high_{_days}", "logarithm", to_high, days=_days)
    _quantity(f"smooth_return_{_days}", "logarithm", smooth_return, days=_days)
    _quantity(f"beta_{_days}", "share", beta, days=_days)
_quantity("volatility_21", "logarithm of deviations", volatility, days=_MONTH)
for _days in (_MONTH, _QUARTER):
    _quantity(f"largest_{_days}", "logarithm", largest, days=_days)
for _days in (_WEEK, _MONTH, _QUARTER):
    _quantity(f"skew_{_days}", "skewness", skew, days=_days)
for _days in (1, _WEEK, _MONTH):
    _quantity(f"range_shock_{_days}", "logarithm of a ratio", range_shock, days=_days)
for _weeks in (4, 12, 52):
    _quantity(f"weekday_return_{_weeks}", "logarithm", weekday_return, weeks=_weeks)
for _days in (_WEEK, _MONTH, _QUARTER):
    _quantity(f"peers_gap_{_days}", "deviations", peers_gap, half_life=_days)
_quantity("turnover_return_21", "squared deviations", turnover_return, needs_volume=True, days=_MONTH)
for _days in (1, _WEEK):
    _quantity(f"led_return_{_days}", "squared logarithms", led_return, form="scaled", needs_volume=True, days=_days)
for _days in (_WEEK, _MONTH):
    _quantity(f"overnight_{_days}", "logarithm", overnight_return, days=_days, least=_least(_days))
    _quantity(f"session_{_days}", "logarithm", session_return, days=_days, least=_least(_days))
_quantity("size_252", "logarithm of money", size, needs_volume=True)
for _days, _usual in ((1, _QUARTER), (_WEEK, _QUARTER), (_MONTH, 2 * _YEAR)):
    _quantity(
        f"volume_shock_{_days}", "logarithm of a ratio", volume_shock, needs_volume=True, days=_days, usual=_usual
    )
for _days in (_QUARTER, _YEAR):
    _quantity(
        f"illiquidity_{_days}", "logarithm of return a unit of money", illiquidity_of, needs_volume=True, days=_days
    )
    _quantity(f"overhang_{_days}", "logarithm", overhang, needs_volume=True, days=_days)
