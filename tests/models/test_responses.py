"""Responses: what was planted is found where it is, nothing is found where nothing is, and no day looks ahead."""

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from data.bank import log_returns
from data.synthetic.draw import synthetic_market
from models.responses import EVENT_EDGES, EVENT_SESSIONS, FORECASTS, SESSIONS, STATE_HALF_LIVES, Responses
from utils.config.trader import SyntheticConfig

EVENT, LEADERS, STATES = slice(0, 3), 3, 4


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


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
    return found.forecaster(close, stocks)(slice(0, len(stocks)))


def responses(columns: int, **answers: np.ndarray) -> Responses:
    """Answers made by hand, for columns whose returns have mean 0 and deviation 1%."""
    bins = len(EVENT_EDGES) + 1
    empty = {name: np.zeros((SESSIONS, bins)) for name in ("event", "event_t")}
    for kind in ("leader", "state", "pair"):
        empty |= {f"{kind}_terms": np.zeros((0, 3), dtype=np.int64), f"{kind}_loadings": np.zeros(0)}
    scales = {"mean": np.zeros(columns), "scale": np.full(columns, 0.01), "market_scale": np.full(1, 0.7)}
    return Responses(**(scales | empty | answers))


def planted(kind: str, days: int = 3000, stocks: int = 40) -> tuple[np.ndarray, np.ndarray]:
    market = synthetic_market(SyntheticConfig(kind=kind, days=days, stocks=stocks), 0)
    return market.close.astype(np.float32), np.arange(market.stocks)


def significant_events(found: Responses) -> list[list[int]]:
    """Lag and bin of each response to events that is significant at 5% among all of them (Bonferroni)."""
    candidates = SESSIONS * len(EVENT_EDGES)
    sessions, bins = np.nonzero(np.abs(found.event_t) > norm.isf(0.05 / 2 / candidates))
    return np.stack((sessions + 1, bins), axis=1).tolist()


@pytest.mark.parametrize(("kind", "sessions"), [("spikes", 3), ("bursts", 1)])
def test_answers_to_extreme_moves_are_found(kind: str, sessions: int) -> None:
    close, stocks = planted(kind)
    found = Responses.fit(close, stocks, always(close))
    assert [sessions, np.digitize(-2.9, EVENT_EDGES)] in significant_events(found)
    assert len(found.leader_terms) == 0


def test_leaders_are_found_with_their_lags_among_many_columns() -> None:
    close, stocks = planted("crowd")
    found = Responses.fit(close, stocks, always(close))
    expected = {((8, 10, 12, 14, 16)[stock % 5], stock, 40 + stock % 5) for stock in range(40)}
    terms = {tuple(term) for term in found.leader_terms.tolist()}
    assert terms <= expected and len(terms) >= 38


@pytest.mark.parametrize(("kind", "age"), [("leak", 0), ("lagged-leak", 60)])
def test_answers_over_many_sessions_are_found_at_their_age(kind: str, age: int) -> None:
    close, stocks = planted(kind)
    found = Responses.fit(close, stocks, always(close))
    assert set(found.leader_terms[:, 0].tolist()) == {SESSIONS + 1 + age} and len(found.leader_terms) >= 36
    assert (np.sign(found.leader_loadings) == np.where(found.leader_terms[:, 1] % 2, -1, 1)).all()
    forecast = forecast_of(found, close, stocks)[:, :, LEADERS]
    moves = np.diff(np.log(close[:, 40].astype(np.float64)), prepend=np.nan)
    first = found.leader_terms[0, 1]
    told = np.corrcoef(forecast[200:, first], moves[200 - age : len(moves) - age])[0, 1]
    assert abs(told) > 0.99, "the forecast follows the move of that age alone"


def test_the_state_in_which_moves_repeat_is_found() -> None:
    close, stocks = planted("interaction")
    found = Responses.fit(close, stocks, always(close))
    assert {tuple(term) for term in found.state_terms[:, :2].tolist()} == {(15, 1)}
    assert len(found.leader_terms) == 0


def test_little_is_sure_where_there_is_nothing() -> None:
    counts = []
    for seed in range(6):
        close = prices(0.0005 + 0.015 * noise(seed, 2000, 48))
        found = Responses.fit(close, np.arange(40), always(close))
        terms = found.leader_terms, found.state_terms, found.pair_terms
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


@given(st.integers(0, 10**6), st.integers(1, SESSIONS))
@settings(max_examples=25)
def test_leaders_forecast_what_is_still_to_be_answered(seed: int, lag: int) -> None:
    close = closes(seed, days=80, columns=4)
    made = responses(4, leader_terms=np.array([[lag, 1, 3]]), leader_loadings=np.array([0.5]))
    forecast = forecast_of(made, close, np.array([0, 2]))
    moves = np.clip(bounded_moves(close)[:, 3], -4, 4)
    for day in range(80):
        # The answers of coming sessions are to the moves of the last `lag` days.
        expected = 0.5 * sum(moves[max(0, day + 1 - lag) : day + 1])
        assert forecast[day, 1, LEADERS] == pytest.approx(expected, abs=1e-4)
    assert not forecast[:, 0].any() and not forecast[..., EVENT].any() and not forecast[..., STATES].any()


@given(st.integers(0, 10**6), st.integers(1, SESSIONS), st.integers(0, 2), st.integers(0, 2))
@settings(max_examples=25)
def test_states_forecast_what_is_still_to_be_answered(seed: int, lag: int, column: int, place: int) -> None:
    close = closes(seed, days=80, columns=4)
    made = responses(4, state_terms=np.array([[lag, column, place]]), state_loadings=np.array([-0.3]))
    forecast = forecast_of(made, close, np.array([0, 2]))
    moves = np.clip(bounded_moves(close), -4, 4)
    is_move = np.isfinite(close[1:]) & np.isfinite(close[:-1])
    stocks = np.concatenate(([0], is_move[:, [0, 2]].sum(axis=1)))
    source = (moves[:, [0, 2]].sum(axis=1) / np.maximum(stocks, 1) / 0.7, moves[:, 1], moves[:, 3])[column]
    kept = 0.5 ** (1 / STATE_HALF_LIVES[place])
    trend, product = 0.0, np.zeros((80, 2))
    for day in range(80):
        trend = kept * trend + (1 - kept) * source[day]
        product[day] = np.tanh(trend / np.sqrt((1 - kept) / (1 + kept))) * moves[day, [0, 2]]
        expected = -0.3 * product[max(0, day + 1 - lag) : day + 1].sum(axis=0)
        np.testing.assert_allclose(forecast[day, :, STATES], expected, atol=1e-4)


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
        pair_terms=np.array([[0, 2, 0], [2, 0, 3]]),
        pair_loadings=generator.standard_normal(2),
    )
    corrupted = close.copy()
    corrupted[day:] = generator.uniform(1, 100, corrupted[day:].shape)
    corrupted[day:][generator.random(corrupted[day:].shape) < 0.3] = np.nan
    stocks = np.arange(4)
    before, after = forecast_of(made, close, stocks), forecast_of(made, corrupted, stocks)
    np.testing.assert_array_equal(before[:day], after[:day])
    assert before.shape == (300, 4, len(FORECASTS)) and before.dtype == np.float32 and np.isfinite(after).all()


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
            assert np.isfinite(forecast).all() and forecast.shape == (days, len(stocks), len(FORECASTS))
            if kind != "noise":
                assert not forecast.any()
