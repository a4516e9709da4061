"""The Gymnasium environment, alone and as a vector: its interface, its windows, and what it shows, by the oracle."""

import dataclasses
import math
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from data.features.nine import NUM_FEATURES, observed_features
from data.market import Market
from data.splits import Span
from environment.trading_env import Observation, TradingEnvironment, windows_from
from environment.vector_env import VectorTradingEnvironment
from tests.environment.oracle import Bars, Result, Trade, last_close
from tests.market_cases import MarketCase, market_cases, random_orders, random_panel, to_bars
from tests.small_market import TINY_RULES, environment_of, loader_of, market_of, random_action, small_market
from utils.arrays import Float32Array
from utils.config.trader import DataConfig, EnvironmentConfig


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market()


@pytest.fixture(scope="module")
def narrow() -> Market:
    """Six columns of which three may be bought."""
    return small_market(seed=1, columns=6, investable=[1, 4, 5])


def environment_of_case(case: MarketCase) -> TradingEnvironment:
    has_bar = np.isfinite(case.data).all(axis=2)
    assume(has_bar.any())
    if case.volume is not None:
        assume((np.isfinite(case.volume) & (case.volume >= 0) & has_bar).any())
    loader = loader_of(case.data, config=DataConfig(), volume=case.volume)
    market, window = (loader.data_array, loader.dates), (case.start, case.end, case.trading_end)
    stats = loader.compute_normalization_stats(0)
    return TradingEnvironment(*market, stats, *window, rules=case.rules, volume=loader.volume)


def test_passes_the_gymnasium_checker(narrow: Market) -> None:
    check_env(environment_of(narrow))


def held_rows(case: MarketCase, bars: Bars, trades: list[Trade], day: int) -> tuple[Float32Array, Float32Array]:
    """`portfolio` and `exits` at the close of `day`, from the oracle's trades."""
    rules, stocks = case.rules, case.data.shape[1]
    portfolio, exits = np.zeros((stocks, 4), np.float32), np.zeros((stocks, 2), np.float32)
    for trade in trades:
        if trade.order_day < day < trade.settled_day:
            price = last_close(bars, trade.stock, day)
            missing = next(k for k in range(day + 1) if bars[day - k][trade.stock] is not None)
            size = trade.value / (rules.initial_capital * rules.stake_percent / 100)
            held = (day - trade.entry_day + 1) / rules.longest_holding
            portfolio[trade.stock] = 1, held, price / trade.entry_price - 1, size / 10
            exits[trade.stock] = trade.targets[day] / price - 1, missing / rules.max_days_without_bar
    return portfolio, exits


def assert_observed(
    env: TradingEnvironment, observation: Observation, info: dict[str, Any], case: MarketCase, expected: Result
) -> None:
    """Everything that one observation shows, against the oracle."""
    rules, step = case.rules, info["day_index"] - case.start
    bars = to_bars(case.data)
    assert env.observation_space.contains(observation)
    assert all(value.dtype == np.float32 for value in observation.values())
    portfolio, exits = held_rows(case, bars, expected.trades, info["day_index"])
    np.testing.assert_allclose(observation["portfolio"], portfolio, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(observation["exits"], exits, rtol=1e-5, atol=1e-6)
    is_held = portfolio[:, 0] == 1
    assert env.current_idx == info["day_index"]
    assert sorted(position["stock"] for position in env.open_positions) == np.flatnonzero(is_held).tolist()
    has_bar = [bar is not None for bar in bars[info["day_index"]]]
    cash, exposure, left, *used = observation["account"].tolist()
    past = expected.equity[: step + 1]
    fallen = [100 * (1 - now / max(past[: day + 1])) for day, now in enumerate(past)]
    if rules.drawdown_lock > 0:
        share = 1.0 if max(fallen) >= rules.drawdown_lock else fallen[-1] / rules.drawdown_lock
        assert used == [pytest.approx(share, rel=1e-5, abs=1e-5)]
    is_locked = bool(used) and used[0] == 1.0
    np.testing.assert_array_equal(info["candidates"], has_bar & ~is_held & (not is_locked))
    assert cash == pytest.approx(expected.cash[step] / rules.initial_capital, rel=1e-6, abs=1e-6)
    assert cash + exposure == pytest.approx(expected.equity[step] / rules.initial_capital, rel=1e-6, abs=1e-6)
    trading_left = (case.trading_end - info["day_index"]) / (case.trading_end - case.start)
    assert left == pytest.approx(trading_left) if trading_left > 0 else left <= 0
    assert info["can_order"] == (trading_left > 0)
    # Where a delisting takes everything, nothing is left but rounding.
    assert info["equity"] == pytest.approx(expected.equity[step], rel=1e-9, abs=1e-12 * rules.initial_capital)


@settings(max_examples=40, deadline=None)
@given(market_cases(max_steps=40))
def test_observations_rewards_and_totals_agree_with_the_oracle(case: MarketCase) -> None:
    env, expected, rewards = environment_of_case(case), case.expected, []
    assert_observed(env, *env.reset(), case, expected)
    for action in case.orders:
        observation, reward, terminated, truncated, info = env.step(action)
        assert terminated == (info["day_index"] == case.end) and not truncated
        assert_observed(env, observation, info, case, expected)
        rewards.append(reward)
    assert rewards == pytest.approx(expected.rewards, rel=1e-9, abs=1e-7)
    assert [trade["exit_day"] for trade in env.get_trades()] == [trade.exit_day for trade in expected.trades]
    assert env.episode_rewards == rewards and len(env.episode_actions) == len(rewards) and env.open_positions == []
    totals = env.get_episode_summary()
    assert_totals(totals, expected, case.rules)
    with pytest.raises(RuntimeError, match="get_episode_summary has cleared the trades"):
        env.get_trades()
    assert env.get_episode_summary() == totals and not env.episode_rewards and not env.episode_actions


def assert_totals(totals: dict[str, float], expected: Result, rules: EnvironmentConfig) -> None:
    trades, final, zero_trades = len(expected.trades), expected.equity[-1], rules.zero_trades_penalty
    penalties = expected.inaction_penalties + expected.loss_penalties + (0.0 if expected.trades else zero_trades)
    assert totals == {
        "trades": trades,
        "wins": expected.wins,
        "losses": expected.losses,
        "win_rate": expected.wins / trades if trades else 0.0,
        "positions_opened": trades,
        "days_with_positions": expected.days_with_positions,
        "days_without_positions": expected.days_without_positions,
        "penalties": pytest.approx(penalties, rel=1e-6, abs=1e-7),
        "costs": pytest.approx(expected.total_costs, rel=1e-9, abs=1e-9 * rules.initial_capital),
        "final_equity": pytest.approx(final, rel=1e-9, abs=1e-12 * rules.initial_capital),
        "fitness": pytest.approx(expected.fitness, rel=1e-9, abs=1e-7),
        "profit_percent": pytest.approx(100 * (final / rules.initial_capital - 1), rel=1e-9, abs=1e-7),
    }


def test_one_object_serves_ten_windows(market: Market) -> None:
    """Also where an account was locked on one of them, and whatever is written into an observation."""
    rules, rng = dataclasses.replace(TINY_RULES, drawdown_lock=1.0), np.random.default_rng(5)
    env, locked = environment_of(market, rules=rules), 0
    inputs = observed_features(market.data_array, market.stats, market.input_clip)
    for start in rng.integers(16, 120, 10).tolist():
        length = int(rng.integers(2, 30))
        window = {"start_idx": np.int32(start), "end_idx": start + length, "trading_end_idx": start + length // 2}
        fresh = environment_of(market, rules=rules)
        (observation, info), (fresh_observation, fresh_info) = env.reset(**window), fresh.reset(options=window)
        np.testing.assert_array_equal(observation["market"], inputs[start, :, :NUM_FEATURES])
        np.testing.assert_equal(info, fresh_info)
        for action in random_orders(rng, length, 5):
            np.testing.assert_equal(observation, fresh_observation)
            for value in (*observation.values(), info["candidates"]):
                value[...] = 1
            observation, reward, *_, info = env.step(action)
            fresh_observation, fresh_reward, *_ = fresh.step(action)
            assert reward == fresh_reward
        locked += int(env.account.is_locked)
    assert 0 < locked < 10
    _, info = env.reset(seed=3)
    assert (info["day_index"], env.end_idx) == (start, start + length), "the window stays"


@pytest.mark.parametrize(
    "window",
    [
        *({"start_idx": start} for start in (-1, 45, 40.5, np.zeros(0, np.int64))),
        *({"end_idx": end} for end in (44, 160, "50")),
        {"trading_end_idx": 51},
        {"start_idx": np.array([40, 41]), "end_idx": np.array([50, 50])},
    ],
    ids=str,
)
def test_a_bad_window_is_refused_and_the_old_one_kept(market: Market, window: dict[str, Any]) -> None:
    env = environment_of(market)
    env.reset(start_idx=40, end_idx=50, trading_end_idx=45)
    with pytest.raises(ValueError, match=r"^expected .*start_idx.*, got .+$"):
        env.reset(**window)
    assert env.reset()[1]["day_index"] == 40 and (env.end_idx, env.trading_end_idx) == (50, 45)


@pytest.mark.parametrize("action", [np.zeros(10), np.zeros((2, 5)), np.float32(1), np.full((5, 2), math.nan)], ids=str)
def test_a_bad_action_is_refused_and_changes_nothing(market: Market, action: Any) -> None:
    env, good = environment_of(market), np.full((5, 2), 10.0, np.float32)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(good)
    env.reset()
    env.step(good)
    before = env.get_trades()
    with pytest.raises(ValueError, match=r"^expected a finite action of shape \(5, 2\), got .+$"):
        env.step(action)
    assert env.get_trades() == before
    for _ in range(TINY_RULES.episode_steps - 1):
        env.step(good)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(good)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data_array": np.zeros((160, 5, 4), np.float32)}, "data_array (days, columns, 9) and one date a day"),
        ({"dates": np.zeros(159, "datetime64[D]")}, "data_array (days, columns, 9) and one date a day"),
        *(({"investable_columns": columns}, "investable_columns") for columns in ([0, 5], [-1], [0, 0], [])),
    ],
)
def test_what_is_no_market_is_refused(market: Market, changes: dict[str, Any], expected: str) -> None:
    window = {"start_idx": 20, "end_idx": 30, "trading_end_idx": 25, "normalization_stats": market.stats}
    parts = {"data_array": market.data_array, "dates": market.dates, **window}
    with pytest.raises(ValueError, match=f"^expected .*{re.escape(expected)}.*, got .+$"):
        TradingEnvironment(**parts | changes)


def test_histories_that_lead_to_one_observation_have_one_future() -> None:
    """While prices stand still, one account trades without gain or cost and another does nothing; then both buy."""
    days, free = {"trading_days": 15, "settlement_days": 5, "max_holding_days": 4}, {"cost_bps": 0, "slippage_bps": 0}
    rules = EnvironmentConfig(exits="target", initial_capital=2.0**20, stake_percent=3.125, **days, **free)
    rng = np.random.default_rng(4)
    panel = random_panel(rng, 160, 3)
    panel[:28] = 64.0
    env = TradingEnvironment.on(market_of(panel, rules=rules), rules)
    actions = np.stack([random_action(rng, 3) for _ in range(20)])
    actions[:6, :, 0] = 0.0
    played = []
    for bought in ({0: 1, 2: 2, 5: 0}, {5: 0}):
        chosen = actions.copy()
        for step, stock in bought.items():
            chosen[step, stock, 0] = 5.0
        env.reset(start_idx=20, end_idx=40, trading_end_idx=35)
        played.append([env.step(action)[:2] for action in chosen])
    busy, idle = played
    assert busy[2][0]["portfolio"][1:, 0].all(), "the histories differ"
    for (found, reward), (expected, other) in zip(busy[5:], idle[5:], strict=True):
        np.testing.assert_equal(found, expected)
        assert reward == other


STEPS, LANES = TINY_RULES.episode_steps, 3
DAYS = Span(16, 120)


def on_given_windows(market: Market, starts: list[int]) -> TradingEnvironment:
    """A single environment that is reset to one window after the other."""
    env, left = environment_of(market), iter(starts)
    reset = env.reset
    env.reset = lambda **_: reset(options=windows_from(next(left), TINY_RULES))  # type: ignore[method-assign]
    return env


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_it_equals_a_vector_of_single_environments_bit_for_bit(narrow: Market, seed: int) -> None:
    actions = random_orders(np.random.default_rng(seed), LANES * (2 * STEPS + 4), 3).reshape(-1, LANES, 3, 2)
    env = environment_of(narrow, 40)
    vector = VectorTradingEnvironment(env, LANES, DAYS)
    found = [vector.reset(seed=seed), *(vector.step(action) for action in actions)]
    starts = np.array([reply[-1]["day_index"] for reply in found[::STEPS]]).T
    assert len(np.unique(starts)) > 1 and starts.min() >= DAYS.first and starts.max() <= DAYS.last - STEPS
    lanes = [partial(on_given_windows, narrow, own) for own in starts.tolist()]
    single = SyncVectorEnv(lanes, autoreset_mode=AutoresetMode.SAME_STEP)
    for name in ("observation_space", "action_space", "single_observation_space", "single_action_space", "num_envs"):
        assert getattr(vector, name) == getattr(single, name)
    assert vector.metadata == single.metadata
    played = [single.reset(), *(single.step(action) for action in actions)]
    for reply, expected in zip(found, played, strict=True):
        for *_, info in (reply, expected):
            info["final_obs"] = list(info.get("final_obs", ()))  # of dictionaries, which NumPy does not compare
        np.testing.assert_equal(reply, expected)
        assert vector.observation_space.contains(reply[0])
    assert vector.reset(seed=seed)[1]["day_index"].tolist() == starts[:, 0].tolist()
    assert env.account.lanes == 1 and env.step(np.zeros((3, 2)))[-1]["day_index"] == 41


def test_every_possible_window_is_drawn_and_no_other(narrow: Market) -> None:
    vector = VectorTradingEnvironment(environment_of(narrow), 200, Span(20, 20 + STEPS + 3))
    assert set(vector.reset(seed=0)[1]["day_index"].tolist()) == {20, 21, 22, 23}
    with pytest.raises(ValueError, match=rf"^expected days for an episode of {STEPS} steps, got 16\.\.{15 + STEPS}$"):
        VectorTradingEnvironment(environment_of(narrow), 2, Span(16, 15 + STEPS))
