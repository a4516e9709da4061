"""The charts of runs side by side: one line a run, the first one drawn boldly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from training.evaluation.tracks import CHAMPION, EQUAL
from training.report.reported import ReportedRun
from utils.charts import (
    Chart,
    FloatArray,
    Line,
    date_ticks,
    even_shares,
    last_known,
    number_ticks,
    percent,
)
from utils.pictures import STYLES


def equity_chart(runs: Sequence[ReportedRun], with_equal_weight: bool) -> Chart | None:
    """Draw the champions' returns on their validation days; None where no run tells them.

    Runs that were judged on other days than others are drawn by sessions since their own first day.

    Args:
        with_equal_weight: the runs share days, data and rules, so that equal weight is the same for all of them.
    """
    judged = {run.name: run.validation for run in runs if run.validation is not None and len(run.validation.dates)}
    if not judged:
        return None
    first = next(iter(judged.values()))
    has_same_days = all(np.array_equal(first.dates, other.dates) for other in judged.values())
    count = max(len(one.dates) for one in judged.values())
    series = [(name, _gain_percent(one.curves[CHAMPION], count)) for name, one in judged.items()]
    if with_equal_weight:
        series.append((EQUAL, _gain_percent(first.curves[EQUAL], count)))
    missing = [run.name for run in runs if run.name not in judged]
    lines = _lines(series)
    return Chart(
        title="Return of the champions on validation days, %",
        note="After costs."
        + ("" if has_same_days else " The days differ: sessions since each run's own first day.")
        + (f" Not known, until it is evaluated: {', '.join(missing)}." if missing else ""),
        description=f"Return since each run's first validation day in percent. At the end: {_ends(lines)}.",
        shares=even_shares(count),
        ticks=date_ticks(first.dates) if has_same_days else number_ticks(range(count)),
        labels=[str(day) for day in first.dates] if has_same_days else [f"session {place}" for place in range(count)],
        lines=lines,
        unit="%",
        is_signed=True,
        height=340,
    )


def _gain_percent(equity: FloatArray, count: int) -> FloatArray:
    """Return (count,) gains, NaN after the end."""
    gains = np.full(count, np.nan)
    gains[: len(equity)] = 100.0 * (equity / equity[0] - 1.0)
    return gains


def learning_charts(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Draw the mean fitness and the champions' validation results by generation; nothing where no run has a record."""
    count = max((record["generation"] for run in runs for record in run.records), default=0)
    if not count:
        return []
    fitness = _chart(runs, count, "fitness", "mean", "Mean fitness of the population by generation, %")
    validation = _chart(runs, count, "validation", "champion", "Validation result of the champion by generation, %")
    return [fitness, validation]


def _chart(runs: Sequence[ReportedRun], count: int, group: str, name: str, title: str) -> Chart:
    series = [(run.name, np.full(count, np.nan)) for run in runs]
    for run, (_, values) in zip(runs, series, strict=True):
        for record in run.records:
            value = record[group][name]
            values[record["generation"] - 1] = np.nan if value is None else value
    lines = _lines(series)
    generations = range(1, count + 1)
    on = "training days, by what was expected of orders out of fold" if group == "fitness" else "validation windows"
    return Chart(
        title=title,
        note=f"Percent of the initial capital an episode, on {on}.",
        description=f"{title} of each run. Last: {_ends(lines)}.",
        shares=even_shares(count),
        ticks=number_ticks(generations),
        labels=[f"generation {generation}" for generation in generations],
        lines=lines,
        unit="%",
        is_signed=True,
        height=280,
    )


def _lines(series: Sequence[tuple[str, FloatArray]]) -> list[Line]:
    """Return a line for each series; of more series than there are styles, those after the first share them."""
    return [
        Line(
            name,
            values,
            place if place < len(STYLES) else 1 + (place - 1) % (len(STYLES) - 1),
            percent(last_known(values)),
        )
        for place, (name, values) in enumerate(series)
    ]


def _ends(lines: Sequence[Line]) -> str:
    return ", ".join(f"{line.label} {line.end}" for line in lines)
