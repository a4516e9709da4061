"""The page and the short table of a sweep: what was tried, which settings matter, and how far the best is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from training.evaluation.page.svg import WIDTH
from training.evaluation.page.write import document, shown_settings
from training.sweep.outcome import STATES, Outcome, Tried
from training.sweep.space import Dimension
from utils.charts import Chart, Line, Marker, even_shares, number, number_ticks, percent
from utils.config.settings import to_dict
from utils.tables import table

LISTED = 10
"""Trials of the table on the terminal."""
HEIGHT, _TOP, _BOTTOM = 320, 56, 12
"""Pixels of the parallel coordinates, and of the room above and below the axes."""
_MARGIN = 0.05
"""Share of the width beside the first and the last axis."""
_GOOD, _OTHER = 5, 7
"""Styles of the best quarter of the trials and of the others."""


def short_table(outcome: Outcome) -> str:
    """Return the best trials, and what is known of the choice among all, as text."""
    rows = [
        {
            "trial": one.number,
            "median %": one.value,
            "by seed %": " ".join(f"{profit:+.2f}" for profit in one.profits),
            **{name.rpartition(".")[2]: _word(value) for name, value in one.settings.items()},
        }
        for one in ranked(outcome)[:LISTED]
    ]
    return f"{table(rows, list(rows[0]))}\n\n" + "\n".join(luck(outcome))


def luck(outcome: Outcome) -> list[str]:
    """Return in words how far the best result may be the choice among trials."""
    overfit, deflated = outcome.overfitting_probability, outcome.deflated_sharpe
    return [
        f"trial {outcome.best.number} is the best of {len(outcome.tried)} on validation days, which flatters it",
        f"probability that this choice is overfit: {'unknown' if overfit is None else f'{overfit:.2f}'}",
        f"deflated Sharpe ratio over equal weight: {'unknown' if deflated is None else f'{deflated:.2f}'}",
        f"verdict on its median seed: {outcome.sentence}",
    ]


def ranked(outcome: Outcome) -> list[Tried]:
    """Return the trials that were trained on all seeds, the best first, then those given up, then those that failed."""
    order = [*STATES.values()]
    return sorted(
        outcome.tried, key=lambda one: (order.index(one.state), -one.value if one.profits else 0.0, one.number)
    )


def render(outcome: Outcome) -> str:
    """Return the page as HTML text."""
    return document(
        "sweep.html",
        f"{outcome.name}: sweep of {len(outcome.tried)} trials",
        folder=Path(__file__).parent,
        outcome=outcome,
        trials=ranked(outcome),
        counts={state: sum(one.state == state for one in outcome.tried) for state in ("given up", "failed")},
        first_seed=outcome.config.seed,
        history=history_chart(outcome),
        labels=labels(outcome),
        axes=axes(outcome),
        ways=ways(outcome),
        top=_y(1.0),
        floor=_y(0.0),
        height=HEIGHT,
        word=_word,
        settings=shown_settings(to_dict(outcome.best_config)),
    )


def history_chart(outcome: Outcome) -> Chart:
    """Draw the value of each trial in the order in which they were asked for, and the best so far."""
    values = np.array([one.value if one.state == "complete" else np.nan for one in outcome.tried])
    best = np.fmax.accumulate(values)
    shares, last = even_shares(len(values)), percent(float(best[-1]))
    marks = [
        Marker(
            float(share),
            one.value,
            "mark-target" if one.state == "complete" else "mark-lost",
            "gain" if one is outcome.best else "entry",
            f"trial {one.number}: {percent(one.value)}{'' if one.state == 'complete' else ', given up'}",
        )
        for share, one in zip(shares, outcome.tried, strict=True)
        if one.profits and one.state != "failed"
    ]
    return Chart(
        title="Profit of the trials on validation days, %",
        note="A circle is a trial's median over its seeds; a cross one that was given up before all of them.",
        description=f"Profit of each trial and the best so far, which ends at {last}.",
        shares=shares,
        ticks=number_ticks(range(len(values))),
        labels=[f"trial {one.number}" for one in outcome.tried],
        lines=[Line("best so far", best, 0, last)],
        marks=marks,
        unit="%",
        is_signed=True,
        has_zero=False,
        height=280,
    )


class Axis(NamedTuple):
    """An axis of the parallel coordinates."""

    label: str
    place: float
    """Share of the width."""
    ticks: list[tuple[float, str]]
    """Pixels from the top, and text."""


class Way(NamedTuple):
    """A trial's way across the axes."""

    title: str
    style: int
    path: str
    """Of an SVG path, in a width of `svg.WIDTH`."""


def labels(outcome: Outcome) -> list[str]:
    """Return the names of the settings that vary, without their concerns."""
    return [one.name.rpartition(".")[2].replace("_", " ") for one in outcome.plan.dimensions]


def axes(outcome: Outcome) -> list[Axis]:
    """Return an axis for each setting that varies, and one for the profit."""
    names = [*labels(outcome), "profit, %"]
    ticks = [_ticks(dimension) for dimension in outcome.plan.dimensions]
    low, high = _profit_range(outcome)
    ticks.append([(_y(0.0), number(low, 1)), (_y(1.0), number(high, 1))])
    places = _MARGIN + (1 - 2 * _MARGIN) * even_shares(len(names))
    return [Axis(name, float(place), own) for name, place, own in zip(names, places, ticks, strict=True)]


def _ticks(dimension: Dimension) -> list[tuple[float, str]]:
    return [
        (_y(dimension.share(value)), _word(value)) for value in dimension.choices or (dimension.low, dimension.high)
    ]


def _y(share: float) -> float:
    return _TOP + (1 - share) * (HEIGHT - _TOP - _BOTTOM)


def _profit_range(outcome: Outcome) -> tuple[float, float]:
    values = [one.value for one in outcome.tried if one.state != "failed"]
    return (min(values), max(values)) if min(values) < max(values) else (min(values) - 0.5, max(values) + 0.5)


def ways(outcome: Outcome) -> list[Way]:
    """Return the way of each trial that did not fail, the best one last: it is drawn over the others."""
    shown = [one for one in ranked(outcome) if one.state != "failed"]
    low, high = _profit_range(outcome)
    places = [WIDTH * axis.place for axis in axes(outcome)]
    found = []
    for rank, one in enumerate(shown):
        shares = [dimension.share(one.settings[dimension.name]) for dimension in outcome.plan.dimensions]
        shares.append((one.value - low) / (high - low))
        points = (f"{x:.1f},{_y(share):.1f}" for x, share in zip(places, shares, strict=True))
        style = 0 if rank == 0 else _GOOD if rank < len(shown) / 4 else _OTHER
        found.append(Way(f"trial {one.number}: {percent(one.value)}", style, f"M{'L'.join(points)}"))
    return found[::-1]


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
