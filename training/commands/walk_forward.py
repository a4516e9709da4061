"""`python main.py walk-forward`: train, validate and test in turn, and one equity curve over all the test days."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from pathlib import Path

from data.market import Market
from data.splits import Splits, consecutive_windows
from environment.portfolio import Portfolio
from training.commands.arguments import WalkForwardArguments
from training.commands.evaluate import entered, opposing_rules
from training.commands.train import run_training
from training.evaluation.assessment import Evaluation
from training.evaluation.folds import FoldPlan, FoldResult, make_folds
from training.evaluation.opponents import benchmark_close
from training.evaluation.tables import log_evaluation, write_evaluation
from training.evaluation.tracks import CHAMPION, RANDOM, Ground, join, play_all
from training.run.market import MARKET, load_market, remember_market
from training.run.saved import open_saved_run
from utils.config.settings import LATEST, from_dict, nearest, settings_to_resume, to_dict
from utils.config.trader import Config
from utils.errors import ConfigError
from utils.runs.console import setup_logging
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CONFIG, SUMMARY, new_folder
from utils.runs.seeding import named_generator
from utils.tables import table

logger = logging.getLogger(__name__)
PLAN = "walk_forward.json"
"""The plan and the settings of a walk-forward test, in its folder."""


def run_walk_forward(arguments: WalkForwardArguments, explicit: frozenset[str]) -> Evaluation:
    """Train every fold that is not trained yet, play each champion on its test days, and report on all of them as one.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed test to honour or refuse.

    Raises:
        ConfigError, DataError: the test cannot be resumed, or the data are too few or others than before.
        StopRequested, MemoryLimitReached, CheckpointError: as `run_training`; finished folds stay finished.
    """
    path, plan, config = _open(arguments, explicit)
    with RunLock(path):
        setup_logging(path, verbose=config.verbose)
        choose_threads(config.threads)
        splits = _remembered_folds(path, plan, config)
        for number, fold in enumerate(splits, start=1):
            _train(path / f"fold-{number}", fold, config, explicit)
        setup_logging(path, verbose=config.verbose)
        evaluation = entered(_test(path, splits, config), config.runs_dir)
        log_evaluation(evaluation)
        write_evaluation(evaluation, path)
    return evaluation


def _open(arguments: WalkForwardArguments, explicit: frozenset[str]) -> tuple[Path, FoldPlan, Config]:
    """Return the folder of a new test or of the one to resume, with the plan and the settings that hold for it."""
    asked = FoldPlan(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(FoldPlan)})
    config = arguments.settings
    if config.resume is None:
        contents = {"plan": dataclasses.asdict(asked), "settings": to_dict(config)}
        return new_folder(config.runs_dir, config.run, PLAN, contents), asked, config
    path = config.runs_dir / (_newest(config.runs_dir) if config.resume == LATEST else config.resume)
    plan, began = _read_plan(path)
    for name, value in vars(plan).items():
        if getattr(asked, name) not in (value, getattr(WalkForwardArguments, name)):
            raise ConfigError(
                f"expected --{name.replace('_', '-')} {value}, with which {path} began, got {getattr(asked, name)}; "
                "leave it out, or start a new test without --resume"
            )
    return path, plan, settings_to_resume(began, config, explicit)


def _newest(runs_dir: Path) -> str:
    """Return the name of the test on which work was done last."""
    tests = {
        plan.parent.name: max(file.stat().st_mtime_ns for file in (plan, *plan.parent.glob("fold-*/metrics.jsonl")))
        for plan in runs_dir.glob(f"*/{PLAN}")
    }
    if not tests:
        raise ConfigError(f"expected a walk-forward test to resume in {runs_dir}, got none; start one without --resume")
    return max(tests, key=lambda name: tests[name])


def _read_plan(path: Path) -> tuple[FoldPlan, Config]:
    if not (path / PLAN).is_file():
        known = [plan.parent.name for plan in path.parent.glob(f"*/{PLAN}")]
        advice = f"the nearest is {nearest(path.name, known)!r}" if known else "there are none"
        raise ConfigError(f"expected a walk-forward test in {path.parent}, got {path.name!r}; {advice}")
    try:
        contents = json.loads((path / PLAN).read_text(encoding="utf-8"))
        return FoldPlan(**contents["plan"]), from_dict(contents["settings"], Config)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"expected the plan of a walk-forward test in {path / PLAN}, got: {error}") from None


def _remembered_folds(path: Path, plan: FoldPlan, config: Config) -> list[Splits]:
    """Return the folds of the data as they were when the test began."""
    market, _ = load_market(config)
    is_begun = (path / MARKET).is_file()
    days = remember_market(path, market).splits.holdout.last + 1 if is_begun else len(market.dates)
    folds = make_folds(days, plan, config.split, config.env)
    if not is_begun:
        remember_market(path, market, folds[-1])
    rows = [
        {"fold": str(number), **{name: " to ".join(dates) for name, dates in _dates(market, fold).items()}}
        for number, fold in enumerate(folds, start=1)
    ]
    logger.info("walk-forward test %s (holdout: test days)\n%s", path, table(rows, list(rows[0])))
    return folds


def _dates(market: Market, fold: Splits) -> dict[str, list[str]]:
    return {name: [str(market.dates[span.first]), str(market.dates[span.last])] for name, span in vars(fold).items()}


def _train(folder: Path, fold: Splits, config: Config, explicit: frozenset[str]) -> None:
    """Train a fold to its last generation, from where it stopped; nothing happens where it is done."""
    if (folder / SUMMARY).is_file():
        return
    begun = {"run": None, "resume": folder.name} if (folder / CONFIG).is_file() else {"run": folder.name}
    own = dataclasses.replace(config, runs_dir=folder.parent, **begun)
    run_training(own, explicit, splits=fold)


def _test(path: Path, splits: list[Splits], config: Config) -> Evaluation:
    """Play the champion of each fold on its test days, an account that reinvests going from one to the next."""
    folds, parts, evidence, device = [], [], [], choose_device(config.device)
    for number, fold in enumerate(splits, start=1):
        run = open_saved_run(path, f"fold-{number}", data=config.data, device=device)
        env = Portfolio.on(run.market, run.config.env, device)
        starts = consecutive_windows(fold.holdout, run.config.env.episode_steps).to(device)
        benchmark = benchmark_close(config.evaluation.benchmark, run.market, env, starts)
        played = play_all(
            Ground(run.market, env, starts, benchmark),
            run.champion,
            opposing_rules(run, env, config.evaluation),
            pickers=run.config.evaluation.random_pickers,
            generator=named_generator(run.config.seed, f"walk-forward {run.name}", device),
        )
        champion, random = (played.tracks[name].mean_return_percent for name in (CHAMPION, RANDOM))
        folds.append(FoldResult(run.name, _dates(run.market, fold), run.generation, champion, random))
        parts.append(played)
        evidence.append(run.champion.evidence)
    again = ("python", "main.py", "walk-forward", "--runs-dir", str(config.runs_dir), "--resume", path.name)
    return Evaluation(
        path.name,
        "walk-forward",
        config,
        run.market,
        join(parts),
        1,
        str(device),
        shlex.join(again),
        folds=folds,
        evidence=evidence,
    )
