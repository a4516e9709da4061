"""The champion: what it buys changes as it learns, what it bets is worth its evidence; and where it is played."""

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
from models.evidence import Evidence
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, TINY_LEARNING, learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.rollout import Rollout, play_agent_on, purchases


def played(trainer: ERLTrainer, agent: DDPGAgent) -> tuple[Rollout, list[Tensor]]:
    """Episodes of an agent on the validation windows; what it bought, and when it decided to sell it."""
    env, span, forecasts = trainer.val_env, trainer.market.splits.validation, agent.forecasts(trainer.market)
    starts = spaced_windows(span, env.rules.episode_steps, trainer.evaluation.validation_windows)
    return play_agent_on(env, agent, forecasts, starts), [*vars(purchases(env.account)).values()][:3]


def test_updates_change_what_is_bought() -> None:
    """And the record's validation is what the champion, and nobody else, earns then."""
    learning = replace(TINY_LEARNING, gradient_steps=16, learning_rate=0.05)
    trainer = tiny_trainer(learnable_market(1), learning=learning)
    _, before = played(trainer, trainer.champion)
    *_, last = trainer.run(3)
    rollout, after = played(trainer, trainer.champion)
    assert int(rollout.summary.trades.sum()) > 5 and not all(map(torch.equal, before, after))
    whole = last["validation"]
    assert whole["champion"] == whole["agents"] == float(rollout.profit_percent)


@pytest.mark.parametrize("evidence", ["weigh", "report", "require"])
def test_the_champion_bets_what_its_evidence_is_worth(evidence: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the capital holds the basket."""
    trainer = tiny_trainer(learnable_market(1), evaluation=replace(TINY_EVALUATION, evidence=evidence))
    for p_value, weighed, required in ((1e-9, 1.0, 1.0), (0.05, 0.42, 0.0), (0.9, 0.0, 0.0)):
        found = Evidence(selection=p_value, timing=1.0, share=weighed)
        monkeypatch.setattr(type(trainer.days), "evidence", lambda *_, found=found: found)
        champion = trainer.build_champion()
        assert champion.evidence == found
        assert champion.share == {"weigh": weighed, "report": 1.0, "require": required}[evidence]
        trainer.champion = champion
        assert (trainer.fittest_agent.share, trainer.fittest_agent.evidence) == (champion.share, found)
        told, exposure = trainer.validate_best_agent(), trainer.val_env.rules.exposure
        parts = champion.share * told["agents"] + (1 - champion.share) * told["basket"]
        assert told["champion"] == pytest.approx(exposure * parts, abs=1e-9) and told["agents"] != told["basket"]


@pytest.mark.parametrize("first", ["training", "validation"])
def test_an_episode_of_any_window_is_what_the_agent_does_by_itself(first: str) -> None:
    """On one window, shorter than the rules say, observation by observation."""
    trainer = tiny_trainer(learnable_market(1))
    list(trainer.run(2))
    agent, splits = trainer.champion, trainer.market.splits
    start = (splits.train if first == "training" else splits.validation).first
    window = {"start_idx": start, "end_idx": start + 9, "trading_end_idx": start + 3}
    size = trainer.replay.size
    reward, summary = trainer.run_episode(agent, trainer.eval_env, start, start + 9, training=False)
    env, forecasts, is_over = trainer.eval_env.twin(), agent.forecasts(trainer.market), False
    observation, info = env.reset(**window)
    while not is_over:
        action = agent.act(observation, forecasts, info["day_index"])
        observation, _, is_over, _, info = env.step(action)
    alone = env.get_episode_summary()
    assert info["day_index"] == start + 9 and alone["trades"] > 0
    assert summary == pytest.approx(alone, rel=1e-6) and reward == summary["fitness"]
    assert trainer.replay.size == size and env.get_episode_summary() == alone
    scores, stats = trainer.evaluate_population()
    assert len(scores) == len(trainer.population) and stats["trades"] > 0


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
    times, played = 2 * TINY_RULES.episode_steps, 1 + (kind == "ddpg")  # the closed form beside learned networks
    assert steps == {trainer.eval_env: times, trainer.val_env: played * times}
    assert days == {env.account: number for env, number in steps.items()}
