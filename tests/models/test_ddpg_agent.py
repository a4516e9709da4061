"""One agent alone: it plays whole episodes as the population does, survives a file, and cannot see ahead."""

import json
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from data.market import Market
from environment.trading_env import TradingEnvironment, trade_ledger
from models.ddpg_agent import DDPGAgent
from tests.models import plain
from tests.models.plain import Floats
from tests.small_market import TINY_RULES, environment_of, small_market
from tests.tiny import networked, tiny_agent, tiny_rules
from training.rollout import roll_out
from utils.config.trader import EnvironmentConfig
from utils.errors import ConfigError
from utils.spaces import TARGET_PERCENTS

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


def approximately(trade: Mapping[str, Any]) -> dict[str, Any]:
    """The trade with amounts up to rounding."""
    return {
        name: pytest.approx(value, rel=1e-4, abs=1.0) if isinstance(value, float) else value
        for name, value in trade.items()
    }


@pytest.mark.parametrize(
    ("rules", "share"),
    [
        (TINY_RULES, 1.0),
        (tiny_rules(max_new_positions_per_day=3, stake_percent=2.5, fill="same_close", trading_days=10), 0.37),
        (tiny_rules(max_new_positions_per_day=9, stake_percent=10.0, cost_bps=60.0, delisting_loss=30.0), 0.37),
        (TINY_RULES, 0.0),
    ],
    ids=["one order", "three orders", "all stocks", "the market"],
)
@pytest.mark.parametrize("has_networks", [False, True], ids=["closed form", "networks"])
def test_it_plays_as_a_rollout_does(market: Market, rules: EnvironmentConfig, has_networks: bool, share: float) -> None:
    """The same trades on the same windows, decided on observations by stock there and on slots here.

    With networks up to rounding, and orders of a day in the order of their sizes.
    """
    env, starts = environment_of(market, rules=rules), [20, 47, 90]
    trades = 0
    for seed in range(2):
        agent = tiny_agent(market, rules=rules, seed=seed, target=12.5)
        agent = (networked(agent, seed) if has_networks else agent).betting(share)
        trading, policy = TradingEnvironment.on(market, rules), agent.policy
        portfolio = trading.account
        parts = trading, agent.traders, agent.forecasts(market), agent.cash_value, torch.tensor(starts)
        rollout = roll_out(*parts, policy=policy)
        for lane, start in enumerate(starts):
            window = {"start_idx": start, "end_idx": start + rules.episode_steps}
            _, equity = play(agent, env, market, trading_end_idx=start + rules.trading_days, **window)
            found, expected = env.get_trades(), trade_ledger(portfolio, lane)
            if has_networks:
                found, expected = (sorted(own, key=itemgetter("order_day", "stock")) for own in (found, expected))
                expected = [approximately(trade) for trade in expected]
            assert found == expected
            wanted = rollout.equity[:, 0, lane].tolist()
            assert equity == (pytest.approx(wanted, rel=1e-6) if has_networks else wanted)
            trades += len(env.get_trades())
    assert trades > 10


@pytest.mark.parametrize("day", [40, 99])
def test_what_it_thinks_on_a_day_ignores_what_follows(market: Market, day: int) -> None:
    agent = networked(tiny_agent(market))
    changed = market.data_array.copy()
    changed[day + 1 :] *= np.random.default_rng(0).uniform(0.5, 2.0, changed[day + 1 :].shape).astype(np.float32)
    other = Market(**(vars(market) | {"data_array": changed}))
    one, two = agent.forecasts(market), agent.forecasts(other)
    for name in ("expected", "score", "target", "opportunity"):
        assert torch.equal(getattr(one, name)[:, : day + 1], getattr(two, name)[:, : day + 1]), name
    assert not torch.equal(one.expected, two.expected)


def thought_by_hand(agent: DDPGAgent, market: Market) -> tuple[Floats, Floats, Floats]:
    """The (days, n) expected results, scores and sale targets of an agent with networks, stock by stock of a day."""
    members, networks = agent.members, agent.networks
    assert members is not None and networks is not None
    x = agent.inputs.of(market).astype(np.float64)
    seen, has_bar = plain.seen_by_networks(agent.inputs, x), np.isfinite(market.close)
    deviation, typical = plain.numbers(members.deviation), plain.numbers(members.typical)
    count, folds = networks.actor.choice.shape[:2]
    expected, score, target = np.zeros((3, *x.shape[:2]))
    for member in range(count):
        start, ridge = float(members.start[member]), x @ plain.numbers(members.weights[member])
        at_start = TARGET_PERCENTS.index(start)
        ridge_weight, reward_weight, unit = networks.base[member].tolist()
        for fold in range(folds):
            pair, share = (networks.actor_target, networks.critic_target), 1 / (count * folds)
            added, shift, rewards = plain.judged(*pair, (member, fold), seen)
            percent, rewards = plain.target_of(start, shift), rewards * deviation
            more = 1 + plain.numbers(networks.actor_target.slope[member, fold])
            beyond = plain.at(typical, percent) - typical[at_start]
            own = float(members.network[member])
            result = own * plain.at(rewards, percent) + beyond
            score += share * less_mean(
                ridge_weight * more[0] * ridge + reward_weight * more[1] * rewards[..., at_start] + unit * added,
                has_bar,
            )
            expected += share * less_mean(float(members.ridge[member]) * ridge, has_bar)
            expected += share * (result - day_means(own * rewards[..., at_start], has_bar))
            target += share * percent
        level = day_means(ridge, has_bar) / count
        expected, score = expected + level, score + level
    return expected, score, target


def day_means(values: Floats, has_bar: npt.NDArray[np.bool_]) -> Floats:
    """(days, 1) means over the stocks with a bar, 0 where there is none."""
    count = np.maximum(has_bar.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.where(has_bar, values, 0.0).sum(axis=1, keepdims=True) / count)


def less_mean(values: Floats, has_bar: npt.NDArray[np.bool_]) -> Floats:
    return values - day_means(values, has_bar)


def test_it_thinks_of_stocks_as_in_plain_numbers(market: Market) -> None:
    """Two members of two folds each: what they expect, by what they rank stocks, and where they sell."""
    agent, has_bar = networked(tiny_agent(market)), np.isfinite(market.close)
    found, expected = agent.forecasts(market), thought_by_hand(agent, market)
    for name, wanted in zip(("expected", "score", "target"), expected, strict=True):
        own = getattr(found, name)[0].numpy()
        np.testing.assert_allclose(own[has_bar], wanted[has_bar], rtol=1e-3, atol=1e-3, err_msg=name)
    assert bool((found.score[0].isfinite() == torch.from_numpy(has_bar)).all())


@pytest.mark.parametrize("has_networks", [False, True], ids=["closed form", "networks"])
def test_a_loaded_agent_is_the_saved_one(market: Market, tmp_path: Path, has_networks: bool) -> None:
    rules = tiny_rules(max_new_positions_per_day=2, trading_days=9)
    agent = tiny_agent(market, rules=rules, seed=4)
    agent = networked(agent) if has_networks else agent
    agent.save(tmp_path / "agent.safetensors")
    loaded = DDPGAgent.load(str(tmp_path / "agent.safetensors"))
    assert loaded.rules == rules and loaded.device == agent.device
    for part in (
        "inputs",
        "traders",
        "cash_value",
        "evidence",
        "trust",
        *(("networks", "members") if has_networks else ()),
    ):
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
    for name in ("traders/weights", "cash_value/weights", "cash_value/opportunity_knots", "inputs/mean"):
        changed = {**tensors, name: torch.zeros(2, 5)}
        save_file(changed, tmp_path / name.replace("/", " "), metadata=metadata)
    good.unlink()
    for path in (tmp_path, good, *tmp_path.iterdir()):
        with pytest.raises(ConfigError) as refused:
            DDPGAgent.load(path)
        message = str(refused.value)
        assert message.startswith(f"expected an agent saved by DDPGAgent.save, got {path}: ") and "\n" not in message
