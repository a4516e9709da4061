"""Charts as data, which `utils.pictures` draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from utils.arrays import Float64Array

if TYPE_CHECKING:
    from utils.memory_profiler import Snapshot

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


def number(value: float | None, decimals: int, *, is_signed: bool = False) -> str:
    """Write a number with thousands separators and a true minus; a dash for None, NaN and infinities."""
    if value is None or not math.isfinite(value):
        return DASH
    rounded = round(value, decimals) + 0.0  # + 0.0 makes a negative zero positive.
    text = f"{rounded:+,.{decimals}f}" if is_signed and rounded else f"{rounded:,.{decimals}f}"
    return text.replace("-", MINUS)


@dataclass(frozen=True)
class Chart:
    """Series over one x axis."""

    title: str
    x: npt.NDArray[Any]  # (T,) dates, integers or floats; ascending
    lines: Mapping[str, Float64Array]  # (T,) values by label; NaN leaves a gap
    end: str = "{:+,.1f} %"  # format of the last known value, which follows a line's label
    bands: Mapping[str, tuple[Float64Array, Float64Array]] = field(default_factory=dict)  # (T,) lowest, highest values
    note: str = ""
    has_zero: bool = True  # the y axis always includes 0
    is_log: bool = False  # of the y axis, which then has no 0
    legend_value: Callable[[Float64Array], float] = itemgetter(-1)  # that value of a line's known ones
    colours: Mapping[str, str] = field(default_factory=dict)  # by label, where lines have one in all charts
    inches: float = 2.7  # height of the plot alone

    @property
    def ends(self) -> dict[str, str]:
        """Return the value that each line's legend tells, as text."""
        known = {label: values[np.isfinite(values)] for label, values in self.lines.items()}
        shown = self.legend_value
        return {
            label: self.end.format(shown(values)).replace("-", MINUS) if len(values) else DASH
            for label, values in known.items()
        }


def described(chart: Chart) -> str:
    """Return text for readers who cannot see a chart."""
    ends = ", ".join(f"{label} {end}" for label, end in chart.ends.items())
    return f"{chart.title}. {chart.note} {ends}".strip()


def memory_chart(snapshots: Sequence[Snapshot]) -> Chart:
    """Chart memory over time, from at least one snapshot: resident, unique to the process, and on the GPU if any."""

    def series(name: str) -> Float64Array:
        return np.array([snapshot.measures[name] for snapshot in snapshots], dtype=np.float64)

    minutes = np.array([snapshot.seconds for snapshot in snapshots]) / 60
    resident, gpu = series("rss_mb"), series("gpu_allocated_mb")
    lines = {"resident": resident, "unique": series("uss_mb")}
    if gpu.any():
        lines["GPU"] = gpu
    peak = int(resident.argmax())
    note = f"At the end of each phase. Peak {number(resident[peak], 0)} MiB, {snapshots[peak].label}."
    return Chart("Memory of the process, MiB, by minutes", minutes, lines, "{:,.0f} MiB", note=note)
