"""The computation on a CUDA device: updates that are launched as a graph give what they give one by one.

What would make the host wait for the device can be told on a CPU too: such operations read a tensor's value, or have a
result whose shape depends on one. The tests that need a device are skipped without.
"""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.trainers import generations, trainer_on
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models import ddpg
from models.ddpg_agent import DDPGAgent
from models.networks import Networks
from models.policy import Forecasts
from tests.small_market import TINY_RULES
from tests.tiny import TINY_LEARNING, learnable_market, random_world, seeded, tiny_agent, tiny_rules, tiny_trainer
from training.erl_trainer import ERLTrainer, UpdateInputs
from training.rollout import roll_out
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


@pytest.mark.parametrize("fill", ["next_open", "same_close"])
def test_no_day_of_a_rollout_waits(fill: str) -> None:
    """On the meta device, whose tensors have no values that could be waited for."""
    rules = tiny_rules(fill=fill, delisting_loss=30.0, volume_cap=5.0, drawdown_lock=10.0)
    world = random_world(rules=rules)
    score = torch.randn(2, world.days, world.stocks, generator=seeded(4))
    forecasts = Forecasts(*(part.to("meta") for part in (score, score[..., 0], score[0])))
    portfolio, genes = Portfolio.on(world.market, rules, "meta"), torch.ones(2, 4, dtype=torch.float64, device="meta")
    noise = torch.randn(1, rules.episode_steps, world.stocks, generator=seeded(4)).to("meta")
    found = roll_out(portfolio, forecasts, genes, world.starts(4), rules.episode_steps, noise=noise, timing=0.5)
    assert found.equity.shape == (rules.episode_steps + 1, 2, 4) and found.utility().device.type == "meta"


def test_tensors_of_an_agent_are_where_it_is(tmp_path: Path) -> None:
    """The meta device stands for one that is not the CPU."""
    market = learnable_market()
    tiny_agent(market).save(tmp_path / "agent")
    agent = DDPGAgent.load(tmp_path / "agent", device="meta")
    held = {"genes": agent.genes, **agent.networks.tensors}
    assert {name for name, part in held.items() if part.device.type != "meta"} == set()
    assert agent.device.type == agent.forecasts(market).score.device.type == "meta"


def test_an_update_is_that_of_the_rows_whose_turn_it_is() -> None:
    trainer = tiny_trainer(learnable_market(1))
    trainer.evaluate_population()
    days, population, learning = trainer.training_days.transitions, trainer.population, trainer.learning
    networks = population.networks.map(torch.clone)
    for seed in range(3):
        known = [trainer.replay_buffer.rows_on_days(allowed) for allowed in days.allowed]
        replayed = torch.stack([rows[torch.randint(len(rows), (4,), generator=seeded(seed))] for rows in known])
        at = trainer.replay_buffer.at(replayed)
        rows = days.draw(at.day, seeded(seed))
        with NoWaiting():
            losses = trainer.update_networks(UpdateInputs(rows, replayed, population.gammas))
        parts = Networks(networks.tensors, learning.learning_rate), population.gammas, days.batch(rows, at)
        expected = ddpg.update(*parts, learning.gradient_accumulation, cost=days.cost, tau=learning.tau)
        assert torch.equal(losses, expected)
    for name, part in networks.tensors.items():
        assert torch.equal(population.networks.tensors[name], part), name


def trainer_of(rules: EnvironmentConfig, *, is_eager: bool) -> ERLTrainer:
    """A trainer on the card, whose updates are launched or run one by one."""
    market, like = learnable_market(1), tiny_trainer()
    env = TradingEnvironment.on(market, rules, "cuda")
    parts = replace(TINY_LEARNING, gradient_steps=4), like.population.evolution, like.evaluation
    trainer = trainer_on(market, env, *parts, seed=2, log=tiny_trainer().log)
    trainer.graph.is_eager = is_eager
    return trainer


@needs_cuda
@pytest.mark.parametrize(
    "rules", [TINY_RULES, tiny_rules(delisting_loss=30.0), tiny_rules(fill="same_close", drawdown_lock=5.0)]
)
def test_generations_that_launch_are_those_that_run_one_by_one(
    rules: EnvironmentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another agent uses the account in between; what was learned plays on a CPU."""
    caplog.set_level(logging.INFO)
    launched, eager = (trainer_of(rules, is_eager=is_eager) for is_eager in (False, True))
    for generation, (ours, theirs) in enumerate(zip(generations(launched, 6), generations(eager, 6), strict=True)):
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
