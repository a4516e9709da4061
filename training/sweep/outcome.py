"""Results of a sweep: its trials, the best one, and how overfit the selection of the best is."""

import dataclasses
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from training.evaluation.baselines import CHAMPION, EQUAL
from training.evaluation.export import EQUITY
from training.sweep.space import SweepPlan, run_name
from training.sweep.study import Trial, importances
from utils.config.settings import flatten, to_dict, with_settings
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.metrics import YEAR_ROOT, daily_returns
from utils.runs.run_log import SUMMARY
from utils.statistics import deflated_ratio, expected_best_sharpe, overfitting_probability

Array = npt.NDArray[np.float64]
_OWN = ("run", "resume", "runs_dir", "seed", "device", "threads", "memory_limit_mb", "verbose")
"""Settings that are left out of a file of the best ones: they are those of one run or machine."""


@dataclass(frozen=True)
class Outcome:
    """A sweep that has ended."""

    name: str
    plan: SweepPlan
    config: Config
    """Settings that all trials share."""
    tried: list[Trial]
    """By number."""
    best: Trial
    """Complete trial of the highest value."""
    sentence: str
    """The verdict on the champion of its median seed, which allows for the number of trials."""
    importances: dict[str, float]
    overfitting_probability: float | None
    """PBO of all trials' daily profits; see `overfitting_probability`."""
    deflated_sharpe: float | None
    """Probability that the best trial's true Sharpe ratio over equal weight is above that of the best of all trials
    without skill."""
    expected_best_sharpe: float
    """That ratio, a year."""

    @property
    def best_config(self) -> Config:
        """Return the settings of the best trial."""
        return with_settings(self.config, self.best.settings)


def profit_of(run: Path) -> float:
    """Return the profit of a finished run's champion on validation days, percent."""
    summary = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
    return float(summary["champion"]["validation"][CHAMPION]["return %"])


def outcome_of(folder: Path, plan: SweepPlan, config: Config, tried: list[Trial]) -> Outcome:
    """Summarise a sweep whose trials have all ended, from its record and the files of its runs.

    Raises ConfigError where no trial was trained on all seeds.
    """
    complete = [one for one in tried if one.state == "complete"]
    if not complete:
        raise ConfigError(
            f"expected a trial that ends, got {len(tried)} that failed, the first: {tried[0].error}; start a new sweep"
        )
    best = max(complete, key=lambda one: one.value)
    shown = [one for one in tried if one.state != "failed"]
    champion, equal = _daily_returns(folder, shown, plan.seeds, config.seed)
    # Means over seeds: the return of an account split evenly among them.
    excess = np.nanmean(champion - equal, axis=1)
    deviation = excess.std(axis=1, ddof=1)
    ratios = np.divide(excess.mean(axis=1), deviation, out=np.zeros(len(shown)), where=deviation > 1e-12)
    spread = float(ratios.std(ddof=1)) if len(shown) > 1 else 0.0
    threshold = expected_best_sharpe(spread, len(shown))
    median_seed = config.seed + best.profits.index(statistics.median_low(best.profits))
    summary = json.loads((folder / run_name(best.number, median_seed) / SUMMARY).read_text(encoding="utf-8"))
    return Outcome(
        folder.name,
        plan,
        config,
        tried,
        best,
        summary["champion"]["verdict"]["validation"]["sentence"],
        importances(tried, plan.distributions),
        # Their sum is monotone in the profit that trials are compared by.
        overfitting_probability(np.log1p(np.maximum(champion, -0.999999))),
        deflated_ratio(excess[shown.index(best)], threshold),
        YEAR_ROOT * threshold,
    )


def _daily_returns(folder: Path, shown: Sequence[Trial], seeds: int, first_seed: int) -> tuple[Array, Array]:
    """Return the daily returns of champions and of equal weight, (trials, seeds, days) each; NaN for no such run."""
    curves = {
        (row, place): pd.read_csv(folder / run_name(one.number, first_seed + place) / EQUITY)
        for row, one in enumerate(shown)
        for place in range(len(one.profits))
    }
    days = len(next(iter(curves.values()))) - 1
    champion, equal = np.full((2, len(shown), seeds, days), np.nan)
    for place, curve in curves.items():
        champion[place], equal[place] = (daily_returns(curve[name].to_numpy()) for name in (CHAMPION, EQUAL))
    return champion, equal


def values_of(outcome: Outcome) -> dict[str, Any]:
    """Return the results as JSON values, without times, so that equal sweeps give equal files."""
    trials = [{**dataclasses.asdict(one), "value": one.value} for one in outcome.tried]
    return {
        "sweep": outcome.name,
        "trials": outcome.plan.trials,
        "seeds": [outcome.config.seed + place for place in range(outcome.plan.seeds)],
        "space": outcome.plan.space,
        "best": trials[outcome.best.number],
        "overfitting_probability": outcome.overfitting_probability,
        "deflated_sharpe": outcome.deflated_sharpe,
        "expected_best_sharpe": outcome.expected_best_sharpe,
        "importances": outcome.importances,
        "sentence": outcome.sentence,
        "tried": trials,
    }


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
