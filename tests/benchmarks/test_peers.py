"""Peers: the lanes of Stable-Baselines3 trade as the environment does, budgets hold, and the table adds up."""

import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib", reason="sb3-contrib is not installed: pip install -r requirements-peers.txt")

from benchmarks.peers.deep.agents import Budget, DeepAgent
from benchmarks.peers.deep.lanes import FlatLanes
from benchmarks.peers.deep.views import InputsView, profits, raw_view
from benchmarks.peers.study import markdown, results
from data.market import Market
from environment.trading_env import TradingEnvironment, windows_from
from tests.tiny import learnable_market
from utils.config.trader import Config, EnvironmentConfig, EvaluationConfig

RULES = EnvironmentConfig(trading_days=12, settlement_days=4, max_holding_days=4)


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


def test_flat_lanes_trade_as_the_environment_does(market: Market) -> None:
    """Rewards, the last observation and the profit of each lane are those of an environment of its own."""
    env, rng, seen = TradingEnvironment.on(market, RULES), np.random.default_rng(0), raw_view(market)
    lanes = FlatLanes(env, 2, market.splits.train, seen)
    lanes.reset()
    starts, stocks = lanes.account.day.tolist(), lanes.account.bars.stocks
    actions = rng.uniform(-1, 1, (RULES.episode_steps, 2, 2 * stocks)).astype(np.float32)
    steps = [lanes.step(action) for action in actions]
    for lane, start in enumerate(starts):
        env.reset(**windows_from(start, RULES))
        for action, (_, reward, done, _infos) in zip(actions[:, lane], steps, strict=True):
            pair = np.stack([(action[:stocks] + 1) * 5, 30 + 20 * action[stocks:]], axis=1)
            observed, expected, terminated, _, _ = env.step(pair.astype(np.float32))
            assert reward[lane] == pytest.approx(expected, abs=1e-5) and done[lane] == terminated
        last = steps[-1][3][lane]["terminal_observation"]
        np.testing.assert_array_equal(last[: observed["market"].size], observed["market"].ravel())
        np.testing.assert_allclose(last[-3:], observed["account"], atol=1e-6)
    idle = profits(market, RULES, seen, torch.tensor(starts), lambda observation: -np.ones((2, 2 * stocks)))
    assert idle.tolist() == [0.0, 0.0], "who orders nothing earns nothing"


def test_inputs_of_a_later_day_change_nothing_before_it(market: Market) -> None:
    view = InputsView.fit(market, RULES)
    seen = view(market)
    assert np.isfinite(seen).all() and len(seen) == len(market.dates)
    again = InputsView(view.inputs, learnable_market(1), seen)(market)
    after = market.splits.train.last + 1
    np.testing.assert_allclose(seen[after:], again[after:], atol=1e-4)


@pytest.mark.parametrize("algorithm", ["A2C", "CrossQ"])
def test_a_deep_agent_stops_with_its_budget_and_plays(algorithm: str, market: Market) -> None:
    config = Config(env=RULES, evaluation=EvaluationConfig(validation_windows=2))
    learned = DeepAgent(algorithm, True, {"policy_kwargs": {"net_arch": [8]}})(config, market, Budget(0.3))
    assert 0 < learned.environment_steps < 100_000


def test_the_table_gives_shares_of_the_rule() -> None:
    baselines = {"planted rule": {"profit": 10.0, "cpu_seconds": 0.0}}
    place = {"kind": "ring", "seed": 0}
    records = [
        {**place, "peer": "baselines", "policies": baselines},
        {**place, "peer": "ours", "profit": 9.0, "cpu_seconds": 20.0, "steps": 7, "rise_mb": 90.0},
        {**place, "peer": "PPO", "budget_seconds": 30.0, "profit": 2.5, "cpu_seconds": 31.0, "steps": 5},
    ]
    rows = results([*records, records[0]]).set_index("peer")
    assert rows["of_rule"].to_dict() == pytest.approx({"planted rule": 1.0, "ours": 0.9, "PPO": 0.25})
    table = markdown(rows.reset_index()).splitlines()
    assert table[2:] == [
        "| planted rule | 0 | 1.00 |  |  |",
        "| ours | 20 | 0.90 | 7 | 90 |",
        "| PPO | 31 | 0.25 | 5 |  |",
    ]
