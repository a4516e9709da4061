"""`python main.py sweep`: try settings on validation days, and report how overfit the selection of the best is."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from data.record import MARKET
from data.splits import Splits
from training.commands.table import SweepArguments
from training.evaluation.baselines import CHAMPION
from training.evaluation.export import EQUITY
from training.evaluation.export import RESULTS as JUDGED
from training.run.market import load_market, record_or_pin_market
from training.run.study_folder import Study, fetch_files
from training.sweep import (
    KIND,
    Run,
    SweepPlan,
    new_study,
    outcome_of,
    play_round,
    read_space,
    report,
    results_of,
    run_name,
    space_of,
)
from training.train import train_of_study
from utils.cloud.store import ObjectStore, open_cloud
from utils.config.cli import command_line
from utils.config.kinds import RUNS
from utils.config.settings import as_toml, repeated, to_dict, with_settings
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.jobs.executor import LOGS, Executor
from utils.jobs.job import Finished, Job, output_to
from utils.runs.find import SUMMARY, SWEEP
from utils.runs.run_lock import require_free
from utils.runs.run_log import write_atomically, write_json
from utils.tables import many

logger = logging.getLogger(__name__)
BEST = "best.toml"
_OWN = ("run", "resume", "runs_dir", "seed", "device", "threads", "memory_limit_mb", "verbose")
"""Settings of one run or machine, which the file of the best ones leaves out."""


def run_sweep(arguments: SweepArguments, explicit: frozenset[str]) -> None:
    """Train the trials that are not trained yet, and report on all of them.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed sweep to honour or refuse.

    Raises:
        ConfigError, DataError: there is no Optuna, the space is wrong, the sweep cannot be resumed or uses other data
            than before, or somebody else works on one of its runs.
        StopRequested, JobsFailed: runs that ended stay so, the others go on from their checkpoints.
    """
    study = new_study()
    if arguments.settings.resume is None and arguments.space is None:
        raise ConfigError("expected --space FILE, which says what varies, got none; see sweep --help")
    asked = SweepPlan(arguments.trials, arguments.seeds, read_space(arguments.space) if arguments.space else {})
    with KIND.open(arguments, asked, explicit) as sweep:
        path, plan, config = sweep.path, sweep.plan, sweep.config
        splits = record_or_pin_market(path, load_market(config)).splits
        if sweep.is_reached:
            sweep.keep(KIND.plan, MARKET)
        count, seeds = many(plan.trials, "trial"), many(plan.seeds, "seed")
        logger.info("sweep %s: %s on %s from %d on", path, count, seeds, config.seed)
        with sweep.executor(arguments) as executor:
            train = partial(_train_all, sweep, explicit, splits, executor)
            while len(study.trials) < plan.trials:
                play_round(study, space_of(plan.space), plan.trials, plan.seeds, config.seed, train)
                logger.info("%d of %d trials have ended", len(study.trials), plan.trials)
        _publish(path, config, outcome_of(path, plan, config.seed, study))
        sweep.keep(KIND.plan, MARKET, SWEEP, BEST)


def _train_all(
    sweep: Study[SweepPlan],
    explicit: frozenset[str],
    splits: Splits,
    executor: Executor,
    asked: Mapping[Run, Mapping[str, Any]],
) -> dict[Run, Finished]:
    """Train runs to their last generation, each from where it stopped; their results end up on this disk.

    Raises ConfigError, DataError where a run cannot be trained for other reasons than its settings.
    """
    path, config, ended, runs = sweep.path, sweep.config, dict[Run, Finished](), dict[str, Run]()
    jobs, store = list[Job](), open_cloud(below=path.name)
    for run in sorted(asked):
        name = run_name(run.number, config.seed + run.place)
        if _has_results(path / name, store):
            ended[run] = Finished(name, profit_of(path / name))
            continue
        require_free(path / name)  # a process that outlived the driver of a killed sweep may still train it
        place = {"runs_dir": path, "run": name, "resume": None, "seed": config.seed + run.place}
        jobs.append(Job(name, partial(_train, with_settings(config, {**asked[run], **place}), explicit, splits)))
        runs[name] = run
    for end in sweep.run(executor, jobs):
        if end.error is None:
            if not _has_results(path / end.name, store):
                raise ConfigError(
                    f"expected the results of {path / end.name}, which was trained, got none; restore it from a copy, "
                    "use a --runs-dir that all machines share, or CLOUD_PROVIDER"
                )
            end = replace(end, result=profit_of(path / end.name))
        ended[runs[end.name]] = end
    if any(end.exit_code == 2 for end in ended.values()):
        # Where the data or the bucket cannot be read any more, no trial's settings are to blame.
        load_market(config)
        open_cloud(below=path.name)
    return ended


def _train(config: Config, explicit: frozenset[str], splits: Splits) -> None:
    with output_to(config.runs_dir / LOGS, str(config.run)):
        train_of_study(config, explicit, splits=splits)


def _has_results(folder: Path, store: ObjectStore | None) -> bool:
    """Return whether a run has ended; results that only the store has are fetched."""
    # The summary comes last: it marks the end of the run.
    return (folder / SUMMARY).is_file() or (store is not None and fetch_files(store, folder, (EQUITY, JUDGED, SUMMARY)))


def profit_of(run: Path) -> float:
    """Return the profit of a finished run's champion on validation days, percent."""
    return float(results_of(run)["policies"][CHAMPION]["return"]["value"])


def _publish(path: Path, config: Config, outcome: dict[str, Any]) -> None:
    """Write the results and log a summary, and the commands that judge the best settings."""
    write_json(path / SWEEP, outcome)
    best = to_dict(with_settings(config, outcome["best"]["settings"]))
    write_atomically(path / BEST, as_toml(repeated(best, without=_OWN)))
    logger.info("%s\nwritten to %s", report(outcome), path)
    runs = ["--run", f"{path.name}-best", *(() if config.runs_dir == RUNS else ("--runs-dir", str(config.runs_dir)))]
    # Unseen seeds on unseen days give an unbiased estimate.
    train = ["--config", str(path / BEST), "--seed", str(outcome["seeds"][-1] + 1), *runs]
    for words in (train, ["evaluate", *runs, "--split", "holdout", "--spend-look"]):
        logger.info("next: %s", command_line(*words))
