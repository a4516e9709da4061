"""Charts as data, which `utils.pictures` draws as PNG files and as SVG for pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Dates = npt.NDArray[np.datetime64]
MemoryPoint = tuple[str, float, float, float, float]
"""Phase, seconds since the start, and RSS, unique set size and GPU memory in MiB."""

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
JUDGED = "end"
"""Phase of a memory point that follows the judging of the champion, in which none are taken."""


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


class Mark(NamedTuple):
    """A symbol at a position and a value."""

    x: Any  # of the type of the chart's positions
    value: float
    symbol: str  # "entry", or why a position was sold: "target", "stop", "time", "end" or "lost"
    kind: str  # "open", "gain" or "loss"
    text: str = ""


@dataclass(frozen=True)
class Chart:
    """Series over one x axis."""

    title: str
    description: str  # text for readers who cannot see the chart
    x: npt.NDArray[Any]  # (T,) dates, integers or floats; ascending where there are lines
    lines: Sequence[Line] = ()
    dots: FloatArray | None = None  # (T,) values that no line joins
    bands: Sequence[Band] = ()
    verticals: Sequence[Any] = ()  # positions of dotted lines, which the note explains
    marks: Sequence[Mark] = ()
    segments: Sequence[tuple[Mark, Mark]] = ()  # pairs of marks joined by a line of the second one's kind
    note: str = ""
    x_unit: str = ""
    has_zero: bool = True  # the y axis always includes 0
    height: int = 240  # pixels on a page


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


def lines_of(
    series: Mapping[str, FloatArray], end: Callable[[FloatArray], str] = lambda values: percent(last_known(values))
) -> list[Line]:
    """Return a line for each series, in different styles; `end` writes the text after its label."""
    return [Line(label, values, style, end(values)) for style, (label, values) in enumerate(series.items())]


def ends_of(lines: Sequence[Line]) -> str:
    """List the lines with the texts at their ends."""
    return ", ".join(f"{line.label} {line.end}" for line in lines)


def memory_chart(points: Sequence[MemoryPoint], limit_mb: float | None = None, *, moment: str = "phase") -> Chart:
    """Chart memory over time, from at least one point: resident, unique to the process, and on the GPU if any.

    Points are taken at the ends of a `moment`. None are taken while the champion is judged: the lines end there.
    """
    gap = [("judging", point[1], math.nan, math.nan, math.nan) for point in points if point[0] == JUDGED]
    points = [*(p for p in points if p[0] != JUDGED), *gap, *(p for p in points if p[0] == JUDGED)]
    times, resident, unique, gpu = np.array([point[1:] for point in points], dtype=np.float64).T
    unit, seconds = ("s", 1) if times[-1] < 120 else ("min", 60) if times[-1] < 7200 else ("h", 3600)
    series = {"resident": resident, "unique": unique} | ({"GPU": gpu} if np.nansum(gpu) else {})
    peak = int(np.nanargmax(resident))
    highest = f"{number(resident[peak], 0)} MiB"
    limit = "" if limit_mb is None else f" The limit was {number(limit_mb, 0)} MiB."
    lines = lines_of(series, lambda sizes: f"{number(sizes[-1], 0)} MiB")
    return Chart(
        title="Memory of the process, MiB",
        note=f"At the end of each {moment}.{limit}",
        description=f"Memory of the process in MiB over time. Peak {highest}. At the end: {ends_of(lines)}.",
        x=times / seconds,
        x_unit=f" {unit}",
        lines=lines,
        marks=[Mark(times[peak] / seconds, resident[peak], "target", "gain", f"peak {highest}, {points[peak][0]}")],
    )
