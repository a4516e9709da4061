"""What agents learn from on training days: folds, closed forms out of fold, and a linear start that finds a drift."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.market import Market
from data.splits import Span
from environment.trading_env import TradingEnvironment
from models.inputs import BANK, INPUTS
from models.networks import Networks
from tests.small_market import TINY_RULES, small_market
from tests.tiny import rows_of as input_rows
from tests.tiny import seeded
from training.forecasts.samples import Moments, Samples
from training.forecasts.training_days import TrainingDays
from utils.arrays import Float64Array
from utils.errors import DataError

MARKET = small_market(3, 800, investable=(0, 2, 3))
FOLD = 2


def days_of(market: Market) -> TrainingDays:
    return TrainingDays.of(market, TradingEnvironment.on(market, TINY_RULES).account)


@pytest.fixture(scope="module")
def days() -> TrainingDays:
    return days_of(MARKET)


def test_results_of_a_fold_do_not_reach_the_networks_that_judge_it(days: TrainingDays) -> None:
    """Another result of every position of its days: its own start stays, those of the other folds move."""
    held, rows = days.samples.folds[FOLD][1], days.samples.x
    reward = days.transitions.reward.clone()
    reward[rows.rows(held)] *= -5.0
    other = replace(days, transitions=replace(days.transitions, reward=reward))
    unit = days.transitions.reward_scale / other.transitions.reward_scale
    found, expected = other.closed_form(1.0), days.closed_form(1.0)
    torch.testing.assert_close(found[FOLD, ..., 0], unit * expected[FOLD, ..., 0], rtol=1e-3, atol=1e-5)
    for fold in range(days.folds):
        assert fold == FOLD or not torch.allclose(found[fold, ..., 0], unit * expected[fold, ..., 0], atol=1e-3)


def test_later_prices_of_the_last_fold_do_not_reach_what_is_forecast_on_its_first_days(days: TrainingDays) -> None:
    """But for the scale of inputs. Responses that are fitted to all training days, as deployed, do know them."""
    held = days.samples.folds[-1][1]
    half = (held.start + held.stop) // 2
    data = MARKET.data_array.copy()
    drift = 0.01 * np.array([1.0, 0.0, -1.0, 1.0, 0.0])
    data[half:] *= np.exp(drift * np.arange(len(data) - half).clip(max=40)[:, None])[..., None]
    other, early = days_of(replace(MARKET, data_array=data)), slice(held.start, half)
    for place in range(BANK, INPUTS):
        one, two = (own.samples.x.x(early)[:, place] for own in (days, other))
        assert float(one.std()) == 0.0 or correlation_of(one, two) > 0.999, place
    bars = days.tradable[early]
    one, two = (torch.from_numpy(own.inputs.of(MARKET, early))[bars][:, BANK + 2] for own in (days, other))
    assert correlation_of(one, two) < 0.9


def correlation_of(one: Tensor, two: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((one, two)))[0, 1])


def test_each_fold_is_judged_by_its_own_networks(days: TrainingDays) -> None:
    """Networks of one fold begin with ones, the others with nothing: forecasts differ from zero there alone."""
    inputs = days.inputs.size - 1
    networks = Networks.initialize(torch.ones(1, inputs, dtype=torch.bool), 3, days.folds, 0.01, seeded(0))
    weights = torch.zeros(1, days.folds, 1 + inputs)
    weights[:, FOLD, 0] = 1.0
    networks.start_from(weights)
    forecasts = days.forecasts(networks.target, [0])
    held, known = days.samples.folds[FOLD][1], forecasts.score[0].isfinite()
    assert torch.equal(known[days.samples.x.days], days.tradable[days.samples.x.days])
    assert bool((forecasts.score[0, held][known[held]] == 1.0).all())
    known[held] = False
    assert not bool(forecasts.score[0][known].any()) and not bool(known[days.samples.x.days.stop :].any())


WIDTH, TARGETS = 5, 2


def samples_of(seed: int = 0, days: int = 90, stocks: int = 4, longest: int = 3, last: int | None = None) -> Samples:
    """Results that depend on the inputs, with noise; some are not known."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((days, stocks, WIDTH)).astype(np.float32)
    x[..., 0] = 1.0
    slopes = rng.standard_normal((TARGETS, WIDTH))
    results = np.einsum("dni,ti->tdn", x, slopes) + rng.standard_normal((TARGETS, days, stocks))
    train = Span(10, days - 11 if last is None else last)
    results[:, : train.first], results[:, train.last - longest + 1 :] = np.nan, np.nan
    results[:, rng.random((days, stocks)) < 0.15] = np.nan
    return Samples(input_rows(x), results.astype(np.float32), train, longest)


def rows_of(samples: Samples, days: npt.NDArray[np.bool_] | slice) -> tuple[Float64Array, Float64Array]:
    known = np.isfinite(samples.results[0, days])
    x = samples.x.dense(samples.x.days)
    return x[days][known].astype(np.float64), samples.results[:, days][:, known].T.astype(np.float64)


def ridge(x: Float64Array, y: Float64Array, penalty: Float64Array) -> Float64Array:
    """Least squares with further rows for the penalty, in multiples of the number of rows, but on the constant."""
    more = np.diag(np.sqrt(penalty * len(x)) * (np.arange(x.shape[1]) > 0))
    solved: Float64Array = np.linalg.lstsq(np.vstack((x, more)), np.vstack((y, np.zeros((len(more), y.shape[1])))))[0]
    return solved


@given(st.integers(20, 200), st.integers(1, 12), st.integers(0, 30))
@settings(max_examples=60)
def test_folds_part_the_training_days_and_trades_do_not_overlap(days: int, longest: int, after: int) -> None:
    train = Span(7, 6 + days)
    total = 7 + days + after
    x = input_rows(np.zeros((total, 1, 1), np.float32))
    samples = Samples(x, np.zeros((1, total, 1), np.float32), train, longest)
    judged = [day for _, held in samples.folds for day in range(held.start, held.stop)]
    assert judged == list(range(train.first, train.last + 1))
    for learned, held in samples.folds:
        learned_days = set(np.flatnonzero(learned))
        spans = {day: set(range(day, day + longest + 1)) for day in range(total + longest)}
        judged_sessions = set().union(*(spans[day] for day in range(held.start, held.stop)))
        for day in range(total):
            ends = day + longest
            is_apart = ends < held.start or day >= held.stop + longest
            assert (day in learned_days) == (train.first <= day and ends <= train.last and is_apart)
            if day in learned_days:
                assert not spans[day] & judged_sessions


@given(st.integers(0, 2**20), st.lists(st.floats(1e-4, 1e2), min_size=WIDTH, max_size=WIDTH), st.booleans())
@settings(max_examples=40)
def test_a_ridge_regression_in_closed_form_is_one(seed: int, penalties: list[float], is_one: bool) -> None:
    samples = samples_of(seed)
    moments, days = Moments.of(samples), samples.folds[seed % 5][0]
    penalty = np.full(WIDTH, penalties[0]) if is_one else np.array(penalties)
    x, y = rows_of(samples, days)
    sums = moments.over(days)
    given_penalty = penalties[0] if is_one else penalty.copy()
    np.testing.assert_allclose(sums.solve(given_penalty), ridge(x, y, penalty), rtol=1e-3, atol=1e-4)
    if not is_one:
        assert np.array_equal(given_penalty, penalty)
    weights = np.random.default_rng(seed).standard_normal(WIDTH)
    for target in range(TARGETS):
        error = ((y[:, target] - x @ weights) ** 2).sum()
        assert sums.error(weights, target) == pytest.approx(error, rel=1e-4)


def test_too_few_results_are_refused() -> None:
    samples_of(days=170, stocks=2).require_enough()
    with pytest.raises(DataError, match=r"expected the results of \d+ orders outside each fifth .*give more"):
        samples_of(days=60, stocks=2).require_enough()
