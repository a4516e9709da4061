"""One agent alone: it plays whole episodes as the population does, survives a file, and cannot see ahead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data.market import Market
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment, trade_ledger
from models.ddpg_agent import DDPGAgent
from tests.small_market import TINY_RULES, environment_of, small_market
from tests.tiny import tiny_agent, tiny_rules
from training.rollout import roll_out
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.spaces import MAX_COEFFICIENT

Actions = list[npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(columns=6, investable=[0, 2, 3, 5])


def play(agent: DDPGAgent, env: TradingEnvironment, market: Market, **window: Any) -> tuple[Actions, list[float]]:
    """Actions and the equity at every close of one episode."""
    forecasts = agent.forecasts(market)
    observation, info = env.reset(**window)
    actions, equity, is_done = [], [info["equity"]], False
    while not is_done:
        action = agent.act(observation, forecasts, info["day_index"])
        assert env.action_space.contains(action)
        actions.append(action)
        observation, _, is_done, _, info = env.step(action)
        equity.append(info["equity"])
    return actions, equity


@pytest.mark.parametrize(
    "rules",
    [
        TINY_RULES,
        tiny_rules(max_new_positions_per_day=3, stake_percent=2.5, fill="same_close", trading_days=10),
        tiny_rules(max_new_positions_per_day=9, stake_percent=10.0, cost_bps=60.0, delisting_loss=30.0),
    ],
    ids=["one order", "three orders", "all stocks"],
)
def test_it_plays_as_a_rollout_does(market: Market, rules: EnvironmentConfig) -> None:
    """The same trades on the same windows, decided on observations by stock there and on slots here."""
    env, starts = environment_of(market, rules=rules), [20, 47, 90]
    trades = 0
    for seed in range(3):
        agent = tiny_agent(market, rules=rules, seed=seed, target=12.5)
        portfolio = Portfolio.on(market, rules)
        rollout = roll_out(portfolio, agent.traders, agent.forecasts(market), agent.cash_value, torch.tensor(starts))
        for lane, start in enumerate(starts):
            window = {"start_idx": start, "end_idx": start + rules.episode_steps}
            _, equity = play(agent, env, market, trading_end_idx=start + rules.trading_days, **window)
            assert env.get_trades() == trade_ledger(portfolio, lane)
            assert equity == rollout.equity[:, 0, lane].tolist()
            trades += len(env.get_trades())
    assert trades > 15


def test_what_is_held_is_not_ordered_again(market: Market) -> None:
    """The stock that it would order first, by an observation in which it is held."""
    agent = tiny_agent(market, seed=1, value_weight=0.0)
    forecasts, (observation, info) = agent.forecasts(market), environment_of(market).reset()
    day = info["day_index"]
    action = agent.act(observation, forecasts, day)
    first = int(action[:, 0].argmax())
    assert action[first, 0] == MAX_COEFFICIENT and first == int(forecasts.expected[0, day].argmax())
    observation["portfolio"][first] = [1.0, 0.5, 0.1, 0.8]
    assert agent.act(observation, forecasts, day)[first, 0] == 0
    observation["account"][0] = 0.0
    assert not agent.act(observation, forecasts, day)[:, 0].any()


@pytest.mark.parametrize("day", [40, 99])
def test_what_it_expects_on_a_day_ignores_what_follows(market: Market, day: int) -> None:
    agent = tiny_agent(market)
    changed = market.data_array.copy()
    changed[day + 1 :] *= np.random.default_rng(0).uniform(0.5, 2.0, changed[day + 1 :].shape).astype(np.float32)
    other = Market(**(vars(market) | {"data_array": changed}))
    one, two = agent.forecasts(market), agent.forecasts(other)
    assert torch.equal(one.expected[:, : day + 1], two.expected[:, : day + 1])
    assert torch.equal(one.opportunity[:, : day + 1], two.opportunity[:, : day + 1])
    assert not torch.equal(one.expected, two.expected)


def test_it_expects_nothing_of_a_stock_without_a_bar(market: Market) -> None:
    expected = tiny_agent(market).forecasts(market).expected[0]
    assert torch.equal(expected > -torch.inf, torch.from_numpy(np.isfinite(market.close)))
    assert not np.isfinite(market.close).all()


def test_a_loaded_agent_is_the_saved_one(market: Market, tmp_path: Path) -> None:
    rules = tiny_rules(max_new_positions_per_day=2, trading_days=9)
    agent = tiny_agent(market, rules=rules, seed=4)
    agent.save(tmp_path / "agent.safetensors")
    loaded = DDPGAgent.load(str(tmp_path / "agent.safetensors"))
    assert loaded.rules == rules and loaded.device == agent.device
    for part in ("inputs", "traders", "cash_value"):
        found, expected = (one.state_dict()[part] for one in (loaded, agent))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
    assert torch.equal(loaded.cash_value.by_left, agent.cash_value.by_left)
    env, window = environment_of(market, rules=rules), {"start_idx": 30, "end_idx": 41, "trading_end_idx": 39}
    actions, equity = play(agent, env, market, **window)
    loaded_actions, loaded_equity = play(loaded, env, market, **window)
    assert all(np.array_equal(one, other) for one, other in zip(loaded_actions, actions, strict=True))
    assert loaded_equity == equity and len(set(equity)) > 5


def broken_files(folder: Path, agent: DDPGAgent) -> list[Path]:
    """Files that are no agents: none, a folder, other formats, a cut one, and good tensors with other metadata."""
    good = folder / "good.safetensors"
    agent.save(good)
    with safe_open(good, framework="pt") as file:
        metadata = file.metadata()
    tensors, rules = load_file(good), json.loads(metadata["rules"])
    (folder / "text").write_text("no agent\n" * 20)
    (folder / "empty").touch()
    (folder / "cut").write_bytes(good.read_bytes()[:-100])
    torch.save({"a": torch.zeros(2)}, folder / "torch.pt")
    changed = {
        "no_metadata": None,
        "other_metadata": {"format": "pt"},
        "no_json": {**metadata, "rules": "{"},
        "a_list": {**metadata, "rules": "[1]"},
        "unknown_setting": {**metadata, "rules": json.dumps({**rules, "leverage": 3})},
        "impossible_setting": {**metadata, "rules": json.dumps({**rules, "trading_days": 0})},
        "setting_of_a_wrong_type": {**metadata, "rules": json.dumps({**rules, "trading_days": "many"})},
    }
    for name, other in changed.items():
        save_file(tensors, folder / name, metadata=other)
    names = ["nowhere/agent.safetensors", "text", "empty", "cut", "torch.pt", *changed]
    return [folder, *(folder / name for name in names)]


def assert_no_agent(path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        DDPGAgent.load(path)
    message = str(refused.value)
    assert message.startswith(f"expected an agent saved by DDPGAgent.save, got {path}: ")
    assert "\n" not in message


def test_a_file_that_is_no_agent_is_refused_in_one_line(market: Market, tmp_path: Path) -> None:
    for path in broken_files(tmp_path, tiny_agent(market)):
        assert_no_agent(path)


def with_tensors(market: Market, path: Path, **changes: Any) -> None:
    """Write an agent with other tensors; None leaves one out."""
    tiny_agent(market).save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: value for name, value in (load_file(path) | changes).items() if value is not None}
    save_file(tensors, path, metadata=metadata)


@pytest.mark.parametrize("name", ["inputs/std", "inputs/responses.event", "traders/value_weight", "cash_value/weights"])
def test_a_file_without_one_of_the_tensors_is_refused(market: Market, tmp_path: Path, name: str) -> None:
    with_tensors(market, tmp_path / "agent", **{name: None})
    assert_no_agent(tmp_path / "agent")


@pytest.mark.parametrize("name", ["traders/more", "cash_value/more", "more"])
def test_a_file_with_a_tensor_too_many_is_refused(market: Market, tmp_path: Path, name: str) -> None:
    with_tensors(market, tmp_path / "agent", **{name: torch.zeros(1)})
    assert_no_agent(tmp_path / "agent")


@pytest.mark.parametrize(
    "name", ["traders/weights", "cash_value/weights", "cash_value/opportunity_knots", "inputs/mean"]
)
def test_a_file_with_tensors_of_another_shape_is_refused(market: Market, tmp_path: Path, name: str) -> None:
    with_tensors(market, tmp_path / "agent", **{name: torch.zeros(2, 5)})
    assert_no_agent(tmp_path / "agent")
