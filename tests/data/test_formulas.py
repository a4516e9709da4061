"""Formulas: one that moves returns is found, noise has none; values as in plain pandas; nothing reads ahead."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features import screen
from data.features.forms import FeatureInputs
from data.features.formulas import Formulas
from data.features.grammar import STATES, Formula, Quantities, next_returns
from data.features.nine import CLOSE, OPEN, PRICES
from data.features.screen import Targets, screened
from data.features.seasons import SEASONS
from data.market import Market, with_features
from tests.market_cases import random_panel, with_another_future
from tests.small_market import market_of, small_market
from utils.arrays import BoolArray, Float64Array
from utils.errors import DataError

pytestmark = pytest.mark.usefixtures("all_formulas")
DAYS, STOCKS, KEPT = 500, 20, 0.5 ** (1 / 3)
LEARNED = np.arange(DAYS) < 400
PLANTED = Formula("intraday", form="after high", by="range_shock_1", half_life=3)


def deviations(values: Float64Array) -> Float64Array:
    """Of some stocks on a day, up to 4."""
    return np.asarray(np.clip((values - values.mean()) / values.std(), -4, 4), dtype=np.float64)


def drawn(seed: int, strength: float = 0.0, days: int = DAYS, stocks: int = STOCKS) -> Market:
    """Returns of sessions that follow those of wide days, half of which is forgotten after three; or nothing."""
    rng = np.random.default_rng(seed)
    overnight, session = 0.005 * rng.standard_normal((days, stocks)), 0.012 * rng.standard_normal((days, stocks))
    width = 0.06 * np.exp(0.5 * np.abs(rng.standard_normal((days, stocks))))
    shock = np.log((width + 1e-5) / (pd.DataFrame(width).rolling(252, min_periods=21).mean() + 1e-5)).to_numpy()
    memory = np.zeros(stocks)
    for day in range(21, days - 1):
        value = deviations(np.expm1(session[day])) * (deviations(shock[day]) > 0.7)
        memory = KEPT * memory + value - value.mean()
        session[day + 1] += strength * memory
    close = np.log(50) + (overnight + session).cumsum(axis=0)
    middle = close - session / 2
    bars = np.stack((close - session, middle + width / 2, middle - width / 2, close), axis=-1)
    return market_of(
        np.exp(bars).astype(np.float32), volume=np.exp(rng.normal(12, 1, (days, stocks))).astype(np.float32)
    )


def market_of_sessions(overnight: Float64Array | float, session: Float64Array, width: float = 0.0) -> Market:
    """Bars of (days, stocks) log returns, wider than open and close by so much on both sides."""
    close = np.log(50) + (overnight + session).cumsum(axis=0)
    open_ = close - session
    bars = np.stack((open_, np.maximum(open_, close) + width, np.minimum(open_, close) - width, close), axis=-1)
    return market_of(np.exp(bars).astype(np.float32))


def returns_of(market: Market) -> Float64Array:
    return next_returns(market, slice(0, len(market.dates)))


@cache
def told() -> tuple[Market, Formulas]:
    market = drawn(0, 0.002)
    return market, Formulas.fit(market, returns_of(market), [LEARNED])[0]


def test_a_formula_that_moves_returns_is_found() -> None:
    """First, with its sign; and its forecasts are the returns' on days that were not learned from."""
    market, found = told()
    first = found.formulas[0]
    assert first._replace(half_life=3) == PLANTED and first.half_life in (1, 3, 10) and found.loadings[0][0] > 0.05
    assert next(iter(found)).startswith("intraday after high range_shock_1 with half-life ")
    forecast, ahead = found.of(market, slice(400, DAYS))[0], returns_of(market)[0, 400:]
    known = np.isfinite(ahead)
    assert np.corrcoef(forecast[known], ahead[known])[0, 1] > 0.1
    assert 0.8 < found.of(market, slice(300))[0].std() / found.of(market, slice(100, 300))[1].std() < 1.25


def test_stocks_that_may_not_be_bought_tell_of_returns() -> None:
    """As those do that may be."""
    market, found = told()
    few = with_features(replace(market, investable_columns=np.arange(4)))
    assert Formulas.fit(few, returns_of(few), [LEARNED])[0] == found
    forecasts, of_all = found.of(few, slice(0, DAYS)), found.of(market, slice(0, DAYS))[..., :4]
    levels = np.repeat((of_all - forecasts).mean(axis=-1, keepdims=True), 4, axis=-1)
    np.testing.assert_allclose(of_all - forecasts, levels, atol=1e-4)
    alone = replace(few, alike=np.arange(0))
    assert Formulas.fit(alone, returns_of(alone), [LEARNED])[0].formulas[:1] != found.formulas[:1]


def test_what_moves_unlike_stocks_is_none() -> None:
    """A currency and a rate; what happens after the training days changes nothing."""
    market = drawn(0, days=400, stocks=6)
    data, last = market.data_array.copy(), market.splits.train.last
    data[:, 4, [*PRICES]] **= 0.1
    data[:, 5, [*PRICES]] **= 10
    data[last + 1 :, 3, [*PRICES]] **= 10
    market = with_features(replace(market, data_array=data, investable_columns=np.arange(2)))
    assert market.stock_columns.tolist() == [0, 1, 2, 3]


def test_of_a_large_market_some_stocks_tell() -> None:
    """All investable ones, and an evenly spaced sample of the others, 256 in all."""
    panel = random_panel(np.random.default_rng(0), 200, 400)
    for asked, most in ((10, 256), (300, 0)):
        market = market_of(panel, investable=tuple(range(asked)))
        columns, bought = market.stock_columns, len(market.investable_columns)
        others, told = len(columns) - bought, np.diff(columns[bought:])
        assert (columns[:bought] == market.investable_columns).all() and len(columns) == max(bought, most)
        assert not others or (told.max() < 8 and columns[-1] > 380 and columns[bought] < 20)


def test_what_is_remembered_of_a_market_goes_to_no_copy() -> None:
    market, found = told()
    found.of(market, slice(100, 120))
    known = market.memo["quantities"][1]
    assert found.of(market, slice(50, 60)).any() and market.memo["quantities"][1] is known
    copy = pickle.loads(pickle.dumps(market))
    assert market.memo and not copy.memo and not replace(market).memo
    np.testing.assert_array_equal(found.of(copy, slice(100, 120)), found.of(market, slice(100, 120)))


def test_days_that_are_not_learned_from_change_nothing() -> None:
    """Of one set of days, or of another that is searched beside it."""
    market, found = told()
    returns = returns_of(market)
    other = np.where(LEARNED[:, None], returns, 7 * np.random.default_rng(0).standard_normal(returns.shape))
    early = np.arange(DAYS) < 300
    assert Formulas.fit(market, other, [LEARNED])[0] == found
    assert Formulas.fit(market, other, [~LEARNED, LEARNED, early])[1:] == Formulas.fit(
        market, returns, [LEARNED, early]
    )


@cache
def told_by_stock() -> Market:
    """Sessions go with the gap before: in half of the stocks on, in the others back."""
    rng = np.random.default_rng(7)
    days, signs = 900, np.where(np.arange(STOCKS) % 2, 1.0, -1.0)
    overnight, session = 0.01 * rng.standard_normal((2, days, STOCKS))
    session[1:] += 0.3 * signs * overnight[:-1]
    return market_of_sessions(overnight, session, 0.002)


def test_what_moves_each_stock_its_own_way_is_found() -> None:
    """By its own slope, which is positive in some and negative in others; with one slope for all nothing is."""
    market = told_by_stock()
    learned = np.arange(900) < 700
    found = Formulas.fit(market, returns_of(market), [learned])[0]
    first = found.formulas[0]
    assert first == Formula("gap", first.scale, by_stock=True) and 0.2 < found.loadings[0][0] < 3
    table = Quantities(market, 900)
    slopes = first.of(table)[700:] * first._replace(by_stock=False).of(table)[700:]
    assert (np.sign(slopes.sum(axis=0)) == np.where(np.arange(STOCKS) % 2, 1, -1)).all()
    forecast, ahead = found.of(market, slice(700, 900))[0], returns_of(market)[0, 700:]
    known = np.isfinite(ahead)
    assert np.corrcoef(forecast[known], ahead[known])[0, 1] > 0.15
    y = Targets.of(returns_of(market), learned[None], table.deviation)
    of_all, by_stock = (exact_score(Formula("gap", by_stock=one), table, y.first[0], learned) for one in (False, True))
    assert of_all < 12 and by_stock > 60
    [shortlist] = screened(table, y)
    assert Formula("gap", by_stock=True) in [one for one in shortlist if one.by_stock][:4]


def test_favourite_weekdays_that_turn_round_with_the_market_are_found() -> None:
    """Their means over all days, which inputs hold, tell little."""
    rng, days, stocks = np.random.default_rng(11), 1200, 20
    dates, swings = pd.bdate_range("2012-01-02", periods=days), np.where(np.arange(days) // 150 % 2, 0.003, -0.003)
    market = swings + 0.004 * rng.standard_normal(days)
    rises = pd.Series(market).rolling(60, min_periods=10).mean() > 0
    favourites = 0.006 * rng.standard_normal((5, stocks))
    drift = favourites[np.roll(dates.day_of_week, -1)] * np.where(rises, 1, -1)[:, None]
    session = 0.01 * rng.standard_normal((days, stocks)) + market[:, None]
    session[1:] += drift[:-1]
    told = with_features(replace(market_of_sessions(0.0, session), dates=dates.to_numpy()))
    learned = np.arange(days) < 900
    found = Formulas.fit(told, returns_of(told), [learned])[0]
    assert found.formulas[0] == Formula("favourite weekday", state="+-rising", by_stock=True)
    later = slice(900, days - 2)
    assert np.corrcoef(found.of(told, later)[0].ravel(), drift[later].ravel())[0, 1] > 0.7


def test_noise_has_few_formulas() -> None:
    markets = [drawn(seed, days=200, stocks=8) for seed in range(1, 11)]
    found = [Formulas.fit(one, returns_of(one), [np.ones(200, dtype=bool)])[0] for one in markets]
    assert sum(len(one.formulas) > 0 for one in found) <= 1


def test_a_saved_search_is_the_same_one() -> None:
    market, found = told()
    again = Formulas.from_state(json.loads(json.dumps(found.state())))
    assert again == found and [*again] == [*found]
    assert Formulas.from_state(json.loads(json.dumps(Formulas().state()))) == Formulas()
    np.testing.assert_array_equal(again.of(market, slice(90, 99)), found.of(market, slice(0, 99))[:, 90:])
    assert (Formulas().of(market, slice(3, 5)) == 0).all()


def test_formulas_in_words_and_their_penalties() -> None:
    whole = Formula("gap", "own", "times", "move_1", "not wild", 10, 2)
    assert str(whole) == "gap against its past times move_1 in not wild markets 2 late with half-life 10"
    assert str(Formula("gap", form="low", late=1)) == "gap low 1 late" and str(Formula("gap")) == "gap"
    assert whole.penalty == 1 + 3 + 3 + 1 + 1 and Formula("gap").penalty == 0
    assert str(Formula("gap", by_stock=True)) == "gap stock by stock" and Formula("gap", by_stock=True).penalty == 3
    assert [*Formulas((Formula("gap"),), ((-0.1234, 0.0),))] == ["gap -0.123%"]


def odd_market(seed: int = 0, days: int = 400) -> Market:
    """Stocks with gaps, late starts, halts and delistings, some of which may not be bought; columns of all sorts."""
    rng = np.random.default_rng(seed)
    shape = days, 8
    found = market_of(random_panel(rng, *shape), investable=(0, 1, 3, 4, 5, 6), volume=np.exp(rng.normal(10, 1, shape)))
    events = np.where(rng.random(shape) < 0.03, rng.standard_normal(shape), 0.0)
    rate = np.repeat(rng.standard_normal((days, 1)).cumsum(axis=0), 8, axis=1)
    columns = {"score": rng.standard_normal(shape), "news": events, "rate": rate}
    columns["score"][rng.random(shape) < 0.1] = np.nan
    return with_features(replace(found, columns={name: one.astype(np.float32) for name, one in columns.items()}))


ODD = odd_market()


def plain(formula: Formula, market: Market, count: int = 8) -> pd.DataFrame:
    """Values of a formula, of the first stocks of a market, by pandas."""
    bars = market.wide(market.stock_columns)
    close = bars.close

    def scaled(name: str) -> pd.DataFrame:
        feature = next(one for one in market.features if one.name == name)
        values = feature.of(bars).replace([np.inf, -np.inf], np.nan).where(close.notna())
        spread = values.std(axis=1, ddof=0)
        if name == "news":
            past = (
                values.where(values != 0).stack().groupby(level=0).agg(["count", lambda one: (one**2).sum()]).cumsum()
            )
            size = np.sqrt(past.iloc[:, 1] / past.iloc[:, 0]).reindex(values.index).ffill().fillna(0.0)
            spread = np.maximum(spread, size)
        return values.sub(values.mean(axis=1), axis=0).div(spread.where(spread > 1e-9), axis=0).clip(-4, 4).fillna(0.0)

    season = season_ahead(formula.quantity, pd.DatetimeIndex(market.dates))
    values = scaled(formula.quantity) if season is None else close.notna().astype(float)
    if formula.scale:
        past = values.ewm(halflife=120, min_periods=20)
        values = ((values - past.mean()) / past.std().where(lambda std: std > 1e-6)).clip(-4, 4).fillna(0.0)
    by = scaled(formula.by) if formula.by else None
    if by is not None:
        values = values * {"times": by, "after high": by > 0.7, "after low": by < -0.7}[formula.form]
    elif formula.form:
        is_in = {"high": values > 1, "low": values < -1, "extreme": values.abs() > 1}[formula.form]
        values = values.where(is_in, 0.0)
    values = values.where(close.notna()).iloc[:, :count]
    values = (values if formula.by_stock else values.sub(values.mean(axis=1), axis=0)).fillna(0.0)
    moves = np.log(close.ffill()).diff().fillna(0.0).clip(-0.4, 0.4).where(close.notna())
    holds = {
        "wild": moves.mean(axis=1).rolling(10).std() > 1.1 * moves.mean(axis=1).rolling(252, min_periods=10).std(),
        "rising": moves.mean(axis=1).rolling(60, min_periods=10).mean() > 0,
        "dispersed": moves.std(axis=1, ddof=0).rolling(5).mean()
        > moves.std(axis=1, ddof=0).rolling(252, min_periods=10).mean(),
    }
    if formula.half_life:
        kept, rows = 0.5 ** (1 / formula.half_life), [np.zeros(values.shape[1])]
        for row in values.to_numpy():
            rows.append(kept * rows[-1] + row)
        values = pd.DataFrame(rows[1:], values.index, values.columns)
    values = values.shift(formula.late, fill_value=0.0)
    if formula.state:
        held = holds[formula.state.split()[-1].removeprefix("+-")].astype(float)
        held = 1 - held if formula.state.startswith("not") else 2 * held - 1 if formula.state.startswith("+-") else held
        values = values.mul(held, axis=0)
    return by_own_slopes(values, moves, np.log(bars.open), season) if formula.by_stock else values


def season_ahead(name: str, dates: pd.DatetimeIndex) -> npt.NDArray[np.int64] | None:
    """The season of the next weekday."""
    day = dates + pd.offsets.BDay(1)
    first = day.to_period("M").to_timestamp()
    weekdays_gone = np.array([len(pd.bdate_range(one, other)) for one, other in zip(first, day, strict=True)])
    of = {
        "favourite weekday": day.day_of_week,
        "favourite month": day.month,
        "favourite half of the month": day.day <= 15,
        "favourite turn of the month": ((day + pd.offsets.BDay(1)).month != day.month) | (weekdays_gone <= 3),
    }
    return np.asarray(of[name]).astype(np.int64) if name in of else None


def by_own_slopes(
    values: pd.DataFrame, moves: pd.DataFrame, log_open: pd.DataFrame, season: npt.NDArray[np.int64] | None
) -> pd.DataFrame:
    """Times the slope of each stock's returns between opens on them that is known on the day; day by day."""
    ahead = 100 * log_open.diff().shift(-2)
    ahead = ahead.sub(ahead.mean(axis=1), axis=0)[values.columns]
    own = moves.sub(moves.mean(axis=1), axis=0).where(moves.notna().cumsum() > 1)[values.columns]
    std = 100 * np.sqrt((own**2).ewm(halflife=20, min_periods=5).mean())
    std = std.clip(0.3 * std.mean(axis=1), 3 * std.mean(axis=1), axis=0)
    known = (ahead.notna() & std.notna()).to_numpy()
    value, square = values.to_numpy(), np.where(known, 1 / std**2, 0.0)
    returns = np.where(known, ahead.clip(-5 * std, 5 * std), 0.0)
    slopes = np.zeros(values.shape)
    for day in range(2, len(values)):
        past = np.arange(day - 1)
        cells = max(known[past].sum(), 1)
        if season is not None:
            past = past[season[past] == season[day]]
        squares = (value[past] ** 2 * square[past]).sum(axis=0)
        prior = 500 * squares.sum() / cells
        products = (value[past] * returns[past] * square[past]).sum(axis=0)
        slopes[day] = products / np.maximum(squares + prior, 1e-12)
    slopes = (values * slopes).where(moves[values.columns].notna())
    return slopes.sub(slopes.mean(axis=1), axis=0).fillna(0.0)


@pytest.mark.parametrize(
    "formula",
    [
        Formula("intraday"),
        Formula("gap", "own", "times", "move_1", "wild", 1, 1),
        Formula("return_5", "", "after high", "volume_shock_1", "not wild", 3, 2),
        Formula("rsi", "own", "after low", "own_volatility", "+-rising", 10, 3),
        Formula("score", "", "high", "", "rising", 40),
        Formula("news", "", "extreme", "", "dispersed", 3),
        Formula("news", "own", "low", "", "+-dispersed"),
        Formula("turnover", "", "times", "news", "not dispersed", 1),
        Formula("return_5_at_news", half_life=3),
        Formula("gap", by_stock=True),
        Formula("score", "own", "after high", "news", "+-rising", 3, 2, by_stock=True),
        Formula("favourite weekday", state="+-rising", by_stock=True),
        Formula("favourite month", by_stock=True),
        Formula("favourite half of the month", state="wild", by_stock=True),
        Formula("favourite turn of the month", state="not dispersed", by_stock=True),
    ],
    ids=str,
)
def test_values_are_those_of_plain_pandas(formula: Formula) -> None:
    expected = plain(formula, ODD).to_numpy()
    np.testing.assert_allclose(formula.of(Quantities(ODD, 400)), expected, rtol=1e-3, atol=2e-4 * expected.std())
    assert expected.any()
    expected, two = (plain(one, ODD, len(ODD.investable_columns)).to_numpy() for one in (formula, Formula("wicks")))
    both = Formulas((formula, Formula("wicks")), ((0.5, 0.2), (-1.0, 3.0)), (2.0, 4.0))
    forecasts = (0.5 * expected - two) / 2, (0.2 * expected + 3 * two) / 4
    np.testing.assert_allclose(both.of(ODD, slice(50, 380)), np.stack(forecasts)[:, 50:380], rtol=1e-3, atol=2e-4)


FORMULAS = st.builds(
    Formula,
    st.sampled_from(Quantities(ODD, 400).names),
    st.sampled_from(("", "own")),
    st.sampled_from(("", "high", "low", "extreme")),
    st.just(""),
    st.sampled_from(("", *(sign + one for one in ("wild", "rising", "dispersed") for sign in ("", "not ", "+-")))),
    st.sampled_from((0, 1, 3, 10, 40)),
    st.integers(0, 3),
    st.booleans(),
)
SEASONAL = st.builds(
    Formula,
    st.sampled_from((*SEASONS,)),
    state=st.sampled_from((*STATES,)),
    by_stock=st.just(True),
)
CONDITIONS = st.tuples(
    st.sampled_from(("times", "after high", "after low")), st.sampled_from(Quantities(ODD, 400).conditioning)
)


@settings(max_examples=40)
@given(FORMULAS | SEASONAL, st.none() | CONDITIONS, st.integers(30, 398), st.integers(0, 1000))
def test_no_value_depends_on_a_later_day(
    formula: Formula, condition: tuple[str, str] | None, day: int, seed: int
) -> None:
    if condition and formula.quantity not in SEASONS:
        formula = formula._replace(form=condition[0], by=condition[1])
    other = with_another_future(ODD, day, np.random.default_rng(seed))
    found = formula.of(Quantities(ODD, 400))[: day + 1]
    np.testing.assert_array_equal(formula.of(Quantities(other, 400))[: day + 1], found)
    np.testing.assert_array_equal(formula.of(Quantities(ODD, day + 1)), found)


def test_quantities_of_a_market() -> None:
    """Those of stocks, not the market's own column; conditions by columns of the user, too."""
    table = Quantities(ODD, 400)
    assert {"news", "score", "gap", "return_5"} < {*table.names} and not {"rate", "market_volatility"} & {*table.names}
    read = {one.name for one in FeatureInputs.fit(ODD, np.isfinite(ODD.close)).inputs}
    assert {"news", "gap", "rate"} < read and not {"return_5", "move_1"} & read, "networks read no library"
    assert table.conditioning[-2:] == ["score", "news"] and "volume_shock_1" in table.conditioning
    at_news = {one.name: one for one in ODD.features}["return_5_at_news"].of(ODD.wide(ODD.investable_columns))
    moves = ODD.wide(ODD.investable_columns).relative_returns.to_numpy()[196:201]
    news = ODD.columns["news"][196:201, ODD.investable_columns] != 0
    np.testing.assert_allclose(at_news.iloc[200], np.where(news, np.nan_to_num(moves), 0).sum(0), atol=1e-9)
    with pytest.raises(DataError, match="'news', which the agents read"):
        Formulas((Formula("news"),), ((1.0, 1.0),)).of(small_market(), slice(None))


def without_volume() -> Market:
    return with_features(replace(ODD, volume=None, columns={}))


def of_one_stock() -> Market:
    return replace(ODD, investable_columns=ODD.investable_columns[:1])


def past_alone() -> Market:
    return replace(ODD, features=())


@pytest.mark.parametrize("make", [odd_market, without_volume, of_one_stock, past_alone])
def test_odd_markets_are_searched(make: Callable[[], Market]) -> None:
    """With whatever they lack; nothing is known of them that is not finite."""
    market = make()
    found = Formulas.fit(market, returns_of(market), [np.arange(400) < 350])[0]
    forecasts = found.of(market, slice(300, 400))
    assert np.isfinite(forecasts).all() and np.isfinite(found.loadings).all() and len(found.formulas) <= 8
    assert forecasts.shape == (2, 100, len(market.investable_columns))


def test_a_sparse_column_of_events_is_found() -> None:
    """A stock with news among many without."""
    rng, days, stocks = np.random.default_rng(4), 400, 12
    events = np.where(rng.random((days, stocks)) < 0.05, rng.choice([-1.0, 1.0], (days, stocks)), 0.0)
    overnight, session = 0.005 * rng.standard_normal((2, days, stocks))
    session[1:] += 0.008 * events[:-1]
    market = market_of_sessions(overnight, session, 0.001)
    market = with_features(replace(market, columns={"news": events.astype(np.float32)}))
    found = Formulas.fit(market, returns_of(market), [np.arange(days) < 350])[0]
    assert found.formulas[0].quantity == "news" and found.formulas[0].late == 0 and found.loadings[0][0] > 0


def exact_score(formula: Formula, table: Quantities, y: Float64Array, learned: BoolArray) -> float:
    """t^2 by day, less the penalty."""
    of_day = (formula.of(table).astype(np.float64) * y).sum(axis=1)[learned]
    return float(of_day.sum() ** 2 / max((of_day**2).sum(), 1e-12)) - formula.penalty


def test_the_best_of_all_is_on_the_shortlist(monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen's approximate scores go by exact ones."""
    market, _ = told()
    few = tuple(one for one in market.features if one.name in ("intraday", "gap", "range_shock_1"))
    table = Quantities(replace(market, features=few), DAYS)
    y = Targets.of(returns_of(market), LEARNED[None], table.deviation)
    conditions = [("", ""), *((form, "range_shock_1") for form in ("times", "after high", "after low"))]
    every = [
        Formula(quantity, scale, *condition, state, half_life)
        for quantity in table.names
        for scale in ("", "own")
        for condition in (*conditions, ("high", ""), ("low", ""), ("extreme", ""))
        for state in ("", "wild", "+-rising", "not dispersed")
        for half_life in (0, 1, 3, 10, 40)
    ]
    scores = {one: exact_score(one, table, y.first[0].astype(np.float64), LEARNED) for one in every}
    monkeypatch.setattr(screen, "SHORTLISTS", (30, 0))
    [shortlist] = screened(table, y)
    best = sorted(every, key=lambda one: -scores[one])
    assert best[0] in shortlist[:10] and sum(one in shortlist for one in best[:10]) >= 7
    ranks = pd.Series([scores[one] for one in shortlist if one in scores])
    assert ranks.corr(pd.Series(-np.arange(len(ranks))), method="spearman") > 0.5


def test_penalties_of_the_screen_are_those_of_formulas() -> None:
    scaled, conditions = [("gap", ""), ("gap", "own")], [("", ""), ("times", "gap")]
    found = screen._penalties(scaled, conditions)
    for at in np.ndindex(10, 2, 2, 5):
        one = Formula(*scaled[at[1]], *conditions[at[2]], [*STATES][at[0]], (0, 1, 3, 10, 40)[at[3]])
        assert found[at] == one.penalty


def hand_made() -> tuple[Market, dict[str, Float64Array]]:
    """A market without gaps, and its bars."""
    market = drawn(3, days=300, stocks=5)
    data = market.data_array.astype(np.float64)
    open_, close = data[..., OPEN], data[..., CLOSE]
    wide = market.wide()
    assert market.volume is not None
    bars = {"open": open_, "close": close, "volume": market.volume.astype(np.float64)}
    bars |= {name: getattr(wide, name).to_numpy() for name in ("high", "low")}
    bars["return"] = np.diff(np.log(close), axis=0, prepend=np.nan)
    bars["relative"] = bars["return"] - bars["return"].mean(axis=1, keepdims=True)
    return market, bars


def test_quantities_by_hand() -> None:
    """On a day, stock by stock."""
    (market, bars), day = hand_made(), 280
    close, r, own, shares = (bars[name] for name in ("close", "return", "relative", "volume"))

    def last(name: str, sessions: int, skipped: int = 0) -> Float64Array:
        return bars[name][day - sessions + 1 : day + 1 - skipped]

    def scored(values: Float64Array) -> Float64Array:
        return np.asarray((values - values.mean()) / values.std(ddof=1))

    width = np.log(bars["high"] / bars["low"])
    usual, volume, paid = width[day - 251 : day + 1].mean(0), np.log(shares), close * shares
    open_, levels = bars["open"], pd.DataFrame(np.log(paid)).rolling(252, min_periods=5).mean().to_numpy()
    level, led = levels[day], [r[d, np.argsort(levels[d])[-2:]].mean() for d in range(day - 4, day + 1)]
    month, half, index = last("relative", 21), last("return", 126), r.mean(axis=1)[day - 125 : day + 1]
    expected = {
        "move_1": np.abs(own[day]),
        "return_5": last("relative", 5).sum(0),
        "return_63_21": last("relative", 63, 21).sum(0),
        "to_high_126": np.log(close[day] / last("high", 126).max(0)),
        "smooth_return_126": np.abs(last("relative", 126).sum(0)) * np.sign(half).mean(0),
        "overhang_63": np.log(close[day] / (paid[day - 62 : day + 1].sum(0) / last("volume", 63).sum(0))),
        "beta_126": [np.polyfit(index, one, 1)[0] for one in half.T],
        "volatility_21": np.log(month.std(0, ddof=1)),
        "largest_21": last("return", 21).max(0),
        "skew_21": (month**3).mean(0) / ((month**2).mean(0) + 1e-9) ** 1.5,
        "range_shock_5": np.log((width[day - 4 : day + 1].mean(0) + 1e-5) / (usual + 1e-5)),
        "size_252": np.log(paid[day - 251 : day + 1]).mean(0),
        "overnight_5": np.log(open_[day - 4 : day + 1] / close[day - 5 : day]).sum(0),
        "session_21": np.log(close[day - 20 : day + 1] / open_[day - 20 : day + 1]).sum(0),
        "led_return_5": (level.mean() - level) * sum(led),
        "volume_shock_5": volume[day - 4 : day + 1].mean(0) - volume[day - 62 : day + 1].mean(0),
        "illiquidity_63": np.log((np.abs(last("return", 63)) / paid[day - 62 : day + 1]).mean(0)),
        "weekday_return_4": own[[day - 4, day - 9, day - 14, day - 19]].sum(0),
        "turnover_return_21": scored(month.sum(0))
        * scored(volume[day - 20 : day + 1].mean(0) - volume[: day + 1].mean(0)),
    }
    wide, features = market.wide(), {one.name: one for one in market.features}
    for name, values in expected.items():
        np.testing.assert_allclose(features[name].of(wide).iloc[day], values, rtol=1e-4, atol=1e-7, err_msg=name)


def test_of_what_is_scaled_some_days_count_for_more() -> None:
    """In deviations of all days so far, where other quantities are in those of the day."""
    market, _ = hand_made()
    table = Quantities(market, 300)
    values = next(one for one in market.features if one.name == "led_return_1").of(market.wide()).to_numpy()
    relative = np.nan_to_num(values - values.mean(axis=1, keepdims=True))
    known = np.isfinite(values).sum(axis=1).cumsum()
    expected = relative / np.sqrt((relative**2).sum(axis=1).cumsum() / np.maximum(known, 1))[:, None]
    np.testing.assert_allclose(table["led_return_1"][10:], expected[10:].clip(-4, 4), rtol=1e-4, atol=1e-5)
    spread = [np.unique(table[name][100:].std(axis=1).round(3)).size for name in ("led_return_1", "size_252")]
    assert spread[0] > 100 and spread[1] == 1


def test_missing_bars_leave_the_others_of_a_quantity() -> None:
    """Nothing is told of a stock before it is listed, nor on days without a bar; what is finite stays so."""
    table = Quantities(ODD, 400)
    for name in table.names:
        values = table[name]
        assert np.isfinite(values).all() and not values[~table.has_bar].any(), name
        assert np.abs(values).max() <= 4 and (values.any() or name.startswith(("age", "peers"))), name
        known = table.has_bar & (values != 0)
        clipped = (np.abs(values) >= 4).any(axis=1)
        assert (np.abs(values.sum(axis=1))[~clipped] < 1e-3 * np.maximum(known.sum(axis=1), 1)[~clipped]).all(), name
