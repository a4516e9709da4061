"""`python main.py walk-forward`: train, validate and test in turn, and one equity curve over all the test days."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from data.market import Market
from data.splits import Splits, consecutive_windows
from environment.trading_env import VectorTradingEnvironment
from training.commands.arguments import WalkForwardArguments
from training.commands.evaluate import assessment_results, planted_rules, write_tables
from training.commands.train import run_training
from training.evaluation.assessment import Assessment, assess, known_biases
from training.evaluation.comparison import CHAMPION, RANDOM
from training.evaluation.folds import FoldPlan, make_folds
from training.evaluation.page.contents import Bias, Overfitting, ReportContents, RunFacts, monthly_returns
from training.evaluation.page.write import write_report
from training.evaluation.statistics import deflated_sharpe
from training.evaluation.tables import (
    cost_table,
    luck_lines,
    page_equity,
    page_policies,
    page_trades,
    page_verdict,
    policy_table,
)
from training.evaluation.tracks import Ground, Played, join, play_all, simple_rules
from training.run.market import MARKET, load_market, remember_market
from training.run.saved import SavedRun, open_saved_run
from utils import metrics
from utils.config.cli import LATEST
from utils.config.settings import flatten, nearest
from utils.config.trader import UNHASHED, Config, config_from_dict, config_to_dict, replace_settings
from utils.errors import ConfigError
from utils.runs.checkpoint import newest_whole
from utils.runs.devices import choose_device, choose_threads
from utils.runs.resume import MOVABLE, refuse_changes
from utils.runs.run_lock import RunLock
from utils.runs.run_log import CHECKPOINTS, REPORT, SUMMARY, new_folder, setup_logging, write_json
from utils.runs.seeding import named_generator
from utils.tables import table

logger = logging.getLogger(__name__)
PLAN = "walk_forward.json"
"""What a walk-forward test was asked to do, in its folder."""
RESULTS = "results.json"
_NO_CHOICE = "Each champion was chosen on days before its test days, so the test days chose nothing."


@dataclass(frozen=True)
class Fold:
    """A trained fold and what its champion did on its test days."""

    name: str
    dates: dict[str, list[str]]
    """First and last date of its training, validation and test days."""
    champion_generation: int
    return_percent: float
    random_return_percent: float
    """Mean of the random pickers'."""


@dataclass(frozen=True)
class WalkForward:
    """A finished walk-forward test."""

    path: Path
    config: Config
    market: Market
    folds: list[Fold]
    played: Played
    """Champions and baselines on the test days of all folds, one window after the other."""
    assessment: Assessment


def run_walk_forward(arguments: WalkForwardArguments, explicit: frozenset[str]) -> WalkForward:
    """Train every fold that is not trained yet, play each champion on its test days, and report on all of them as one.

    Args:
        explicit: dotted names of the settings that the user gave, for a resumed test to honour or refuse.

    Raises:
        ConfigError, DataError: the test cannot be resumed, or the data are too few or others than before.
        StopRequested, MemoryLimitReached, CheckpointError: as `run_training`; finished folds stay finished.
    """
    path, plan, config = _open(arguments, explicit)
    with RunLock(path):
        setup_logging(path)
        choose_threads(config.threads)
        splits = _remembered_folds(path, plan, config)
        for number, fold in enumerate(splits, start=1):
            _train(path / f"fold-{number}", fold, config, explicit)
        setup_logging(path)
        result = _test(path, splits, config)
        _say(result)
        _write(result)
    return result


def _open(arguments: WalkForwardArguments, explicit: frozenset[str]) -> tuple[Path, FoldPlan, Config]:
    """The folder of a new test, or of the one to resume, with what holds for it."""
    names = [field.name for field in dataclasses.fields(FoldPlan)]
    asked, config = FoldPlan(**{name: getattr(arguments, name) for name in names}), arguments.settings
    if config.resume is None:
        contents = {"plan": dataclasses.asdict(asked), "settings": config_to_dict(config)}
        return new_folder(config.runs_dir, config.run, PLAN, contents), asked, config
    path = config.runs_dir / (_newest(config.runs_dir) if config.resume == LATEST else config.resume)
    plan, began = _read_plan(path)
    for name in names:
        if getattr(asked, name) not in (getattr(plan, name), getattr(WalkForwardArguments, name)):
            raise ConfigError(
                f"expected --{name.replace('_', '-')} {getattr(plan, name)}, with which {path} began, got "
                f"{getattr(asked, name)}; leave it out, or start a new test without --resume"
            )
    refuse_changes(flatten(config_to_dict(began)), flatten(config_to_dict(config)), explicit, UNHASHED)
    return path, plan, replace_settings(began, config, (explicit & (UNHASHED | MOVABLE)) | {"resume", "runs_dir"})


def _newest(runs_dir: Path) -> str:
    """Name of the test on which work was done last."""
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
        return FoldPlan(**contents["plan"]), config_from_dict(contents["settings"])
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"expected the plan of a walk-forward test in {path / PLAN}, got: {error}") from None


def _remembered_folds(path: Path, plan: FoldPlan, config: Config) -> list[Splits]:
    """The folds of the data as they were when the test began."""
    market, _ = load_market(config)
    if (path / MARKET).is_file():
        days = remember_market(path, market).splits.holdout.last + 1
        folds = make_folds(days, plan, config.split, config.env)
    else:
        folds = make_folds(len(market.dates), plan, config.split, config.env)
        remember_market(path, market, folds[-1])
    columns = ("fold", *vars(folds[0]))
    rows = [{"fold": str(number), **_written_out(market, fold)} for number, fold in enumerate(folds, start=1)]
    logger.info("walk-forward test %s (holdout: test days)\n%s", path, table(rows, columns))
    return folds


def _dates(market: Market, fold: Splits) -> dict[str, list[str]]:
    return {name: [str(market.dates[span.first]), str(market.dates[span.last])] for name, span in vars(fold).items()}


def _written_out(market: Market, fold: Splits) -> dict[str, str]:
    return {name: " to ".join(dates) for name, dates in _dates(market, fold).items()}


def _train(folder: Path, fold: Splits, config: Config, explicit: frozenset[str]) -> None:
    """Train a fold to its last generation, from where it stopped; nothing happens where it is done."""
    if (folder / SUMMARY).is_file():
        return
    is_begun = newest_whole(folder / CHECKPOINTS, run_id=folder.name) is not None
    if not is_begun and folder.exists():
        shutil.rmtree(folder)  # stopped in its first generation, of which nothing can be used
    run, resume = (None, folder.name) if is_begun else (folder.name, None)
    own = dataclasses.replace(config, runs_dir=folder.parent, run=run, resume=resume)
    run_training(own, explicit & (UNHASHED | MOVABLE), splits=fold)


def _test(path: Path, splits: list[Splits], config: Config) -> WalkForward:
    """Play the champion of each fold on its test days, an account that reinvests going from one to the next."""
    folds, parts, device = [], [], choose_device(config.device)
    for number, fold in enumerate(splits, start=1):
        run = open_saved_run(path, f"fold-{number}", data=config.data, device=device)
        parts.append(_play(run, fold))
        folds.append(_fold(run, fold, parts[-1]))
    played = join(parts)
    charged = config.env.cost_bps + config.env.slippage_bps
    assessment = assess(played, None, trials=1, seed=config.seed, charged_bps=charged)
    returns = metrics.daily_returns(played.tracks[CHAMPION].stitched[0])
    luck = Overfitting(deflated_sharpe(returns, 0.0), trials=1, expected_best_sharpe=0.0, note=_NO_CHOICE)
    return WalkForward(path, config, run.market, folds, played, dataclasses.replace(assessment, overfitting=luck))


def _play(run: SavedRun, fold: Splits) -> Played:
    market, rules = run.market, run.config.env
    starts = consecutive_windows(fold.holdout, rules.episode_steps).to(run.device)
    ground = Ground(market, run.tensors(), VectorTradingEnvironment.on(market, rules, run.device), starts)
    return play_all(
        ground,
        {CHAMPION: run.champion},
        simple_rules(market) | planted_rules(run, ground),
        pickers=run.config.evaluation.random_pickers,
        generator=named_generator(run.config.seed, f"walk-forward {run.name}", run.device),
    )


def _fold(run: SavedRun, fold: Splits, played: Played) -> Fold:
    returns = {name: metrics.total_return_percent(played.tracks[name].stitched) for name in (CHAMPION, RANDOM)}
    return Fold(
        run.name,
        _dates(run.market, fold),
        run.champion_generation,
        float(returns[CHAMPION][0]),
        float(np.mean(returns[RANDOM])),
    )


def _say(result: WalkForward) -> None:
    assessment = result.assessment
    rows = [
        {
            "fold": fold.name,
            "test days": " to ".join(fold.dates["holdout"]),
            "champion of generation": fold.champion_generation,
            "return %": fold.return_percent,
            "random picker %": fold.random_return_percent,
        }
        for fold in result.folds
    ]
    for text in (table(rows, list(rows[0])), policy_table(assessment), cost_table(assessment)):
        logger.info("test days of all folds\n%s", text)
    for line in luck_lines(assessment):
        logger.info("%s", line)
    for bias in _biases(result):
        logger.info("known bias: %s: %s", bias.name, bias.effect)
    logger.info("verdict: %s", assessment.judgement.sentence)


def _biases(result: WalkForward) -> list[Bias]:
    return known_biases(result.market, is_synthetic=result.config.data is None, is_validation=False)


def _write(result: WalkForward) -> None:
    """Write page, results, trades and stitched equity into the test's folder."""
    write_tables(result.played, result.market, result.path)
    write_json(result.path / RESULTS, _results(result))
    _write_page(result, result.path / REPORT)
    logger.info("written to %s", result.path)


def _results(result: WalkForward) -> dict[str, Any]:
    return {
        "run": result.path.name,
        "split": "walk-forward",
        "windows": len(result.played.days),
        "folds": [dataclasses.asdict(fold) for fold in result.folds],
        **assessment_results(result.assessment),
        "known_biases": {bias.name: bias.effect for bias in _biases(result)},
    }


def _write_page(result: WalkForward, path: Path) -> None:
    config, played, assessment = result.config, result.played, result.assessment
    equity = page_equity(played, result.market)
    assert equity.dates is not None
    again = ["python", "main.py", "walk-forward", "--runs-dir", str(config.runs_dir), "--resume", result.path.name]
    facts = RunFacts(
        name=result.path.name,
        seed=config.seed,
        device=config.device,
        split="walk-forward",
        first_day=str(equity.dates[0]),
        last_day=str(equity.dates[-1]),
        champion_generation=None,
        data="built-in market" if config.data is None else config.data.name,
        others={
            "folds": "; ".join(
                f"{fold.name}: tested {' to '.join(fold.dates['holdout'])}, champion of generation "
                f"{fold.champion_generation}, {fold.return_percent:+.2f}%"
                for fold in result.folds
            ),
            "stocks": f"{len(result.market.investable_columns):,} of {len(result.market.tickers):,}",
        },
    )
    contents = ReportContents(
        title=f"{result.path.name}: walk-forward test of {len(result.folds)} champions",
        facts=facts,
        verdict=page_verdict(assessment.judgement, [_NO_CHOICE]),
        policies=page_policies(assessment),
        equity=equity,
        monthly=monthly_returns(equity.dates, equity.curves[CHAMPION]),
        traded=page_trades(played, result.market),
        costs=assessment.costs,
        overfitting=assessment.overfitting,
        biases=_biases(result),
        settings=config_to_dict(config),
        command=shlex.join(again),
    )
    write_report(contents, path)
