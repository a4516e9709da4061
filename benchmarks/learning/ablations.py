"""The worth of each part: `python -m benchmarks.learning.ablations [--minutes M] [--seeds N] [--json FILE]`.

One table on the momentum market: each line changes one thing of the quick profile, trains for the same CPU time, and
plays the champion on unseen paths as `benchmarks.learning.markets` does. Its share of the simple rule's profit stands
beside the difference from the first line, seed by seed. Further flags are settings of main.py, for all lines. Results
are appended to --json one by one; started again, the study goes on from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from benchmarks.learning.markets import UNSEEN_PATHS, WINDOWS_PER_PATH, budget_of, market_jobs
from benchmarks.learning.study import Job, Record, add_study_flags, mean_interval, run_study, study_config
from utils.errors import ConfigError

BASE = "as the profile"
VARIANTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        BASE: (),
        "hindsight off": ("--learning.hindsight-orders", "0"),
        "hindsight steps 1": ("--learning.hindsight-steps", "1"),
        "learning rates constant": ("--learning.learning-rate-final", "1"),
        "no weight decay": ("--learning.critic-weight-decay", "0", "--learning.query-weight-decay", "0"),
        "queries spared of decay": ("--learning.query-weight-decay", "0"),
        "inputs without noise": ("--learning.input-noise", "0"),
        "encoder in bfloat16": ("--network.precision", "bfloat16"),
        "credit daily": ("--learning.credit", "daily"),
        "critic plain": ("--network.critic", "plain"),
        "critics single": ("--network.no-twin-critics",),
        "critic plain and single": ("--network.critic", "plain", "--network.no-twin-critics"),
        "representation shared": ("--representation", "shared"),
        # With all agents kept nobody is replaced: a population that shares its replay, without evolution.
        "evolution off": (
            *("--evolution.elite-fraction", "1"),
            *("--evolution.offspring-fraction", "0", "--evolution.mutant-fraction", "0"),
        ),
        "crossover off": ("--evolution.offspring-fraction", "0"),
        "crossover average": ("--evolution.crossover", "average"),
        "crossover head, shared": ("--evolution.crossover", "head", "--representation", "shared"),
        "mutation off": ("--evolution.mutant-fraction", "0"),
        "mutation gaussian": ("--evolution.mutation", "gaussian"),
        "fitness windows 1": ("--evaluation.fitness-windows", "1"),
        "fitness windows 16": ("--evaluation.fitness-windows", "16"),
        "random orders 0%": ("--learning.random-order-probability", "0"),
        "random orders 50%": ("--learning.random-order-probability", "0.5"),
    }
)
"""Flags of main.py by the name of a line."""
_SEEDS, _GENERATIONS = 5, 20


def ablation_jobs(variant: str, arguments: argparse.Namespace, words: Sequence[str]) -> list[Job]:
    """Make a job for each seed of a line of the table."""
    config = study_config([*words, *VARIANTS[variant]])
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    return market_jobs(config, seeds, budget_of(arguments), arguments.paths, arguments.windows, variant=variant)


def line(variant: str, records: Sequence[Record], base: Sequence[Record]) -> str:
    """Format the share of the rule's profit, its difference from the first line by seed, and the time it took."""
    share, half = mean_interval(_shares(records))
    beside = {record["seed"]: record["of_rule"] for record in base if record["of_rule"] is not None}
    pairs = [
        record["of_rule"] - beside[record["seed"]]
        for record in records
        if record["seed"] in beside and record["of_rule"] is not None
    ]
    gain, gain_half = mean_interval(pairs)
    minutes = mean_interval([record["cpu_seconds"] / 60 for record in records])[0]
    steps = mean_interval([record["environment_steps"] for record in records])[0]
    difference = "" if records is base else f"{gain:+6.2f} +- {gain_half:4.2f}"
    return f"{variant:<26} {len(records):>5} {share:7.2f} +- {half:4.2f} {difference:>15} {minutes:8.1f} {steps:12.0f}"


def _shares(records: Sequence[Record]) -> list[float]:
    return [record["of_rule"] for record in records if record["of_rule"] is not None]


HEADER = f"{'':<26} {'seeds':>5} {'of the rule':>15} {'to first line':>15} {'CPU min':>8} {'env. steps':>12}"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the jobs of the chosen lines that have no result yet, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add_study_flags(parser, "--seeds", _SEEDS, _GENERATIONS)
    parser.add_argument("--paths", type=int, default=UNSEEN_PATHS, help="unseen paths")
    parser.add_argument("--windows", type=int, default=WINDOWS_PER_PATH, help="on each unseen path")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="lines; the first one is always done")
    arguments, words = parser.parse_known_args(argv)
    try:
        _run(arguments, words)
    except ConfigError as error:
        parser.error(str(error))


def _run(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    chosen = [variant for variant in VARIANTS if variant == BASE or variant in (arguments.only or VARIANTS)]
    # All lines are made before any work, so that a wrong flag is an error at once.
    jobs = {variant: ablation_jobs(variant, arguments, words) for variant in chosen}
    print(HEADER, flush=True)
    base: list[Record] = []
    for variant, todo in jobs.items():
        records = list(run_study(todo, arguments.json, arguments.workers))
        base = base or records
        print(line(variant, records, base), flush=True)


if __name__ == "__main__":
    main()
