"""The stage on which policies are judged: windows of a market under its rules, and the baselines beside them."""

import dataclasses
from dataclasses import dataclass

from torch import Tensor

from data.market import Market
from data.splits import Span, consecutive_windows
from data.synthetic.built_in import PlantedScores
from environment.basket import Basket
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, benchmark_close, simple_rules, tune_planted, tuning_windows
from training.evaluation.play import EvaluationSetup
from training.evaluation.supervised import fit_supervised
from utils.config.trader import EvaluationConfig
from utils.errors import ConfigError


@dataclass(frozen=True)
class Stage:
    """Windows on which policies are judged, with what is tuned on the training days before them."""

    setup: EvaluationSetup
    env: Portfolio
    """With windows of the rules' length, in which rules are tuned."""
    tuning: Tensor
    """(W,) first days of training windows, on the environment's device."""
    rules: dict[str, ScoreRule]
    """Baselines that order by a score, by name."""


def stage_of(
    market: Market,
    planted: PlantedScores | None,
    env: Portfolio,
    days: Span,
    judging: EvaluationConfig,
    basket: Basket | None = None,
    *,
    is_continuous: bool = False,
) -> Stage:
    """Lay windows over some days, and fit the baselines: supervised ones, simple ones, and the planted rules.

    Supervised baselines are fitted to the training days; planted rules are those of the built-in market.

    Args:
        basket: what a champion holds with the capital that does not follow it.
        is_continuous: in one account that goes on over all of them.

    Raises:
        ConfigError: there are no such days.
    """
    if not days.days:
        raise ConfigError(
            "expected data with a holdout, got none: training and validation use all days; leave --split out"
        )
    played = env
    if is_continuous:
        whole = dataclasses.replace(env.rules, trading_days=days.days - 1, settlement_days=0)
        played = Portfolio(env.bars, whole, is_continuing=True)
    starts = consecutive_windows(days, played.rules.episode_steps).to(env.device)
    rules = dict[str, ScoreRule]()
    if judging.rivals == "learned":
        learned = fit_supervised(market, env, refit_days=judging.rival_refit, days=slice(days.first, days.last + 1))
        rules = {name: one.rule for name, one in learned.items()}
    rules |= simple_rules(market)
    tuning = tuning_windows(market, env)
    if planted is not None:
        rules = rules | tune_planted(env, planted, tuning)
    close = benchmark_close(judging.benchmark, market, played, starts)
    return Stage(EvaluationSetup(market, played, starts, close, basket), env, tuning, rules)
