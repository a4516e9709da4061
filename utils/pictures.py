"""Charts drawn by matplotlib: as PNG files, and as SVG images for pages."""

import base64
import textwrap
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from utils.charts import Chart
from utils.runs.durable import new_file
from utils.tables import printable

# Okabe & Ito (2008): distinct for any colour vision.
ORANGE, VERMILION = "#E69F00", "#D55E00"
GREY, INK, GRID = "#8A8A8A", "#333333", "#E6E6E6"
_DASHES = ("--", ":", "-.")
_FEW, _TICKS = 30, 7
"""Positions up to which each is drawn as a dot; and most ticks of dates, up to which whole numbers all have one."""
_LEGEND_CHARS = 22
_WIDTH, _LEFT, _BARE = 5.4, 0.7, 0.2
"""Inches of a chart's width, left of the plot, and right of it or above the title."""
_COLUMNS, _TITLE_CHARS, _NOTE_CHARS = 3, 54, 64
"""Columns of a legend, letters of a line of a title and of a note."""
_ABOVE: Any = {"loc": "lower left", "bbox_to_anchor": (-0.14, 1), "ncols": _COLUMNS, "fontsize": 9}
_ABOVE |= {"handlelength": 1.3, "columnspacing": 1.0}
_LINE = 0.4
"""Inches of the title, or the note, of all charts of a figure."""
_RC: Any = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "charts"}


def draw_charts(charts: Sequence[Chart], path: Path, note: str | None = None, title: str | None = None) -> None:
    """Write charts as PNG, two per row, with a title above them all and a note about the run below."""
    with rc_context(_RC):
        save_figure(_figure(charts, title, note), path)


def svg_data_uri(chart: Chart) -> str:
    """Return a chart as the address of an SVG image that holds all of it; equal charts give equal ones."""
    file = BytesIO()
    with rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser may have it
        _figure([chart]).savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(file.getvalue()).decode()}"


def _figure(charts: Sequence[Chart], title: str | None = None, note: str | None = None) -> Figure:
    """Return charts that are no wider than their plots, with legends above, so that a phone shows readable letters."""
    columns = min(len(charts), 2)
    above = [_legend_inches(chart) for chart in charts]
    notes = [textwrap.wrap(chart.note, _NOTE_CHARS) for chart in charts]
    below = [0.35 + bool(lines) * 0.15 + 0.16 * len(lines) for lines in notes]
    titles = [textwrap.wrap(printable(chart.title), _TITLE_CHARS) for chart in charts]
    tops = [_BARE + 0.22 * len(lines) + legend for lines, legend in zip(titles, above, strict=True)]
    cell = max(top + one.inches + bottom for top, one, bottom in zip(tops, charts, below, strict=True))
    width, height = columns * _WIDTH, -(-len(charts) // columns) * cell + _LINE * (bool(title) + bool(note))
    figure = new_figure(width, height, title, note)
    # Places that are known beforehand are drawn in half the time of those of a layout engine.
    figure.set_layout_engine("none")
    for text in figure.texts[:1] if title else ():
        text.set_y(1.0 - 0.1 / height)  # by default at a share of the height, which may be within the first chart
    for place, chart in enumerate(charts):
        row, column = divmod(place, columns)
        left = column * _WIDTH + _LEFT
        bottom = height - _LINE * bool(title) - row * cell - tops[place] - chart.inches
        box = left / width, bottom / height, (_WIDTH - _LEFT - _BARE) / width, chart.inches / height
        axes = figure.add_axes(box)
        pad, x = 72 * above[place], _ABOVE["bbox_to_anchor"][0]
        axes.set_title("\n".join(titles[place]), loc="left", fontsize=12, color=INK, pad=pad, x=x)
        _draw(chart, axes)
    return figure


def _legend_inches(chart: Chart) -> float:
    """Return about how high the legend of a chart is: a line with its last value below each name."""
    entries = [_wrapped(name).count("\n") + 1 + (name in chart.lines) for name in (*chart.bands, *chart.lines)]
    return 0.15 + max(sum(0.15 * float(one) + 0.07 for one in column) for column in np.array_split(entries, _COLUMNS))


def _draw(chart: Chart, axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=10)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    marker = "o" if len(chart.x) <= _FEW else ""
    for label, bounds in chart.bands.items():
        axes.fill_between(chart.x, *bounds, color=GREY, alpha=0.22, linewidth=0, label=_wrapped(label))
        for bound in bounds:
            axes.plot(chart.x, bound, color=GREY, linewidth=0.6, marker=marker, markersize=3)
    for number, (label, end) in enumerate(chart.ends.items()):
        place = [*chart.colours].index(label) if label in chart.colours else number
        axes.plot(
            chart.x,
            chart.lines[label],
            color=chart.colours.get(label, f"C{number}"),
            linestyle=_DASHES[place % 3] if place else "-",
            linewidth=2.2 if number == 0 else 1.5,
            zorder=3 if number == 0 else 2,
            marker=marker,
            markersize=3,
            label=f"{_wrapped(label)}\n{end}",
        )
    if chart.is_log:
        axes.set_yscale("log")
    elif chart.has_zero:
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    axes.yaxis.set_major_formatter("{x:,.10g}")
    kind = chart.x.dtype.kind
    is_few = kind == "i" and len(chart.x) <= _TICKS
    numbers = FixedLocator(chart.x.tolist()) if is_few else MaxNLocator("auto", integer=kind == "i")
    ticks = AutoDateLocator(minticks=3, maxticks=_TICKS) if kind == "M" else numbers
    axes.xaxis.set_major_locator(ticks)
    axes.set_xlabel(textwrap.fill(chart.note, _NOTE_CHARS), fontsize=9, style="italic", loc="left", color=INK)
    if chart.lines or chart.bands:
        axes.legend(frameon=False, **_ABOVE)


def _wrapped(label: str) -> str:
    return textwrap.fill(printable(label), _LEGEND_CHARS)


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


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with new_file(path) as file:
        figure.savefig(file, format="png", facecolor="white")
