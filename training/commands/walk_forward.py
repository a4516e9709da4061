"""`python main.py walk-forward`: train, validate and test in turn, and one equity curve over all the test days."""

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data.record import MARKET
from data.splits import FoldPlan, Splits, make_folds
from models.evidence import Evidence
from training.commands.evaluate import play_run
from training.commands.table import WalkForwardArguments
from training.evaluation.baselines import CHAMPION
from training.evaluation.compared import PlayedPolicies
from training.evaluation.export import FILES, log_evaluation, record_look, write_evaluation
from training.evaluation.judge import Evaluation
from training.evaluation.verdict import FoldResult
from training.run.market import load_market, record_or_pin_market
from training.run.saved import open_saved_run
from training.run.study_folder import PLAN, Study, open_study
from training.train import train_of_study
from utils.config.cli import command_line
from utils.config.trader import Config
from utils.jobs.executor import LOGS, open_executor
from utils.jobs.job import Job, require_all
from utils.runs.console import setup_logging
from utils.runs.devices import choose_device, choose_threads
from utils.runs.find import SUMMARY
from utils.tables import many

logger = logging.getLogger(__name__)


def run_walk_forward(arguments: WalkForwardArguments, explicit: frozenset[str]) -> Evaluation:
    """Train the folds that are not trained yet, play each champion on its test days, and report on all as one.

    Folds are independent jobs: results are the same, bit for bit, wherever and in whatever order they run.

    Args:
        explicit: dotted names of the settings that the user gave, which a resumed test applies or refuses.

    Raises:
        ConfigError, DataError: the test cannot be resumed, or the data are too few or have changed.
        JobsFailed: a fold ended with an error; the others are finished.
        StopRequested, MemoryLimitReached, CheckpointError: as `train`; finished folds are kept.
        CloudError: not all of the test could be stored.
    """
    asked = FoldPlan(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(FoldPlan)})
    with open_study(arguments, asked, explicit) as study:
        path, config = study.path, study.config
        choose_threads(config.threads)
        splits = _remembered_folds(path, study.plan, config)
        if study.is_reached:
            study.keep(PLAN, MARKET)
        _train_folds(study, splits, explicit, arguments.jobs)
        evaluation = record_look(_test(path, splits, config), config.runs_dir)
        log_evaluation(evaluation)
        write_evaluation(evaluation, path)
        study.keep(PLAN, MARKET, *FILES)
    return evaluation


def _remembered_folds(path: Path, plan: FoldPlan, config: Config) -> list[Splits]:
    """Return the folds of the data as of the start of the test."""
    market = load_market(config)
    is_begun = (path / MARKET).is_file()
    days = record_or_pin_market(path, market).splits.holdout.last + 1 if is_begun else len(market.dates)
    folds = make_folds(days, plan, config.split, config.env)
    if not is_begun:
        record_or_pin_market(path, market, folds[-1])
    first, last = market.dates[folds[0].holdout.first], market.dates[folds[-1].holdout.last]
    logger.info("walk-forward test %s: %s, test days from %s to %s", path, many(len(folds), "fold"), first, last)
    return folds


def _train_folds(study: Study, splits: Sequence[Splits], explicit: frozenset[str], at_once: int) -> None:
    """Train the folds that are not trained yet."""
    path, config, jobs = study.path, study.config, list[Job]()
    for number, fold in enumerate(splits, start=1):
        fold_config = dataclasses.replace(config, runs_dir=path, run=f"fold-{number}", resume=None)
        if not (path / str(fold_config.run) / SUMMARY).is_file():
            jobs.append(Job(str(fold_config.run), partial(train_of_study, fold_config, explicit, fold)))
    with open_executor(at_once, logs=path / LOGS) as executor:
        require_all(list(executor.run(jobs, partial(setup_logging, path, verbose=config.verbose))))


def _test(path: Path, splits: list[Splits], config: Config) -> Evaluation:
    """Play each fold's champion on its test days, as one account that reinvests."""
    folds, results, evidence, device = [], [], list[Evidence](), choose_device(config.device)
    for number, fold in enumerate(splits, start=1):
        run = open_saved_run(path, f"fold-{number}", data=config.data, device=device)
        played = play_run(run, fold.holdout, config.evaluation, f"walk-forward {run.name}")
        days = {
            name: run.market.dates[[span.first, span.last]].astype(str).tolist() for name, span in vars(fold).items()
        }
        folds.append(FoldResult(run.name, days, run.generation, played.curves[CHAMPION].mean_return_percent))
        results.append(played)
        evidence.append(run.evidence)
    return Evaluation(
        name=path.name,
        split="walk-forward",
        config=config,
        market=run.market,
        played=PlayedPolicies.joined(results),
        trials=1,
        command=command_line("walk-forward", "--runs-dir", str(config.runs_dir), "--resume", path.name),
        folds=folds,
        evidence=evidence,
    )
