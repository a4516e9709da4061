"""How often training days show significant evidence: hardly ever where nothing is planted, else always."""

import argparse
from functools import partial

from benchmarks.learning.markets import KINDS, MARTINGALE, Budget, budget_of, fit
from benchmarks.learning.study import Record, Study, add_study_flags, add_training_flags, each_seed, rate_interval
from benchmarks.learning.unseen import training_market
from models.evidence import SIGNIFICANCE_LEVEL
from utils.config.trader import Config


def evidence_job(config: Config, budget: Budget) -> Record:
    """Train one seed; return the p-values of its champion on training days, and what training cost."""
    trained = fit(config, training_market(config)[0], budget)
    trainer = trained.trainer
    return {**vars(trainer.champion.evidence), "trials": trainer.population.trials, **trained.record()}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--seeds", seeds=60)
    add_training_flags(parser, generations=5)
    parser.add_argument("--kinds", nargs="+", default=[MARTINGALE], choices=KINDS)
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Train and print a line for each kind."""
    task = partial(evidence_job, budget=budget_of(study.arguments))
    print(f"{'planted':<12} {'runs':>5} {f'p <= {SIGNIFICANCE_LEVEL:g}':>12} {'95% interval':>16} {'smallest':>9} p")
    for kind in study.arguments.kinds:
        records = study.records(each_seed(study.config(kind), study.seeds, task, study="evidence", kind=kind))
        smallest = sorted(min(record["selection"], record["timing"]) for record in records)
        found = sum(p <= SIGNIFICANCE_LEVEL for p in smallest)
        low, high = rate_interval(found, len(records))
        print(f"{kind:<12} {len(records):>5} {found:>12} {low:>7.1%} to {high:.1%} {smallest[0]:>9.1e}", flush=True)
