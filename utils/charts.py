"""Charts as data, which `utils.pictures` draws as PNG files and as SVG for pages."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Dates = npt.NDArray[np.datetime64]
MemoryPoint = tuple[str, float, float, float, float]
"""Phase, seconds since the start, and RSS, unique set size and GPU memory in MiB."""

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
_GREY_STYLE = 7


class Trade(NamedTuple):
    """A position from its purchase to its sale."""

    x: tuple[Any, Any]  # of the type of the chart's positions
    prices: tuple[float, float]
    marker: str  # matplotlib's, at the sale
    is_gain: bool


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


def last_percent(values: FloatArray) -> str:
    """Write the last finite value as a percentage."""
    return percent(last_known(values))


@dataclass(frozen=True)
class Chart:
    """Series over one x axis."""

    title: str
    x: npt.NDArray[Any]  # (T,) dates, integers or floats; ascending where there are lines
    lines: Mapping[str, FloatArray] = field(default_factory=dict)  # (T,) values by label; NaN leaves a gap
    end: Callable[[FloatArray], str] = last_percent  # writes the text after a line's label
    dots: FloatArray | None = None  # (T,) values that no line joins
    bands: Mapping[str, tuple[FloatArray, FloatArray]] = field(default_factory=dict)  # lowest and highest values
    verticals: Sequence[Any] = ()  # positions of dotted lines, which the note explains
    trades: Sequence[Trade] = ()
    note: str = ""
    x_unit: str = ""
    has_zero: bool = True  # the y axis always includes 0
    height: int = 280  # pixels on a page

    @property
    def ends(self) -> dict[str, str]:
        """Return the text after each line's label."""
        return {label: self.end(values) for label, values in self.lines.items()}

    @property
    def first_style(self) -> int:
        """Return the number of the first line's colour and dashes: 0 for the subject of the chart."""
        return _GREY_STYLE if self.trades else int(self.dots is not None)

    @property
    def description(self) -> str:
        """Return text for readers who cannot see the chart."""
        ends = ", ".join(f"{label} {end}" for label, end in self.ends.items())
        return f"{self.title}. {self.note}" + (f" At the end: {ends}." if ends else "")


def memory_chart(points: Sequence[MemoryPoint]) -> Chart:
    """Chart memory over time, from at least one point: resident, unique to the process, and on the GPU if any."""
    minutes, resident, unique, gpu = np.array([point[1:] for point in points], dtype=np.float64).T
    peak = int(resident.argmax())
    return Chart(
        "Memory of the process, MiB",
        minutes / 60,
        {"resident": resident, "unique": unique} | ({"GPU": gpu} if gpu.any() else {}),
        lambda sizes: f"{number(sizes[-1], 0)} MiB",
        note=f"At the end of each phase. Peak {number(resident[peak], 0)} MiB, {points[peak][0]}.",
        x_unit=" min",
    )
