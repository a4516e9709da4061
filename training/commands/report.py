"""The command `report`: runs side by side, read from their files: what differs, what can be compared, table and page.

Nothing is played, and nothing of holdout days is read.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from data.record import MARKET, MarketRecord, read_record
from training.commands.table import ReportArguments
from training.evaluation.baselines import CHAMPION, EQUAL
from training.evaluation.export import EQUITY, RESULTS
from training.evaluation.measures import METRICS, Estimate, Metric
from training.evaluation.pages import document, shown_settings, write_document
from utils.charts import DASH, Chart
from utils.config.cli import command_line
from utils.config.settings import OF_ITS_FOLDER, read_json
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.find import SUMMARY
from utils.runs.run_log import REPORT, RunLog
from utils.statistics import overfitting_probability
from utils.tables import table

logger = logging.getLogger(__name__)
DIFFERENCES = {
    "over_benchmark": "Over benchmark",
    "over_random_picker": "Selection",
    "timing": "Timing",
    "over_best_rival": "Over best baseline",
}
"""Parts and differences of a champion's profit that are shown, by their names in the files."""
MEASURES = ("return", "sharpe", "max_drawdown", "exposure", "beta", "turnover", "costs")
"""Keys of `METRICS` that are shown."""
SAME_DAYS = "All runs were judged on the same validation days of the same data"
OTHER_DAYS = "The runs were judged on different days, data or stocks, on which results depend as on the champion"


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
    results: dict[str, Any]
    """Of results.json on validation days; empty for a run that has not been judged."""
    equity: pd.DataFrame | None
    """Of the champion and of equal weight by validation day."""

    @property
    def setup(self) -> tuple[Any, ...]:
        """Return what two runs must share to be judged on the same days, data and stocks."""
        market = self.market
        if market is None:
            return ()
        return market.splits["validation"], market.investable, sorted(market.fingerprints.items())

    @property
    def measures(self) -> dict[Metric, Estimate]:
        """Return the estimates of its champion; unknown for a run that has not been judged."""
        found = self.results["policies"][CHAMPION] if self.results else {}
        return {METRICS[key]: Estimate(**found.get(key, {"value": None})) for key in MEASURES}

    @property
    def differences(self) -> dict[Metric, Estimate]:
        """Return parts and differences of its champion's profit; unknown where they were not tested."""
        tests = self.results["verdict"]["percent_a_year"] if self.results else {}
        shown = {label: tests.get(key, {"mean": None, "interval": ()}) for key, label in DIFFERENCES.items()}
        return {Metric(label, "% a year", 1): Estimate(one["mean"], *one["interval"]) for label, one in shown.items()}

    @property
    def data(self) -> str:
        kind = self.config.synthetic.kind
        return f"built-in market ({kind})" if self.config.data is None else self.config.data.name

    @property
    def days(self) -> str:
        return DASH if self.market is None else " to ".join(self.market.splits["validation"])

    @property
    def seconds(self) -> float:
        return float(sum(record["seconds"]["total"] for record in self.records))


def run_report(arguments: ReportArguments) -> None:
    """Show a table of the runs and write the page, without playing anything or looking at a holdout.

    Raises:
        ConfigError, DataError: a name is no run, or a file of a run is damaged.
    """
    folder = arguments.runs_dir
    runs = [read_run(RunLog.open(folder, name)) for name in dict.fromkeys(arguments.runs or (None,))]
    logger.info("%s", short_table(runs))
    for text in cautions(runs):
        logger.info("note: %s", text)
    path = arguments.output or folder / REPORT
    write_document(render(runs), path)
    logger.info("written to %s", path)


def read_run(run: RunLog) -> ReportedRun:
    """Read a run's files. Raises ConfigError where one is damaged, DataError for its record of the market."""
    market = _json(run.path / MARKET)
    # The newer of the results at the end of the training and of a later evaluation.
    judged = [(_json(folder / RESULTS), folder) for folder in (run.path / "evaluation-validation", run.path)]
    try:
        results, folder = max(judged, key=lambda one: one[0].get("champion_generation", 0))
        equity = None
        if results:
            equity = pd.read_csv(folder / EQUITY, index_col="date", parse_dates=True)[[CHAMPION, EQUAL]].astype(float)
            _ = results["policies"][CHAMPION], results["verdict"]["percent_a_year"]
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise ConfigError(
            f"expected results of this version in {folder / RESULTS} and {EQUITY}, got {error}; delete them, and "
            "evaluate the run"
        ) from None
    return ReportedRun(
        name=run.name,
        config=run.settings(Config),
        market=read_record(market, str(run.path / MARKET)) if market else None,
        records=run.records(),
        summary=_json(run.path / SUMMARY),
        results=results,
        equity=equity,
    )


def _json(path: Path) -> dict[str, Any]:
    """Return the contents of a JSON file, nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        return dict(read_json(path))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"expected JSON in {path}, got: {error}; make it again or delete it") from None


def render(runs: Sequence[ReportedRun]) -> str:
    """Return the page as HTML text."""
    judged = [run for run in runs if run.results]
    return document(
        "runs.html",
        f"{runs[0].name}: report" if len(runs) == 1 else f"{len(runs)} runs side by side",
        facts={run.name: f"{run.data}, validation {run.days}" for run in runs},
        titles=["Setting", *(run.name for run in runs)],
        results=[
            {"Run": run.name, "Champion of generation": run.results["champion_generation"], **run.measures}
            for run in judged
        ],
        costs=[
            {
                "Run": run.name,
                "Generations": f"{len(run.records)} of {run.config.generations}",
                "Agents": run.config.evolution.population_size,
                Metric("Time", "seconds", 1): Estimate(run.seconds),
                Metric("Per generation", "seconds", 2): Estimate(run.seconds / max(1, len(run.records)) or None),
                Metric("Peak memory", "MiB", 0): Estimate(run.summary.get("peak_rss_mb")),
                "Device": run.summary.get("device") or run.config.device,
                "Threads": run.config.threads,
            }
            for run in runs
        ],
        cautions=cautions(runs),
        differences=[
            {
                "Run": run.name,
                **run.differences,
                "Best baseline": run.results["verdict"]["best_rival"] or DASH,
                "Verdict": run.results["verdict"]["sentence"],
            }
            for run in judged
        ],
        settings=differing_settings(runs),
        equity=equity_chart(runs),
    )


def short_table(runs: Sequence[ReportedRun]) -> str:
    """Return the results of the runs on validation days and their time, in one table."""
    rows = []
    for run in runs:
        shown = [*run.measures.items()][:4] + [*run.differences.items()][:2]
        rows.append({"run": run.name, **{metric.label: one.value for metric, one in shown}, "seconds": run.seconds})
    return table(rows)


def differing_settings(runs: Sequence[ReportedRun]) -> list[tuple[str, ...]]:
    """Return the settings in which the runs differ, each with its value of every run."""
    shown = [shown_settings(run.config) for run in runs]
    return [
        (name, *(values[name] for values in shown))
        for name in shown[0]
        if name not in OF_ITS_FOLDER and len({values[name] for values in shown}) > 1
    ]


def cautions(runs: Sequence[ReportedRun]) -> list[str]:
    """Return what a reader must know before comparing the runs, the most important first."""
    texts, rules = list[str](), [name for name, *_ in differing_settings(runs) if name.startswith("env.")]
    if len(runs) > 1:
        is_same = all(run.setup == runs[0].setup != () for run in runs)
        outcome = "cannot" if rules or not is_same else "can"
        texts.append(f"{SAME_DAYS if is_same else OTHER_DAYS}: results {outcome} be compared.")
    if rules:
        texts.append(f"The trading rules differ: {', '.join(rules)}.")
    for run in runs:
        judged, last = run.results.get("champion_generation", 0), run.records[-1]["generation"] if run.records else 0
        if not run.results or judged < last:
            state = f"judged at generation {judged} and trained to generation {last} since" if judged else "not judged"
            texts.append(f"{run.name} is {state}: {command_line('evaluate', '--run', run.name)}.")
    if (judged := sum(bool(run.results) for run in runs)) > 1:
        chosen = ""
        if (chance := chance_of_overfitting(runs)) is not None:
            chosen = (
                ", and one chosen on half of these days is below the median on the other half with a probability of "
                f"{chance:.2f}"
            )
        spend = command_line("evaluate", "--split", "holdout", "--spend-look")
        texts.append(
            f"The best of {judged} results is biased upwards{chosen}: judge it on days on which nothing was chosen, "
            f"once: {spend}."
        )
    return texts


def chance_of_overfitting(runs: Sequence[ReportedRun]) -> float | None:
    """Return the probability that the best champion is chosen by chance; None unless all have the same days."""
    curves = [run.equity[CHAMPION] for run in runs if run.equity is not None]
    if not all(curve.index.equals(curves[0].index) for curve in curves):
        return None
    return overfitting_probability(np.diff(np.log(np.array(curves))))


def equity_chart(runs: Sequence[ReportedRun]) -> Chart | None:
    """Draw the champions' returns on their validation days; None where no run has been judged.

    Runs judged on different days are drawn by sessions since their own first day.
    """
    equities = {run.name: run.equity for run in runs if run.equity is not None}
    if not equities:
        return None
    note, first = "After costs.", next(iter(equities.values()))
    judged = {name: equity[CHAMPION] for name, equity in equities.items()} | {EQUAL: first[EQUAL]}
    if not all(first.index.equals(other.index) for other in judged.values()):
        judged = {name: equity.reset_index(drop=True) for name, equity in judged.items()}
        note += " The days differ: sessions since each run's own first day."
    gains = pd.DataFrame({name: 100.0 * (curve / curve.iloc[0] - 1.0) for name, curve in judged.items()})
    lines = {str(name): gains[name].to_numpy() for name in gains}
    return Chart("Return of the champions on validation days, %", gains.index.to_numpy(), lines, note=note)
