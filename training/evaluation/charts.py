"""The charts of an evaluation and of a run's records."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from data.features.nine import CLOSE
from training.evaluation import baselines
from training.evaluation.answer import leads
from training.evaluation.judge import Evaluation
from utils.arrays import Float64Array
from utils.charts import Chart, number
from utils.metrics import YEAR_ROOT, daily_returns

COLOURS = {
    baselines.CHAMPION: "#0072B2",
    baselines.RANDOM: "#8A8A8A",
    baselines.EQUAL: "#E69F00",
    baselines.LIGHTGBM: "#009E73",
    baselines.CLOSED: "#6A3D9A",
    baselines.RIDGE: "#CC79A7",
    baselines.ALL_ORDERS: "#56B4E9",
    baselines.BENCHMARK: "#333333",
    baselines.MOMENTUM: "#D55E00",
    baselines.RULE: "#A6761D",
}
"""Of the policies that charts show apart, in all of them."""
_COMPARED = (baselines.EQUAL, baselines.LIGHTGBM)
_ROLLING = 126
"""Sessions of a rolling measure."""
_EXTREME_STOCKS = 5
_DECIDING = 10
"""Inputs that are shown."""
EXITS = {
    "sold": "sold by its own decision",
    "target_open": "sale target, at the open",
    "target": "sale target",
    "stop_open": "stop, at the open",
    "stop": "stop",
    "holding": "longest holding time",
    "no_bar": "no more prices",
    "episode_end": "end of the window",
}
"""Words for the reasons of exits."""
_MARKS = {"close": "#8A8A8A", "bought": "#333333", "sold at a gain": "#0072B2", "sold at a loss": "#D55E00"}
"""Colours of a stock's chart; gains and losses have those of the page."""
_TRADED_STOCKS = 4
"""Stocks whose trades are drawn, the most traded ones."""
_LOSSES = {
    "critic": "Mean squared temporal difference of what positions gain until they are sold, percent, squared.",
    "actor": "Minus the value of the actors' relaxed choices, in temperatures.",
}
_REWARDS = {
    "reward_rate": "What the replayed accounts earn a day, percent of the initial capital.",
    "hurdle": "What a position has to earn for the elites where all capital is invested, percent of its value.",
}


def colours(evaluation: Evaluation) -> dict[str, str]:
    """Return the colours of the policies that charts show apart; that which is judged has the champion's."""
    return COLOURS | {evaluation.judged: COLOURS[baselines.CHAMPION]}


def equity_chart(evaluation: Evaluation) -> Chart:
    """Draw the policies' returns since the first day, with the middle of the random pickers."""
    low, high = (gain_percent(edge) for edge in evaluation.random_band)
    lines = {name: gain_percent(equity) for name, equity in _drawn(evaluation).items()}
    bands = {"random pickers, 5% to 95%": (low, high)}
    return Chart(
        "Return since the first day, %",
        evaluation.dates,
        lines,
        bands=bands,
        note="After costs.",
        colours=colours(evaluation),
    )


def drawdown_chart(evaluation: Evaluation) -> Chart:
    """Draw the fall of the policies' equity below its earlier peak, but for random pickers."""
    # The mean of many random pickers falls less than any of them.
    drawn = {name: equity for name, equity in _drawn(evaluation).items() if name != baselines.RANDOM}
    return Chart(
        "Drawdown, %",
        evaluation.dates,
        {name: 100.0 * (equity / np.fmax.accumulate(equity) - 1.0) for name, equity in drawn.items()},
        end="at most {:.1f} %",
        legend_value=np.min,
        note="Fall below the earlier peak.",
        colours=colours(evaluation),
    )


def rolling_charts(evaluation: Evaluation) -> list[Chart]:
    """Draw what is invested, by window, and, where the days suffice, the Sharpe ratio of the last half year."""
    curves, dates = evaluation.played.curves, evaluation.dates[1:]
    names = [name for name in (evaluation.judged, *_COMPARED) if name in curves]
    steps = evaluation.played.days.shape[1] - 1
    invested = {name: np.repeat(100.0 * curves[name].exposure.mean(axis=0), steps) for name in names}
    note = "Mean of each window, share of the equity."
    charts = [Chart("Exposure, %", dates, invested, "{:.0f} %", note=note, colours=colours(evaluation))]
    if len(dates) > _ROLLING:
        returns = pd.DataFrame({name: daily_returns(evaluation.equity[name]) for name in names}).rolling(_ROLLING)
        sharpe = {str(name): series.to_numpy() for name, series in (YEAR_ROOT * returns.mean() / returns.std()).items()}
        note = f"Of the last {_ROLLING} sessions, a year."
        charts.append(Chart("Rolling Sharpe ratio", dates, sharpe, "{:.2f}", note=note, colours=colours(evaluation)))
    return charts


class Bar(NamedTuple):
    """A bar of a page: where it begins and how long it is in percent of the width, and whether it is told apart."""

    label: str
    text: str
    left: float
    width: float
    kind: str
    """"gain", "loss", or "none": neutral."""


def bars(rows: Sequence[tuple[str, float | None, str, int]]) -> list[Bar]:
    """Return bars from zero, by (label, value, text, sign): positive a gain, negative a loss, 0 neutral."""
    values = [value or 0.0 for _, value, _, _ in rows]
    low, high = min(0.0, *values, 0.0), max(0.0, *values, 0.0)
    scale, kinds = 100.0 / ((high - low) or 1.0), {1: "gain", 0: "none", -1: "loss"}
    return [
        Bar(label, text, round(scale * (min(value, 0.0) - low), 2), round(scale * abs(value), 2), kinds[sign])
        for (label, _, text, sign), value in zip(rows, values, strict=True)
    ]


def answer_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the champion's leads; blue where it is better, red where worse, neutral else."""
    rows = []
    for one in leads(evaluation):
        lead = f"{number(one.test.mean, 1, is_signed=True)} % a year: {one.word}"
        text = f"{lead} (it returned {number(one.return_percent, 1, is_signed=True)} %)"
        rows.append((f"over {one.policy}", one.test.mean, text, one.sign))
    return bars(rows)


def input_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the inputs that decide most, by the rank correlation that is lost when their values are shuffled."""
    worth = [*evaluation.importance.items()][:_DECIDING]
    return bars([(name, lost, number(lost, 3, is_signed=True), 0) for name, lost in worth])


def profit_bars(evaluation: Evaluation, by: str) -> list[Bar]:
    """Return the net profit of the champion's trades by "ticker" or "reason", best first; of stocks the extremes."""
    trades, capital = evaluation.trades, evaluation.played.curves[evaluation.judged].capital
    net = 100.0 * (trades["profit"] - trades["costs"]) / capital
    sums = (
        net.groupby(trades[by].fillna("still held"))
        .agg(["sum", "count"])
        .sort_values("sum", ascending=False, kind="stable")
    )
    if len(sums) > 2 * _EXTREME_STOCKS:
        sums = pd.concat([sums[:_EXTREME_STOCKS], sums[-_EXTREME_STOCKS:]])
    rows = []
    for key, value, count in zip(sums.index, sums["sum"].tolist(), sums["count"].tolist(), strict=True):
        text = f"{number(value, 2, is_signed=True)} % of the capital in {count:,} trades"
        rows.append((EXITS.get(key, str(key)), value, text, int(np.sign(value))))
    return bars(rows)


def _drawn(evaluation: Evaluation) -> dict[str, Float64Array]:
    """Return the equity that a chart can show apart: tables have all policies."""
    shown = {name: curve for name, curve in evaluation.equity.items() if name in colours(evaluation)}
    if np.array_equal(shown.get(baselines.ALL_ORDERS, ()), shown[evaluation.judged]):  # all of the capital is theirs
        del shown[baselines.ALL_ORDERS]
    return shown


def gain_percent(equity: Float64Array) -> Float64Array:
    """Return the change since the first value in percent."""
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def traded_stocks(evaluation: Evaluation) -> list[Chart]:
    """Draw the stocks that the champion traded most, each with its trades."""
    market, days, trades = evaluation.market, evaluation.played.days, evaluation.trades
    played = slice(int(days.min()), int(days.max()) + 1)
    trades = trades.assign(is_gain=trades["profit"] > trades["costs"])
    by_ticker = sorted(trades.groupby("ticker", sort=False), key=lambda pair: -len(pair[1]))
    charts = []
    for ticker, of_ticker in by_ticker[:_TRADED_STOCKS]:
        sold = of_ticker[of_ticker["exit_date"].notna()]
        groups = {"bought": ("entry", of_ticker), "sold at a gain": ("exit", sold[sold["is_gain"]])}
        groups["sold at a loss"] = ("exit", sold[~sold["is_gain"]])
        points = {
            label: (rows[f"{when}_date"].to_numpy(dtype="datetime64[D]"), rows[f"{when}_price"].to_numpy(np.float64))
            for label, (when, rows) in groups.items()
        }
        close = market.data_array[played, market.tickers.index(ticker), CLOSE].astype(np.float64)
        dates, note = market.dates[played].astype("datetime64[D]"), f"{len(of_ticker)} trades, gains after costs."
        lines = {"close": close}
        charts.append(Chart(str(ticker), dates, lines, "{:,.2f}", points, note=note, has_zero=False, colours=_MARKS))
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
        colours={"population mean": COLOURS[baselines.RANDOM], "validation result": COLOURS[baselines.CHAMPION]},
        note="Of the population on training days, by forecasts out of fold, with penalties. The champion's validation "
        "result is from days that neither training nor selection has seen.",
    )


def learning_charts(records: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """Draw what is learned, from the records of metrics.jsonl.

    Losses of critics and actors, what the elites earn, and their hurdle.
    """
    generations, charts = _generations(records), []
    for name, note in _LOSSES.items():
        losses = {name: column(records, "learning", f"{name}_loss")}
        charts.append(Chart(f"Loss: {name}", generations, losses, "{:.3f}", note=note, has_zero=name != "actor"))
    earned = {"elites": column(records, "learning", "elite_profit_percent")}
    note = "Mean of the elites over the training windows of the fitness, % of the capital."
    charts.append(Chart("Profit of an episode, %", generations, earned, note=note))
    for name, note in _REWARDS.items():
        rewards = {name.replace("_", " "): column(records, "learning", name)}
        charts.append(Chart(f"{name.replace('_', ' ').capitalize()}, %", generations, rewards, "{:.3f}", note=note))
    return charts


def _generations(records: Sequence[Mapping[str, Any]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([record["generation"] for record in records], dtype=np.int64)


def column(records: Sequence[Mapping[str, Any]], group: str, name: str) -> Float64Array:
    """Return a number of each record; NaN where it is missing or None."""
    return np.array([record[group].get(name) for record in records], dtype=np.float64)
