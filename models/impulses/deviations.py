"""Deviations: how a stock differs from the regression of all stocks, as a shrunken regression of its residuals.

Future returns are first regressed on past ones over all stocks together; each stock's residuals are then regressed on
the same inputs, with so large a penalty that no more than a tenth of a deviation is believed. Days of a stock with few
bars count for less.
"""

from collections.abc import Callable, Iterable

import numpy as np

from data.bank import Float32Array, Float64Array
from models.impulses.terms import SESSIONS, BoolArray

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

    Args:
        close: (days, n), NaN where there is no bar.
        learned: (days,) days whose closes may be read.
        inputs_of: the (days, stocks, inputs) of a block of stocks; the first is a constant.

    Returns:
        (n, inputs) weights beside those of the regression of all stocks, percent.
    """
    result = _relative_results(close, learned)
    gram, product = list[Float64Array](), list[Float64Array]()
    for block in blocks:
        y = result[:, block].T
        known = np.isfinite(y)
        x = inputs_of(block).transpose(1, 0, 2) * known[..., None]
        gram.append((x.transpose(0, 2, 1) @ x).astype(np.float64))
        product.append((x.transpose(0, 2, 1) @ np.where(known, y, 0.0)[..., None])[..., 0].astype(np.float64))
    of_stock, products = np.concatenate(gram), np.concatenate(product)
    unit, total = np.eye(products.shape[1]), of_stock.sum(axis=0)
    pooled = np.linalg.solve(total + (1e-9 + _POOLED_PENALTY * total[0, 0]) * unit, products.sum(axis=0))
    regularised = of_stock + (1e-9 + _OWN_PENALTY * learned.sum()) * unit
    weights: Float64Array = np.linalg.solve(regularised, (products - of_stock @ pooled)[..., None])[..., 0]
    return weights


def _relative_results(close: Float32Array, learned: BoolArray) -> Float32Array:
    """Return the (days, n) log returns in percent from the next close over some sessions, less their mean over the
    stocks; NaN where the stock has no bar, or a day in between is not learned."""
    result = np.full(close.shape, np.nan, dtype=np.float32)
    ahead = SESSIONS + 1
    if len(close) <= ahead:
        return result
    seen = np.concatenate(([0], learned.cumsum()))
    is_whole = seen[ahead + 1 :] - seen[: -ahead - 1] == ahead + 1
    log_close = np.log(close)
    result[:-ahead] = 100 * (log_close[ahead:] - log_close[1:-SESSIONS])
    result[:-ahead][~is_whole] = np.nan
    result[np.isnan(close)] = np.nan
    known = np.isfinite(result)
    mean = np.where(known, result, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    relative: Float32Array = result - mean
    return relative
