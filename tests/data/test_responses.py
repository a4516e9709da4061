"""Responses: what was planted is found where it is, nothing is found where nothing is, and no day looks ahead."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from data.features.bank import log_returns
from data.features.deviations import fit_deviations
from data.features.responses import EVENT_EDGES, EVENT_SESSIONS, SESSIONS, STATE_HALF_LIVES, Responses
from data.synthetic.built_in import synthetic_market
from utils.config.trader import SyntheticConfig

pytestmark = pytest.mark.filterwarnings("error")
EVENT, LEADER, LEADERS, STATE, STATES = slice(0, 3), 3, 4, 5, 6
Draw = Callable[[np.random.Generator, int], np.ndarray]


def prices(returns: np.ndarray) -> np.ndarray:
    return (50 * np.exp(np.cumsum(returns, axis=0))).astype(np.float32)


def noise(seed: int, days: int, columns: int) -> np.ndarray:
    """Standard Student-t returns, all with a part in common."""
    generator = np.random.default_rng(seed)
    own, common = generator.standard_t(4, (days, columns)), generator.standard_t(4, (days, 1))
    return (np.sqrt(0.7) * own + np.sqrt(0.3) * common) / np.sqrt(2)


def closes(seed: int, days: int = 300, columns: int = 6, gaps: float = 0.05) -> np.ndarray:
    close = prices(0.02 * noise(seed, days, columns))
    close[np.random.default_rng(seed + 1).random(close.shape) < gaps] = np.nan
    return close


def always(close: np.ndarray) -> np.ndarray:
    return np.ones(len(close), dtype=bool)


def forecast_of(found: Responses, close: np.ndarray, stocks: np.ndarray) -> np.ndarray:
    """The forecasts of all stocks and days."""
    return found.forecaster(close, stocks, slice(0, len(close)))(slice(0, len(stocks)))


def responses(columns: int, **answers: np.ndarray) -> Responses:
    """Answers made by hand, for columns whose returns have mean 0 and deviation 1%."""
    bins = len(EVENT_EDGES) + 1
    empty = {name: np.zeros((SESSIONS, bins)) for name in ("event", "event_t")}
    for kind in ("leader", "state"):
        empty |= {f"{kind}_terms": np.zeros((0, 3), dtype=np.int64), f"{kind}_loadings": np.zeros(0)}
    scales = {"mean": np.zeros(columns), "scale": np.full(columns, 0.01), "market_scale": np.full(1, 0.7)}
    return Responses(**(scales | empty | answers))


def planted(kind: str, days: int = 3000, seed: int = 0) -> tuple[np.ndarray, Responses]:
    """Closes of a built-in market of 40 stocks and perhaps of others that lead them, and what is found in them."""
    close = synthetic_market(SyntheticConfig(kind=kind, days=days, stocks=40), seed).close.astype(np.float32)
    return close, Responses.fit(close, np.arange(40), always(close))


def crowd(generator: np.random.Generator, days: int) -> np.ndarray:
    """Returns of 40 stocks and 260 columns, of which the first five lead a fifth of the stocks each, at a lag each."""
    moves = generator.standard_normal((days, 300))
    moves[:, 40:45] *= 4
    returns = moves.copy()
    for stock in range(40):
        lag = (8, 10, 12, 14, 16)[stock % 5]
        returns[lag:, stock] += 0.13 * moves[:-lag, 40 + stock % 5]
    return returns


def leak(generator: np.random.Generator, days: int) -> np.ndarray:
    """Returns of 40 stocks that a factor moves up or down, and of a column: its sum over 20 sessions, 60 later."""
    factor = generator.standard_normal(days + 80)
    loadings = np.where(np.arange(40) % 2, -0.5, 0.5) * np.linspace(1.5, 0.5, 40)
    told = 0.125 * np.convolve(factor, np.ones(20), mode="valid")[61:] + 0.2 * generator.standard_normal(days)
    return np.column_stack((generator.standard_normal((days, 40)) + factor[:days, None] * loadings, told))


def states(generator: np.random.Generator, days: int) -> np.ndarray:
    """Returns of stocks that repeat a move after 15 sessions, or undo it if a column fell then; and of the column."""
    moves = generator.standard_normal((days, 41))
    direction = np.sign(generator.standard_normal(days // 50 + 1)).repeat(50)[:days, None]
    returns = moves.copy()
    returns[15:, :40] += 0.35 * (direction * moves)[:-15, :40]
    returns[:, 40:] = 2 * moves[:, 40:] + 0.75 * direction
    return returns


def drawn(returns: Draw, days: int = 3000, seed: int = 0) -> tuple[np.ndarray, Responses]:
    """Closes by returns of 40 stocks and perhaps of columns, in noises of a stock, and what is found in them."""
    close = prices(0.02 * returns(np.random.default_rng(seed), days))
    return close, Responses.fit(close, np.arange(40), always(close))


def significant_events(found: Responses) -> list[list[int]]:
    """Lag and bin of each response to events that is significant at 5% among all of them (Bonferroni)."""
    candidates = SESSIONS * len(EVENT_EDGES)
    sessions, bins = np.nonzero(np.abs(found.event_t) > norm.isf(0.05 / 2 / candidates))
    return np.stack((sessions + 1, bins), axis=1).tolist()


@pytest.mark.parametrize(("kind", "sessions"), [("spikes", 3), ("bursts", 1)])
def test_answers_to_extreme_moves_are_found(kind: str, sessions: int) -> None:
    _, found = planted(kind)
    assert [sessions, np.digitize(-2.9, EVENT_EDGES)] in significant_events(found)
    assert len(found.leader_terms) == 0


def test_leaders_are_found_with_their_lags_among_many_columns() -> None:
    _, found = drawn(crowd)
    expected = {((8, 10, 12, 14, 16)[stock % 5], stock, 40 + stock % 5) for stock in range(40)}
    terms = {tuple(term) for term in found.leader_terms.tolist()}
    assert terms <= expected and len(terms) >= 38


@pytest.mark.parametrize("age", [0, 60])
def test_answers_over_many_sessions_are_found_at_their_age(age: int) -> None:
    close, found = drawn(leak) if age else planted("leak")
    assert set(found.leader_terms[:, 0].tolist()) == {SESSIONS + 1 + age} and len(found.leader_terms) >= 36
    assert (np.sign(found.leader_loadings) == np.where(found.leader_terms[:, 1] % 2, -1, 1)).all()
    forecast = forecast_of(found, close, np.arange(40))[:, :, LEADERS]
    moves = np.diff(np.log(close[:, 40].astype(np.float64)), prepend=np.nan)
    first = found.leader_terms[0, 1]
    told = np.corrcoef(forecast[200:, first], moves[200 - age : len(moves) - age])[0, 1]
    assert abs(told) > 0.99, "the forecast follows the move of that age alone"


def test_the_state_in_which_moves_repeat_is_found() -> None:
    _, found = drawn(states)
    assert {tuple(term) for term in found.state_terms[:, :2].tolist()} == {(15, 1)}
    assert len(found.leader_terms) == 0


def test_little_is_sure_where_there_is_nothing() -> None:
    counts = []
    for seed in range(6):
        close = prices(0.0005 + 0.015 * noise(seed, 2000, 48))
        found = Responses.fit(close, np.arange(40), always(close))
        terms = found.leader_terms, found.state_terms
        counts.append((len(significant_events(found)), *map(len, terms)))
    # At the size of the test, which heavy tails only make smaller, two of six runs have a chance of a thirtieth.
    assert (np.array(counts) > 0).sum(axis=0).max() <= 1


def test_what_is_answered_in_every_state_is_no_states() -> None:
    generator = np.random.default_rng(0)
    shocks = generator.standard_normal((2000, 60))
    returns = shocks.copy()
    returns[5:, :40] += 0.5 * shocks[:-5, :40]
    # Trends of a hundred days, of which few fit into the market, so that their balance is a matter of chance.
    returns[:, 40:] += 0.6 * np.repeat(generator.choice([-1.0, 1.0], (20, 20)), 100, axis=0)
    close = prices(0.01 * returns)
    assert len(Responses.fit(close, np.arange(40), always(close)).state_terms) == 0


@given(st.integers(0, 10**6))
@settings(max_examples=10)
def test_events_forecast_what_is_still_to_be_answered(seed: int) -> None:
    days, close = 70, closes(seed, days=70, columns=1)
    event = np.random.default_rng(seed).standard_normal((SESSIONS, len(EVENT_EDGES) + 1))
    event[:, len(EVENT_EDGES) // 2] = 0.0
    forecast = forecast_of(responses(1, event=event), close, np.arange(1))[:, 0, EVENT]
    returns, is_move = 0.01 * bounded_moves(close)[:, 0], np.zeros(days, dtype=bool)
    is_move[1:] = np.isfinite(close[1:, 0]) & np.isfinite(close[:-1, 0])
    plain = weighted_deviations(returns, is_move)
    bounded = [move if not v else float(np.clip(move, -3 * v, 3 * v)) for move, v in zip(returns, plain, strict=False)]
    volatility = weighted_deviations(np.array(bounded), is_move)
    answers = np.zeros(days + SESSIONS)
    for day in range(days):
        if is_move[day] and volatility[day]:
            answers[day + 1 : day + 1 + SESSIONS] += event[:, np.digitize(returns[day] / volatility[day], EVENT_EDGES)]
        for place, sessions in enumerate(EVENT_SESSIONS):
            expected = 100 * volatility[day + 1] * answers[day + 1 : day + 1 + sessions].sum()
            assert forecast[day, place] == pytest.approx(expected, abs=1e-3)


def weighted_deviations(returns: np.ndarray, is_move: np.ndarray) -> list[float]:
    """Root mean square before each day and after the last, weights halving in 128 days; 0 before 20 moves or so."""
    kept, squares, weight = 0.5 ** (1 / 128), 0.0, 0.0
    deviations = [0.0]
    for move, counts in zip(returns, is_move, strict=True):
        squares, weight = kept * squares + counts * move**2, kept * weight + counts
        is_known = (1 - kept) * weight >= 1 - 0.5 ** (19.5 / 128)
        deviations.append(float(np.sqrt(squares / weight)) if is_known else 0.0)
    return deviations


@given(st.integers(0, 10**6), st.integers(1, SESSIONS), st.integers(0, 2), st.integers(0, 2))
@settings(max_examples=25)
def test_leaders_and_states_forecast_what_is_still_to_be_answered(seed: int, lag: int, column: int, place: int) -> None:
    """The answers of coming sessions are to what happened in the last `lag` days."""
    close = closes(seed, days=80, columns=4)
    terms = {"leader_terms": np.array([[lag, 1, 3]]), "leader_loadings": np.array([0.5])}
    terms |= {"state_terms": np.array([[lag, column, place]]), "state_loadings": np.array([-0.3])}
    forecast = forecast_of(responses(4, **terms), close, np.array([0, 2]))
    moves = np.clip(bounded_moves(close), -4, 4)
    is_move = np.isfinite(close[1:]) & np.isfinite(close[:-1])
    stocks = np.concatenate(([0], is_move[:, [0, 2]].sum(axis=1)))
    source = (moves[:, [0, 2]].sum(axis=1) / np.maximum(stocks, 1) / 0.7, moves[:, 1], moves[:, 3])[column]
    kept = 0.5 ** (1 / STATE_HALF_LIVES[place])
    trend, product = 0.0, np.zeros((80, 2))
    for day in range(80):
        trend = kept * trend + (1 - kept) * source[day]
        product[day] = np.tanh(trend / np.sqrt((1 - kept) / (1 + kept))) * moves[day, [0, 2]]
        answered = slice(max(0, day + 1 - lag), day + 1)
        np.testing.assert_allclose(forecast[day, :, STATES], -0.3 * product[answered].sum(axis=0), atol=1e-4)
        assert forecast[day, 1, LEADERS] == pytest.approx(0.5 * moves[answered, 3].sum(), abs=1e-4)
        due = slice(max(0, day + 1 - lag), max(0, day + 2 - lag))  # in the next session
        np.testing.assert_allclose(forecast[day, :, STATE], -0.3 * product[due].sum(axis=0), atol=1e-4)
        assert forecast[day, 1, LEADER] == pytest.approx(0.5 * moves[due, 3].sum(), abs=1e-4)
    assert not forecast[:, 0, LEADERS].any() and not forecast[..., EVENT].any()


def test_a_change_over_a_gap_is_no_move() -> None:
    event = np.ones((SESSIONS, len(EVENT_EDGES) + 1))
    event[:, len(EVENT_EDGES) // 2] = 0.0
    # Moves that shrink day by day lie within the deviation before them.
    days = np.arange(300)
    returns = 0.01 * (0.998**days * np.where(days % 2, 1.0, -1.0))[:, None]
    made = responses(1, event=event)
    assert not forecast_of(made, prices(returns), np.arange(1)).any()
    returns[200] = 0.3
    close = prices(returns)
    assert forecast_of(made, close, np.arange(1))[200:219, 0, 2].all()
    close[199] = np.nan
    assert not forecast_of(made, close, np.arange(1)).any()
    assert Responses.fit(close, np.arange(1), always(close)).scale[0] < 0.01


def bounded_moves(close: np.ndarray) -> np.ndarray:
    """Moves of one day in units of 1%, 0 where there is none."""
    is_move = np.zeros(close.shape, dtype=bool)
    is_move[1:] = np.isfinite(close[1:]) & np.isfinite(close[:-1])
    return np.where(is_move, log_returns(close), 0.0) / 0.01


@given(st.integers(0, 10**6), st.integers(1, 299))
@settings(max_examples=25)
def test_no_forecast_looks_ahead(seed: int, day: int) -> None:
    generator, close = np.random.default_rng(seed), closes(seed)
    made = responses(
        6,
        event=generator.standard_normal((SESSIONS, len(EVENT_EDGES) + 1)),
        leader_terms=np.array([[3, 0, 4], [20, 2, 5], [3, 1, 5]]),
        leader_loadings=generator.standard_normal(3),
        state_terms=np.array([[1, 0, 0], [15, 1, 1], [15, 2, 2]]),
        state_loadings=generator.standard_normal(3),
    )
    corrupted = close.copy()
    corrupted[day:] = generator.uniform(1, 100, corrupted[day:].shape)
    corrupted[day:][generator.random(corrupted[day:].shape) < 0.3] = np.nan
    stocks = np.arange(4)
    before, after = forecast_of(made, close, stocks), forecast_of(made, corrupted, stocks)
    np.testing.assert_array_equal(before[:day], after[:day])
    assert before.shape == (300, 4, 7) and before.dtype == np.float32 and np.isfinite(after).all()


@given(st.integers(0, 10**6), st.integers(2, 200), st.integers(2, 90))
@settings(max_examples=25)
def test_fit_reads_returns_of_learned_days_only(seed: int, first: int, days: int) -> None:
    close = closes(seed)
    learned = always(close)
    learned[first : first + days] = False
    corrupted = close.copy()
    # The return of the first learned day after them starts from the close before.
    hidden = corrupted[first : first + days - 1]
    generator = np.random.default_rng(seed + 2)
    hidden[:] = np.where(generator.random(hidden.shape) < 0.3, np.nan, generator.uniform(1, 1000, hidden.shape))
    fits = [Responses.fit(values, np.arange(4), learned) for values in (close, corrupted)]
    for name in vars(fits[0]):
        np.testing.assert_array_equal(getattr(fits[0], name), getattr(fits[1], name))


@pytest.mark.parametrize("days", [1, 2, 15, 60])
@pytest.mark.parametrize("kind", ["constant", "missing", "noise"])
def test_short_and_dead_markets_give_nothing(days: int, kind: str) -> None:
    close = closes(0, days, 5)
    if kind != "noise":
        close[:] = 20.0 if kind == "constant" else np.nan
    for learned in (always(close), ~always(close)):
        for stocks in (np.arange(5), np.array([3, 1])):
            found = Responses.fit(close, stocks, learned)
            forecast = forecast_of(found, close, stocks)
            assert np.isfinite(forecast).all() and forecast.shape == (days, len(stocks), 7)
            if kind != "noise":
                assert not forecast.any()


DAYS, STOCKS, INPUTS, ODD = 1500, 12, 4, 7
LEARNED = np.arange(DAYS) < 1200


def panel(slope: float, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Closes, and the inputs of stocks: a constant and numbers that last a month.

    The first number raises the returns of all stocks, relative to the day's mean, and of an odd one by `slope` more.
    """
    rng = np.random.default_rng(seed)
    months = rng.standard_normal((DAYS // 20 + 1, STOCKS, INPUTS))
    x = np.repeat(months, 20, axis=0)[:DAYS]
    x[..., 0] = 1.0
    drift = 0.02 * x[..., 1]
    drift[:, ODD] += slope * x[:, ODD, 1]
    percent = np.zeros((DAYS, STOCKS))
    percent[1:] = drift[:-1] + 0.5 * rng.standard_normal((DAYS - 1, STOCKS))
    return (50 * np.exp(percent.cumsum(axis=0) / 100)).astype(np.float32), x.astype(np.float32)


def deviations_of(close: NDArray[np.float32], x: NDArray[np.float32]) -> NDArray[np.float64]:
    halves = slice(0, 5), slice(5, STOCKS)
    return fit_deviations(close, LEARNED[None], lambda block: x[:, block], halves)[0]


def test_a_stock_that_differs_is_told_apart_and_believed_by_a_tenth() -> None:
    """Its monthly results rise by so much more with its first number; a penalty of ten keeps a tenth of that.

    Beside a stock without bars, which has none.
    """
    close, x = panel(slope=0.2)
    close[:, 3], x[:, 3] = np.nan, 0.0
    weights = deviations_of(close, x)
    assert not weights[3].any() and np.isfinite(weights).all()
    others = np.delete(np.abs(weights).ravel(), ODD * INPUTS + 1)
    assert weights[ODD, 1] > 2 * others.max()
    ahead = 100 * (np.log(close[SESSIONS + 1 :]) - np.log(close[1:-SESSIONS]))
    ahead -= np.nanmean(ahead, axis=1, keepdims=True)
    known = slice(LEARNED.sum() - SESSIONS - 1)
    slope = np.polyfit(x[known, ODD, 1], ahead[known, ODD], 1)[0]
    assert 0.04 * slope < weights[ODD, 1] < slope / 10


def test_closes_of_days_that_are_not_learned_are_not_read() -> None:
    close, x = panel(slope=0.2)
    other = close.copy()
    other[~LEARNED] *= 3.0
    np.testing.assert_array_equal(deviations_of(other, x), deviations_of(close, x))
