"""The worth of each part: `python -m benchmarks.learning.ablations [--kinds KIND ...] [--minutes M] [--json FILE]`.

A table for each kind of market: each line puts noise, or nothing, in the place of one part of the agent or of its
learning, trains the quick profile for as long, and plays the champion on unseen paths as `benchmarks.learning.markets`
does. Its share of the simple rule's profit stands beside the difference from the first line, seed by seed; then Q(s0)
and the profit that followed. At the end the p-values of all differences (paired t test) are corrected for their number
(Holm), and each part whose absence changes nothing on any kind is named.
Further flags are settings of main.py, for all lines. Results are appended to --json one by one; started again, the
study goes on from there.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.learning import alterations
from benchmarks.learning.markets import KINDS, PLANTED, Alteration, add_unseen_flags, market_jobs, unseen_of
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    holm,
    mean_interval,
    mean_p_value,
    plus_minus,
    study_config,
    study_main,
)
from training.evaluation.baselines import CHAMPION

BASE = "as the profile"
LEAST = 0.01
"""Difference in shares of the rule's profit below which a part does nothing measurable."""
_SEEDS, _GENERATIONS = 5, 10


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
    Line("closed form", ("--agent", "closed-form")),
    Line("random actor", alter=alterations.order_at_random),
    Line("random rewards", alter=partial(alterations.draw_last_layers, "critic.reward")),
    Line("random continuation", alter=partial(alterations.draw_last_layers, "critic.continuation")),
    Line("random sizes", alter=partial(alterations.draw_last_layers, "actor.size")),
    Line("no sale targets by actors", alter=alterations.no_sale_targets),
    Line("targets are the online", ("--learning.tau", "1")),
    Line("random replay", alter=alterations.shuffle_replay),
    Line("no noise", ("--learning.exploration-noise", "0")),
    Line("outcomes alone", alter=partial(alterations.learn_with, "OUTCOMES", 1.0)),
    Line("critic alone", alter=partial(alterations.learn_with, "OUTCOMES", 0.0)),
    Line("timing trusted", alter=partial(alterations.trust_timing, 1.0)),
    Line("gamma 0", ("--learning.gamma", "0")),
    Line("no crossover", alter=alterations.inherit_from_one),
    Line("no mutation of actors", alter=alterations.do_not_mutate),
    Line("evolution off", alter=alterations.keep_genes),
    Line("random fitness", alter=alterations.draw_fitness),
    Line("random search", alter=alterations.search_at_random),
    Line("single best", ("--evolution.elite-fraction", "0")),
)
"""The lines of each table, the one that the others are compared with first."""


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


def verdicts(differences: Sequence[Difference]) -> Iterator[str]:
    """Tell of each part the largest mean difference over kinds, and whether that is next to nothing."""
    for variant in dict.fromkeys(found.variant for found in differences):
        means = [mean_interval(found.by_seed)[0] for found in differences if found.variant == variant and found.by_seed]
        if means:
            largest = max(means, key=abs)
            yield f"{variant:<26} {largest:+.3f} at most{': does nothing measurable' if abs(largest) < LEAST else ''}"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add_study_flags(parser, "--seeds", _SEEDS)
    add_training_flags(parser, _GENERATIONS)
    add_unseen_flags(parser)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument(
        "--only", nargs="+", choices=[line.name for line in LINES], help="lines; the first one is always done"
    )
    parser.set_defaults(run=_run)


def _run(study: Study) -> None:
    only, differences = study.arguments.only, list[Difference]()
    for kind in study.arguments.kinds:
        print(f"{kind}: {unseen_of(study.arguments)}\n{HEADER}", flush=True)
        base: list[Record] = []
        for line in LINES:
            if only is None or line.name in (BASE, *only):
                config = study_config([*study.words, "--synthetic.kind", kind, *line.flags])
                labels = {"study": "ablations", "kind": kind, "variant": line.name}
                records = study.records(market_jobs(config, study, line.alter, **labels))
                found = difference(kind, line.name, records, base) if base else None
                base = base or records
                print(row(line.name, records, found), flush=True)
                differences += [found] if found else []
    print("\n".join([*corrected(differences), *verdicts(differences)]), flush=True)


def main(words: Sequence[str] | None = None) -> None:
    """Run the jobs of the chosen lines that have no result yet, and print the lines."""
    study_main(_add_flags, __doc__, words)


if __name__ == "__main__":
    main()
