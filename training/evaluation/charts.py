"""The charts of an evaluation and of a run's records."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from training.evaluation import baselines
from training.evaluation.judge import Evaluation
from utils.arrays import Float64Array
from utils.charts import Chart, number
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.runs.run_log import Records
from utils.tables import many

COLOURS = {
    baselines.CHAMPION: "#0072B2",
    baselines.RANDOM: "#8A8A8A",
    baselines.EQUAL: "#E69F00",
    baselines.LIGHTGBM: "#009E73",
    baselines.RIDGE: "#CC79A7",
    baselines.IN_FULL: "#56B4E9",
    baselines.BENCHMARK: "#E69F00",
    baselines.CASH: "#E69F00",
    baselines.INDEX: "#333333",
    baselines.MOMENTUM: "#D55E00",
    baselines.RULE: "#A6761D",
}
"""Of the policies that charts show apart, in all of them."""
_MONTH = 21
"""Sessions of a rolling measure."""
_EXTREME_STOCKS = 5
_DECIDING = 10
"""Inputs that are shown."""
ENDS = {"order": "sold", "no_bar": "no more prices", "end": "end of the days"}
"""Words for the reasons of ends."""
HELD = "still held"
_LOSSES = {
    "critic": "Mean squared temporal difference of what positions gain until they are sold, percent, squared.",
    "actor": "Of the actors' scores, by the critic.",
}
_PERCENT = "{:+,.1f} %"
_GENES = {
    "risk": "Price of risk of the elites: what a unit of weight more lowers the worth of the next one.",
    "largest": "Largest weight of a stock, of the elites.",
    "hurdle": "Multiples of its cost that a trade of the elites must be worth.",
    "horizon": "Sessions of the elites' discount.",
    "doubt": "By which the elites heed inputs that tell little less: power of the inputs' gains.",
}


def colours(evaluation: Evaluation) -> dict[str, str]:
    """Return the colours of the policies that charts show apart; that which is judged has the champion's."""
    others = COLOURS | {baselines.CHAMPION: "#6A3D9A"}
    others = {name: colour for name, colour in others.items() if name != evaluation.judged}
    return {evaluation.judged: COLOURS[baselines.CHAMPION]} | others


def first_charts(evaluation: Evaluation) -> list[Chart]:
    """Draw what a reader sees first: the judged account against its benchmark, and its drawdown below."""
    names = evaluation.judged, evaluation.played.benchmark
    curves, dates, drawn = evaluation.equity, evaluation.dates, colours(evaluation)
    gains = {name: gain_percent(curves[name]) for name in names}
    falls = {name: 100.0 * (curves[name] / np.fmax.accumulate(curves[name]) - 1.0) for name in names}
    title = "Return since the first day, after costs, %"
    return [
        Chart(title, dates, gains, colours=drawn, inches=1.9),
        Chart("Drawdown, %", dates, falls, "at worst {:.1f} %", legend_value=np.min, colours=drawn, inches=1.0),
    ]


def daily_charts(evaluation: Evaluation) -> list[Chart]:
    """Draw, day by day, what was held, and how far ahead of the benchmark; and the rank IC by sessions."""
    played, dates, judged = evaluation.played, evaluation.dates[1:], evaluation.judged
    weights, equity = played.weights, evaluation.equity[judged]
    held = {"long": weights.clip(min=0.0).sum(axis=1), "short": weights.clip(max=0.0).sum(axis=1)}
    parts = {"net": weights.sum(axis=1), **(held if held["short"].any() else {})}
    count = (np.abs(weights) > 1e-9).sum(axis=1).astype(np.float64)
    share = pd.Series(0.5 * np.abs(played.traded).sum(axis=1) / equity[:-1])
    turnover = TRADING_DAYS_PER_YEAR / _MONTH * share.rolling(_MONTH, min_periods=1).sum().to_numpy()
    ahead = gain_percent(equity) - gain_percent(evaluation.equity[played.benchmark])
    charts = [
        Chart("Exposure, %", dates, {name: 100.0 * part for name, part in parts.items()}, "{:.0f} %"),
        Chart("Positions", dates, {judged: count}, "{:.0f}"),
        Chart("Turnover, times a year", dates, {judged: turnover}, "{:.1f}", note=f"Of the last {_MONTH} sessions."),
        Chart(f"Ahead of {played.benchmark}, % of the first equity", evaluation.dates, {judged: ahead}),
    ]
    if found := evaluation.coefficients.get(judged):
        sessions = np.array([*found], dtype=np.int64)
        means = np.array([one.mean for one in found.values()])
        charts.append(Chart("Rank IC of the scores by sessions ahead", sessions, {judged: means}, "{:.3f}"))
    return charts


def equity_chart(evaluation: Evaluation) -> Chart:
    """Draw the policies' returns since the first day, with the middle of the random pickers."""
    # Tables have all policies, the chart those that it can show apart.
    shown, drawn = colours(evaluation), evaluation.equity
    lines = {name: gain_percent(equity) for name, equity in drawn.items() if name in shown}
    low, high = (gain_percent(edge) for edge in evaluation.random_band)
    bands, title = {"random pickers, 5% to 95%": (low, high)}, "Return since the first day, %"
    return Chart(title, evaluation.dates, lines, bands=bands, note="After costs.", colours=shown)


class Bar(NamedTuple):
    """A bar of a page: where it begins and how long it is, its interval, and zero, in percent of the width, and whether
    it is told apart."""

    label: str
    text: str
    left: float
    width: float
    kind: str
    """"gain", "loss", or "none": neutral."""
    zero: float
    interval: Sequence[float]
    """Its ends; empty: none."""


def bars(rows: Sequence[tuple[Any, ...]]) -> list[Bar]:
    """Return bars from zero on one scale, by (label, value, text, sign: positive a gain, negative a loss, 0 neutral),
    perhaps with the ends of an interval."""
    values = [(0.0, value or 0.0, *interval) for _, value, _, _, *interval in rows]
    low, high = (edge(map(edge, values), default=0.0) for edge in (min, max))
    scale, kinds, found = 100.0 / ((high - low) or 1.0), {1: "gain", 0: "none", -1: "loss"}, list[Bar]()
    for (label, _, text, sign, *_), row in zip(rows, values, strict=True):
        zero, end, *interval = (round(scale * (value - low), 2) for value in row)
        found.append(Bar(label, text, min(zero, end), round(abs(end - zero), 2), kinds[sign], zero, interval))
    return found


def answer_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the champion's leads with their intervals; blue where it is better, red where worse, neutral else."""
    rows = []
    for one in evaluation.leads:
        mean, low, high = (number(value, 1, is_signed=True) for value in (one.test.mean, *one.test.interval))
        text = f"{mean} % a year, {low} to {high}: {one.word}"
        rows.append((f"over {one.policy}", one.test.mean, text, one.sign, *one.test.interval))
    return bars(rows)


def input_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the inputs that decide most, by the rank correlation that is lost when their values are shuffled."""
    worth = [*evaluation.importance.items()][:_DECIDING]
    return bars([(name, lost, number(lost, 3, is_signed=True), 0) for name, lost in worth])


def holding_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the stocks with the largest mean weight, of either sign."""
    weights = pd.DataFrame(100.0 * evaluation.played.weights, columns=[*evaluation.played.tickers])
    mean, last = weights.mean(), weights.iloc[-1]
    order = mean.abs().sort_values(ascending=False, kind="stable").index[:_DECIDING]
    told = {t: f"{number(mean[t], 1)} % in the mean, {number(last[t], 1)} % last" for t in order}
    return bars([(str(t), mean[t], text, 0) for t, text in told.items()])


def profit_bars(evaluation: Evaluation) -> list[Bar]:
    """Return the net profit of positions by stock, best first; of many stocks the extremes."""
    held, capital = evaluation.positions, evaluation.played.curves[evaluation.judged].capital
    net = 100.0 * (held["profit"] - held["costs"]) / capital
    sums = net.groupby(held["ticker"]).agg(["sum", "count"]).sort_values("sum", ascending=False, kind="stable")
    if len(sums) > 2 * _EXTREME_STOCKS:
        sums = pd.concat([sums[:_EXTREME_STOCKS], sums[-_EXTREME_STOCKS:]])
    rows = []
    for ticker, value, count in sums.itertuples():
        text = f"{number(value, 2, is_signed=True)} % of the capital in {many(count, 'position')}"
        rows.append((str(ticker), value, text, int(np.sign(value))))
    return bars(rows)


def gain_percent(equity: Float64Array) -> Float64Array:
    """Return the change since the first value in percent."""
    return np.asarray(100.0 * (equity / equity[0] - 1.0))


def fitness_chart(records: Records) -> Chart:
    """Draw the population's fitness and the champion's validation result from the records of metrics.jsonl."""
    lines = {
        "population mean": column(records, "fitness", "mean"),
        "validation result": column(records, "validation", "champion"),
        "benchmark": column(records, "validation", "benchmark"),
    }
    whole = column(records, "fitness", "min"), column(records, "fitness", "max")
    shown = zip(lines, (baselines.RANDOM, baselines.CHAMPION, baselines.EQUAL), strict=True)
    return Chart(
        "Profit by generation, % of the initial capital per episode",
        _generations(records),
        lines,
        bands={"population, lowest to highest": whole},
        colours={line: COLOURS[name] for line, name in shown},
        note="Of the population, its fitness on training days: by forecasts out of fold, over the benchmark, less the "
        "price of risk. The champion's validation result, and the benchmark's, are from days that neither training nor "
        "selection has seen.",
    )


def learning_charts(records: Records) -> list[Chart]:
    """Draw what is learned, from the records of metrics.jsonl: losses, what the elites earn, evidence and genes."""
    earned = "Mean of the elites over the training windows of the fitness, % of the capital."
    orders = "Of the champion's orders on training days, out of fold and net of costs."
    specs = [
        *((f"Loss: {name}", name, f"{name}_loss", note, "{:.3f}") for name, note in _LOSSES.items()),
        ("Profit of an episode, %", "elites", "elite_profit_percent", earned, _PERCENT),
        ("Over the benchmark, % a year", "champion", "evidence_excess", orders, _PERCENT),
        *((name.capitalize(), name, name, note, "{:.3f}") for name, note in _GENES.items()),
    ]
    return [
        Chart(
            title,
            _generations(records),
            {line: column(records, "learning", field)},
            end,
            note=note,
            has_zero=line != "actor",
        )
        for title, line, field, note, end in specs
    ]


def _generations(records: Records) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([record["generation"] for record in records], dtype=np.int64)


def column(records: Records, group: str, name: str) -> Float64Array:
    """Return a number of each record; NaN where it is missing or None."""
    return np.array([record[group].get(name) for record in records], dtype=np.float64)
