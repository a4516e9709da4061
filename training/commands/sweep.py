"""`python main.py sweep`: try settings on validation days, and say how much of the best result is the choice."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.splits import Splits
from training.commands.arguments import SweepArguments
from training.commands.train import run_training
from training.evaluation.export import EQUITY
from training.evaluation.page.write import write_document
from training.run.kept_test import fetch_files, is_begun, keep_files, store_of_folds
from training.run.market import MARKET, load_market, remember_market
from training.sweep.outcome import Outcome, outcome_of, profit_of, toml_of, values_of, varied
from training.sweep.page import render, short_table
from training.sweep.plan import KIND, SweepPlan, run_name
from training.sweep.rounds import Run, play_round, rounds
from training.sweep.space import read_space
from training.sweep.study import FIRST_LOOK, STUDY, Record, require_optuna
from utils.cloud.settings import open_cloud
from utils.cloud.store import ObjectStore
from utils.config.settings import settings_to_resume
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.cluster import import_ray
from utils.jobs.executor import open_executor
from utils.jobs.job import Executor, Finished, Job, output_to
from utils.jobs.table import LOGS, JobTable
from utils.runs.console import setup_logging
from utils.runs.run_lock import RunLock, wait_for_lost_owner
from utils.runs.run_log import CONFIG, SUMMARY, write_atomically, write_json

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

logger = logging.getLogger(__name__)
BEST, RESULTS, PAGE = "best.toml", "sweep.json", "sweep.html"


def run_sweep(arguments: SweepArguments, explicit: frozenset[str]) -> Outcome:
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
        import_ray()  # or it is told before anything begins
    store = open_cloud()
    is_reached = store is not None and store.check()
    path, plan, config = _open(arguments, explicit, store if is_reached else None)
    with RunLock(path):
        setup_logging(path, verbose=config.verbose)
        splits = _remembered_splits(path, config)
        _introduce(path, plan, config)
        files = [file for file in (config.data, config.investable) if file is not None]
        shared = None if store is not None else path
        with (
            open_executor(arguments.jobs, arguments.cluster, logs=path / LOGS, files=files, folder=shared) as executor,
            JobTable(None, path, is_drawn=executor.is_apart) as table,
            closing(Record(path)) as record,
        ):
            train = partial(_train_all, _Runs(path, config, explicit, splits, executor, table))
            for numbers in rounds(plan.trials):
                play_round(record, plan.dimensions, numbers, plan.seeds, config.seed, train)
                best = "" if record.best_value is None else f"; best so far {record.best_value:+.2f} %"
                logger.info("%d of %d trials have ended%s", numbers.stop, plan.trials, best)
                if store is not None and is_reached:
                    keep_files(store, path, (KIND.plan, MARKET, STUDY))
            _require_results(path, config, record.trials)
            outcome = outcome_of(path, plan, config, record.trials)
        _publish(outcome, path)
        if store is not None:
            keep_files(store, path, (KIND.plan, MARKET, STUDY, RESULTS, BEST, PAGE))
    return outcome


def _open(
    arguments: SweepArguments, explicit: frozenset[str], store: ObjectStore | None
) -> tuple[Path, SweepPlan, Config]:
    """Return the folder of a new sweep or of the one to resume, with the plan and the settings that hold for it."""
    config = arguments.settings
    if config.resume is not None:
        return _resumed(arguments, explicit, store)
    if arguments.space is None:
        raise ConfigError("expected --space FILE, which says what varies, got none; see sweep --help")
    plan = SweepPlan(arguments.trials, arguments.seeds, read_space(arguments.space))
    return KIND.begin(config, plan, store), plan, config


def _resumed(
    arguments: SweepArguments, explicit: frozenset[str], store: ObjectStore | None
) -> tuple[Path, SweepPlan, Config]:
    config = arguments.settings
    path = KIND.find(config, store)
    if store is not None and not (path / STUDY).is_file():
        fetch_files(store, path, (STUDY,))
    plan, began = KIND.read(path, SweepPlan)
    asked = SweepPlan(arguments.trials, arguments.seeds, read_space(arguments.space) if arguments.space else plan.space)
    KIND.require_same(path, plan, asked, SweepArguments)
    now = settings_to_resume(began, config, explicit)
    if now.generations != began.generations:
        raise ConfigError(
            f"expected generations = {began.generations}, with which the sweep began, got {now.generations}; leave it "
            "out, for trials are compared that were trained alike"
        )
    return path, plan, now


def _remembered_splits(path: Path, config: Config) -> Splits:
    """Return the days of all trials, as they were when the sweep began, whatever the data have grown by since."""
    market, _ = load_market(config)
    return remember_market(path, market).splits


def _introduce(path: Path, plan: SweepPlan, config: Config) -> None:
    last = config.seed + plan.seeds - 1
    logger.info("sweep %s: %d trials on seeds %d to %d", path, plan.trials, config.seed, last)
    for one in plan.dimensions:
        values = " ".join(f"{name} {value}" for name, value in plan.space[one.name].items())
        logger.info("  %s: %s", one.name, values)
    if plan.seeds <= FIRST_LOOK:
        logger.warning(
            "no trial can be given up early: the test needs %d seeds that all lose, so that --seeds %d or more would "
            "save runs",
            FIRST_LOOK,
            FIRST_LOOK + 1,
        )


@dataclasses.dataclass(frozen=True)
class _Runs:
    """What the runs of a sweep have in common, and who trains them."""

    path: Path
    """The sweep's folder."""
    config: Config
    explicit: frozenset[str]
    splits: Splits
    executor: Executor
    table: JobTable


def _train_all(runs: _Runs, asked: Mapping[Run, Mapping[str, Any]]) -> dict[Run, Finished]:
    """Train runs to their last generation, each from where it stopped, and bring their results to this disk."""
    path, config = runs.path, runs.config
    by_name = {run_name(run.number, config.seed + run.place): run for run in asked}
    for name in by_name:
        if (path / name / CONFIG).is_file():
            # A process that outlived the driver of a killed sweep may still train it.
            with RunLock(path / name):
                pass
    jobs = []
    for name, run in by_name.items():
        own = dataclasses.replace(
            varied(config, asked[run]), runs_dir=path, run=name, resume=None, seed=config.seed + run.place
        )
        work = partial(_train, own, runs.explicit, runs.splits)
        jobs.append(Job(name, work, gpus=int(config.device != "cpu")))
    found = {}
    for end in runs.executor.run(jobs, runs.table.tell):
        setup_logging(path, verbose=config.verbose)
        runs.table.add(end)
        found[by_name[end.name]] = end
    return found


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
    """Tell whether a run has ended; its results are fetched where only the store of runs has them."""
    if (folder / SUMMARY).is_file():
        return True
    # The summary comes last: it says that the run has ended.
    return store is not None and fetch_files(store, folder, (EQUITY, SUMMARY))


def _require_results(path: Path, config: Config, trials: Sequence[FrozenTrial]) -> None:
    """Bring the results of all runs to this disk. Raises ConfigError where some are nowhere."""
    store = store_of_folds(path.name)
    for trial in trials:
        for place in trial.intermediate_values:
            folder = path / run_name(trial.number, config.seed + place)
            if not _has_results(folder, store):
                raise ConfigError(
                    f"expected the results of {folder}, which was trained, got none; restore it from a copy, use a "
                    "--runs-dir that all machines share, or CLOUD_PROVIDER"
                )


def _publish(outcome: Outcome, path: Path) -> None:
    """Write what was found, and tell it in short."""
    write_json(path / RESULTS, values_of(outcome))
    tried = f"trial {outcome.best.number}, the best of {len(outcome.tried)} of sweep {outcome.name} on validation days"
    write_atomically(path / BEST, toml_of(outcome.best_config, tried))
    write_document(render(outcome), path / PAGE)
    logger.info("%s", short_table(outcome))
    for line in _commands(outcome, path):
        logger.info("next: %s", line)
    logger.info("written to %s", path / PAGE)


def _commands(outcome: Outcome, path: Path) -> list[str]:
    """Return the commands that judge the best settings on days that chose nothing, by seeds that chose nothing."""
    config, program = outcome.config, ("python", "main.py")
    run = ("--run", f"{outcome.name}-best")
    runs = () if config.runs_dir == Path("runs") else ("--runs-dir", str(config.runs_dir))
    seed = ("--seed", str(config.seed + outcome.plan.seeds))
    return [
        shlex.join((*program, "--config", str(path / BEST), *seed, *run, *runs)),
        shlex.join((*program, "evaluate", *run, *runs, "--split", "holdout")),
    ]
