"""Pairs of stocks whose spread forecasts their returns, found by regression among all pairs.

A pair's spread is the difference of two stocks' decayed moves (Gatev, Goetzmann and Rouwenhorst 2006, "Pairs trading:
performance of a relative-value arbitrage rule"). It forecasts if each stock's past tells the other's next move beyond
what the other's own past tells, significantly so among all pairs and half-lives.
"""

from __future__ import annotations

import numpy as np

from data.bank import Float64Array, exponential_mean
from models.impulses.terms import Int64Array, autocorrelated_t, bound, ratio

HALF_LIVES = (8, 16, 32, 64)
"""Days in which half of a spread decays."""
_OWN_HALF_LIVES = (1, 2, 4, *HALF_LIVES)
"""Of a stock's own past, whatever the shape of whose forecast."""
_SIGNIFICANCE = 0.01
"""Family-wise significance level (two-sided, Bonferroni)."""
_TOGETHER = 64
"""Stocks whose own pasts are in memory at a time."""


def pair_terms(moves: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Select the partner of each stock, if one is significant, among (days, n) moves relative to the market.

    Moves are in standard deviations, 0 where unknown. Returns (terms, 3) places of stock, partner and half-life, and
    (terms,) loadings: the stock's next move for a spread of 1.
    """
    stocks, terms, loadings = moves.shape[1], {}, {}
    least = bound(stocks * (stocks - 1) // 2 * len(HALF_LIVES), _SIGNIFICANCE)
    left, strongest = _surprises(moves), np.full(stocks, least)
    known = (left != 0.0).astype(np.float64)
    error = ratio(left.T @ left, known.T @ known)
    for place, half_life in enumerate(HALF_LIVES):
        past = exponential_mean(moves, half_life)[:-1]
        t = np.abs(_spread_t(left, past, error))
        for stock in np.flatnonzero(t.max(axis=1, initial=0.0) > strongest).tolist():
            other = int(t[stock].argmax())
            if abs(_robust_t(moves, left, half_life, stock, other)) > least:
                strongest[stock], terms[stock] = t[stock, other], (stock, other, place)
                spread = past[:, stock] - past[:, other]
                loadings[stock] = moves[1:, stock] @ spread / ((moves[1:, stock] != 0.0) @ spread**2)
    found = sorted(terms)
    chosen = np.array([terms[stock] for stock in found], dtype=np.int64).reshape(-1, 3)
    return chosen, np.array([loadings[stock] for stock in found], dtype=np.float64)


def after_pairs(moves: Float64Array, terms: Int64Array, loadings: Float64Array, sessions: int) -> Float64Array:
    """Sum the next moves that spreads forecast, (days, n), over so many sessions; row t from moves up to t only."""
    total = np.zeros(moves.shape)
    for place, half_life in enumerate(HALF_LIVES):
        is_this = terms[:, 2] == place
        stock, other, _ = terms[is_this].T
        past, kept = exponential_mean(moves, half_life), 0.5 ** (1.0 / half_life)
        ahead = (1.0 - kept**sessions) / (1.0 - kept)
        total[:, stock] = ahead * loadings[is_this] * (past[:, stock] - past[:, other])
    return total


def _surprises(moves: Float64Array) -> Float64Array:
    """Return the (days - 1, n) moves of the second day on, less what each stock's own past tells of them."""
    left = moves[1:].copy()
    for first in range(0, moves.shape[1], _TOGETHER):
        for stock, past in enumerate(_own_past(moves[:, first : first + _TOGETHER]), start=first):
            left[:, stock] = _residual(left[:, stock], past)
    return left


def _own_past(moves: Float64Array) -> Float64Array:
    """Return the (n, days - 1, half-lives) decayed moves up to each day but the last, 0 before a day without a move."""
    pasts = [exponential_mean(moves, half_life)[:-1] * (moves[1:] != 0.0) for half_life in _OWN_HALF_LIVES]
    return np.stack(pasts, axis=2).swapaxes(0, 1)


def _residual(y: Float64Array, x: Float64Array) -> Float64Array:
    """Return (days,) y less its least-squares fit by (days, inputs) x."""
    residual: Float64Array = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    return residual


def _spread_t(left: Float64Array, past: Float64Array, error: Float64Array) -> Float64Array:
    """Return the (n, n) t-statistics of spreads, given (days, n) surprises and the decayed moves before them.

    Of the other's past only what is orthogonal to a stock's own counts. `error` is the surprises' (n, n) covariance.
    """
    gram = past.T @ past
    own = np.diag(gram)
    square = ratio(gram**2, own[:, None] * own)
    variance = np.diag(error)[:, None] * own * (1.0 - square)
    variance = variance + variance.T - 2.0 * error * gram * (1.0 - square)
    cross = left.T @ past
    t = -ratio(cross + cross.T, np.sqrt(np.maximum(variance, 0.0)))
    np.fill_diagonal(t, 0.0)
    return t


def _robust_t(moves: Float64Array, left: Float64Array, half_life: int, first: int, second: int) -> float:
    """Return a pair's t-statistic, whose errors may be autocorrelated."""
    pair, total = [first, second], np.zeros(len(left))
    pasts = _own_past(moves[:, pair])
    for own, other in ((0, 1), (1, 0)):
        past = pasts[other, :, _OWN_HALF_LIVES.index(half_life)]
        total -= left[:, pair[own]] * _residual(past, pasts[own])
    return autocorrelated_t(total)
