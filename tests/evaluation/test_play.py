"""Accounts over consecutive windows against what was played apart, known answers, and plain-Python arithmetic."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from environment.basket import Basket
from environment.ledger import EXIT_REASONS
from environment.portfolio import Portfolio
from models.ddpg_agent import DDPGAgent
from tests.evaluation.page_case import SESSIONS, case
from tests.tiny import FIRST_DAY, World, random_world, seeded, tiny_agent, tiny_rules, trending_panel, world_of
from training.commands.walk_forward import join
from training.evaluation import baselines
from training.evaluation.baselines import ALL_ORDERS, BASKET, CHAMPION, EQUAL, HOLD, MOMENTUM, RANDOM, REVERSAL
from training.evaluation.measures import EquityCurves, estimates
from training.evaluation.play import (
    EvaluationSetup,
    PlayedPolicies,
    account_of_agent,
    play_all,
    play_held,
    play_random,
    play_shifted,
)
from training.rollout import play_agent_on
from utils.config.trader import EnvironmentConfig, Fill
from utils.metrics import daily_returns

WINDOWS = 4


def eager_agent(setup: EvaluationSetup, seed: int = 0) -> DDPGAgent:
    """An agent whose orders differ from day to day."""
    return tiny_agent(setup.market, rules=setup.env.rules, seed=seed)


def setup_of(world: World, windows: int = WINDOWS, first: int = FIRST_DAY) -> EvaluationSetup:
    starts = first + world.env.rules.episode_steps * torch.arange(windows)
    return EvaluationSetup(world.market, world.env, starts)


def quiet_world(**changes: float) -> World:
    """No gaps, no drift: every order is filled."""
    rules = tiny_rules(trading_days=10, stake_percent=2.0, **changes)
    return world_of(trending_panel([0.0] * 8, 80, noise=0.02, seed=5), rules=rules)


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_an_agents_curves_are_what_it_played(fill: Fill) -> None:
    world = random_world(3, days=60, rules=tiny_rules(fill=fill))
    setup = setup_of(world)
    agent = eager_agent(setup)
    played = account_of_agent(setup, agent)
    curves, trades = played.curves, played.trades
    shares, parts = list[torch.Tensor](), (agent, agent.forecasts(world.market), setup.starts)
    note = lambda: shares.append(1 - world.env.cash / world.env.equity)  # noqa: E731
    episodes = play_agent_on(world.trading, *parts, safe_point=note)
    np.testing.assert_allclose(curves.exposure[0], torch.stack(shares).mean(0).numpy())
    np.testing.assert_array_equal(curves.equity[0], episodes.equity[:, 0].numpy().T)
    assert curves.trades.sum() >= 5
    for window in range(WINDOWS):
        own = [trade for trade in trades if trade["window"] == window]
        closed = [t for t in own if t["exit_day"] is not None]
        change = curves.equity[0, window, -1] - curves.capital
        assert sum(t["profit"] - t["costs"] for t in own) == pytest.approx(change, abs=1e-6)
        assert curves.trades[0, window] == len(closed)
        assert curves.wins[0, window] == sum(t["profit"] > t["costs"] for t in own)
        assert curves.sessions[0, window] == sum(t["exit_day"] - t["entry_day"] + 1 for t in closed)
        assert curves.traded[0, window] == pytest.approx(sum(2 * t["value"] + t["profit"] for t in own))
        assert curves.costs[0, window] == pytest.approx(sum(t["costs"] for t in own))


def test_random_pickers_give_the_champions_orders_for_other_stocks() -> None:
    """As many trades in each window, of the same value on the same days; which stocks is the lot's."""
    world = quiet_world()
    setup = setup_of(world)
    played = account_of_agent(setup, eager_agent(setup))
    curves, plan = played.curves, played.purchases
    selections = play_random(setup, plan, 50, seeded())
    assert selections.equity.shape == (50, WINDOWS, world.env.rules.episode_steps + 1)
    np.testing.assert_array_equal(selections.trades, np.broadcast_to(curves.trades, (50, WINDOWS)))
    book = world.env.ledger()
    values = book.value.view(len(book.value), 50, WINDOWS)
    wanted = plan.coefficient[:, 0] * world.env.rules.initial_capital * world.env.rules.stake_percent / 100
    np.testing.assert_allclose(values, wanted[:, None].expand_as(values), rtol=1e-9)
    stocks = book.stock.view(len(book.value), 50, WINDOWS)[wanted.sum(1) > 0]
    assert all(len(row.unique()) == world.stocks for row in stocks.flatten(1)), "every stock is drawn by someone"
    assert len(np.unique(selections.equity[:, 0, -1])) > 40


def test_random_pickers_never_buy_what_they_hold_or_what_has_no_bar() -> None:
    """In a market with gaps they may find nothing to buy, and then leave the order out."""
    world = random_world(11, days=60, rules=tiny_rules(trading_days=7, max_new_positions_per_day=2))
    setup = setup_of(world)
    plan = account_of_agent(setup, eager_agent(setup)).purchases
    selections = play_random(setup, plan, 30, seeded())
    assert bool((selections.trades <= (plan.coefficient > 0).sum((0, 1)).numpy()[None]).all())
    book = world.env.ledger()
    bars = world.env.bars.tradable
    rows, lanes = (book.value > 0).nonzero(as_tuple=True)
    decided = setup.starts.repeat(30)[lanes] + rows // 2
    assert bool(bars[decided, book.stock[rows, lanes]].all())
    for lane in range(0, 120, 7):
        own = [(int(book.stock[r, lane]), r // 2, int(book.exit_step[r, lane])) for r in range(len(book.value))]
        bought = [trade for trade, value in zip(own, book.value[:, lane].tolist(), strict=True) if value > 0]
        for stock, step, _ in bought:
            assert not [t for t in bought if t[0] == stock and t[1] < step < t[2]], "still held"


def test_shifted_random_pickers_give_the_same_orders_on_other_days() -> None:
    """In each shift: all orders of the plan in their order, moved in a circle over the windows' trading steps."""
    world = quiet_world()
    setup, trading = setup_of(world), world.env.rules.trading_days
    plan = account_of_agent(setup, eager_agent(setup)).purchases
    wanted = plan.coefficient[:trading, 0].T.flatten()
    curves = play_shifted(setup, plan, 20, seeded())
    values = world.env.ledger().value / world.env.rules.stake
    assert not values[trading:].any(), "no order once the trading days are over"
    circles = values[:trading].T.reshape(20, -1)
    shifts = []
    for circle in circles:
        found = [shift for shift in range(len(wanted)) if torch.allclose(circle, wanted.roll(shift))]
        assert len(found) == 1
        shifts += found
    assert len(set(shifts)) > 15 and max(shifts) - min(shifts) > len(wanted) // 2
    assert curves.equity.shape == (20, WINDOWS, world.env.rules.episode_steps + 1)


def test_windows_are_stitched_by_reinvesting() -> None:
    curves = EquityCurves(np.array([[[100.0, 110, 120], [100, 100, 50], [100, 90, 200]]]), *[np.zeros((1, 3))] * 6)
    assert curves.stitched.tolist() == [pytest.approx([100, 110, 120, 120, 60, 54, 120])]
    assert curves.daily_profit.tolist() == [pytest.approx([10, 10, 0, -50, -10, 110])]


def test_buying_and_holding_is_one_purchase_for_all_windows() -> None:
    world = random_world(7, days=60)
    setup, rules = setup_of(world), world.env.rules
    every, steps = Basket.of(world.market, "", 0), rules.episode_steps
    played = play_held(setup)
    held, whole = played[HOLD], every.hold(rules, setup.starts[:1], WINDOWS * steps)
    np.testing.assert_allclose(held.stitched[0], whole.equity[0].numpy(), rtol=1e-12)
    assert held.costs.sum() == pytest.approx(rules.cost_rate * float(whole.traded))
    assert (held.costs.sum() < 0.5 * played[EQUAL].costs.sum()) and 0.8 < float(played[EQUAL].exposure.mean()) < 1
    assert np.isnan(held.trades).all() and estimates(held, daily_returns(held.stitched[0]), 0)["trades"].value is None


@pytest.mark.parametrize("exposure", [1.0, 0.8])
@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_champion_is_two_accounts_added_up(share: float, exposure: float) -> None:
    """Each played with capital of its own by the trading rules: the agents with theirs, the basket with the rest."""
    rules = tiny_rules(exposure=exposure)
    world = random_world(3, days=60, rules=rules)
    setup = replace(setup_of(world), basket=Basket.of(world.market, "S1", 0))
    champion = eager_agent(setup).with_share(share)
    played = play_all(setup, champion, {}, random_pickers=6, generator=seeded())
    capital, parts = rules.initial_capital, np.full(played.curves[CHAMPION].equity.shape, 0.0)
    costs = np.zeros(WINDOWS)
    if share > 0:
        own = replace(rules, initial_capital=capital * exposure * share)
        small = EvaluationSetup(world.market, Portfolio.on(world.market, own), setup.starts)
        account = account_of_agent(small, champion)
        curves, trades = account.curves, account.trades
        parts, costs = parts + curves.equity, costs + curves.costs[0]
        assert len(played.trades) == len(trades) > 3
        for trade, expected in zip(played.trades, trades, strict=True):
            assert trade == {n: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for n, v in expected.items()}
    if share < 1:
        rest = replace(rules, initial_capital=capital * exposure * (1 - share))
        held = Basket.of(world.market, "S1", 0).hold(rest, setup.starts, rules.episode_steps)
        parts, costs = parts + held.equity.numpy(), costs + rules.cost_rate * held.traded.numpy()
    found = played.curves[CHAMPION]
    np.testing.assert_allclose(found.equity, parts + capital * (1 - exposure), rtol=1e-9)
    np.testing.assert_allclose(found.costs[0], costs, rtol=1e-9)
    assert np.isnan(found.trades).all() == (share == 0) == (not played.trades)
    np.testing.assert_array_equal(played.curves[ALL_ORDERS].equity, account_of_agent(setup, champion).curves.equity)
    same_day = played.curves[RANDOM].daily_profit.mean(axis=0)
    if share == 0:  # neither selection nor timing
        np.testing.assert_array_equal(found.equity, played.curves[BASKET].equity * exposure + capital * (1 - exposure))
        np.testing.assert_allclose(same_day, found.daily_profit[0], atol=1e-12)
        np.testing.assert_allclose(played.shifted.daily_profit.mean(axis=0), played.held_profit, atol=1e-12)
    np.testing.assert_allclose(
        played.held_profit, exposure * (1 - share) * played.curves[BASKET].daily_profit[0], atol=1e-12
    )


def test_a_volume_cap_does_not_cut_the_random_pickers_sizes_again() -> None:
    """Nor do stops end their positions."""
    capped = setup_of(random_world(3, days=60, rules=tiny_rules(volume_cap=5.0, stop_percent=5.0)))
    plan = account_of_agent(capped, eager_agent(capped)).purchases
    free = capped.under(volume_cap=0.0, stop_percent=0.0)
    for draw in (play_random, play_shifted):
        np.testing.assert_array_equal(*(draw(setup, plan, 20, seeded()).equity for setup in (capped, free)))


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
@pytest.mark.parametrize("exits", ["daily", "target"])
@pytest.mark.parametrize("stop", [0.0, 4.0])
def test_random_pickers_are_invested_on_the_sessions_of_the_orders(fill: Fill, exits: str, stop: float) -> None:
    """Whatever ended the champion's positions: a target, a stop, a decision; with targets of their own they would be
    invested on other days."""
    rules = tiny_rules(trading_days=10, settlement_days=6, stake_percent=2.0, fill=fill, stop_percent=stop, exits=exits)
    world = world_of(trending_panel([0.05] * 30, 120, noise=0.08, seed=5), rules=rules)
    setup = setup_of(world)
    played = account_of_agent(setup, eager_agent(setup))
    ended = [trade["reason"] for trade in played.trades]
    assert len(ended) > 10 and sum(reason in ("target", "target_open", "stop", "stop_open") for reason in ended) > 3
    pickers = play_random(setup, played.purchases, 60, seeded())
    # A day's decision comes before what happens in the day: at most a session apart.
    assert abs(pickers.sessions.mean() - played.curves.sessions.mean()) <= played.curves.trades.mean()
    if not stop:  # else pickers have an environment of their own
        book = world.env.ledger()
        by_rule = {EXIT_REASONS.index(reason) for reason in ("target", "target_open", "stop", "stop_open")}
        assert not by_rule & {*book.reason[book.value > 0].tolist()}


def test_equal_risk_holds_more_of_what_moves_less() -> None:
    world = world_of(trending_panel([0.01, 0.0, -0.01], 120, noise=0.02))
    setup = setup_of(world, windows=1, first=80)
    weights = baselines.inverse_volatility(world.market.close)[80]
    np.testing.assert_allclose(baselines.equal_risk(world.market.close, 80), np.nan_to_num(weights), rtol=1e-9)
    alone = []
    for stock in range(3):
        one = replace(world.market, investable_columns=np.array([stock]))
        parts = EvaluationSetup(one, Portfolio.on(one, world.env.rules), setup.starts)
        alone.append(play_held(parts)[EQUAL].equity[0, 0])
    expected = np.average(alone, axis=0, weights=weights)
    np.testing.assert_allclose(play_held(setup)[baselines.EQUAL_RISK].equity[0, 0], expected, rtol=1e-12)


def test_simple_rules_look_back_as_far_as_their_names_say() -> None:
    rules = baselines.simple_rules(world_of(trending_panel([0.01, -0.01, 0.0], 260, noise=0.0)).market)
    for name, first_day, expected in ((MOMENTUM, 60, 0.6), (REVERSAL, 5, -0.05), (baselines.YEAR_MOMENTUM, 252, 2.31)):
        scores = rules[name].scores
        assert np.isnan(scores[first_day - 1]).all()
        np.testing.assert_allclose(scores[first_day], [expected, -expected, 0.0], atol=1e-4)
    market = quiet_world().market
    deviation = np.diff(np.log(market.close[10:71].astype(np.float64)), axis=0).std(axis=0, ddof=1)
    low_volatility = baselines.simple_rules(market)[baselines.LOW_VOLATILITY]
    np.testing.assert_allclose(low_volatility.scores[70], 1 / deviation, rtol=1e-6)


def everything(setup: EvaluationSetup) -> PlayedPolicies:
    rules = baselines.simple_rules(setup.market)
    return play_all(setup, eager_agent(setup), rules, random_pickers=6, generator=seeded())


def test_other_agents_are_played_beside_the_champion() -> None:
    """They are no baselines: the verdict does not look for the best one among them."""
    setup = setup_of(random_world(3, days=60))
    champion, others = eager_agent(setup), {baselines.BEST_AGENT: eager_agent(setup, seed=1)}
    played = play_all(setup, champion, {}, random_pickers=6, generator=seeded(), others=others)
    assert [*played.curves][:4] == [CHAMPION, ALL_ORDERS, BASKET, RANDOM]
    beside = account_of_agent(setup, others[baselines.BEST_AGENT]).curves
    np.testing.assert_array_equal(played.curves[baselines.BEST_AGENT].equity, beside.equity)
    assert (played.curves[CHAMPION].equity != beside.equity).any()
    drifts = dict.fromkeys((CHAMPION, RANDOM, EQUAL, HOLD), 4e-4) | {baselines.BEST_AGENT: 9e-4}
    best = case(drifts=drifts | {MOMENTUM: 1e-4}).verdict.best_baseline
    assert best is not None and (best.name, best.among) == (MOMENTUM, 1)


def test_parts_joined_are_the_whole() -> None:
    """Two windows and two more give what four give, but for the draws of the random pickers."""
    world = random_world(3, days=60)
    steps = world.env.rules.episode_steps
    whole = everything(setup_of(world))
    parts = [everything(setup_of(world, 2, FIRST_DAY + first)) for first in (0, 2 * steps)]
    joined = join(parts)
    accounts = [CHAMPION, ALL_ORDERS, BASKET, RANDOM, EQUAL, HOLD, baselines.EQUAL_RISK]
    assert [*joined.curves] == [*whole.curves] == [*accounts, *baselines.simple_rules(world.market)]
    for name in (CHAMPION, EQUAL, MOMENTUM, REVERSAL):
        np.testing.assert_allclose(joined.curves[name].equity, whole.curves[name].equity, rtol=1e-7)
        np.testing.assert_allclose(joined.curves[name].exposure, whole.curves[name].exposure, rtol=1e-6)
    np.testing.assert_allclose(joined.at_cost[25.0][CHAMPION].equity, whole.at_cost[25.0][CHAMPION].equity, rtol=1e-12)
    for name, scores in joined.scores.items():
        np.testing.assert_allclose(scores, whole.scores[name], rtol=1e-5)
    for one, other in ((joined, whole), (joined.shifted, whole.shifted)):
        shapes = {name: np.shape(value) for name, value in vars(other).items()}
        assert {name: np.shape(value) for name, value in vars(one).items()} == shapes
    assert [trade["window"] for trade in joined.trades] == [trade["window"] for trade in whole.trades]
    np.testing.assert_array_equal(joined.days, whole.days)
    for sessions, returns in joined.ahead.items():
        known = np.isfinite(returns)
        np.testing.assert_allclose(returns[known], whole.ahead[sessions][known])
        assert known.sum() < np.isfinite(whole.ahead[sessions]).sum(), "a part does not know what ends after it"
    fewer = replace(parts[0], curves={name: one for name, one in parts[0].curves.items() if name != REVERSAL})
    for short in (join([parts[1], fewer]), join([fewer, parts[1]])):
        assert REVERSAL not in {*short.curves, *short.at_cost[5.0]} and MOMENTUM in {*short.curves} & {*short.scores}


def test_the_charged_costs_are_among_the_others() -> None:
    """At the rules' own costs a leg the champion's line is its own curves: the same orders give the same account."""
    played = everything(setup_of(quiet_world(cost_bps=5.0, slippage_bps=5.0)))
    for name in (CHAMPION, EQUAL, HOLD, MOMENTUM, REVERSAL):
        np.testing.assert_allclose(played.at_cost[10.0][name].equity, played.curves[name].equity, rtol=1e-12)


def test_only_looks_at_the_judged_days_deflate_a_ratio() -> None:
    """Validation days chose nothing; of the holdout's champions the best is expected to show something."""
    one = case(windows=2, split="validation", trials=1)
    validation, first, fourth = (
        replace(one, split=split, trials=trials).overfitting
        for split, trials in (("validation", 1), ("holdout", 1), ("holdout", 4))
    )
    assert validation.expected_best_ratio == first.expected_best_ratio == 0.0
    # The largest of four standard normal draws is 1.03 in the mean.
    assert fourth.expected_best_ratio == pytest.approx(1.03 * math.sqrt(252 / (2 * SESSIONS - 1)), rel=0.03)
    ratios = [one.deflated_information_ratio or 0.0 for one in (validation, first, fourth)]
    assert ratios[0] == ratios[1] > ratios[2] > 0


def test_biases_of_the_data_are_told_with_the_setting_that_mends_them() -> None:
    plain = case(windows=3)
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
