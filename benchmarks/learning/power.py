"""Power of the verdict: `python -m benchmarks.learning power [--runs N] [--kinds KIND ...] [--json FILE]`.

How often skill is claimed, on one holdout, of the planted rule, which has it; of half of it: its scores are mixed with
those of an unrelated path so that it earns half; and of scores of that path alone, which have none. Each run draws a
path of its own. Numbers and mixture are tuned on the training days of one path.
"""

import argparse
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from benchmarks.learning.markets import PLANTED
from benchmarks.learning.study import Record, Study, add_study_flags, each_seed, rate_words
from benchmarks.learning.unseen import training_market
from environment.portfolio import Portfolio
from training.evaluation.baselines import CHAMPION, RANDOM, RULE, BandRule, Tuning, planted_rules
from training.evaluation.compared import Baselines
from training.evaluation.play import Played, play_policy
from training.evaluation.verdict import verdict
from utils.arrays import Float64Array
from utils.config.trader import Config
from utils.metrics import TRADING_DAYS_PER_YEAR
from utils.runs.devices import named_generator

HALF, NONE = "half of the rule", "another path's"
CLAIMS = ("has_selection", "has_timing", "has_skill", "is_better_than_benchmark")
RUNS = 50
_FOREIGN_SEED = 1_000_000
_BISECTIONS = 7


def claims(baselines: Baselines, judged: Mapping[str, Played], config: Config) -> dict[str, dict[str, bool]]:
    """Return what the report's verdict claims of each account on the days of the baselines, true or not."""
    found = dict[str, dict[str, bool]]()
    generator = named_generator(config.seed, "random pickers")
    for name, account in judged.items():
        played = baselines.beside(CHAMPION, {CHAMPION: account}, config.evaluation.random_pickers, generator)
        curves = played.curves
        told = verdict(
            curves[CHAMPION].daily[0],
            curves[RANDOM].daily,
            played.selection,
            curves[CHAMPION].exposure[0],
            curves[played.benchmark].daily[0],
        )
        found[name] = {claim: bool(getattr(told, claim)) for claim in CLAIMS}
    return found


def mixed(skilled: Float64Array, foreign: Float64Array, share: float) -> Float64Array:
    """Mix scores with those of an unrelated path, so that their law stays the same."""
    return share * skilled + math.sqrt(1.0 - share**2) * foreign


@lru_cache(maxsize=1)
def tuned_rule(config: Config) -> tuple[BandRule, int, float]:
    """Tune the planted rule on training windows; return it, the sessions that its scores look ahead, and the weight of
    its scores that earns half of it there."""
    market, scores = training_market(config)
    tuning = Tuning.of(market, Portfolio.on(market, config.env))
    rule = planted_rules(scores, tuning)[RULE]
    sessions = next(ahead for ahead, one in scores.rule.items() if one is rule.scores)
    foreign = foreign_scores(config, sessions)

    def earned(share: float) -> float:
        return float(tuning.fitness([replace(rule, scores=mixed(scores.rule[sessions], foreign, share))]))

    low, high, whole = 0.0, 1.0, earned(1.0)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if earned(middle) < whole / 2 else (low, middle)
    return rule, sessions, (low + high) / 2


def foreign_scores(config: Config, sessions: int) -> Float64Array:
    """Return the rule's scores of a path of the same law that no run plays."""
    return training_market(replace(config, seed=_FOREIGN_SEED + config.seed))[1].rule[sessions]


def power_run(config: Config) -> Record:
    """Return what is claimed on one path's holdout, and what was earned over the benchmark there, percent a year."""
    market, scores = training_market(config)
    rule, sessions, share = tuned_rule(replace(config, seed=0))
    judging = replace(config.evaluation, rivals="none", benchmark=None)
    setup = Baselines.fitted(market, None, config, market.splits.holdout, judging).setup
    skilled, foreign = scores.rule[sessions], foreign_scores(config, sessions)
    known = {RULE: skilled, HALF: mixed(skilled, foreign, share), NONE: foreign}
    rules = {name: replace(rule, scores=some) for name, some in known.items()}
    judged = {name: play_policy(setup, one.policy(setup.tuning.risk)) for name, one in rules.items()}
    baselines = Baselines(setup, {})
    held = baselines.played[setup.benchmark].curves.daily
    excess = {name: TRADING_DAYS_PER_YEAR * float((one.curves.daily - held).mean()) for name, one in judged.items()}
    return {"praise": claims(baselines, judged, config), "excess": excess, "days": setup.steps}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the study."""
    add_study_flags(parser, "--runs", RUNS)
    parser.add_argument("--kinds", nargs="+", default=PLANTED, choices=PLANTED, help="default: all")
    parser.set_defaults(run=run)


def run(study: Study) -> None:
    """Count the claims on each kind of market and print them as soon as they are known."""
    for kind in study.arguments.kinds:
        records = study.records(each_seed(study.config(kind), study.seeds, power_run, study="power", kind=kind))
        print(f"{kind}: {len(records)} holdouts of {records[0]['days']} days\n{'':<20}{'excess':>7}", end="")
        print("".join(f" {claim.partition('_')[2].replace('_', ' '):>21}" for claim in CLAIMS))
        for name in (RULE, HALF, NONE):
            excess = np.mean([record["excess"][name] for record in records])
            rates = (rate_words([record["praise"][name][claim] for record in records]) for claim in CLAIMS)
            print(f"{name:<20}{excess:7.1f}" + "".join(f" {rate:>21}" for rate in rates), flush=True)
