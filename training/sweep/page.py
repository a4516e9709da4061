"""The page and the short table of a sweep: its trials, which settings matter, and how overfit the selection is."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.evaluation.page.document import document, shown_settings
from training.sweep.study import quiet, ranked, valued_study
from utils.config.settings import to_dict
from utils.config.trader import Config
from utils.tables import table

if TYPE_CHECKING:
    from optuna import Study

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


def render(outcome: dict[str, Any], study: Study, config: Config) -> str:
    """Return the page about a sweep, whose best settings are `config`, as HTML text."""
    states = [one["state"] for one in outcome["tried"]]
    return document(
        "sweep.html",
        f"{outcome['sweep']}: sweep of {len(states)} trials",
        folder=Path(__file__).parent,
        outcome=outcome,
        config=config,
        trials=ranked(outcome["tried"]),
        counts={state: states.count(state) for state in ("given up", "failed")},
        pictures=_pictures(study),
        labels=[name.rpartition(".")[2].replace("_", " ") for name in outcome["space"]],
        word=_word,
        settings=shown_settings(to_dict(config)),
    )


@quiet()
def _pictures(study: Study) -> dict[str, str]:
    """Return Optuna's charts of the trials that did not fail, as base64 of PNG files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as charts

    drawings: dict[str, Any] = {
        "history": charts.plot_optimization_history,
        "coordinates": charts.plot_parallel_coordinate,
    }
    valued, pictures = valued_study(study), {}
    for name, draw in drawings.items():
        figure, file = draw(valued, target_name="Profit, %").figure, BytesIO()
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        pictures[name] = base64.b64encode(file.getvalue()).decode()
    return pictures


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
