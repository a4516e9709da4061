"""What decides in each planted market: who waits, sells at a target or multiplies signals earns more."""

from dataclasses import dataclass, replace

import numpy as np
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

UNSEEN = (31,)


@dataclass(frozen=True)
class Path:
    """A path of a kind of market, with windows to tune on or to judge by."""

    market: Market
    env: Portfolio
    rule: Float64Array
    starts: torch.Tensor
    sizes: Float64Array | None = None

    def profit(self, rule: ScoreRule) -> float:
        summary, _ = play(self.env, score_policy(self.env, rule), self.starts)
        return float(summary.profit_percent.mean())


def path_of(kind: str, seed: int = MARKET_SEED) -> Path:
    settings = with_settings(Config(), PLANTED_KINDS[kind].trading_rules)
    rules, split = replace(settings.env, exits="target"), DataConfig(context_window_days=64)
    market, scores = built_in_market(SyntheticConfig(kind=kind), split, rules, seed=seed)
    span = market.splits.train if seed == MARKET_SEED else Span(64, len(market.dates) - 1)
    starts = spaced_windows(span, rules.episode_steps, 16)
    return Path(market, Portfolio.on(market, rules), scores.rule, starts, scores.sizes)


def cost_of(path: Path) -> float:
    return 2 * path.env.rules.cost_rate


def profit_of(paths: list[Path], rule: ScoreRule) -> float:
    return float(np.mean([path.profit(replace(rule, scores=path.rule)) for path in paths]))


def tuned_and_judged(kind: str) -> tuple[ScoreRule, list[Path]]:
    training = path_of(kind)
    rule = tune_rule(training.env, training.rule, cost_of(training), training.starts)
    return rule, [path_of(kind, seed) for seed in UNSEEN]


def test_who_waits_for_bursts_earns_more() -> None:
    """A tuned price of cash, against the rule that orders all that earns its costs, at any target."""
    rule, unseen = tuned_and_judged("bursts")
    orders = [ScoreRule(unseen[0].rule, cost_of(unseen[0]), target_percent=target) for target in (15.0, 50.0)]
    eager = [profit_of(unseen, order) for order in orders]
    assert profit_of(unseen, rule) > 1.4 * max(eager)


def test_who_sells_spikes_at_a_target_earns_more() -> None:
    rule, unseen = tuned_and_judged("spikes")
    orders = [ScoreRule(unseen[0].rule, threshold, target_percent=50.0) for threshold in (0.002, 0.01, 0.018)]
    held = [profit_of(unseen, order) for order in orders]
    assert rule.target_percent < 15
    assert profit_of(unseen, rule) > 1.3 * max(held)


def test_who_sizes_edges_by_their_strength_earns_more() -> None:
    """Sizes that grow with the score, against any one size, both for all that earns its costs.

    Money is linear in size: a threshold that is tuned instead leaves sizes nothing to add.
    """
    training, unseen = path_of("edges"), [path_of("edges", seed) for seed in UNSEEN]
    cost = cost_of(training)
    by_score = [ScoreRule(training.rule, cost, full_score=score) for score in (0.06, 0.12)]
    sized = profit_of(unseen, max(by_score, key=training.profit))
    orders = [ScoreRule(training.rule, cost, size, target) for size in (2.0, 5.0, 10.0) for target in (15.0, 50.0)]
    one_size = [profit_of(unseen, order) for order in orders]
    assert sized > 1.2 * max(one_size)


def test_who_sizes_storms_by_inverse_variance_takes_less_risk() -> None:
    """Sharpe ratio of daily returns over all windows, against the same orders at equal sizes, also smaller ones."""
    unseen = [path_of("storms", seed) for seed in UNSEEN]

    def ratio(coefficient: float = 10.0, *, is_sized: bool = False) -> float:
        returns = []
        for path in unseen:
            sizes = path.sizes if is_sized else None
            policy = score_policy(path.env, ScoreRule(path.rule, cost_of(path), coefficient, sizes=sizes))
            equity = play(path.env, policy, path.starts)[1].numpy()
            returns.append(np.diff(equity, axis=0) / equity[:-1])
        return float(np.mean(returns) / np.std(returns))

    assert ratio(is_sized=True) > 1.2 * max(ratio(), ratio(3.5), ratio(7.0))
