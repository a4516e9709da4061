"""Profit on unseen paths of planted markets: `python -m benchmarks.learning markets [--seeds N] [--json FILE]`.

Each seed trains on a path of its own. The champion is chosen on that path's validation windows; it, the rule and the
oracle are then played on the same windows of fresh paths of the same law, with the training path's normalisation.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.learning.study import Job, Record, add_study_flags, mean_interval, run_study, study_config
from data.features import NormalizationStats
from data.market import Market, MarketTensors
from data.splits import Span, spaced_windows
from data.synthetic.built_in import MARKET_SEED, PlantedScores, built_in_market
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import ScoreRule, score_policy
from training.evaluation.tracks import ORACLE, RULE, tune_planted
from training.rollout import play, roll_out
from training.run.trainer import build_trainer
from utils.config.settings import settings_hash
from utils.config.trader import Config, MarketKind
from utils.runs.seeding import seed_everything

logger = logging.getLogger(__name__)
CPU = torch.device("cpu")
KINDS: tuple[str, ...] = get_args(MarketKind)
MARTINGALE = "martingale"
"""The kind in which nothing is planted: what its rule earns is nothing to have a share of."""
UNSEEN_SEED = 2_000_000
"""Seed of the first unseen path; training paths have small ones."""
UNSEEN_PATHS, WINDOWS_PER_PATH = 8, 25
_TUNING_WINDOWS = 32


@dataclass(frozen=True)
class Budget:
    """Limits of a training, CPU minutes or generations, whichever comes first; None is no limit."""

    cpu_minutes: float | None = None
    generations: int | None = None


@dataclass(frozen=True)
class Trained:
    """A finished training and the time it took."""

    trainer: ERLTrainer
    wall_seconds: float
    cpu_seconds: float

    @property
    def environment_steps(self) -> int:
        """Return the steps that agents played to learn from, exploration included, validation not."""
        trainer = self.trainer
        lanes = trainer.evaluation.fitness_windows * (1 + trainer.evaluation.exploration_lanes)
        return trainer.generation * trainer.population.size * lanes * trainer.eval_env.rules.episode_steps


@dataclass(frozen=True)
class Profits:
    """Percent of the initial capital an episode, of each policy on the same (windows,) unseen windows."""

    champion: NDArray[np.float64]
    rule: NDArray[np.float64]
    oracle: NDArray[np.float64]

    def shares(self) -> Record:
        """Return mean profits, the champion's as a share of the rule's and of the oracle's, and the error of the first.

        A share is None where the other earns nothing. `standard_error` is that of the champion's mean over windows.
        """
        champion, rule, oracle = (float(values.mean()) for values in (self.champion, self.rule, self.oracle))
        return {
            "champion": champion,
            "rule": rule,
            "oracle": oracle,
            "of_rule": champion / rule if rule > 0 else None,
            "of_oracle": champion / oracle if oracle > 0 else None,
            "standard_error": float(self.champion.std(ddof=1) / np.sqrt(len(self.champion))),
        }


def training_market(config: Config) -> tuple[Market, PlantedScores]:
    """Return the path that a seed trains on; seed 0's is that of `python main.py`."""
    return built_in_market(config.synthetic, config.split, config.env, seed=MARKET_SEED + config.seed)


def fit(config: Config, market: Market, budget: Budget) -> Trained:
    """Train a population by the trainer's own generations, at least one, until the budget is spent."""
    seed_everything(config.seed)
    trainer = build_trainer(config, market, CPU)
    wall, cpu = time.perf_counter(), time.process_time()
    while trainer.generation == 0 or not _is_spent(budget, trainer.generation, time.process_time() - cpu):
        record = trainer.run_generation()
        logger.info(
            "seed %d generation %d: fitness %.2f, validation %.2f",
            config.seed,
            trainer.generation,
            record["fitness"]["max"] or 0.0,
            trainer.champion_score,
        )
    return Trained(trainer, time.perf_counter() - wall, time.process_time() - cpu)


def _is_spent(budget: Budget, generations: int, cpu_seconds: float) -> bool:
    if budget.generations is not None and generations >= budget.generations:
        return True
    return budget.cpu_minutes is not None and cpu_seconds >= 60 * budget.cpu_minutes


def evaluate_on_unseen(
    champion: DDPGAgent,
    config: Config,
    *,
    paths: int = UNSEEN_PATHS,
    windows: int = WINDOWS_PER_PATH,
    training: tuple[Market, PlantedScores] | None = None,
) -> Record:
    """Measure a champion's profit on unseen paths beside the rule's and the oracle's; see `Profits.shares`.

    Args:
        config: the run's settings; they say what it trained on.
        paths, windows: fresh paths of the market's law, and evenly spaced windows on each.
        training: the path it trained on, if at hand, whose normalisation it needs and on which rule and oracle are
            tuned; default: `training_market(config)`. (`python main.py` trains on that of seed 0, whatever its seed.)
    """
    return unseen_profits(champion, config, paths, windows, training or training_market(config)).shares()


def unseen_profits(
    champion: DDPGAgent, config: Config, paths: int, windows: int, training: tuple[Market, PlantedScores]
) -> Profits:
    """Play champion, rule and oracle on the same windows of unseen paths."""
    market, scores = training
    planted = tuned(market, scores, config)
    parts = [
        _profits_on_path(champion, config, market.stats, UNSEEN_SEED + path, windows, planted) for path in range(paths)
    ]
    return Profits(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def tuned(market: Market, scores: PlantedScores, config: Config) -> dict[str, ScoreRule]:
    """Return rule and oracle as they are tuned on training windows."""
    env = Portfolio.on(market, config.env)
    starts = spaced_windows(market.splits.train, config.env.episode_steps, _TUNING_WINDOWS)
    return tune_planted(env, scores, starts)


def _profits_on_path(
    champion: DDPGAgent,
    config: Config,
    stats: NormalizationStats,
    seed: int,
    windows: int,
    planted: Mapping[str, ScoreRule],
) -> list[NDArray[np.float64]]:
    market, scores = built_in_market(config.synthetic, config.split, config.env, seed=seed, stats=stats)
    env = Portfolio.on(market, config.env)
    days = Span(config.split.context_window_days, len(market.dates) - 1)
    starts = spaced_windows(days, config.env.episode_steps, windows)
    summaries = [roll_out(env, champion.networks, MarketTensors.of(market, CPU), starts).summary]
    for rule, known in ((planted[RULE], scores.rule), (planted[ORACLE], scores.oracle)):
        summaries.append(play(env, score_policy(replace(rule, scores=known), CPU), starts)[0])
    return [summary.profit_percent.double().numpy() for summary in summaries]


def market_job(config: Config, budget: Budget, paths: int, windows: int) -> Record:
    """Train one seed and measure its champion; return plain numbers for the file of results."""
    market, scores = training_market(config)
    trained = fit(config, market, budget)
    trainer = trained.trainer
    found = evaluate_on_unseen(trainer.champion, config, paths=paths, windows=windows, training=(market, scores))
    return {
        **found,
        "wall_seconds": trained.wall_seconds,
        "cpu_seconds": trained.cpu_seconds,
        "environment_steps": trained.environment_steps,
        "generations_run": trainer.generation,
        "champion_generation": trainer.champion_generation,
        "validation_percent": trainer.champion_score,
    }


def market_jobs(
    config: Config, seeds: Sequence[int], budget: Budget, paths: int, windows: int, **labels: Any
) -> list[Job]:
    """Make a job a seed; its key holds the labels, seed, budget, windows and the hash of the settings."""
    jobs = []
    for seed in seeds:
        own = replace(config, seed=seed, census_every=0)
        key = {
            **labels,
            "seed": seed,
            **asdict(budget),
            "paths": paths,
            "windows": windows,
            "settings": settings_hash(own)[:16],
        }
        jobs.append(Job(key, partial(market_job, own, budget, paths, windows)))
    return jobs


def table_row(name: str, records: Sequence[Record]) -> str:
    """Format mean shares with their 95% intervals over seeds, profits, and the time of training."""
    rule_share, oracle_share = (
        mean_interval([record[name] for record in records if record[name] is not None])
        for name in ("of_rule", "of_oracle")
    )
    profits = " ".join(f"{np.mean([record[key] for record in records]):8.2f}" for key in ("champion", "rule", "oracle"))
    cost = " ".join(f"{np.mean([record[key] for record in records]):9.0f}" for key in ("wall_seconds", "cpu_seconds"))
    steps = float(np.mean([record["environment_steps"] for record in records]))
    shares = " ".join(f"{mean:6.2f} +- {half:4.2f}" for mean, half in (rule_share, oracle_share))
    return f"{name:<26} {len(records):>5}  {shares}  {profits} {cost} {steps:11.0f}"


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget that the flags of a study ask for."""
    if arguments.minutes is None and arguments.generations is None:
        return Budget(None, arguments.default_generations)
    return Budget(arguments.minutes, arguments.generations)


def add_command(commands: Any) -> None:
    """Add `markets` to the commands of `benchmarks.learning`."""
    parser = commands.add_parser(
        "markets", help="planted markets: the champion's share of the rule and the oracle", allow_abbrev=False
    )
    add_study_flags(parser, "--seeds", seeds=5, generations=20)
    planted = [kind for kind in KINDS if kind != MARTINGALE]
    parser.add_argument("--kinds", nargs="+", default=planted, choices=KINDS, help="default: all but the martingale")
    parser.add_argument("--paths", type=int, default=UNSEEN_PATHS, help="unseen paths")
    parser.add_argument("--windows", type=int, default=WINDOWS_PER_PATH, help="on each unseen path")
    parser.set_defaults(run=run_markets)


def run_markets(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Measure each kind of market over seeds and print a line for each as soon as it is known."""
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    print(HEADER, flush=True)
    for kind in arguments.kinds:
        config = study_config([*words, "--synthetic.kind", kind])
        jobs = market_jobs(config, seeds, budget_of(arguments), arguments.paths, arguments.windows, kind=kind)
        records = list(run_study(jobs, arguments.json, arguments.workers))
        print(table_row(kind, records), flush=True)


HEADER = (
    f"{'':<26} {'seeds':>5}  {'of the rule':>14} {'of the oracle':>14}  {'champion':>8} {'rule':>8} {'oracle':>8} "
    f"{'wall s':>9} {'CPU s':>9} {'env. steps':>11}"
)
