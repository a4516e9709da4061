"""Power of the verdict: `python -m benchmarks.learning power [--runs N] [--kinds KIND ...] [--json FILE]`.

How often the planted rule, which has skill, is praised on one holdout; and half of it: its scores are mixed with those
of an unrelated path so that it earns half. Each run draws a path of its own. Size, target and mixture are tuned on the
training days of one path. Baselines are those that learn nothing.
"""

import argparse
import math
from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.learning.markets import PLANTED
from benchmarks.learning.praise import Judge, play_policy, praise_rows, setup_on
from benchmarks.learning.study import Record, Study, add_study_flags, each_seed
from benchmarks.learning.unseen import training_market, tuned
from environment.portfolio import Portfolio
from training.evaluation.baselines import RULE, ScoreRule, score_policy, simple_rules, tuning_windows
from training.rollout import play
from utils.arrays import Float64Array
from utils.config.trader import Config

HALF = "half of the rule"
RUNS = 200
_FOREIGN_SEED = 1_000_000
_BISECTIONS = 7


def mixed(skilled: Float64Array, foreign: Float64Array, share: float) -> Float64Array:
    """Mix scores with those of an unrelated path, so that their law stays the same."""
    return share * skilled + math.sqrt(1.0 - share**2) * foreign


def foreign_scores(config: Config) -> Float64Array:
    """Return the rule's scores of a path of the same law that no run plays."""
    return training_market(replace(config, seed=_FOREIGN_SEED + config.seed))[1].rule


@lru_cache(maxsize=1)
def tuned_rule(config: Config) -> tuple[ScoreRule, float]:
    """Tune the planted rule on training windows, and find the weight of its scores that earns half of it there."""
    market, scores = training_market(config)
    rule = tuned(market, scores, config)[RULE]
    env, foreign = Portfolio.on(market, config.env), foreign_scores(config)
    starts = tuning_windows(market, env)

    def profit(share: float) -> float:
        half = replace(rule, scores=mixed(scores.rule, foreign, share))
        return float(play(env, score_policy(env, half), starts)[0].profit_percent.mean())

    low, high, whole = 0.0, 1.0, profit(1.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if profit(middle) < whole / 2 else (low, middle)
    return rule, (low + high) / 2


def power_run(config: Config) -> Record:
    """Return what is claimed of the planted rule and of half of it on one path's holdout, and what they earn there."""
    market, scores = training_market(config)
    best, share = tuned_rule(replace(config, seed=0))
    setup = setup_on(market, config, market.splits.holdout)
    judge = Judge.on(setup, simple_rules(market), config.evaluation.random_pickers, config.seed)
    known = {RULE: scores.rule, HALF: mixed(scores.rule, foreign_scores(config), share)}
    played = {
        name: play_policy(setup, score_policy(setup.env, replace(best, scores=some))) for name, some in known.items()
    }
    return {
        "praise": {name: judge.praise(each) for name, each in played.items()},
        "profit": {name: float(profit.sum()) for name, (profit, _) in played.items()},
        "days": len(played[RULE][0]),
    }


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--runs", RUNS)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=PLANTED, help="default: all")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Count the claims on each kind of market and print them as soon as they are known."""
    for kind in study.arguments.kinds:
        records = study.records(each_seed(study.config(kind), study.seeds, power_run, study="power", kind=kind))
        earned = [f"{name} {np.mean([record['profit'][name] for record in records]):.1f}%" for name in (RULE, HALF)]
        heading = f"{kind}: a holdout of {records[0]['days']} days, mean profit of the {' and '.join(earned)}"
        print("\n".join(praise_rows(heading, [record["praise"] for record in records])), flush=True)
