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

from training.evaluation.baselines import CHAMPION, EQUAL
from training.evaluation.export import EQUITY, RESULTS
from training.sweep.space import SweepPlan, run_name
from training.sweep.study import values_of
from utils.config.settings import flatten, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.metrics import YEAR_ROOT, daily_returns
from utils.statistics import deflated_ratio, expected_best_sharpe, overfitting_probability

if TYPE_CHECKING:
    from optuna import Study

Array = npt.NDArray[np.float64]
_OWN = ("run", "resume", "runs_dir", "seed", "device", "threads", "memory_limit_mb", "verbose")
"""Settings that are left out of a file of the best ones: they are those of one run or machine."""


def results_of(run: Path) -> dict[str, Any]:
    """Return the results of a finished run's champion on validation days."""
    return dict(json.loads((run / RESULTS).read_text(encoding="utf-8")))


def profit_of(run: Path) -> float:
    """Return the profit of a finished run's champion on validation days, percent."""
    return float(results_of(run)["policies"][CHAMPION]["return"]["value"])


def outcome_of(folder: Path, plan: SweepPlan, config: Config, study: Study) -> dict[str, Any]:
    """Summarise a sweep whose trials have all ended, as JSON values without times: equal sweeps give equal ones.

    Raises ConfigError where no trial was trained on all seeds.
    """
    tried = [values_of(trial) for trial in study.trials]
    complete = [one for one in tried if one["state"] == "complete"]
    if not complete:
        raise ConfigError(
            f"expected a trial that ends, got {len(tried)} that failed, the first: {tried[0]['error']}; start a new "
            "sweep"
        )
    best = max(complete, key=lambda one: float(one["value"]))
    shown = [one for one in tried if one["state"] != "failed"]
    champion, equal = _daily_returns(folder, shown, plan.seeds, config.seed)
    # Means over seeds: the return of an account split evenly among them.
    excess = np.nanmean(champion - equal, axis=1)
    deviation = excess.std(axis=1, ddof=1)
    ratios = np.divide(excess.mean(axis=1), deviation, out=np.zeros(len(shown)), where=deviation > 1e-12)
    threshold = expected_best_sharpe(float(ratios.std(ddof=1)) if len(shown) > 1 else 0.0, len(shown))
    median_seed = config.seed + best["profits"].index(statistics.median_low(best["profits"]))
    verdict = results_of(folder / run_name(best["number"], median_seed))["verdict"]
    return {
        "sweep": folder.name,
        "trials": plan.trials,
        "seeds": [config.seed + place for place in range(plan.seeds)],
        "space": plan.space,
        "best": best,
        # PBO of all trials' daily profits. Their sum is monotone in the profit that trials are compared by.
        "overfitting_probability": overfitting_probability(np.log1p(np.maximum(champion, -0.999999))),
        # Probability that the best trial's true Sharpe ratio over equal weight is above that of the best of all trials
        # without skill, which follows per year.
        "deflated_sharpe": deflated_ratio(excess[shown.index(best)], threshold),
        "expected_best_sharpe": YEAR_ROOT * threshold,
        # The verdict on the champion of its median seed, which allows for the number of trials.
        "sentence": verdict["sentence"],
        "tried": tried,
    }


def _daily_returns(folder: Path, shown: Sequence[dict[str, Any]], seeds: int, first_seed: int) -> tuple[Array, Array]:
    """Return the daily returns of champions and of equal weight, (trials, seeds, days) each; NaN for no such run."""
    curves = {
        (row, place): pd.read_csv(folder / run_name(one["number"], first_seed + place) / EQUITY)
        for row, one in enumerate(shown)
        for place in range(len(one["profits"]))
    }
    days = len(next(iter(curves.values()))) - 1
    champion, equal = np.full((2, len(shown), seeds, days), np.nan)
    for place, curve in curves.items():
        champion[place], equal[place] = (daily_returns(curve[name].to_numpy()) for name in (CHAMPION, EQUAL))
    return champion, equal


def toml_of(config: Config, comment: str) -> str:
    """Return settings as a TOML file for --config, without those of one run or machine."""
    lines, table = [f"# {comment}"], ""
    for name, value in flatten(to_dict(config)).items():
        concern, _, key = name.rpartition(".")
        if concern != table:
            lines.append(f"[{concern}]")
            table = concern
        if value is not None and name not in _OWN:
            # Numbers, strings and truth values are written alike in JSON and TOML.
            lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"
