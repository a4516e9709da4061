"""The charts of an evaluation and of a run's records."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.features import CLOSE
from training.evaluation import baselines
from training.evaluation.judge import Evaluation
from training.evaluation.supervised import LIGHTGBM, RIDGE
from utils.charts import Chart, FloatArray

_TRADED_STOCKS = 4
"""Stocks whose trades are drawn, the most traded ones."""
_LOSSES = {
    "gain": "Mean squared temporal difference of what positions gain until they are sold, percent, squared.",
    "time": "Mean squared temporal difference of the sessions for which they take capital, squared.",
    "actor": "Minus the value of the actors' relaxed choices, in temperatures.",
}
"""What the losses are."""


def equity_chart(evaluation: Evaluation) -> Chart:
    """Draw the policies' returns since the first day, with the middle of the random selections."""
    low, high = (gain_percent(edge) for edge in evaluation.random_band)
    lines = {name: gain_percent(equity) for name, equity in _drawn(evaluation).items()}
    bands = {"random selections, 5% to 95%": (low, high)}
    return Chart("Return since the first day, %", evaluation.dates, lines, bands=bands, note="After costs.")


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the policies' equity below its earlier peak, but for random selection."""
    # The mean of many random selections falls less than any of them.
    drawn = {name: equity for name, equity in _drawn(evaluation).items() if name != baselines.RANDOM}
    return Chart(
        "Drawdown, %",
        evaluation.dates,
        {name: 100.0 * (equity / np.fmax.accumulate(equity) - 1.0) for name, equity in drawn.items()},
        note="Fall below the earlier peak.",
    )


def _drawn(evaluation: Evaluation) -> dict[str, FloatArray]:
    """Return the equity that a chart can show apart: tables have all policies."""
    b = baselines
    drawn = (
        evaluation.judged,
        b.CHAMPION,
        b.ALL_ORDERS,
        b.RANDOM,
        b.EQUAL,
        b.BENCHMARK,
        RIDGE,
        LIGHTGBM,
        b.MOMENTUM,
        b.RULE,
    )
    return {name: curve for name, curve in evaluation.equity.items() if name in drawn}


def gain_percent(equity: FloatArray) -> FloatArray:
    """Return the change since the first value in percent."""
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def traded_stocks(evaluation: Evaluation) -> list[Chart]:
    """Draw the stocks that the champion traded most, each with its trades."""
    market, days, trades = evaluation.market, evaluation.played.days, evaluation.trades
    played = slice(int(days.min()), int(days.max()) + 1)
    trades = trades.assign(is_gain=trades["profit"] > trades["costs"])
    by_ticker = sorted(trades.groupby("ticker", sort=False), key=lambda pair: -len(pair[1]))
    charts = []
    for ticker, own in by_ticker[:_TRADED_STOCKS]:
        parts = {"bought": ("entry", own), "sold at a gain": ("exit", own[own["is_gain"]])}
        parts["sold at a loss"] = ("exit", own[~own["is_gain"]])
        points = {
            label: (rows[f"{when}_date"].to_numpy(dtype="datetime64[D]"), rows[f"{when}_price"].to_numpy(np.float64))
            for label, (when, rows) in parts.items()
        }
        close = market.data_array[played, market.tickers.index(ticker), CLOSE].astype(np.float64)
        dates, note = market.dates[played].astype("datetime64[D]"), f"{len(own)} trades, gains after costs."
        charts.append(Chart(str(ticker), dates, {"close": close}, "{:,.2f}", points, note=note, has_zero=False))
    return charts


def fitness_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    return Chart(
        "Fitness by generation, % of the initial capital per episode",
        _generations(records),
        {
            "population mean": column(records, "fitness", "mean"),
            "validation result": column(records, "validation", "champion"),
        },
        bands={"population, lowest to highest": (column(records, "fitness", "min"), column(records, "fitness", "max"))},
        note="Of the population on training days, by forecasts out of fold, with penalties. The champion's validation "
        "result is from days that neither training nor selection has seen.",
    )


def learning_charts(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what is learned, from the records of metrics.jsonl.

    Losses of critics and actors, what the elites earn, and the price of capital that they find.
    """
    generations, charts = _generations(records), []
    for name, note in _LOSSES.items():
        losses = {name: column(records, "learning", f"{name}_loss")}
        charts.append(Chart(f"Loss: {name}", generations, losses, "{:.3f}", note=note, has_zero=name != "actor"))
    earned = {"elites": column(records, "learning", "elite_profit_percent")}
    note = "Mean of the elites over the training windows of the fitness, % of the capital."
    charts.append(Chart("Profit of an episode, %", generations, earned, note=note))
    prices = {
        label: column(records, "learning", name)
        for label, name in (("reward rate", "reward_rate"), ("price of capital", "price_of_capital"))
    }
    note = "What the replayed accounts earn a day, and what the elites' capital costs a session, %."
    return [*charts, Chart("Reward rate and price of capital, %", generations, prices, "{:.3f}", note=note)]


def _generations(records: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([record["generation"] for record in records], dtype=np.int64)


def column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> FloatArray:
    """Return a number of each record; NaN where it is missing or None."""
    return np.array([record[group].get(name) for record in records], dtype=np.float64)
