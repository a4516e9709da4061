"""Baselines with known answers, and the table that a champion stands in."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.features import OPEN
from data.synthetic.built_in import PlantedScores
from environment.trading_env import VectorTradingEnvironment
from tests.market_cases import random_panel
from tests.tiny import FIRST_DAY, World, random_world, seeded, tiny_population, tiny_rules, trending_panel, world_of
from training.evaluation.baselines import (
    FixedOrder,
    ScoreRule,
    equal_weight_equity,
    orders_by_score,
    random_picker,
    score_policy,
    tune_rule,
)
from training.evaluation.comparison import (
    CHAMPION,
    COLUMNS,
    EQUAL,
    ORACLE,
    RANDOM,
    RULE,
    Comparison,
    by_policy,
    compare,
    tune_planted,
)
from training.rollout import Policy, play, roll_out
from utils.config.trader import EnvironmentConfig

CPU = torch.device("cpu")
FloatArray = npt.NDArray[np.float64]


def held_equally(
    close: list[list[float]], open_: list[list[float]], start: int, steps: int, rules: EnvironmentConfig
) -> list[float]:
    """The same portfolio in plain Python: shares, marks and cash."""
    rate = (rules.cost_bps + rules.slippage_bps) / 10_000
    bought = [stock for stock, price in enumerate(open_[start + 1]) if not math.isnan(price)]
    if not bought:
        return [rules.initial_capital] * (steps + 1)
    money = rules.initial_capital / (1 + rate) / len(bought)
    shares = {stock: money / open_[start + 1][stock] for stock in bought}
    marks = {stock: open_[start + 1][stock] for stock in bought}
    equity = [rules.initial_capital]
    for day in range(start + 1, start + steps + 1):
        for stock in bought:
            marks[stock] = marks[stock] if math.isnan(close[day][stock]) else close[day][stock]
        equity.append(sum(shares[stock] * marks[stock] for stock in bought))
    equity[-1] -= rate * equity[-1]
    return equity


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 15),
    st.integers(1, 5),
    st.integers(0, 4),
    st.sampled_from([0.0, 7.0, 200.0]),
    st.sampled_from([0.0, 0.3, 0.9]),
)
def test_equal_weight_is_its_plain_arithmetic(
    seed: int, steps: int, stocks: int, start: int, cost: float, missing: float
) -> None:
    panel = random_panel(np.random.default_rng(seed), start + steps + 2, stocks, missing=missing)
    rules = tiny_rules(cost_bps=cost, slippage_bps=3.0)
    open_, close = panel[..., 0], panel[..., 3]
    expected = held_equally(close.tolist(), open_.tolist(), start, steps, rules)
    assert equal_weight_equity(close, open_, start, steps, rules).tolist() == pytest.approx(expected, rel=1e-9)


def test_equal_weight_of_two_stocks() -> None:
    """One doubles, one halves, at 1 percent a leg."""
    open_ = np.array([[9, 9], [10, 10], [20, 5]], dtype=np.float32)
    close = np.array([[9, 9], [10, 10], [20, 5]], dtype=np.float32)
    rules = tiny_rules(cost_bps=100.0, slippage_bps=0.0, initial_capital=1010.0)
    assert equal_weight_equity(close, open_, 0, 2, rules).tolist() == pytest.approx([1010, 1000, 1250 * 0.99])


def watch(policy: Policy, log: list[tuple[Tensor, Tensor]]) -> Policy:
    """The policy, with the candidates it had and the actions it took noted."""

    def act(env: VectorTradingEnvironment, step: int) -> Tensor:
        candidates = env.portfolio.candidates().clone()
        action = policy(env, step)
        log.append((candidates, action.clone()))
        return action

    return act


def missing_world(orders: int = 1) -> World:
    return random_world(11, days=60, rules=tiny_rules(max_new_positions_per_day=orders, trading_days=25))


@pytest.mark.parametrize("orders", [1, 2, 9])
def test_random_pickers_order_only_candidates(orders: int) -> None:
    """Never a stock that is held or has no bar, and as many as may be bought."""
    world = missing_world(orders)
    log: list[tuple[Tensor, Tensor]] = []
    play(world.env, watch(random_picker(seeded(), FixedOrder(7.0, 20.0)), log), torch.full((20,), FIRST_DAY))
    for candidates, action in log:
        ordered = action[..., 0] > 0
        assert not bool((ordered & ~candidates).any())
        assert torch.equal(ordered.sum(1), candidates.sum(1).clamp(max=world.env.portfolio.orders_per_day))
        assert bool((action[..., 0][ordered] == 7.0).all()) and bool((action[..., 1] == 20.0).all())
    refused = torch.stack([~candidates for candidates, _ in log])
    assert bool(refused.any()) and not bool(refused.all())


def test_random_pickers_draw_uniformly() -> None:
    world, lanes = world_of(trending_panel([0.0] * 4, 30)), 4000
    log: list[tuple[Tensor, Tensor]] = []
    play(world.env, watch(random_picker(seeded(), FixedOrder()), log), torch.full((lanes,), FIRST_DAY))
    counts = (log[0][1][..., 0] > 0).sum(0).double()
    assert float(((counts - lanes / 4).square() / (lanes / 4)).sum()) < 20


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 8), st.integers(0, 1000))
def test_the_best_scores_are_ordered(lanes: int, stocks: int, orders: int, seed: int) -> None:
    """The largest scores above 0 among the candidates, not more than may be bought."""
    g = seeded(seed)
    score, candidates = torch.randn(lanes, stocks, generator=g), torch.rand(lanes, stocks, generator=g) < 0.7
    action = orders_by_score(score, candidates, orders, FixedOrder(6.0, 30.0))
    for lane in range(lanes):
        allowed = [s for s in range(stocks) if candidates[lane, s] and score[lane, s] > 0]
        best = sorted(allowed, key=lambda s: -float(score[lane, s]))[:orders]
        assert action[lane, :, 0].nonzero().flatten().tolist() == sorted(best)
    assert set(action[..., 0].flatten().tolist()) <= {0.0, 6.0}
    assert bool((action[..., 1] == 30.0).all())


def test_a_score_rule_reads_its_own_day_and_its_threshold() -> None:
    """Each lane looks at its own close; what is at the threshold, or unknown, is not ordered."""
    world = world_of(trending_panel([0.0] * 3, 30))
    scores = np.full((30, 3), 0.01)
    scores[FIRST_DAY, 1], scores[FIRST_DAY + 4, 2], scores[FIRST_DAY + 5] = 0.02, 0.03, np.nan
    log: list[tuple[Tensor, Tensor]] = []
    starts = torch.tensor([FIRST_DAY, FIRST_DAY + 4, FIRST_DAY + 5, FIRST_DAY + 6])
    play(world.env, watch(score_policy(ScoreRule(scores, 0.01), CPU), log), starts)
    assert log[0][1][..., 0].tolist() == [[0, 10, 0], [0, 0, 10], [0, 0, 0], [0, 0, 0]]


def foresight(world: World) -> FloatArray:
    """What each stock earns from the next open to the last close that a trade may see: the perfect score."""
    hold, close = world.env.rules.max_holding_days, world.market.close.astype(np.float64)
    open_ = world.market.data_array[:, world.market.investable_columns, OPEN].astype(np.float64)
    scores = np.full(close.shape, np.nan)
    scores[:-hold] = close[hold:] / open_[1 : len(open_) - hold + 1] - 1
    return scores


def noisy_world() -> World:
    return world_of(trending_panel([0.0] * 5, 120, noise=0.02, seed=3), rules=tiny_rules(trading_days=30))


def test_foresight_beats_random_pickers() -> None:
    world = noisy_world()
    starts = world.starts(6)
    known, _ = play(world.env, score_policy(ScoreRule(foresight(world), 0.002), CPU), starts)
    guessed, _ = play(world.env, random_picker(seeded(), FixedOrder()), starts.repeat(30))
    assert float(known.profit_percent.min()) > float(guessed.profit_percent.max())


@pytest.mark.parametrize(("drift", "coefficient"), [(0.02, 10.0), (-0.02, 5.0)])
def test_a_rule_is_tuned_to_the_size_that_earns_most(drift: float, coefficient: float) -> None:
    """Where everything rises the largest size, where everything falls the smallest."""
    world = world_of(trending_panel([drift] * 3, 40))
    scores = np.ones((40, 3))
    order = tune_rule(world.env, scores, 0.0, world.starts(3)).order
    assert order.coefficient == coefficient
    played = {
        choice: play(world.env, score_policy(ScoreRule(scores, 0.0, choice), CPU), world.starts(3))[0]
        for choice in (order, FixedOrder(), FixedOrder(5.0, 10.0), FixedOrder(7.0, 20.0))
    }
    profit = {choice: float(summary.profit_percent.mean()) for choice, summary in played.items()}
    assert profit[order] == max(profit.values())


def test_who_knows_asks_for_the_cost_of_a_round_trip() -> None:
    world = world_of(trending_panel([0.01] * 3, 40), rules=tiny_rules(cost_bps=7.0, slippage_bps=8.0))
    scores = PlantedScores(np.ones((40, 3)), np.full((40, 3), 2.0))
    planted = tune_planted(world.env, scores, world.starts(2))
    assert list(planted) == [RULE, ORACLE]
    assert all(rule.threshold == pytest.approx(0.003) for rule in planted.values())
    assert planted[RULE].scores is scores.rule and planted[ORACLE].scores is scores.oracle


PICKERS, WINDOWS = 7, 3


def table(world: World, rule: ScoreRule | None, seed: int = 0, windows: int = WINDOWS) -> Comparison:
    champion = tiny_population(3).agent(1)
    planted = {} if rule is None else {RULE: rule, ORACLE: replace(rule, order=FixedOrder(5.0, 20.0))}
    return compare(
        champion,
        world.env,
        world.tensors,
        world.market,
        world.starts(windows),
        random_pickers=PICKERS,
        generator=seeded(seed),
        planted=planted,
    )


def test_rows_and_curves_of_a_comparison_agree() -> None:
    world = noisy_world()
    rule = ScoreRule(foresight(world), 0.002)
    found, capital = table(world, rule), world.env.rules.initial_capital
    assert [row["policy"] for row in found.rows] == [CHAMPION, RULE, ORACLE, RANDOM, EQUAL]
    assert found.curves.keys() == by_policy(found).keys() == {CHAMPION, RULE, ORACLE, RANDOM, EQUAL}
    for row in found.rows:
        assert tuple(row) == COLUMNS
        curve = found.curves[row["policy"]]
        assert curve.shape == (world.env.rules.episode_steps + 1,) and curve[0] == capital
        # Every window starts with the same capital, so the mean return is that of the mean curve.
        assert row["return %"] == pytest.approx(100 * (curve[-1] / capital - 1), rel=1e-9, abs=1e-9)
        assert 0 <= row["drawdown %"] <= 100
    low, high = found.random_band
    assert bool((low <= high).all()) and low[0] == high[0] == capital and low[-1] < high[-1]


def test_rows_of_a_comparison_are_what_was_played() -> None:
    """The champion's, the planted and the equal weight's lines from episodes played apart from the table."""
    world = noisy_world()
    rule = ScoreRule(foresight(world), 0.002, FixedOrder(7.0, 30.0))
    rows, starts, rules = by_policy(table(world, rule)), world.starts(WINDOWS), world.env.rules
    champion = tiny_population(3).agent(1)
    for name, summary in {
        CHAMPION: roll_out(world.env, champion.networks, world.tensors, starts).summary,
        RULE: play(world.env, score_policy(rule, CPU), starts)[0],
        ORACLE: play(world.env, score_policy(replace(rule, order=FixedOrder(5.0, 20.0)), CPU), starts)[0],
    }.items():
        profits, row = summary.profit_percent.numpy(), rows[name]
        assert row["return %"] == pytest.approx(profits.mean())
        assert row["std error"] == pytest.approx(profits.std(ddof=1) / math.sqrt(WINDOWS))
        assert row["trades"] == pytest.approx(float(summary.trades.double().mean()))
        assert row["win rate %"] == pytest.approx(100 * float(summary.wins.sum() / summary.trades.sum()))
        assert row["costs %"] == pytest.approx(100 * float(summary.costs.mean()) / rules.initial_capital)
    open_ = world.market.data_array[:, world.market.investable_columns, OPEN]
    equity = [equal_weight_equity(world.market.close, open_, s, rules.episode_steps, rules) for s in starts.tolist()]
    finals = np.array([curve[-1] for curve in equity])
    assert rows[EQUAL]["return %"] == pytest.approx(100 * (finals.mean() / rules.initial_capital - 1))
    assert rows[EQUAL]["trades"] is None


def test_random_band_is_between_pickers() -> None:
    """Each picker's equity is its mean over the windows; the spread in the table is that between pickers."""
    world = noisy_world()
    found, starts = table(world, None, seed=4), world.starts(WINDOWS)
    equity = play(world.env, random_picker(seeded(4), FixedOrder()), starts.repeat(PICKERS))[1].numpy()
    pickers = [np.mean([equity[:, p * WINDOWS + w] for w in range(WINDOWS)], axis=0) for p in range(PICKERS)]
    for bound, percentile in zip(found.random_band, (5, 95), strict=True):
        assert bound.tolist() == pytest.approx(np.percentile(pickers, percentile, axis=0).tolist())
    finals = [100 * (curve[-1] / curve[0] - 1) for curve in pickers]
    assert by_policy(found)[RANDOM]["std error"] == pytest.approx(float(np.std(finals)))
    assert RULE not in found.curves


def test_a_comparison_without_trades_is_no_error() -> None:
    """On one window, for a rule that never orders: no win rate, nothing paid, nothing earned."""
    world = noisy_world()
    idle = ScoreRule(np.zeros_like(foresight(world)), 0.002)
    row = by_policy(table(world, idle, windows=1))[RULE]
    assert row["trades"] == row["costs %"] == row["return %"] == row["std error"] == 0
    assert row["win rate %"] is None


def test_the_generator_decides_the_comparison() -> None:
    world = noisy_world()
    one, other = table(world, None, 3), table(world, None, 3)
    assert one.rows == other.rows
    assert one.random_band[0].tolist() == other.random_band[0].tolist()
