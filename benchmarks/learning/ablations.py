"""The worth of each part: `python -m benchmarks.learning parts [--kinds KIND ...] [--seeds N] [--json FILE]`.

A table for each kind of market: the quick profile is trained as it is; each other line puts noise, or nothing, in the
place of what one part learns, trains anew, and measures the champion in full on unseen paths as `benchmarks.learning
markets` does: its share of the planted rule's expected excess, and the difference from the unaltered run, seed by seed.
At the end stand the lines over all kinds (ratios of sums), the p-values of all differences (paired t test), corrected
for their number (Holm), and each part whose absence changes nothing on any kind.
Further flags are settings of main.py, for all lines. Results are appended to --json one by one; started again, the
study goes on from there.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.learning import alterations
from benchmarks.learning.markets import PARTS, Alteration, add_unseen_flags, by_seed, jobs_of, summed, unseen_of
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    holm,
    mean_interval,
    mean_p_value,
    plus_minus,
    ratio,
    study_config,
)
from models.evolution import GENES
from training.evaluation.baselines import IN_FULL, RULE

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
    Line("noise in the targets", alter=alterations.noise_in_targets),
    Line("no bootstrap", alter=alterations.no_bootstrap),
    Line("noise in the policy gradient", alter=alterations.noise_in_the_actors_gradient),
    Line("the critic decides", alter=alterations.critic_decides),
    Line("random days in the replay", alter=alterations.random_days_in_replay),
    Line("random accounts in the replay", alter=alterations.random_accounts_in_replay),
    Line("capital is free", alter=alterations.free_capital),
    Line("targets are the online", ("--learning.tau", "1")),
    Line("no exploration", ("--learning.exploration-noise", "0")),
    Line("random fitness", alter=alterations.draw_fitness),
    Line("random parents", ("--evolution.tournament-size", "1")),
    *(Line(f"middle {name}", alter=partial(alterations.middle_gene, gene=place)) for place, name in enumerate(GENES)),
    Line("no breeding", alter=alterations.keep_genes),
    Line("trained before breeding", alter=alterations.train_first),
    Line("single best", ("--evolution.elite-fraction", "0")),
    Line("all inputs count alike", alter=alterations.equal_gains),
    Line("random gains of inputs", alter=alterations.random_gains),
)
"""The lines of each table; all are compared with the first."""
ALTERATIONS = {line.name: line.alter for line in LINES if line.alter is not None}
"""Lines that need no flags of main.py, by name."""


def add_part_flag(parser: argparse.ArgumentParser) -> None:
    """Add the flag of studies of hidden markets by which a part does nothing."""
    parser.add_argument("--part", choices=[*ALTERATIONS], help="line of the study `parts` to train by")


@dataclass(frozen=True)
class Difference:
    """The differences of a line from the unaltered run, seed by seed."""

    kind: str
    variant: str
    by_seed: Sequence[float]

    @property
    def p_value(self) -> float:
        """Two-sided, of the paired t test; NaN where fewer than two seeds have both."""
        return mean_p_value(self.by_seed)

    def __str__(self) -> str:
        return plus_minus(*mean_interval(self.by_seed), "+.2f")


Seeds = Mapping[int, Record]
"""Measures of a policy by seed."""


def difference(kind: str, variant: str, line: Seeds, base: Seeds, rule: Seeds) -> Difference:
    """Pair the shares of the rule's expected excess by seed."""
    pairs = [
        (one["expected"] - base[seed]["expected"]) / rule[seed]["expected"]
        for seed, one in line.items()
        if seed in base and seed in rule and rule[seed]["expected"] > 0
    ]
    return Difference(kind, variant, pairs)


def row(variant: str, line: Seeds, rule: Seeds, effect: Difference | None) -> str:
    """Format the share of the rule's expected excess, the difference from the base by seed, excess and time."""
    share = plus_minus(*ratio([(one["expected"], rule[seed]["expected"]) for seed, one in line.items()]))
    expected, excess, ir, seconds = (
        mean_interval([one[key] for one in line.values()])[0]
        for key in ("expected", "excess", "information_ratio", "cpu_seconds")
    )
    return (
        f"{variant:<30} {len(line):>5} {share:>15} {effect or ''!s:>15} {expected:8.1f} {excess:7.1f} {ir:6.2f} "
        f"{seconds / 60:8.1f}"
    )


HEADER = (
    f"{'':<30} {'seeds':>5} {'of the rule':>15} {'difference':>15} {'expected':>8} {'excess':>7} "
    f"{'IR':>6} {'CPU min':>8}"
)


def corrected(differences: Sequence[Difference]) -> Iterator[str]:
    """Format the differences by their p-value, with one that allows for the number of all of them."""
    tested = sorted(
        (effect for effect in differences if not math.isnan(effect.p_value)), key=lambda effect: effect.p_value
    )
    yield f"{'of ' + str(len(tested)) + ' differences':<26} {'kind':<12} {'difference':>15} {'p':>8} {'p (Holm)':>8}"
    for effect, p_value in zip(tested, holm([effect.p_value for effect in tested]), strict=True):
        yield f"{effect.variant:<26} {effect.kind:<12} {effect!s:>15} {effect.p_value:8.4f} {p_value:8.4f}"


def verdicts(differences: Sequence[Difference]) -> Iterator[str]:
    """Tell of each part the largest mean difference over kinds, and whether that is next to nothing."""
    for variant in dict.fromkeys(effect.variant for effect in differences):
        means = [
            mean_interval(effect.by_seed)[0] for effect in differences if effect.variant == variant and effect.by_seed
        ]
        if means:
            largest = max(means, key=abs)
            yield f"{variant:<26} {largest:+.3f} at most{': does nothing measurable' if abs(largest) < LEAST else ''}"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", _SEEDS)
    add_training_flags(parser, _GENERATIONS)
    add_unseen_flags(parser)
    parser.add_argument(
        "--only", nargs="+", choices=[line.name for line in LINES], help="lines; the unaltered one is always done"
    )
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Do the jobs of the chosen lines that have no result yet, and print the lines."""
    only, differences = study.arguments.only, list[Difference]()
    lines = [line for line in LINES if only is None or line.name in (BASE, *only)]
    kinds = []
    for kind in study.arguments.kinds:
        print(f"{kind}: {unseen_of(study.arguments)}\n{HEADER}", flush=True)
        labels = {"study": "parts", "kind": kind}
        found = by_seed(study.records(jobs_of(PARTS[-1], study.config(kind), study, **labels)))
        for line in lines:
            config = study_config([*study.words, "--synthetic.kind", kind, *line.flags])
            chosen = jobs_of(PARTS[0], config, study, line.alter, **labels, variant=line.name)
            found[line.name] = by_seed(study.records(chosen))[IN_FULL]
            differences += table(kind, [line], found)
        kinds.append(found)
    if len(kinds) > 1:
        print(f"all kinds\n{HEADER}")
        table("all kinds", lines, summed(kinds))
    print("\n".join([*corrected(differences), *verdicts(differences)]), flush=True)


def table(kind: str, lines: Sequence[Line], found: Mapping[str, Seeds]) -> list[Difference]:
    """Print some lines of a table; return their differences from the unaltered run."""
    effects = []
    for line in lines:
        own = found[line.name], found[BASE], found[RULE]
        effect = None if line.name == BASE else difference(kind, line.name, *own)
        print(row(line.name, found[line.name], found[RULE], effect), flush=True)
        effects += [effect] if effect else []
    return effects
