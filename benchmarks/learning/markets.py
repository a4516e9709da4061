"""Profit on unseen paths of planted markets: `python -m benchmarks.learning markets [--seeds N] [--json FILE]`.

Each seed trains on a path of its own. The champion is fixed on that path's training days; it, the rivals, the rule and
the oracle are then played on the same windows of fresh paths of the same law, with what was fitted on the training
path. A kind of market brings its trading rules. The default of `--unseen-seed` served development; published tables are
printed once on another one, which they name.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.learning.study import (
    Experiment,
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    mean_interval,
    plus_minus,
)
from benchmarks.learning.unseen import (
    CPU,
    UNSEEN_PATHS,
    UNSEEN_SEED,
    WINDOWS_PER_PATH,
    UnseenPaths,
    baselines_job,
    joined,
    shares,
    training_market,
    tuned,
)
from data.market import Market
from data.synthetic.planted import PLANTED_KINDS
from training.erl_trainer import ERLTrainer, build_trainer
from training.evaluation.baselines import CHAMPION, ORACLE, RULE
from utils.config.trader import Config
from utils.runs.seeding import named_generator, seed_everything

logger = logging.getLogger(__name__)
KINDS = tuple(PLANTED_KINDS)
MARTINGALE = "martingale"
"""The kind in which nothing is planted: what its rule earns is nothing to have a share of."""
PLANTED = tuple(kind for kind in KINDS if kind != MARTINGALE)
WINDOWS = "champion_windows"
"""Of a record: profits of the champion, percent, on the unseen windows one by one."""
Alteration = Callable[[ERLTrainer, torch.Generator], None]
"""Changes a trainer that was just built in a way that no setting does; it may draw from the generator."""


@dataclass(frozen=True)
class Budget:
    """Limits of a training, CPU minutes or generations, whichever comes first; None is no limit."""

    cpu_minutes: float | None = None
    generations: int | None = None

    def is_spent(self, generations: int, cpu_seconds: float) -> bool:
        """Tell whether a training has reached a limit."""
        is_last = self.generations is not None and generations >= self.generations
        return is_last or (self.cpu_minutes is not None and cpu_seconds >= 60 * self.cpu_minutes)


@dataclass(frozen=True)
class Trained:
    """A finished training and the time it took."""

    trainer: ERLTrainer
    record_of_last: Mapping[str, Any]
    """The record of its last generation."""
    wall_seconds: float
    cpu_seconds: float

    def record(self) -> Record:
        """Return the cost of the training in plain numbers; steps are those to learn from, exploration included."""
        trainer, evaluation = self.trainer, self.trainer.evaluation
        lanes = len(trainer.population) * (evaluation.fitness_windows + evaluation.exploration_windows)
        return {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "environment_steps": trainer.generation * lanes * trainer.eval_env.rules.episode_steps,
            "generations_run": trainer.generation,
            "validation_percent": self.record_of_last["validation"]["champion"],
            "p_value": trainer.champion.evidence.smallest,
        }


def fit(config: Config, market: Market, budget: Budget, alter: Alteration | None = None) -> Trained:
    """Train a population by the trainer's own generations, at least one, until the budget is spent."""
    wall, cpu = time.perf_counter(), time.process_time()
    seed_everything(config.seed)
    trainer = build_trainer(config, market, CPU)
    if alter is not None:
        alter(trainer, named_generator(config.seed, "alteration"))
    while trainer.generation == 0 or not budget.is_spent(trainer.generation, time.process_time() - cpu):
        record = trainer.run_generation()
        fitness, validation = record["fitness"]["max"] or 0.0, record["validation"]["champion"]
        words = "seed %d generation %d: fitness %.2f, validation %.2f"
        logger.info(words, config.seed, trainer.generation, fitness, validation)
    return Trained(trainer, record, time.perf_counter() - wall, time.process_time() - cpu)


def market_job(config: Config, budget: Budget, unseen: UnseenPaths, alter: Alteration | None = None) -> Record:
    """Train one seed and measure its champion; return plain numbers for the file of results."""
    market, scores = training_market(config)
    trained = fit(config, market, budget, alter)
    champion = trained.trainer.champion
    planted = tuned(market, scores, config)
    profits = joined(
        [
            {CHAMPION: path.play_champion(champion), **path.play_planted(planted)}
            for path in unseen.each(config, market.stats)
        ]
    )
    windows = profits[CHAMPION].round(4).tolist()
    return {"policies": shares(profits), WINDOWS: windows, "share_of_capital": champion.share, **trained.record()}


def market_jobs(config: Config, study: Study, /, alter: Alteration | None = None, **labels: Any) -> list[Experiment]:
    """Make a job a seed; its key holds the labels, budget and unseen paths, too."""
    unseen, budget = unseen_of(study.arguments), budget_of(study.arguments)
    unseen.require_unseen(study.seeds)
    task = partial(market_job, budget=budget, unseen=unseen, alter=alter)
    return each_seed(config, study.seeds, task, **labels, **asdict(unseen), **asdict(budget))


def table_rows(kind: str, trained: Sequence[Record], rivals: Sequence[Record]) -> Iterator[str]:
    """Format a line for each policy, with 95% intervals over seeds."""
    cost = ("cpu_seconds", "environment_steps")
    by_policy = {CHAMPION: [one["policies"][CHAMPION] | {name: one[name] for name in cost} for one in trained]}
    by_policy |= {name: [record["policies"][name] for record in rivals] for name in rivals[0]["policies"]}
    for name in sorted(by_policy, key=lambda name: (name == ORACLE, name == RULE)):
        if by_policy[name]:
            yield _row(kind, name, by_policy[name])
    if trained:
        yield f"{'':<12} p-value on training days at most {max(record['p_value'] for record in trained):.1e}"


def _row(kind: str, policy: str, results: Sequence[Mapping[str, Any]]) -> str:
    by_policy = ([result[name] for result in results if result[name] is not None] for name in ("of_rule", "of_oracle"))
    shares_of = " ".join(f"{plus_minus(*mean_interval(known)):>15}" for known in by_policy)
    profit, seconds = (float(np.mean([result[name] for result in results])) for name in ("profit", "cpu_seconds"))
    steps = [result["environment_steps"] for result in results if "environment_steps" in result]
    played = f"{np.mean(steps):11.0f}" if steps else ""
    return f"{kind:<12} {policy:<24} {len(results):>5} {shares_of} {profit:9.2f} {seconds:8.1f} {played}".rstrip()


HEADER = (
    f"{'planted':<12} {'policy':<24} {'seeds':>5} {'of the rule':>15} {'of the oracle':>15} {'profit %':>9} "
    f"{'CPU s':>8} {'env. steps':>11}"
)


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget that the flags of a study ask for."""
    if arguments.minutes is None and arguments.generations is None:
        return Budget(None, arguments.default_generations)
    return Budget(arguments.minutes, arguments.generations)


def add_unseen_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the unseen paths."""
    parser.add_argument(
        "--unseen-seed", type=int, default=UNSEEN_SEED, help="of the first unseen path; take one nothing was tuned on"
    )
    parser.add_argument("--paths", type=int, default=UNSEEN_PATHS, help="unseen paths")
    parser.add_argument("--windows", type=int, default=WINDOWS_PER_PATH, help="on each unseen path")


def unseen_of(arguments: argparse.Namespace) -> UnseenPaths:
    """Return the unseen paths that the flags of a study ask for."""
    return UnseenPaths(arguments.unseen_seed, arguments.paths, arguments.windows)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=5)
    add_training_flags(parser, generations=10)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument("--rivals-only", action="store_true", help="train no population")
    add_unseen_flags(parser)
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each kind of market over seeds and print its lines as soon as they are known."""
    unseen = unseen_of(study.arguments)
    print(f"{unseen}; profits in percent of the capital an episode\n{HEADER}", flush=True)
    for kind in study.arguments.kinds:
        config, labels = study.config(kind), {"study": "markets", "kind": kind}
        job = partial(baselines_job, unseen=unseen)
        rivals = each_seed(config, study.seeds, job, **labels, played="rivals", **asdict(unseen))
        trained = market_jobs(config, study, **labels, played="trained")
        of_rivals = study.records(rivals)
        of_trained = [] if study.arguments.rivals_only else study.records(trained)
        print("\n".join(table_rows(kind, of_trained, of_rivals)), flush=True)
