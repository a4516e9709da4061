"""The stage on which policies are judged: days of a market under its rules, and the baselines beside them."""

from dataclasses import dataclass

import numpy as np
import torch

from data.market import Market
from data.splits import Span
from data.synthetic.built_in import PlantedScores
from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from training.evaluation.baselines import BENCHMARK, EQUAL, index_close, planted_rules, simple_rules
from training.evaluation.play import EvaluationSetup
from training.evaluation.rules import BandRule, Tuning
from training.evaluation.supervised import fit_supervised
from utils.config.trader import Config, EvaluationConfig
from utils.errors import ConfigError


@dataclass(frozen=True)
class Stage:
    """Days on which policies are judged, with what is tuned on the training days before them."""

    setup: EvaluationSetup
    rules: dict[str, BandRule]
    """Baselines that hold by a score, by name."""


def stage_of(
    market: Market,
    planted: PlantedScores | None,
    config: Config,
    days: Span,
    judging: EvaluationConfig,
    device: torch.device | str = "cpu",
) -> Stage:
    """Take some days, and fit the baselines: supervised ones, simple ones, and the planted rules.

    Supervised baselines are fitted to the training days; planted rules are those of the built-in market.

    Args:
        config: whose trading rules and seed apply.

    Raises:
        ConfigError: there are no such days, or the benchmark cannot be read.
    """
    if not days.days:
        raise ConfigError(
            "expected data with a holdout, got none: training and validation use all days; leave --split out"
        )
    benchmark = Benchmark.of(market, judging.benchmark_weights, config.seed)
    portfolio = Portfolio.on(market, config.env, device, benchmark)
    setup = EvaluationSetup(
        market,
        portfolio,
        Tuning.of(market, portfolio.under()),
        days.first,
        days.days - 1,
        benchmark.columns.tolist(),
        BENCHMARK if judging.benchmark_weights else EQUAL,
        index_close(judging.benchmark, market, np.arange(days.first, days.last + 1)),
    )
    rules, span = dict[str, BandRule](), slice(days.first, days.last + 1)
    if judging.rivals == "learned":
        learned = fit_supervised(market, setup.tuning, refit_days=judging.rival_refit, days=span)
        rules = {name: one.rule for name, one in learned.items()}
    rules |= simple_rules(market, setup.tuning)
    if planted is not None:
        rules |= planted_rules(planted, setup.tuning)
    return Stage(setup, rules)
