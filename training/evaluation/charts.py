"""The charts of an evaluation: what is drawn, in which units, and the text for a reader who cannot see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from environment.ledger import EXIT_REASONS
from training.evaluation.assessment import Evaluation
from training.evaluation.rivals import LIGHTGBM, RIDGE
from training.evaluation.tracks import BENCHMARK, CHAMPION, EQUAL, EQUAL_RISK, HOLD, ORACLE, RANDOM, RULE
from utils.charts import (
    Band,
    Chart,
    Dates,
    FloatArray,
    Line,
    Mark,
    MemoryPoint,
    Tick,
    date_ticks,
    even_shares,
    last_known,
    lines_of,
    number,
    number_ticks,
    percent,
)

EXIT_WORDS = {
    "target": "target reached",
    "time": "longest holding time",
    "end": "end of the episode",
    "lost": "stopped trading",
}
"""Why a position was sold, by the page's symbol for it."""
_SYMBOLS = dict(zip(EXIT_REASONS[1:], ("target", "target", "time", "lost", "end"), strict=True))
_PRICE_STYLE = 7
_TRADED_STOCKS = 6
"""Stocks whose trades are drawn, the most traded ones."""


def equity_chart(evaluation: Evaluation) -> Chart:
    """Draw the returns of all policies."""
    low, high = (_gain_percent(edge) for edge in evaluation.picker_band)
    windows = " Dotted vertical lines: a new window begins." if len(evaluation.played.days) > 1 else ""
    return Chart(
        title="Return since the first day, %",
        note=f"After costs.{windows}",
        bands=[Band("random pickers, 5% to 95%", low, high)],
        height=340,
        **_accounts(
            evaluation, _gain_percent, lambda values: percent(values[-1]), "Return since the first day", "At the end"
        ),
    )


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the same policies' equity below its earlier peak."""
    return Chart(
        title="Drawdown, %",
        note="Fall below the earlier peak; the numbers beside the names are the deepest.",
        y_ticks=4,
        height=220,
        **_accounts(
            evaluation,
            _drawdown_percent,
            lambda values: percent(np.nanmin(values)),
            "Fall below the earlier peak",
            "Deepest",
        ),
    )


def _accounts(
    evaluation: Evaluation,
    measure: Callable[[FloatArray], FloatArray],
    end: Callable[[FloatArray], str],
    subject: str,
    ends: str,
) -> dict[str, Any]:
    """Return what charts of the policies over the stitched days share."""
    lines = lines_of({name: measure(evaluation.curves[name]) for name in drawn_policies(evaluation)}, end)
    dates, windows = evaluation.dates, len(evaluation.played.days)
    return {
        "description": f"{subject} in percent. {ends}: {', '.join(f'{line.label} {line.end}' for line in lines)}.",
        "lines": lines,
        "shares": even_shares(len(dates)),
        "ticks": date_ticks(dates),
        "labels": [str(day) for day in dates],
        "verticals": [Tick(window / windows, f"window {window + 1} begins") for window in range(1, windows)],
        "unit": "%",
        "is_signed": True,
    }


def drawn_policies(evaluation: Evaluation) -> list[str]:
    """Return the policies that a chart can show apart: of all simple rules only the one that ended highest."""
    curves = evaluation.curves
    always = (CHAMPION, RANDOM, EQUAL, BENCHMARK, RIDGE, LIGHTGBM, RULE)
    others = curves.keys() - {*always, HOLD, EQUAL_RISK, ORACLE}
    best = max(others, key=lambda name: (curves[name][-1], name), default=None)
    return [name for name in curves if name in always or name == best]


def _gain_percent(equity: FloatArray) -> FloatArray:
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def _drawdown_percent(equity: FloatArray) -> FloatArray:
    peak = np.fmax.accumulate(equity)
    return np.asarray(100.0 * (equity / np.where(peak > 0, peak, math.nan) - 1.0))


def traded_stocks(evaluation: Evaluation) -> list[tuple[Chart, list[dict[str, Any]]]]:
    """Draw the stocks that the champion traded most over all days played; with its trades as `_shown_trade` says."""
    market, days = evaluation.market, evaluation.played.days
    made = next(iter(evaluation.played.trades.values()))
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
            shares=even_shares(len(dates)),
            ticks=date_ticks(dates),
            labels=[str(day) for day in dates],
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
            Mark(entry / days, price, "mark-entry", "entry", title),
            Mark(leave / days, received, f"mark-{reason}", outcome, title),
        ),
    }


def cost_chart(evaluation: Evaluation) -> Chart:
    """Draw the return of each policy by costs a leg."""
    returns, charged = evaluation.cost_returns, 10_000 * evaluation.config.env.cost_rate
    costs = list(next(iter(returns.values())))
    series = {policy: np.array(list(by_cost.values())) for policy, by_cost in returns.items()}
    lowest, span = min(costs), max(costs) - min(costs)
    shares = (np.array(costs) - lowest) / span
    names = [f"{number(cost, 0)} bp" for cost in costs]
    own = (charged - lowest) / span
    return Chart(
        title="Return under other costs, %",
        note="Costs and slippage of one leg in basis points of the value traded. This report was charged "
        f"{number(charged, 1)}.",
        description="Return in percent by cost a leg; the table below holds the numbers.",
        shares=shares,
        ticks=[Tick(float(share), name) for share, name in zip(shares, names, strict=True)],
        labels=[f"{name} a leg" for name in names],
        lines=lines_of(series, lambda values: percent(values[-1])),
        verticals=[Tick(own, "charged in this report")] if 0 <= own <= 1 else [],
        unit="%",
        is_signed=True,
    )


def fitness_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    lowest, mean, highest = (_column(records, "fitness", name) for name in ("min", "mean", "max"))
    series = {"population mean": mean, "validation result": _column(records, "validation", "champion")}
    lines = lines_of(series, lambda values: percent(last_known(values)))
    ends = ", ".join(f"{line.label} {line.end}" for line in lines)
    generations = [int(record["generation"]) for record in records]
    shares = even_shares(len(generations))
    return Chart(
        title="Fitness by generation, % of the initial capital an episode",
        note="On training days, by what was expected of orders out of fold, with penalties. The champion's validation "
        "result is from days that no part of it has seen.",
        description=f"Fitness of the population in percent by generation. Last: {ends}.",
        shares=shares,
        ticks=number_ticks(generations),
        labels=[f"generation {generation}" for generation in generations],
        lines=lines,
        bands=[Band("population, lowest to highest", lowest, highest)],
        unit="%",
        is_signed=True,
        height=280,
    )


def learning_charts(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what networks and forecasts learn, from the records of metrics.jsonl: losses only where there are networks.

    Losses of critics and of actors, the variance of results explained out of fold, and Q(s0) beside what was earned.
    """
    losses = [_loss_chart(records, name) for name in ("critic", "actor")]
    has_networks = any("network_weight" in record["learning"] for record in records)
    return [*(losses if has_networks else ()), _explained_chart(records, has_networks), _value_chart(records)]


def _loss_chart(records: Sequence[Mapping[str, Any]], name: str) -> Chart:
    notes = {
        "critic": "Squared errors of orders' results, summed over folds, and of Q; means over agents and updates.",
        "actor": "Minus Q in results of a good order; none while critics learn alone.",
    }
    loss = _column(records, "learning", f"{name}_loss")
    values = {name: np.where(loss == 0.0, math.nan, loss)}  # of no update
    chart = _by_generation(f"Loss of {name}s", notes[name], records, values, lambda own: number(last_known(own), 3))
    return replace(chart, has_zero=name == "critic")


def _explained_chart(records: Sequence[Mapping[str, Any]], has_networks: bool) -> Chart:
    if has_networks:
        names = {"ridge and network": "explained_by_both", "ridge alone": "explained_by_ridge"}
        note = "Means of the elites, on training days, out of fold; of results relative to the mean of their day."
    else:
        names = {"population mean": "explained", "best agent": "explained_best"}
        note = "On training days, by critics that have not seen them; below 0 they foretell less than the mean does."
    series = {label: 100.0 * _column(records, "learning", name) for label, name in names.items()}
    return _by_generation("Variance of results explained, %", note, records, series, _end_percent, unit="%")


def _value_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    names = {"Q(s0), expected": "initial_value", "earned": "elite_profit_percent"}
    series = {label: _column(records, "learning", name) for label, name in names.items()}
    note = "Means of the elites over the training windows of the fitness, % of the capital."
    title = "Value of an episode, expected and earned, %"
    return _by_generation(title, note, records, series, _end_percent, unit="%")


def _by_generation(
    title: str,
    note: str,
    records: Sequence[Mapping[str, Any]],
    series: Mapping[str, FloatArray],
    end: Callable[[FloatArray], str],
    unit: str = "",
) -> Chart:
    """Return a chart of (T,) series over the generations of T records."""
    lines = lines_of(series, end)
    generations = [int(record["generation"]) for record in records]
    return Chart(
        title=title,
        note=note,
        description=f"{title}, by generation. Last: {', '.join(f'{line.label} {line.end}' for line in lines)}.",
        shares=even_shares(len(generations)),
        ticks=number_ticks(generations),
        labels=[f"generation {generation}" for generation in generations],
        lines=lines,
        unit=unit,
        is_signed=True,
        height=280,
    )


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
