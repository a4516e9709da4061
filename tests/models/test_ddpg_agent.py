"""One agent alone: it plays whole episodes as the population does, survives a file, and cannot see ahead."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data.market import Market
from models.ddpg_agent import DDPGAgent
from models.evidence import Evidence
from tests.small_market import environment_of, small_market
from tests.tiny import random_batch, tiny_agent, tiny_rules
from utils.errors import ConfigError


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(columns=6, investable=[0, 2, 3, 5])


def test_a_forecast_is_the_mean_of_its_networks_and_what_moves_it_is_what_they_see(market: Market) -> None:
    """Of two inputs that are seen only these move it: by what is lost with their values at their means."""
    agent, day = tiny_agent(market, members=2), 60
    named, gains = agent.inputs.named_places(), agent.networks.gains
    gains.fill_(0.0)
    gains[..., named["volatility"] + named["gap"]] = 1.0
    agent.networks.mask()
    score = agent.forecasts(market).score[0, day]
    assert np.array_equal(score.isfinite(), np.isfinite(market.close[day]))
    stocks = score.isfinite().nonzero()[:, 0].tolist()
    found = agent.contributions(market, [(day, int(market.investable_columns[stock])) for stock in stocks])
    for stock, moved in zip(stocks, found, strict=True):
        assert {name for name, percent in moved.items() if abs(percent) > 1e-6} <= {"volatility", "gap"}
        assert [abs(percent) for percent in moved.values()] == sorted(map(abs, moved.values()), reverse=True)
        x = agent.inputs.for_networks(torch.from_numpy(agent.inputs.of(market, slice(day, day + 1)))[0, [stock]])
        assert float(score[stock]) == pytest.approx(plain_score(agent, x), rel=1e-3, abs=1e-3)
        x[:, named["gap"]] = 0.0
        assert moved["gap"] == pytest.approx(float(score[stock]) - plain_score(agent, x), rel=1e-3, abs=1e-3)
    assert len({round(moved["gap"], 6) for moved in found}) > 1


def plain_score(agent: DDPGAgent, x: torch.Tensor) -> float:
    return float(agent.networks.target.outputs(x.expand(agent.networks.folds, -1, -1))[1].mean())


def test_a_loaded_agent_is_the_saved_one(market: Market, tmp_path: Path) -> None:
    rules = tiny_rules(trading_days=9)
    agent = replace(tiny_agent(market, rules=rules, seed=5, members=2), shrink=0.4, timing=0.3, usual=0.2)
    agent.evidence = Evidence(3.0, 1.0, 0.002, 0.4, 1.0, 2.0, 0.3, 0.1)
    agent.save(tmp_path / "agent.safetensors")
    loaded = DDPGAgent.load(str(tmp_path / "agent.safetensors"))
    assert (loaded.rules, loaded.shrink, loaded.timing, loaded.usual) == (rules, 0.4, 0.3, 0.2)
    assert loaded.evidence == agent.evidence
    for part in ("inputs", "members", "networks", "numbers"):
        found, expected = (one.state_dict()[part] for one in (loaded, agent))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
    env = environment_of(market, rules=rules)
    observation, info = env.reset()
    actions = [one.act(observation, one.forecasts(market), info["day_index"]) for one in (agent, loaded)]
    assert env.action_space.contains(actions[0]) and np.array_equal(*actions) and actions[0].any()
    others = {replace(agent, **{name: 0.5}).digest for name in ("shrink", "timing", "usual")}
    assert loaded.digest == agent.digest and len(others - {agent.digest}) == 3
    before, batch = agent.clone(), random_batch(2, inputs=agent.inputs.size)
    assert loaded.update(batch) == agent.update(batch)
    assert torch.equal(loaded.critic["flat"], agent.critic["flat"])
    assert not torch.equal(loaded.critic["flat"], before.critic["flat"])


def test_an_agent_that_acts_knows_who_may_be_bought(market: Market) -> None:
    """Of a stock that is no member nothing is asked, and its part goes to others."""
    agent, members = tiny_agent(market, seed=5), np.ones((len(market.dates), len(market.tickers)), np.bool_)
    everybody = replace(market, members=members.copy())
    best, asked = 3, []
    members[:, market.investable_columns[best]] = False
    some = replace(market, members=members)
    for known in (market, everybody, some):
        env = environment_of(some)
        env.reset()
        observation, *_, info = env.step(np.zeros(4, np.float32))
        score = torch.full((1, len(market.dates), 4), 0.1)
        score[..., best] = 5.0
        forecasts = replace(agent.forecasts(known), score=score)
        asked.append(agent.act(observation, forecasts, info["day_index"]))
    assert np.array_equal(asked[0], asked[1])
    assert asked[0][best] > 0.1 and asked[2][best] == 0 and asked[2].sum() > asked[0].sum() - asked[0][best]


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
    save_file({**tensors, "inputs/std": torch.zeros(2, 5)}, tmp_path / "shape", metadata=metadata)
    good.unlink()
    for path in (tmp_path, good, *tmp_path.iterdir()):
        with pytest.raises(ConfigError) as refused:
            DDPGAgent.load(path)
        message = str(refused.value)
        assert message.startswith(f"expected an agent saved by DDPGAgent.save, got {path}: ") and "\n" not in message
