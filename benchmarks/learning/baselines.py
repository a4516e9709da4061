"""The baselines of the studies: fitted on a training path, played on unseen ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from benchmarks.learning.study import Record
from benchmarks.learning.unseen import UnseenPaths, joined, shares, training_market, tuned
from data.market import Market
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, simple_rules
from training.evaluation.supervised import fit_supervised
from utils.config.trader import Config

Baseline = Callable[[Market], ScoreRule]
"""From any path of the law to the rule that plays it with what was fitted on the training path."""


def fit_baselines(market: Market, config: Config) -> dict[str, tuple[Baseline, float]]:
    """Fit every baseline on the training days of a market; return each by name with the CPU seconds that it took.

    The supervised ones are fitted together; each is given the time of all.
    """
    started = time.process_time()
    learned = fit_supervised(market, Portfolio.on(market, config.env))
    seconds = time.process_time() - started
    found: dict[str, tuple[Baseline, float]] = {name: (one.rule_on, seconds) for name, one in learned.items()}
    return found | {name: (partial(_simple, name), 0.0) for name in simple_rules(market)}


def _simple(name: str, market: Market) -> ScoreRule:
    return simple_rules(market)[name]


def baselines_job(config: Config, unseen: UnseenPaths) -> Record:
    """Fit the baselines on one seed's path and measure them, the rule and the oracle on unseen paths."""
    market, scores = training_market(config)
    started = time.process_time()
    planted = tuned(market, scores, config)
    tuning = time.process_time() - started
    fitted = fit_baselines(market, config)
    parts = [
        path.play_planted(planted) | {name: path.play_rule(rule(path.market)) for name, (rule, _) in fitted.items()}
        for path in unseen.each(config, market.stats)
    ]
    seconds = dict.fromkeys(planted, tuning / len(planted)) | {name: taken for name, (_, taken) in fitted.items()}
    return {"policies": {name: found | {"cpu_seconds": seconds[name]} for name, found in shares(joined(parts)).items()}}
