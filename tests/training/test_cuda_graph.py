"""Rollouts and updates that are captured as a CUDA graph and launched give what they give one by one, bit for bit."""

import logging
from dataclasses import replace

import pytest
import torch

from benchmarks.speed.updates import Size, draw, stacked_generation
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.replay_buffer import Batch
from tests.small_market import TINY_RULES
from tests.tiny import TINY_LEARNING, learnable_market, tiny_rules, tiny_trainer
from training import ddpg
from training.erl_trainer import ERLTrainer
from utils.config.trader import EnvironmentConfig

SIZE = Size(agents=3, hidden=5, batch=64, accumulate=2, updates=3, transitions=60)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_an_update_is_that_of_the_rows_whose_turn_it_is() -> None:
    drawn, other = draw(SIZE), draw(SIZE)
    for _ in range(2):
        orders, replayed = drawn.begin()
        stacked_generation(drawn)
        learners = replace(drawn.learners, networks=other.learners.networks)
        for order, row in zip(orders, replayed, strict=True):
            batch = Batch(drawn.updates.replay.sample(row), *drawn.outcomes(order))
            ddpg.update(learners, batch, SIZE.accumulate, gamma=1.0, tau=SIZE.learning.tau)
    for name, part in other.learners.networks.tensors.items():
        assert torch.equal(drawn.learners.networks.tensors[name], part), name


def trainer_of(rules: EnvironmentConfig, *, is_eager: bool) -> ERLTrainer:
    """A trainer on the card, whose rollouts and updates are launched or run one by one."""
    market, like = learnable_market(1), tiny_trainer()
    env = TradingEnvironment.on(market, rules, "cuda")
    parts = replace(TINY_LEARNING, gradient_steps=4), like.population.evolution, like.evaluation
    trainer = ERLTrainer(market, env, *parts, seed=2, log=tiny_trainer().log)
    for graph in (*trainer.rollouts.graphs, trainer.updating.graph):
        graph.is_eager = is_eager
    return trainer


@needs_cuda
@pytest.mark.parametrize(
    "rules",
    [
        TINY_RULES,
        tiny_rules(max_new_positions_per_day=3, delisting_loss=30.0, loss_multiplier=2.0),
        tiny_rules(fill="same_close", inaction_penalty=0.1, stop_percent=3.0),
    ],
    ids=["one order", "three orders", "same close"],
)
def test_generations_that_launch_are_those_that_run_one_by_one(
    rules: EnvironmentConfig, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where another agent uses the account in between, with other lanes, for which it is allocated anew."""
    caplog.set_level(logging.INFO)
    launched, eager = (trainer_of(rules, is_eager=is_eager) for is_eager in (False, True))
    for generation, (ours, theirs) in enumerate(zip(launched.run(6), eager.run(6), strict=True)):
        for name in ("fitness", "trading", "validation", "learning"):
            assert ours[name] == theirs[name], name
        for trainer in (launched, eager) if generation == 2 else ():
            start = trainer.market.splits.train.first
            trainer.run_episode(trainer.champion, trainer.eval_env, start, start + 9, start + 6)
    networks = launched.population.networks, eager.population.networks
    assert networks[0] is not None and networks[1] is not None
    for name, part in networks[0].tensors.items():
        assert torch.equal(part, networks[1].tensors[name]), name
    assert caplog.text.count("updates are captured as a CUDA graph") == 1


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
