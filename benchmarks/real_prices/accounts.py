"""Accounts of a policy over test days: as lines of the file of results, and joined over folds and seeds again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import numpy.typing as npt

from training.evaluation.measures import EquityCurves
from utils.arrays import Float64Array

Record = dict[str, Any]
BLOCKS = 5
"""Parts of a window for which each random picker's profit is stored; of single days only their mean."""
_DIGITS = 9
_TOTALS = tuple(field.name for field in fields(EquityCurves) if field.name != "equity")


@dataclass(frozen=True)
class Pickers:
    """Random pickers with a policy's orders, (S, ...) by seed; profits in percent of the initial capital."""

    daily: Float64Array
    """(S, days) mean of the same-day random pickers' profits."""
    blocks: Float64Array
    """(S, count, blocks) profits of each over parts of the windows."""
    shifted: Float64Array
    """(S, days) mean profits of those whose orders are moved in time."""
    known_share: Float64Array
    """(S, days) see `training.forecasts.skill.known_share`."""
    held: Float64Array
    """(S, days) profits of the basket beside them, percent of the initial capital."""

    def each(self, steps: int) -> Float64Array:
        """Return (S * count, days) profits: the mean over seeds, and what each earned beyond its own.

        Seeds of a policy buy much the same stocks. Means over seeds of independent draws would vary less than the
        policy does by chance, and it would look skilled. What a random picker earned beyond the mean is spread
        evenly over the days of each block, so that sums and daily means are exact.
        """
        length = np.tile(np.diff(block_edges(steps)), self.blocks.shape[2] // BLOCKS)
        beyond = ((self.blocks - self.blocks.mean(axis=1, keepdims=True)) / length).reshape(-1, len(length))
        return np.asarray(self.daily.mean(axis=0) + np.repeat(beyond, length, axis=1))


@dataclass(frozen=True)
class Account:
    """What a policy did on the test days, (S, ...) by seed; what has no seed has S = 1."""

    track: EquityCurves
    """A policy a seed."""
    rank_ic: Float64Array
    """(S, days) rank correlation over stocks of scores and results; NaN where there is none."""
    pickers: Pickers | None = None

    @property
    def steps(self) -> int:
        """Return the days of a window."""
        return int(self.track.equity.shape[2]) - 1

    @property
    def profit(self) -> Float64Array:
        """Return (days,) profits in percent of the initial capital, means over seeds."""
        return np.asarray(self.track.daily_profit.mean(axis=0))


def block_edges(steps: int) -> npt.NDArray[np.int64]:
    """Return the (BLOCKS + 1,) days at which the blocks of a window begin and end."""
    return np.linspace(0, steps, BLOCKS + 1).astype(np.int64)


def pack_track(track: EquityCurves) -> Record:
    """Return one policy's track as JSON values."""
    return {"profit": pack(track.daily_profit[0]), **{name: pack(getattr(track, name)[0]) for name in _TOTALS}}


def pack(values: Float64Array, digits: int = _DIGITS) -> list[float | None]:
    """Return (n,) numbers as JSON values, None where they are not known."""
    return [round(float(value), digits) if np.isfinite(value) else None for value in values]


def pack_pickers(track: EquityCurves, shifted: EquityCurves, known_share: Float64Array, held: Float64Array) -> Record:
    """Return the stored profits of random pickers as JSON values."""
    edges = block_edges(track.equity.shape[2] - 1)
    percent = 100 / track.capital * np.diff(track.equity[:, :, edges], axis=2)
    return {
        "daily": pack(track.daily_profit.mean(axis=0)),
        "blocks": [pack(path, 5) for path in percent.reshape(len(percent), -1)],
        "shifted": pack(shifted.daily_profit.mean(axis=0)),
        "known_share": pack(known_share),
        "held": pack(held),
    }


def account_of(records: Sequence[Sequence[Record]], capital: float, steps: int) -> Account:
    """Join the packed accounts of a policy, by seed and then by fold."""

    def joined(*names: str) -> Float64Array:
        def numbers(record: Record) -> Float64Array:
            return np.array(reduce(getitem, names, record), dtype=np.float64)

        return np.stack([np.concatenate([numbers(fold) for fold in seed], axis=-1) for seed in records])

    profit = joined("track", "profit")
    profit = profit.reshape(len(profit), -1, steps)
    equity = capital * (1 + np.concatenate((np.zeros_like(profit[..., :1]), np.cumsum(profit, axis=2)), axis=2) / 100)
    known = records[0][0]
    return Account(
        EquityCurves(equity, **{name: joined("track", name) for name in _TOTALS}),
        joined("rank_ic"),
        Pickers(*(joined("pickers", field.name) for field in fields(Pickers))) if "pickers" in known else None,
    )
