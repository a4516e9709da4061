"""Diagnostics of selection: what fitness and validation foretell, what the critics expect."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.selection import SelectionStudy, initial_value, rank_correlation, returns
from benchmarks.learning.unseen import UnseenPath, UnseenPaths, training_market
from tests.benchmarks.study_cases import tiny_config
from training.erl_trainer import ERLTrainer
from training.rollout import roll_out
from training.run.trainer import build_trainer
from utils.config.trader import Config


def trainer_of(config: Config) -> ERLTrainer:
    return build_trainer(config, training_market(config)[0], torch.device("cpu"))


@given(st.permutations(range(6)))
def test_rank_correlation_of_ranks(order: list[int]) -> None:
    """Without ties it is 1 - 6 sum d^2 / (n (n^2 - 1)), d the differences of ranks, whatever the scale."""
    expected = 1 - 6 * sum((place - rank) ** 2 for place, rank in enumerate(order)) / (6 * 35)
    values = torch.tensor(order).double()
    assert rank_correlation(torch.arange(6).double(), values.exp()) == pytest.approx(expected)
    broken = torch.tensor([torch.nan, 3.0]).double()
    more = torch.cat((torch.arange(6).double(), torch.zeros(2)))
    assert rank_correlation(more, torch.cat((values, broken[:1], broken[:1]))) == pytest.approx(expected)


def test_equal_agents_have_no_rank_correlation() -> None:
    assert rank_correlation(torch.ones(3), torch.tensor([1.0, 2.0, 3.0])) is None
    assert rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.ones(3)) is None


def unseen_path(config: Config) -> UnseenPath:
    return next(iter(UnseenPaths(paths=1, windows=5).each(config, training_market(config)[0].stats)))


def test_the_smaller_critic_values_the_beginning() -> None:
    """Critics that value every state alike and orders at nothing give just that."""
    config = tiny_config()
    networks = trainer_of(config).population.networks
    for critic, value in zip(networks.each_critic(), (5.0, 3.0), strict=True):
        for parameter in critic.parameters():
            parameter.data.zero_()
        critic.value_out.bias.data.fill_(value)
    assert float(initial_value(networks, unseen_path(config))) == pytest.approx(3.0)


@pytest.mark.parametrize("credit", ["entry", "daily"])
def test_returns_are_what_was_earned(credit: str) -> None:
    """The undiscounted one is the profit; with gamma 0 the discounted one is the first day's reward."""
    for gamma in ("0", "0.9", "1"):
        config = tiny_config("--learning.credit", credit, "--learning.gamma", gamma)
        trainer, path = trainer_of(config), unseen_path(config)
        profit = roll_out(path.env, trainer.population.networks, path.tensors, path.starts).profit_percent.mean()
        discounted, undiscounted = returns(path, config.learning)
        env = path.env
        rewards = (env.entry_credited_rewards() if credit == "entry" else env.rewards).mean(1).tolist()
        assert float(undiscounted) == pytest.approx(float(profit))
        weights = [float(gamma) ** day for day in range(len(rewards))]
        assert float(discounted) == pytest.approx(np.dot(weights, rewards))


def test_selection_is_measured_on_the_last_generation() -> None:
    config = tiny_config()
    trainer = trainer_of(config)
    trainer.run_generation()
    study, profits = SelectionStudy(trainer), []
    for path in UnseenPaths(paths=2, windows=4).each(config, trainer.market.stats):
        study.play(path)
        rollout = roll_out(path.env, trainer.population.networks, path.tensors, path.starts)
        profits.append(rollout.profit_percent)
    found, unseen = study.record(), torch.stack(profits).mean(0)
    assert found["agents"] == 3 and found["founders"] == len(set(trainer.founders))
    assert found["unseen_mean"] == pytest.approx(float(unseen.mean())) == pytest.approx(found["undiscounted_return"])
    validated = roll_out(trainer.val_env, trainer.population.networks, trainer.tensors, trainer.validation_starts)
    assert found["validation_rank_correlation"] == rank_correlation(validated.profit_percent, unseen)
