"""Excess over the benchmark on unseen paths: `python -m benchmarks.learning markets [--seeds N] [--json FILE]`.

Each seed trains on a path of its own. One account of each policy, and the benchmark's, goes on from the first possible
day to the last of fresh paths of the same law: the champion's as its evidence shrinks it and in full, those of rivals,
of the planted rule and of the oracle, which hold by the same band and are tuned alike on the training path. Beside what
they earned stands what they were expected to earn by the true drift of what was held, without the noise of returns. The
last lines are ratios of sums over all kinds. The default of `--unseen-seed` served development; published tables are
printed once on another one, which they name.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
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
    ratio,
)
from benchmarks.learning.unseen import (
    UNSEEN_PATHS,
    UNSEEN_SEED,
    Fitted,
    Holder,
    UnseenPaths,
    training_market,
)
from benchmarks.trainers import build_trainer, run_generation
from data.market import Market
from data.synthetic.kinds import PLANTED_KINDS
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION, IN_FULL, RULE, Tuning, planted_rules
from training.evaluation.supervised import SupervisedBaseline, fit_supervised
from utils.config.trader import Config
from utils.runs.devices import named_generator, seed_everything

logger = logging.getLogger(__name__)
KINDS = tuple(PLANTED_KINDS)
MARTINGALE = "martingale"
"""The kind in which nothing is planted: what its rule earns is nothing to have a share of."""
PLANTED = tuple(kind for kind in KINDS if kind != MARTINGALE)
PARTS = ("trained", "rivals", "planted")
CPU = torch.device("cpu")
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
    wall_seconds: float
    cpu_seconds: float

    def record(self) -> Record:
        """Return in plain numbers what the training cost, and the evidence of its champion; steps are those to learn
        from, exploration included."""
        trainer, evaluation = self.trainer, self.trainer.evaluation
        lanes = len(trainer.population) * (evaluation.fitness_windows + evaluation.exploration_windows)
        return {
            "wall_seconds": self.wall_seconds,
            "cpu_seconds": self.cpu_seconds,
            "environment_steps": trainer.generation * lanes * trainer.eval_env.rules.episode_steps,
            "generations_run": trainer.generation,
            "evidence": asdict(trainer.champion.evidence),
        }


def fit(config: Config, market: Market, budget: Budget, alter: Alteration | None = None) -> Trained:
    """Train a population by the trainer's own generations, at least one, until the budget is spent."""
    wall, cpu = time.perf_counter(), time.process_time()
    seed_everything(config.seed)
    trainer = build_trainer(config, market, CPU)
    if alter is not None:
        alter(trainer, named_generator(config.seed, "alteration"))
    while trainer.generation == 0 or not budget.is_spent(trainer.generation, time.process_time() - cpu):
        fitness = run_generation(trainer)["fitness"]["max"] or 0.0
        logger.info("seed %d generation %d: fitness %.2f", config.seed, trainer.generation, fitness)
    return Trained(trainer, time.perf_counter() - wall, time.process_time() - cpu)


def trained_job(config: Config, unseen: UnseenPaths, budget: Budget, alter: Alteration | None = None) -> Record:
    """Train one seed and measure its champion, as shrunk and in full."""
    market, _ = training_market(config)
    trained = fit(config, market, budget, alter)
    champion = trained.trainer.champion
    fitted = {CHAMPION: _agent(champion), IN_FULL: _agent(champion.shrunk(1.0))}
    return {"policies": unseen.measure(config, market, fitted), "shrink": champion.shrink, **trained.record()}


def _agent(agent: DDPGAgent) -> Fitted:
    return lambda path: Holder.of_agent(agent, path.market, path.days)


def planted_job(config: Config, unseen: UnseenPaths) -> Record:
    """Tune the planted rule and the oracle on one seed's path and measure them on unseen paths."""
    market, scores = training_market(config)
    started = time.process_time()
    rules = planted_rules(scores, Tuning.of(market, Portfolio.on(market, config.env)))
    seconds = time.process_time() - started

    def known(name: str) -> Fitted:
        """Play the scores of the sessions that were the best on the training path."""
        of_path = "rule" if name == RULE else "oracle"
        candidates = getattr(scores, of_path)
        chosen = [sessions for sessions, one in candidates.items() if one is rules[name].scores]
        sessions = chosen[0] if chosen else next(iter(candidates))  # nothing is known: there was nothing to choose
        return lambda path: Holder.of_rule(
            replace(rules[name], scores=getattr(path.scores, of_path)[sessions]), path.market
        )

    return {"policies": unseen.measure(config, market, {name: known(name) for name in rules}), "cpu_seconds": seconds}


def rivals_job(config: Config, unseen: UnseenPaths) -> Record:
    """Fit the learned rivals on one seed's path and measure them on unseen paths."""
    market, _ = training_market(config)
    tuning = Tuning.of(market, Portfolio.on(market, config.env))
    started = time.process_time()

    def learned(one: SupervisedBaseline) -> Fitted:
        return lambda path: Holder.of_rule(one.rule_on(path.market), path.market)

    fitted = {name: learned(one) for name, one in fit_supervised(market, tuning).items()}
    seconds = time.process_time() - started
    return {"policies": unseen.measure(config, market, fitted), "cpu_seconds": seconds}


def jobs_of(
    part: str, config: Config, study: Study, /, alter: Alteration | None = None, **labels: Any
) -> list[Experiment]:
    """Make a job a seed for a part of the table; its key holds the labels, unseen paths and budget, too."""
    unseen, labels = unseen_of(study.arguments), {**labels, "part": part}
    unseen.require_unseen(study.seeds)
    labels |= asdict(unseen)
    if part != PARTS[0]:
        task = partial({"rivals": rivals_job, "planted": planted_job}[part], unseen=unseen)
        return each_seed(config, study.seeds, task, **labels)
    budget = budget_of(study.arguments)
    task = partial(trained_job, unseen=unseen, budget=budget, alter=alter)
    return each_seed(config, study.seeds, task, **labels, **asdict(budget))


BySeed = Mapping[str, Mapping[int, Record]]
"""Measures by policy, then by seed."""


def by_seed(records: Sequence[Record]) -> dict[str, dict[int, Record]]:
    """Sort the measures of records by policy."""
    sorted_: dict[str, dict[int, Record]] = {}
    for record in records:
        for name, measures in record["policies"].items():
            sorted_.setdefault(name, {})[record["seed"]] = measures | {"cpu_seconds": record["cpu_seconds"]}
    return sorted_


def summed(kinds: Sequence[BySeed]) -> dict[str, dict[int, Record]]:
    """Add up excess and expected excess over kinds, seed by seed; of other measures take the mean."""
    names = [name for name in kinds[0] if all(name in kind for kind in kinds)]
    return {
        name: {
            seed: {measure: float(np.mean([kind[name][seed][measure] for kind in kinds])) for measure in first}
            for seed, first in kinds[0][name].items()
        }
        for name in names
    }


HEADER = (
    f"{'planted':<13} {'policy':<22} {'seeds':>5} {'excess':>7} {'of the rule':>15} {'expected':>8} "
    f"{'of the rule':>15} {'IR':>6} {'turnover':>8}"
)


def table_rows(kind: str, found: BySeed) -> Iterator[str]:
    """Format a line for each policy: percent a year, ratios of sums over seeds with 95% intervals."""
    rule = found.get(RULE, {})
    for name, seeds in found.items():
        measures = {key: [one[key] for one in seeds.values()] for key in next(iter(seeds.values()))}
        mean = {key: mean_interval(values)[0] for key, values in measures.items()}
        of_rule = {
            key: plus_minus(*ratio([(one[key], rule[seed][key]) for seed, one in seeds.items() if seed in rule]))
            for key in ("excess", "expected")
        }
        yield (
            f"{kind:<13} {name:<22} {len(seeds):>5} {mean['excess']:7.1f} {of_rule['excess']:>15} "
            f"{mean['expected']:8.1f} {of_rule['expected']:>15} {mean['information_ratio']:6.2f} "
            f"{mean['turnover']:8.1f}"
        )
    if rule and CHAMPION in found:
        yield f"{kind:<13} lost by caution, share of the rule's expected excess {lost_by_caution(found):>15}"


def lost_by_caution(found: BySeed) -> str:
    """Return what the champion would have gained in full, as a share of the rule."""
    rule, full, shrunk = found[RULE], found[IN_FULL], found[CHAMPION]
    lost = [(full[s]["expected"] - one["expected"], rule[s]["expected"]) for s, one in shrunk.items() if s in rule]
    return plus_minus(*ratio(lost))


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget that the flags of a study ask for."""
    if arguments.minutes is None and arguments.generations is None:
        return Budget(None, arguments.default_generations)
    return Budget(arguments.minutes, arguments.generations)


def add_unseen_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose markets and unseen paths."""
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument(
        "--unseen-seed", type=int, default=UNSEEN_SEED, help="of the first unseen path; take one nothing was tuned on"
    )
    parser.add_argument("--paths", type=int, default=UNSEEN_PATHS, help="unseen paths of each seed")
    parser.add_argument("--days", type=int, help="of each unseen path; default: as many as the training path has")


def unseen_of(arguments: argparse.Namespace) -> UnseenPaths:
    """Return the unseen paths that the flags of a study ask for."""
    return UnseenPaths(arguments.unseen_seed, arguments.paths, arguments.days)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=5)
    add_training_flags(parser, generations=10)
    add_unseen_flags(parser)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS, help="of the table; default: all")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure each kind of market over seeds and print its lines as soon as they are known."""
    print(f"{unseen_of(study.arguments)}; percent a year over the benchmark\n{HEADER}", flush=True)
    kinds = []
    for kind in study.arguments.kinds:
        records = []
        for part in study.arguments.parts:
            records += study.records(jobs_of(part, study.config(kind), study, study="markets", kind=kind))
        kinds.append(by_seed(records))
        print("\n".join(table_rows(kind, kinds[-1])), flush=True)
    if len(kinds) > 1:
        print("\n".join(table_rows("all kinds", summed(kinds))), flush=True)
