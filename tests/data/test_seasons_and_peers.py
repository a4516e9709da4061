"""Seasons by hand, whatever the calendar; peers go together; the market's own volatility; the way of prices."""

import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import skew

from data.features import peers
from data.features.bank import exponential_mean
from data.features.forms import values_of
from data.features.nine import PRICES
from data.features.seasons import SEASONS, seasons_ahead
from data.loader import StockDataLoader
from data.market import Market, build_market, with_features
from tests.small_market import TINY_DATA, TINY_RULES, small_market

DAYS, STOCKS = 700, 12


def market_of_returns(returns: np.ndarray, dates: pd.DatetimeIndex) -> Market:
    """A market of flat bars with these (days, stocks) log returns on these dates."""
    market = small_market(0, len(returns), returns.shape[1], investable=tuple(range(returns.shape[1])))
    data = np.ones_like(market.data_array)
    data[..., [*PRICES]] = np.exp(returns.cumsum(axis=0))[..., None]
    return with_features(replace(market, data_array=data, dates=dates.to_numpy().astype(market.dates.dtype)))


@pytest.mark.parametrize("calendar", ["B", "D"])
def test_a_weekday_tells_what_stocks_did_on_it(calendar: str) -> None:
    """On the last session before it, shrunk as by 60 sessions of nothing; at weekends only where there is trading."""
    dates = pd.date_range("2018-01-01", periods=DAYS, freq=calendar)
    returns = 0.01 * np.random.default_rng(0).standard_normal((DAYS, 3))
    found = values_of(market_of_returns(returns, dates), "weekday_season", slice(None))
    day = 650
    following = pd.date_range(dates[day], periods=2, freq=calendar)[1].day_of_week
    past = np.flatnonzero(dates[1 : day + 1].day_of_week == following) + 1
    weight = 0.5 ** (np.arange(len(past))[::-1] / 500)
    expected = weight @ returns[past] / (weight.sum() + 60)
    np.testing.assert_allclose(found[day], expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("calendar", ["B", "D"])
@pytest.mark.parametrize("name", SEASONS)
def test_the_next_season_is_told_by_sessions_until_then(calendar: str, name: str) -> None:
    """From the first one on, whatever days there is trading on later."""
    dates = pd.date_range("2018-01-01", periods=130, freq=calendar).to_numpy().astype("M8[D]")
    known = [seasons_ahead(name, dates[: day + 1])[-1] for day in range(len(dates))]
    np.testing.assert_array_equal(known, seasons_ahead(name, dates))


def test_months_and_their_turns_are_those_of_the_next_session() -> None:
    dates = pd.bdate_range("2018-01-01", periods=DAYS)
    january = (dates.month == 1)[:, None] * np.array([0.01, 0.0])
    turn = np.array(
        [(dates[max(0, d - 3) : d + 2].month.to_numpy() != date.month).any() for d, date in enumerate(dates)]
    )
    months = values_of(market_of_returns(january, dates), "month_season", slice(None))
    turns = values_of(market_of_returns(turn[:, None] * np.array([0.01, 0.0]), dates), "turn_season", slice(None))
    ahead = dates[1:]
    is_late, is_january = np.arange(DAYS - 1) > 300, ahead.month == 1
    assert (months[:-1, 0][is_late & is_january] > 1e-3).all() and (months[:-1, 0][is_late & ~is_january] == 0).all()
    assert (turns[:-1, 0][is_late & turn[1:]] > 1e-3).mean() > 0.9, "a holiday would move it"
    assert (months[:, 1] == 0).all() and (turns[:, 1] == 0).all()


def test_peers_are_stocks_whose_returns_go_together() -> None:
    """The last day's return of one industry is seen in its stocks, each without its own."""
    rng, industry = np.random.default_rng(1), np.arange(STOCKS) % 3
    returns = 0.01 * (rng.standard_normal((DAYS, STOCKS)) + rng.standard_normal((DAYS, 3))[:, industry])
    returns[-12:] = 0.0
    returns[-1, 0] = 0.05
    found = values_of(market_of_returns(returns, pd.bdate_range("2018-01-01", periods=DAYS)), "peers_day", slice(None))
    same = industry == industry[0]
    same[0] = False
    assert found[-1, same].min() > 0.1 > found[-1, ~same].max()
    assert np.isfinite(found).all()


def test_of_many_stocks_only_their_peers_are_kept() -> None:
    """Not the order of all by all: 200 MB of 5,000 stocks, each time that peers are told anew."""
    moves = np.random.default_rng(0).standard_normal((200, 500))
    tracemalloc.start()
    kept = peers._Peers.told_by(moves)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept.of.shape == (500, 6) and held < 8 * 500**2 / 10


def test_peers_by_a_column_of_sectors(tmp_path: Path) -> None:
    """Of names in a file, whatever goes together; the others' last return in units of each one's usual move."""
    rng, sector = np.random.default_rng(1), np.array(["Banks", "Oil", None, "Oil"])
    dates, tickers = pd.bdate_range("2018-01-01", periods=DAYS), ["A", "B", "C", "D"]
    close = pd.DataFrame(50 * np.exp(0.01 * rng.standard_normal((DAYS, 4)).cumsum(axis=0)), dates, tickers)
    long = close.stack().rename("close").rename_axis(["date", "ticker"]).reset_index()
    long = long.assign(open=long["close"], high=long["close"], low=long["close"])
    long["sector"] = long["ticker"].map(dict(zip(tickers, sector, strict=True)))
    long.to_parquet(tmp_path / "a.parquet")
    loader = StockDataLoader(tmp_path / "a.parquet")
    loader.load_and_prepare()
    market = build_market(loader, TINY_DATA, TINY_RULES)
    assert "sector" not in {one.name for one in market.features}
    found, codes = values_of(market, "peers_day", slice(None)), loader.columns["sector"][-1]
    moves = peers._relative_moves(market.wide())
    expected = exponential_mean(moves, 1)
    np.testing.assert_allclose(found[:, [1, 3]], expected[:, [3, 1]], rtol=1e-5, atol=1e-6)
    assert (found[:, [0, 2]] == 0).all() and np.isnan(codes[2]) and codes[1] == codes[3] != codes[0]


def test_the_market_is_louder_after_loud_days() -> None:
    returns = 0.01 * np.random.default_rng(2).standard_normal((DAYS, STOCKS))
    returns[400:450] *= 5
    found = values_of(
        market_of_returns(returns, pd.bdate_range("2018-01-01", periods=DAYS)), "market_volatility", slice(0, DAYS)
    )
    assert found[449, 0] - found[399, 0] == pytest.approx(np.log(5), abs=0.5) and np.ptp(found[449]) == 0


def test_the_way_of_prices_by_hand() -> None:
    """Of one stock, apart from the others' mean, by SciPy and plain loops."""
    returns = 0.01 * np.random.default_rng(3).standard_normal((DAYS, STOCKS))
    market = market_of_returns(returns, pd.bdate_range("2018-01-01", periods=DAYS))
    alone, close, day = returns[:, 4] - returns.mean(axis=1), np.exp(returns[:, 4].cumsum()), 650
    quarter = alone[day - 62 : day + 1]
    weights = 0.5 ** (np.arange(day + 1)[::-1] / 252)
    expected = {
        "to_year_high": np.log(close[day] / close[day - 251 : day + 1].max()),
        "to_year_mean": np.log(close[day] / (weights @ close[: day + 1] / weights.sum())),
        "largest_day": alone[day - 20 : day + 1].max(),
        "own_volatility": np.log(quarter.std(ddof=1)),
        "volatility_change": np.log((alone[day - 4 : day + 1] ** 2).mean() / (quarter**2).mean()) / 2,
        "skewness": skew(quarter, bias=False),
    }
    for name, value in expected.items():
        assert values_of(market, name, slice(None))[day, 4] == pytest.approx(value, rel=1e-3, abs=1e-5), name
