"""A run as its files tell it: nothing is played, and of holdout days only what was looked at before is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.record import MarketRecord, read_record
from training.evaluation.assessment import METRICS, Estimate
from training.evaluation.holdout import Look, looks_beside
from training.evaluation.tables import EQUITY, RESULTS, SHORT
from training.evaluation.tracks import CHAMPION, EQUAL
from training.run.market import MARKET
from utils.charts import DASH, Dates, FloatArray
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.run_log import SUMMARY, RunLog

VALIDATION, HOLDOUT = "evaluation-validation", "evaluation-holdout"
DIFFERENCES = {
    "over_equal_weight": "Over equal weight",
    "over_random_picker": "Over pickers (choice)",
    "timing": "Timing",
    "over_best_rival": "Over best rival",
}
"""Parts and differences of a champion's profit that are shown, by their names in the files."""


@dataclass(frozen=True)
class Judged:
    """A champion's result on some days."""

    generation: int
    """Of the champion."""
    measures: dict[str, Estimate]
    """By the keys of `METRICS`; what the files do not tell is left out."""
    differences: dict[str, Estimate]
    """By the keys of `DIFFERENCES`, percent of the initial capital a year."""
    sentence: str
    """The verdict."""
    best_rival: str | None
    dates: Dates
    """(T,) days of the curves; (0,) where no file tells them."""
    curves: dict[str, FloatArray]
    """(T,) equity of the champion and of equal weight."""

    def measure(self, key: str) -> Estimate:
        """Return a measure, of unknown value where the files do not tell it."""
        return self.measures.get(key, Estimate(None))


@dataclass(frozen=True)
class ReportedRun:
    """A run's settings, its market's days, its records, and what was found of its champion."""

    name: str
    config: Config
    market: MarketRecord | None
    """None for a run that was stopped before its market was known."""
    records: list[dict[str, Any]]
    """Of metrics.jsonl."""
    summary: dict[str, Any]
    """Of summary.json; empty for a run that has not ended."""
    validation: Judged | None
    holdout: Judged | None
    """None where no look at these days is in the ledger, whatever files there are."""
    looks: list[Look]
    """At the run's holdout by all runs on its data, if the run itself was looked at."""

    @property
    def setup(self) -> tuple[Any, ...]:
        """Return what two runs must share for their results to be of the same days, data and stocks."""
        market = self.market
        return (
            ()
            if market is None
            else (market.splits["validation"], market.investable, sorted(market.fingerprints.items()))
        )

    @property
    def days(self) -> str:
        """Return the first and last validation day."""
        return DASH if self.market is None else " to ".join(self.market.splits["validation"])

    @cached_property
    def seconds(self) -> float:
        """Return the seconds of all generations together."""
        return float(sum(record["seconds"]["total"] for record in self.records))

    @property
    def peak_mb(self) -> float | None:
        """Return the largest resident memory (MiB), of a run that has not ended at the end of a generation."""
        known = [record["memory"]["rss_mb"] for record in self.records]
        return self.summary.get("peak_rss_mb", max(known, default=None))


def read_run(runs_dir: Path, name: str) -> ReportedRun:
    """Read a run's files.

    Raises:
        ConfigError: there is no such run, or a file of it is damaged.
        DataError: its record of the market is.
    """
    run = RunLog.open(runs_dir, name)
    looks = looks_beside(runs_dir, name)
    summary = _json(run.path / SUMMARY)
    market = _json(run.path / MARKET)
    found = [_evaluated(run.path / VALIDATION), _summed_up(summary, run.path)]
    return ReportedRun(
        name=name,
        config=run.settings(Config),
        market=read_record(market, str(run.path / MARKET)) if market else None,
        records=run.records(),
        summary=summary,
        # An evaluation tells more, but may be of a champion that has been trained further since.
        validation=max((one for one in found if one), key=lambda one: one.generation, default=None),
        holdout=_evaluated(run.path / HOLDOUT) if looks else None,
        looks=looks,
    )


def _json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds, nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"expected JSON in {path}, got: {error}; make it again or delete it") from None


def _evaluated(folder: Path) -> Judged | None:
    """Read what `evaluate` wrote."""
    values = _json(folder / RESULTS)
    if not values:
        return None
    try:
        measures = {key: Estimate(**values["policies"][CHAMPION][key]) for key in METRICS}
        return _judged(values["champion_generation"], measures, values["verdict"], folder)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"expected results of this version in {folder}, got {error}; evaluate the run again"
        ) from None


def _summed_up(summary: Mapping[str, Any], folder: Path) -> Judged | None:
    """Read what a run wrote about its champion when it ended."""
    if not summary.get("champion"):
        return None
    try:
        champion = summary["champion"]
        row = champion["validation"][CHAMPION]
        measures = {key: Estimate(row[label]) for key, label in SHORT.items() if label in row}
        return _judged(champion["generation"], measures, champion["verdict"]["validation"], folder)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"expected a summary of this version in {folder / SUMMARY}, got {error}; delete it, and evaluate the run"
        ) from None


def _judged(generation: int, measures: dict[str, Estimate], verdict: Mapping[str, Any], folder: Path) -> Judged:
    yearly = verdict["percent_a_year"]
    return Judged(
        generation=generation,
        measures=measures,
        differences={
            key: Estimate(yearly[key]["mean"], *yearly[key]["interval"]) for key in DIFFERENCES if key in yearly
        },
        sentence=verdict["sentence"],
        best_rival=verdict["best_rival"],
        **_curves(folder / EQUITY),
    )


def _curves(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"dates": np.empty(0, dtype="datetime64[D]"), "curves": {}}
    try:
        frame = pd.read_csv(path, usecols=["date", CHAMPION, EQUAL])
        dates = frame["date"].to_numpy(dtype="datetime64[D]")
        return {"dates": dates, "curves": {name: frame[name].to_numpy(dtype=np.float64) for name in (CHAMPION, EQUAL)}}
    except ValueError as error:
        raise ConfigError(f"expected equity by date in {path}, got: {error}; evaluate the run again") from None
