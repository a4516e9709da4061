"""The command `report`: runs side by side, read from their files: what differs, what can be compared, table and page.

Nothing is played, and nothing of holdout days is read.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from data.record import MARKET, MarketRecord, read_record
from training.commands.table import ReportArguments
from training.evaluation.baselines import CHAMPION, EQUAL
from training.evaluation.export import EQUITY, RESULTS, SHORT
from training.evaluation.measures import METRICS, Estimate
from training.evaluation.page.document import document, shown_settings, write_document
from utils.charts import DASH, Chart
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.run_log import REPORT, SUMMARY, RunLog
from utils.tables import table

logger = logging.getLogger(__name__)
DIFFERENCES = {
    "over_equal_weight": "Over equal weight",
    "over_random_picker": "Selection",
    "timing": "Timing",
    "over_best_rival": "Over best baseline",
}
"""Parts and differences of a champion's profit that are shown, by their names in the files."""
MEASURES = ("return", "sharpe", "max_drawdown", "exposure", "beta", "trades", "costs")
"""Keys of `METRICS` that are shown."""
SAME_DAYS = "All runs were judged on the same validation days of the same data"
OTHER_DAYS = (
    "The runs were judged on different days, data or stocks: returns, ratios and curves depend as much on these as on "
    "the champion, and profits over others refer to each run's own days. They do not rank runs."
)
BEST_OF_MANY = (
    "Picking the best of these runs is a choice on validation days: the best of {count} results is biased upwards. "
    "Judge it on days on which nothing was chosen: python main.py evaluate --split holdout, once."
)
_OF_THE_FOLDER = {"run", "resume", "runs_dir"}


@dataclass(frozen=True)
class Judged:
    """A champion's result on some days."""

    generation: int
    measures: dict[str, Estimate]
    """By the keys of `METRICS`; of unknown value where the files do not hold it."""
    differences: dict[str, Estimate]
    """By the keys of `DIFFERENCES`, percent of the initial capital a year."""
    sentence: str
    best_baseline: str | None
    equity: pd.DataFrame | None
    """Of the champion and of equal weight by day; None where no file holds it."""


@dataclass(frozen=True)
class ReportedRun:
    """A run's settings, its market's days, its records, and its champion's results."""

    name: str
    config: Config
    market: MarketRecord | None
    """None for a run that was stopped before its market was known."""
    records: list[dict[str, Any]]
    """Of metrics.jsonl."""
    summary: dict[str, Any]
    """Of summary.json; empty for a run that has not ended."""
    validation: Judged | None

    @property
    def setup(self) -> tuple[Any, ...]:
        """Return what two runs must share to be judged on the same days, data and stocks."""
        market = self.market
        if market is None:
            return ()
        return market.splits["validation"], market.investable, sorted(market.fingerprints.items())

    @property
    def days(self) -> str:
        return DASH if self.market is None else " to ".join(self.market.splits["validation"])

    @cached_property
    def seconds(self) -> float:
        return float(sum(record["seconds"]["total"] for record in self.records))

    @property
    def peak_mb(self) -> float | None:
        """Return the peak resident memory (MiB), of an unfinished run the largest at the end of a generation."""
        known = [record["memory"]["rss_mb"] for record in self.records]
        return self.summary.get("peak_rss_mb", max(known, default=None))


def run_report(arguments: ReportArguments) -> None:
    """Show a table of the runs and write the page, without playing anything or looking at a holdout.

    Raises:
        ConfigError, DataError: a name is no run, or a file of a run is damaged.
    """
    folder = arguments.runs_dir
    runs = [read_run(RunLog.open(folder, name)) for name in arguments.names]
    logger.info("%s", short_table(runs))
    for text in cautions(runs):
        logger.info("note: %s", text)
    path = arguments.output or folder / REPORT
    write_document(render(runs), path)
    logger.info("written to %s", path)


def read_run(run: RunLog) -> ReportedRun:
    """Read a run's files. Raises ConfigError where one is damaged, DataError for its record of the market."""
    market, summary = _json(run.path / MARKET), _json(run.path / SUMMARY)
    judged = [_judged(run.path / "evaluation-validation" / RESULTS), _judged(run.path / SUMMARY)]
    return ReportedRun(
        name=run.name,
        config=run.settings(Config),
        market=read_record(market, str(run.path / MARKET)) if market else None,
        records=run.records(),
        summary=summary,
        # An evaluation holds more, but its champion may have been trained further since.
        validation=max(filter(None, judged), key=lambda one: one.generation, default=None),
    )


def _json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file, nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"expected JSON in {path}, got: {error}; make it again or delete it") from None


def _judged(path: Path) -> Judged | None:
    """Read a result from the file that `evaluate` wrote, or from the summary of a run; None where they hold none."""
    values = _json(path)
    try:
        if path.name == RESULTS and values:
            generation, verdict, row = values["champion_generation"], values["verdict"], values["policies"][CHAMPION]
            measures = {key: Estimate(**row.get(key, {"value": None})) for key in METRICS}
        elif champion := values.get("champion"):
            generation, verdict = champion["generation"], champion["verdict"]["validation"]
            row = champion["validation"][CHAMPION]
            measures = {key: Estimate(row.get(SHORT.get(key))) for key in METRICS}
        else:
            return None
        tests = {key: verdict["percent_a_year"][key] for key in DIFFERENCES if key in verdict["percent_a_year"]}
        differences = {key: Estimate(test["mean"], *test["interval"]) for key, test in tests.items()}
        said = verdict["sentence"], verdict["best_rival"]
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"expected results of this version in {path}, got {error}; delete it, and evaluate the run"
        ) from None
    return Judged(generation, measures, differences, *said, _equity(path.parent / EQUITY))


def _equity(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    try:
        return pd.read_csv(path, usecols=["date", CHAMPION, EQUAL], index_col="date", parse_dates=True).astype(float)
    except ValueError as error:
        raise ConfigError(f"expected equity by date in {path}, got: {error}; evaluate the run again") from None


def render(runs: Sequence[ReportedRun]) -> str:
    """Return the page as HTML text."""
    names = [run.name for run in runs]
    return document(
        "runs.html",
        f"{names[0]}: report" if len(runs) == 1 else f"{len(runs)} runs side by side",
        metrics=METRICS,
        runs=runs,
        cautions=cautions(runs),
        measures=MEASURES,
        differences=DIFFERENCES,
        settings=differing_settings(runs),
        equity=runs_equity_chart(runs, with_equal_weight=_has_same_days(runs) and not _differing_rules(runs)),
    )


def short_table(runs: Sequence[ReportedRun]) -> str:
    """Return the results of the runs on validation days, their time and memory, in one table."""
    rows = []
    for run in runs:
        found, row = run.validation, dict[str, Any](run=run.name)
        for key in ("return", "sharpe", "max_drawdown", "exposure"):
            row[SHORT[key]] = found and found.measures[key].value
        for key, label in (("over_equal_weight", "over equal"), ("over_random_picker", "selection")):
            difference = found and found.differences.get(key)
            row[label] = difference and difference.value
        rows.append(row | {"seconds": run.seconds, "MiB": run.peak_mb})
    return table(rows, list(rows[0]))


def differing_settings(runs: Sequence[ReportedRun]) -> list[tuple[str, list[str]]]:
    """Return the settings in which the runs differ, each with its value of every run."""
    shown = [shown_settings(run.config) for run in runs]
    return [
        (name, [values[name] for values in shown])
        for name in shown[0]
        if name not in _OF_THE_FOLDER and len({values[name] for values in shown}) > 1
    ]


def _differing_rules(runs: Sequence[ReportedRun]) -> list[str]:
    return [name for name, _ in differing_settings(runs) if name.startswith("env.")]


def _has_same_days(runs: Sequence[ReportedRun]) -> bool:
    return all(run.setup == runs[0].setup for run in runs) and runs[0].market is not None


def cautions(runs: Sequence[ReportedRun]) -> list[str]:
    """Return what a reader must know before comparing the runs, the most important first."""
    texts, rules = list[str](), _differing_rules(runs)
    if len(runs) > 1 and not _has_same_days(runs):
        texts.append(OTHER_DAYS)
    elif len(runs) > 1:
        texts.append(SAME_DAYS + (", but under other trading rules." if rules else ": results can be compared."))
    if rules:
        texts.append(
            f"The trading rules differ ({', '.join(rules)}): profits under different rules are not comparable."
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
        texts.append(BEST_OF_MANY.format(count=judged))
    return texts


def runs_equity_chart(runs: Sequence[ReportedRun], with_equal_weight: bool) -> Chart | None:
    """Draw the champions' returns on their validation days; None where no run's files hold them.

    Runs judged on different days are drawn by sessions since their own first day.

    Args:
        with_equal_weight: the runs share days, data and rules, so that equal weight is the same for all of them.
    """
    found = {run.name: None if run.validation is None else run.validation.equity for run in runs}
    judged, note = {name: equity for name, equity in found.items() if equity is not None}, "After costs."
    if not judged:
        return None
    first = next(iter(judged.values()))
    if not all(first.index.equals(other.index) for other in judged.values()):
        judged = {name: equity.reset_index() for name, equity in judged.items()}
        note += " The days differ: sessions since each run's own first day."
    if missing := [run.name for run in runs if run.name not in judged]:
        note += f" Not known, until it is evaluated: {', '.join(missing)}."
    curves = {name: equity[CHAMPION] for name, equity in judged.items()}
    curves |= {EQUAL: first[EQUAL]} if with_equal_weight else {}
    gains = pd.DataFrame({name: 100.0 * (curve / curve.iloc[0] - 1.0) for name, curve in curves.items()})
    lines = {str(name): gains[name].to_numpy() for name in gains}
    title = "Return of the champions on validation days, %"
    return Chart(title, gains.index.to_numpy(), lines, note=note, height=340)
