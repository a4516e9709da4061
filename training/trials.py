"""Results of every agent of every generation on the validation days: the trials among which a champion is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
SLICES = 8
"""Stretches of validation days whose profits are recorded apart; an even number."""
_DECIMALS = 5


def trial_record(equity: Array, starts: Array, capital: float) -> dict[str, list[Any]]:
    """Return the results of A agents on W windows, by agent, in plain numbers of five decimals.

    Windows may overlap: a calendar day's profit is the mean over windows, as of W accounts side by side.

    Args:
        equity: (steps + 1, A, W) in currency units.
        starts: (W,) first days of the windows.
    """
    profit = daily_profit(equity, starts, capital)
    slices = np.stack([part.sum(axis=0) for part in np.array_split(profit, SLICES)])
    deviation = profit.std(axis=0, ddof=1) if len(profit) > 1 else np.zeros(profit.shape[1])
    sharpe = np.divide(profit.mean(axis=0), deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return {
        "slice_profit": np.round(slices.T, _DECIMALS).tolist(),
        "daily_sharpe": np.round(sharpe, _DECIMALS).tolist(),
    }


def daily_profit(equity: Array, starts: Array, capital: float) -> Array:
    """Return (days, A) profits of each day from the first to the last of the windows, percent of the capital."""
    steps, agents, windows = equity.shape[0] - 1, equity.shape[1], equity.shape[2]
    first = int(starts.min()) + 1
    profit = np.zeros((int(starts.max()) + steps + 1 - first, agents))
    change = 100 / capital / windows * np.diff(equity, axis=0)
    for window, start in enumerate(starts.tolist()):
        profit[start + 1 - first : start + 1 - first + steps] += change[:, :, window]
    return profit


def read_trials(records: Sequence[Mapping[str, Any]]) -> tuple[Array, Array] | None:
    """Return the trials in the records of metrics.jsonl but for those of broken agents; None where there are none.

    Returns:
        (SLICES, N) profits on stretches of days that do not overlap, percent of the initial capital, which sum to the
        result by which the champion is chosen; (N,) means over sample deviations of the daily profits, not annualised.
    """
    found = [record["validation"]["trials"] for record in records if record["validation"].get("trials")]
    if not found:
        return None
    profit, sharpe = (
        np.array([result for trials in found for result in trials[name]], dtype=np.float64)
        for name in ("slice_profit", "daily_sharpe")
    )
    is_finite = np.isfinite(profit).all(axis=1)
    return profit[is_finite].T, sharpe[is_finite]
