"""Axes of charts: ranges, ticks, how numbers are written, which points of a long line are drawn, where labels fit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAX_POINTS = 1000
DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
_CLOSE_LABELS = 0.1
_MAX_TICKS = 10
_NICE = ((1, 1.5), (2, 3.2), (5, 7.0), (10, math.inf))
"""A factor of a power of ten and the step below which it is nearest."""
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240)


class Scale(NamedTuple):
    """The y axis: its range and where its grid lines are."""

    low: float
    high: float
    ticks: tuple[float, ...]


class Tick(NamedTuple):
    """A label of the x axis at a share (0 to 1) of its width."""

    share: float
    label: str


def number(value: float | None, decimals: int, *, is_signed: bool = False) -> str:
    """A number with thousands separators and a true minus; a dash for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return DASH
    rounded = round(value, decimals) + 0.0  # + 0.0 makes a negative zero positive.
    text = f"{rounded:+,.{decimals}f}" if is_signed and rounded else f"{rounded:,.{decimals}f}"
    return text.replace("-", MINUS)


def scale_of(series: Iterable[FloatArray], *, include: Sequence[float] = (), ticks: int = 5) -> Scale:
    """A range that holds all finite values, with about so many ticks at 1, 2 or 5 times a power of ten."""
    values = np.concatenate([np.ravel(part) for part in (*series, np.array(include, dtype=np.float64))])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    # Values that differ by rounding only would give a step that vanishes beside them.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = max(abs(low), abs(high), 1.0) / 2
        low, high = low - room, high + room
    step = _nice_step((high - low) / ticks)
    room = 0.02 * (high - low)
    first, last = math.ceil((low - room) / step), math.floor((high + room) / step)
    return Scale(low - room, high + room, tuple(index * step for index in range(first, last + 1)))


def _nice_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor, limit in _NICE if rough < limit * power)


def tick_decimals(scale: Scale) -> int:
    """Digits after the point that tell neighbouring ticks apart."""
    if len(scale.ticks) < 2:
        return 1
    return max(0, -math.floor(math.log10(scale.ticks[1] - scale.ticks[0]) + 1e-9))


def even_shares(count: int) -> FloatArray:
    """(count,) positions of values at equal distances; the middle for a single one."""
    return np.linspace(0.0, 1.0, count) if count > 1 else np.full(count, 0.5)


def number_ticks(values: Sequence[int]) -> list[Tick]:
    """Ticks at round ones of consecutive integers, evenly spread."""
    shares = even_shares(len(values))
    step = max(1, math.ceil(_nice_step(max(len(values), 1) / _MAX_TICKS)))
    return [Tick(float(share), str(value)) for share, value in zip(shares, values, strict=True) if value % step == 0]


def date_ticks(dates: npt.NDArray[np.datetime64]) -> list[Tick]:
    """Ticks at the first session of months or years; at the first and last session where there is no such day."""
    months = dates.astype("datetime64[M]").astype(np.int64)
    shares = even_shares(len(dates))
    for step in _MONTH_STEPS:
        periods = months // step
        places = [int(place) + 1 for place in np.flatnonzero(np.diff(periods))]
        if len(places) <= _MAX_TICKS:
            break
    if len(places) < 2:
        return [Tick(float(shares[place]), str(dates[place])) for place in sorted({0, len(dates) - 1})]
    # A period may begin within one that has no session; what the label says is the period of the session.
    labels = (str(dates[place].astype("datetime64[M]" if step < 12 else "datetime64[Y]")) for place in places)
    return _apart([Tick(float(shares[place]), label) for place, label in zip(places, labels, strict=True)])


def _apart(ticks: list[Tick]) -> list[Tick]:
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick.share - kept[-1].share >= _CLOSE_LABELS:
            kept.append(tick)
    return kept


def thin(values: FloatArray, limit: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Positions that a line needs: all, or the first, the last and the extremes of each of limit/2 equal parts."""
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), limit // 2).astype(np.int64)
    kept = {0, len(values) - 1}
    for start, stop in pairwise(edges):
        part = values[start:stop]
        if np.isfinite(part).any():
            kept |= {int(start + np.nanargmin(part)), int(start + np.nanargmax(part))}
        # A gap must stay one.
        kept |= {int(start + place) for place in np.flatnonzero(~np.isfinite(part))[:1]}
    return np.array(sorted(kept), dtype=np.int64)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Ascending places near the ascending wanted ones, at least `gap` apart, within the bounds where they fit."""
    placed: list[float] = []
    for place in wanted:
        placed.append(max(place, placed[-1] + gap if placed else low))
    ceiling = max(high, low + gap * (len(placed) - 1))
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed
