"""Charts as PNG files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from utils.charts import Chart, tick_labels
from utils.runs.durable import new_file

# Okabe & Ito (2008): distinct for any colour vision.
BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
GREY, INK = "#8A8A8A", "#333333"
STYLES = (
    ("#0060a8", "-"),
    ("#c24a00", "-"),
    ("#007a5a", ":"),
    ("#96509e", "-"),
    ("#8a6500", "--"),
    ("#2f83b3", "-"),
    ("#a3355c", "--"),
    ("#67717d", "-"),
    ("#7a9b00", "--"),
    ("#d35985", "-"),
    ("#9b7ade", "--"),
    ("#bc8537", "-"),
    ("#4e9b85", "--"),
    ("#6464c8", "-"),
    ("#a67a85", "--"),
    ("#43850b", "-"),
)
"""Colour and dashes by style, as on the page in its light theme; no two lines of a chart share one."""


def draw_chart(chart: Chart, path: Path, note: str | None = None) -> None:
    """Write a chart as PNG, with a note about the run below its own."""
    with picture(path, chart.title, "\n".join(filter(None, (chart.note, note)))) as (figure, axes):
        _draw(chart, axes)
        outside_legend(figure, axes)


def draw_charts(charts: Sequence[Chart], path: Path, title: str, note: str | None = None) -> None:
    """Write charts as panels of one PNG, two per row, with a note about the run below their own."""
    rows = math.ceil(len(charts) / 2)
    figure = new_figure(12, 4.4 * rows, title, note)
    for place, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(rows, 2, place)
        _prepare(axes, chart.title, 11)
        _draw(chart, axes)
        axes.legend(loc="best", frameon=False, fontsize=8.5)
        axes.set_xlabel(textwrap.fill(chart.note, 95), fontsize=8.5, style="italic", loc="left", color=INK)
    save_figure(figure, path)


def _draw(chart: Chart, axes: Axes) -> None:
    """Draw a chart without its title and notes."""
    # Dots where points are few; a single point would else be invisible.
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(chart.shares) <= 30 else {}
    for band in chart.bands:
        axes.fill_between(chart.shares, band.low, band.high, color=GREY, alpha=0.22, linewidth=0, label=band.label)
        for edge in (band.low, band.high):
            axes.plot(chart.shares, edge, color=GREY, linewidth=0.6, **dots)
    for line in chart.lines:
        width, layer = (2.2, 3) if line.style == 0 else (1.5, 2)
        style = dict(zip(("color", "linestyle"), STYLES[line.style], strict=True)) | dots
        label = f"{line.label}\n{line.end}"
        axes.plot(chart.shares, line.values, linewidth=width, zorder=layer, label=label, **style)
        known = np.pad(np.isfinite(line.values), 1)
        alone = known[1:-1] & ~known[:-2] & ~known[2:]  # without neighbours to draw a line to
        if alone.any() and not dots:
            axes.plot(chart.shares[alone], line.values[alone], "o", color=style["color"], markersize=3, zorder=layer)
    for vertical in chart.verticals:
        name = vertical.label if len(chart.verticals) == 1 else None
        axes.axvline(vertical.share, color=GREY, linestyle=":", linewidth=0.9, label=name)
    for mark in chart.marks:
        axes.plot(mark.share, mark.value, "o", color=STYLES[0][0], markersize=6, zorder=4)
        text: dict[str, Any] = {"ha": "right" if mark.share > 0.5 else "left", "fontsize": 9, "color": INK}
        axes.annotate(mark.title, (mark.share, mark.value), (0, 8), textcoords="offset points", **text)
    if chart.has_zero:
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    low, high, heights = chart.scale
    axes.set_ylim(low, high + 0.05 * (high - low))
    axes.set_yticks(heights, tick_labels(chart.scale))
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([tick.share for tick in chart.ticks], [tick.label for tick in chart.ticks], fontsize=8.5)


@contextmanager
def picture(path: Path, title: str, note: str | None) -> Iterator[tuple[Figure, Axes]]:
    """Open a figure that is written to `path` at the end. It never enters pyplot, which would keep it alive."""
    figure = new_figure(9, 4.8, note=note)
    axes = figure.add_subplot()
    _prepare(axes, title, 13)
    yield figure, axes
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    save_figure(figure, path)


def new_figure(
    width: float, height: float, title: str | None = None, note: str | None = None, dpi: int = 150
) -> Figure:
    """Return a figure of this size in inches, empty but for its title and note."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title, fontsize=13, color=INK, x=0.01, ha="left")
    if note:
        # About 13 characters of this size fit an inch.
        lines = "\n".join(textwrap.fill(line, int(13.3 * width)) for line in note.splitlines())
        figure.supxlabel(lines, fontsize=9, color=INK, style="italic", x=0.01, ha="left")
    return figure


def _prepare(axes: Axes, title: str, size: float) -> None:
    """Set the title, grid and colours of an axes."""
    axes.set_title(title, loc="left", fontsize=size, color=INK, pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=10)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with new_file(path) as file:
        figure.savefig(file, format="png", facecolor="white")


def outside_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend to the right of the axes, with long labels wrapped."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.fill(line, 22) for line in label.splitlines()) for label in labels]
    figure.legend(handles, wrapped, loc="outside right upper", frameon=False, fontsize=10, labelspacing=0.8)
