"""The charts of evaluations and runs: what is drawn, in which units, and the text for a reader who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from environment.ledger import EXIT_REASONS
from training.evaluation.baselines import (
    BENCHMARK,
    BEST_AGENT,
    CHAMPION,
    CLOSED_FORM,
    EQUAL,
    EQUAL_RISK,
    HOLD,
    ORACLE,
    RANDOM,
    RULE,
)
from training.evaluation.judge import Evaluation
from training.evaluation.supervised import LIGHTGBM, RIDGE
from utils.charts import (
    Band,
    Chart,
    Dates,
    FloatArray,
    Line,
    Marker,
    MemoryPoint,
    Tick,
    day_axis,
    last_known,
    lines_of,
    number,
    number_axis,
    percent,
)
from utils.pictures import STYLES

if TYPE_CHECKING:
    from training.evaluation.report import ReportedRun

EXIT_WORDS = {
    "target": "target reached",
    "time": "longest holding time",
    "end": "end of the episode",
    "lost": "stopped trading",
}
"""Why a position was sold, by the page's symbol for it."""
_SYMBOLS = dict(zip(EXIT_REASONS[1:], ("target", "target", "time", "lost", "end"), strict=True))
_PRICE_STYLE = 7
_DRAWN_RUNS = len(STYLES) - 1
"""Runs that a chart can show apart, beside equal weight."""
_TRADED_STOCKS = 6
"""Stocks whose trades are drawn, the most traded ones."""
_LOSSES = {
    "reward": "Mean squared error of what orders earn beyond their day's mean, percent of the capital, squared.",
    "temporal": "Mean squared temporal difference of replayed transitions, percent of the capital, squared.",
    "actor": "Minus the result of what actors choose, in deviations of results and in good orders.",
}
_TITLES = {"reward": "Loss of rewards", "temporal": "Temporal-difference loss", "actor": "Loss of actors"}
_ON_TRAINING = "training days, by forecasts out of fold"


def equity_chart(evaluation: Evaluation) -> Chart:
    low, high = (_gain_percent(edge) for edge in evaluation.random_band)
    windows = " Dotted vertical lines: a new window begins." if len(evaluation.played.days) > 1 else ""
    return _by_day(
        evaluation,
        {name: _gain_percent(evaluation.equity[name]) for name in drawn_policies(evaluation)},
        lambda values: percent(values[-1]),
        "Return since the first day in percent. At the end",
        title="Return since the first day, %",
        note=f"After costs.{windows}",
        bands=[Band("random selections, 5% to 95%", low, high)],
        height=340,
    )


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the policies' equity below its earlier peak, but for random selection."""
    return _by_day(
        evaluation,
        # The mean of many random selections falls less than any of them.
        {name: _drawdown_percent(evaluation.equity[name]) for name in drawn_policies(evaluation) if name != RANDOM},
        lambda values: percent(np.nanmin(values)),
        "Fall below the earlier peak in percent. Deepest",
        title="Drawdown, %",
        note="Fall below the earlier peak; the numbers beside the names are the deepest.",
        y_ticks=4,
        height=220,
    )


def _by_day(
    evaluation: Evaluation, series: Mapping[str, FloatArray], end: Callable[[FloatArray], str], head: str, **others: Any
) -> Chart:
    """Return a chart of series over the stitched days; `head` begins its description."""
    lines, dates, windows = lines_of(series, end), evaluation.dates, len(evaluation.played.days)
    return Chart(
        description=f"{head}: {_ends(lines)}.",
        lines=lines,
        **day_axis(dates),
        verticals=[Tick(window / windows, f"window {window + 1} begins") for window in range(1, windows)],
        unit="%",
        is_signed=True,
        **others,
    )


def drawn_policies(evaluation: Evaluation) -> list[str]:
    """Return the policies that a chart can show apart: of all simple rules only the one that ended highest."""
    equity = evaluation.equity
    always = (CHAMPION, RANDOM, EQUAL, BENCHMARK, RIDGE, LIGHTGBM, RULE)
    others = equity.keys() - {*always, HOLD, EQUAL_RISK, ORACLE, BEST_AGENT, CLOSED_FORM}
    best = max(others, key=lambda name: (equity[name][-1], name), default=None)
    return [name for name in equity if name in always or name == best]


def _gain_percent(equity: FloatArray) -> FloatArray:
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def _drawdown_percent(equity: FloatArray) -> FloatArray:
    peak = np.fmax.accumulate(equity)
    return np.asarray(100.0 * (equity / np.where(peak > 0, peak, math.nan) - 1.0))


def _ends(lines: Sequence[Line]) -> str:
    return ", ".join(f"{line.label} {line.end}" for line in lines)


def runs_equity_chart(runs: Sequence[ReportedRun], with_equal_weight: bool) -> Chart | None:
    """Draw the champions' returns on their validation days; None where no run's files hold them.

    Runs judged on different days are drawn by sessions since their own first day.

    Args:
        with_equal_weight: the runs share days, data and rules, so that equal weight is the same for all of them.
    """
    of_all, runs = _note_on_drawn(runs), runs[:_DRAWN_RUNS]
    judged = {run.name: run.validation for run in runs if run.validation is not None and len(run.validation.dates)}
    if not judged:
        return None
    first = next(iter(judged.values()))
    has_same_days = all(np.array_equal(first.dates, other.dates) for other in judged.values())
    count = max(len(one.dates) for one in judged.values())
    equity = {name: one.equity[CHAMPION] for name, one in judged.items()}
    equity |= {EQUAL: first.equity[EQUAL]} if with_equal_weight else {}
    gains = {name: _gain_percent(own) for name, own in equity.items()}
    padded = {name: np.append(own, np.full(count - len(own), np.nan)) for name, own in gains.items()}
    lines = lines_of(padded, _end_percent)
    missing = [run.name for run in runs if run.name not in judged]
    return Chart(
        title="Return of the champions on validation days, %",
        note=f"After costs.{of_all}"
        + ("" if has_same_days else " The days differ: sessions since each run's own first day.")
        + (f" Not known, until it is evaluated: {', '.join(missing)}." if missing else ""),
        description=f"Return since each run's first validation day in percent. At the end: {_ends(lines)}.",
        **day_axis(first.dates) if has_same_days else number_axis(range(count), "session"),
        lines=lines,
        unit="%",
        is_signed=True,
        height=340,
    )


def runs_learning_charts(runs: Sequence[ReportedRun]) -> list[Chart]:
    """Draw the mean fitness and the champions' validation results by generation; nothing where no run has a record."""
    of_all, runs = _note_on_drawn(runs), runs[:_DRAWN_RUNS]
    count = max((record["generation"] for run in runs for record in run.records), default=0)
    if not count:
        return []
    charts = []
    for group, name, title, on in (
        ("fitness", "mean", "Mean fitness of the population by generation, %", _ON_TRAINING),
        ("validation", "champion", "Validation result of the champion by generation, %", "validation windows"),
    ):
        series = {run.name: np.full(count, np.nan) for run in runs}
        for run in runs:
            generations = [record["generation"] - 1 for record in run.records]
            series[run.name][generations] = _column(run.records, group, name)
        lines, note = lines_of(series, _end_percent), f"Percent of the initial capital per episode, on {on}.{of_all}"
        charts.append(_by_generation(title, f"{title} of each run", note, range(1, count + 1), lines, unit="%"))
    return charts


def _note_on_drawn(runs: Sequence[ReportedRun]) -> str:
    return f" Only the first {_DRAWN_RUNS} of {len(runs)} runs are drawn." if len(runs) > _DRAWN_RUNS else ""


def traded_stocks(evaluation: Evaluation) -> list[tuple[Chart, list[dict[str, Any]]]]:
    """Draw the stocks that the champion traded most over all days played; with its trades as `_shown_trade` says."""
    market, days, made = evaluation.market, evaluation.played.days, evaluation.played.trades
    counts = np.bincount([trade["stock"] for trade in made], minlength=len(market.investable_columns))
    most = [stock for stock in np.argsort(-counts, kind="stable")[:_TRADED_STOCKS].tolist() if counts[stock]]
    first, stop = int(days.min()), int(days.max()) + 1
    dates = market.dates[first:stop].astype("datetime64[D]")
    shown = []
    for stock in most:
        trades = [_shown_trade(trade, dates, first) for trade in made if trade["stock"] == stock]
        close = market.close[first:stop, stock].astype(np.float64)
        ticker = market.tickers[market.investable_columns[stock]]
        chart = Chart(
            title=ticker,
            note=f"Closing price; {len(trades)} trades.",
            description=f"Closing price of {ticker} with {len(trades)} trades; the table below lists them.",
            **day_axis(dates),
            lines=[Line("close", close, _PRICE_STYLE, number(float(close[-1]), 2))],
            marks=[mark for trade in trades for mark in trade["marks"]],
            segments=[trade["marks"] for trade in trades],
            decimals=2,
            has_zero=False,
        )
        shown.append((chart, trades))
    return shown


def _shown_trade(trade: Mapping[str, Any], dates: Dates, first: int) -> dict[str, Any]:
    """Add to a finished trade its dates, return and outcome, its `exit` as a key of `EXIT_WORDS`, and its marks."""
    entry, leave = trade["entry_day"] - first, trade["exit_day"] - first
    gain = 100 * (trade["profit"] - trade["costs"]) / trade["value"]
    outcome, reason = "gain" if gain > 0 else "loss", _SYMBOLS[trade["reason"]]
    entry_date, exit_date = str(dates[entry]), str(dates[leave])
    price, target, received = trade["entry_price"], trade["target_price"], trade["exit_price"]
    bought = f"bought {entry_date} at {number(price, 2)}, target {number(target, 2)}"
    title = f"{bought}; sold {exit_date} at {number(received, 2)}: {EXIT_WORDS[reason]}; {percent(gain)}"
    days = len(dates) - 1
    return {
        **trade,
        "entry_date": entry_date,
        "exit_date": exit_date,
        "exit": reason,
        "return_percent": gain,
        "outcome": outcome,
        "marks": (
            Marker(entry / days, price, "mark-entry", "entry", title),
            Marker(leave / days, received, f"mark-{reason}", outcome, title),
        ),
    }


def cost_chart(evaluation: Evaluation) -> Chart:
    """Draw the return of each policy by costs per leg."""
    returns, charged = evaluation.cost_returns, 10_000 * evaluation.config.env.cost_rate
    costs = np.array(list(next(iter(returns.values()))))
    series = {policy: np.array(list(by_cost.values())) for policy, by_cost in returns.items()}
    *shares, own = (np.append(costs, charged) - costs.min()) / np.ptp(costs)
    names = [f"{number(cost, 0)} bp" for cost in costs]
    return Chart(
        title="Return under other costs, %",
        note="Costs and slippage of one leg in basis points of the value traded. This report was charged "
        f"{number(charged, 1)}. Random selections are drawn anew at each cost, fewer than above.",
        description="Return in percent by cost per leg; the table below holds the numbers.",
        shares=np.array(shares),
        ticks=[Tick(float(share), name) for share, name in zip(shares, names, strict=True)],
        labels=[f"{name} per leg" for name in names],
        lines=lines_of(series, lambda values: percent(values[-1])),
        height=380,
        verticals=[Tick(float(own), "charged in this report")] if 0 <= own <= 1 else [],
        unit="%",
        is_signed=True,
    )


def fitness_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    lowest, mean, highest = (_column(records, "fitness", name) for name in ("min", "mean", "max"))
    series = {"population mean": mean, "validation result": _column(records, "validation", "champion")}
    return _by_generation(
        "Fitness by generation, % of the initial capital per episode",
        "Fitness of the population in percent by generation",
        f"Of the population on {_ON_TRAINING}, with penalties. The champion's validation result is from days that "
        "neither training nor selection has seen.",
        _generations(records),
        lines_of(series, _end_percent),
        bands=[Band("population, lowest to highest", lowest, highest)],
        unit="%",
    )


def learning_charts(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what is learned, from the records of metrics.jsonl.

    Losses of critics and actors where there are networks, the out-of-fold explained variance of results, and Q(s0)
    beside the profit.
    """
    has_networks = any("noise_scale" in record["learning"] for record in records)
    charts = [_loss_chart(records, *each) for each in _LOSSES.items()] if has_networks else []
    if has_networks:
        names = {"ridge and network": "explained_by_both", "ridge alone": "explained_by_ridge"}
        note = "Means of the elites, on training days, out of fold; of results relative to the mean of their day."
    else:
        names = {"population mean": "explained", "best agent": "explained_best"}
        note = "On training days, out of fold; below 0 forecasts are worse than the mean."
    explained = {label: 100.0 * _column(records, "learning", name) for label, name in names.items()}
    values = {
        label: _column(records, "learning", name)
        for label, name in (("Q(s0), expected", "initial_value"), ("earned", "elite_profit_percent"))
    }
    on = "Means of the elites over the training windows of the fitness, % of the capital."
    for title, text, series in (
        ("Variance of results explained, %", note, explained),
        ("Value of an episode, expected and earned, %", on, values),
    ):
        lines, head = lines_of(series, _end_percent), f"{title}, by generation"
        charts.append(_by_generation(title, head, text, _generations(records), lines, unit="%"))
    return charts


def _loss_chart(records: Sequence[Mapping[str, Any]], name: str, note: str) -> Chart:
    title = _TITLES[name]
    lines = lines_of({name: _column(records, "learning", f"{name}_loss")}, lambda own: number(last_known(own), 3))
    return _by_generation(
        title, f"{title}, by generation", note, _generations(records), lines, has_zero=name != "actor"
    )


def _by_generation(
    title: str, head: str, note: str, generations: Sequence[int], lines: Sequence[Line], **others: Any
) -> Chart:
    """Return a chart of lines over generations; `head` begins its description."""
    return Chart(
        title=title,
        note=note,
        description=f"{head}. Last: {_ends(lines)}.",
        **number_axis(generations, "generation"),
        lines=lines,
        is_signed=True,
        height=280,
        **others,
    )


def _generations(records: Sequence[Mapping[str, Any]]) -> list[int]:
    return [int(record["generation"]) for record in records]


def _end_percent(values: FloatArray) -> str:
    return percent(last_known(values))


def _column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> FloatArray:
    """Return a number of each record; NaN where it is missing or None."""
    return np.array([record[group].get(name) for record in records], dtype=np.float64)


def memory_points(records: Sequence[Mapping[str, Any]]) -> list[MemoryPoint]:
    """Return memory at the end of each generation from the records; times add up over resumed runs."""
    seconds = np.cumsum([record["seconds"]["total"] for record in records]).tolist()
    return [
        (
            f"generation {record['generation']}",
            after,
            *(record["memory"][f"{kind}_mb"] or 0.0 for kind in ("rss", "uss", "gpu_allocated")),
        )
        for record, after in zip(records, seconds, strict=True)
    ]
