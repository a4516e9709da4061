"""How often training days show significant evidence: hardly ever where nothing is planted, else always."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from scipy.stats import binomtest

from benchmarks.learning.markets import KINDS, MARTINGALE, Budget, budget_of, fit, of_each_seed
from benchmarks.learning.study import (
    Experiment,
    Record,
    add_study_flags,
    add_training_flags,
    folder_of,
    run_study,
    seeds_of,
    study_config,
    study_executor,
)
from benchmarks.learning.unseen import training_market
from models.evidence import SIGNIFICANCE_LEVEL
from utils.config.settings import settings_hash
from utils.config.trader import Config


def evidence_job(config: Config, budget: Budget) -> Record:
    """Train one seed; return the p-values of its champion on training days, and what training cost."""
    trained = fit(config, training_market(config)[0], budget)
    trainer = trained.trainer
    return {**vars(trainer.champion.evidence), "trials": trainer.population.trials, **trained.record()}


def add_command(commands: Any) -> None:
    """Add `evidence` to the commands of `benchmarks.learning`."""
    parser = commands.add_parser(
        "evidence", help="how often training days show significant evidence, by kind of market", allow_abbrev=False
    )
    add_study_flags(parser, "--seeds", seeds=60)
    add_training_flags(parser, generations=5)
    parser.add_argument("--kinds", nargs="+", default=[MARTINGALE], choices=KINDS)
    parser.set_defaults(run=run_evidence)


def run_evidence(arguments: argparse.Namespace, words: Sequence[str]) -> None:
    """Train and print a line for each kind."""
    budget = budget_of(arguments)
    print(f"{'planted':<12} {'runs':>5} {f'p <= {SIGNIFICANCE_LEVEL:g}':>12} {'95% interval':>16} {'smallest':>9} p")
    with study_executor(arguments, folder_of(arguments.json)) as executor:
        for kind in arguments.kinds:
            jobs = [
                Experiment(
                    {"study": "evidence", "kind": kind, "seed": own.seed, "settings": settings_hash(own)[:16]},
                    partial(evidence_job, own, budget),
                )
                for own in of_each_seed(study_config([*words, "--synthetic.kind", kind]), seeds_of(arguments))
            ]
            records = list(run_study(jobs, arguments.json, executor))
            smallest = sorted(min(record["selection"], record["timing"]) for record in records)
            found = sum(p <= SIGNIFICANCE_LEVEL for p in smallest)
            low, high = binomtest(found, len(records)).proportion_ci(method="exact")
            print(f"{kind:<12} {len(records):>5} {found:>12} {low:>7.1%} to {high:.1%} {smallest[0]:>9.1e}", flush=True)
