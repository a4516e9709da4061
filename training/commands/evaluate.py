"""`python main.py evaluate`: the champion of a run against baselines, with a verdict, tables, files and a page."""

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

from data.record import data_fingerprint
from data.splits import Span, consecutive_windows, spaced_windows
from data.synthetic.built_in import PlantedScores
from environment.portfolio import Portfolio
from training.commands.table import EvaluateArguments
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION, benchmark_close, simple_rules, tune_planted
from training.evaluation.export import log_evaluation, write_evaluation
from training.evaluation.holdout import Look, add_look, champions_looked_at, locked_ledger, read_looks
from training.evaluation.judge import Evaluation, Split
from training.evaluation.play import EvaluationSetup, PlayedPolicies, play_all
from training.evaluation.supervised import TUNING_WINDOWS, fit_supervised
from training.features.importance import importance
from training.run.saved import SavedRun, open_saved_run
from training.sweep.space import trials_beside
from utils.config.cli import command_line
from utils.config.settings import changed_flags
from utils.config.trader import Config, EvaluationConfig
from utils.errors import ConfigError
from utils.runs.devices import choose_device, choose_threads
from utils.runs.run_log import RunLog
from utils.runs.seeding import named_generator


def run_evaluation(arguments: EvaluateArguments) -> Evaluation:
    """Evaluate a run as asked, show it, and write it into `runs/NAME/evaluation-SPLIT/`.

    The same run, split, data, settings and earlier looks give the same `results.json`, trades and equity, bit for bit.
    A look at the holdout is entered into the ledger before anything is shown of it.

    Raises:
        ConfigError, DataError: there is no such run, or its data cannot be used.
    """
    device = choose_device(arguments.device)
    choose_threads(arguments.threads)
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=device)
    if arguments.split == "holdout" and not run.market.splits.holdout.days:
        raise ConfigError(
            f"expected a run with a holdout, got {run.path.name}, which uses all days of its data; leave --split out"
        )
    names = ("random_pickers", "rivals", "rival_refit", "benchmark")
    judging = dataclasses.replace(run.config.evaluation, **{name: getattr(arguments, name) for name in names})
    evaluation = evaluate(run, arguments.split, Portfolio.on(run.market, run.config.env, device), judging, arguments)
    if evaluation.split == "holdout":
        evaluation = entered(evaluation, arguments.runs_dir)
    log_evaluation(evaluation)
    write_evaluation(evaluation, run.path / f"evaluation-{arguments.split}")
    return evaluation


def evaluate(
    run: SavedRun,
    split: Split,
    env: Portfolio,
    judging: EvaluationConfig,
    arguments: EvaluateArguments,
) -> Evaluation:
    """Play a run's champion and the baselines on the days of a split, and judge them."""
    days = getattr(run.market.splits, split)
    played = play_run(run, days, env, judging, "evaluation", is_continuous=arguments.continuous)
    return Evaluation(
        run.name,
        split,
        run.config,
        run.market,
        played,
        trials_beside(run.path) if split == "validation" else 1,
        command_line("evaluate", *changed_flags(EvaluateArguments(), arguments)),
        champion_generation=run.generation,
        records=[record for record in RunLog(run.path).records() if record["generation"] <= run.generation],
        evidence=[run.champion.evidence],
        shares=[run.champion.share],
        importance=importance(run.champion, run.market, int(played.days.min()), played.results),
        extends=run.extends,
    )


def play_run(
    run: SavedRun,
    days: Span,
    env: Portfolio,
    judging: EvaluationConfig,
    draws: str,
    *,
    is_continuous: bool = False,
) -> PlayedPolicies:
    """Play a run's champion and the baselines on some days: supervised ones, simple ones, and the planted rules.

    Supervised baselines are fitted to the training days; planted rules are those of the built-in market.

    Args:
        draws: name of the generator of random selections.
        is_continuous: in one account that goes on over all of them.
    """
    steps, played = run.config.env.episode_steps, env
    if is_continuous:
        whole = dataclasses.replace(env.rules, trading_days=days.days - 1, settlement_days=0)
        played = Portfolio(env.bars, whole, goes_on=True)
    starts = consecutive_windows(days, played.rules.episode_steps).to(run.device)
    rules = simple_rules(run.market)
    if judging.rivals == "learned":
        learned = fit_supervised(run.market, env, refit_days=judging.rival_refit, results=run.results)
        rules = {**{name: one.rule for name, one in learned.items()}, **rules}
    if run.planted_scores is not None:
        tuning = spaced_windows(run.market.splits.train, steps, TUNING_WINDOWS).to(run.device)
        rules = rules | tune_planted(env, run.planted_scores, tuning)
    return play_all(
        EvaluationSetup(
            run.market, played, starts, benchmark_close(judging.benchmark, run.market, played, starts), run.basket
        ),
        run.champion,
        rules,
        random_selections=judging.random_pickers,
        generator=named_generator(run.config.seed, draws),
        others=run.beside,
    )


def entered(evaluation: Evaluation, runs: Path) -> Evaluation:
    """Enter a look into the ledger of a folder of runs; return the evaluation with all looks at its days counted."""
    days = (str(evaluation.dates[0]), str(evaluation.dates[-1]))
    with locked_ledger(runs) as ledger:
        looks = read_looks(runs, evaluation.market, *days)
        trials = champions_looked_at(looks, (evaluation.name, evaluation.champion_generation))
        evaluation = dataclasses.replace(evaluation, looks=looks, trials=trials)
        look = Look(
            datetime.now(UTC).isoformat(timespec="seconds"),
            evaluation.command,
            evaluation.champion_generation,
            *days,
            evaluation.policies[CHAMPION]["return"].value,
            evaluation.sentence,
            evaluation.name,
            data_fingerprint(evaluation.market),
            evaluation.extends,
        )
        add_look(ledger, look)
        looks.append(look)
    return evaluation


def judge_training(
    trainer: ERLTrainer,
    config: Config,
    path: Path,
    scores: PlantedScores | None,
) -> Evaluation:
    """Judge the champion of a finished training run on its validation days; end the training before."""
    results = trainer.days.samples.results
    trainer.end_training()
    agents = trainer.champion, trainer.fittest_agent, trainer.closed_form
    run = SavedRun(path, config, trainer.market, scores, trainer.device, trainer.generation, *agents, results)
    again = EvaluateArguments(run=path.name, runs_dir=path.parent)
    trainer.safe_point()
    return evaluate(run, "validation", trainer.val_env.account, config.evaluation, again)
