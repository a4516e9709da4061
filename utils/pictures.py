"""Charts drawn by matplotlib: as PNG files, and as SVG in a page's colours."""

from __future__ import annotations

import re
import textwrap
import warnings
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.charts import MINUS, Chart, last_known
from utils.runs.durable import new_file
from utils.tables import printable

# Okabe & Ito (2008): distinct for any colour vision.
BLUE, ORANGE, VERMILION, GREEN = "#0072B2", "#E69F00", "#D55E00", "#009E73"
GREY, INK, GRID = "#8A8A8A", "#333333", "#E6E6E6"
_COLOURS = (
    "#0060a8 #c24a00 #007a5a #96509e #8a6500 #2f83b3 #a3355c #67717d "
    "#7a9b00 #d35985 #9b7ade #bc8537 #4e9b85 #6464c8 #a67a85 #43850b"
)
STYLES = tuple(
    (colour, ":" if place == 2 else "-" if place % 2 or place == 0 else "--")
    for place, colour in enumerate(_COLOURS.split())
)
"""Colour and dashes by style, as on the page in its light theme; no two lines of a chart share one."""
_SYMBOLS = {"entry": "^", "target": "o", "stop": "v", "time": "s", "end": "D", "lost": "x"}
_KINDS = {"open": ("white", INK), "gain": ("#0060a8", "#0060a8"), "loss": ("#b84500", "#b84500")}
"""Fill and edge of marks."""
_PAGE_COLOURS = {colour: f"s{style}" for style, (colour, _) in enumerate(STYLES)} | {
    GREY.lower(): "muted",
    INK: "ink",
    GRID.lower(): "grid",
    "#b84500": "loss",
    "#ffffff": "paper",
}
"""Names of the variables in the page's style sheet, by the colours of the light theme that they replace."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 60, 220, 12, 26
"""Of a chart on a page and its margins, in pixels of its scale."""
_FEW = 30
"""Positions up to which each is drawn as a dot."""
_TEXT, _LABEL_GAP, _LABEL_CHARS = 12, 16, 28
_NOISE = re.compile(
    r'(?<=^<g) id="[^"]*"| transform="rotate\(-?0 [^"]*"|xlink:(?=href)| font-(?:size|family): [^;]*;'
    r"|(?<=\.\d\d)\d+|\n"
)
"""What a tag of SVG within a page does not need or must not repeat: identifiers of groups, fonts, further digits."""


def draw_charts(charts: Sequence[Chart], path: Path, note: str | None = None, title: str | None = None) -> None:
    """Write charts as PNG, two per row, with a title above them all and a note about the run below."""
    columns = min(len(charts), 2)
    rows = -(-len(charts) // columns)
    with rc_context({"text.parse_math": False}):
        figure = new_figure(9 * columns**0.5, 4.8 * rows, title, note)
        for place, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(rows, columns, place)
            _prepare(axes, chart.title, 13)
            _draw(chart, axes)
            axes.set_xlabel(textwrap.fill(chart.note, 95), fontsize=9, style="italic", loc="left", color=INK)
            handles, labels = _legend(axes)
            axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelspacing=0.8)
        save_figure(figure, path)


def draw_svg(chart: Chart) -> str:
    """Return the contents of an SVG element of 1000 times `chart.height` pixels, in the colours of the page around it.

    Text is text. There are no inline styles, which a page's policy forbids. Equal charts give equal contents.
    """
    figure = Figure(figsize=(_WIDTH / 72, chart.height / 72), dpi=72)
    edges = np.array([_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, chart.height - _TOP - _BOTTOM])
    # Identifiers differ between the charts of a page.
    salt = ascii((chart.title, chart.description, [line.end for line in chart.lines]))
    rc: Any = {"svg.fonttype": "none", "svg.hashsalt": salt, "text.parse_math": False}
    file = StringIO()
    with rc_context(rc), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser may have it
        axes = figure.add_axes(tuple(edges / np.tile((_WIDTH, chart.height), 2)))
        _prepare(axes, "", _TEXT)
        _draw(chart, axes)
        axes.margins(x=0)
        _name_ends(chart, axes)
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    contents = re.search(r"<svg.*?</style>\s*</defs>(.*)</svg>", file.getvalue(), re.DOTALL)
    assert contents is not None
    return re.sub(r"<[^>]*>\s*", _tag, contents[1])  # text has no such characters: they are escaped


def _tag(found: re.Match[str]) -> str:
    """Return a tag as a page can hold it."""
    return re.sub(r' style="([^"]*)"', _attributes, _NOISE.sub("", found[0].rstrip()))


def _attributes(style: re.Match[str]) -> str:
    """Return an inline style as attributes, with the page's variables for colours."""
    pairs = (part.split(": ") for part in style[1].split("; "))
    return "".join(
        f' {name}="{f"var(--{_PAGE_COLOURS[value]})" if value in _PAGE_COLOURS else value}"' for name, value in pairs
    )


def _draw(chart: Chart, axes: Axes) -> None:
    """Draw a chart without its title and note."""
    is_few = len(chart.x) <= _FEW
    for band in chart.bands:
        axes.fill_between(chart.x, band.low, band.high, color=GREY, alpha=0.22, linewidth=0, label=band.label)
        for bound in (band.low, band.high):
            axes.plot(chart.x, bound, color=GREY, linewidth=0.6, marker="o" if is_few else "", markersize=3)
    for line in chart.lines:
        known = np.pad(np.isfinite(line.values), 1)
        # A point without neighbours has no line that would show it.
        dots = np.flatnonzero(known[1:-1] & (is_few | ~known[:-2] & ~known[2:]))
        (colour, dashes), (width, layer) = STYLES[line.style], (2.2, 3) if line.style == 0 else (1.5, 2)
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": layer}
        style |= {"marker": "o", "markersize": 3, "markevery": dots.tolist()} if dots.size else {}
        axes.plot(chart.x, line.values, label=f"{line.label}\n{line.end}", **style)
    if chart.dots is not None:
        axes.plot(chart.x, chart.dots, "o", color=STYLES[0][0], markersize=5, clip_on=False)
    for start, end in chart.segments:
        axes.plot([start.x, end.x], [start.value, end.value], color=_KINDS[end.kind][1], linewidth=2, zorder=3)
    for mark in (*chart.marks, *(mark for pair in chart.segments for mark in pair)):
        fill, edge = _KINDS[mark.kind]
        symbol: dict[str, Any] = {"marker": _SYMBOLS[mark.symbol], "markerfacecolor": fill, "markeredgecolor": edge}
        axes.plot(mark.x, mark.value, markersize=6, zorder=4, **symbol)
        if mark.text:
            label: dict[str, Any] = {"ha": "right" if mark.x > chart.x[len(chart.x) // 2] else "left", "color": INK}
            axes.annotate(mark.text, (mark.x, mark.value), (0, 8), textcoords="offset points", fontsize=10, **label)
    for place in chart.verticals:
        axes.axvline(place, color=GREY, linestyle=":", linewidth=0.9)
    if chart.has_zero:
        axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    steps = [1, 2, 5, 10]
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=steps))
    axes.yaxis.set_major_formatter(lambda value, _: _tick(value))
    if chart.x.dtype.kind == "M":
        axes.xaxis.set_major_locator(AutoDateLocator(maxticks=9))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(10, steps=steps, integer=chart.x.dtype.kind == "i"))
        axes.xaxis.set_major_formatter(lambda value, _: _tick(value) + chart.x_unit)


def _tick(value: float) -> str:
    return f"{value:,.10g}".replace("-", MINUS)


def _name_ends(chart: Chart, axes: Axes) -> None:
    """Write the name of each line beside its end, apart from the other names."""
    low, high = axes.get_ylim()
    shares = ((last_known(line.values) - low) / (high - low) for line in chart.lines)
    ends = sorted((share, place) for place, share in enumerate(shares) if np.isfinite(share))
    gap = _LABEL_GAP / (chart.height - _TOP - _BOTTOM)
    for (end, index), height in zip(ends, spread([end for end, _ in ends], gap), strict=True):
        line = chart.lines[index]
        name = printable(line.label)
        room = _LABEL_CHARS - len(line.end)
        name = name if len(name) <= room else name[: room - 1] + "…"
        leader = {"arrowstyle": "-", "color": STYLES[line.style][0], "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        text: dict[str, Any] = {"va": "center", "color": INK, "fontsize": _TEXT, "arrowprops": leader}
        axes.annotate(f"{name} {line.end}", (1, end), (1.03, height), "axes fraction", **text)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return ascending places near the ascending wanted ones, at least `gap` apart, from 0 to 1 if they fit."""
    placed: list[float] = []
    for place in wanted:
        placed.append(max(place, placed[-1] + gap if placed else 0.0))
    ceiling = max(1.0, gap * (len(placed) - 1))
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


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
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG."""
    with new_file(path) as file:
        figure.savefig(file, format="png", facecolor="white")


def _legend(axes: Axes) -> tuple[list[Any], list[str]]:
    """Return the handles of a legend and their labels, the long ones wrapped."""
    handles, labels = axes.get_legend_handles_labels()
    return handles, ["\n".join(textwrap.fill(line, 22) for line in label.splitlines()) for label in labels]
