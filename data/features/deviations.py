"""Deviations: how a stock differs from the regression of all stocks, as a shrunken regression of its residuals.

Future returns are first regressed on past ones over all stocks together; each stock's residuals are then regressed on
the same inputs, with so large a penalty that no more than a tenth of a deviation is believed. Days of a stock with few
bars count for less.
"""

from collections.abc import Callable, Iterable

import numpy as np

from data.features.leaders import SESSIONS
from utils.arrays import BoolArray, Float32Array, Float64Array

_POOLED_PENALTY, _OWN_PENALTY = 0.01, 10.0
"""Of the regression of all stocks, in multiples of its rows, and of a stock's, in multiples of the learned days; inputs
have variance 1."""


def fit_deviations(
    close: Float32Array,
    learned: BoolArray,
    inputs_of: Callable[[slice], Float32Array],
    blocks: Iterable[slice],
) -> Float64Array:
    """Regress the log returns of the next sessions, relative to the day's mean, stock by stock.

    The inputs are read once, however many sets of days are learned from: days that are in the same sets are summed up
    together.

    Args:
        close: (days, n), NaN where there is no bar.
        learned: (sets, days) days whose closes may be read.
        inputs_of: the (days, stocks, inputs) of a block of stocks; the first is a constant.

    Returns:
        (sets, n, inputs) weights beside those of the regression of all stocks, percent.
    """
    result, is_used = _relative_results(close), _is_whole(learned)
    used_in = np.unique(is_used, axis=1)
    days = [np.flatnonzero((is_used == one[:, None]).all(axis=0)) for one in used_in.T]
    sums = list[tuple[Float64Array, Float64Array]]()
    for block in blocks:
        y = result[:, block].T
        known = np.isfinite(y)
        x = inputs_of(block).transpose(1, 0, 2) * known[..., None]
        y = np.where(known, y, 0.0)[..., None]
        groups = [(x[:, some], y[:, some]) for some in days]
        gram = np.stack([here.transpose(0, 2, 1) @ here for here, _ in groups]).astype(np.float64)
        product = np.stack([(here.transpose(0, 2, 1) @ there)[..., 0] for here, there in groups]).astype(np.float64)
        sums.append((gram, product))
    grams, products = (np.concatenate(part, axis=1) for part in zip(*sums, strict=True))
    unit, weights = np.eye(products.shape[2]), list[Float64Array]()
    for is_in, known_days in zip(used_in, learned.sum(axis=1), strict=True):
        of_stock, product = grams[is_in].sum(axis=0), products[is_in].sum(axis=0)
        total = of_stock.sum(axis=0)
        pooled = np.linalg.solve(total + (1e-9 + _POOLED_PENALTY * total[0, 0]) * unit, product.sum(axis=0))
        regularised = of_stock + (1e-9 + _OWN_PENALTY * known_days) * unit
        weights.append(np.linalg.solve(regularised, (product - of_stock @ pooled)[..., None])[..., 0])
    return np.stack(weights)


def _is_whole(learned: BoolArray) -> BoolArray:
    """Tell of the days of (sets, days) from the close of which on all days that a result depends on are learned."""
    ahead = SESSIONS + 1
    seen = np.pad(learned.cumsum(axis=1), ((0, 0), (1, 0)))
    is_whole = np.zeros(learned.shape, dtype=np.bool_)
    is_whole[:, :-ahead] = seen[:, ahead + 1 :] - seen[:, : -ahead - 1] == ahead + 1
    return is_whole


def _relative_results(close: Float32Array) -> Float64Array:
    """Return the (days, n) log returns in percent from the next close over some sessions, less their mean over the
    stocks; NaN where the stock has no bar."""
    result = np.full(close.shape, np.nan, dtype=np.float32)
    log_close = np.log(close)
    result[: -SESSIONS - 1] = 100 * (log_close[SESSIONS + 1 :] - log_close[1:-SESSIONS])
    result[np.isnan(close)] = np.nan
    known = np.isfinite(result)
    mean = np.where(known, result, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    relative: Float64Array = result - mean
    return relative
