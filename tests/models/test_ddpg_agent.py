"""One agent alone: it plays whole episodes as the population does, survives a file, and cannot see ahead."""

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
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from tests.small_market import environment_of, small_market
from tests.tiny import acted, random_batch, tiny_agent, tiny_rules
from utils.errors import ConfigError

Actions = list[npt.NDArray[np.float32]]


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(columns=6, investable=[0, 2, 3, 5])


def play(agent: DDPGAgent, env: TradingEnvironment, market: Market, **window: Any) -> tuple[Actions, list[float]]:
    actions, _, infos = zip(*acted(agent, env, market, **window), strict=True)
    assert all(env.action_space.contains(action) for action in actions[1:])
    return list(actions[1:]), [info["equity"] for info in infos]


def test_it_thinks_of_stocks_as_in_plain_numbers(market: Market) -> None:
    agent, has_bar = tiny_agent(market, members=2), np.isfinite(market.close)
    found, x = agent.forecasts(market).score[0], torch.from_numpy(agent.inputs.of(market))
    seen = agent.inputs.for_networks(x).flatten(0, 1)
    expected = agent.networks.target.outputs(seen.expand(2, -1, -1))[1].detach().mean((0, 1)).view(found.shape)
    np.testing.assert_allclose(found.numpy()[has_bar], expected.numpy()[has_bar], rtol=1e-3, atol=1e-3)
    assert bool((found.isfinite() == torch.from_numpy(has_bar)).all())


def test_what_moves_a_forecast_is_what_its_networks_see(market: Market) -> None:
    """Of two inputs that are seen only these move it; without both, it is that of a stock of which nothing is known."""
    agent, day = tiny_agent(market, members=2), 60
    named, mask = agent.inputs.named_places(), agent.networks.input_mask
    mask.fill_(False)
    mask[:, named["volatility"] + named["gap"]] = True
    agent.networks.mask()
    score = agent.forecasts(market, days=slice(day, day + 1)).score[0, day]
    stocks = score.isfinite().nonzero()[:, 0].tolist()
    found = agent.contributions(market, [(day, int(market.investable_columns[stock])) for stock in stocks])
    unknown = float(agent.mean_scores(torch.zeros(1, len(mask[0])))[0])
    for stock, moved in zip(stocks, found, strict=True):
        assert {name for name, percent in moved.items() if abs(percent) > 1e-6} <= {"volatility", "gap"}
        assert [abs(percent) for percent in moved.values()] == sorted(map(abs, moved.values()), reverse=True)
        x = agent.inputs.for_networks(torch.from_numpy(agent.inputs.of(market, slice(day, day + 1)))[0, [stock]])
        x[:, named["gap"]] = 0.0
        assert moved["gap"] == pytest.approx(float(score[stock] - agent.mean_scores(x)[0]), abs=1e-4)
        x[:, named["volatility"]] = 0.0
        assert float(agent.mean_scores(x)[0]) == pytest.approx(unknown, abs=1e-5)
    assert len({round(moved["gap"], 6) for moved in found}) > 1


def test_a_loaded_agent_is_the_saved_one(market: Market, tmp_path: Path) -> None:
    rules = tiny_rules(max_new_positions_per_day=2, trading_days=9)
    agent = tiny_agent(market, rules=rules, seed=5, members=2)
    agent.save(tmp_path / "agent.safetensors")
    loaded = DDPGAgent.load(str(tmp_path / "agent.safetensors"))
    assert loaded.rules == rules and loaded.device == agent.device and loaded.evidence == agent.evidence
    for part in ("inputs", "members", "networks"):
        found, expected = (one.state_dict()[part] for one in (loaded, agent))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
    env, window = environment_of(market, rules=rules), {"start_idx": 30, "end_idx": 41, "trading_end_idx": 39}
    actions, equity = play(agent, env, market, **window)
    loaded_actions, loaded_equity = play(loaded, env, market, **window)
    assert all(np.array_equal(one, other) for one, other in zip(loaded_actions, actions, strict=True))
    assert loaded_equity == equity and len(set(equity)) > 5
    before, batch = agent.clone(), random_batch(2, inputs=agent.inputs.size)
    assert loaded.update(batch) == agent.update(batch)
    assert torch.equal(loaded.critic.flat, agent.critic.flat) and not torch.equal(
        loaded.critic.flat, before.critic.flat
    )


def test_a_file_that_is_no_agent_is_refused_in_one_line(market: Market, tmp_path: Path) -> None:
    """None, a folder, other formats, a cut one; good tensors with other metadata, and tensors of another shape."""
    good = tmp_path / "good.safetensors"
    tiny_agent(market).save(good)
    with safe_open(good, framework="pt") as file:
        metadata = file.metadata()
    tensors, rules = load_file(good), json.loads(metadata["rules"])
    (tmp_path / "text").write_text("no agent\n" * 20)
    (tmp_path / "cut").write_bytes(good.read_bytes()[:-100])
    torch.save({"a": torch.zeros(2)}, tmp_path / "torch.pt")
    unknown, impossible = (json.dumps({**rules, **changes}) for changes in ({"leverage": 3}, {"trading_days": 0}))
    for place, other in enumerate((None, {"rules": "{"}, {"rules": unknown}, {"rules": impossible})):
        save_file(tensors, tmp_path / f"metadata {place}", metadata=other)
    for name in ("inputs/mean", "inputs/std"):
        changed = {**tensors, name: torch.zeros(2, 5)}
        save_file(changed, tmp_path / name.replace("/", " "), metadata=metadata)
    good.unlink()
    for path in (tmp_path, good, *tmp_path.iterdir()):
        with pytest.raises(ConfigError) as refused:
            DDPGAgent.load(path)
        message = str(refused.value)
        assert message.startswith(f"expected an agent saved by DDPGAgent.save, got {path}: ") and "\n" not in message
