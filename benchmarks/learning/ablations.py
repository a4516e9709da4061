"""The worth of each part: `python -m benchmarks.learning.ablations [--kinds KIND ...] [--minutes M] [--json FILE]`.

A table for each kind of market: each line changes one thing of the quick profile, trains for as long, and
plays the champion on unseen paths as `benchmarks.learning.markets` does. Its share of the simple rule's profit stands
beside the difference from the first line, seed by seed; then the rank correlation of fitness with unseen profit. At
the end the p-values of all differences (paired t test) are corrected for their number (Holm).
Further flags are settings of main.py, for all lines. Results are appended to --json one by one; started again, the
study goes on from there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.learning.markets import (
    KINDS,
    PLANTED,
    Alteration,
    add_unseen_flags,
    budget_of,
    market_jobs,
    unseen_of,
)
from benchmarks.learning.study import (
    Experiment,
    Record,
    add_study_flags,
    add_training_flags,
    ending,
    folder_of,
    holm,
    mean_interval,
    mean_p_value,
    plus_minus,
    run_study,
    seeds_of,
    study_config,
    study_executor,
)
from models import genome, trader
from models.inputs import GROUPS
from models.population import input_mask_of
from training import rollout_worker
from training.erl_trainer import ERLTrainer
from training.evaluation.baselines import CHAMPION
from training.evolution import elite_count, ranked
from training.forecasts.relative import Blend
from utils.jobs.job import Executor

BASE = "as the profile"
_SEEDS, _GENERATIONS = 5, 10
_FORECASTS = ("events", "leaders", "states")
_OFF = 9.0
"""Logarithm of a penalty under which an input counts for nothing."""


def keep_genes(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let fitness choose the elites only: nobody is replaced."""

    def choose(fitness: Tensor) -> None:
        trainer.elites = elites_of(trainer, fitness)

    trainer.evolve_population = choose  # type: ignore[method-assign]


def draw_fitness(trainer: ERLTrainer, generator: torch.Generator) -> None:
    """Let evolution see noise in place of fitness: the elites, and so the champion, are chosen at random."""
    evolve = trainer.evolve_population

    def evolve_at_random(fitness: Tensor) -> None:
        evolve(torch.rand(fitness.shape, generator=generator, dtype=fitness.dtype))

    trainer.evolve_population = evolve_at_random  # type: ignore[method-assign]


def search_at_random(trainer: ERLTrainer, generator: torch.Generator) -> None:
    """Replace all agents but the elites by new founders in place of children."""

    def replace_by_founders(fitness: Tensor) -> None:
        trainer.elites = elites_of(trainer, fitness)
        founders = genome.random_genes(len(fitness), generator)
        founders[trainer.elites] = trainer.genes[trainer.elites]
        first = 1 + max(trainer.founders)
        kept = {row: trainer.founders[row] for row in trainer.elites}
        trainer.founders = [kept.get(row, first + row) for row in range(len(fitness))]
        trainer.genes = founders

    trainer.evolve_population = replace_by_founders  # type: ignore[method-assign]


def elites_of(trainer: ERLTrainer, fitness: Tensor) -> list[int]:
    """Return the rows of the fittest agents, the fittest first."""
    rows: list[int] = ranked(fitness.cpu())[: elite_count(trainer.evolution)].tolist()
    return rows


def leave_out(groups: Sequence[str], trainer: ERLTrainer, _: torch.Generator) -> None:
    """Take groups of inputs from all forecasts, whatever evolution makes of the genes."""
    evolve, places = trainer.evolve_population, [genome.GENES.index(group) for group in groups]

    def evolve_without(fitness: Tensor) -> None:
        evolve(fitness)
        trainer.genes[:, places] = _OFF

    trainer.genes[:, places] = _OFF
    trainer.evolve_population = evolve_without  # type: ignore[method-assign]


def weigh(change: Callable[[Blend], Blend], trainer: ERLTrainer, _: torch.Generator) -> None:
    """Change how ridge regression and network are blended."""
    relative = trainer.days.relative
    blend = relative.blend
    object.__setattr__(relative, "blend", lambda *given: change(blend(*given)))


def without_ridge(blend: Blend) -> Blend:
    """Leave the choice among stocks to the networks."""
    return replace(blend, ridge=0 * blend.ridge)


def without_reward(blend: Blend) -> Blend:
    """Take no notice of what critics expect of orders."""
    return replace(blend, ridge=torch.ones_like(blend.ridge), network=0 * blend.network)


def keep_actors(bound: float, _: ERLTrainer, __: torch.Generator) -> None:
    """Play every actor's residual up to a bound, whether or not it earns anything; for the rest of the process."""
    rollout_worker.earns_more = lambda one, other: torch.ones(len(one), dtype=torch.float64)
    trader.ACTOR_BOUND = bound


def see_all(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let every network look at all inputs."""
    see(torch.ones(len(GROUPS), dtype=torch.bool), trainer)


def see_forecasts(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let every network look at the forecasts of responses only."""
    see(torch.tensor([group in _FORECASTS for group in GROUPS]), trainer)


def see(groups: Tensor, trainer: ERLTrainer) -> None:
    """Let every network look at these (groups,) groups of inputs, whatever evolution makes of it."""
    population, networks = trainer.population, trainer.population.networks
    assert networks is not None
    inherit = population.inherit

    def look() -> None:
        population.feature_groups = groups.expand(len(trainer.genes), -1).clone()
        networks.input_mask.copy_(input_mask_of(population.feature_groups))
        networks.apply_mask()

    def inherit_and_look(parents: Tensor, generator: torch.Generator) -> None:
        inherit(parents, generator)
        look()

    population.inherit = inherit_and_look  # type: ignore[method-assign]
    first, drawn = networks.critic.reward.parts[0], torch.Generator().manual_seed(0)
    with torch.no_grad():
        first.copy_(torch.randn(first.shape, generator=drawn) / first.shape[-2] ** 0.5)
        networks.critic_target.reward.parts[0].copy_(first)
    look()


def keep_networks(trainer: ERLTrainer, _: torch.Generator) -> None:
    """Let children inherit genes, but no networks: each row goes on with its own."""
    trainer.population.inherit = lambda *_: None  # type: ignore[method-assign]


def mutate_networks(trainer: ERLTrainer, drawn: torch.Generator) -> None:
    """Mutate the last layers of children's reward networks by Gaussian noise, a tenth of their deviation."""
    population, networks = trainer.population, trainer.population.networks
    assert networks is not None
    inherit = population.inherit

    def inherit_and_mutate(parents: Tensor, generator: torch.Generator) -> None:
        inherit(parents, generator)
        children = (parents != torch.arange(len(parents))).nonzero()[:, 0]
        with torch.no_grad():
            for network in (networks.critic, networks.critic_target):
                last = network.reward.parts[4]
                own = last[children]
                last[children] = own + 0.1 * own.std() * torch.randn(own.shape, generator=drawn)

    population.inherit = inherit_and_mutate  # type: ignore[method-assign]


@dataclass(frozen=True)
class Line:
    """What a line of the table changes."""

    name: str
    flags: tuple[str, ...] = ()
    """Of main.py."""
    alter: Alteration | None = None
    """What no flag does."""


LINES: tuple[Line, ...] = (
    Line(BASE),
    Line("no networks", ("--learning.gradient-steps", "0")),
    Line("networks without ridge", alter=partial(weigh, without_ridge)),
    Line("reward part alone", ("--learning.warm-up", "1000000")),
    Line("continuation and actor alone", alter=partial(weigh, without_reward)),
    Line("actor free", alter=partial(keep_actors, 1.0)),
    Line("actor bounded", alter=partial(keep_actors, 0.5)),
    Line("all inputs", alter=see_all),
    Line("forecasts as inputs", alter=see_forecasts),
    Line("networks not inherited", alter=keep_networks),
    Line("networks mutated", alter=mutate_networks),
    Line("gamma 0", ("--learning.gamma", "0")),
    Line("no exploration", ("--evaluation.exploration-windows", "0")),
    Line("evolution off", alter=keep_genes),
    Line("random fitness", alter=draw_fitness),
    Line("random search", alter=search_at_random),
    Line("single best", ("--evolution.elite-fraction", "0")),
    *(Line(f"no {group}", alter=partial(leave_out, (group,))) for group in _FORECASTS),
    Line("bank only", alter=partial(leave_out, _FORECASTS)),
)
"""The lines of each table, the one that the others are compared with first."""


def ablation_jobs(kind: str, line: Line, arguments: argparse.Namespace, words: Sequence[str]) -> list[Experiment]:
    """Make a job for each seed of a line of a kind's table."""
    config = study_config([*words, "--synthetic.kind", kind, *line.flags])
    labels: dict[str, Any] = {"study": "ablations", "kind": kind, "variant": line.name}
    return market_jobs(config, seeds_of(arguments), budget_of(arguments), unseen_of(arguments), line.alter, **labels)


@dataclass(frozen=True)
class Difference:
    """The differences of a line from the first one of its table, seed by seed."""

    kind: str
    variant: str
    by_seed: Sequence[float]

    @property
    def p_value(self) -> float:
        """Two-sided, of the paired t test; NaN where fewer than two seeds have both."""
        return mean_p_value(self.by_seed)

    def __str__(self) -> str:
        return plus_minus(*mean_interval(self.by_seed), "+.2f")


def difference(kind: str, variant: str, records: Sequence[Record], base: Sequence[Record]) -> Difference:
    """Pair the shares of the rule's profit by seed."""
    beside = _shares(base)
    pairs = [share - beside[seed] for seed, share in _shares(records).items() if seed in beside]
    return Difference(kind, variant, pairs)


def _shares(records: Sequence[Record]) -> dict[int, float]:
    found = {record["seed"]: record["policies"][CHAMPION]["of_rule"] for record in records}
    return {seed: share for seed, share in found.items() if share is not None}


def row(variant: str, records: Sequence[Record], found: Difference | None) -> str:
    """Format the share of the rule's profit, its difference from the first line by seed, and the time it took."""
    share = plus_minus(*mean_interval([*_shares(records).values()]))
    initial, profit = (
        mean_interval([r["selection"][name] for r in records])[0] for name in ("initial_value", "profit")
    )
    minutes = mean_interval([record["cpu_seconds"] / 60 for record in records])[0]
    steps = mean_interval([record["environment_steps"] for record in records])[0]
    return (
        f"{variant:<26} {len(records):>5} {share:>15} {found or ''!s:>15} {initial:8.2f} / {profit:6.2f} "
        f"{minutes:8.1f} {steps:12.0f}"
    )


HEADER = (
    f"{'':<26} {'seeds':>5} {'of the rule':>15} {'to first line':>15} {'Q(s0) / profit':>17} "
    f"{'CPU min':>8} {'env. steps':>12}"
)


def corrected(differences: Sequence[Difference]) -> Iterator[str]:
    """Format the differences by their p-value, with one that allows for the number of all of them."""
    tested = sorted((found for found in differences if not math.isnan(found.p_value)), key=lambda found: found.p_value)
    yield f"{'of ' + str(len(tested)) + ' differences':<26} {'kind':<12} {'to first line':>15} {'p':>8} {'p (Holm)':>8}"
    for found, p_value in zip(tested, holm([found.p_value for found in tested]), strict=True):
        yield f"{found.variant:<26} {found.kind:<12} {found!s:>15} {found.p_value:8.4f} {p_value:8.4f}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the jobs of the chosen lines that have no result yet, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_study_flags(parser, "--seeds", _SEEDS)
    add_training_flags(parser, _GENERATIONS)
    add_unseen_flags(parser)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument(
        "--only", nargs="+", choices=[line.name for line in LINES], help="lines; the first one is always done"
    )
    arguments, words = parser.parse_known_args(argv)
    with ending(parser), study_executor(arguments, folder_of(arguments.json)) as executor:
        _run(arguments, words, executor)


def _run(arguments: argparse.Namespace, words: Sequence[str], executor: Executor) -> None:
    chosen = [line for line in LINES if arguments.only is None or line.name in (BASE, *arguments.only)]
    # All lines are made before any work, so that a wrong flag is an error at once.
    jobs = {
        kind: {line.name: ablation_jobs(kind, line, arguments, words) for line in chosen} for kind in arguments.kinds
    }
    differences = []
    for kind, lines in jobs.items():
        print(f"{kind}: {unseen_of(arguments)}\n{HEADER}", flush=True)
        base: list[Record] = []
        for variant, todo in lines.items():
            records = list(run_study(todo, arguments.json, executor))
            found = difference(kind, variant, records, base) if base else None
            base = base or records
            print(row(variant, records, found), flush=True)
            differences += [found] if found else []
    print("\n".join(corrected(differences)), flush=True)


if __name__ == "__main__":
    main()
