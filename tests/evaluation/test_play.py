"""Accounts on the judged days against plain arithmetic, what was played apart, and known answers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from environment.benchmark import Benchmark
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from tests.evaluation.page_case import SESSIONS, case
from tests.tiny import (
    FIRST_DAY,
    INVESTABLE,
    World,
    random_world,
    seeded,
    tiny_agent,
    tiny_rules,
    trending_panel,
    world_of,
)
from training.evaluation import baselines
from training.evaluation.baselines import (
    CHAMPION,
    EQUAL,
    EQUAL_RISK,
    HOLD,
    INDEX,
    MOMENTUM,
    RANDOM,
    REVERSAL,
    BandRule,
    Tuning,
)
from training.evaluation.compared import Baselines, PlayedPolicies, at_costs, replay
from training.evaluation.measures import estimates
from training.evaluation.play import (
    Asked,
    EvaluationSetup,
    Lapse,
    Played,
    account_of_agent,
    play_held,
    play_policy,
    play_rules,
)
from utils.config.trader import EnvironmentConfig, Fill

STEPS = 30


def setup_of(world: World, first: int = FIRST_DAY, steps: int = STEPS, weights: str = "") -> EvaluationSetup:
    benchmark = Benchmark.of(world.market, weights)
    portfolio = Portfolio.on(world.market, world.env.rules, benchmark=benchmark)
    tuning = Tuning.of(world.market, portfolio.under())
    name = baselines.BENCHMARK if weights else EQUAL
    return EvaluationSetup(world.market, portfolio, tuning, first, steps, benchmark.columns.tolist(), name)


def eager_agent(setup: EvaluationSetup, shrink: float = 1.0, seed: int = 0) -> DDPGAgent:
    """An agent whose weights differ from day to day."""
    agent = tiny_agent(setup.market, rules=setup.portfolio.rules, seed=seed, genes=(0.005, 0.5, 5.0, 1.0, 5.0, 1.0))
    return agent.shrunk(shrink)


def quiet_world(**changes: Any) -> World:
    """No gaps, no drift: every order is filled."""
    return world_of(trending_panel([0.0] * 8, 80, noise=0.02, seed=5), rules=tiny_rules(trading_days=10, **changes))


def against(setup: EvaluationSetup, judged: Played, **rules: BandRule) -> PlayedPolicies:
    accounts = {CHAMPION: judged}
    return Baselines(setup, rules).beside(CHAMPION, accounts, 6, seeded(), at_costs(setup, accounts))


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_what_was_held_and_traded_adds_up_to_the_account(fill: Fill) -> None:
    """Each day's return from the weights before and after the fills, prices and costs; and from the positions."""
    world = random_world(3, days=60, rules=tiny_rules(fill=fill))
    setup = setup_of(world)
    played = account_of_agent(setup, eager_agent(setup))
    curves, equity = played.curves, played.curves.equity[0]
    policies = against(setup, played)
    close = pd.DataFrame(world.market.close.astype(np.float64)).ffill().to_numpy()[setup.first :]
    fills = np.sign(policies.traded).any(axis=1)
    assert fills.sum() > 15 and np.unique(curves.exposure[0].round(3)).size > 10
    np.testing.assert_allclose(curves.exposure[0], played.held.sum(axis=2)[:, 0])
    is_whole = np.isfinite(world.market.close[setup.days]).all(axis=0)
    opens = world.env.quotes.open.numpy()[setup.days]
    at = close[:STEPS] if fill == "same_close" else opens[1:]
    for stock in np.flatnonzero(is_whole):
        before, held = (part[:, 0, stock] * equity[:-1] / close[:STEPS, stock] for part in (played.before, played.held))
        np.testing.assert_allclose((held - before) * at[:, stock], policies.traded[:, stock], atol=1e-6 * equity[0])
        np.testing.assert_allclose(before[1:], held[:-1], atol=1e-9 * np.abs(held).max())
    shares = (np.abs(policies.traded).sum(axis=1) / equity[:-1]).sum()  # but for the night before a fill
    assert curves.traded[0] == pytest.approx(shares, rel=0.02)
    rows = policies.positions
    assert sum(one["profit"] - one["costs"] for one in rows) == pytest.approx(equity[-1] - equity[0], abs=1e-6)
    closed = [one for one in rows if one["last_day"] is not None]
    assert len(rows) == curves.positions[0] and len(closed) == curves.wins[0] + curves.losses[0]
    sessions = sum((one["last_day"] or setup.judged.stop) - one["first_day"] + (fill == "next_open") for one in rows)
    assert abs(curves.sessions[0] - sessions) <= len(rows), "a day of a sale counts for some"


def test_active_weights_tell_what_was_earned_beside_the_benchmark() -> None:
    """Without costs the champion less the benchmark is what its active weights earned; permuted ones are other sums."""
    world = quiet_world(cost_bps=0.0, slippage_bps=0.0)
    setup = setup_of(world)
    played, held = account_of_agent(setup, eager_agent(setup)), play_held(setup)[EQUAL]
    active = Baselines(setup, {})._active(played)
    earned = 100 * ((active.before * active.night) + (active.held * active.session)).sum(axis=1)
    np.testing.assert_allclose(earned, played.curves.daily[0] - held.curves.daily[0], atol=1e-9)
    policies = against(setup, played)
    np.testing.assert_array_equal(policies.selection, active.selection)
    assert np.abs(policies.selection - earned).max() < 0.2 < np.abs(policies.selection).max()
    assert policies.curves[RANDOM].equity.shape == (6, STEPS + 1)
    assert len(np.unique(policies.curves[RANDOM].equity[:, -1])) == 6


def test_who_believes_nothing_is_the_benchmark_and_has_no_skill() -> None:
    setup = setup_of(random_world(3, days=60))
    played = account_of_agent(setup, eager_agent(setup, shrink=0.0))
    policies = against(setup, played)
    np.testing.assert_array_equal(played.curves.equity, policies.curves[EQUAL].equity)
    np.testing.assert_allclose(policies.curves[RANDOM].equity, np.repeat(played.curves.equity, 6, axis=0), rtol=1e-12)
    assert not policies.selection.any()


def test_the_benchmark_may_be_a_column_that_nobody_buys() -> None:
    """Equal weight stays beside it; stocks alone are exchanged."""
    world = random_world(7, days=60)
    outside = next(column for column in range(6) if column not in INVESTABLE)
    setup = setup_of(world, weights=f"S{outside}=1")
    held = play_held(setup)
    assert [*held] == [baselines.BENCHMARK, EQUAL, HOLD, EQUAL_RISK]
    assert held[baselines.BENCHMARK].held[5, 0].argmax() == len(INVESTABLE) and setup.columns[-1] == outside
    plain = play_held(setup_of(world))[EQUAL]
    np.testing.assert_allclose(held[EQUAL].curves.equity, plain.curves.equity, rtol=1e-12)
    judged = account_of_agent(setup, eager_agent(setup, shrink=0.0))
    policies = against(setup, judged)
    assert policies.tickers[-1] == f"S{outside}" and policies.benchmark == baselines.BENCHMARK
    assert {policies.tickers[one["stock"]] for one in policies.positions} == {f"S{outside}"}


def test_buy_and_hold_is_never_trimmed_and_equal_risk_holds_more_of_what_moves_less() -> None:
    panel = trending_panel([0.01, 0.0, -0.01], 420, noise=0.02)
    world = world_of(panel)
    setup = setup_of(world, first=80, steps=300)
    held = play_held(setup)
    shares = (held[HOLD].held[:, 0] * held[HOLD].curves.equity[0, :-1, None]) / world.market.close[setup.judged]
    np.testing.assert_allclose(shares[1:], np.repeat(shares[:1], 299, axis=0), rtol=1e-6)
    assert held[EQUAL].curves.traded > held[HOLD].curves.traded and held[EQUAL].curves.positions == 3
    np.testing.assert_array_equal(held[EQUAL].curves.equity[:, :252], held[HOLD].curves.equity[:, :252])
    deviation = np.diff(np.log(world.market.close[20:81].astype(np.float64)), axis=0).std(axis=0, ddof=1)
    np.testing.assert_allclose(held[EQUAL_RISK].held[0, 0], (1 / deviation) / (1 / deviation).sum(), rtol=5e-3)


def test_rules_play_together_as_alone() -> None:
    setup = setup_of(random_world(3, days=60))
    scores = np.random.default_rng(0).standard_normal((2, *setup.market.close.shape))
    rules = {"one": BandRule(scores[0], 0.5, 0.01, 0.5), "two": BandRule(scores[1], 2.0, 0.05, 0.4)}
    for name, played in play_rules(setup, rules).items():
        alone = play_policy(setup, rules[name].policy(setup.tuning.risk))
        np.testing.assert_allclose(played.curves.equity, alone.curves.equity, rtol=1e-12)
        assert played.curves.traded > 0 and played.trades is None


def test_simple_rules_look_back_as_far_as_their_names_say() -> None:
    world = world_of(trending_panel([0.01, -0.01, 0.0], 260, noise=0.0))
    rules = baselines.simple_rules(world.market, setup_of(world).tuning)
    for name, first_day, expected in ((MOMENTUM, 60, 0.6), (REVERSAL, 5, -0.05), (baselines.YEAR_MOMENTUM, 252, 2.31)):
        scores = rules[name].scores
        assert np.isnan(scores[first_day - 1]).all()
        np.testing.assert_allclose(scores[first_day], [expected, -expected, 0.0], atol=1e-4)
    market = quiet_world().market
    deviation = np.diff(np.log(market.close[10:71].astype(np.float64)), axis=0).std(axis=0, ddof=1)
    np.testing.assert_allclose(baselines.inverse_volatility(market.close)[70], 1 / deviation, rtol=1e-6)


def test_a_rule_is_tuned_to_what_its_scores_are_worth() -> None:
    """Of candidates the one that foretells is taken, in full; noise hardly moves the account from its benchmark."""
    world = world_of(trending_panel([0.0] * 20, 150, noise=0.02, seed=3), rules=tiny_rules(trading_days=30))
    tuning, rng = setup_of(world).tuning, np.random.default_rng(0)
    ahead = np.diff(np.log(world.market.close.astype(np.float64)), axis=0, append=np.nan)
    noise = rng.standard_normal(ahead.shape)
    rule = tuning.tuned(noise, ahead + 0.02 * noise)
    assert rule.scores is not noise and float(tuning.fitness([rule])) > 10
    random = tuning.tuned(noise)
    assert random.unit < rule.unit and float(tuning.fitness([random])) < 2
    scales = [tuning.tuned(factor * ahead).unit * factor for factor in (1.0, 1000.0)]
    assert scales[0] == pytest.approx(scales[1])
    early = replace(tuning, starts=tuning.starts[:2])
    untuned = early.tuned(np.where(np.arange(150)[:, None] > early.days.stop, 7 * ahead, np.nan))
    np.testing.assert_allclose(np.nanstd(untuned.scores[-20:-5], axis=1), 1.0)


def test_the_charged_costs_are_among_the_others_and_higher_ones_cost_more() -> None:
    """At the rules' own costs a leg each line is its own curves: the same weights give the same account."""
    setup = setup_of(random_world(3, days=60, rules=tiny_rules(cost_bps=5.0, slippage_bps=5.0)))
    setup = replace(setup, index=np.linspace(100.0, 120.0, STEPS + 1))
    policies = against(setup, account_of_agent(setup, eager_agent(setup)))
    for name, at_cost in policies.at_cost[10.0].items():
        np.testing.assert_allclose(at_cost.equity, policies.curves[name].equity, rtol=1e-9)
    ends = [policies.at_cost[bps][CHAMPION].equity[0, -1] for bps in (0.0, 5.0, 10.0, 25.0, 50.0)]
    assert ends == sorted(ends, reverse=True)
    index = policies.curves[INDEX]
    assert index.equity[0, -1] / index.equity[0, 0] == pytest.approx(1.2) and index.costs == 0
    assert estimates(index, np.zeros(STEPS), 0)["positions"].value is None
    assert set(policies.curves) == {*policies.at_cost[0.0], RANDOM, baselines.NEXT_CLOSE}
    assert [*policies.curves][:2] == [CHAMPION, RANDOM]


def test_a_capped_account_is_replayed_as_it_was() -> None:
    setup = setup_of(random_world(3, days=60, rules=tiny_rules(volume_cap=5.0)))
    played = account_of_agent(setup, eager_agent(setup))
    again = replay(setup.portfolio.under(), setup, played.held)
    np.testing.assert_allclose(again.traded, played.curves.traded, rtol=1e-6)
    np.testing.assert_allclose(again.equity, played.curves.equity, rtol=1e-9)


def test_other_agents_are_no_baselines() -> None:
    drifts = dict.fromkeys((CHAMPION, RANDOM, EQUAL, HOLD), 4e-4) | {baselines.BEST_AGENT: 9e-4}
    best = case(drifts=drifts | {MOMENTUM: 1e-4}).verdict.best_baseline
    assert best is not None and (best.name, best.among) == (MOMENTUM, 1)


def test_parts_joined_are_one_account_after_the_other() -> None:
    world = random_world(3, days=90)
    parts = []
    for first in (FIRST_DAY, FIRST_DAY + STEPS):
        setup = setup_of(world, first)
        rule = BandRule(np.random.default_rng(0).standard_normal(world.market.close.shape), 1.0, 0.01, 0.5)
        parts.append(against(setup, account_of_agent(setup, eager_agent(setup)), **{MOMENTUM: rule, REVERSAL: rule}))
    whole = PlayedPolicies.joined(parts)
    assert whole.days.tolist() == [*range(FIRST_DAY, FIRST_DAY + 2 * STEPS + 1)]
    for name, curves in whole.curves.items():
        daily = [part.curves[name].daily for part in parts]
        np.testing.assert_allclose(curves.daily, np.concatenate(daily, axis=1), atol=1e-9)
        assert curves.equity[0, 0] == parts[0].curves[name].equity[0, 0]
    assert whole.curves[CHAMPION].costs == sum(part.curves[CHAMPION].costs for part in parts)
    assert whole.traded.shape == (2 * STEPS, 4) and whole.selection.shape == (2 * STEPS,)
    assert len(whole.positions) == sum(len(part.positions) for part in parts)

    def without(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in values.items() if name != REVERSAL}

    at_cost = {bps: without(level) for bps, level in parts[0].at_cost.items()}
    fewer = replace(parts[0], curves=without(parts[0].curves), scores=without(parts[0].scores), at_cost=at_cost)
    for short in (PlayedPolicies.joined([parts[1], fewer]), PlayedPolicies.joined([fewer, parts[1]])):
        assert REVERSAL not in {*short.curves, *short.at_cost[5.0], *short.scores}
        assert MOMENTUM in {*short.curves} & {*short.scores} & {*short.at_cost[5.0]}


def test_only_looks_at_the_judged_days_deflate_a_ratio() -> None:
    """Validation days chose nothing; of the holdout's champions the best is expected to show something."""
    one = case(days=2 * SESSIONS, split="validation", trials=1)
    validation, first, fourth = (
        replace(one, split=split, trials=trials).overfitting
        for split, trials in (("validation", 1), ("holdout", 1), ("holdout", 4))
    )
    assert validation.expected_best_ratio == first.expected_best_ratio == 0.0
    # The largest of four standard normal draws is 1.03 in the mean.
    assert fourth.expected_best_ratio == pytest.approx(1.03 * math.sqrt(252 / (2 * SESSIONS - 1)), rel=0.03)
    ends = [one.lines[0].partition("the true ratio is above ")[2] for one in (first, fourth)]
    assert ends == ["zero.", f"{fourth.expected_best_ratio:.2f} a year, which the best of 4 without skill would show."]
    ratios = [one.deflated_information_ratio or 0.0 for one in (validation, first, fourth)]
    assert ratios[0] == ratios[1] > ratios[2] > 0


def test_biases_of_the_data_are_told_with_the_setting_that_mends_them() -> None:
    plain = case(days=3 * SESSIONS)
    data = plain.market.data_array.copy()
    data[-12:, 2] = np.nan
    ends = replace(plain.market, data_array=data)
    careful = replace(plain.config, env=EnvironmentConfig(delisting_loss=30.0, volume_cap=5.0))
    told = replace(plain, market=ends).biases
    assert "--env.delisting-loss" in told["Delisting"] and "--env.volume-cap" in told["Fills"]
    found = replace(plain, market=ends, config=careful).biases
    assert "Delisting" not in found and "--env.volume-cap" not in found["Fills"] and "5%" in found["Fills"]
    whole = replace(plain.market, investable_columns=np.arange(1, 6))
    all_whole = replace(whole, data_array=whole.data_array[:, 1:], investable_columns=np.arange(5))
    are_chosen = [
        "Chosen in hindsight" in replace(plain, market=one).biases for one in (whole, plain.market, all_whole)
    ]
    assert are_chosen == [True, False, False], "a list of whole stocks among others"


def test_all_reasons_are_named_the_small_ones_last() -> None:
    """Three orders without a bar may be all that differs, though they are hardly any turnover."""
    large, small = Lapse("cash", 1183, 0.01), Lapse("no bar at the close", 3, 0.0001)
    assert Asked(3.7, 3.7, 0.0, [large, small]).sentence.endswith(
        "cash (1,183 orders, 0.01 a year); with less turnover no bar at the close (3 orders)."
    )
    assert "Why" not in Asked(3.7, 3.7, 0.0, [small]).sentence


def test_a_day_without_a_bar_changes_no_simple_rule_of_later_days() -> None:
    """Sixty days, or a year, after it as before: there was a price, that of the day before."""
    panel = trending_panel([0.0] * 4, 400, noise=0.02, seed=2)
    rules = {}
    for gap in (False, True):
        bars = panel.copy()
        bars[300, 1] = np.nan if gap else bars[299, 1]
        world = world_of(bars)
        rules[gap] = baselines.simple_rules(world.market, setup_of(world).tuning)
    for name in (baselines.MOMENTUM, baselines.YEAR_MOMENTUM):
        whole, holed = (rules[gap][name].scores for gap in (False, True))
        assert np.isnan(holed[300, 1]) and np.isfinite(holed[301:, 1]).all()
        np.testing.assert_allclose(np.delete(holed, 300, 0), np.delete(whole, 300, 0), atol=1e-6)
