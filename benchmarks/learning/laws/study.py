"""Laws drawn at random: `python -m benchmarks.learning laws [--first-seed N] [--seeds N] [--json FILE]`.

Each seed draws a law, see `grammar`, and a market of 2,800 days and 60 columns, 40 of which may be bought. The law is
as strong as brings its true drift, held by the tuned band, some 10% a year net on the last days of other markets of it.
Trained on the first days; on the last 40% one account goes on for the champion as shrunk and in full, for trees on the
same inputs and for the true drift. Shown of each law: the mean correlation of the champion's scores with the true drift
of a day, the champion's shrink, and what was expected of each account by the true drift of what was held, less costs,
over the benchmark, percent a year. The last lines are the figure: ratios of sums over laws to the true drift's, with
95% intervals over laws. No bar tells the states of `hidden` laws but by the drift that they bring, so that nobody's
share is 1. Further flags are settings of main.py. Seeds 0 to 49 served development; published tables take others, which
they name.
"""

import argparse
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial

from benchmarks.learning.ablations import add_part_flag
from benchmarks.learning.laws.grammar import Law, path
from benchmarks.learning.laws.quantities import FAMILIES
from benchmarks.learning.markets import Budget, budget_of
from benchmarks.learning.structures import SIZE, TRUTH, Drawn, days_measured, market_of, measured
from benchmarks.learning.study import (
    Record,
    Study,
    add_study_flags,
    add_training_flags,
    each_seed,
    plus_minus,
    ratio,
    run_study,
    study_config,
)
from benchmarks.learning.unseen import Holder, hold
from environment.portfolio import Portfolio
from training.evaluation.baselines import CHAMPION, IN_FULL, LIGHTGBM, Tuning
from utils.config.trader import Config

WORTH, TOLERANCE = 10.0, 0.15
"""Expected excess of the true drift, percent a year, and the share by which it may differ."""
LEARNERS = (CHAMPION, IN_FULL, LIGHTGBM)
_PATHS = 2
"""On which a strength is chosen, for the last of a band's tuning is chance."""
_FIRST, _TRIES, _ELASTICITY = 0.0008, 8, 1.5
_COLUMNS = (
    *(("seed", 6), ("family", 9), ("correlation", 12), ("shrink", 7)),
    *((name, len(name) + 2) for name in (*LEARNERS, TRUTH)),
)


def law_path(law: Law, strength: float, config: Config, part: int = 0) -> Drawn:
    """Draw a market of a law, of the settings' size and seed."""
    return path(law, strength, config.synthetic.days, config.synthetic.stocks, config.seed, part)


def truth_earns(law: Law, strength: float, config: Config) -> float:
    """Return the expected excess, percent a year, of the true drift on other markets of a law than is learned on."""

    def earned(part: int) -> float:
        drawn = law_path(law, strength, config, part)
        market = market_of(drawn, config)
        portfolio = Portfolio.on(market, config.env)
        rule = Tuning.of(market, portfolio).tuned(100 * drawn.drift)
        holders = {TRUTH: Holder.of_rule(rule, market)}
        return hold(portfolio, holders, *days_measured(market), drawn.drift)[TRUTH].expected

    return sum(earned(part) for part in range(1, _PATHS + 1)) / _PATHS


def calibrated(law: Law, config: Config) -> tuple[float, float]:
    """Return the strength of a law and what its true drift earns: the nearest of some that are tried, by steps of an
    elasticity until one earns too little and one too much, then between these, in logarithms."""
    strength, tried, least = _FIRST, dict[float, float](), 0.2 * WORTH
    for _ in range(_TRIES):
        tried[strength] = truth_earns(law, strength, config)
        if abs(tried[strength] / WORTH - 1) <= TOLERANCE:
            break
        weak = max((one for one, earned in tried.items() if earned < WORTH), default=None)
        strong = min((one for one, earned in tried.items() if earned >= WORTH), default=None)
        if weak is None or strong is None:
            strength *= (WORTH / max(tried[strength], least)) ** (1 / _ELASTICITY)
        else:
            below = max(tried[weak], least)
            share = math.log(WORTH / below) / math.log(max(tried[strong] / below, 1.01))
            strength = weak * (strong / weak) ** min(max(share, 0.2), 0.8)
    return min(tried.items(), key=lambda one: abs(one[1] - WORTH))


def law_run(config: Config, budget: Budget, part: str | None = None) -> Record:
    """Draw and calibrate the law of a seed, train on its market's first days, measure on its last ones; see
    `measured`."""
    law = Law.draw(config.seed)
    strength, earned = calibrated(law, config)
    drawn = law_path(law, strength, config)
    found = measured(config, market_of(drawn, config), drawn.drift, budget, part, has_trees=True)
    of_law = {"law": str(law), "family": law.quantity.family, "strength": strength, "calibrated": earned}
    return {**of_law, **found}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=20)
    add_training_flags(parser, generations=10)
    add_part_flag(parser)
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Measure the laws, print the lines of each as soon as they are known, then the figure."""
    config, budget = study_config([*SIZE, *study.words]), budget_of(study.arguments)
    task, part = partial(law_run, budget=budget, part=study.arguments.part), {"part": study.arguments.part}
    jobs = each_seed(config, study.seeds, task, study="laws", **part, **asdict(budget))
    print("".join(f"{name:>{width}}" for name, width in _COLUMNS), flush=True)
    records = list[Record]()
    for record in run_study(jobs, study.arguments.json, study.executor):
        records.append(record)
        print(line(record), *textwrap.wrap(record["law"], 110), sep="\n  ", flush=True)
    print("\n".join(figure(records)), flush=True)


def line(record: Record) -> str:
    """Format the numbers of a law."""
    shown = f"{record['seed']:6d}{record['family']:>9}{record['correlation']:12.2f}{record['shrink']:7.2f}"
    return shown + "".join(
        f"{record['policies'][name]['expected']:{width}.1f}" for name, width in _COLUMNS if name in record["policies"]
    )


def figure(records: Sequence[Record]) -> Iterator[str]:
    """Format the learners' shares of the true drift's expected excess, by family and over all laws."""
    yield "of the true drift"
    for family in (*FAMILIES, "all"):
        policies = [one["policies"] for one in records if family in (one["family"], "all")]
        if policies:
            pairs = ([(one[name]["expected"], one[TRUTH]["expected"]) for one in policies] for name in LEARNERS)
            shares = (
                f"{plus_minus(*ratio(each)):>{max(len(name) + 2, 16)}}"
                for name, each in zip(LEARNERS, pairs, strict=True)
            )
            yield f"{family:<9}{len(policies):>4} laws{''.join(shares)}"
