"""Results of a sweep: its trials, the best one, and how overfit the selection of the best is."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from training.evaluation.baselines import CHAMPION
from training.evaluation.export import EQUITY, RESULTS
from training.sweep.space import SweepPlan, run_name
from training.sweep.study import values_of
from utils.errors import ConfigError
from utils.metrics import YEAR_ROOT, daily_returns
from utils.statistics import expected_maximum, overfitting_probability, probabilistic_sharpe_ratio
from utils.tables import table

if TYPE_CHECKING:
    from optuna import Study


def results_of(run: Path) -> dict[str, Any]:
    """Return the results of a finished run's champion on validation days."""
    return dict(json.loads((run / RESULTS).read_text(encoding="utf-8")))


def outcome_of(folder: Path, plan: SweepPlan, first_seed: int, study: Study) -> dict[str, Any]:
    """Summarise a sweep whose trials have all ended, as JSON values without times: equal sweeps give equal ones.

    Raises ConfigError where no trial was trained on all seeds.
    """
    tried = [values_of(trial) for trial in study.trials]
    complete = [one for one in tried if one["state"] == "complete"]
    if not complete:
        raise ConfigError(f"expected a trial that ends, got {len(tried)} that failed, the first: {tried[0]['error']}")
    best = max(complete, key=lambda one: float(one["value"]))
    shown = [one for one in tried if one["state"] != "fail"]
    runs = [[folder / run_name(one["number"], first_seed + place) for place in range(plan.seeds)] for one in shown]
    champion, held = _daily_returns(runs)
    # Means over seeds: the return of an account split evenly among them.
    excess = np.nanmean(champion - held, axis=1)
    deviation = excess.std(axis=1, ddof=1)
    ratios = np.divide(excess.mean(axis=1), deviation, out=np.zeros(len(shown)), where=deviation > 1e-12)
    threshold = expected_maximum(float(ratios.std(ddof=1)) if len(shown) > 1 else 0.0, len(shown))
    median_run = runs[shown.index(best)][best["profits"].index(statistics.median_low(best["profits"]))]
    return {
        "sweep": folder.name,
        "trials": plan.trials,
        "seeds": [first_seed + place for place in range(plan.seeds)],
        "space": plan.space,
        "best": best,
        # PBO of all trials' daily profits. Their sum is monotone in the profit that trials are compared by.
        "overfitting_probability": overfitting_probability(np.log1p(np.maximum(champion, -0.999999))),
        # Probability that the best trial's true Sharpe ratio over the benchmark is above that of the best of all trials
        # without skill, which follows per year.
        "deflated_sharpe": probabilistic_sharpe_ratio(excess[shown.index(best)], threshold),
        "expected_best_sharpe": YEAR_ROOT * threshold,
        # The verdict on the champion of its median seed, which allows for the number of trials.
        "sentence": results_of(median_run)["verdict"]["sentence"],
        "tried": tried,
    }


def _daily_returns(runs: Sequence[Sequence[Path]]) -> npt.NDArray[np.float64]:
    """Return daily returns of champions and of the benchmark, (2, trials, seeds, days); NaN where there is no run."""
    curves = {
        (row, place): daily_returns(pd.read_csv(run / EQUITY)[[CHAMPION, results_of(run)["benchmark"]]].to_numpy().T)
        for row, seeds in enumerate(runs)
        for place, run in enumerate(seeds)
        if (run / EQUITY).is_file()
    }
    returns = np.full((2, len(runs), len(runs[0]), next(iter(curves.values())).shape[1]), np.nan)
    for (row, place), curve in curves.items():
        returns[:, row, place] = curve
    return returns


def report(outcome: dict[str, Any]) -> str:
    """Return all trials, the best first, and how overfit the selection of the best is, as text."""
    rows = [
        {
            "trial": one["number"],
            "state": one["state"],
            "median %": one["value"],
            "by seed %": " ".join(f"{profit:+.2f}" for profit in one["profits"]),
            **{
                name.rpartition(".")[2]: f"{value:.4g}" if isinstance(value, float) else value
                for name, value in one["settings"].items()
            },
            "error": one["error"],
        }
        for one in sorted(outcome["tried"], key=lambda one: (one["state"], -one["value"]))
    ]
    overfit, deflated = outcome["overfitting_probability"], outcome["deflated_sharpe"]
    return (
        f"{table(rows, list(rows[0]))}\n\n"
        f"trial {outcome['best']['number']} is the best of {len(rows)} on validation days: a result biased upwards\n"
        f"probability of backtest overfitting: {'unknown' if overfit is None else f'{overfit:.2f}'}\n"
        f"deflated Sharpe ratio over the benchmark: {'unknown' if deflated is None else f'{deflated:.2f}'}\n"
        f"verdict on its median seed: {outcome['sentence']}"
    )
