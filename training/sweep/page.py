"""The page and the short table of a sweep: its trials, profit by each setting, and how overfit the selection is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.evaluation.page.document import document, shown_settings
from training.sweep.study import ranked
from utils.charts import Chart, FloatArray
from utils.config.trader import Config
from utils.tables import table

LISTED = 10
"""Trials of the table on the terminal."""


def short_table(outcome: dict[str, Any]) -> str:
    """Return the best trials, and how overfit the selection among all of them is, as text."""
    rows = [
        {
            "trial": one["number"],
            "median %": one["value"],
            "by seed %": " ".join(f"{profit:+.2f}" for profit in one["profits"]),
            **{name.rpartition(".")[2]: _word(value) for name, value in one["settings"].items()},
        }
        for one in ranked(outcome["tried"])[:LISTED]
    ]
    best, trials = outcome["best"]["number"], len(outcome["tried"])
    overfit, deflated = (
        "unknown" if outcome[name] is None else f"{outcome[name]:.2f}"
        for name in ("overfitting_probability", "deflated_sharpe")
    )
    lines = [
        f"trial {best} is the best of {trials} on validation days: a result biased upwards",
        f"probability of backtest overfitting: {overfit}",
        f"deflated Sharpe ratio over equal weight: {deflated}",
        f"verdict on its median seed: {outcome['sentence']}",
    ]
    return f"{table(rows, list(rows[0]))}\n\n" + "\n".join(lines)


def render(outcome: dict[str, Any], config: Config) -> str:
    """Return the page about a sweep, whose best settings are `config`, as HTML text."""
    states = [one["state"] for one in outcome["tried"]]
    shown = [one for one in outcome["tried"] if one["state"] != "failed"]
    profits = np.array([one["value"] for one in shown])
    return document(
        "sweep.html",
        f"{outcome['sweep']}: sweep of {len(states)} trials",
        folder=Path(__file__).parent,
        outcome=outcome,
        config=config,
        trials=ranked(outcome["tried"]),
        counts={state: states.count(state) for state in ("given up", "failed")},
        history=_history(shown, profits),
        by_setting=[_by_setting(shown, profits, name) for name in outcome["space"]],
        labels=[name.rpartition(".")[2].replace("_", " ") for name in outcome["space"]],
        word=_word,
        settings=shown_settings(config),
    )


def _history(shown: Sequence[dict[str, Any]], profits: FloatArray) -> Chart:
    """Draw the profits of trials in order, and the best so far."""
    return Chart(
        "Profit of the trials on validation days, %",
        np.array([one["number"] for one in shown]),
        {"best so far": np.maximum.accumulate(profits)},
        points={"trials": (np.array([one["number"] for one in shown]), profits)},
        note="Median over the seeds of each trial, and the best so far.",
    )


def _by_setting(shown: Sequence[dict[str, Any]], profits: FloatArray, name: str) -> Chart:
    """Draw the profits of trials by a setting; one that is no number by the places of its values."""
    values, note = [one["settings"][name] for one in shown], ""
    if not all(isinstance(value, int | float) for value in values):
        choices = sorted(set(values))
        note = ", ".join(f"{place}: {choice}" for place, choice in enumerate(choices))
        values = [choices.index(value) for value in values]
    return Chart(name, np.unique(values), points={"trials": (np.array(values), profits)}, note=note)


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
