"""`python main.py sweep`: try settings on validation days, and report how overfit the selection of the best is."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.record import MARKET
from data.splits import Splits
from training.commands.table import SweepArguments
from training.commands.train import train_of_study
from training.evaluation.export import EQUITY
from training.evaluation.export import RESULTS as JUDGED
from training.evaluation.page.document import write_document
from training.run.market import load_market, remember_market
from training.run.study_folder import Study, fetch_files
from training.sweep.outcome import outcome_of, profit_of, toml_of
from training.sweep.page import render, short_table
from training.sweep.space import KIND, SweepPlan, read_space, run_name
from training.sweep.study import Run, new_study, play_round, require_optuna
from utils.cloud.settings import open_cloud
from utils.cloud.store import ObjectStore
from utils.config.kinds import RUNS
from utils.config.settings import with_settings
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.executor import Executor
from utils.jobs.job import Finished, Job, output_to
from utils.jobs.table import LOGS, JobTable
from utils.runs.console import setup_logging
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CONFIG, SUMMARY, write_atomically, write_json

if TYPE_CHECKING:
    import optuna

logger = logging.getLogger(__name__)
BEST, RESULTS, PAGE = "best.toml", "sweep.json", "sweep.html"


def run_sweep(arguments: SweepArguments, explicit: frozenset[str]) -> None:
    """Train the trials that are not trained yet, and report on all of them.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed sweep to honour or refuse.

    Raises:
        ConfigError, DataError: there is no Optuna, the space is wrong, the sweep cannot be resumed or uses other data
            than before, or somebody else works on one of its runs.
        StopRequested, JobsFailed: runs that ended stay so, the others go on from their checkpoints.
    """
    require_optuna()
    if arguments.settings.resume is None and arguments.space is None:
        raise ConfigError("expected --space FILE, which says what varies, got none; see sweep --help")
    asked = SweepPlan(arguments.trials, arguments.seeds, read_space(arguments.space) if arguments.space else {})
    with KIND.open(arguments, asked, explicit) as sweep:
        path, plan, config, generations = sweep.path, sweep.plan, sweep.config, sweep.began.generations
        if config.generations != generations:
            raise ConfigError(
                f"expected generations = {generations}, with which the sweep began, got {config.generations}; leave it "
                "out: only trials trained for as many generations compare"
            )
        splits = remember_market(path, load_market(config)[0]).splits
        _introduce(path, plan, config)
        with (
            sweep.executor(arguments.jobs, arguments.cluster) as executor,
            JobTable(None) as table,
        ):
            study, space = new_study(), plan.distributions
            train = partial(_train_all, sweep, explicit, splits, executor, table)
            while len(study.trials) < plan.trials:
                play_round(study, space, plan.trials, plan.seeds, config.seed, train)
                complete = [trial.values[0] for trial in study.trials if trial.state.name == "COMPLETE"]
                so_far = f"; best so far {max(complete):+.2f} %" if complete else ""
                logger.info("%d of %d trials have ended%s", len(study.trials), plan.trials, so_far)
                if sweep.is_reached:
                    sweep.keep(KIND.plan, MARKET)
            _publish(path, plan, config, study)
        sweep.keep(KIND.plan, MARKET, RESULTS, BEST, PAGE)


def _introduce(path: Path, plan: SweepPlan, config: Config) -> None:
    last = config.seed + plan.seeds - 1
    logger.info("sweep %s: %d trials on seeds %d to %d", path, plan.trials, config.seed, last)
    for name, table in plan.space.items():
        logger.info("  %s: %s", name, " ".join(f"{key} {value}" for key, value in table.items()))


def _train_all(
    sweep: Study[SweepPlan],
    explicit: frozenset[str],
    splits: Splits,
    executor: Executor,
    table: JobTable,
    asked: Mapping[Run, Mapping[str, Any]],
) -> dict[Run, Finished]:
    """Train runs to their last generation, each from where it stopped; their results end up on this disk."""
    path, config, ended, jobs = sweep.path, sweep.config, dict[Run, Finished](), dict[str, tuple[Run, Job]]()
    store = open_cloud(below=path.name)
    for run in sorted(asked):
        name = run_name(run.number, config.seed + run.place)
        if _has_results(path / name, store):
            ended[run] = Finished(name, profit_of(path / name))
            continue
        if (path / name / CONFIG).is_file():
            # A process that outlived the driver of a killed sweep may still train it.
            with RunLock(path / name):
                pass
        place = {"runs_dir": path, "run": name, "resume": None, "seed": config.seed + run.place}
        one = with_settings(config, {**asked[run], **place})
        jobs[name] = run, Job(name, partial(_train, one, explicit, splits))
    for end in executor.run([job for _, job in jobs.values()], table.update):
        setup_logging(path, verbose=config.verbose)
        table.add(end)
        if end.error is None:
            if not _has_results(path / end.name, store):
                raise ConfigError(
                    f"expected the results of {path / end.name}, which was trained, got none; restore it from a copy, "
                    "use a --runs-dir that all machines share, or CLOUD_PROVIDER"
                )
            end = dataclasses.replace(end, result=profit_of(path / end.name))
        ended[jobs[end.name][0]] = end
    return ended


def _train(config: Config, explicit: frozenset[str], splits: Splits) -> None:
    with output_to(config.runs_dir / LOGS, str(config.run)):
        train_of_study(config, explicit, splits=splits)


def _has_results(folder: Path, store: ObjectStore | None) -> bool:
    """Return whether a run has ended; results that only the store has are fetched."""
    if (folder / SUMMARY).is_file():
        return True
    # The summary comes last: it marks the end of the run.
    return store is not None and fetch_files(store, folder, (EQUITY, JUDGED, SUMMARY))


def _publish(path: Path, plan: SweepPlan, config: Config, study: optuna.Study) -> None:
    """Write the results and log a summary."""
    outcome = outcome_of(path, plan, config, study)
    best, name = with_settings(config, outcome["best"]["settings"]), path.name
    write_json(path / RESULTS, outcome)
    tried = f"trial {outcome['best']['number']}, the best of {len(study.trials)} of sweep {name} on validation days"
    write_atomically(path / BEST, toml_of(best, tried))
    write_document(render(outcome, best), path / PAGE)
    logger.info("%s", short_table(outcome))
    runs = ["--run", f"{name}-best"]
    if config.runs_dir != RUNS:
        runs += ["--runs-dir", str(config.runs_dir)]
    # Unseen seeds on unseen days give an unbiased estimate.
    train = ["--config", str(path / BEST), "--seed", str(config.seed + plan.seeds), *runs]
    for words in (train, ["evaluate", *runs, "--split", "holdout"]):
        logger.info("next: %s", shlex.join(["python", "main.py", *words]))
    logger.info("written to %s", path / PAGE)
