"""The worth of each part: `python -m benchmarks.learning cold [--warm] [--kinds KIND ...] [--seeds N] [--json FILE]`.

A table for each kind of market: the quick profile is trained from the closed form, and from random numbers; with --warm
from the closed form only. Each other line puts noise, or nothing, in the place of what one part learns, trains anew,
and plays the champion on unseen paths as `benchmarks.learning.markets` does. Beside its share of the simple rule's
profit stand the difference from the unaltered run, seed by seed, and the profit over that run's, paired by window: its
standard error is that of the unseen windows, and says nothing of another training. The run from random numbers is
compared with that from the closed form. At the end the p-values of all differences (paired t test) are corrected for
their number (Holm), and each part whose absence changes nothing on any kind is named.
Further flags are settings of main.py, for all lines. Results are appended to --json one by one; started again, the
study goes on from there.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.learning import alterations
from benchmarks.learning.markets import KINDS, PLANTED, WINDOWS, Alteration, add_unseen_flags, market_jobs, unseen_of
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    holm,
    mean_error,
    mean_interval,
    mean_p_value,
    plus_minus,
    study_config,
)
from training.evaluation.baselines import CHAMPION

WARM = "from the closed form"
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
    Line(WARM),
    Line(BASE),
    Line("noise in the targets", alter=alterations.noise_in_targets),
    Line("no bootstrap", alter=alterations.no_bootstrap),
    Line("noise in the policy gradient", alter=alterations.noise_in_the_actors_gradient),
    Line("the critic decides", alter=alterations.critic_decides),
    Line("random days in the replay", alter=alterations.random_days_in_replay),
    Line("random accounts in the replay", alter=alterations.random_accounts_in_replay),
    Line("random rewards in the replay", alter=alterations.random_rewards_in_replay),
    Line("capital is free", alter=alterations.free_capital),
    Line("targets are the online", ("--learning.tau", "1")),
    Line("no exploration", ("--learning.exploration-noise", "0")),
    Line("random fitness", alter=alterations.draw_fitness),
    Line("one hurdle, random fitness", alter=alterations.one_hurdle),
    Line("no breeding", alter=alterations.keep_genes),
    Line("single best", ("--evolution.elite-fraction", "0")),
)
"""The lines of each table; the second is compared with the first, all others with the second."""


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


def difference(kind: str, variant: str, records: Sequence[Record], base: Sequence[Record]) -> Difference:
    """Pair the shares of the rule's profit by seed."""
    beside = _shares(base)
    pairs = [share - beside[seed] for seed, share in _shares(records).items() if seed in beside]
    return Difference(kind, variant, pairs)


def _shares(records: Sequence[Record]) -> dict[int, float]:
    shares = {record["seed"]: record["policies"][CHAMPION]["of_rule"] for record in records}
    return {seed: share for seed, share in shares.items() if share is not None}


def over(records: Sequence[Record], base: Sequence[Record]) -> tuple[float, float]:
    """Return the profit over that of other records, and its standard error: paired by window, of the seeds in both."""
    beside = {record["seed"]: record[WINDOWS] for record in base}
    pairs = [(record[WINDOWS], beside[record["seed"]]) for record in records if record["seed"] in beside]
    profit, other = np.concatenate(pairs, axis=1)
    ratio, mean = float(profit.mean() / other.mean()), float(other.mean())
    return ratio, mean_error(profit - ratio * other) / abs(mean)  # delta method


def row(variant: str, records: Sequence[Record], base: Sequence[Record], effect: Difference | None) -> str:
    """Format the share of the rule's profit, its difference from the base by seed, the profit over the base's by
    window, profit and time."""
    share = plus_minus(*mean_interval([*_shares(records).values()]))
    ratio = plus_minus(*over(records, base)) if base else ""
    profit = mean_interval([record["policies"][CHAMPION]["profit"] for record in records])[0]
    minutes = mean_interval([record["cpu_seconds"] / 60 for record in records])[0]
    return f"{variant:<28} {len(records):>5} {share:>15} {effect or ''!s:>15} {ratio:>15} {profit:9.2f} {minutes:8.1f}"


HEADER = (
    f"{'':<28} {'seeds':>5} {'of the rule':>15} {'difference':>15} {'profit over':>15} {'profit %':>9} {'CPU min':>8}"
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
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=KINDS, help="default: all but the martingale")
    parser.add_argument("--warm", action="store_true", help="start from the closed form, not from random numbers")
    parser.add_argument(
        "--only", nargs="+", choices=[line.name for line in LINES], help="lines; the unaltered one is always done"
    )
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Do the jobs of the chosen lines that have no result yet, and print the lines."""
    only, is_warm, differences = study.arguments.only, study.arguments.warm, list[Difference]()
    lines = [line for line in LINES if only is None or line.name in (BASE, *only)]
    for kind in study.arguments.kinds:
        print(f"{kind}: {unseen_of(study.arguments)}\n{HEADER}", flush=True)
        base: list[Record] = []
        for line in lines:
            if line.name == WARM and is_warm:
                continue
            from_form = is_warm or line.name == WARM
            start = [] if from_form else ["--learning.no-warm-start"]
            config = study_config([*study.words, "--synthetic.kind", kind, *start, *line.flags])
            labels = {"study": "cold", "kind": kind, "variant": line.name, "warm": from_form}
            records = study.records(market_jobs(config, study, line.alter, **labels))
            effect = difference(kind, line.name, records, base) if base else None
            print(row(line.name, records, base, effect), flush=True)
            if line.name in (WARM, BASE):
                base = records
            elif effect:
                differences.append(effect)
    print("\n".join([*corrected(differences), *verdicts(differences)]), flush=True)
