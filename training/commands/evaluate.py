"""`python main.py evaluate`: the champion of a run against baselines, with a verdict, tables, files and a page."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from data.market import Market
from data.splits import Span, consecutive_windows, spaced_windows
from environment.trading_env import VectorTradingEnvironment
from training.commands.arguments import EvaluateArguments
from training.erl_trainer import ERLTrainer
from training.evaluation.assessment import Assessment, assess, known_biases
from training.evaluation.baselines import ScoreRule
from training.evaluation.comparison import CHAMPION, tune_planted
from training.evaluation.holdout import Look, add_look, champions_looked_at, read_looks
from training.evaluation.page.contents import HoldoutLook, ReportContents, RunFacts, fitness_history, monthly_returns
from training.evaluation.page.write import write_report
from training.evaluation.tables import (
    cost_table,
    equity_frame,
    luck_lines,
    page_equity,
    page_memory,
    page_policies,
    page_trades,
    page_verdict,
    policy_table,
    trade_frame,
)
from training.evaluation.tracks import Ground, Played, play_all, simple_rules
from training.run.saved import SavedRun, open_saved_run
from training.trials import read_trials
from utils.config.trader import config_to_dict
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import REPORT, RunLog, write_json
from utils.runs.seeding import named_generator

logger = logging.getLogger(__name__)
Split = Literal["validation", "holdout"]
_TUNING_WINDOWS = 16


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run, and what its page says besides."""

    run: SavedRun
    split: Split
    command: str
    played: Played
    assessment: Assessment
    records: list[dict[str, Any]]
    looks: list[Look]

    @property
    def dates(self) -> tuple[str, str]:
        """First and last date on which something was traded or settled."""
        days = self.run.market.dates[[self.played.days[0, 0], self.played.days[-1, -1]]]
        first, last = days.astype("datetime64[D]").astype(str).tolist()
        return first, last


def run_evaluation(arguments: EvaluateArguments) -> Evaluation:
    """Evaluate a run as asked, print it, and write it into `runs/NAME/evaluation-SPLIT/`.

    The same run, split, data and settings give the same `results.json`, trades and equity, bit for bit.

    Raises:
        ConfigError, DataError: there is no such run, or its data cannot be used.
    """
    device = choose_device(arguments.device)
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=device)
    env = VectorTradingEnvironment.on(run.market, run.config.env, device)
    ground = Ground(run.market, run.tensors(), env, _windows(run, arguments.split))
    evaluation = evaluate(
        run,
        ground,
        arguments.split,
        planted=planted_rules(run, ground),
        pickers=arguments.random_pickers,
        command=_command(arguments),
    )
    _say(evaluation)
    folder = run.path / f"evaluation-{arguments.split}"
    write_evaluation(evaluation, folder)
    logger.info("written to %s", folder)
    return evaluation


def report_training(trainer: ERLTrainer, path: Path, planted: Mapping[str, ScoreRule]) -> None:
    """Write the page about the champion of a finished training run, on its validation days, into its folder."""
    config = trainer.config
    run = SavedRun(
        path=path,
        config=config,
        market=trainer.market,
        planted_scores=None,
        device=trainer.device,
        generation=trainer.generation,
        champion=trainer.champion,
        champion_generation=trainer.champion_generation,
        champion_score=trainer.champion_score,
        elites=[trainer.population.agent(row) for row in trainer.elites],
    )
    evaluation = evaluate(
        run,
        Ground(trainer.market, trainer.tensors, trainer.val_env, _windows(run, "validation")),
        "validation",
        planted=planted,
        pickers=config.evaluation.random_pickers,
        command=shlex.join(("python", "main.py", "evaluate", "--run", path.name)),
    )
    write_page(evaluation, path / REPORT)
    logger.info("verdict on validation: %s", evaluation.assessment.judgement.sentence)


def _windows(run: SavedRun, split: Split) -> Tensor:
    span: Span = getattr(run.market.splits, split)
    return consecutive_windows(span, run.config.env.episode_steps).to(run.device)


def _command(arguments: EvaluateArguments) -> str:
    """What was typed, the run's name left out or not; defaults are left out."""
    words = ["python", "main.py", "evaluate"]
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if value != field.default:
            words += [f"--{field.name.replace('_', '-')}", str(value)]
    return shlex.join(words)


def evaluate(
    run: SavedRun,
    ground: Ground,
    split: Split,
    *,
    planted: Mapping[str, ScoreRule],
    pickers: int,
    command: str,
) -> Evaluation:
    """Play a run's champion, its elites and the baselines on the windows of a ground, and judge them.

    A look at the holdout is written into the run's ledger before anything is shown of it.
    """
    config = run.config
    rules = {**simple_rules(run.market), **planted}
    agents = {CHAMPION: run.champion} | {f"elite {rank}": agent for rank, agent in enumerate(run.elites, start=1)}
    generator = named_generator(config.seed, "evaluation", run.device)
    played = play_all(ground, agents, rules, pickers=pickers, generator=generator)
    records = [record for record in RunLog(run.path).records() if record["generation"] <= run.generation]
    looks = read_looks(run.path)
    trials = (
        run.generation * config.evolution.population_size
        if split == "validation"
        else champions_looked_at(looks, run.champion_generation)
    )
    charged = config.env.cost_bps + config.env.slippage_bps
    assessment = assess(played, read_trials(records), trials=trials, seed=config.seed, charged_bps=charged)
    evaluation = Evaluation(run, split, command, played, assessment, records, looks)
    if split == "holdout":
        look = _look(evaluation)
        add_look(run.path, look)
        looks.append(look)
    return evaluation


def planted_rules(run: SavedRun, ground: Ground) -> dict[str, ScoreRule]:
    """On the built-in market the rules that know it, tuned on training windows."""
    if run.planted_scores is None:
        return {}
    starts = spaced_windows(run.market.splits.train, run.config.env.episode_steps, _TUNING_WINDOWS).to(run.device)
    return tune_planted(ground.env, run.planted_scores, starts)


def _look(evaluation: Evaluation) -> Look:
    first, last = evaluation.dates
    return Look(
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        command=evaluation.command,
        champion_generation=evaluation.run.champion_generation,
        first_day=first,
        last_day=last,
        return_percent=evaluation.assessment.policies[CHAMPION]["return"].value,
        result=evaluation.assessment.judgement.sentence,
    )


def _say(evaluation: Evaluation) -> None:
    assessment, (first, last) = evaluation.assessment, evaluation.dates
    logger.info(
        "run %s, champion of generation %d, %s, %s to %s in %d windows of %d sessions, one after the other",
        evaluation.run.name,
        evaluation.run.champion_generation,
        evaluation.split,
        first,
        last,
        len(evaluation.played.days),
        evaluation.played.days.shape[1] - 1,
    )
    logger.info("%s\n\n%s", policy_table(assessment), cost_table(assessment))
    for line in luck_lines(assessment):
        logger.info("%s", line)
    for bias in _biases(evaluation):
        logger.info("known bias: %s: %s", bias.name, bias.effect)
    if evaluation.split == "holdout":
        logger.info("looks at the holdout of this run: %d", len(evaluation.looks))
    logger.info("verdict: %s", assessment.judgement.sentence)


def _biases(evaluation: Evaluation) -> list[Any]:
    is_synthetic = evaluation.run.config.data is None
    return list(
        known_biases(evaluation.run.market, is_synthetic=is_synthetic, is_validation=evaluation.split == "validation")
    )


def write_evaluation(evaluation: Evaluation, folder: Path) -> None:
    """Write page, results, trades and equity into a folder, each file in one step or newly made."""
    folder.mkdir(exist_ok=True)
    write_tables(evaluation.played, evaluation.run.market, folder)
    write_json(folder / "results.json", results(evaluation))
    write_page(evaluation, folder / REPORT)


def write_tables(played: Played, market: Market, folder: Path) -> None:
    """Write the trades as CSV and parquet, and the stitched equity as CSV."""
    trades = trade_frame(played, market)
    trades.to_csv(folder / "trades.csv", index=False)
    trades.to_parquet(folder / "trades.parquet", index=False)
    equity_frame(played, market).to_csv(folder / "equity.csv", index=False)


def results(evaluation: Evaluation) -> dict[str, Any]:
    """What was found, as JSON values; without times and looks, so that the same evaluation gives the same."""
    assessment, run = evaluation.assessment, evaluation.run
    first, last = evaluation.dates
    return {
        "run": run.name,
        "split": evaluation.split,
        "first_day": first,
        "last_day": last,
        "windows": len(evaluation.played.days),
        "champion_generation": run.champion_generation,
        **assessment_results(assessment),
        "known_biases": {bias.name: bias.effect for bias in _biases(evaluation)},
    }


def assessment_results(assessment: Assessment) -> dict[str, Any]:
    """An assessment as JSON values."""
    judgement = assessment.judgement
    return {
        "verdict": {
            "sentence": judgement.sentence,
            "is_better_than_random_picker": judgement.is_better_than_pickers,
            "is_better_than_equal_weight": judgement.is_better_than_equal_weight,
            "trials": judgement.trials,
            "picker_chance": judgement.picker_chance,
            "share_of_pickers_beaten": judgement.share_of_pickers_beaten,
            "percent_a_year": {
                name: {"mean": test.mean, "interval": test.interval, "p_value": test.p_value}
                for name, test in (
                    ("over_random_picker", judgement.against_pickers),
                    ("over_equal_weight", judgement.against_equal_weight),
                )
            },
        },
        "policies": {name: _plain_estimates(found) for name, found in assessment.policies.items()},
        "overfitting": dataclasses.asdict(assessment.overfitting),
        "return_percent_at_cost_bps": {
            name: {f"{bps:g}": value.value for bps, value in zip(assessment.costs.cost_bps, values, strict=True)}
            for name, values in assessment.costs.returns.items()
        },
    }


def _plain_estimates(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: estimate._asdict() for key, estimate in found.items()}


def write_page(evaluation: Evaluation, path: Path) -> None:
    """Write the self-contained page of an evaluation."""
    run, played, assessment = evaluation.run, evaluation.played, evaluation.assessment
    equity = page_equity(played, run.market)
    assert equity.dates is not None
    contents = ReportContents(
        title=f"{run.name}: champion on {evaluation.split}",
        facts=_facts(evaluation),
        verdict=page_verdict(assessment.judgement, _caveats(evaluation)),
        policies=page_policies(assessment),
        equity=equity,
        monthly=monthly_returns(equity.dates, equity.curves[CHAMPION]),
        traded=page_trades(played, run.market),
        costs=assessment.costs,
        overfitting=assessment.overfitting,
        fitness=fitness_history(evaluation.records),
        memory=page_memory(evaluation.records),
        memory_limit_mb=run.config.memory_limit_mb or None,
        holdout_looks=_shown_looks(evaluation.looks),
        biases=_biases(evaluation),
        settings=config_to_dict(run.config),
        command=evaluation.command,
    )
    write_report(contents, path)


def _facts(evaluation: Evaluation) -> RunFacts:
    run, market = evaluation.run, evaluation.run.market
    first, last = evaluation.dates
    windows, days = len(evaluation.played.days), evaluation.played.days.shape[1] - 1
    return RunFacts(
        name=run.name,
        seed=run.config.seed,
        device=str(run.device),
        split=evaluation.split,
        first_day=first,
        last_day=last,
        champion_generation=run.champion_generation,
        data="built-in market" if run.config.data is None else run.config.data.name,
        others={
            "windows": f"{windows} of {days} sessions, one after the other",
            "stocks": f"{len(market.investable_columns):,} of {len(market.tickers):,}",
            "generations": str(run.generation),
        },
    )


def _caveats(evaluation: Evaluation) -> list[str]:
    if evaluation.split == "validation":
        return ["The champion was chosen on these days; only the holdout, looked at once, is free of that choice."]
    return [f"Looks at the holdout of this run: {len(evaluation.looks)}. Looks by other runs are not counted."]


def _shown_looks(looks: Sequence[Look]) -> list[HoldoutLook]:
    return [HoldoutLook(look.time, look.champion_generation, look.command, look.result) for look in looks]
