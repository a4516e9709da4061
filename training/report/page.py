"""Runs side by side: what differs between them, what can be compared, and the page and table that show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from training.evaluation.page.write import document, shown_settings
from training.report.charts import equity_chart, learning_charts
from training.report.reported import DIFFERENCES, ReportedRun
from utils.config.settings import to_dict
from utils.tables import table

MEASURES = ("return", "sharpe", "max_drawdown", "exposure", "beta", "trades", "costs")
"""Keys of `METRICS` that are shown."""
SAME_GROUND = "All runs were judged on the same validation days of the same data"
OTHER_GROUND = "The runs were judged on different days, data or stocks: compare results only within a group."
MARKETS = (
    "Returns, Sharpe ratios, drawdowns, fitness and curves are as much the market's as the champion's.",
    "Profits over equal weight and over pickers are taken on each run's own days: they may be laid side by side, but "
    "rank no runs.",
)
CHOICE = (
    "Whoever takes the best of these runs chooses on validation days: the best of {count} results flatters its run. "
    "Days that chose nothing judge it: python main.py evaluate --split holdout, once."
)
_OF_THE_FOLDER = {"run", "resume", "runs_dir"}


def render(runs: Sequence[ReportedRun]) -> str:
    """Return the page as HTML text."""
    names = [run.name for run in runs]
    return document(
        "runs.html",
        f"{names[0]}: report" if len(runs) == 1 else f"{len(runs)} runs side by side",
        runs=runs,
        cautions=cautions(runs),
        measures=MEASURES,
        differences=DIFFERENCES,
        settings=differing_settings(runs),
        equity=equity_chart(runs, with_equal_weight=is_same_ground(runs) and not differing_rules(runs)),
        learning=learning_charts(runs),
    )


def short_table(runs: Sequence[ReportedRun]) -> str:
    """Return the results of the runs on validation days, their time and memory, in one table."""
    return table([_row(run) for run in runs], list(_row(runs[0])))


def _row(run: ReportedRun) -> dict[str, Any]:
    found = run.validation
    row: dict[str, Any] = {"run": run.name}
    for key, label in (
        ("return", "return %"),
        ("sharpe", "Sharpe"),
        ("max_drawdown", "drawdown %"),
        ("exposure", "exposed %"),
    ):
        row[label] = found and found.measure(key).value
    for key, label in (("over_equal_weight", "over equal"), ("over_random_picker", "over pickers")):
        difference = found and found.differences.get(key)
        row[label] = difference and difference.value
    return row | {"seconds": run.seconds, "MiB": run.peak_mb}


def differing_settings(runs: Sequence[ReportedRun]) -> list[tuple[str, list[str]]]:
    """Return the settings in which the runs differ, each with its value of every run, without credentials."""
    shown = [dict(shown_settings(to_dict(run.config))) for run in runs]
    return [
        (name, [values[name] for values in shown])
        for name in shown[0]
        if name not in _OF_THE_FOLDER and len({values[name] for values in shown}) > 1
    ]


def differing_rules(runs: Sequence[ReportedRun]) -> list[str]:
    """Return the names of the trading rules in which the runs differ."""
    return [name for name, _ in differing_settings(runs) if name.startswith("env.")]


def is_same_ground(runs: Sequence[ReportedRun]) -> bool:
    """Tell whether all runs were judged on the same days, data and stocks."""
    return all(run.setup == runs[0].setup for run in runs) and runs[0].market is not None


def cautions(runs: Sequence[ReportedRun]) -> list[str]:
    """Return what a reader must know before comparing the runs, the most important first."""
    texts, rules = list[str](), differing_rules(runs)
    if len(runs) > 1 and not is_same_ground(runs):
        texts += [OTHER_GROUND, f"Groups: {_groups(runs)}.", *MARKETS]
    elif len(runs) > 1:
        texts.append(SAME_GROUND + (", but under other trading rules." if rules else ": results can be compared."))
    if rules:
        texts.append(
            f"The trading rules differ ({', '.join(rules)}): money earned under some cannot be compared with money "
            "earned under others."
        )
    for run in runs:
        last = run.records[-1]["generation"] if run.records else 0
        if run.validation is None:
            texts.append(f"{run.name} has not been judged: let it end, or python main.py evaluate --run {run.name}.")
        elif run.validation.generation < last:
            texts.append(
                f"{run.name} was judged at generation {run.validation.generation} and has been trained to generation "
                f"{last} since: python main.py evaluate --run {run.name}."
            )
    judged = sum(run.validation is not None for run in runs)
    if judged > 1:
        texts.append(CHOICE.format(count=judged))
    return texts


def _groups(runs: Sequence[ReportedRun]) -> str:
    """List the runs, and validation days, that were judged on the same days, data and stocks."""
    groups: list[list[ReportedRun]] = []
    for run in runs:
        own = next((group for group in groups if group[0].setup == run.setup), None)
        if own is None:
            groups.append([run])
        else:
            own.append(run)
    return "; ".join(f"{', '.join(run.name for run in group)} ({group[0].days})" for group in groups)
