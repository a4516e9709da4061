"""What networks decide: nothing before they are trained, then which stocks are bought; and where they are played."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from data.splits import spaced_windows
from environment.portfolio import Portfolio
from environment.trading_env import TradingEnvironment
from models.ddpg_agent import DDPGAgent
from tests.small_market import TINY_RULES
from tests.tiny import TINY_LEARNING, learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.rollout import Rollout, purchases, roll_out


def played(trainer: ERLTrainer, agent: DDPGAgent) -> tuple[Rollout, list[Tensor]]:
    """Episodes of an agent on the validation windows; stock, size and sale target of all that it bought."""
    env, span, forecasts = trainer.val_env, trainer.market.splits.validation, agent.forecasts(trainer.market)
    starts = spaced_windows(span, env.rules.episode_steps, trainer.evaluation.validation_windows)
    found = roll_out(env, agent.traders, forecasts, agent.cash_value, starts, policy=agent.policy)
    return found, list(vars(purchases(env.account)).values())


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*parts) for parts in zip(one, other, strict=True))


@pytest.mark.parametrize("generations", [0, 2])
def test_before_any_update_orders_are_those_of_the_closed_form(generations: int) -> None:
    """Of the champion, of the fittest agent and of the whole population, bit for bit."""
    trainer = tiny_trainer(learnable_market(1), learning=replace(TINY_LEARNING, training_starts=500))
    for record in trainer.run(generations):
        assert record["learning"]["departed"] == record["learning"]["added"] == 0.0
        assert record["validation"]["champion"] == record["validation"]["closed_form"]
    assert trainer.population.updates == 0
    for agent in (trainer.champion, trainer.best_agent):
        assert agent.networks is not None
        rollout, orders = played(trainer, agent)
        closed, plain = played(trainer, agent.closed_form())
        assert are_equal(orders, plain) and torch.equal(rollout.equity, closed.equity)
        assert int(rollout.summary.trades.sum()) > 5


def test_after_updates_orders_depart_from_the_closed_form() -> None:
    learning = replace(TINY_LEARNING, gradient_steps=16, learning_rate=0.05)
    trainer = tiny_trainer(learnable_market(1), learning=learning)
    records = list(trainer.run(3))
    departed = [record["learning"]["departed"] for record in records]
    assert departed[0] == 0.0 and min(departed[1:]) > 0.1
    (rollout, orders), (closed, plain) = (
        played(trainer, own) for own in (trainer.champion, trainer.champion.closed_form())
    )
    assert not are_equal(orders, plain) and float(rollout.departed(closed)) > 0.1
    assert records[-1]["validation"] == {
        "champion": float(rollout.profit_percent),
        "closed_form": float(closed.profit_percent),
    }


@pytest.mark.parametrize("first", ["training", "validation"])
def test_an_episode_of_any_window_is_what_the_agent_does_by_itself(first: str) -> None:
    """On one window, shorter than the rules say, observation by observation."""
    trainer = tiny_trainer(learnable_market(1))
    list(trainer.run(2))
    agent, splits = trainer.champion, trainer.market.splits
    start = (splits.train if first == "training" else splits.validation).first
    window = {"start_idx": start, "end_idx": start + 9, "trading_end_idx": start + 6}
    summary = trainer.run_episode(agent, trainer.eval_env, **window)
    env, forecasts, is_over = trainer.eval_env.twin(), agent.forecasts(trainer.market), False
    observation, info = env.reset(**window)
    while not is_over:
        action = agent.act(observation, forecasts, info["day_index"])
        observation, _, is_over, _, info = env.step(action)
    alone = env.get_episode_summary()
    assert info["day_index"] == start + 9 and alone["trades"] > 0
    assert summary == pytest.approx(alone, rel=1e-6)
    assert len(trainer.evaluate_population().fitness) == len(trainer.population)


@pytest.mark.parametrize("kind", ["ddpg", "closed-form"])
def test_populations_and_champions_are_played_in_the_environments(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every day of every episode is a step of one of the two, all agents and windows at once."""
    trainer = tiny_trainer(learnable_market(1), learning=replace(TINY_LEARNING, agent=kind))
    steps, days = Counter[TradingEnvironment](), Counter[Portfolio]()
    step, live = TradingEnvironment.step, Portfolio.step_orders

    def counted(self: TradingEnvironment, action: Any) -> Any:
        steps[self] += 1
        return step(self, action)

    def lived(self: Portfolio, orders: Any) -> None:
        days[self] += 1
        live(self, orders)

    monkeypatch.setattr(TradingEnvironment, "step", counted)
    monkeypatch.setattr(Portfolio, "step_orders", lived)
    assert len(list(trainer.run(2))) == 2
    times = 2 * TINY_RULES.episode_steps * (2 if kind == "ddpg" else 1)  # closed forms are played beside networks
    assert steps == {trainer.eval_env: times, trainer.val_env: times}
    assert days == {env.account: times for env in steps}
