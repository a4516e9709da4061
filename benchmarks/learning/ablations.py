"""The worth of each part: `python -m benchmarks.learning.ablations [--kinds KIND ...] [--minutes M] [--json FILE]`.

A table for each kind of market: each line changes one thing of the quick profile, trains for the same CPU time, and
plays the champion on unseen paths as `benchmarks.learning.markets` does. Its share of the simple rule's profit stands
beside the difference from the first line, seed by seed; then the rank correlation of fitness with unseen profit. At
the end the p-values of all differences (paired t test) are corrected for their number (Holm).
Further flags are settings of main.py, for all lines. Results are appended to --json one by one; started again, the
study goes on from there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.learning.markets import (
    KINDS,
    Alteration,
    add_unseen_flags,
    budget_of,
    interval,
    market_jobs,
    unseen_of,
)
from benchmarks.learning.study import (
    Job,
    Record,
    add_study_flags,
    add_training_flags,
    holm,
    mean_interval,
    mean_p_value,
    plus_minus,
    run_study,
    seeds_of,
    study_config,
)
from training.erl_trainer import ERLTrainer
from training.evaluation.tracks import CHAMPION
from utils.errors import ConfigError
from utils.runs.seeding import named_generator

BASE, RANDOM_FITNESS = "as the profile", "random fitness"
_SEEDS, _GENERATIONS = 5, 20


def draw_fitness(trainer: ERLTrainer) -> None:
    """Let selection see noise in place of fitness, broken agents excepted; the champion is chosen as before."""
    evolve, generator = trainer.evolve, named_generator(trainer.seed, RANDOM_FITNESS, "cpu")

    def evolve_by_lot(fitness: Tensor) -> None:
        noise = torch.rand(fitness.shape, generator=generator).to(fitness)
        evolve(torch.where(fitness.isfinite(), noise, fitness))

    trainer.evolve = evolve_by_lot  # type: ignore[method-assign]


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
    # With all agents kept nobody is replaced: a population that shares its replay, without evolution.
    Line(
        "evolution off",
        (
            *("--evolution.elite-fraction", "1"),
            *("--evolution.offspring-fraction", "0", "--evolution.mutant-fraction", "0"),
        ),
    ),
    Line(RANDOM_FITNESS, alter=draw_fitness),
    Line("gamma 0", ("--learning.gamma", "0")),
    Line("fitness windows 1", ("--evaluation.fitness-windows", "1")),
    Line("fitness windows 16", ("--evaluation.fitness-windows", "16")),
)
"""The lines of each table, the one that the others are compared with first."""


def ablation_jobs(kind: str, line: Line, arguments: argparse.Namespace, words: Sequence[str]) -> list[Job]:
    """Make a job for each seed of a line of a kind's table."""
    config = study_config([*words, "--synthetic.kind", kind, *line.flags])
    labels = {"study": "ablations", "kind": kind, "variant": line.name}
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
    selection = [record["selection"] for record in records]
    correlation = interval(selection, "fitness_rank_correlation")
    minutes = mean_interval([record["cpu_seconds"] / 60 for record in records])[0]
    steps = mean_interval([record["environment_steps"] for record in records])[0]
    return (
        f"{variant:<26} {len(records):>5} {share:>15} {found or ''!s:>15} {correlation:>17} "
        f"{minutes:8.1f} {steps:12.0f}"
    )


HEADER = (
    f"{'':<26} {'seeds':>5} {'of the rule':>15} {'to first line':>15} {'fitness foretells':>17} "
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
    parser.add_argument("--kinds", nargs="+", default=["momentum"], choices=KINDS, help="default: momentum")
    parser.add_argument(
        "--only", nargs="+", choices=[line.name for line in LINES], help="lines; the first one is always done"
    )
    arguments, words = parser.parse_known_args(argv)
    try:
        _run(arguments, words)
    except ConfigError as error:
        parser.error(str(error))


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> None:
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
            records = list(run_study(todo, arguments.json, arguments.workers))
            found = difference(kind, variant, records, base) if base else None
            base = base or records
            print(row(variant, records, found), flush=True)
            differences += [found] if found else []
    print("\n".join(corrected(differences)), flush=True)


if __name__ == "__main__":
    main()
