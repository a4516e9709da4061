"""Charts drawn by matplotlib: as PNG files, and as SVG in a page's colours."""

import re
import textwrap
import warnings
from collections.abc import Sequence
from io import StringIO
from itertools import cycle, islice
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
"""Colour and dashes by style, as on the page in its light theme; a chart of more lines begins again."""
_GAIN, _LOSS = "#0060a8", "#b84500"
_PAGE_COLOURS = {colour: f"s{style}" for style, (colour, _) in enumerate(STYLES)} | {
    GREY.lower(): "muted",
    INK: "ink",
    GRID.lower(): "grid",
    _LOSS: "loss",
    "#ffffff": "paper",
}
"""Names of the variables in the page's style sheet, by the colours of the light theme that they replace."""
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 60, 220, 12, 26
"""Of a chart on a page and its margins, in pixels of its scale."""
_FEW = 30
"""Positions up to which each is drawn as a dot."""
_TEXT, _LABEL_GAP, _LABEL_CHARS, _LEGEND_CHARS = 12, 16, 28, 22
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
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, labelspacing=0.8)
        save_figure(figure, path)


def draw_svg(chart: Chart) -> str:
    """Return the contents of an SVG element of 1000 times `chart.height` pixels, in the colours of the page around it.

    Text is text. There are no inline styles, which a page's policy forbids. Equal charts give equal contents.
    """
    figure = Figure(figsize=(_WIDTH / 72, chart.height / 72), dpi=72)
    edges = np.array([_LEFT, _BOTTOM, _WIDTH - _LEFT - _RIGHT, chart.height - _TOP - _BOTTOM])
    # Identifiers differ between the charts of a page.
    salt = ascii((chart.title, chart.description))
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
    for label, bounds in chart.bands.items():
        label = textwrap.fill(label, _LEGEND_CHARS)
        axes.fill_between(chart.x, *bounds, color=GREY, alpha=0.22, linewidth=0, label=label)
        for bound in bounds:
            axes.plot(chart.x, bound, color=GREY, linewidth=0.6, marker="o" if is_few else "", markersize=3)
    for number, (label, end) in enumerate(chart.ends.items(), start=chart.first_style):
        known = np.pad(np.isfinite(chart.lines[label]), 1)
        # A point without neighbours has no line that would show it.
        dots = np.flatnonzero(known[1:-1] & (is_few | ~known[:-2] & ~known[2:]))
        (colour, dashes), (width, layer) = STYLES[number % len(STYLES)], (2.2, 3) if number == 0 else (1.5, 2)
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "linewidth": width, "zorder": layer}
        style |= {"marker": "o", "markersize": 3, "markevery": dots.tolist()} if dots.size else {}
        axes.plot(chart.x, chart.lines[label], label=f"{textwrap.fill(label, _LEGEND_CHARS)}\n{end}", **style)
    if chart.dots is not None:
        axes.plot(chart.x, chart.dots, "o", color=STYLES[0][0], markersize=5, clip_on=False)
    for trade in chart.trades:
        colour = _GAIN if trade.is_gain else _LOSS
        axes.plot(trade.x, trade.prices, color=colour, linewidth=2, zorder=3)
        for x, price, marker, fill, edge in zip(
            trade.x, trade.prices, ("^", trade.marker), ("white", colour), (INK, colour), strict=True
        ):
            axes.plot(x, price, marker, markerfacecolor=fill, markeredgecolor=edge, markersize=6, zorder=4)
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
    heights = [(last_known(values) - low) / (high - low) for values in chart.lines.values()]
    named = zip(heights, chart.ends.items(), islice(cycle(STYLES), chart.first_style, None), strict=False)
    known = sorted((one for one in named if np.isfinite(one[0])), key=lambda one: one[0])
    places = spread([height for height, _, _ in known], _LABEL_GAP / (chart.height - _TOP - _BOTTOM))
    for (height, (label, end), (colour, _)), place in zip(known, places, strict=True):
        name, room = printable(label), _LABEL_CHARS - len(end)
        name = name if len(name) <= room else name[: room - 1] + "…"
        leader = {"arrowstyle": "-", "color": colour, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 0}
        text: dict[str, Any] = {"va": "center", "color": INK, "fontsize": _TEXT, "arrowprops": leader}
        axes.annotate(f"{name} {end}", (1, height), (1.03, place), "axes fraction", **text)


def spread(wanted: Sequence[float], gap: float) -> list[float]:
    """Return ascending places near the ascending wanted ones, at least `gap` apart, from 0 to 1 if they fit."""
    steps = gap * np.arange(len(wanted))
    pushed_up = np.maximum.accumulate(np.maximum(wanted, 0.0) - steps)
    return list(np.minimum(pushed_up, max(0.0, 1.0 - steps.max(initial=0.0))) + steps)


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
