"""The certificate: a test of an account against its benchmark that may be looked at every day.

An e-process by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B
86; Shafer 2021, "Testing by betting", JRSS A 184). Each session somebody with a capital of 1 bets on the account's
active return, its own less the benchmark's, costs included. If its conditional mean is at most 0 every day, the capital
is a nonnegative supermartingale: it ever reaches 20 with a probability of at most 1/20 (Ville 1939), however often it
is looked at.

A day's result is the active return in multiples of a loss that is known the day before: that of the largest active
weight as a whole, at least 40 forecast standard deviations. Gains are cut, which can only lower the mean; losses are
not, and one of more than this ruins the largest bets. The bound thus holds for accounts that never lose more than this
in a session, relative to their benchmark.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.market import Market
from utils.arrays import Float64Array

BOUND = 4.0
"""Standard deviations at which a day's gain is cut."""
RUIN = 40.0
"""Standard deviations of a day's loss that a result of -1 is at least."""
BETS = tuple(round(0.04 + 0.04 * place, 2) for place in range(25))
"""Shares of the capital that a result of -1 loses; the capital is the mean over these bets."""
LINE = 20.0
"""Capital that counts as shown: evidence at the level of 5%."""
WINDOW = 63
"""Sessions of which the median dispersion of returns is the forecast of a session's."""
LEAST = 1e-3
"""Root of the sum of squared active weights below which an account is its benchmark, and nothing is bet."""
_FEWEST, _LONGEST = 20, 50 * 252
"""With fewer results than the first, or a date further ahead than the second, nothing is said about the future."""
TERMS = {
    "null": "the conditional mean of each day's active return, net of costs, is at most 0",
    "result": "return of the account less that of its benchmark, over the largest active weight or "
    f"{RUIN:g} forecast deviations, gains cut at {BOUND:g}",
    "bound": BOUND,
    "ruin": RUIN,
    "bets": list(BETS),
    "window": WINDOW,
    "least": LEAST,
    "line": LINE,
}
"""What is fixed at the start."""


def bounded_result(active_return: float, active_weights: Float64Array, dispersion: float) -> float:
    """Return the result of a session, at most BOUND / RUIN; 0 without active weights.

    Args:
        active_return: of the session, as a fraction.
        active_weights: (n,) at most during it, known the day before.
        dispersion: forecast of the session's, see `forecast_dispersion`.
    """
    size = math.sqrt(float(np.square(active_weights).sum()))
    if size < LEAST or not dispersion > 0:
        return 0.0
    deviation, largest = dispersion * size, float(np.abs(active_weights).max())
    return min(active_return, BOUND * deviation) / max(RUIN * deviation, largest)


def forecast_dispersion(market: Market, day: int) -> float:
    """Return the median, over the last sessions up to a day, of the standard deviation of the stocks' returns."""
    close = market.close[max(0, day - WINDOW) : day + 1].astype(np.float64)
    change = close[1:] / close[:-1] - 1
    spread = [float(np.nanstd(row)) for row in change if np.isfinite(row).sum() > 1]
    return float(np.median(spread)) if spread else 0.0


def capital_curves(results: Float64Array) -> Float64Array:
    """Return the capital after each of (..., days) results; it begins with 1, which is left out."""
    total = np.zeros(results.shape)
    for bet in BETS:
        total += np.cumprod(np.maximum(1.0 + bet * results, 0.0), axis=-1)
    return total / len(BETS)


def finding(
    results: Sequence[float], dates: Sequence[str], terms: Mapping[str, Any] = TERMS, who: str = "champion"
) -> str:
    """Return what the results of the sessions so far show, and else how long it would take, honestly.

    Args:
        terms: those that were fixed when the account was opened.
        who: decides, `champion` or `policy`.
    """
    if terms != TERMS:
        return "Nothing is shown: the certificate of this account was opened on other terms; open another account."
    values = np.array(results, dtype=np.float64)
    capital = np.concatenate(([1.0], capital_curves(values)))
    if len(above := np.flatnonzero(capital >= LINE)):
        return (
            f"Shown on {dates[above[0] - 1]}: the capital reached {LINE:g} (now {capital[-1]:.3g}). If the {who} "
            f"did no better than the benchmark, this would happen to at most one account of {LINE:g}, at any time."
        )
    begin = f"Nothing is shown yet (capital {capital[-1]:.2f} of {LINE:g})"
    with np.errstate(divide="ignore"):  # a bet that is ruined
        growth = max(float(np.log(np.maximum(1 + bet * values, 0)).sum()) for bet in BETS) / max(len(values), 1)
    sessions = math.log(LINE / capital[-1]) / growth if growth > 0 and capital[-1] > 0 else math.inf
    if len(values) < _FEWEST or sessions > _LONGEST:
        return f"{begin}, and from the results so far nobody can tell whether it ever will be."
    until = np.busday_offset(np.datetime64(dates[-1], "D"), math.ceil(sessions), roll="backward")
    return f"{begin}. With the edge so far, which is mostly chance, it would take until about {until.astype('M8[Y]')}."
