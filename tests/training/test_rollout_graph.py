"""Rollouts that are captured once and launched: by a tape of operations in place of a CUDA graph, and by a real one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from environment.ledger import Ledger
from environment.portfolio import Portfolio
from models.cash_value import CashValue
from models.round_robin import RoundRobinPolicy
from models.trader import Forecasts, Traders
from tests.tiny import World, random_world, seeded, tiny_rules
from tests.training.tape import taped
from training.cuda_graph import CudaGraph, Tensors
from training.rollout import Rollout, roll_out
from utils.config.trader import EnvironmentConfig

AGENTS = 3


class Played:
    """Rollouts of one account with other inputs each, on the device of its environment."""

    def __init__(self, world: World, graph: CudaGraph | None = None) -> None:
        self.world, self.graph, self.safe_points = world, graph, 0
        self.cash_value = CashValue.zero(world.env.rules, world.env.device)

    def _safe_point(self) -> None:
        self.safe_points += 1

    def rollout(self, seed: int, windows: int = 4) -> dict[str, Tensor]:
        """All that it gives, and the books of the account after it."""
        world, env, draws = self.world, self.world.env, seeded(seed)
        target, value_weight, size = torch.rand(3, AGENTS, generator=draws, dtype=torch.float64)
        weights = torch.rand(len(self.cash_value.weights), generator=draws, dtype=torch.float64)
        knots = torch.rand(3, generator=draws, dtype=torch.float64).cumsum(0)
        drawn = torch.randn(3, AGENTS, world.days, world.stocks, generator=draws)
        expected, score, percent = drawn.to(env.device)
        exploration_threshold = torch.rand(AGENTS, 1, generator=draws, dtype=torch.float64).to(env.device)
        found = roll_out(
            world.trading,
            Traders(torch.zeros(AGENTS, 1).double(), 10 + 30 * target, value_weight, 0.5 + size / 2).to(env.device),
            Forecasts.of(expected, env.bars.tradable, 20 + 3 * percent, score),
            self.cash_value.with_values(weights.to(env.device), knots.to(env.device)),
            world.starts(windows, seed),
            exploration_threshold=exploration_threshold,
            records=True,
            safe_point=self._safe_point,
            graph=self.graph,
        )
        return numbers_of(found, env)


def numbers_of(rollout: Rollout, env: Portfolio) -> dict[str, Tensor]:
    own = {f.name: getattr(rollout, f.name) for f in fields(Rollout) if f.name not in ("summary", "transitions")}
    books = {f"book {f.name}": getattr(env.ledger(), f.name).clone() for f in fields(Ledger)}
    return {**own, **vars(rollout.summary), **rollout.transitions, **books, "day": env.day.clone()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name].cpu(), value.cpu()), name


RULES = [
    tiny_rules(),
    tiny_rules(max_new_positions_per_day=3, delisting_loss=30.0, volume_cap=5.0, loss_multiplier=2.0),
    tiny_rules(fill="same_close", inaction_penalty=0.1, stop_percent=3.0),
]


@pytest.mark.parametrize("rules", RULES, ids=["one order", "three orders", "same close"])
def test_a_launch_gives_what_playing_would(rules: EnvironmentConfig, caplog: pytest.LogCaptureFixture) -> None:
    """Played, captured, launched with other inputs; an account of other lanes is captured anew."""
    captures: list[int] = []

    def capture(work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
        captures.append(len(captures))
        return taped(work)

    caplog.set_level(logging.INFO)
    launched, played = (
        Played(random_world(3, rules=rules), CudaGraph("rollouts", capture)),
        Played(random_world(3, rules=rules)),
    )
    first = [launched.rollout(seed) for seed in range(4)]
    for seed, found in enumerate(first):
        assert_same(found, played.rollout(seed))
    assert captures == [0] and launched.safe_points == 2 * rules.episode_steps
    assert not torch.equal(first[2]["equity"], first[3]["equity"]) and int(first[3]["trades"].sum()) > 5
    for seed in (4, 5, 6):
        assert_same(launched.rollout(seed, windows=7), played.rollout(seed, windows=7))
    assert captures == [0, 1] and caplog.text.count("captured as a CUDA graph") == 2


def test_who_uses_the_account_in_between_changes_nothing() -> None:
    """Neither with as many lanes nor with others, for which it is allocated anew."""
    launched, played = Played(random_world(3), CudaGraph("rollouts", taped)), Played(random_world(3))
    for seed in range(3):
        assert_same(launched.rollout(seed), played.rollout(seed))
    others = Played(launched.world)
    for windows in (4, 9):
        others.rollout(7, windows)
        for seed in (4, 5, 6):
            assert_same(launched.rollout(seed), played.rollout(seed))


def test_a_rollout_that_reads_a_value_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched, played = Played(random_world(3), CudaGraph("rollouts", taped)), Played(random_world(3))
    step = Portfolio.step_orders

    def reading(self: Portfolio, orders: Any) -> None:
        step(self, orders)
        assert float(self.cash[0]) >= 0

    monkeypatch.setattr(Portfolio, "step_orders", reading)
    for seed in range(3):
        assert_same(launched.rollout(seed), played.rollout(seed))
    assert caplog.text.count("capturing a CUDA graph failed") == 1 and "_local_scalar_dense" in caplog.text


def test_a_graph_of_forecasts_is_not_launched_for_round_robin() -> None:
    """Both policies of one agent, in turn, each often enough to be captured."""
    world, graph = random_world(3), CudaGraph("rollouts", taped)
    env, found, starts = world.env, dict[bool, list[dict[str, Tensor]]](), world.starts(4)
    one = torch.ones(1, dtype=torch.float64)
    traders = Traders(torch.zeros(1, 1).double(), 20 * one, 0 * one, one)
    holding = RoundRobinPolicy(0.0, env.rules)
    expected = torch.randn(1, world.days, world.stocks, generator=seeded(1))
    forecasts = Forecasts.of(expected, env.bars.tradable, torch.tensor([20.0]))
    parts = world.trading, traders, forecasts, CashValue.zero(env.rules), starts
    for own in (graph, None):
        found[own is None] = [
            numbers_of(roll_out(*parts, graph=own, policy=policy), env)
            for policy in (None, None, None, holding, holding, holding, None)
        ]
    for launched, played in zip(found[False], found[True], strict=True):
        assert_same(launched, played)
    assert not torch.equal(found[True][0]["book stock"], found[True][3]["book stock"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("rules", RULES, ids=["one order", "three orders", "same close"])
def test_a_cuda_graph_gives_what_playing_gives(rules: EnvironmentConfig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    here = random_world(3, rules=rules)
    launched, played = (
        Played(replace(here, env=Portfolio.on(here.market, rules, "cuda")), graph)
        for graph in (CudaGraph("rollouts"), None)
    )
    for seed in range(5):
        assert_same(launched.rollout(seed), played.rollout(seed))
    assert "captured as a CUDA graph" in caplog.text
