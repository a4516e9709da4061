"""The charts of an evaluation and of a run's records."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from data.features import CLOSE
from training.evaluation import baselines
from training.evaluation.judge import Evaluation
from training.evaluation.supervised import LIGHTGBM, RIDGE
from utils.charts import Chart, FloatArray, Trade, last_known, number, percent

_TARGET, _STOP = ("o", "●", "target reached"), ("v", "▼", "stop reached")
EXITS = {
    "target_open": _TARGET,
    "target": _TARGET,
    "stop_open": _STOP,
    "stop": _STOP,
    "holding": ("s", "■", "longest holding time"),
    "episode_end": ("D", "◆", "end of the episode"),
    "no_bar": ("x", "✕", "stopped trading"),
}
"""Why a position was sold: marker in the chart, symbol in the key and words, by the reason in a trade."""
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
    low, high = (gain_percent(edge) for edge in evaluation.random_band)
    verticals = _window_starts(evaluation)
    return Chart(
        "Return since the first day, %",
        evaluation.dates,
        {name: gain_percent(evaluation.equity[name]) for name in _drawn_policies(evaluation)},
        note=f"After costs.{' Dotted vertical lines: a new window begins.' if verticals else ''}",
        bands={"random selections, 5% to 95%": (low, high)},
        verticals=verticals,
        height=340,
    )


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the policies' equity below its earlier peak, but for random selection."""
    # The mean of many random selections falls less than any of them.
    names = [name for name in _drawn_policies(evaluation) if name != baselines.RANDOM]
    return Chart(
        "Drawdown, %",
        evaluation.dates,
        {name: _drawdown_percent(evaluation.equity[name]) for name in names},
        lambda values: percent(np.nanmin(values)),
        note="Fall below the earlier peak; the numbers beside the names are the deepest.",
        verticals=_window_starts(evaluation),
        height=220,
    )


def _window_starts(evaluation: Evaluation) -> list[np.datetime64]:
    """Return the dates on which windows after the first begin."""
    windows, steps = len(evaluation.played.days), evaluation.played.days.shape[1] - 1
    return [evaluation.dates[steps * window] for window in range(1, windows)]


def _drawn_policies(evaluation: Evaluation) -> list[str]:
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
    """Draw the stocks that the champion traded most; with their trades, whose `percent` is after costs."""
    market, days, trades = evaluation.market, evaluation.played.days, evaluation.trades
    played = slice(int(days.min()), int(days.max()) + 1)
    trades = trades.assign(percent=100 * (trades["profit"] - trades["costs"]) / trades["value"])
    by_ticker = sorted(trades.groupby("ticker", sort=False), key=lambda pair: -len(pair[1]))
    shown = []
    for ticker, own in by_ticker[:_TRADED_STOCKS]:
        dates = own[["entry_date", "exit_date"]].to_numpy(dtype="datetime64[D]")
        prices, made = own[["entry_price", "exit_price"]].to_numpy(), own.to_dict("records")
        chart = Chart(
            str(ticker),
            market.dates[played].astype("datetime64[D]"),
            {"close": market.data_array[played, market.tickers.index(ticker), CLOSE].astype(np.float64)},
            lambda values: number(values[-1], 2),
            note=f"Closing price; {len(made)} trades.",
            trades=[
                Trade((*when,), (*price,), EXITS[one["reason"]][0], one["percent"] > 0)
                for when, price, one in zip(dates, prices, made, strict=True)
            ],
            has_zero=False,
            height=240,
        )
        shown.append((chart, made))
    return shown


def cost_chart(evaluation: Evaluation) -> Chart:
    """Draw the return of each policy by costs per leg."""
    returns, charged = evaluation.cost_returns, 10_000 * evaluation.config.env.cost_rate
    costs = np.array(list(next(iter(returns.values()))))
    is_within = costs.min() <= charged <= costs.max()
    return Chart(
        "Return under other costs, %",
        costs,
        {policy: np.array(list(by_cost.values())) for policy, by_cost in returns.items()},
        note="Costs and slippage of one leg in basis points of the value traded. This report was charged "
        f"{number(charged, 1)}{' (dotted line)' if is_within else ''}. Random selections are drawn anew at each cost, "
        "fewer than above.",
        x_unit=" bp",
        verticals=[charged] if is_within else [],
        height=380,
    )


def fitness_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    return Chart(
        "Fitness by generation, % of the initial capital per episode",
        _generations(records),
        {
            "population mean": column(records, "fitness", "mean"),
            "validation result": column(records, "validation", "champion"),
        },
        note=f"Of the population on {ON_TRAINING}, with penalties. The champion's validation result is from days that "
        "neither training nor selection has seen.",
        bands={"population, lowest to highest": (column(records, "fitness", "min"), column(records, "fitness", "max"))},
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
            charts.append(
                Chart(
                    title,
                    generations,
                    losses,
                    lambda values: number(last_known(values), 3),
                    note=note,
                    has_zero=name != "actor",
                )
            )
        explained = {"ridge and network": "explained_by_both", "ridge alone": "explained_by_ridge"}
        on = "Means of the elites, on training days, out of fold; of results relative to the mean of their day."
    else:
        explained = {"population mean": "explained", "best agent": "explained_best"}
        on = "On training days, out of fold; below 0 forecasts are worse than the mean."
    shares = {label: 100.0 * column(records, "learning", name) for label, name in explained.items()}
    charts.append(Chart("Variance of results explained, %", generations, shares, note=on))
    values = {
        label: column(records, "learning", name)
        for label, name in (("Q(s0), expected", "initial_value"), ("earned", "elite_profit_percent"))
    }
    on = "Means of the elites over the training windows of the fitness, % of the capital."
    return [*charts, Chart("Value of an episode, expected and earned, %", generations, values, note=on)]


def _generations(records: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([record["generation"] for record in records], dtype=np.int64)


def column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> FloatArray:
    """Return a number of each record; NaN where it is missing or None."""
    return np.array([record[group].get(name) for record in records], dtype=np.float64)
