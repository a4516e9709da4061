"""One self-contained page about an evaluation: text and tables from a template, charts as inline SVG."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from training.evaluation import charts
from training.evaluation.baselines import CHAMPION
from training.evaluation.judge import Evaluation
from training.evaluation.measures import METRICS, Estimate
from training.evaluation.page.document import Scale, document, shown_settings, write_document
from training.evaluation.verdict import TAIL
from utils.charts import Dates, FloatArray
from utils.metrics import daily_returns

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the page in one step: `path` holds the old page or the whole new one. OSError where that fails."""
    write_document(render(evaluation), path)


def render(evaluation: Evaluation) -> str:
    """Return the page as HTML text."""
    records, rows = evaluation.records, evaluation.verdict.rows
    monthly = monthly_returns(evaluation.dates, evaluation.equity[CHAMPION])
    return document(
        "page.html",
        evaluation.title,
        metrics=METRICS,
        limit=TAIL,
        report=evaluation,
        facts=_facts(evaluation),
        differences=[(name, Estimate(test.mean, *test.interval), p_value) for name, test, p_value in rows],
        scale=Scale(test for _, test, _ in rows),
        champion=evaluation.policies[CHAMPION],
        equity=charts.equity_chart(evaluation),
        drawdown=charts.drawdown_chart(evaluation),
        monthly=monthly,
        largest_month=float(np.nanmax(np.abs([percent for _, percent, _ in monthly]), initial=0.0)),
        months=MONTHS,
        traded=charts.traded_stocks(evaluation),
        exits=charts.EXITS,
        costs=charts.cost_chart(evaluation),
        fitness=charts.fitness_chart(records) if records else None,
        memory=charts.memory_by_generation(records, evaluation.config.memory_limit_mb) if records else None,
        settings=shown_settings(evaluation.config),
        command=evaluation.command,
    )


def _facts(evaluation: Evaluation) -> dict[str, Any]:
    """Say what was judged, and on what."""
    config, market, played = evaluation.config, evaluation.market, evaluation.played
    facts = {
        "Run": evaluation.name,
        "Split": evaluation.split,
        "Days": f"{evaluation.dates[0]} to {evaluation.dates[-1]}",
        "Champion": evaluation.champion_generation and f"of generation {evaluation.champion_generation}",
        "Data": "built-in market" if config.data is None else config.data.name,
        "Windows": f"{len(played.days)} of {played.days.shape[1] - 1} sessions, one after the other",
        "Stocks": f"{len(market.investable_columns):,} of {len(market.tickers):,}",
        "Generations": evaluation.records[-1]["generation"] if evaluation.records else None,
    }
    for fold in evaluation.folds:
        tested, champion = " to ".join(fold.dates["holdout"]), f"champion of generation {fold.champion_generation}"
        facts[fold.name] = f"tested {tested}, {champion}, {fold.return_percent:+.2f}%"
    facts |= {"Seed": config.seed, "Device": evaluation.device}
    return {name: value for name, value in facts.items() if value is not None}


def monthly_returns(dates: Dates, equity: FloatArray) -> list[tuple[int, FloatArray, float]]:
    """Return each year with its returns in percent by month, from month's end to month's end, and compounded.

    `dates` and `equity` are (T,); the first value is the equity before the first return. A month without days is NaN.
    """
    growth = pd.Series(1.0 + daily_returns(equity), pd.DatetimeIndex(dates[1:]))
    years = growth.index.year
    months = growth.groupby([years, growth.index.month]).prod().unstack().reindex(columns=range(1, 13))
    rows = zip(months.index, months.to_numpy(), growth.groupby(years).prod(), strict=True)
    return [(year, 100.0 * (row - 1.0), 100.0 * (whole - 1.0)) for year, row, whole in rows]
