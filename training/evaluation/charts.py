"""The charts of an evaluation and of a run's records: what is drawn, and the text for a reader who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from environment.ledger import EXIT_REASONS
from training.evaluation import baselines
from training.evaluation.judge import Evaluation
from training.evaluation.supervised import LIGHTGBM, RIDGE
from utils.charts import (
    Band,
    Chart,
    Dates,
    FloatArray,
    Line,
    Mark,
    MemoryPoint,
    ends_of,
    last_known,
    lines_of,
    number,
    percent,
)

EXIT_WORDS = {
    "target": ("●", "target reached"),
    "stop": ("▼", "stop reached"),
    "time": ("■", "longest holding time"),
    "end": ("◆", "end of the episode"),
    "lost": ("✕", "stopped trading"),
}
"""Why a position was sold: the symbol in the key and the words, by the mark's symbol."""
_SYMBOLS = dict(zip(EXIT_REASONS[1:], ("target", "stop", "stop", "target", "time", "lost", "end"), strict=True))
_PRICE_STYLE = 7
_TRADED_STOCKS = 6
"""Stocks whose trades are drawn, the most traded ones."""
ON_TRAINING = "training days, by forecasts out of fold"
_LOSSES = {
    "reward": (
        "Loss of rewards",
        "Mean squared error of what orders earn beyond their day's mean, percent of the capital, squared.",
    ),
    "temporal": (
        "Temporal-difference loss",
        "Mean squared temporal difference of replayed transitions, percent of the capital, squared.",
    ),
    "actor": (
        "Loss of actors",
        "Minus the result of what actors choose, in deviations of results and in good orders.",
    ),
}
"""Titles and notes of the losses."""


def equity_chart(evaluation: Evaluation) -> Chart:
    """Draw the policies' returns since the first day, with the middle of the random selections."""
    lines = lines_of({name: gain_percent(evaluation.equity[name]) for name in drawn_policies(evaluation)})
    low, high = (gain_percent(edge) for edge in evaluation.random_band)
    verticals = _window_starts(evaluation)
    return Chart(
        title="Return since the first day, %",
        note=f"After costs.{' Dotted vertical lines: a new window begins.' if verticals else ''}",
        description=f"Return since the first day in percent. At the end: {ends_of(lines)}.",
        x=evaluation.dates,
        lines=lines,
        bands=[Band("random selections, 5% to 95%", low, high)],
        verticals=verticals,
        height=340,
    )


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the policies' equity below its earlier peak, but for random selection."""
    # The mean of many random selections falls less than any of them.
    names = [name for name in drawn_policies(evaluation) if name != baselines.RANDOM]
    falls = {name: _drawdown_percent(evaluation.equity[name]) for name in names}
    lines = lines_of(falls, lambda values: percent(np.nanmin(values)))
    return Chart(
        title="Drawdown, %",
        note="Fall below the earlier peak; the numbers beside the names are the deepest.",
        description=f"Fall below the earlier peak in percent. Deepest: {ends_of(lines)}.",
        x=evaluation.dates,
        lines=lines,
        verticals=_window_starts(evaluation),
        height=220,
    )


def _window_starts(evaluation: Evaluation) -> list[np.datetime64]:
    """Return the dates on which windows after the first begin."""
    windows, steps = len(evaluation.played.days), evaluation.played.days.shape[1] - 1
    return [evaluation.dates[steps * window] for window in range(1, windows)]


def drawn_policies(evaluation: Evaluation) -> list[str]:
    """Return the policies that a chart can show apart: of all simple rules only the one that ended highest."""
    equity = evaluation.equity
    b = baselines
    always = (b.CHAMPION, b.RANDOM, b.EQUAL, b.BENCHMARK, RIDGE, LIGHTGBM, b.RULE)
    others = equity.keys() - {*always, b.HOLD, b.EQUAL_RISK, b.ORACLE, b.BEST_AGENT, b.CLOSED_FORM}
    best = max(others, key=lambda name: (equity[name][-1], name), default=None)
    return [name for name in equity if name in always or name == best]


def gain_percent(equity: FloatArray) -> FloatArray:
    """Return the change since the first value in percent."""
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def _drawdown_percent(equity: FloatArray) -> FloatArray:
    peak = np.fmax.accumulate(equity)
    return np.asarray(100.0 * (equity / np.where(peak > 0, peak, math.nan) - 1.0))


def traded_stocks(evaluation: Evaluation) -> list[tuple[Chart, list[dict[str, Any]]]]:
    """Draw the stocks that the champion traded most over all days played; with its trades as `_shown_trade` says."""
    market, days, made = evaluation.market, evaluation.played.days, evaluation.played.trades
    counts = np.bincount([trade["stock"] for trade in made], minlength=len(market.investable_columns))
    most = [stock for stock in np.argsort(-counts, kind="stable")[:_TRADED_STOCKS].tolist() if counts[stock]]
    played = slice(int(days.min()), int(days.max()) + 1)
    dates = market.dates.astype("datetime64[D]")
    shown = []
    for stock in most:
        trades = [_shown_trade(trade, dates) for trade in made if trade["stock"] == stock]
        close = market.close[played, stock].astype(np.float64)
        ticker = market.tickers[market.investable_columns[stock]]
        chart = Chart(
            title=ticker,
            note=f"Closing price; {len(trades)} trades.",
            description=f"Closing price of {ticker} with {len(trades)} trades; the table below lists them.",
            x=dates[played],
            lines=[Line("close", close, _PRICE_STYLE, number(float(close[-1]), 2))],
            segments=[trade["marks"] for trade in trades],
            has_zero=False,
        )
        shown.append((chart, trades))
    return shown


def _shown_trade(trade: Mapping[str, Any], dates: Dates) -> dict[str, Any]:
    """Add to a finished trade its dates, return and outcome, its `exit` as a key of `EXIT_WORDS`, and its marks."""
    entry, leave, reason = dates[trade["entry_day"]], dates[trade["exit_day"]], _SYMBOLS[trade["reason"]]
    gain = 100 * (trade["profit"] - trade["costs"]) / trade["value"]
    outcome = "gain" if gain > 0 else "loss"
    marks = Mark(entry, trade["entry_price"], "entry", "open"), Mark(leave, trade["exit_price"], reason, outcome)
    added = {"entry_date": str(entry), "exit_date": str(leave), "exit": reason, "outcome": outcome, "marks": marks}
    return {**trade, **added, "return_percent": gain}


def cost_chart(evaluation: Evaluation) -> Chart:
    """Draw the return of each policy by costs per leg."""
    returns, charged = evaluation.cost_returns, 10_000 * evaluation.config.env.cost_rate
    costs = np.array(list(next(iter(returns.values()))))
    is_within = costs.min() <= charged <= costs.max()
    return Chart(
        title="Return under other costs, %",
        note="Costs and slippage of one leg in basis points of the value traded. This report was charged "
        f"{number(charged, 1)}{' (dotted line)' if is_within else ''}. Random selections are drawn anew at each cost, "
        "fewer than above.",
        description="Return in percent by cost per leg; the table below holds the numbers.",
        x=costs,
        x_unit=" bp",
        lines=lines_of({policy: np.array(list(by_cost.values())) for policy, by_cost in returns.items()}),
        verticals=[charged] if is_within else [],
        height=380,
    )


def fitness_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    lowest, mean, highest = (column(records, "fitness", name) for name in ("min", "mean", "max"))
    return by_generation(
        "Fitness by generation, % of the initial capital per episode",
        f"Of the population on {ON_TRAINING}, with penalties. The champion's validation result is from days that "
        "neither training nor selection has seen.",
        _generations(records),
        lines_of({"population mean": mean, "validation result": column(records, "validation", "champion")}),
        bands=[Band("population, lowest to highest", lowest, highest)],
    )


def learning_charts(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what is learned, from the records of metrics.jsonl.

    Losses of critics and actors where there are networks, the out-of-fold explained variance of results, and Q(s0)
    beside the profit.
    """
    generations, charts = _generations(records), []
    if any("noise_scale" in record["learning"] for record in records):
        for name, (title, note) in _LOSSES.items():
            losses = {name: column(records, "learning", f"{name}_loss")}
            lines = lines_of(losses, lambda values: number(last_known(values), 3))
            charts.append(by_generation(title, note, generations, lines, has_zero=name != "actor"))
        explained = {"ridge and network": "explained_by_both", "ridge alone": "explained_by_ridge"}
        on = "Means of the elites, on training days, out of fold; of results relative to the mean of their day."
    else:
        explained = {"population mean": "explained", "best agent": "explained_best"}
        on = "On training days, out of fold; below 0 forecasts are worse than the mean."
    shares = {label: 100.0 * column(records, "learning", name) for label, name in explained.items()}
    charts.append(by_generation("Variance of results explained, %", on, generations, lines_of(shares)))
    values = {
        label: column(records, "learning", name)
        for label, name in (("Q(s0), expected", "initial_value"), ("earned", "elite_profit_percent"))
    }
    on = "Means of the elites over the training windows of the fitness, % of the capital."
    return [*charts, by_generation("Value of an episode, expected and earned, %", on, generations, lines_of(values))]


def by_generation(
    title: str, note: str, generations: Sequence[int], lines: Sequence[Line], bands: Sequence[Band] = (), **others: Any
) -> Chart:
    """Return a chart of lines over generations."""
    x = np.array(generations, dtype=np.int64)
    description = f"{title.removesuffix(', %')}, by generation. Last: {ends_of(lines)}."
    return Chart(title, description, x, lines, bands=bands, note=note, height=280, **others)


def _generations(records: Sequence[Mapping[str, Any]]) -> list[int]:
    return [int(record["generation"]) for record in records]


def column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> FloatArray:
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
