"""Charts as inline SVG that keep their text size at any width.

Heights are pixels; along x only the paths are stretched (a nested viewBox with non-scaling strokes), while text and
marks sit at percentages of the width. Colours and dashes come from the page's CSS classes: `s0` to `s7` for series,
`gain` and `loss` for trades. Everything is escaped by markupsafe, so labels may hold any text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from training.evaluation.page.axes import FloatArray, Scale, Tick, even_shares, number, spread, thin, tick_decimals

STYLES = 8
_TOP, _BOTTOM, _WIDTH = 12, 26, 1000
_LABEL_GAP, _LABEL_CHARS = 17, 24
_EDGE = 0.06


class Line(NamedTuple):
    """A series, one value a position of its frame; NaN leaves a gap."""

    label: str
    values: FloatArray
    style: int
    end: str
    """What is written after the label, usually the last value."""


class Band(NamedTuple):
    """A range of values, shaded."""

    label: str
    low: FloatArray
    high: FloatArray


class Mark(NamedTuple):
    """A symbol of the page at a share of the width and a value."""

    share: float
    value: float
    symbol: str
    kind: str
    title: str


class Segment(NamedTuple):
    """A straight line between two points (share, value)."""

    start: tuple[float, float]
    end: tuple[float, float]
    kind: str


@dataclass(frozen=True)
class Frame:
    """What the series of a chart share."""

    shares: FloatArray
    """(T,) ascending, 0 to 1: where each value is along x."""
    ticks: Sequence[Tick]
    labels: Sequence[str]
    """(T,) names of the positions, for the readout."""
    scale: Scale
    description: str
    """What a reader who cannot see the chart is told."""
    unit: str = ""
    decimals: int = 1
    is_signed: bool = False
    height: int = 300

    def y(self, value: float) -> float:
        """Pixels from the top."""
        span = self.scale.high - self.scale.low
        return _TOP + (self.scale.high - value) / span * (self.height - _TOP - _BOTTOM)


def chart(
    frame: Frame,
    lines: Sequence[Line],
    *,
    bands: Sequence[Band] = (),
    rules: Sequence[Tick] = (),
    segments: Sequence[Segment] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Lines over a shared frame with a legend, end labels and a readout; `rules` are labelled vertical lines."""
    return Markup(
        '<div class="legend-box"><ul class="legend">{}</ul></div><div class="frame">{}<div class="plot" {}>'
        '{}<div class="readout" hidden></div></div>{}</div>'
    ).format(
        _join(_legend_item(line) for line in lines) + _join(_band_item(band) for band in bands),
        _y_axis(frame),
        _readout_data(frame),
        _area(frame, lines, bands, rules, segments, marks),
        _end_labels(frame, lines),
    )


def interval_bar(low: float | None, value: float | None, high: float | None, scale: Scale, kind: str) -> Markup:
    """One row of a forest plot: an interval, its estimate and the line of no effect."""
    known = [part for part in (low, value, high) if part is not None and math.isfinite(part)]
    if len(known) < 3:
        return Markup("")
    start, middle, end, zero = (f"{100 * (part - scale.low) / (scale.high - scale.low):.2f}%" for part in (*known, 0.0))
    return Markup(
        '<svg class="forest {}" height="22" aria-hidden="true"><line class="zero" x1="{}" x2="{}" y1="0" y2="22"/>'
        '<line class="span" x1="{}" x2="{}" y1="11" y2="11"/><circle cx="{}" cy="11" r="4.5"/></svg>'
    ).format(kind, zero, zero, start, end, middle)


def _area(
    frame: Frame,
    lines: Sequence[Line],
    bands: Sequence[Band],
    rules: Sequence[Tick],
    segments: Sequence[Segment],
    marks: Sequence[Mark],
) -> Markup:
    stretched = _join(_band_path(frame, band) for band in bands)
    stretched += _join(_segment(frame, segment) for segment in segments)
    # The first series is what the chart is about: it is drawn over the others.
    stretched += _join(_line_path(frame, line) for line in reversed(lines))
    floor = frame.height - _BOTTOM
    return Markup(
        '<svg class="area" height="{}" role="img" aria-label="{}" tabindex="0">{}{}'
        '<svg width="100%" height="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>{}{}'
        '<line class="hair" x1="0" x2="0" y1="{}" y2="{}" visibility="hidden"/></svg>'
    ).format(
        frame.height,
        frame.description,
        _grid(frame),
        _join(_rule(frame, rule) for rule in rules),
        frame.height,
        _WIDTH,
        frame.height,
        stretched,
        _join(_mark(frame, mark) for mark in marks),
        _join(_x_label(frame, tick, index % 2 == 1) for index, tick in enumerate(frame.ticks)),
        _TOP,
        floor,
    )


def _line_path(frame: Frame, line: Line) -> Markup:
    places = thin(line.values)
    points = zip(frame.shares[places], line.values[places], strict=True)
    drawn, run = [], 0
    for share, value in points:
        if not math.isfinite(value):
            run = 0
            continue
        drawn.append(f"{'L' if run else 'M'}{_WIDTH * share:.1f},{frame.y(value):.2f}")
        run += 1
    # A lone point has no length; a stroke of length zero with a round cap shows it.
    path = "".join(drawn) + ("h0" if run == 1 else "")
    return Markup('<path class="line s{}" data-label="{}" d="{}"/>').format(line.style % STYLES, line.label, path)


def _band_path(frame: Frame, band: Band) -> Markup:
    known = np.flatnonzero(np.isfinite(band.low) & np.isfinite(band.high))
    low, high = (values[known] for values in (band.low, band.high))
    upper = [(frame.shares[known[place]], high[place]) for place in thin(high)]
    lower = [(frame.shares[known[place]], low[place]) for place in thin(low)[::-1]]
    points = " ".join(f"{_WIDTH * share:.1f},{frame.y(value):.2f}" for share, value in (*upper, *lower))
    return Markup('<polygon class="band" points="{}"/>').format(points)


def _segment(frame: Frame, segment: Segment) -> Markup:
    (x1, y1), (x2, y2) = segment.start, segment.end
    return Markup('<line class="segment {}" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(
        segment.kind, f"{_WIDTH * x1:.2f}", f"{_WIDTH * x2:.2f}", f"{frame.y(y1):.2f}", f"{frame.y(y2):.2f}"
    )


def _mark(frame: Frame, mark: Mark) -> Markup:
    return Markup('<g class="mark {}"><title>{}</title><use href="#{}" x="{}%" y="{}"/></g>').format(
        mark.kind, mark.title, mark.symbol, f"{100 * mark.share:.2f}", f"{frame.y(mark.value):.1f}"
    )


def _grid(frame: Frame) -> Markup:
    row = Markup('<line class="{}" x1="0" x2="100%" y1="{}" y2="{}"/>')
    heights = [(value, f"{frame.y(value):.1f}") for value in frame.scale.ticks]
    return _join(row.format("grid zero" if abs(value) < 1e-12 else "grid", y, y) for value, y in heights)


def _rule(frame: Frame, rule: Tick) -> Markup:
    x = f"{100 * rule.share:.2f}%"
    return Markup('<g class="rule"><title>{}</title><line x1="{}" x2="{}" y1="{}" y2="{}"/></g>').format(
        rule.label, x, x, _TOP, frame.height - _BOTTOM
    )


def _x_label(frame: Frame, tick: Tick, is_spare: bool) -> Markup:
    anchor = "start" if tick.share < _EDGE else "end" if tick.share > 1 - _EDGE else "middle"
    return Markup('<text class="x {}" x="{}%" y="{}" text-anchor="{}">{}</text>').format(
        "spare" if is_spare else "", f"{100 * tick.share:.2f}", frame.height - 6, anchor, tick.label
    )


def _y_axis(frame: Frame) -> Markup:
    decimals = tick_decimals(frame.scale)
    row = Markup('<text x="100%" dx="-8" y="{}" dy="0.32em" text-anchor="end">{}</text>')
    return Markup('<svg class="y" height="{}" aria-hidden="true">{}</svg>').format(
        frame.height, _join(row.format(f"{frame.y(v):.1f}", number(v, decimals)) for v in frame.scale.ticks)
    )


def _end_labels(frame: Frame, lines: Sequence[Line]) -> Markup:
    """Labels at the right end of the lines, moved apart, each with a leader in the line's own style."""
    ends = [(line, values[-1]) for line in lines if (values := line.values[np.isfinite(line.values)]).size]
    ends.sort(key=lambda pair: frame.y(pair[1]))
    wanted = [frame.y(value) for _, value in ends]
    rows = zip(ends, wanted, spread(wanted, _LABEL_GAP, _TOP, frame.height - _BOTTOM), strict=True)
    label = Markup(
        '<g><title>{}</title><path class="line s{}" d="M0,{}L14,{}"/><text x="20" y="{}" dy="0.32em">{}'
        '<tspan class="value" dx="6">{}</tspan></text></g>'
    )
    return Markup('<svg class="ends" height="{}" aria-hidden="true">{}</svg>').format(
        frame.height,
        _join(
            label.format(line.label, line.style % STYLES, f"{y:.1f}", f"{at:.1f}", f"{at:.1f}", _cut(line), line.end)
            for (line, _), y, at in rows
        ),
    )


def _cut(line: Line) -> str:
    room = _LABEL_CHARS - len(line.end)
    return line.label if len(line.label) <= room else line.label[: max(room - 1, 1)] + "…"


def _legend_item(line: Line) -> Markup:
    return Markup('<li>{}{} <b class="value">{}</b></li>').format(swatch(line.style), line.label, line.end)


def _band_item(band: Band) -> Markup:
    box = Markup('<svg class="swatch" width="24" height="12" aria-hidden="true"><rect class="band" {}/></svg>')
    return Markup('<li class="always">{}{}</li>').format(box.format(Markup('width="24" height="12"')), band.label)


def swatch(style: int) -> Markup:
    """A short piece of a series' line."""
    return Markup(
        '<svg class="swatch" width="24" height="12" aria-hidden="true"><path class="line s{}" d="M1,6L23,6"/></svg>'
    ).format(style % STYLES)


def _readout_data(frame: Frame) -> Markup:
    floor = frame.height - _BOTTOM
    places = " ".join(f"{share:.5f}" for share in frame.shares)
    even = np.allclose(frame.shares, even_shares(len(frame.shares)))
    return Markup(
        'data-labels="{}" data-shares="{}" data-low="{}" data-high="{}" data-top="{}" data-floor="{}" '
        'data-unit="{}" data-decimals="{}" data-signed="{}"'
    ).format(
        "\n".join(label.replace("\n", " ") for label in frame.labels),
        "" if even else places,
        repr(frame.scale.low),
        repr(frame.scale.high),
        _TOP,
        floor,
        frame.unit,
        frame.decimals,
        int(frame.is_signed),
    )


def _join(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)
