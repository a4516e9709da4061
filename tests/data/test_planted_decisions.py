"""What decides in each planted market: who waits, sells at a target or multiplies signals earns more."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from data.market import Market
from data.splits import Span, spaced_windows
from data.synthetic.built_in import built_in_market
from data.synthetic.draw import MARKET_SEED
from data.synthetic.planted import PLANTED_KINDS
from environment.portfolio import Portfolio
from training.evaluation.baselines import ScoreRule, score_policy, tune_rule
from training.rollout import play
from utils.arrays import Float64Array
from utils.config.settings import with_settings
from utils.config.trader import Config, DataConfig, SyntheticConfig

UNSEEN = 31
"""Seed of a path that nothing was tuned on."""


@dataclass(frozen=True)
class Path:
    """A path of a kind of market, with windows to tune on or to judge by."""

    market: Market
    env: Portfolio
    rule: Float64Array
    starts: torch.Tensor
    sizes: Float64Array | None = None

    @property
    def cost(self) -> float:
        return 2 * self.env.rules.cost_rate

    def profit(self, rule: ScoreRule) -> float:
        """Of a rule's orders by the scores of this path."""
        policy = score_policy(self.env, replace(rule, scores=self.rule))
        return float(play(self.env, policy, self.starts)[0].profit_percent.mean())

    def tuned(self) -> ScoreRule:
        return tune_rule(self.env, self.rule, self.cost, self.starts)


def path_of(kind: str, seed: int = MARKET_SEED) -> Path:
    settings = with_settings(Config(), PLANTED_KINDS[kind].trading_rules)
    rules, split = replace(settings.env, exits="target"), DataConfig(context_window_days=64)
    market, scores = built_in_market(SyntheticConfig(kind=kind), split, rules, seed=seed)
    span = market.splits.train if seed == MARKET_SEED else Span(64, len(market.dates) - 1)
    starts = spaced_windows(span, rules.episode_steps, 16)
    return Path(market, Portfolio.on(market, rules), scores.rule, starts, scores.sizes)


def test_who_waits_for_bursts_earns_more() -> None:
    """A tuned price of cash, against the rule that orders all that earns its costs, at any target."""
    rule, unseen = path_of("bursts").tuned(), path_of("bursts", UNSEEN)
    eager = [unseen.profit(ScoreRule(unseen.rule, unseen.cost, target_percent=target)) for target in (15.0, 50.0)]
    assert unseen.profit(rule) > 1.4 * max(eager)


def test_who_sells_spikes_at_a_target_earns_more() -> None:
    rule, unseen = path_of("spikes").tuned(), path_of("spikes", UNSEEN)
    orders = [ScoreRule(unseen.rule, threshold, target_percent=50.0) for threshold in (0.002, 0.01, 0.018)]
    assert rule.target_percent < 15
    assert unseen.profit(rule) > 1.3 * max(map(unseen.profit, orders))


def test_who_sizes_edges_by_their_strength_earns_more() -> None:
    """Sizes that grow with the score, against any one size, both for all that earns its costs.

    Money is linear in size: a threshold that is tuned instead leaves sizes nothing to add.
    """
    training, unseen = path_of("edges"), path_of("edges", UNSEEN)
    by_score = [ScoreRule(training.rule, training.cost, full_score=score) for score in (0.06, 0.12)]
    sized = unseen.profit(max(by_score, key=training.profit))
    one_size = [
        ScoreRule(training.rule, training.cost, size, target) for size in (2.0, 5.0, 10.0) for target in (15.0, 50.0)
    ]
    assert sized > 1.2 * max(map(unseen.profit, one_size))


def test_who_sizes_storms_by_inverse_variance_takes_less_risk() -> None:
    """Sharpe ratio of daily returns over all windows, against the same orders at equal sizes, also smaller ones."""
    unseen = path_of("storms", UNSEEN)

    def ratio(coefficient: float = 10.0, sizes: Float64Array | None = None) -> float:
        policy = score_policy(unseen.env, ScoreRule(unseen.rule, unseen.cost, coefficient, sizes=sizes))
        equity = play(unseen.env, policy, unseen.starts)[1].numpy()
        returns = np.diff(equity, axis=0) / equity[:-1]
        return float(np.mean(returns) / np.std(returns))

    assert ratio(sizes=unseen.sizes) > 1.2 * max(ratio(), ratio(3.5), ratio(7.0))


@pytest.mark.parametrize("kind", [kind for kind in PLANTED_KINDS if kind != "martingale"])
def test_rule_and_oracle_earn_under_the_agents_rules(kind: str) -> None:
    """Some tens of percent an episode, and the oracle no less than the rule where the latent drift tells it all."""
    rules = with_settings(Config(), PLANTED_KINDS[kind].trading_rules).env
    market, scores = built_in_market(SyntheticConfig(kind=kind, days=2400), DataConfig(context_window_days=64), rules)
    env = Portfolio.on(market, rules)
    starts = torch.arange(market.splits.train.first, len(market.dates) - rules.episode_steps, 60)
    policies = (
        score_policy(env, ScoreRule(known, 2 * rules.cost_rate, 10.0, 30.0)) for known in (scores.rule, scores.oracle)
    )
    rule, oracle = (float(play(env, policy, starts)[0].profit_percent.mean()) for policy in policies)
    assert 7 < rule < 40
    assert oracle > (8 if kind in ("agree", "ring") else 0.99 * rule)
