"""Results of every agent of every generation on the validation days: the trials among which a champion is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
SLICES = 8
"""Stretches of validation days whose profits are recorded apart; an even number."""
_DECIMALS = 5


@dataclass(frozen=True)
class Trials:
    """The agents of all generations on the validation days, but for broken ones."""

    slice_profit: Array
    """(SLICES, N) profits on stretches of days that do not overlap, percent of the initial capital; they sum to the
    result by which the champion is chosen."""
    information_ratio: Array
    """(N,) mean over sample deviation of the daily profits less equal weight's, not annualised."""
    lineage: npt.NDArray[np.int64]
    """(N,) row of the agent of the first generation from which it descends, by its first parents."""


def trial_record(
    equity: Array, equal_weight: Array, starts: Array, capital: float, founders: Sequence[int]
) -> dict[str, list[Any]]:
    """Return the results of A agents on W windows, by agent, in plain numbers of five decimals.

    Windows may overlap: a calendar day's profit is the mean over windows, as of W accounts side by side.

    Args:
        equity: (steps + 1, A, W) in currency units.
        equal_weight: (steps + 1, W) likewise, of holding everything equally.
        starts: (W,) first days of the windows.
        founders: agents of the first generation from which the agents descend.
    """
    profit = daily_profit(equity, starts, capital)
    slices = np.stack([part.sum(axis=0) for part in np.array_split(profit, SLICES)])
    over = profit - daily_profit(equal_weight[:, None], starts, capital)
    deviation = over.std(axis=0, ddof=1) if len(over) > 1 else np.zeros(over.shape[1])
    ratio = np.divide(over.mean(axis=0), deviation, out=np.zeros_like(deviation), where=deviation > 0)
    return {
        "slice_profit": np.round(slices.T, _DECIMALS).tolist(),
        "information_ratio": np.round(ratio, _DECIMALS).tolist(),
        "founders": list(founders),
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


def read_trials(records: Sequence[Mapping[str, Any]]) -> Trials | None:
    """Return the trials in the records of metrics.jsonl; None where a generation did not record them."""
    found = [record["validation"].get("trials", {}) for record in records]
    if not found or any("founders" not in trials for trials in found):
        return None
    profit, ratio, founder = (
        np.array([result for trials in found for result in trials[name]], dtype=np.float64)
        for name in ("slice_profit", "information_ratio", "founders")
    )
    is_finite = np.isfinite(profit).all(axis=1)
    return Trials(profit[is_finite].T, ratio[is_finite], founder[is_finite].astype(np.int64))
