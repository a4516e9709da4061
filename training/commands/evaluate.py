"""`python main.py evaluate`: a champion or anybody's policies against baselines: a verdict, tables, files and pages."""

import dataclasses
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.market import Market
from data.splits import Span
from data.universe import read_closes
from models.ddpg_agent import DDPGAgent
from training.commands.table import EvaluateArguments
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION
from training.evaluation.compared import Baselines, PlayedPolicies, at_costs
from training.evaluation.export import log_evaluation, record_look, results, write_evaluation
from training.evaluation.judge import Evaluation
from training.evaluation.play import account_of_agent
from training.forecasts.skill import HORIZONS, clearest, rank_coefficients, rank_correlation
from training.forecasts.training_days import TrainingDays
from training.policies.judgement import TradedMarket, judge, load_market, require_own_names
from training.policies.read import WEIGHTS, read_policy, read_rows, read_table
from training.policies.trades import Trades
from training.run.market import require_past_columns, scores_of
from training.run.saved import SavedRun, open_saved_run
from training.signals.signals import moved_by
from utils.arrays import Float64Array
from utils.config.cli import command_line
from utils.config.settings import changed_flags, changed_values, read_settings
from utils.config.trader import Config, EnvironmentConfig, EvaluationConfig
from utils.errors import ConfigError
from utils.runs.devices import choose_device, choose_threads, named_generator
from utils.runs.run_log import RunLog, json_text

logger = logging.getLogger(__name__)
JUDGING = ("random_pickers", "rivals", "rival_refit", "benchmark")
"""Settings of the evaluation that the command has as flags of its own."""
_DAYS = 100
"""Most days on which inputs are shuffled, evenly spaced."""
_POSITIONS = 10
"""That are explained."""


def run_evaluation(arguments: EvaluateArguments) -> None:
    """Evaluate a run or policies as asked, show it, and write it into `evaluation-SPLIT` of `runs/NAME/` or of
    `runs/judged/`.

    The same run, split, data, settings and earlier looks give the same `results.json`, trades and equity, bit for bit.
    A look at the holdout is entered into the ledger before anything is shown of it.

    Raises:
        ConfigError, DataError: there is no such run, or its data cannot be used; or a policy cannot.
    """
    if arguments.benchmark is not None:
        read_closes(arguments.benchmark)  # refused now; one of other days is left out
    device = choose_device(arguments.device)
    choose_threads(arguments.threads)
    level = logging.root.manager.disable
    logging.disable(logging.INFO if arguments.json else level)
    try:
        found = judge_policies(arguments, device) if arguments.is_of_policies else [judge_run(arguments, device)]
    finally:
        logging.disable(level)
    if arguments.json:
        sys.stdout.write(json_text({one.judged: results(one) for one in found}))


def judge_run(arguments: EvaluateArguments, device: torch.device) -> Evaluation:
    """Judge a run's champion."""
    run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=device)
    require_past_columns(run.market)
    evaluation = evaluate(run, arguments)
    if evaluation.split == "holdout":
        evaluation = record_look(evaluation, arguments.runs_dir)
    log_evaluation(evaluation)
    write_evaluation(evaluation, run.path / f"evaluation-{arguments.split}")
    return evaluation


def judge_policies(arguments: EvaluateArguments, device: torch.device) -> list[Evaluation]:
    """Judge policies that are not a run's champion, beside that of the named run if there is one."""
    policies, settings = read_policies(arguments), dict[str, Any]()
    if arguments.run is None:
        settings = read_settings(arguments.config) if arguments.config else {}
        named = {"investable": arguments.investable, "evaluation.benchmark_weights": arguments.benchmark_weights}
        listed = {name: str(value) for name, value in named.items() if value}
        changed = changed_values(EnvironmentConfig(), arguments.env)
        rules = {f"env.{name}": value for name, value in changed.items()}
        market = load_market(arguments.data, {**settings, **listed, **rules}, device)
    else:
        run = open_saved_run(arguments.runs_dir, arguments.run, data=arguments.data, device=device)
        market = TradedMarket.of_run(run)
    judgement = judge(
        market,
        policies,
        split=arguments.split,
        variants=arguments.variants,
        judging=_judging(market.config, arguments, settings),
        hold=arguments.hold,
        borrow_bps=arguments.borrow_bps,
        null=arguments.null,
        spend_look=arguments.spend_look,
        runs_dir=arguments.runs_dir,
        command=_command(arguments),
    )
    for evaluation in judgement.evaluations.values():
        log_evaluation(evaluation)
    judgement.save_page(arguments.runs_dir / (arguments.run or "judged") / f"evaluation-{arguments.split}")
    return [*judgement.evaluations.values()]


def read_policies(arguments: EvaluateArguments) -> dict[str, Any]:
    """Return the policies that the arguments name.

    Raises:
        ConfigError, DataError: a file cannot be used, two policies have one name, or one has that of a baseline.
    """
    policies = dict[str, Any]()
    if arguments.hold is not None and not arguments.policy and arguments.scores is None:
        raise ConfigError("--hold: expected scores, of which the best are held, got weights or trades; leave it out")
    read = [read_policy(place) for place in arguments.policy]
    for path, holds in ((arguments.scores, "scores"), (arguments.weights, WEIGHTS)):
        if path is not None:
            read.append((path.stem, read_table(path, holds)))
    if path := arguments.trades:
        read.append((path.stem, Trades(read_rows(path, "trades"), str(path))))
    for name, policy in read:
        if name in policies:
            raise ConfigError(f"expected policies with different names, got two called {name!r}; rename one")
        policies[name] = policy
    require_own_names(policies)
    return policies


def _judging(config: Config, arguments: EvaluateArguments, stated: Collection[str] = ()) -> EvaluationConfig:
    """Return how it is judged: by the command's flags; those that are left out do not override what a file states."""
    given, usual = vars(arguments), vars(EvaluateArguments())
    flags = [name for name in JUDGING if f"evaluation.{name}" not in stated or given[name] != usual[name]]
    return dataclasses.replace(config.evaluation, **{name: given[name] for name in flags})


def _command(arguments: EvaluateArguments) -> str:
    return command_line("evaluate", *changed_flags(EvaluateArguments(), arguments))


def evaluate(run: SavedRun, arguments: EvaluateArguments, known: TrainingDays | None = None) -> Evaluation:
    """Play a run's champion and the baselines on the days of a split, and judge them; see `Baselines.fitted`."""
    split, judging = arguments.split, _judging(run.config, arguments)
    played = play_run(run, getattr(run.market.splits, split), judging, "evaluation", known)
    sessions = clearest(rank_coefficients(played.scores[CHAMPION], played.ahead)) or HORIZONS[0]
    return Evaluation(
        name=run.name,
        split=split,
        config=run.config,
        market=run.market,
        played=played,
        command=_command(dataclasses.replace(arguments, run=run.name)),
        champion_generation=run.generation,
        champion_digest=run.champion.digest,
        records=[record for record in RunLog(run.path).records() if record["generation"] <= run.generation],
        evidence=[run.champion.evidence],
        importance=importance(run.champion, run.market, int(played.days[0]), played.ahead[sessions]),
        decided=explain_positions(run.champion, run.market, played.positions),
        extends=run.extends,
    )


def play_run(
    run: SavedRun, days: Span, judging: EvaluationConfig, draws: str, known: TrainingDays | None = None
) -> PlayedPolicies:
    """Play a run's champion and the baselines on some days, see `Baselines`.

    Args:
        draws: name of the generator of random pickers.
    """
    baselines = Baselines.fitted(run.market, run.planted_scores, run.config, days, judging, run.device, known)
    agents, generator = {CHAMPION: run.champion, **run.beside}, named_generator(run.config.seed, draws)
    accounts = {name: account_of_agent(baselines.setup, agent) for name, agent in agents.items()}
    costs = at_costs(baselines.setup, accounts)
    return baselines.beside(CHAMPION, accounts, judging.random_pickers, generator, costs)


def judge_training(trainer: ERLTrainer, config: Config, path: Path) -> Evaluation:
    """Judge the champion of a finished training run on its validation days; end the training before."""
    known = trainer.training_days
    trainer.end_training()
    agents = trainer.champion, trainer.fittest_agent
    run = SavedRun(path, config, trainer.market, scores_of(config), trainer.device, trainer.generation, *agents)
    judging = {name: getattr(config.evaluation, name) for name in JUDGING}
    again = EvaluateArguments(run=path.name, runs_dir=path.parent, **judging)
    trainer.safe_point()
    return evaluate(run, again, known)


@torch.no_grad()
def importance(agent: DDPGAgent, market: Market, first: int, returns: Float64Array) -> dict[str, float]:
    """Return what each input is worth to an agent on days that it did not learn from, the largest first: the mean rank
    correlation over stocks of its scores with the (days, n) returns after the days from the `first` on, less the same
    with the input's values shuffled over all stocks and days (Breiman 2001, "Random forests").
    """
    known = np.flatnonzero(np.isfinite(returns).sum(axis=1) > 2)
    chosen = known[:: 1 + len(known) // _DAYS]
    if not chosen.size:
        return {}
    rows = agent.inputs.rows_of(market, slice(first, first + len(returns)))
    x = torch.cat([rows.x(slice(first + day, first + day + 1)) for day in chosen.tolist()]).to(agent.device)
    bars, draws = rows.has_bar[torch.from_numpy(chosen)], np.random.default_rng(0)
    seen = agent.inputs.for_networks(x)

    def ranking(seen: torch.Tensor) -> float:
        score = torch.full(bars.shape, torch.nan, dtype=torch.float64)
        score[bars] = agent.mean_scores(seen).double().cpu()
        return float(np.nanmean(rank_correlation(score.numpy(), returns[chosen])))

    whole, losses = ranking(seen), {}
    for name, places in agent.inputs.named_places().items():
        shuffled = seen.clone()
        shuffled[:, places] = seen[draws.permutation(len(seen))][:, places]
        losses[name] = whole - ranking(shuffled)
    return dict(sorted(losses.items(), key=lambda one: -one[1]))


def explain_positions(agent: DDPGAgent, market: Market, positions: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Return the places of the positions in investable stocks that gained or lost most, the largest first, and what
    moved the forecasts on which they were first bought."""
    columns = market.investable_columns.tolist()
    own = [place for place, one in enumerate(positions) if one["stock"] < len(columns)]
    largest = sorted(own, key=lambda place: -abs(positions[place]["profit"] - positions[place]["costs"]))[:_POSITIONS]
    late = int(agent.rules.fill == "next_open")
    bought = [(positions[place]["first_day"] - late, columns[positions[place]["stock"]]) for place in largest]
    return dict(zip(largest, moved_by(agent, market, bought), strict=True))
