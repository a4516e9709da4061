"""Fresh paths of a planted market's law, and the baselines that are fitted on another path and played on them."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.learning.study import Record
from data.features.nine import NormalizationStats
from data.market import Market
from data.splits import Span, spaced_windows
from data.synthetic.built_in import PlantedScores, built_in_market
from data.synthetic.draw import MARKET_SEED
from environment.basket import Basket
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from training.evaluation import baselines
from training.evaluation.baselines import (
    ORACLE,
    RULE,
    ScoreRule,
    score_policy,
    simple_rules,
    tune_planted,
    tune_rule,
    tuning_windows,
)
from training.evaluation.supervised import fit_supervised, fit_trees
from training.forecasts.training_days import TrainingDays
from training.rollout import play, play_agent_on
from training.run.market import with_own_features
from utils.config.trader import Config
from utils.errors import ConfigError

Profits = Mapping[str, NDArray[np.float64]]
"""Percent of the initial capital an episode by policy, of each on the same (windows,) unseen windows."""
CPU = torch.device("cpu")
UNSEEN_SEED = 2_000_000
"""Seed of the first unseen path while things are developed; training paths have small ones."""
UNSEEN_PATHS, WINDOWS_PER_PATH = 8, 25
OUR_TREES = f"{baselines.LIGHTGBM} on our inputs"


@dataclass(frozen=True)
class UnseenPath:
    """A path that nothing was fitted on, and the windows that are played on it."""

    market: Market
    scores: PlantedScores
    env: TradingEnvironment
    starts: Tensor

    def play_champion(self, champion: DDPGAgent) -> NDArray[np.float64]:
        """Return the (windows,) profits of the capital in percent: the agent's share by its orders, the rest held."""
        rules, share = self.env.rules, champion.share
        basket = Basket.of(self.market, "", 0).hold(rules, self.starts, rules.episode_steps).equity[:, -1].numpy()
        played = play_agent_on(self.env, champion, champion.forecasts(self.market), self.starts)
        of_agents = played.summary.profit_percent.numpy()
        return np.asarray(share * of_agents + (1.0 - share) * 100 * (basket / rules.initial_capital - 1))

    def play_rule(self, rule: ScoreRule) -> NDArray[np.float64]:
        """Return the (windows,) profits of a rule whose scores are of this path, in percent."""
        return play(self.env.account, score_policy(self.env.account, rule), self.starts)[0].profit_percent.numpy()

    def play_planted(self, planted: Mapping[str, ScoreRule]) -> dict[str, NDArray[np.float64]]:
        """Return the (windows,) profits of rule and oracle as `tuned` left them."""
        known = {RULE: self.scores.rule, ORACLE: self.scores.oracle}
        sizes = self.scores.sizes
        return {n: self.play_rule(replace(rule, scores=known[n], sizes=sizes)) for n, rule in planted.items()}


@dataclass(frozen=True)
class UnseenPaths:
    """The unseen paths of a study: others for each seed, so that intervals over seeds hold for other paths too."""

    unseen_seed: int = UNSEEN_SEED
    """Seed of the first path of seed 0; those of the other seeds follow."""
    paths: int = UNSEEN_PATHS
    """Of each seed."""
    windows: int = WINDOWS_PER_PATH
    """On each path, evenly spaced."""

    def each(self, config: Config, stats: NormalizationStats) -> Iterator[UnseenPath]:
        """Draw the paths of a seed one after the other, normalised as its training path was."""
        first = self.unseen_seed + config.seed * self.paths
        for seed in range(first, first + self.paths):
            market, scores = built_in_market(config.synthetic, config.split, config.env, seed=seed)
            market = with_own_features(replace(market, stats=stats), config.features, audits=False)
            days = Span(config.split.context_window_days, len(market.dates) - 1)
            starts = spaced_windows(days, config.env.episode_steps, self.windows)
            yield UnseenPath(market, scores, TradingEnvironment.on(market, config.env), starts)

    def require_unseen(self, seeds: Sequence[int]) -> None:
        """Raise ConfigError where an unseen path might be one that a seed trains on."""
        last = MARKET_SEED + max(seeds, default=0)
        if self.unseen_seed <= last:
            raise ConfigError(
                f"expected --unseen-seed above {last}, the seed of the last path that is trained on, got "
                f"{self.unseen_seed}"
            )

    def __str__(self) -> str:
        return f"unseen paths from seed {self.unseen_seed}, {self.paths} of each seed, {self.windows} windows on each"


def training_market(config: Config) -> tuple[Market, PlantedScores]:
    """Return the path that a seed trains on; seed 0's is that of `python main.py`."""
    market, scores = built_in_market(config.synthetic, config.split, config.env, seed=MARKET_SEED + config.seed)
    return with_own_features(market, config.features, audits=False), scores


def tuned(market: Market, scores: PlantedScores, config: Config) -> dict[str, ScoreRule]:
    """Return rule and oracle as they are tuned on training windows."""
    env = Portfolio.on(market, config.env)
    return tune_planted(env, scores, tuning_windows(market, env))


def joined(profits: Sequence[Profits]) -> Profits:
    """Join the profits of the same policies on several paths."""
    return {name: np.concatenate([path[name] for path in profits]) for name in profits[0]}


def shares(profits: Profits) -> Record:
    """Return mean profits by policy, and their shares of the rule's and the oracle's; None where those earn nothing."""
    mean = {name: float(values.mean()) for name, values in profits.items()}
    return {
        name: {
            "profit": profit,
            "of_rule": profit / mean[RULE] if mean[RULE] > 0 else None,
            "of_oracle": profit / mean[ORACLE] if mean[ORACLE] > 0 else None,
        }
        for name, profit in mean.items()
    }


Baseline = Callable[[Market], ScoreRule]
"""From any path of the law to the rule that plays it with what was fitted on the training path."""


def fit_baselines(market: Market, config: Config) -> dict[str, tuple[Baseline, float]]:
    """Fit every baseline on the training days of a market; return each by name with the CPU seconds that it took.

    The supervised ones are fitted together; each is given the time of all.
    """
    started = time.process_time()
    learned = fit_supervised(market, Portfolio.on(market, config.env))
    seconds = time.process_time() - started
    tried: dict[str, tuple[Baseline, float]] = {name: (one.rule_on, seconds) for name, one in learned.items()}
    started = time.process_time()
    trees = trees_on_our_inputs(market, config)
    tried[OUR_TREES] = trees, time.process_time() - started
    return tried | {name: (lambda other, name=name: simple_rules(other)[name], 0.0) for name in simple_rules(market)}


def trees_on_our_inputs(market: Market, config: Config) -> Baseline:
    """Boost trees on the agents' own inputs, cross-fitted, and tune the rule that buys and sells by their scores."""
    env = Portfolio.on(market, config.env)
    days = TrainingDays.of(market, env)
    ranker = fit_trees(days.samples, -1)
    tuned = tune_rule(env, ranker.out_of_fold(days.samples), 0.0, tuning_windows(market, env))
    model = ranker.fit(days.samples.train_days)
    return lambda other: replace(tuned, scores=model(days.inputs.of(other)))


def baselines_job(config: Config, unseen: UnseenPaths) -> Record:
    """Fit the baselines on one seed's path and measure them, the rule and the oracle on unseen paths."""
    market, scores = training_market(config)
    started = time.process_time()
    planted = tuned(market, scores, config)
    tuning = time.process_time() - started
    fitted = fit_baselines(market, config)
    profits = [
        path.play_planted(planted) | {name: path.play_rule(rule(path.market)) for name, (rule, _) in fitted.items()}
        for path in unseen.each(config, market.stats)
    ]
    seconds = dict.fromkeys(planted, tuning / len(planted)) | {name: taken for name, (_, taken) in fitted.items()}
    of_rule = shares(joined(profits))
    return {"policies": {name: share | {"cpu_seconds": seconds[name]} for name, share in of_rule.items()}}
