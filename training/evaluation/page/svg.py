"""Coordinates of a chart as inline SVG that keeps its text size at any width; `chart.html` holds the markup.

Heights are pixels; along x only the paths are stretched (a nested viewBox with non-scaling strokes), while text and
marks sit at percentages of the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from utils.charts import Band, Chart, FloatArray, Line, Scale, even_shares

if TYPE_CHECKING:
    from utils.statistics import MeanTest

MAX_POINTS = 1000
TOP, BOTTOM, WIDTH = 12, 26, 1000
_LABEL_GAP, _LABEL_CHARS = 17, 24


def y_of(chart: Chart, value: float) -> float:
    """Return the pixels of a value from the top."""
    low, high, _ = chart.scale
    return TOP + (high - value) / (high - low) * (chart.height - TOP - BOTTOM)


def line_path(chart: Chart, line: Line) -> str:
    """Return the path of a line through its known values."""
    places = thin(line.values)
    shares, values = chart.shares[places], line.values[places]
    known = np.isfinite(values)
    begins = known & ~np.concatenate(([False], known[:-1]))
    drawn = [
        f"{'M' if begin else 'L'}{WIDTH * share:.1f},{y_of(chart, value):.2f}"
        for begin, share, value in zip(begins[known], shares[known], values[known], strict=True)
    ]
    # A lone point has no length; a stroke of length zero with a round cap shows it.
    return "".join(drawn) + ("h0" if begins[known][-1:].any() else "")


def band_points(chart: Chart, band: Band) -> str:
    known = np.flatnonzero(np.isfinite(band.low) & np.isfinite(band.high))
    low, high = (values[known] for values in (band.low, band.high))
    upper = [(chart.shares[known[place]], high[place]) for place in thin(high)]
    lower = [(chart.shares[known[place]], low[place]) for place in thin(low)[::-1]]
    return " ".join(f"{WIDTH * share:.1f},{y_of(chart, value):.2f}" for share, value in (*upper, *lower))


def end_labels(chart: Chart) -> Iterator[tuple[Line, str, float, float]]:
    """Yield each line with its name cut to the room, where it ends and where its label goes."""
    ends = [(line, values[-1]) for line in chart.lines if (values := line.values[np.isfinite(line.values)]).size]
    ends.sort(key=lambda pair: y_of(chart, pair[1]))
    wanted = [y_of(chart, value) for _, value in ends]
    places = spread(wanted, _LABEL_GAP, TOP, chart.height - BOTTOM)
    for (line, _), end, place in zip(ends, wanted, places, strict=True):
        room = _LABEL_CHARS - len(line.end)
        name = line.label if len(line.label) <= room else line.label[: max(room - 1, 1)] + "…"
        yield line, name, end, place


def readout_shares(chart: Chart) -> str:
    """Return the positions along x, for the readout; nothing where they are even."""
    if np.allclose(chart.shares, even_shares(len(chart.shares))):
        return ""
    return " ".join(f"{share:.5f}" for share in chart.shares)


def interval_bar(test: MeanTest, scale: Scale) -> dict[str, str]:
    """Return the places of one row of a forest plot and its kind."""
    low, high = test.interval
    places = {"low": low, "value": test.mean, "high": high, "zero": 0.0}
    kind = "gain" if low > 0 else "loss" if high < 0 else "open"
    return {"kind": kind, **{name: share_of(scale, at) for name, at in places.items()}}


def share_of(scale: Scale, value: float) -> str:
    """Return the place of a value along a scale in percent of the width."""
    return f"{100 * (value - scale.low) / (scale.high - scale.low):.2f}%"


def thin(values: FloatArray, limit: int = MAX_POINTS) -> npt.NDArray[np.int64]:
    """Return positions that a line needs: all, or the ends and the extremes of each of limit/2 equal parts."""
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
    """Return ascending places near the ascending wanted ones, at least `gap` apart, within the bounds if they fit."""
    placed: list[float] = []
    for place in wanted:
        placed.append(max(place, placed[-1] + gap if placed else low))
    ceiling = max(high, low + gap * (len(placed) - 1))
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed
