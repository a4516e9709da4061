"""The pictures of a report: what is drawn, in which units, and what a reader who cannot see it is told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from training.evaluation.page import axes as chart_axes
from training.evaluation.page import svg as svg_charts
from training.evaluation.page.axes import Tick, number
from training.evaluation.page.contents import (
    CostSensitivity,
    EquityCurves,
    Estimate,
    FitnessHistory,
    FloatArray,
    ReportContents,
    Trade,
    TradedStock,
)
from training.evaluation.page.svg import Band, Frame, Line, Mark, Segment

EXIT_WORDS = {
    "target": "target reached",
    "time": "longest holding time",
    "end": "end of the episode",
    "lost": "stopped trading",
}


def forest_of(contents: ReportContents) -> list[tuple[str, Estimate, Markup]]:
    """The champion's differences as rows of text and picture."""
    differences = contents.verdict.differences
    parts = [part for row in differences for part in row.difference if part is not None]
    scale = chart_axes.scale_of([np.array(parts, dtype=np.float64)], include=(0.0,))
    return [
        (row.against, row.difference, svg_charts.interval_bar(*_ordered(row.difference), scale, _kind(row.difference)))
        for row in differences
    ]


def _ordered(estimate: Estimate) -> tuple[float | None, float | None, float | None]:
    return estimate.low, estimate.value, estimate.high


def _kind(estimate: Estimate) -> str:
    if estimate.low is not None and estimate.low > 0:
        return "gain"
    return "loss" if estimate.high is not None and estimate.high < 0 else "open"


def charts_of(contents: ReportContents) -> dict[str, Any]:
    """The pictures of the page by name; a part without contents has none."""
    equity, fitness, costs = contents.equity, contents.fitness, contents.costs
    made: dict[str, Any] = {"traded": [(stock, _traded_chart(stock)) for stock in contents.traded if len(stock.dates)]}
    if equity is not None:
        made |= {"equity": _equity_chart(equity), "drawdown": _drawdown_chart(equity)}
        made["thinned"] = max(map(len, equity.curves.values())) > chart_axes.MAX_POINTS
    if fitness is not None and len(fitness.generations):
        made["fitness"] = _fitness_chart(fitness, contents.facts.champion_generation)
    if len(contents.memory):
        made["memory"] = _memory_chart(contents)
    if costs is not None and len(costs.cost_bps):
        made["costs"] = _cost_chart(costs)
    return made


def _equity_chart(equity: EquityCurves) -> Markup:
    gains = {label: _gain_percent(curve) for label, curve in equity.curves.items()}
    bands = []
    if equity.random_band is not None:
        bands = [Band(equity.band_label, *(_gain_percent(edge) for edge in equity.random_band))]
    scale = chart_axes.scale_of([*gains.values(), *(edge for band in bands for edge in band[1:])], include=(0.0,))
    lines = _lines(gains, [_percent(values[-1]) for values in gains.values()])
    ends = ", ".join(f"{line.label} {line.end}" for line in lines)
    frame = _day_frame(equity, scale, f"Return since the first day in percent. At the end: {ends}.", 340)
    return svg_charts.chart(frame, lines, bands=bands, rules=_window_rules(equity))


def _drawdown_chart(equity: EquityCurves) -> Markup:
    falls = {label: _drawdown_percent(curve) for label, curve in equity.curves.items() if label not in equity.averaged}
    # Each policy keeps the style that it has among the curves of equity.
    lines = [
        Line(label, falls[label], style, _percent(np.nanmin(falls[label], initial=0.0)))
        for style, label in enumerate(equity.curves)
        if label in falls
    ]
    deepest = ", ".join(f"{line.label} {line.end}" for line in lines)
    scale = chart_axes.scale_of(falls.values(), include=(0.0,), ticks=4)
    frame = _day_frame(equity, scale, f"Fall below the earlier peak in percent. Deepest: {deepest}.", 220)
    return svg_charts.chart(frame, lines, rules=_window_rules(equity))


def _day_frame(equity: EquityCurves, scale: chart_axes.Scale, description: str, height: int) -> Frame:
    count = len(next(iter(equity.curves.values())))
    if equity.dates is None:
        ticks, labels = chart_axes.number_ticks(range(count)), [f"session {day}" for day in range(count)]
    else:
        ticks, labels = chart_axes.date_ticks(equity.dates), [str(day) for day in equity.dates.astype("datetime64[D]")]
    return Frame(chart_axes.even_shares(count), ticks, labels, scale, description, "%", 1, True, height)


def _window_rules(equity: EquityCurves) -> list[Tick]:
    last = max(len(next(iter(equity.curves.values()))) - 1, 1)
    return [
        Tick(start / last, f"window {index} begins")
        for index, start in enumerate(equity.window_starts, start=1)
        if 0 < start <= last
    ]


def _lines(series: Mapping[str, FloatArray], ends: Sequence[str]) -> list[Line]:
    rows = zip(series.items(), ends, strict=True)
    return [Line(label, values, style, end) for style, ((label, values), end) in enumerate(rows)]


def _gain_percent(equity: FloatArray) -> FloatArray:
    known = equity[np.isfinite(equity)]
    first = known[0] if known.size and known[0] > 0 else math.nan
    return np.asarray(100.0 * (equity / first - 1.0), dtype=np.float64)


def _drawdown_percent(equity: FloatArray) -> FloatArray:
    peak = np.fmax.accumulate(equity)
    return np.asarray(100.0 * (equity / np.where(peak > 0, peak, math.nan) - 1.0), dtype=np.float64)


def _percent(value: float) -> str:
    return number(float(value), 1, is_signed=True) + " %"


def _traded_chart(stock: TradedStock) -> Markup:
    trades = list(_placed(stock))
    levels = np.array([[trade.entry_price, trade.exit_price] for trade, _, _ in trades], dtype=np.float64)
    scale = chart_axes.scale_of([stock.close, levels])
    frame = Frame(
        chart_axes.even_shares(len(stock.dates)),
        chart_axes.date_ticks(stock.dates),
        [str(day) for day in stock.dates.astype("datetime64[D]")],
        scale,
        f"Closing price of {stock.ticker} with {len(trades)} trades; the table below lists them.",
        decimals=2,
        height=240,
    )
    price = Line("close", stock.close, svg_charts.STYLES - 1, number(float(stock.close[-1]), 2))
    segments = [
        Segment((start, trade.entry_price), (end, trade.exit_price), _outcome(trade)) for trade, start, end in trades
    ]
    marks = [mark for placed in trades for mark in _marks(*placed)]
    return svg_charts.chart(frame, [price], segments=segments, marks=marks)


def _placed(stock: TradedStock) -> Iterator[tuple[Trade, float, float]]:
    """The trades within the chart's days, with the shares of their entry and exit along it."""
    shares, days = chart_axes.even_shares(len(stock.dates)), stock.dates.astype("datetime64[D]")
    for trade in stock.trades:
        ends = np.array([trade.entry_day, trade.exit_day], dtype="datetime64[D]")
        if days[0] <= ends[0] and ends[1] <= days[-1]:
            start, end = shares[np.searchsorted(days, ends)]
            yield trade, float(start), float(end)


def _marks(trade: Trade, start: float, end: float) -> tuple[Mark, Mark]:
    bought = f"bought {trade.entry_day} at {number(trade.entry_price, 2)}, target {number(trade.target_price, 2)}"
    sold = f"sold {trade.exit_day} at {number(trade.exit_price, 2)}: {EXIT_WORDS[trade.reason]}"
    title = f"{bought}; {sold}; {_percent(trade.return_percent)}"
    return (
        Mark(start, trade.entry_price, "mark-entry", "entry", title),
        Mark(end, trade.exit_price, f"mark-{trade.reason}", _outcome(trade), title),
    )


def _outcome(trade: Trade) -> str:
    return "gain" if trade.return_percent > 0 else "loss"


def _fitness_chart(fitness: FitnessHistory, champion_generation: int | None) -> Markup:
    series = {"population mean": fitness.mean, "validation result": fitness.validation}
    band = Band("population, lowest to highest", fitness.lowest, fitness.highest)
    lines = _lines(series, [_percent(_last(values)) for values in series.values()])
    shares = chart_axes.even_shares(len(fitness.generations))
    chosen = [
        Tick(float(share), f"champion: generation {generation}")
        for share, generation in zip(shares, fitness.generations, strict=True)
        if generation == champion_generation
    ]
    ends = ", ".join(f"{line.label} {line.end}" for line in lines)
    frame = Frame(
        shares,
        chart_axes.number_ticks(fitness.generations),
        [f"generation {generation}" for generation in fitness.generations],
        chart_axes.scale_of([*series.values(), *band[1:]], include=(0.0,)),
        f"Fitness of the population in percent by generation. Last: {ends}.",
        unit="%",
        is_signed=True,
        height=280,
    )
    return svg_charts.chart(frame, lines, bands=[band], rules=chosen)


def _last(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if known.size else math.nan


def _memory_chart(contents: ReportContents) -> Markup:
    values = np.array([point[1:] for point in contents.memory], dtype=np.float64)
    unit, seconds = _time_unit(values[-1, 0])
    series = {"resident": values[:, 1], "unique": values[:, 2], "GPU": values[:, 3]}
    series = {label: sizes for label, sizes in series.items() if label != "GPU" or sizes.any()}
    lines = _lines(series, [f"{number(_last(sizes), 0)} MiB" for sizes in series.values()])
    span = max(float(values[-1, 0] - values[0, 0]), 1e-9)
    marks = np.unique(np.linspace(values[0, 0], values[-1, 0], 5))
    places = (values[:, 0] - values[0, 0]) / span
    frame = Frame(
        places,
        [Tick(float((mark - values[0, 0]) / span), f"{number(mark / seconds, 1)} {unit}") for mark in marks],
        [f"{point[0]}, {number(point[1] / seconds, 1)} {unit}" for point in contents.memory],
        chart_axes.scale_of(series.values(), include=(0.0,)),
        f"Memory of the process in MiB over time. Peak {number(float(np.nanmax(values[:, 1])), 0)} MiB.",
        unit=" MiB",
        decimals=0,
        height=240,
    )
    return svg_charts.chart(frame, lines)


def _time_unit(seconds: float) -> tuple[str, float]:
    return ("s", 1.0) if seconds < 120 else ("min", 60.0) if seconds < 7200 else ("h", 3600.0)


def _cost_chart(costs: CostSensitivity) -> Markup:
    series = {
        policy: np.array([math.nan if cell.value is None else cell.value for cell in cells], dtype=np.float64)
        for policy, cells in costs.returns.items()
    }
    champion = next(iter(costs.returns.values()), [])
    bounds = [[math.nan if b is None else b for b in (cell.low, cell.high)] for cell in champion]
    low, high = np.array(bounds, dtype=np.float64).reshape(-1, 2).T
    span = max(costs.cost_bps) - min(costs.cost_bps) or 1.0
    shares = (np.array(costs.cost_bps, dtype=np.float64) - min(costs.cost_bps)) / span
    lines = _lines(series, [_percent(values[-1]) for values in series.values()])
    rules = []
    if costs.charged_bps is not None and min(costs.cost_bps) <= costs.charged_bps <= max(costs.cost_bps):
        rules = [Tick((costs.charged_bps - min(costs.cost_bps)) / span, "charged in this report")]
    names = [f"{number(cost, 0)} bp" for cost in costs.cost_bps]
    frame = Frame(
        shares,
        [Tick(float(share), name) for share, name in zip(shares, names, strict=True)],
        [f"{name} a leg" for name in names],
        chart_axes.scale_of([*series.values(), low, high], include=(0.0,)),
        "Return in percent by cost a leg; the table below holds the numbers.",
        unit="%",
        is_signed=True,
        height=240,
    )
    band = [Band("champion, 95% interval", low, high)] if np.isfinite(low).any() else []
    return svg_charts.chart(frame, lines, bands=band, rules=rules)
