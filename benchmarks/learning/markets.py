"""Profit on unseen paths of planted markets: `python -m benchmarks.learning markets [--seeds N] [--json FILE]`.

Each seed trains on a path of its own. The champion is fixed on that path's training days; it, the rivals, the rule and
the oracle are then played on the same windows of fresh paths of the same law, with what was fitted on the training
path. Beside the champion stand the fittest agent alone, the elites' closed form, and the mean of all agents of the
last generation. Below stands how well selection works: rank correlations of fitness with unseen profit, over the
agents of the last generation and over genomes drawn at random; the founders left; the value of cash on the first day
beside the profit that followed; the profit of the champions of some generations on the way. The default of `--unseen-
seed` served development; published tables are printed once on another one, which they name.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.learning.baselines import baselines_job
from benchmarks.learning.selection import MEAN_AGENT, ChampionStudy, SelectionStudy
from benchmarks.learning.study import (
    Experiment,
    Record,
    add_study_flags,
    add_training_flags,
    folder_of,
    mean_interval,
    plus_minus,
    run_study,
    seeds_of,
    study_config,
    study_executor,
)
from benchmarks.learning.unseen import (
    CPU,
    UNSEEN_PATHS,
    UNSEEN_SEED,
    WINDOWS_PER_PATH,
    UnseenPaths,
    joined,
    shares,
    training_market,
    tuned,
)
from data.market import Market
from data.synthetic.planted import PLANTED_KINDS
from models.ddpg_agent import DDPGAgent
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import BEST_AGENT, CHAMPION, CLOSED_FORM, ORACLE, RULE
from training.run.trainer import build_trainer
from utils.config.settings import settings_hash
from utils.config.trader import Config
from utils.runs.seeding import named_generator, seed_everything

logger = logging.getLogger(__name__)
KINDS = tuple(PLANTED_KINDS)
MARTINGALE = "martingale"
"""The kind in which nothing is planted: what its rule earns is nothing to have a share of."""
PLANTED = tuple(kind for kind in KINDS if kind != MARTINGALE)
Array = NDArray[np.float64]
Alteration = Callable[[ERLTrainer, torch.Generator], None]
"""Changes a trainer that was just built in a way that no setting does; it may draw from the generator."""
RANDOM_GENOMES = 64
"""Over which fitness is correlated with unseen profit, however alike the last generation's agents are."""


@dataclass(frozen=True)
class Budget:
    """Limits of a training, CPU minutes or generations, whichever comes first; None is no limit."""

    cpu_minutes: float | None = None
    generations: int | None = None


@dataclass(frozen=True)
class Trained:
    """A finished training and the time it took."""

    trainer: ERLTrainer
    record_of_last: Mapping[str, Any]
    """The record of its last generation."""
    early: Mapping[int, DDPGAgent]
    """Champions after 1, 2, 4, 8 generations and so on, by generation."""
    wall_seconds: float
    cpu_seconds: float

    @property
    def environment_steps(self) -> int:
        """Return the steps that agents played to learn from, exploration included, validation not."""
        trainer = self.trainer
        windows = trainer.evaluation.fitness_windows + trainer.evaluation.exploration_windows
        return trainer.generation * len(trainer.population) * windows * trainer.eval_env.rules.episode_steps

    def record(self) -> Record:
        """Return the cost of the training in plain numbers."""
        return {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "environment_steps": self.environment_steps,
            "generations_run": self.trainer.generation,
            "validation_percent": self.record_of_last["validation"]["champion"],
            "luck": self.trainer.champion.evidence.smallest,
        }


def fit(config: Config, market: Market, budget: Budget, alter: Alteration | None = None) -> Trained:
    """Train a population by the trainer's own generations, at least one, until the budget is spent."""
    wall, cpu = time.perf_counter(), time.process_time()
    seed_everything(config.seed)
    trainer = build_trainer(config, market, CPU)
    if alter is not None:
        alter(trainer, named_generator(config.seed, "alteration"))
    early: dict[int, DDPGAgent] = {}
    while trainer.generation == 0 or not _is_spent(budget, trainer.generation, time.process_time() - cpu):
        record = trainer.run_generation()
        logger.info(
            "seed %d generation %d: fitness %.2f, validation %.2f",
            config.seed,
            trainer.generation,
            record["fitness"]["max"] or 0.0,
            record["validation"]["champion"],
        )
        if trainer.generation.bit_count() == 1:
            early[trainer.generation] = trainer.champion
    return Trained(trainer, record, early, time.perf_counter() - wall, time.process_time() - cpu)


def _is_spent(budget: Budget, generations: int, cpu_seconds: float) -> bool:
    if budget.generations is not None and generations >= budget.generations:
        return True
    return budget.cpu_minutes is not None and cpu_seconds >= 60 * budget.cpu_minutes


def market_job(
    config: Config, budget: Budget, unseen: UnseenPaths, alter: Alteration | None = None, genomes: int | None = None
) -> Record:
    """Train one seed and measure its champion and its last generation; return plain numbers for the file of results.

    Args:
        genomes: drawn at random, on which fitness is tested, too; None: only the champion is played.
    """
    market, scores = training_market(config)
    trained = fit(config, market, budget, alter)
    planted = tuned(market, scores, config)
    selection = (
        ChampionStudy(trained.trainer) if genomes is None else SelectionStudy(trained.trainer, config.seed, genomes)
    )
    stages = {} if genomes is None else trained.early
    parts: list[dict[str, Array]] = []
    for path in unseen.each(config, market.stats):
        x = trained.trainer.days.inputs.of(path.market)
        early = {
            _after(generation): path.play_agent(agent, x).summary.profit_percent.numpy()
            for generation, agent in stages.items()
        }
        parts.append({**selection.play(path, x), **early, **path.play_planted(planted)})
    found = shares(joined(parts))
    curve = {str(generation): found.pop(_after(generation))["profit"] for generation in stages}
    curve[str(trained.trainer.generation)] = found[CHAMPION]["profit"]
    return {"policies": found, "curve": curve, "selection": selection.record(), **trained.record()}


def _after(generation: int) -> str:
    return f"{CHAMPION} after generation {generation}"


def market_jobs(
    config: Config,
    seeds: Sequence[int],
    budget: Budget,
    unseen: UnseenPaths,
    alter: Alteration | None = None,
    genomes: int | None = None,
    **labels: Any,
) -> list[Experiment]:
    """Make a job a seed; its key holds the labels, seed, budget, unseen paths and the hash of the settings."""
    unseen.require_unseen(seeds)
    return [
        Experiment(
            key_of(own, unseen, **labels, **asdict(budget)), partial(market_job, own, budget, unseen, alter, genomes)
        )
        for own in of_each_seed(config, seeds)
    ]


def of_each_seed(config: Config, seeds: Sequence[int]) -> list[Config]:
    """Return the settings of each seed's job."""
    return [replace(config, seed=seed, census_every=0) for seed in seeds]


def key_of(config: Config, unseen: UnseenPaths, **labels: Any) -> dict[str, Any]:
    """Return what tells a job's result from all others."""
    return {**labels, "seed": config.seed, **asdict(unseen), "settings": settings_hash(config)[:16]}


def table_rows(kind: str, trained: Sequence[Record], rivals: Sequence[Record]) -> Iterator[str]:
    """Format a line for each policy, with 95% intervals over seeds, and how well selection worked."""
    found = {name: [record["policies"][name] for record in rivals] for name in rivals[0]["policies"]}
    if trained:
        spent = [{"cpu_seconds": record["cpu_seconds"], "steps": record["environment_steps"]} for record in trained]
        own = {
            name: [record["policies"][name] | cost for record, cost in zip(trained, spent, strict=True)]
            for name in (CHAMPION, BEST_AGENT, CLOSED_FORM, MEAN_AGENT)
            if name in trained[0]["policies"]
        }
        found = own | found
    for name in sorted(found, key=lambda name: (name == ORACLE, name == RULE)):
        yield _row(kind, name, found[name])
    if trained:
        yield from selection_lines([record["selection"] for record in trained])
        yield _curve([record["curve"] for record in trained])
        yield f"{'':<12} p-value on training days at most {max(record['luck'] for record in trained):.1e}"


def _row(kind: str, policy: str, results: Sequence[Mapping[str, Any]]) -> str:
    shares_of = " ".join(f"{interval(results, name):>15}" for name in ("of_rule", "of_oracle"))
    profit, seconds = (float(np.mean([result[name] for result in results])) for name in ("profit", "cpu_seconds"))
    steps = f"{np.mean([result['steps'] for result in results]):11.0f}" if "steps" in results[0] else ""
    return f"{kind:<12} {policy:<24} {len(results):>5} {shares_of} {profit:9.2f} {seconds:8.1f} {steps}".rstrip()


def interval(results: Sequence[Mapping[str, Any]], name: str) -> str:
    """Format the mean of a figure with its 95% interval, over the results that have it."""
    return plus_minus(*mean_interval([result[name] for result in results if result[name] is not None]))


def selection_lines(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Format what `SelectionStudy.record` gave for each seed."""
    agents, genomes = (interval(results, f"{name}_rank_correlation") for name in ("fitness", "random"))
    mean = {name: float(np.mean([result[name] for result in results])) for name in results[0] if "_rank" not in name}
    yield (
        f"{'':<12} rank correlation of fitness with unseen profit: last generation {agents}, random genomes {genomes}"
    )
    yield (
        f"{'':<12} founders {mean['founders']:.1f} of {mean['agents']:.0f}; agents' profit {mean['unseen_mean']:.2f}, "
        f"deviation {mean['unseen_deviation']:.2f}; V(s0) {mean['initial_value']:.2f}, profit that followed "
        f"{mean['profit']:.2f}"
    )


def _curve(results: Sequence[Mapping[str, float]]) -> str:
    """Format the mean profit of the champions of the generations that all seeds have."""
    known = [generation for generation in results[0] if all(generation in result for result in results)]
    mean = {generation: float(np.mean([result[generation] for result in results])) for generation in known}
    after = ", ".join(f"{generation}: {profit:.2f}" for generation, profit in mean.items())
    return f"{'':<12} champion's profit after generation {after}; best after {max(mean, key=mean.__getitem__)}"


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


def add_command(commands: Any) -> None:
    """Add `markets` to the commands of `benchmarks.learning`."""
    parser = commands.add_parser(
        "markets", help="planted markets: the champion beside its rivals, the rule and the oracle", allow_abbrev=False
    )
    add_study_flags(parser, "--seeds", seeds=5)
    add_training_flags(parser, generations=10)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument("--rivals-only", action="store_true", help="train no population")
    add_unseen_flags(parser)
    parser.set_defaults(run=run_markets)


def run_markets(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Measure each kind of market over seeds and print its lines as soon as they are known."""
    unseen, seeds = unseen_of(arguments), seeds_of(arguments)
    print(f"{unseen}; profits in percent of the capital an episode\n{HEADER}", flush=True)
    with study_executor(arguments, folder_of(arguments.json)) as executor:
        for kind in arguments.kinds:
            config = study_config([*words, "--synthetic.kind", kind])
            labels = {"study": "markets", "kind": kind}
            rivals = [
                Experiment(key_of(own, unseen, **labels, played="rivals"), partial(baselines_job, own, unseen))
                for own in of_each_seed(config, seeds)
            ]
            trained = market_jobs(
                config, seeds, budget_of(arguments), unseen, genomes=RANDOM_GENOMES, **labels, played="trained"
            )
            of_rivals = list(run_study(rivals, arguments.json, executor))
            of_trained = [] if arguments.rivals_only else list(run_study(trained, arguments.json, executor))
            print("\n".join(table_rows(kind, of_trained, of_rivals)), flush=True)
