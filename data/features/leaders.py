"""Leaders: columns that may not be bought, whose moves tell what stocks will do.

A leader's move is answered on one session, or over 20 sessions together. The second kind is a direct forecast of the
sum, tested by its regression of daily moves on summed past ones (Hodrick 1992, "Dividend yields and expected stock
returns: alternative procedures for inference and measurement"), since sums of consecutive days overlap.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array

SESSIONS = 20
"""Sessions that are forecast: the longest that a position is held by default."""
_SIGNIFICANCE = 0.05
"""Family-wise significance level of each kind of term (two-sided, Bonferroni)."""
_ERROR_LAGS = 32
"""Sessions over which errors may be correlated."""
_LAGS = range(1, SESSIONS + 1)
_AGES = range(0, 500, SESSIONS)
"""Ages of moves that are tried for sums; around the best one all are."""
_MOST_LEADERS = 4
"""Most leaders of a stock."""
_SINGLE = 0.5
"""Least t-statistic of a sum as a share of the best session's own. One session with the whole answer has more than four
times the t-statistic of the sum; where all have equal parts, the sum's is larger than that of nearly every session."""
Term = tuple[int, int, int]
"""Sessions, and the places of the stock and the leader."""


def leader_terms(causes: Float64Array, moves: Float64Array, is_move: BoolArray) -> tuple[Int64Array, Float64Array]:
    """Select the leaders of (days, n) own moves among (days, context) moves of others; return terms and loadings.

    A term is (sessions, place of the stock, place of the leader): a move is answered that many sessions later; from
    `SESSIONS` + 1 on, over `SESSIONS` sessions, the first of which comes `sessions - SESSIONS` after the move. Matching
    pursuit (Mallat and Zhang 1993): the most significant first, the next on its residual. Leaders are correlated, and
    what they share must be counted once.
    """
    if not causes.shape[1]:
        return np.zeros((0, 3), dtype=np.int64), np.zeros(0)
    # float32: half the memory and time, and a statistic matters to its first digits only.
    leaders, left = causes.astype(np.float32), moves.astype(np.float32)
    least, stocks = bound(SESSIONS * moves.shape[1] * causes.shape[1]), np.arange(moves.shape[1])
    single = _white_t(left[:, stocks], leaders, _LAGS)
    chosen = _summed_terms(left, leaders, single.max(axis=(0, 2), initial=0.0))
    loadings = [_take(left, is_move, leaders, term) for term in chosen]
    is_taken = np.zeros((len(stocks), causes.shape[1]), dtype=bool)
    for _, stock, column in chosen:
        is_taken[stock, column] = True
    for _ in range(_MOST_LEADERS):
        if chosen:  # something was taken off since
            single = _white_t(left[:, stocks], leaders, _LAGS)
        t = np.where(is_taken[stocks], 0.0, single)
        led = np.flatnonzero(t.max(axis=(0, 2), initial=0.0) > least)
        for place in led:
            row, cause = np.unravel_index(t[:, place].argmax(), t[:, place].shape)
            term = int(row) + 1, int(stocks[place]), int(cause)
            loadings.append(_take(left, is_move, leaders, term))
            chosen.append(term)
        stocks, single = stocks[led], single[:, led]
    return np.array(chosen, dtype=np.int64).reshape(-1, 3), np.array(loadings, dtype=np.float64)


def _summed_terms(answers: Float32Array, leaders: Float32Array, single: Float32Array) -> list[Term]:
    """Select the terms whose answers are spread over sessions: of columns and ages that are significant for a stock
    among all of them, those that are significant for a stock among these.

    Args:
        single: (n,) largest t-statistics of single sessions.
    """
    stocks, sums = answers.shape[1], last_sum(leaders.astype(np.float64), SESSIONS)
    t_summed = _white_t(answers, sums.astype(np.float32), [1 + age for age in _AGES]).swapaxes(0, 1)
    least, most = bound(_AGES.stop * stocks * leaders.shape[1]), _SINGLE * single
    candidates = set[tuple[int, int]]()
    for stock in np.flatnonzero(t_summed.max(axis=(1, 2)) > np.maximum(most, least)).tolist():
        place, column = np.unravel_index(t_summed[stock].argmax(), t_summed.shape[1:])
        near = _AGES[place]
        ages = range(max(0, near - SESSIONS // 2), min(near + SESSIONS // 2, len(leaders) - 2) + 1)
        t = [_robust_t(answers[:, stock], sums[:, column], age) for age in ages]
        if max(t) > least:
            candidates.add((ages[np.argmax(t)], int(column)))
    least = bound(stocks * len(candidates))
    return [
        (SESSIONS + 1 + age, stock, column)
        for age, column in sorted(candidates)
        for stock in range(stocks)
        if _robust_t(answers[:, stock], sums[:, column], age) > max(least, most[stock])
    ]


def after_leaders(moves: Float64Array, stocks: int, terms: Int64Array, loadings: Float64Array) -> Float64Array:
    """Sum the answers that past (days, columns) moves have in the next session, and over all that follow: (days,
    stocks, 2), row t from moves up to t only."""
    total = np.zeros((len(moves), stocks, 2))
    for sessions in np.unique(terms[:, 0]):
        is_now = terms[:, 0] == sessions
        _, stock, column = terms[is_now].T
        weights = np.zeros((moves.shape[1], stocks))
        weights[column, stock] = loadings[is_now]
        if sessions <= SESSIONS:
            answers = moves @ weights
            total[..., 0] += later(answers, sessions - 1)
            total[..., 1] += last_sum(answers, sessions)
        else:
            answers = later(moves, sessions - SESSIONS - 1) @ weights
            total[..., 0] += last_sum(answers, SESSIONS) / SESSIONS
            total[..., 1] += answers
    return total


def _white_t(answers: Float32Array, causes: Float32Array, lags: Sequence[int]) -> Float32Array:
    """Return the (lags, n, context) absolute t-statistics of (days, n) answers to (days, context) causes before them.

    With heteroskedasticity-consistent errors (White 1980).
    """
    t = np.zeros((len(lags), answers.shape[1], causes.shape[1]), dtype=np.float32)
    for place, lag in enumerate(lags):
        if lag < len(causes):
            answer, cause = answers[lag:], causes[:-lag]
            t[place] = np.abs(ratio(answer.T @ cause, np.sqrt(answer.T**2 @ cause**2)))
    return t


def _robust_t(answers: Float32Array, sums: Float64Array, age: int) -> float:
    """Return the absolute t-statistic of (days,) answers to sums of moves of this age; errors may be autocorrelated."""
    return abs(autocorrelated_t(answers[age + 1 :] * sums[: -age - 1]))


def _take(left: Float32Array, is_own: BoolArray, leaders: Float32Array, term: Term) -> float:
    """Take what a term explains off the (days, n) answers that are left; return its loading."""
    sessions, stock, column = term
    cause = leaders[:, column : column + 1].astype(np.float64)
    if sessions <= SESSIONS:
        past, square = later(cause, sessions), later(cause**2, sessions)
    else:
        past, square = (later(last_sum(series, SESSIONS), sessions - SESSIONS) for series in (cause, cause**2))
        square /= SESSIONS
    past, square, is_known = past[:, 0], square[:, 0], is_own[:, stock]
    product = float(left[:, stock] @ past)
    left[:, stock] -= is_known * past * (product / (is_known @ past**2))
    return product / float(is_known @ square)


def bound(candidates: int) -> float:
    """Return the critical t-statistic of the best of several candidates."""
    return float(-ndtri(_SIGNIFICANCE / 2.0 / max(candidates, 1)))


def ratio(numerator: NDArray[Any], denominator: NDArray[Any]) -> NDArray[Any]:
    """Divide; 0 where the denominator is 0."""
    quotient: NDArray[Any] = np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0.0)
    return quotient


def last_sum(values: Float64Array, days: int) -> Float64Array:
    """Sum (days, n) values over a trailing window of days."""
    total = np.cumsum(values, axis=0)
    total[days:] -= total[:-days].copy()
    return total


def later(values: NDArray[Any], days: int) -> NDArray[Any]:
    """Return values shifted to later days, 0 before."""
    later = np.zeros_like(values)
    later[days:] = values[: len(values) - days]
    return later


def autocorrelated_t(products: Float64Array) -> float:
    """Return the t-statistic of a sum of (days,) products, whose errors may be autocorrelated.

    Source: Newey and West (1987), "A simple, positive semi-definite, heteroskedasticity and autocorrelation consistent
    covariance matrix".
    """
    variance = products @ products
    for lag in range(1, min(_ERROR_LAGS, len(products) - 1) + 1):
        variance += 2.0 * (1.0 - lag / (_ERROR_LAGS + 1)) * (products[lag:] @ products[:-lag])
    return float(products.sum() / np.sqrt(variance)) if variance > 0.0 else 0.0
