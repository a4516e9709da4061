"""One agent alone: it plays whole episodes, survives a file, and acts as it does inside a population."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data.market import Market, MarketTensors
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from models.population import Population
from tests.small_market import TINY_DATA, TINY_NETWORK, TINY_RULES, environment_of, small_market
from training.rollout import merge_spans, roll_out
from utils.config.trader import LearningConfig, NetworkConfig, Representation
from utils.errors import ConfigError
from utils.spaces import spread_positions

CONTEXT = TINY_DATA.context_window_days
SHARED = dataclasses.replace(TINY_NETWORK, representation="shared")
Actions = list[npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(columns=6, investable=[0, 2, 3, 5])


@pytest.fixture(scope="module")
def tensors(market: Market) -> MarketTensors:
    return MarketTensors.of(market, "cpu")


def decisive(networks: torch.nn.Module) -> None:
    """Spread the actions over their range, so that agents order different stocks and sizes."""
    for name, parameter in networks.named_parameters():
        if name.startswith("actor.out"):
            parameter.data.mul_(20.0)


def agent_of(seed: int = 0, config: NetworkConfig = TINY_NETWORK, context_days: int = CONTEXT) -> DDPGAgent:
    torch.manual_seed(seed)
    agent = DDPGAgent(config, context_days)
    decisive(agent.networks)
    return agent


def play(
    agent: DDPGAgent, env: TradingEnvironment, tensors: MarketTensors, **window: Any
) -> tuple[Actions, list[float]]:
    """Actions and the equity at every close of one episode."""
    observation, info = env.reset(**window)
    actions, equity, is_done = [], [info["equity"]], False
    while not is_done:
        action = agent.act(observation, tensors, info["day_index"])
        assert env.action_space.contains(action)
        actions.append(action)
        observation, _, is_done, _, info = env.step(action)
        equity.append(info["equity"])
    return actions, equity


@pytest.mark.parametrize("config", [TINY_NETWORK, SHARED], ids=["independent", "shared"])
def test_it_plays_a_whole_episode(market: Market, tensors: MarketTensors, config: NetworkConfig) -> None:
    env = environment_of(market)
    actions, equity = play(agent_of(config=config), env, tensors)
    assert len(actions) == TINY_RULES.episode_steps
    assert env.get_episode_summary()["trades"] > 0
    assert len(set(equity)) > 10
    assert not np.array_equal(actions[0], actions[-1])


def test_it_acts_on_the_default_settings() -> None:
    """Default networks on 504 days of context, as in the shortest example that one would write."""
    market = small_market(days=530, columns=2)
    agent = DDPGAgent()
    assert agent.context_days == 504
    env = TradingEnvironment(market.data_array, market.dates, market.stats, 510, 514, 512)
    actions, _ = play(agent, env, MarketTensors.of(market, "cpu"))
    assert len(actions) == 4


def test_the_action_depends_on_account_and_positions(market: Market, tensors: MarketTensors) -> None:
    agent = agent_of()
    observation, info = environment_of(market).reset()
    day = info["day_index"]
    expected = agent.act(observation, tensors, day)
    assert np.array_equal(agent.act(observation, tensors, day), expected)
    row = np.array([1.0, 0.5, 0.1, 0.8], np.float32)
    for name, position, value in (("account", 0, 0.5), ("portfolio", 1, row)):
        other = {key: value.copy() for key, value in observation.items()}
        other[name][position] = value
        changed = (agent.act(other, tensors, day) != expected).any(-1)
        assert changed.all()


def test_the_order_of_the_days_does_not_matter(market: Market, tensors: MarketTensors) -> None:
    """Days are encoded in blocks; where a block begins shows in the last digits at most."""
    agent, fresh = agent_of(), agent_of()
    observation, _ = environment_of(market).reset()
    for day in (CONTEXT - 1, 20, 100, 99, 101, 159, 30, 29, 93, 94, 158):
        fresh.forget_encodings()
        expected = fresh.act(observation, tensors, day)
        np.testing.assert_allclose(agent.act(observation, tensors, day), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("day", [0, CONTEXT - 2, 160, -1])
def test_a_day_without_a_full_context_is_refused(market: Market, tensors: MarketTensors, day: int) -> None:
    observation, _ = environment_of(market).reset()
    with pytest.raises(ValueError, match=r"^expected days within 15\.\.159, .*, got .+$") as refused:
        agent_of().act(observation, tensors, day)
    assert "\n" not in str(refused.value)


def test_another_market_is_encoded_anew(market: Market) -> None:
    agent, observation = agent_of(), environment_of(market).reset()[0]
    other = small_market(seed=9, columns=6, investable=[0, 2, 3, 5])
    expected = agent_of().act(observation, MarketTensors.of(other, "cpu"), 40)
    for _ in range(20):
        agent.act(observation, MarketTensors.of(market, "cpu"), 40)
        np.testing.assert_allclose(agent.act(observation, MarketTensors.of(other, "cpu"), 40), expected, atol=1e-4)


def test_forgetting_makes_room_for_new_weights(market: Market, tensors: MarketTensors) -> None:
    agent, other, observation = agent_of(0), agent_of(1), environment_of(market).reset()[0]
    agent.act(observation, tensors, 40)
    agent.networks.load_state_dict(other.networks.state_dict())
    agent.forget_encodings()
    assert np.array_equal(agent.act(observation, tensors, 40), other.act(observation, tensors, 40))


def test_an_overwritten_agent_acts_by_its_new_networks(market: Market, tensors: MarketTensors) -> None:
    population = population_of(TINY_NETWORK)
    champion, observation = population.agent(0), environment_of(market).reset()[0]
    champion.act(observation, tensors, 40)
    population.copy_agent(2, champion)
    expected = population.agent(2).act(observation, tensors, 40)
    assert np.array_equal(champion.act(observation, tensors, 40), expected)


@pytest.mark.parametrize(
    "config",
    [TINY_NETWORK, SHARED, dataclasses.replace(TINY_NETWORK, critic="plain", twin_critics=False, summary_queries=3)],
    ids=["independent", "shared", "plain"],
)
@pytest.mark.parametrize("context_days", [16, 25])
def test_a_loaded_agent_is_the_saved_one(
    market: Market, tensors: MarketTensors, tmp_path: Path, config: NetworkConfig, context_days: int
) -> None:
    agent = agent_of(3, config, context_days)
    agent.save(tmp_path / "agent.safetensors")
    torch.manual_seed(99)
    loaded = DDPGAgent.load(str(tmp_path / "agent.safetensors"))
    assert (loaded.config, loaded.context_days) == (agent.config, agent.context_days)
    found, expected = loaded.networks.state_dict(), agent.networks.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    env, window = environment_of(market), {"start_idx": 30, "end_idx": 48, "trading_end_idx": 42}
    actions, equity = play(agent, env, tensors, **window)
    loaded_actions, loaded_equity = play(loaded, env, tensors, **window)
    assert all(np.array_equal(one, other) for one, other in zip(loaded_actions, actions, strict=True))
    assert loaded_equity == equity


def test_an_agent_of_any_context_survives_its_file(tmp_path: Path) -> None:
    agent = DDPGAgent(TINY_NETWORK, 257)
    agent.save(tmp_path / "agent.safetensors")
    assert DDPGAgent.load(tmp_path / "agent.safetensors").context_days == agent.context_days


def broken_files(folder: Path) -> list[Path]:
    """Files that are no agents: none, a folder, other formats, a cut one, and good weights with other metadata."""
    good = folder / "good.safetensors"
    agent_of().save(good)
    with safe_open(good, framework="pt") as file:
        metadata = file.metadata()
    weights, network = load_file(good), json.loads(metadata["network"])
    (folder / "text").write_text("no agent\n" * 20)
    (folder / "empty").touch()
    (folder / "cut").write_bytes(good.read_bytes()[:-100])
    torch.save({"a": torch.zeros(2)}, folder / "torch.pt")
    changed = {
        "no_metadata": None,
        "other_metadata": {"format": "pt"},
        "no_json": {**metadata, "network": "{"},
        "a_list": {**metadata, "network": "[1]"},
        "no_days": {**metadata, "context_days": "many"},
        "unknown_setting": {**metadata, "network": json.dumps({**network, "depth": 3})},
        "impossible_setting": {**metadata, "network": json.dumps({**network, "hidden_units": 0})},
        "setting_of_a_wrong_type": {**metadata, "network": json.dumps({**network, "hidden_units": "8"})},
    }
    for name, other in changed.items():
        save_file(weights, folder / name, metadata=other)
    names = ["nowhere/agent.safetensors", "text", "empty", "cut", "torch.pt", *changed]
    return [folder, *(folder / name for name in names)]


def assert_no_agent(path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        DDPGAgent.load(path)
    message = str(refused.value)
    assert message.startswith(f"expected an agent saved by DDPGAgent.save, got {path}: ")
    assert "\n" not in message


def test_a_file_that_is_no_agent_is_refused_in_one_line(tmp_path: Path) -> None:
    for path in broken_files(tmp_path):
        assert_no_agent(path)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_a_file_with_other_tensors_is_refused_in_one_line(tmp_path: Path, change: str) -> None:
    path = tmp_path / "agent.safetensors"
    agent_of().save(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    weights = load_file(path)
    if change == "missing":
        del weights["actor.out.weight"]
    elif change == "unexpected":
        weights["actor.more"] = torch.zeros(1)
    else:
        weights["actor.out.weight"] = torch.zeros(1, 8, 3)
    save_file(weights, path, metadata=metadata)
    assert_no_agent(path)


def population_of(config: NetworkConfig, size: int = 3) -> Population:
    torch.manual_seed(5)
    population = Population(size, config, LearningConfig(), CONTEXT)
    decisive(population.networks)
    return population


def vector_environment(market: Market) -> Portfolio:
    return Portfolio.on(market, TINY_RULES)


@pytest.mark.parametrize("representation", ["independent", "shared"])
def test_alone_and_in_a_population_it_earns_the_same(
    market: Market, tensors: MarketTensors, representation: Representation
) -> None:
    """`act` day by day in the single environment, against all agents on all windows at once."""
    population = population_of(dataclasses.replace(TINY_NETWORK, representation=representation))
    starts = torch.tensor([16, 60, 30, 135])
    rollout = roll_out(vector_environment(market), population.networks, tensors, starts)
    env = environment_of(market)
    for index in range(population.size):
        agent = population.agent(index)
        fitness = []
        for window, start in enumerate(starts.tolist()):
            _, equity = play(
                agent,
                env,
                tensors,
                start_idx=start,
                end_idx=start + TINY_RULES.episode_steps,
                trading_end_idx=start + TINY_RULES.trading_days,
            )
            assert rollout.equity[:, index, window, 0].tolist() == pytest.approx(equity, rel=1e-6)
            fitness.append(env.get_episode_summary()["fitness"])
        assert float(rollout.fitness[index]) == pytest.approx(np.mean(fitness), rel=1e-6, abs=1e-4)
    assert len(set(rollout.fitness.tolist())) == population.size


def test_alone_and_in_a_population_it_sees_the_same(market: Market, tensors: MarketTensors) -> None:
    """Positions by slot in the vector environment, by stock in an observation: one action for every stock."""
    agent, env, lanes = agent_of(), environment_of(market), vector_environment(market)
    observation, info = env.reset()
    lanes.reset(torch.tensor([env.start_idx]))
    stocks, held = len(market.investable_columns), 0.0
    for _ in range(TINY_RULES.episode_steps):
        slots, account = lanes.positions(), lanes.account()
        encoding = agent.encode(tensors, info["day_index"], info["day_index"])
        positions = spread_positions(slots.stock, slots.features, stocks)
        expected = agent.networks.actor(encoding.stocks, encoding.summary, positions[None], account[None])
        action = agent.act(observation, tensors, info["day_index"])
        np.testing.assert_allclose(action, expected[0, 0], rtol=0, atol=1e-4)
        held += observation["portfolio"][:, 0].sum()
        lanes.step(torch.from_numpy(action)[None])
        observation, _, _, _, info = env.step(action)
    assert held > 10


def test_windows_are_covered_by_passes_that_do_not_overlap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        starts, days = rng.integers(0, 600, rng.integers(1, 8)).tolist(), int(rng.integers(1, 400))
        spans = merge_spans(starts, days)
        covered = [day for first, last in spans for day in range(first, last + 1)]
        assert covered == sorted({day for start in starts for day in range(start, start + days)})
        assert max(last - first for first, last in spans) < 160
