"""The Gymnasium environment: its interface, its windows, and what it shows, by the twin."""

import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from data.features.nine import NUM_FEATURES, observed_features
from data.market import Market
from environment.account import Account
from environment.benchmark import benchmark_weights
from environment.trading_env import STOCK_FEATURES, TradingEnvironment, windows_from
from tests.environment.account_twin import Twin
from tests.market_cases import random_panel, random_targets, random_volume
from tests.small_market import TINY_RULES, environment_of, market_of, small_market
from tests.tiny import FIRST_DAY, tiny_rules, world_of
from utils.arrays import Float64Array
from utils.config.trader import EnvironmentConfig


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market()


@pytest.fixture(scope="module")
def narrow() -> Market:
    """Six columns of which three may be bought."""
    return small_market(seed=1, columns=6, investable=[1, 4, 5])


def test_passes_the_gymnasium_checker(narrow: Market) -> None:
    check_env(environment_of(narrow))


class Shown:
    """What is to be observed of an episode, by the twin's account up to each close."""

    def __init__(self, twin: Twin, start: int, targets: Float64Array, trading: int) -> None:
        self.twin, self.start, self.targets, self.trading = twin, start, targets, trading
        self.shares, self.basis = np.zeros((2, targets.shape[1]))

    def at(self, step: int) -> tuple[Float64Array, Float64Array, Float64Array]:
        """Weights, unrealised returns, and the (3, n) last price, age and sessions without a bar; steps in turn."""
        twin, is_last = dataclasses.replace(self.twin, results=[]), step == len(self.targets)
        self.curve = twin.play(self.start, self.targets[:step], self.trading, is_flat_at_end=is_last)
        self.cash, self.results = twin.cash, twin.results
        shares, last, age, missing = (
            np.array([getattr(one, name) for one in twin.positions]) for name in ("shares", "last", "age", "missing")
        )
        at_open = self.twin.rules.fill == "next_open"
        price = self.twin.open[self.start + step] if at_open else self.twin.close[self.start + step - 1]
        is_larger = shares > self.shares
        kept = self.basis * shares / np.where(self.shares == 0, 1.0, self.shares)
        self.basis = np.where(is_larger, self.basis + (shares - self.shares) * np.nan_to_num(price), kept)
        self.shares, worth = shares, shares * np.nan_to_num(last)
        gain = np.where(shares > 0, worth / np.where(self.basis > 0, self.basis, 1.0) - 1, 0.0)
        return worth / self.curve[-1], gain, np.stack((last, age, missing))


@settings(max_examples=40)
@given(
    st.integers(0, 10**6),
    st.integers(1, 25),
    st.fixed_dictionaries(
        {
            "fill": st.sampled_from(["next_open", "same_close"]),
            "cost_bps": st.sampled_from([0.0, 80.0]),
            "volume_cap": st.sampled_from([0.0, 10.0]),
            "drawdown_lock": st.sampled_from([0.0, 4.0]),
            "delisting_loss": st.sampled_from([0.0, 30.0]),
            "max_days_without_bar": st.integers(1, 4),
        }
    ),
)
def test_observations_rewards_and_totals_agree_with_the_twin(seed: int, steps: int, changes: dict[str, Any]) -> None:
    rng, start = np.random.default_rng(seed), int(seed % 5)
    trading, columns = int(rng.integers(1, steps + 1)), np.array([0, 2, 3, 4])
    rules = EnvironmentConfig(trading_days=trading, settlement_days=steps - trading, **changes)
    data = random_panel(rng, FIRST_DAY + steps + 2, 5, missing=float(rng.choice([0.0, 0.2])))
    volume = random_volume(rng, data, 1e6) if rules.volume_cap else None
    env = world_of(data, columns.tolist(), rules, volume).trading
    actions = random_targets(rng, steps, 4)
    targets = actions.astype(np.float64)
    targets /= np.maximum(1.0, np.nansum(targets, axis=1, keepdims=True))
    traded = None if volume is None else np.where(volume >= 0, volume, np.nan)[:, columns].astype(np.float64)
    bars = (data[:, columns, place].astype(np.float64) for place in (0, 3))
    shown = Shown(Twin(*bars, rules, traded), start, targets, trading)
    benchmark = Account(env.portfolio.quotes, rules)
    benchmark.reset(torch.tensor([start]), steps=steps, trading_steps=trading, is_flat_at_end=True)
    observation, info = env.reset(start_idx=start, end_idx=start + steps, trading_end_idx=start + trading)
    for step in range(steps + 1):
        weights, gains, (_, age, missing) = shown.at(step)
        equity, day = shown.curve[-1], start + step
        assert info["day_index"] == env.current_idx == day and info["can_buy"] == (step < trading)
        assert info["has_bar"].tolist() == np.isfinite(data[day, columns, 3]).tolist()
        assert info["equity"] == pytest.approx(equity, rel=1e-9) and info["cash"] == pytest.approx(shown.cash, abs=1e-3)
        assert env.observation_space.contains(observation) and set(map(type, env.open_positions)) <= {str}
        wanted = benchmark_weights(benchmark, env.portfolio.parts)
        held = [one[0].numpy() for one in (benchmark.weights, wanted)]
        patience = np.minimum(missing / rules.max_days_without_bar, 1)
        expected = np.stack((weights, *held, gains, age / steps, patience), axis=1)
        np.testing.assert_allclose(observation["portfolio"], expected, rtol=1e-4, atol=2e-6)
        peak = np.maximum.accumulate(shown.curve)
        fallen = 100 * (1 - np.array(shown.curve) / peak)
        used = 0.0
        if rules.drawdown_lock:
            used = 1.0 if fallen.max() >= rules.drawdown_lock else fallen[-1] / rules.drawdown_lock
        account = (shown.cash / equity, 1 - shown.cash / equity, used, max(0, trading - step) / trading)
        np.testing.assert_allclose(observation["account"], account, rtol=1e-4, atol=1e-5)
        held_now = {f"S{columns[stock]}": weights[stock] for stock in np.flatnonzero(weights)}
        assert {name: one["weight"] for name, one in env.open_positions.items()} == pytest.approx(held_now)
        if step < steps:
            observation, reward, terminated, truncated, info = env.step(actions[step])
            benchmark.step(wanted)
            assert terminated == (step == steps - 1) and not truncated
    assert sum(env.episode_rewards) == pytest.approx(100 * (equity / rules.initial_capital - 1), abs=1e-7)
    trades = env.get_trades()
    assert len(env.episode_actions) == steps and env.open_positions == {} and reward == env.episode_rewards[-1]
    assert sorted(one["profit"] - one["costs"] for one in trades) == pytest.approx(sorted(shown.results), abs=1e-3)
    totals = env.get_episode_summary()
    assert totals["trades"] == totals["positions_opened"] == len(trades) == totals["wins"] + totals["losses"]
    assert {type(value) for value in (totals["trades"], env.num_trades, env.days_with_positions)} == {int}
    assert totals["costs"] == pytest.approx(sum(one["costs"] for one in trades))
    assert totals["final_equity"] == pytest.approx(equity) == pytest.approx(rules.initial_capital + sum(shown.results))
    ahead = 100 * (equity - float(benchmark.equity)) / rules.initial_capital
    assert totals["excess_percent"] == pytest.approx(ahead, abs=1e-6)
    with pytest.raises(RuntimeError, match="get_episode_summary has cleared the trades"):
        env.get_trades()
    assert env.get_episode_summary() == totals and not env.episode_rewards and not env.episode_actions


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
        for action in random_targets(rng, length, 5):
            np.testing.assert_equal(observation, fresh_observation)
            for value in (*observation.values(), info["has_bar"]):
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


@pytest.mark.parametrize("action", [np.zeros(4), np.zeros((2, 5)), np.float32(1), np.full(5, np.inf)], ids=str)
def test_a_bad_action_is_refused_and_changes_nothing(market: Market, action: Any) -> None:
    env, good = environment_of(market), np.full(5, 0.1, np.float32)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(good)
    env.reset()
    assert env.get_trades() == []
    env.step(good)
    before = env.get_trades()
    with pytest.raises(ValueError, match=r"^expected weights of shape \(5,\), none infinite, got .+$"):
        env.step(action)
    assert env.get_trades() == before != [] and len(env.episode_actions) == 1
    for _ in range(TINY_RULES.episode_steps - 1):
        env.step(good)
    with pytest.raises(RuntimeError, match="reset"):
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
    rules = tiny_rules(initial_capital=2.0**20, cost_bps=0.0, slippage_bps=0.0)
    rng = np.random.default_rng(4)
    panel = random_panel(rng, 160, 3)
    panel[:28] = 64.0
    env = TradingEnvironment.on(market_of(panel, rules=rules), rules)
    actions = random_targets(rng, 20, 3)
    actions[:6] = 0.0
    actions[5, 0] = 0.5
    busy = actions.copy()
    busy[0, 1], busy[2, 2] = 0.25, 0.5
    played = []
    for chosen in (busy, actions):
        env.reset(start_idx=20, end_idx=40, trading_end_idx=35)
        played.append([env.step(action)[:2] for action in chosen])
    assert played[0][2][0]["portfolio"][2, 0] == 0.5, "the histories differ"
    for (found, reward), (expected, other) in zip(*(one[5:] for one in played), strict=True):
        np.testing.assert_equal(found, expected)
        assert reward == other
    assert found["portfolio"].shape == (3, STOCK_FEATURES)


def of_lane(value: Any, lane: int) -> Any:
    """What a reply of several lanes says of one."""
    if isinstance(value, dict):
        return {name: of_lane(one, lane) for name, one in value.items()}
    return value[lane] if isinstance(value, np.ndarray) else value


@settings(max_examples=4)
@given(seed=st.integers(0, 2**32))
def test_lanes_are_bit_for_bit_what_each_window_is_alone(narrow: Market, seed: int) -> None:
    rng, lanes = np.random.default_rng(seed), 3
    starts = rng.integers(16, 120 - TINY_RULES.episode_steps, lanes)
    actions = random_targets(rng, TINY_RULES.episode_steps * lanes, 3).reshape(-1, lanes, 3)
    env, alone = environment_of(narrow), environment_of(narrow)
    together = [env.reset(**windows_from(starts, TINY_RULES)), *map(env.step, actions)]
    assert together[-1][2].all()
    for lane, start in enumerate(starts.tolist()):
        replies = [alone.reset(**windows_from(start, TINY_RULES)), *map(alone.step, actions[:, lane])]
        for reply, expected in zip(together, replies, strict=True):
            np.testing.assert_equal(tuple(of_lane(part, lane) for part in reply), expected)
