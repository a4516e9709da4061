"""What people look at: pictures of a run, tables, and the status block of a generation."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import matplotlib.dates
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from utils.tables import cell as _cell
from utils.tables import table as table

# Okabe & Ito (2008): told apart with any colour vision; the first is for what the picture is about.
BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
DASHES = ("-", "--", "-.", ":")
GREY, INK = "#8A8A8A", "#333333"

Array = npt.NDArray[np.float64]
MemoryPoint = tuple[str, float, float, float, float]
"""Label of a phase, seconds since the start, RSS, unique set size and GPU memory, each in MiB."""


def draw_fitness(records: Sequence[Mapping[str, Any]], path: Path, note: str | None = None) -> None:
    """Write a PNG of the population's fitness (mean, max, min) and the champion's validation over the generations.

    `records` are those of metrics.jsonl; values are percent of the initial capital an episode, None where unknown.
    """
    generations = [record["generation"] for record in records]
    mean, highest, lowest = (_column(records, "fitness", name) for name in ("mean", "max", "min"))
    champion = _column(records, "validation", "champion")
    with picture(path, "Fitness of the population", note) as (figure, axes):
        axes.fill_between(generations, lowest, highest, color=BLUE, alpha=0.15, linewidth=0, label="min to max")
        dots = _marks(len(records))
        for edge in (highest, lowest):
            axes.plot(generations, edge, color=BLUE, linewidth=1, alpha=0.6, **(dots if len(records) == 1 else {}))
        axes.plot(generations, mean, color=BLUE, label="mean", **dots)
        axes.plot(generations, champion, color=VERMILION, linestyle="--", label="champion on validation", **dots)
        axes.set_xlabel("Generation")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
        _percent_axis(axes, "Fitness, % of initial capital per episode")
        outside_legend(figure, axes)


def draw_equity(
    curves: Mapping[str, Sequence[float]],
    dates: Sequence[Any] | None,
    path: Path,
    title: str,
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    note: str | None = None,
) -> None:
    """Write a PNG of equity curves, each drawn as its return since its own first day in percent.

    `curves` holds equity by label, what the picture is about first, one value a day; `bands` holds (lower, upper)
    equity by label, for example percentiles of random pickers. `dates` are the days, or None for numbered days.
    """
    with picture(path, title, note) as (figure, axes):
        for (label, (lower, upper)), colour in zip((bands or {}).items(), (GREY, SKY, ORANGE), strict=False):
            days = _days(dates, len(lower))
            axes.fill_between(days, _gain(lower), _gain(upper), color=colour, alpha=0.22, linewidth=0, label=label)
        for index, (label, curve) in enumerate(curves.items()):
            gain = _gain(curve)
            axes.plot(
                _days(dates, len(curve)),
                gain,
                color=COLOURS[index % len(COLOURS)],
                linestyle=DASHES[index % len(DASHES)],
                linewidth=2.2 if index == 0 else 1.5,
                zorder=3 if index == 0 else 2,
                label=f"{label}\n{_percent(gain[-1])}",
            )
        _day_axis(axes, dates)
        _percent_axis(axes, "Return since the first day, %")
        outside_legend(figure, axes)


def draw_memory(phases: Sequence[MemoryPoint], path: Path, note: str | None = None) -> None:
    """Write a PNG of memory (MiB) over time: resident, unique to the process, and on the GPU where there is any."""
    labels = [phase[0] for phase in phases]
    values = np.array([phase[1:] for phase in phases], dtype=np.float64).reshape(-1, 4)
    unit, divisor = _time_unit(values[-1, 0] if len(values) else 0.0)
    times = values[:, 0] / divisor
    with picture(path, "Memory of the process", note) as (figure, axes):
        for index, (label, colour) in enumerate((("resident", BLUE), ("unique", GREEN), ("GPU", VERMILION)), start=1):
            if label != "GPU" or values[:, index].any():
                axes.plot(
                    times,
                    values[:, index],
                    color=colour,
                    linestyle=DASHES[index - 1],
                    label=f"{label}\n{_last(values[:, index]):,.0f} MiB",
                    **_marks(len(phases)),
                )
        _mark_peak(axes, times, values[:, 1], labels)
        axes.set_ylim(0, 1.15 * values[:, 1:].max(initial=1.0))
        axes.set_xlabel(f"Time since the start, {unit}")
        axes.set_ylabel("Memory, MiB")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        outside_legend(figure, axes)


@contextmanager
def picture(path: Path, title: str, note: str | None) -> Iterator[tuple[Figure, Axes]]:
    """A figure that is written to `path` in one step. It never enters pyplot, which would keep it alive."""
    figure = Figure(figsize=(9, 4.8), dpi=150, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.1)  # type: ignore[union-attr,call-arg]
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=INK, labelsize=10)
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    yield figure, axes
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    if note:
        figure.supxlabel(note, fontsize=9, color=INK, style="italic", x=0.01, ha="left")
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG in one step."""
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", facecolor="white")
    temporary.replace(path)


def outside_legend(figure: Figure, axes: Axes) -> None:
    """The legend of an axes, to the right of it, long labels wrapped."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = ["\n".join(textwrap.fill(line, 22) for line in label.splitlines()) for label in labels]
    figure.legend(handles, wrapped, loc="outside right upper", frameon=False, fontsize=10, labelspacing=0.8)


def _percent_axis(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.axhline(0, color=GREY, linewidth=0.9, zorder=1)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))


def _day_axis(axes: Axes, dates: Sequence[Any] | None) -> None:
    if dates is None:
        axes.set_xlabel("Trading day")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        return
    locator = matplotlib.dates.AutoDateLocator(minticks=4, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(matplotlib.dates.ConciseDateFormatter(locator))


def _days(dates: Sequence[Any] | None, count: int) -> npt.NDArray[Any]:
    if dates is None:
        return np.arange(count)
    return np.array([np.datetime64(day, "D").astype(date) for day in dates[:count]])


def _gain(curve: Sequence[float]) -> Array:
    values = np.asarray(curve, dtype=np.float64)
    return np.asarray(100.0 * (values / values[0] - 1.0))


def _mark_peak(axes: Axes, times: Array, resident: Array, labels: list[str]) -> None:
    if not len(resident):
        return
    peak = int(resident.argmax())
    is_late = times[peak] > times[-1] / 2
    axes.annotate(
        f"resident peak {resident[peak]:,.0f} MiB, {labels[peak]}",
        (times[peak], resident[peak]),
        xytext=(0, 10),
        textcoords="offset points",
        ha="right" if is_late else "left",
        fontsize=9,
        color=INK,
    )
    axes.plot(times[peak], resident[peak], "o", color=BLUE, markersize=6)


def _marks(points: int) -> dict[str, Any]:
    """Dots at the points where they are few enough to tell apart; a single point would else be invisible."""
    return {"marker": "o", "markersize": 4} if points <= 30 else {}


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 10_800 else ("hours", 3600.0)


def _column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> Array:
    return np.array([(record[group] or {}).get(name) for record in records], dtype=np.float64)  # None becomes NaN


def _last(values: Array) -> float:
    return float(values[-1]) if len(values) else math.nan


def status_block(record: Mapping[str, Any]) -> str:
    """The state of a run after a generation, several lines of text.

    `record` is that of metrics.jsonl with its `seconds`; results are percent of the initial capital, `win_rate` a
    share between 0 and 1, costs in currency units. What is None is shown as -.
    """
    lines = {
        "Replay": _replay_line(record["replay"]),
        "Time": _time_line(record["seconds"]),
        "Fitness": _fitness_line(record["fitness"]),
        "Trades": _trades_line(record["trading"]),
        "Days": _days_line(record["trading"]),
        "Validation": _validation_line(record["validation"]),
        "Learning": _learning_line(record.get("learning")),
    }
    head = f"Generation {record['generation']} of {record['generations']}"
    return "\n".join([head, *(f"  {name:<11} {line}" for name, line in lines.items())])


def _replay_line(replay: Mapping[str, Any]) -> str:
    missing = max(replay["training_starts"] - replay["size"], 0)
    ready = "ready" if missing == 0 else f"not ready, {missing:,} missing"
    return f"{replay['size']:,} / {replay['capacity']:,} transitions, {ready}"


def _time_line(seconds: Mapping[str, Any]) -> str:
    names = ("evaluate", "train", "evolve", "validate", "checkpoint")
    phases = ", ".join(f"{name} {_duration(seconds.get(name))}" for name in names)
    total, average, left = (_duration(seconds.get(name)) for name in ("total", "average", "left"))
    return f"{total}, average {average}, left {left} ({phases})"


def _fitness_line(fitness: Mapping[str, Any]) -> str:
    spread = ", ".join(f"{name} {_percent(fitness[name])}" for name in ("mean", "max", "min"))
    above = f"{fitness['above_zero']} of {fitness['agents']} agents above zero"
    return f"{spread}, std {_percent(fitness['std'], signed=False)}, {above}"


def _trades_line(trading: Mapping[str, Any]) -> str:
    win_rate = trading["win_rate"]
    rate = _percent(None if win_rate is None else 100 * win_rate, signed=False)
    counts = f"{trading['trades']:,} trades, {trading['wins']:,} wins, {trading['losses']:,} losses, win rate {rate}"
    return f"{counts}, {trading['positions_opened']:,} positions opened"


def _days_line(trading: Mapping[str, Any]) -> str:
    days = f"{trading['days_with_positions']:,} with positions, {trading['days_without_positions']:,} without"
    return f"{days}; costs {_cell(trading['costs'])}, penalties {_cell(trading['penalties'])}"


def _validation_line(validation: Mapping[str, Any]) -> str:
    since = validation["champion_generation"]
    origin = "" if since is None else f" (of generation {since})"
    return f"best agent {_percent(validation['best'])}, champion {_percent(validation['champion'])}{origin}"


def _learning_line(learning: Mapping[str, Any] | None) -> str:
    if learning is None:
        return "not begun"
    names = ("critic_loss", "actor_loss", "gradient_norm_actor", "gradient_norm_critic")
    values = ", ".join(f"{name.replace('_', ' ')} {_short(learning[name])}" for name in names)
    return f"{values}, skipped updates {learning['skipped_updates']:,}"


def _percent(value: float | None, signed: bool = True) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:+.2f} %" if signed else f"{value:.2f} %"


def _short(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def _duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"
