"""Pairs of stocks whose spread forecasts their returns, found by regression among all pairs.

A pair's spread is the difference of two stocks' decayed moves (Gatev, Goetzmann and Rouwenhorst 2006, "Pairs trading:
performance of a relative-value arbitrage rule"). It forecasts if each stock's past tells the other's next move beyond
what the other's own past tells, significantly so among all pairs and half-lives.
"""

from collections.abc import Callable, Sequence

import numpy as np

from data.features.bank import exponential_mean
from data.features.impulses.terms import autocorrelated_t, bound, ratio
from utils.arrays import BoolArray, Float32Array, Float64Array, Int64Array, in_threads

HALF_LIVES = (8, 16, 32, 64)
"""Days in which half of a spread decays."""
_OWN_HALF_LIVES = (1, 2, 4, *HALF_LIVES)
"""Of the moving averages by which a stock's own past is controlled for."""
_SIGNIFICANCE = 0.01
"""Family-wise significance level (two-sided, Bonferroni)."""
_TOGETHER = 64
"""Stocks whose own pasts are in memory at a time."""
_ROWS = 512
"""Stocks whose pairs are."""
_RANK = 1e-13
"""Share of the largest singular value of own pasts below which others count as none."""


def pair_terms(moves: Float64Array) -> tuple[Int64Array, Float64Array]:
    """Select the partner of each stock, if one is significant, among (days, n) moves relative to the market.

    Moves are in standard deviations, 0 where unknown. Returns (terms, 3) places of stock, partner and half-life, and
    (terms,) loadings: the stock's next move for a spread of 1.
    """
    stocks, terms, loadings = moves.shape[1], {}, {}
    least = bound(stocks * (stocks - 1) // 2 * len(HALF_LIVES), _SIGNIFICANCE)
    left, strongest = _surprises(moves), np.full(stocks, least)
    is_learned = (left != 0.0).any(axis=1)
    known = left[is_learned]
    products = _products(known)
    for place, half_life in enumerate(HALF_LIVES):
        t, partner = _best_partners(known, _pasts(moves, half_life, is_learned), products)
        for stock in np.flatnonzero(t > strongest).tolist():
            other = int(partner[stock])
            if abs(_robust_t(moves, left, half_life, stock, other)) > least:
                strongest[stock], terms[stock] = t[stock], (stock, other, place)
                past = exponential_mean(moves[:, [stock, other]], half_life)[:-1]
                spread = past[:, 0] - past[:, 1]
                loadings[stock] = moves[1:, stock] @ spread / ((moves[1:, stock] != 0.0) @ spread**2)
    in_order = sorted(terms)
    chosen = np.array([terms[stock] for stock in in_order], dtype=np.int64).reshape(-1, 3)
    return chosen, np.array([loadings[stock] for stock in in_order], dtype=np.float64)


def after_pairs(moves: Float64Array, terms: Int64Array, loadings: Float64Array, sessions: int) -> Float64Array:
    """Sum the next moves that spreads forecast, (days, n), over the next `sessions`; row t from moves up to t only."""
    total = np.zeros(moves.shape)
    for place, half_life in enumerate(HALF_LIVES):
        is_this = terms[:, 2] == place
        stock, other, _ = terms[is_this].T
        past, kept = exponential_mean(moves, half_life), 0.5 ** (1.0 / half_life)
        ahead = (1.0 - kept**sessions) / (1.0 - kept)
        total[:, stock] = ahead * loadings[is_this] * (past[:, stock] - past[:, other])
    return total


def _by_columns(days: int, stocks: int, numbers_of: Callable[[slice], Float64Array]) -> Float32Array:
    """Compute (days, stocks) numbers, some stocks at a time.

    As float32: half the memory and time of products over all pairs, and a statistic matters to its first digits only.
    """
    numbers = np.empty((days, stocks), dtype=np.float32)

    def fill(some: slice) -> None:
        numbers[:, some] = numbers_of(some)

    in_threads(fill, [slice(first, first + _TOGETHER) for first in range(0, stocks, _TOGETHER)])
    return numbers


def _surprises(moves: Float64Array) -> Float32Array:
    """Return the (days - 1, n) moves of the second day on, less what each stock's own past tells of them."""
    days, stocks = moves.shape
    return _by_columns(days - 1, stocks, lambda some: _residual(moves[1:, some], _own_past(moves[:, some])).T)


def _own_past(moves: Float64Array) -> Float64Array:
    """Return the (n, days - 1, half-lives) decayed moves up to each day but the last, 0 before a day without a move."""
    pasts = [exponential_mean(moves, half_life)[:-1] * (moves[1:] != 0.0) for half_life in _OWN_HALF_LIVES]
    return np.ascontiguousarray(np.stack(pasts, axis=2).swapaxes(0, 1))


def _residual(y: Float64Array, x: Float64Array) -> Float64Array:
    """Return (days, n) y less the least-squares fits by each stock's (n, days, inputs) x, (n, days)."""
    y, across = y.T[..., None], x.swapaxes(1, 2)
    weights = np.linalg.pinv(across @ x, rcond=_RANK, hermitian=True) @ (across @ y)
    residual: Float64Array = (y - x @ weights)[..., 0]
    return residual


def _blocks(stocks: int) -> list[tuple[slice, slice]]:
    """Divide all pairs into blocks of stocks, each with these and the stocks after them."""
    firsts = range(0, stocks, _ROWS)
    return [(slice(first, min(first + _ROWS, stocks)), slice(first, stocks)) for first in firsts]


def _pasts(moves: Float64Array, half_life: float, is_learned: BoolArray) -> Float32Array:
    """Return the decayed moves of (days, n) before each learned one of (days - 1,) days, as many rows."""
    days, stocks = int(is_learned.sum()), moves.shape[1]
    return _by_columns(days, stocks, lambda some: exponential_mean(moves[:, some], half_life)[:-1][is_learned])


def _products(left: Float32Array) -> list[tuple[Float32Array, Float32Array]]:
    """Return sums of products and covariances of (days, n) surprises by block of pairs."""
    known, products = (left != 0.0).astype(np.float32), []
    for one, two in _blocks(left.shape[1]):
        total = left[:, one].T @ left[:, two]
        products.append((total, ratio(total, known[:, one].T @ known[:, two])))
    return products


def _best_partners(
    left: Float32Array, past: Float32Array, products: Sequence[tuple[Float32Array, Float32Array]]
) -> tuple[Float64Array, Int64Array]:
    """Return the largest absolute t-statistic of each stock's spreads, (n,), and the partner.

    Args:
        left: (days, n) surprises.
        past: (days, n) decayed moves before them.
        products: of the surprises, see `_products`.
    """
    stocks = left.shape[1]
    squares = (past**2).sum(axis=0, dtype=np.float64).astype(np.float32)
    variance = np.concatenate([np.diag(covariance) for _, covariance in products])
    scale = np.float32(np.sqrt((left**2).sum(dtype=np.float64) / max(squares.sum(dtype=np.float64), 1e-30)))
    past = past * scale
    both, squares = left + past, squares * scale**2
    best, partner = np.zeros(stocks), np.zeros(stocks, dtype=np.int64)
    for (one, two), (total, covariance) in zip(_blocks(stocks), products, strict=True):
        gram = past[:, one].T @ past[:, two]
        # Products of the sums hold those of each with the other, both ways: one product of matrices instead of two.
        cross = both[:, one].T @ both[:, two] - total - gram
        # Of the other's past only what is orthogonal to a stock's own counts.
        unlike = 1.0 - ratio(gram**2, squares[one, None] * squares[two])
        noise = variance[one, None] * squares[two] + squares[one, None] * variance[two]
        spread = (noise - 2.0 * covariance * gram) * unlike
        t = np.abs(ratio(cross, np.sqrt(np.maximum(spread, 0.0))))
        np.fill_diagonal(t, 0.0)
        for here, there, part in ((one, two, t), (two, one, t.T)):
            place = part.argmax(axis=1)
            largest = part[np.arange(len(part)), place]
            is_better = largest > best[here]
            best[here] = np.where(is_better, largest, best[here])
            partner[here] = np.where(is_better, there.start + place, partner[here])
    return best, partner


def _robust_t(moves: Float64Array, left: Float32Array, half_life: int, first: int, second: int) -> float:
    """Return a pair's t-statistic, whose errors may be autocorrelated."""
    pair, total = [first, second], np.zeros(len(left))
    pasts = _own_past(moves[:, pair])
    for one, other in ((0, 1), (1, 0)):
        past = pasts[other, :, _OWN_HALF_LIVES.index(half_life)]
        total -= left[:, pair[one]] * _residual(past[:, None], pasts[one][None])[0]
    return autocorrelated_t(total)
