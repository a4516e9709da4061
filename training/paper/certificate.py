"""The certificate: a test of the selection of a champion, or of a policy, that may be looked at every day.

An e-process by betting (Waudby-Smith and Ramdas 2024, "Estimating means of bounded random variables by betting", JRSS B
86; Shafer 2021, "Testing by betting", JRSS A 184). Each session somebody with a capital of 1 bets on the champion's
result relative to random pickers. If its conditional mean is at most 0 every day, the capital is a nonnegative
supermartingale: it ever reaches 20 with a probability of at most 1/20 (Ville 1939), however often it is looked at.

A day's result is that of the champion's own positions relative to what they would have earned on average in a candidate
drawn at random on the day of their order: the same sizes, entries and sessions. It is measured in multiples of a loss
that is known the day before: that of the largest position as a whole, at least 40 forecast standard deviations. Gains
are cut, which can only lower the mean; losses are not, and one of more than this ruins the largest bets. The bound thus
holds for selections that never lose more than this in a session. In the session in which a
position is sold at its target, its return counts up to the close, so that sizes are fixed before the session.

A stock that has had no bar for as many sessions as the rules wait counts a loss in the next one, at least that of
Shumway (1997, "The delisting bias in CRSP data", JF 52); it is taken back if the stock trades again within `WINDOW`
sessions.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.features.nine import CLOSE, OPEN
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
LEAST_LOSS = 0.3
"""Share of its last price that a stock without bars loses, unless the rules say more."""
_FEWEST, _LONGEST = 20, 50 * 252
"""With fewer results than the first, or a date further ahead than the second, nothing is said about the future."""
TERMS = {
    "null": "the conditional mean of each day's result is at most 0",
    "result": "own positions less the mean of all candidates of their order's day, over the largest position or "
    f"{RUIN:g} forecast deviations, gains cut at {BOUND:g}",
    "bound": BOUND,
    "ruin": RUIN,
    "bets": list(BETS),
    "window": WINDOW,
    "delisting": LEAST_LOSS,
    "line": LINE,
}
"""What is fixed at the start."""


@dataclass(frozen=True)
class Stake:
    """A position of the champion's own, or an order that becomes one, before a session."""

    stock: int
    share: float
    """Of the account's equity."""
    is_entry: bool
    """It is bought at the session's open."""
    candidates: NDArray[np.bool_]
    """(n,) stocks that could have been ordered instead, itself included."""
    loss: float = 0.0
    """Share of its last price that counts as lost in this session for want of bars; negative: taken back."""


def bounded_result(market: Market, day: int, stakes: Sequence[Stake]) -> float:
    """Return the result of a session, at most BOUND / RUIN; 0 without stakes."""
    if not stakes:
        return 0.0
    first = max(0, day - WINDOW - 1)
    bars = market.data_array[first : day + 1, market.investable_columns][..., [OPEN, CLOSE]].astype(np.float64)
    open_, close = bars[..., 0], bars[..., 1]
    last = close.copy()
    for row in range(1, len(last)):  # a stock without a bar keeps its last price
        last[row] = np.where(np.isnan(last[row]), last[row - 1], last[row])
    change = close[1:] / last[:-1] - 1
    overnight, entered = np.nan_to_num(change[-1]), np.nan_to_num(close[-1] / open_[-1] - 1)
    result, squares = 0.0, 0.0
    for stake in stakes:
        returns = entered if stake.is_entry else overnight
        result += stake.share * float(returns[stake.stock] - stake.loss - returns[stake.candidates].mean())
        squares += stake.share**2
    spread = [float(np.nanstd(row)) for row in change[:-1] if np.isfinite(row).sum() > 1]
    deviation = (float(np.median(spread)) if spread else 0.0) * math.sqrt(squares)
    worst = max(RUIN * deviation, *(stake.share for stake in stakes))
    return min(result, BOUND * deviation) / worst if deviation > 0 else 0.0


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
        who: selects, `champion` or `policy`.
    """
    if terms != TERMS:
        return "Nothing is shown: the certificate of this account was opened on other terms; open another account."
    values = np.array(results, dtype=np.float64)
    capital = np.concatenate(([1.0], capital_curves(values)))
    if len(above := np.flatnonzero(capital >= LINE)):
        return (
            f"Shown on {dates[above[0] - 1]}: the capital reached {LINE:g} (now {capital[-1]:.3g}). If the {who} "
            f"selected no better than at random, this would happen to at most one account of {LINE:g}, at any time."
        )
    begin = f"Nothing is shown yet (capital {capital[-1]:.2f} of {LINE:g})"
    with np.errstate(divide="ignore"):  # a bet that is ruined
        growth = max(float(np.log(np.maximum(1 + bet * values, 0)).sum()) for bet in BETS) / max(len(values), 1)
    sessions = math.log(LINE / capital[-1]) / growth if growth > 0 and capital[-1] > 0 else math.inf
    if len(values) < _FEWEST or sessions > _LONGEST:
        return f"{begin}, and from the results so far nobody can tell whether it ever will be."
    until = np.busday_offset(np.datetime64(dates[-1], "D"), math.ceil(sessions), roll="backward")
    return f"{begin}. With the edge so far, which is mostly chance, it would take until about {until.astype('M8[Y]')}."
