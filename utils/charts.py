"""Charts as data: series, bands and axes, drawn by a page as SVG and by `utils.pictures` as PNG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Dates = npt.NDArray[np.datetime64]
MemoryPoint = tuple[str, float, float, float, float]
"""Phase, seconds since the start, and RSS, unique set size and GPU memory in MiB."""

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
_CLOSE_LABELS = 0.1
_MAX_TICKS = 10
_NICE = ((1, 1.5), (2, 3.2), (5, 7.0), (10, math.inf))
"""A factor of a power of ten and the step below which it is nearest."""
JUDGED = "end"
"""Phase of a memory point that follows the judging of the champion, in which none are taken."""
_MONTH_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 240)


class Scale(NamedTuple):
    """The range and the grid lines of the y axis."""

    low: float
    high: float
    ticks: tuple[float, ...]


class Tick(NamedTuple):
    """A label at a share (0 to 1) of the x axis."""

    share: float
    label: str


class Line(NamedTuple):
    """A series with a value per position of its chart; NaN leaves a gap."""

    label: str
    values: FloatArray
    style: int  # number of its colour and dashes; 0 for the subject of the chart
    end: str  # text after the label, usually the last value


class Band(NamedTuple):
    """A shaded range of values."""

    label: str
    low: FloatArray
    high: FloatArray


class Marker(NamedTuple):
    """A symbol at a share of the width and a value."""

    share: float
    value: float
    symbol: str
    kind: str
    title: str


@dataclass(frozen=True)
class Chart:
    """Series over one x axis."""

    title: str
    description: str  # text for readers who cannot see the chart
    shares: FloatArray  # (T,) ascending x positions from 0 to 1
    ticks: Sequence[Tick]
    labels: Sequence[str]  # (T,) names of the positions, for the readout
    lines: Sequence[Line]
    bands: Sequence[Band] = ()
    verticals: Sequence[Tick] = ()
    marks: Sequence[Marker] = ()
    segments: Sequence[tuple[Marker, Marker]] = ()  # marks joined by a straight line of the second one's kind
    note: str = ""
    unit: str = ""
    decimals: int = 1
    is_signed: bool = False
    has_zero: bool = True  # the y axis always includes 0
    y_ticks: int = 5
    height: int = 240

    @cached_property
    def scale(self) -> Scale:
        """The y axis that includes everything drawn."""
        edges = (edge for band in self.bands for edge in (band.low, band.high))
        points = np.array([mark.value for mark in self.marks] + [0.0] * self.has_zero)
        return scale_of((*(line.values for line in self.lines), *edges, points), ticks=self.y_ticks)


def number(value: float | None, decimals: int, *, is_signed: bool = False) -> str:
    """Write a number with thousands separators and a true minus; a dash for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return DASH
    rounded = round(value, decimals) + 0.0  # + 0.0 makes a negative zero positive.
    text = f"{rounded:+,.{decimals}f}" if is_signed and rounded else f"{rounded:,.{decimals}f}"
    return text.replace("-", MINUS)


def percent(value: float) -> str:
    """Write a signed percentage with one decimal."""
    return number(float(value), 1, is_signed=True) + " %"


def last_known(values: FloatArray) -> float:
    """Return the last finite value, NaN where there is none."""
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else math.nan


def lines_of(series: Mapping[str, FloatArray], end: Callable[[FloatArray], str]) -> list[Line]:
    """Return a line for each series, in different styles; `end` writes the text after its label."""
    return [Line(label, values, style, end(values)) for style, (label, values) in enumerate(series.items())]


def scale_of(series: Iterable[FloatArray], *, ticks: int = 5) -> Scale:
    """Return a range of all finite values, with about so many ticks at 1, 2 or 5 times a power of ten."""
    values = np.concatenate([np.ravel(part) for part in series])
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    # Values that differ only by rounding would give a vanishing step.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = max(abs(low), abs(high), 1.0) / 2
        low, high = low - room, high + room
    step, room = _nice_step((high - low) / ticks), 0.02 * (high - low)
    first, last = math.ceil((low - room) / step), math.floor((high + room) / step)
    return Scale(low - room, high + room, tuple(index * step for index in range(first, last + 1)))


def _nice_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return power * next(factor for factor, limit in _NICE if rough < limit * power)


def tick_labels(scale: Scale) -> list[str]:
    """Write the ticks with as many digits as they need."""
    step = scale.ticks[1] - scale.ticks[0] if len(scale.ticks) > 1 else 0.1
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [number(tick, decimals) for tick in scale.ticks]


def even_shares(count: int) -> FloatArray:
    """Return (count,) equidistant positions; the middle for a single one."""
    return np.linspace(0.0, 1.0, count) if count > 1 else np.full(count, 0.5)


def number_ticks(values: Sequence[int]) -> list[Tick]:
    """Return ticks at multiples among consecutive integers."""
    shares = even_shares(len(values))
    step = max(1, math.ceil(_nice_step(max(len(values), 1) / _MAX_TICKS)))
    return [Tick(float(share), str(value)) for share, value in zip(shares, values, strict=True) if value % step == 0]


def date_ticks(dates: Dates) -> list[Tick]:
    """Return ticks at the first sessions of months or years, else at the first and last session."""
    months = dates.astype("datetime64[M]").astype(np.int64)
    shares = even_shares(len(dates))
    for step in _MONTH_STEPS:
        periods = months // step
        places = [int(place) + 1 for place in np.flatnonzero(np.diff(periods))]
        # Months differ by a few sessions, hence the tolerance.
        if (np.diff(shares[places]) >= 0.9 * _CLOSE_LABELS).all():
            break
    if len(places) < 2:
        return [Tick(float(shares[place]), str(dates[place])) for place in sorted({0, len(dates) - 1})]
    labels = (str(dates[place].astype("datetime64[M]" if step < 12 else "datetime64[Y]")) for place in places)
    return [Tick(float(shares[place]), label) for place, label in zip(places, labels, strict=True)]


def day_axis(dates: Dates) -> dict[str, Any]:
    """Return the x axis of a chart over consecutive sessions."""
    return {"shares": even_shares(len(dates)), "ticks": date_ticks(dates), "labels": [str(day) for day in dates]}


def number_axis(values: Sequence[int], name: str) -> dict[str, Any]:
    """Return the x axis of a chart over consecutive integers, which are named in the readout."""
    labels = [f"{name} {value}" for value in values]
    return {"shares": even_shares(len(values)), "ticks": number_ticks(values), "labels": labels}


def memory_chart(points: Sequence[MemoryPoint], limit_mb: float | None = None, *, moment: str = "phase") -> Chart:
    """Chart memory over time, from at least one point: resident, unique to the process, and on the GPU if any.

    Points are taken at the ends of a `moment`. None are taken while the champion is judged: the lines end there.
    """
    gap = [("judging", point[1], math.nan, math.nan, math.nan) for point in points if point[0] == JUDGED]
    points = [*(p for p in points if p[0] != JUDGED), *gap, *(p for p in points if p[0] == JUDGED)]
    times, resident, unique, gpu = np.array([point[1:] for point in points], dtype=np.float64).T
    first, last = times[0], times[-1]
    unit, seconds = ("s", 1.0) if last < 120 else ("min", 60.0) if last < 7200 else ("h", 3600.0)
    series = {"resident": resident, "unique": unique} | ({"GPU": gpu} if np.nansum(gpu) else {})
    span, peak = max(float(last - first), 1e-9), int(np.nanargmax(resident))
    axis = scale_of([times / seconds])
    shares = (times - first) / span
    highest = number(resident[peak], 0)
    limit = "" if limit_mb is None else f" The limit was {number(limit_mb, 0)} MiB."
    title = f"resident peak {highest} MiB, {points[peak][0]}"
    return Chart(
        title="Memory of the process, MiB",
        note=f"At the end of each {moment}.{limit}",
        description=f"Memory of the process in MiB over time. Peak {highest} MiB.",
        shares=shares,
        ticks=[
            Tick(share, f"{label} {unit}")
            for label, time in zip(tick_labels(axis), axis.ticks, strict=True)
            if 0 <= (share := (time * seconds - float(first)) / span) <= 1
        ],
        labels=[f"{point[0]}, {number(point[1] / seconds, 1)} {unit}" for point in points],
        lines=lines_of(series, lambda sizes: f"{number(sizes[-1], 0)} MiB"),
        marks=[Marker(shares[peak], resident[peak], "mark-target", "peak", title)],
        unit=" MiB",
        decimals=0,
    )
