"""Baselines with known answers."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from environment.portfolio import Portfolio
from environment.trading_rules import Orders
from tests.tiny import FIRST_DAY, seeded, tiny_rules, trending_panel, world_of
from training.evaluation.baselines import ScoreRule, score_policy, tune_rule
from utils.config.trader import EnvironmentConfig

CPU = torch.device("cpu")


def sizes_of(orders: Orders, stocks: int) -> Tensor:
    found = torch.zeros(orders.stock.shape[1], stocks, dtype=torch.float64)
    return found.scatter_(1, orders.stock.T, orders.coefficient.T)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.integers(0, 1000))
def test_the_best_scores_are_ordered(lanes: int, stocks: int, orders: int, seed: int) -> None:
    g = seeded(seed)
    score, candidates = torch.randn(lanes, stocks, generator=g), torch.rand(lanes, stocks, generator=g) < 0.7
    held = ~candidates & (torch.rand(lanes, stocks, generator=g) < 0.5)
    env = account_like(orders, torch.arange(lanes), candidates | held, held)
    found = score_policy(env, ScoreRule(score.double().numpy(), 0.0, 6.0, 30.0))(env, 0)
    action = sizes_of(found, stocks)
    for lane in range(lanes):
        allowed = [s for s in range(stocks) if candidates[lane, s] and score[lane, s] > 0]
        best = sorted(allowed, key=lambda s: -float(score[lane, s]))[:orders]
        assert action[lane].nonzero().flatten().tolist() == sorted(best)
        # The better one is bought first.
        assert found.stock[: len(best), lane].tolist() == best
        assert found.coefficient[:, lane].tolist() == [6.0] * len(best) + [0.0] * (len(found.stock) - len(best))
    assert bool((found.target_percent == 30.0).all())


def account_like(orders: int, day: Tensor, tradable: Tensor, held: Tensor) -> Portfolio:
    """What a rule asks an account for; `tradable` (days, stocks), `held` (lanes, stocks)."""
    namespace = SimpleNamespace(
        bars=SimpleNamespace(days=len(tradable), tradable=tradable),
        ranked=orders + int(held.sum(1).max()),
        orders_per_day=min(orders, held.shape[1]),
        device=CPU,
        day=day,
        held=lambda: held,
        rules=EnvironmentConfig(exits="target"),
    )
    return cast(Portfolio, namespace)


def test_a_score_rule_reads_its_own_day_and_its_threshold() -> None:
    """Each lane looks at its own close; what is at the threshold, or unknown, is not ordered."""
    world = world_of(trending_panel([0.0] * 3, 30))
    scores = np.full((30, 3), 0.01)
    scores[FIRST_DAY, 1], scores[FIRST_DAY + 4, 2], scores[FIRST_DAY + 5] = 0.02, 0.03, np.nan
    world.env.reset(torch.tensor([FIRST_DAY, FIRST_DAY + 4, FIRST_DAY + 5, FIRST_DAY + 6]))
    orders = score_policy(world.env, ScoreRule(scores, 0.01))(world.env, 0)
    assert sizes_of(orders, 3).tolist() == [[0, 10, 0], [0, 0, 10], [0, 0, 0], [0, 0, 0]]


def test_cash_has_a_price_that_falls_as_it_is_free_and_as_time_runs_out() -> None:
    """The threshold rises by the price times the shares of cash spent and of trading days left."""
    rule = ScoreRule(np.array([[0.02, 0.05, np.nan]]), 0.01, cash_price=0.04)
    env = account_like(3, torch.tensor([0]), torch.tensor([[True] * 3]), torch.tensor([[False] * 3]))

    def ordered(free: float, left: float) -> list[float]:
        env.account_features = lambda: torch.tensor([[free, 1 - free, left]])  # type: ignore[method-assign]
        return sizes_of(score_policy(env, rule)(env, 0), 3)[0].sign().tolist()

    assert ordered(1.0, 1.0) == ordered(0.0, 0.0) == ordered(0.0, -0.1) == ordered(1.2, 1.0) == [1, 1, 0]
    assert ordered(0.5, 1.0) == ordered(0.0, 0.5) == [0, 1, 0]  # 0.01 + 0.02
    assert ordered(0.0, 1.0) == [0, 0, 0]  # 0.05 is not above 0.01 + 0.04


def test_sizes_grow_with_scores_up_to_the_largest() -> None:
    world = world_of(trending_panel([0.0] * 4, 30), rules=tiny_rules(max_new_positions_per_day=4))
    rule = ScoreRule(np.tile([0.08, 0.04, 0.012, 0.002], (30, 1)), coefficient=8.0, full_score=0.05)
    world.env.reset(torch.tensor([FIRST_DAY]))
    # 8 x 0.012 / 0.05 is an order yet, 8 x 0.002 / 0.05 is less than the smallest.
    sizes = sizes_of(score_policy(world.env, rule)(world.env, 0), 4)[0].tolist()
    assert sizes == pytest.approx([8.0, 6.4, 1.92, 0.0], rel=1e-5)


def test_a_rule_keeps_what_only_chance_would_change() -> None:
    """Scores without a meaning: of dozens of choices none is better by more than chance explains, for most draws."""
    world = world_of(trending_panel([0.0] * 5, 120, noise=0.02, seed=3), rules=tiny_rules(trading_days=30))
    starts = torch.arange(FIRST_DAY, 88, 10)
    kept = 0
    for seed in range(10):
        scores = np.random.default_rng(seed).random(world.market.close.shape)
        rule = tune_rule(world.env, scores, 0.0, starts)
        kept += (rule.threshold, rule.cash_price, rule.full_score) == (0.0, 0.0, 0.0)
    assert kept >= 6
