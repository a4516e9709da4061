"""Charts as PNG files."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from utils.charts import Chart, tick_labels

# Okabe & Ito (2008): told apart with any colour vision.
BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
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
)
"""Colour and dashes of a series by its style, those of the page in its light theme."""


def draw_chart(chart: Chart, path: Path, note: str | None = None) -> None:
    """Write a chart as PNG, with a note about the run below that of the chart."""
    notes = "\n".join(textwrap.fill(text, 120) for text in (chart.note, note) if text)
    with picture(path, chart.title, notes) as (figure, axes):
        _draw(chart, axes)
        outside_legend(figure, axes)


def draw_charts(charts: Sequence[Chart], path: Path, title: str, note: str | None = None) -> None:
    """Write charts as panels of one PNG, two in a row, each with its note below it, and one about the run below all."""
    rows = math.ceil(len(charts) / 2)
    figure = _figure(12, 4.4 * rows)
    figure.suptitle(title, fontsize=13, color=INK, x=0.01, ha="left")
    for place, chart in enumerate(charts, start=1):
        axes = figure.add_subplot(rows, 2, place)
        _prepare(axes, chart.title, 11)
        _draw(chart, axes)
        axes.legend(loc="best", frameon=False, fontsize=8.5)
        axes.set_xlabel(textwrap.fill(chart.note, 95), fontsize=8.5, style="italic", loc="left", color=INK)
    if note:
        figure.supxlabel(note, fontsize=9, color=INK, style="italic", x=0.01, ha="left")
    save_figure(figure, path)


def _draw(chart: Chart, axes: Axes) -> None:
    """Draw what a chart holds, without its title and notes."""
    # Dots at the points where they are few enough to tell apart; a single point would else be invisible.
    dots: dict[str, Any] = {"marker": "o", "markersize": 3} if len(chart.shares) <= 30 else {}
    for band in chart.bands:
        axes.fill_between(chart.shares, band.low, band.high, color=GREY, alpha=0.22, linewidth=0, label=band.label)
        for edge in (band.low, band.high):
            axes.plot(chart.shares, edge, color=GREY, linewidth=0.6, **dots)
    for line in chart.lines:
        colour, dashes = STYLES[line.style]
        is_subject = line.style == 0
        axes.plot(
            chart.shares,
            line.values,
            color=colour,
            linestyle=dashes,
            linewidth=2.2 if is_subject else 1.5,
            zorder=3 if is_subject else 2,
            label=f"{line.label}\n{line.end}",
            **dots,
        )
    for vertical in chart.verticals:
        axes.axvline(
            vertical.share,
            color=GREY,
            linestyle=":",
            linewidth=0.9,
            label=vertical.label if len(chart.verticals) == 1 else None,
        )
    for mark in chart.marks:
        axes.plot(mark.share, mark.value, "o", color=STYLES[0][0], markersize=6, zorder=4)
        axes.annotate(
            mark.title,
            (mark.share, mark.value),
            xytext=(0, 8),
            textcoords="offset points",
            ha="right" if mark.share > 0.5 else "left",
            fontsize=9,
            color=INK,
        )
    if chart.has_zero:
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    low, high, heights = chart.scale
    axes.set_ylim(low, high + 0.05 * (high - low))
    axes.set_yticks(heights, tick_labels(chart.scale))
    axes.set_xlim(-0.02, 1.02)
    axes.set_xticks([tick.share for tick in chart.ticks], [tick.label for tick in chart.ticks], fontsize=8.5)


@contextmanager
def picture(path: Path, title: str, note: str | None) -> Iterator[tuple[Figure, Axes]]:
    """Open a figure that is written to `path` in one step. It never enters pyplot, which would keep it alive."""
    figure = _figure(9, 4.8)
    axes = figure.add_subplot()
    _prepare(axes, title, 13)
    yield figure, axes
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    if note:
        figure.supxlabel(note, fontsize=9, color=INK, style="italic", x=0.01, ha="left")
    save_figure(figure, path)


def _figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size, inches."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    FigureCanvasAgg(figure)
    return figure


def _prepare(axes: Axes, title: str, size: float) -> None:
    """Give an axes its title, grid and colours."""
    axes.set_title(title, loc="left", fontsize=size, color=INK, pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=10)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", facecolor="white")
    temporary.replace(path)


def outside_legend(figure: Figure, axes: Axes) -> None:
    """Put the legend of an axes to the right of it, long labels wrapped."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.fill(line, 22) for line in label.splitlines()) for label in labels]
    figure.legend(handles, wrapped, loc="outside right upper", frameon=False, fontsize=10, labelspacing=0.8)
