"""The computation on a CUDA device: rollouts and updates that are launched as a graph give what they give one by one.

What would make the host wait for the device can be told on a CPU too: such operations read a tensor's value, or have a
result whose shape depends on one. The tests that need a device are skipped without.
"""

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models import ddpg
from models.ddpg_agent import DDPGAgent
from models.networks import Networks
from models.policy import Forecasts
from tests.small_market import TINY_RULES
from tests.tiny import TINY_LEARNING, learnable_market, random_world, seeded, tiny_agent, tiny_rules, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.rollout import roll_out
from training.updates import UpdateInputs
from utils.config.trader import EnvironmentConfig

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
_WAITING = {
    *("aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::masked_select"),
    *("aten::unique_dim", "aten::_unique2", "aten::repeat_interleave.Tensor"),
}
"""Operations for which a host waits until a CUDA device has done all its work."""


class NoWaiting(TorchDispatchMode):
    """Refuses what would make the host wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indices = args[1] if func.name().startswith("aten::index") and isinstance(args[1], list | tuple) else ()
        by_mask = any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
        assert func.name() not in _WAITING and not by_mask, func.name()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "rules",
    [tiny_rules(exits="target"), tiny_rules(delisting_loss=30.0, volume_cap=5.0, max_new_positions_per_day=3)],
    ids=["target", "three orders"],
)
def test_no_day_of_a_rollout_waits(rules: EnvironmentConfig) -> None:
    world, modes, days = random_world(rules=rules), contextlib.ExitStack(), [0]
    world.trading.account.has_fixed_shapes = True
    score, penalty = torch.randn(2, 1, world.days, world.stocks, generator=seeded(4))
    forecasts = Forecasts.of(score, world.env.bars.tradable, 0.1 + penalty.abs())

    def begin() -> None:
        if not days[0]:
            modes.enter_context(NoWaiting())
        days[0] += 1

    with modes:
        noise = torch.randn(1, 1, rules.trading_days, generator=seeded(4))
        parts = world.trading, forecasts, torch.tensor([0.1]), torch.tensor([20.0]), world.starts(4)
        roll_out(*parts, noise=noise, records=True, safe_point=begin)
    assert days[0] == rules.episode_steps


def test_tensors_of_an_agent_are_where_it_is(tmp_path: Path) -> None:
    """The meta device stands for one that is not the CPU."""
    market = learnable_market()
    tiny_agent(market).save(tmp_path / "agent")
    agent = DDPGAgent.load(tmp_path / "agent", device="meta")
    held = {"hurdles": agent.hurdles, "targets": agent.sale_targets, **agent.networks.tensors}
    assert {name for name, part in held.items() if part.device.type != "meta"} == set()
    assert agent.device.type == agent.forecasts(market).score.device.type == "meta"


def test_an_update_is_that_of_the_rows_whose_turn_it_is() -> None:
    trainer = tiny_trainer(learnable_market(1))
    trainer.evaluate_population()
    days, population, learning = trainer.training_days.transitions, trainer.population, trainer.learning
    networks = population.networks.map(torch.clone)
    for seed in range(3):
        known = [trainer.replay.rows_on_days(allowed) for allowed in days.allowed]
        replayed = torch.stack([rows[torch.randint(len(rows), (4,), generator=seeded(seed))] for rows in known])
        at = trainer.replay.at(replayed)
        rows = days.draw(at.day, seeded(seed))
        hurdles, places = population.hurdles, population.sale_target_indices
        with NoWaiting():
            losses = trainer.updates.run(population, UpdateInputs(rows, replayed, hurdles, places))
        parts = Networks(networks.tensors, learning.learning_rate), hurdles, places, days.batch(rows, at)
        how = {"cost": days.cost, "gamma": learning.gamma, "tau": learning.tau}
        expected = ddpg.update(*parts, learning.gradient_accumulation, **how)
        assert torch.equal(losses, expected)
    for name, part in networks.tensors.items():
        assert torch.equal(population.networks.tensors[name], part), name


def trainer_of(rules: EnvironmentConfig, *, is_eager: bool) -> ERLTrainer:
    """A trainer on the card, whose rollouts and updates are launched or run one by one."""
    market, like = learnable_market(1), tiny_trainer()
    env = TradingEnvironment.on(market, rules, "cuda")
    parts = replace(TINY_LEARNING, gradient_steps=4), like.population.evolution, like.evaluation
    trainer = ERLTrainer(market, env, *parts, seed=2, log=tiny_trainer().log)
    for graph in (trainer.rollouts.graph, trainer.updates.graph):
        graph.is_eager = is_eager
    return trainer


@needs_cuda
@pytest.mark.parametrize(
    "rules",
    [
        TINY_RULES,
        tiny_rules(max_new_positions_per_day=3, delisting_loss=30.0, loss_multiplier=2.0),
        tiny_rules(fill="same_close", inaction_penalty=0.1, stop_percent=3.0),
        tiny_rules(exits="target"),
    ],
    ids=["one order", "three orders", "same close", "sale targets"],
)
def test_generations_that_launch_are_those_that_run_one_by_one(
    rules: EnvironmentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another agent uses the account in between; what was learned plays on a CPU."""
    caplog.set_level(logging.INFO)
    launched, eager = (trainer_of(rules, is_eager=is_eager) for is_eager in (False, True))
    for generation, (ours, theirs) in enumerate(zip(launched.run(6), eager.run(6), strict=True)):
        for name in ("fitness", "trading", "validation", "learning"):
            assert ours[name] == theirs[name], name
        for trainer in (launched, eager) if generation == 2 else ():
            start = trainer.market.splits.train.first
            end = start + rules.settlement_days + 6
            trainer.run_episode(trainer.champion, trainer.eval_env, start, end, training=False)
    for name, part in launched.population.networks.tensors.items():
        assert torch.equal(part, eager.population.networks.tensors[name]), name
    assert caplog.text.count("updates are captured as a CUDA graph") == 1
    here = tiny_trainer(launched.market, rules=rules, learning=launched.learning, evolution=eager.population.evolution)
    here.load_state_dict(launched.state_dict())
    assert here.champion.device.type == "cpu"
    assert here.validate_best_agent()["champion"] == pytest.approx(ours["validation"]["champion"], rel=1e-3)


@needs_cuda
def test_a_rollout_that_reads_a_value_runs_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    launched, eager = (trainer_of(TINY_RULES, is_eager=is_eager) for is_eager in (False, True))
    step = Portfolio.step_orders

    def reading(self: Portfolio, orders: object) -> None:
        step(self, orders)  # type: ignore[arg-type]
        assert float(self.cash[0]) >= 0

    monkeypatch.setattr(Portfolio, "step_orders", reading)
    for ours, theirs in zip(launched.run(3), eager.run(3), strict=True):
        assert ours["fitness"] == theirs["fitness"]
    assert "rollouts run eagerly: capturing a CUDA graph failed" in caplog.text
