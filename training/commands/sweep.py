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
from training.commands.train import run_training
from training.evaluation.export import EQUITY
from training.evaluation.page.document import write_document
from training.run.market import load_market, remember_market
from training.run.study_folder import fetch_files, is_begun, keep_files, open_study, store_of_folds
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
from utils.jobs.cluster import import_ray
from utils.jobs.job import Executor, Finished, Job, output_to
from utils.jobs.table import LOGS, JobTable
from utils.runs.console import setup_logging
from utils.runs.run_lock import RunLock, wait_for_lost_owner
from utils.runs.run_log import CONFIG, SUMMARY, write_atomically, write_json

if TYPE_CHECKING:
    from optuna import Study

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
    if arguments.cluster is not None:
        import_ray()  # fails here, before anything begins
    store = open_cloud()
    reached = store if store is not None and store.check() else None
    path, plan, config = _open(arguments, explicit, reached)
    with KIND.hold(path, config, reached):
        setup_logging(path, verbose=config.verbose)
        splits = remember_market(path, load_market(config)[0]).splits
        _introduce(path, plan, config)
        jobs = arguments.jobs, arguments.cluster
        with (
            open_study(*jobs, config, path, is_shared=store is None) as executor,
            JobTable(None, path) as table,
        ):
            study, space = new_study(), plan.distributions
            train = partial(_train_all, path, config, explicit, splits, executor, table)
            while len(study.trials) < plan.trials:
                play_round(study, space, plan.trials, plan.seeds, config.seed, train)
                complete = [trial.values[0] for trial in study.trials if trial.state.name == "COMPLETE"]
                so_far = f"; best so far {max(complete):+.2f} %" if complete else ""
                logger.info("%d of %d trials have ended%s", len(study.trials), plan.trials, so_far)
                if reached is not None:
                    keep_files(reached, path, (KIND.plan, MARKET))
            _publish(path, plan, config, study)
        if store is not None:
            keep_files(store, path, (KIND.plan, MARKET, RESULTS, BEST, PAGE))


def _open(
    arguments: SweepArguments, explicit: frozenset[str], store: ObjectStore | None
) -> tuple[Path, SweepPlan, Config]:
    """Return the folder of a new sweep or of the one to resume, with the plan and the settings that hold for it."""
    if arguments.settings.resume is None and arguments.space is None:
        raise ConfigError("expected --space FILE, which says what varies, got none; see sweep --help")
    asked = SweepPlan(arguments.trials, arguments.seeds, read_space(arguments.space) if arguments.space else {})
    path, plan, config = KIND.open(arguments.settings, asked, SweepArguments, explicit, store)
    began = KIND.read(path, SweepPlan)[1].generations
    if config.generations != began:
        raise ConfigError(
            f"expected generations = {began}, with which the sweep began, got {config.generations}; leave it out: only "
            "trials trained for as many generations compare"
        )
    return path, plan, config


def _introduce(path: Path, plan: SweepPlan, config: Config) -> None:
    last = config.seed + plan.seeds - 1
    logger.info("sweep %s: %d trials on seeds %d to %d", path, plan.trials, config.seed, last)
    for name, table in plan.space.items():
        logger.info("  %s: %s", name, " ".join(f"{key} {value}" for key, value in table.items()))


def _train_all(
    path: Path,
    config: Config,
    explicit: frozenset[str],
    splits: Splits,
    executor: Executor,
    table: JobTable,
    asked: Mapping[Run, Mapping[str, Any]],
) -> dict[Run, Finished]:
    """Train runs to their last generation, each from where it stopped; their results end up on this disk."""
    names = {run: run_name(run.number, config.seed + run.place) for run in asked}
    ended = {
        run: Finished(name, profit_of(path / name)) for run, name in names.items() if (path / name / SUMMARY).is_file()
    }
    jobs = {}
    for run in asked.keys() - ended.keys():
        folder = path / names[run]
        if (folder / CONFIG).is_file():
            # A process that outlived the driver of a killed sweep may still train it.
            with RunLock(folder):
                pass
        place = {"runs_dir": path, "run": folder.name, "resume": None, "seed": config.seed + run.place}
        one = with_settings(config, {**asked[run], **place})
        jobs[run] = Job(folder.name, partial(_train, one, explicit, splits))
    by_name = {name: run for run, name in names.items()}
    for end in executor.run([jobs[run] for run in sorted(jobs)], table.update):
        setup_logging(path, verbose=config.verbose)
        table.add(end)
        ended[by_name[end.name]] = end
        folder = path / end.name
        is_elsewhere = end.error is None and not (folder / SUMMARY).is_file()
        if is_elsewhere and not _has_results(folder, store_of_folds(path.name)):
            raise ConfigError(
                f"expected the results of {folder}, which was trained, got none; restore it from a copy, use a "
                "--runs-dir that all machines share, or CLOUD_PROVIDER"
            )
    return ended


def _train(config: Config, explicit: frozenset[str], splits: Splits) -> float:
    """Train a run to its last generation, from where it stopped; return its champion's profit on validation days."""
    assert config.run is not None
    folder = config.runs_dir / config.run
    with output_to(folder.parent / LOGS, folder.name):
        store = store_of_folds(folder.parent.name)
        if not _has_results(folder, store):
            wait_for_lost_owner(folder)
            if is_begun(folder, store):
                config = dataclasses.replace(config, run=None, resume=folder.name)
            run_training(config, explicit, splits=splits, store=store)
    return profit_of(folder)


def _has_results(folder: Path, store: ObjectStore | None) -> bool:
    """Return whether a run has ended; results that only the store has are fetched."""
    if (folder / SUMMARY).is_file():
        return True
    # The summary comes last: it marks the end of the run.
    return store is not None and fetch_files(store, folder, (EQUITY, SUMMARY))


def _publish(path: Path, plan: SweepPlan, config: Config, study: Study) -> None:
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
