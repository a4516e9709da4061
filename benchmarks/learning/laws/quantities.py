"""What laws read at a close, from the papers that found it: (n,) each, of which the day's mean counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.learning.laws.bars import INDUSTRIES, Past
from utils.arrays import Float64Array

GOES_ON, PAYS = ("goes on", "is given back"), ("pays", "costs")
_MONTH, _QUARTER, _YEAR = 21, 63, 252
OfPast = Callable[[Past, int], Float64Array]


@dataclass(frozen=True)
class Quantity:
    """A quantity, and how laws of it are drawn."""

    name: str
    family: str
    words: str
    """With {} for the sessions that it looks back."""
    of: OfPast
    looks: tuple[int, ...]
    """Sessions that it may look back."""
    decays: tuple[float, float]
    """Follow Least and largest half-life of what follows, in sessions; 0: that of one session alone."""
    sign: int
    """That the papers found: +1 where the first of the verbs is true."""
    verbs: tuple[str, str]
    is_plain: bool
    """Whether it is a unit already: neither ranked nor compared with a stock's own past."""
    column: str | None
    """Of the user, that it reads."""


QUANTITIES = dict[str, Quantity]()
FAMILIES = ("trend", "reversal", "season", "group", "volume", "risk", "told", "hidden")
"""No input holds what is `hidden`: a state that moves sessions alone is known by the drift it brought, if at all."""


def _quantity(
    family: str,
    words: str,
    looks: tuple[int, ...] = (1,),
    decays: tuple[float, float] = (1, 20),
    sign: int = 1,
    verbs: tuple[str, str] = PAYS,
    *,
    is_plain: bool = False,
    column: str | None = None,
) -> Callable[[OfPast], OfPast]:
    """Enter a function among the quantities."""

    def enter(of: OfPast) -> OfPast:
        name = of.__name__.replace("_", " ")
        QUANTITIES[name] = Quantity(name, family, words, of, looks, decays, sign, verbs, is_plain, column)
        return of

    return enter


_season = partial(_quantity, "season", decays=(0, 0), verbs=("comes again", "turns round"))


def standardised(values: Float64Array) -> Float64Array:
    """Follow Return (n,) values in deviations over stocks; 0 where all are the same."""
    apart = values - values.mean()
    spread = apart.std()
    return apart / spread if spread > 1e-12 else np.zeros_like(apart)


def _summed(past: Past, values: Float64Array, look: int, skip: int = 0) -> Float64Array:
    return np.asarray(past.last(values, look, skip).sum(axis=0))


@_quantity("trend", "the return of the last {} sessions but the last 21", (126, 252), (1, 60), verbs=GOES_ON)
def momentum(past: Past, look: int) -> Float64Array:
    """Follow Jegadeesh and Titman (1993), "Returns to buying winners and selling losers": six months for six months
    earn 12.01% a year."""
    return _summed(past, past.total, look - _MONTH, _MONTH)


@_quantity("trend", "the return of the last {} sessions but the last 126", (252,), (1, 60), verbs=GOES_ON)
def intermediate_momentum(past: Past, look: int) -> Float64Array:
    """Follow Novy-Marx (2012), "Is momentum really momentum?": it is the return of 12 to 7 months before that goes
    on."""
    return _summed(past, past.total, look - look // 2, look // 2)


@_quantity("trend", "the residual return of the last {} sessions but the last 21", (63, 252), (1, 60), verbs=GOES_ON)
def residual_momentum(past: Past, look: int) -> Float64Array:
    """Follow Blitz, Huij and Martens (2011), "Residual momentum": for its risk it earns about twice what momentum
    does."""
    rows = past.last(past.own, look - _MONTH, _MONTH)
    return np.asarray(rows.sum(axis=0) / (rows.std(axis=0) + 1e-3))


@_quantity("trend", "nearness to the high of {} sessions", (126, 252), (1, 60))
def nearness_to_high(past: Past, look: int) -> Float64Array:
    """Follow George and Hwang (2004), "The 52-week high and momentum investing": it dominates past returns and
    their profits do not reverse."""
    return np.asarray(past.price[past.day] - past.last(past.high, look).max(axis=0))


@_quantity("trend", "the return of the last {} sessions, as far as it came in small steps,", (126, 252), verbs=GOES_ON)
def smooth_momentum(past: Past, look: int) -> Float64Array:
    """Follow Da, Gurun and Warachka (2014), "Frog in the pan": momentum falls from 5.94% for continuous information
    to -2.07% for discrete, over six months."""
    rows = past.last(past.total, look)
    gain = rows.sum(axis=0) - rows.sum(axis=0).mean()
    return np.asarray(np.abs(gain) * np.sign(rows).mean(axis=0))


@_quantity("trend", "the gain over what the shares of the last {} sessions were bought for", (63, 252), (1, 60))
def overhang(past: Past, look: int) -> Float64Array:
    """Follow Grinblatt and Han (2005), "Prospect theory, mental accounting, and momentum": unrealised gains predict
    returns and past returns then do not."""
    weight = np.exp(past.last(past.volume, look) - past.traits.level)
    return np.asarray(past.price[past.day] - (weight * past.last(past.price, look)).sum(axis=0) / weight.sum(axis=0))


@_quantity("reversal", "the return of the last {} sessions", (1, 2, 5, 21), (0.5, 10), -1, GOES_ON)
def past_return(past: Past, look: int) -> Float64Array:
    """Follow Jegadeesh (1990), "Evidence of predictable behavior of security returns": 2.49% a month between
    deciles by the last month. Lehmann (1990), "Fads, martingales, and market efficiency": a week's losers gain
    0.86% to 1.24% in the next one."""
    return _summed(past, past.total, look)


@_quantity("reversal", "the overnight return of the last {} sessions", (1, 5, 21), (0.5, 20), -1, GOES_ON)
def overnight_return(past: Past, look: int) -> Float64Array:
    """Follow Lou, Polk and Skouras (2019), "A tug of war: Overnight versus intraday expected returns": what came
    overnight goes on overnight and is given back in sessions."""
    return _summed(past, past.night, look)


@_quantity("reversal", "the session return of the last {} sessions", (1, 5, 21), (0.5, 20), 1, GOES_ON)
def session_return(past: Past, look: int) -> Float64Array:
    """Follow Lou, Polk and Skouras (2019): what came in sessions goes on in sessions, for years."""
    return _summed(past, past.session, look)


@_quantity("reversal", "the return of the last {} sessions", (504,), (1, 60), -1, GOES_ON)
def long_return(past: Past, look: int) -> Float64Array:
    """Follow De Bondt and Thaler (1985), "Does the stock market overreact?": losers of three years beat winners by
    about 25% over the next three."""
    return _summed(past, past.total, look)


@_season("each stock's favourite weekday", is_plain=True)
def weekday(past: Past, look: int) -> Float64Array:
    """Follow French (1980), "Stock returns and the weekend effect": Mondays lost; Keloharju, Linnainmaa and Nyberg
    (2016), "Return seasonalities", find stocks to differ."""
    favourites = past.traits.favourites[:5]
    return np.asarray(favourites[past.weekday[past.next]] - favourites.mean(axis=0))


@_season("each stock's favourite month", is_plain=True)
def month(past: Past, look: int) -> Float64Array:
    """Follow Keloharju, Linnainmaa and Nyberg (2016), "Return seasonalities": stocks have months of their own."""
    favourites = past.traits.favourites
    return np.asarray(favourites[past.month[past.next] - 1] - favourites.mean(axis=0))


@_season("each stock's favourite half of the month", is_plain=True)
def half_month(past: Past, look: int) -> Float64Array:
    """Follow Ariel (1987), "A monthly effect in stock returns": the market rose in first halves alone."""
    return np.asarray((1.0 if past.monthday[past.next] <= 15 else -1.0) * past.traits.favourites[0])


@_season("each stock's gain at the turn of the month", is_plain=True)
def turn_of_month(past: Past, look: int) -> Float64Array:
    """Follow Lakonishok and Smidt (1988), "Are seasonal anomalies real?": the last session of a month and the first
    three bring 0.473% together."""
    return np.asarray((2.0 if past.is_turn[past.next] else 0.0) * past.traits.favourites[0])


@_season("the return of the month to come in earlier years")
def same_month(past: Past, look: int) -> Float64Array:
    """Follow Heston and Sadka (2008), "Seasonality in the cross-section of stock returns": high in the same
    calendar month, every year for up to 20."""
    year, month = past.year[past.next], past.month[past.next]
    rows = np.flatnonzero((past.month[: past.next] == month) & (past.year[: past.next] < year))
    return np.asarray(past.total[rows].mean(axis=0)) if rows.size else np.zeros(len(past.traits.beta))


@_season("the return of the same weekday in the last {} weeks", (4, 12, 52))
def same_weekday(past: Past, look: int) -> Float64Array:
    """Follow Keloharju, Linnainmaa and Nyberg (2016): seasonalities of weekdays beside those of months."""
    rows = past.next - 5 * np.arange(1, look + 1)
    rows = rows[rows >= 0]
    return np.asarray(past.total[rows].mean(axis=0)) if rows.size else np.zeros(len(past.traits.beta))


def _of_industry(past: Past, values: Float64Array) -> Float64Array:
    """Return the mean of each stock's industry."""
    industry = past.traits.industry
    count = np.bincount(industry, minlength=INDUSTRIES)
    return np.asarray((np.bincount(industry, values, INDUSTRIES) / count.clip(min=1))[industry])


@_quantity("group", "the return of its industry in the last {} sessions", (1, 5, 21, 126), (1, 20), 1, GOES_ON)
def industry_return(past: Past, look: int) -> Float64Array:
    """Follow Moskowitz and Grinblatt (1999), "Do industries explain momentum?": 0.43% a month by six months, and
    strongest at one."""
    return _of_industry(past, _summed(past, past.total, look))


@_quantity("group", "the return of a leader of each stock in the last {} sessions", (1, 2, 5, 21), (0.5, 10))
def leader_return(past: Past, look: int) -> Float64Array:
    """Follow Cohen and Frazzini (2008), "Economic links and predictable returns": customers lead, for more than 150
    basis points a month."""
    return np.asarray(_summed(past, past.total, look)[past.traits.leader])


@_quantity("group", "the return beyond its industry's in the last {} sessions", (2, 5, 21, 60), (1, 20), -1, GOES_ON)
def gap_to_industry(past: Past, look: int) -> Float64Array:
    """Follow Avellaneda and Lee (2010), "Statistical arbitrage in the US equities market": residuals of sector
    funds revert, with Sharpe ratios of 1.1 to 1.4. Gatev, Goetzmann and Rouwenhorst (2006), "Pairs trading": up to
    11% a year."""
    gain = _summed(past, past.total, look)
    return gain - _of_industry(past, gain)


@_quantity(
    "group",
    "the smallness of a stock, times the return of large ones in the last {} sessions,",
    (1, 2, 5),
    is_plain=True,
)
def size_lead(past: Past, look: int) -> Float64Array:
    """Follow Lo and MacKinlay (1990), "When are contrarian profits due to stock market overreaction?": large stocks
    lead small ones, and half of contrarian profits are due to it."""
    size = past.traits.level
    large = _summed(past, past.total, look)[size > np.quantile(size, 0.7)].mean()
    return np.asarray(-standardised(size) * large / (0.01 * np.sqrt(look)))


@_quantity("volume", "the return of the last session, as far as it was loud,", (1,), (0.5, 10), 1, GOES_ON)
def loud_return(past: Past, look: int) -> Float64Array:
    """Follow Llorente, Michaely, Saar and Wang (2002), "Dynamic volume-return relation of individual stocks":
    returns with volume go on where trades are informed and are given back where they hedge."""
    return standardised(past.total[past.day]) * standardised(volume_shock(past, look))


@_quantity("volume", "the volume of the last {} sessions over the usual", (1, 5), (2, 20))
def volume_shock(past: Past, look: int) -> Float64Array:
    """Follow Gervais, Kaniel and Mingelgrin (2001), "The high-volume return premium": unusual volume of a day or a
    week is followed by a month of gains."""
    return np.asarray(past.last(past.volume, look).mean(axis=0) - past.last(past.volume, _QUARTER).mean(axis=0))


@_quantity("volume", "the return of the last {} sessions, as far as turnover was high,", (21,), (1, 40), 1, GOES_ON)
def turnover_return(past: Past, look: int) -> Float64Array:
    """Follow Medhat and Schmeling (2022), "Short-term momentum": the last month is given back at low turnover and
    goes on at high, as profitably as momentum."""
    turnover = past.last(past.volume, look).mean(axis=0) - past.last(past.volume, 2 * _YEAR).mean(axis=0)
    return standardised(_summed(past, past.total, look)) * standardised(turnover)


@_quantity("volume", "the illiquidity of the last {} sessions", (21, 63, 252), (1, 60))
def illiquidity(past: Past, look: int) -> Float64Array:
    """Follow Amihud (2002), "Illiquidity and stock returns": the mean of |return| over turnover in money is
    rewarded."""
    impact = np.abs(past.last(past.total, look)) * np.exp(-past.last(past.price, look) - past.last(past.volume, look))
    return np.asarray(np.log(impact.mean(axis=0) + 1e-15))


@_quantity("volume", "the range of the last {} sessions over the usual", (1, 5, 21))
def range_shock(past: Past, look: int) -> Float64Array:
    """Follow Corwin and Schultz (2012), "A simple way to estimate bid-ask spreads from daily high and low prices":
    ranges tell spreads, which returns pay for."""
    usual = past.last(past.width, _YEAR).mean(axis=0)
    return np.asarray(np.log((past.last(past.width, look).mean(axis=0) + 1e-6) / (usual + 1e-6)))


@_quantity("risk", "the residual volatility of the last {} sessions", (21, 63), (1, 40), -1)
def volatility(past: Past, look: int) -> Float64Array:
    """Follow Ang, Hodrick, Xing and Zhang (2006), "The cross-section of volatility and expected returns": -1.06% a
    month between quintiles."""
    return np.asarray(past.last(past.own, look).std(axis=0))


@_quantity("risk", "the beta of the last {} sessions", (126, 252), (1, 40), -1)
def beta(past: Past, look: int) -> Float64Array:
    """Follow Frazzini and Pedersen (2014), "Betting against beta": a Sharpe ratio of 0.78 in US stocks."""
    rows = past.last(past.total, look)
    market = rows.mean(axis=1) - rows.mean()
    return np.asarray(market @ rows / (market @ market + 1e-9))


@_quantity("risk", "the best day of the last {} sessions", (21, 63), (1, 20), -1)
def best_day(past: Past, look: int) -> Float64Array:
    """Follow Bali, Cakici and Whitelaw (2011), "Maxing out": more than 1% a month between deciles."""
    return np.asarray(past.last(past.total, look).max(axis=0))


@_quantity("risk", "the skewness of the last {} sessions", (5, 21, 63), (1, 20), -1)
def skewness(past: Past, look: int) -> Float64Array:
    """Follow Amaya, Christoffersen, Jacobs and Vasquez (2015), "Does realized skewness predict the cross-section of
    equity returns?": 19 basis points in the next week."""
    rows = past.last(past.total, look)
    return np.asarray((rows**3).mean(axis=0) / ((rows**2).mean(axis=0) + 1e-9) ** 1.5)


@_quantity("told", "a surprise in the quarter's report", (1,), (5, 60), is_plain=True, column="surprise")
def surprise(past: Past, look: int) -> Float64Array:
    """Follow Bernard and Thomas (1989), "Post-earnings-announcement drift": it goes on for some 60 sessions."""
    return np.asarray(past.noise.surprise[past.day])


@_quantity("told", "the return of the last {} sessions with headlines", (1, 5), (2, 20), 1, GOES_ON, column="news")
def news_return(past: Past, look: int) -> Float64Array:
    """Follow Chan (2003), "Stock price reaction to news and no-news": it drifts after news and reverses without."""
    return np.asarray((past.last(past.total, look) * (past.last(past.noise.news, look) > 0)).sum(axis=0))


@_quantity("told", "the stock's value to its price", (1,), (0, 0), is_plain=True, column="value")
def value(past: Past, look: int) -> Float64Array:
    """Follow Fama and French (1992), "The cross-section of expected stock returns": book to market is rewarded."""
    return np.asarray(past.noise.value[past.day])


@_quantity("hidden", "a state of the stock that no bar tells", (1,), (0.5, 40), is_plain=True)
def hidden_state(past: Past, look: int) -> Float64Array:
    """Follow Conrad and Kaul (1998), "An anatomy of trading strategies": means of stocks differ, which past returns
    tell if means last."""
    return np.asarray(past.noise.hidden[past.day])


@_quantity("hidden", "a state of the industry that no bar tells", (1,), (0.5, 40), is_plain=True)
def hidden_industry(past: Past, look: int) -> Float64Array:
    """Return the same for industries, whose members tell of one another."""
    return np.asarray(past.noise.hidden_industry[past.day])
