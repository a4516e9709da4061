"""Known results as a regression: purged folds, and ridge regressions against their definition."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.splits import Span
from tests.tiny import rows_of as input_rows
from training.forecasts.samples import Moments, Samples
from utils.errors import DataError

FloatArray = npt.NDArray[np.float64]
INPUTS, TARGETS = 5, 2


def samples_of(seed: int = 0, days: int = 90, stocks: int = 4, longest: int = 3, last: int | None = None) -> Samples:
    """Results that depend on the inputs, with noise; some are not known."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((days, stocks, INPUTS)).astype(np.float32)
    x[..., 0] = 1.0
    slopes = rng.standard_normal((TARGETS, INPUTS))
    results = np.einsum("dni,ti->tdn", x, slopes) + rng.standard_normal((TARGETS, days, stocks))
    train = Span(10, days - 11 if last is None else last)
    results[:, : train.first], results[:, train.last - longest + 1 :] = np.nan, np.nan
    results[:, rng.random((days, stocks)) < 0.15] = np.nan
    return Samples(input_rows(x), results.astype(np.float32), train, longest)


def rows_of(samples: Samples, days: npt.NDArray[np.bool_] | slice) -> tuple[FloatArray, FloatArray]:
    """The (rows, inputs) and (rows, targets) that are known on some days."""
    known = np.isfinite(samples.results[0, days])
    x = samples.x.dense(samples.x.days)
    return x[days][known].astype(np.float64), samples.results[:, days][:, known].T.astype(np.float64)


def ridge(x: FloatArray, y: FloatArray, penalty: FloatArray) -> FloatArray:
    """Least squares with further rows for the penalty, in multiples of the number of rows, but on the constant."""
    more = np.diag(np.sqrt(penalty * len(x)) * (np.arange(x.shape[1]) > 0))
    solved: FloatArray = np.linalg.lstsq(np.vstack((x, more)), np.vstack((y, np.zeros((len(more), y.shape[1])))))[0]
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


@given(st.integers(0, 2**20), st.lists(st.floats(1e-4, 1e2), min_size=INPUTS, max_size=INPUTS), st.booleans())
@settings(max_examples=40)
def test_a_ridge_regression_in_closed_form_is_one(seed: int, penalties: list[float], is_one: bool) -> None:
    samples = samples_of(seed)
    moments, days = Moments.of(samples), samples.folds[seed % 5][0]
    penalty = np.full(INPUTS, penalties[0]) if is_one else np.array(penalties)
    x, y = rows_of(samples, days)
    sums = moments.over(days)
    given_penalty = penalties[0] if is_one else penalty.copy()
    np.testing.assert_allclose(sums.solve(given_penalty), ridge(x, y, penalty), rtol=1e-3, atol=1e-4)
    if not is_one:
        assert np.array_equal(given_penalty, penalty)
    weights = np.random.default_rng(seed).standard_normal(INPUTS)
    for target in range(TARGETS):
        error = ((y[:, target] - x @ weights) ** 2).sum()
        assert sums.error(weights, target) == pytest.approx(error, rel=1e-4)


def test_too_few_results_are_refused() -> None:
    samples_of(days=170, stocks=2).require_enough()
    with pytest.raises(DataError, match=r"expected the results of \d+ orders outside each fifth .*give more"):
        samples_of(days=60, stocks=2).require_enough()
