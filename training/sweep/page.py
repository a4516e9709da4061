"""The page and the short table of a sweep: its trials, which settings matter, and how overfit the selection is."""

import base64
from io import BytesIO
from pathlib import Path
from typing import Any

from training.evaluation.page.document import document, shown_settings
from training.sweep.outcome import Outcome
from training.sweep.study import State, Trial, quiet, valued_study
from utils.config.settings import to_dict
from utils.tables import table

LISTED = 10
"""Trials of the table on the terminal."""


def short_table(outcome: Outcome) -> str:
    """Return the best trials, and how overfit the selection among all of them is, as text."""
    rows = [
        {
            "trial": one.number,
            "median %": one.value,
            "by seed %": " ".join(f"{profit:+.2f}" for profit in one.profits),
            **{name.rpartition(".")[2]: _word(value) for name, value in one.settings.items()},
        }
        for one in ranked(outcome)[:LISTED]
    ]
    overfit, deflated = outcome.overfitting_probability, outcome.deflated_sharpe
    lines = [
        f"trial {outcome.best.number} is the best of {len(outcome.tried)} on validation days: a result biased upwards",
        f"probability of backtest overfitting: {'unknown' if overfit is None else f'{overfit:.2f}'}",
        f"deflated Sharpe ratio over equal weight: {'unknown' if deflated is None else f'{deflated:.2f}'}",
        f"verdict on its median seed: {outcome.sentence}",
    ]
    return f"{table(rows, list(rows[0]))}\n\n" + "\n".join(lines)


def ranked(outcome: Outcome) -> list[Trial]:
    """Return the trials trained on all seeds, the best first, then the pruned ones, then those that failed."""
    order: list[State] = ["complete", "given up", "failed"]
    return sorted(
        outcome.tried, key=lambda one: (order.index(one.state), -one.value if one.profits else 0.0, one.number)
    )


def render(outcome: Outcome) -> str:
    """Return the page as HTML text."""
    return document(
        "sweep.html",
        f"{outcome.name}: sweep of {len(outcome.tried)} trials",
        folder=Path(__file__).parent,
        outcome=outcome,
        trials=ranked(outcome),
        counts={state: sum(one.state == state for one in outcome.tried) for state in ("given up", "failed")},
        first_seed=outcome.config.seed,
        pictures=_pictures(outcome),
        labels=[name.rpartition(".")[2].replace("_", " ") for name in outcome.plan.space],
        word=_word,
        settings=shown_settings(to_dict(outcome.best_config)),
    )


def _pictures(outcome: Outcome) -> dict[str, str]:
    """Return Optuna's charts of the trials that did not fail, as base64 of PNG files."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as charts

    drawings: dict[str, Any] = {
        "history": charts.plot_optimization_history,
        "coordinates": charts.plot_parallel_coordinate,
    }
    study, found = valued_study(outcome.tried, outcome.plan.distributions), {}
    for name, draw in drawings.items():
        with quiet():
            figure = draw(study, target_name="Profit, %").figure
        file = BytesIO()
        figure.savefig(file, format="png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)
        found[name] = base64.b64encode(file.getvalue()).decode()
    return found


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
