"""Diagnostics of selection: what fitness foretells, and what is played beside the champion."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.alterations import free_capital
from benchmarks.learning.selection import MEAN_AGENT, SelectionStudy, rank_correlation
from benchmarks.learning.unseen import UnseenPaths, training_market
from data.splits import spaced_windows
from environment.basket import Basket
from tests.benchmarks.study_cases import tiny_config
from training.erl_trainer import ERLTrainer, build_trainer
from training.evaluation.baselines import ALL_ORDERS, BEST_AGENT, CHAMPION
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


LEARNING = (
    *("--learning.training-starts", "10", "--learning.gradient-steps", "4", "--learning.hidden", "4"),
    *("--learning.batch-size", "16", "--evolution.elite-fraction", "0.5"),
)


def test_selection_is_measured_on_the_last_generation() -> None:
    """What is played at once is what each agent plays alone: the champion, those beside it and the whole population."""
    config = tiny_config(*LEARNING)
    trainer = trainer_of(config)
    trainer.run_generation()
    study, profits = SelectionStudy(trainer, has_agents=True), []
    trainer.champion = trainer.champion.betting(0.25)
    study.share, known = 0.25, {ALL_ORDERS: trainer.champion, BEST_AGENT: trainer.fittest_agent}
    for path in UnseenPaths(paths=2, windows=4).each(config, trainer.market.stats):
        x = trainer.days.inputs.of(path.market)
        played = study.play(path, x)
        alone = [path.play_agent(trainer.population.committee([row]), x) for row in range(4)]
        profits.append([float(each.summary.profit_percent.mean()) for each in alone])
        assert played.keys() == {*known, CHAMPION, MEAN_AGENT}
        for name, agent in known.items():
            assert played[name] == pytest.approx(path.play_agent(agent, x).summary.profit_percent.numpy())
        held = Basket.of(path.market, "", 0).hold(path.env.rules, path.starts, path.env.rules.episode_steps)
        basket = 100 * (held.equity[:, -1].numpy() / path.env.rules.initial_capital - 1)
        assert played[CHAMPION] == pytest.approx(0.25 * played[ALL_ORDERS] + 0.75 * basket)
        assert played[MEAN_AGENT].mean() == pytest.approx(np.mean(profits[-1]))
    found, unseen = study.record(), torch.tensor(profits).mean(0)
    assert found["agents"] == 4 and found["founders"] == len(set(trainer.population.founders))
    assert found["unseen_mean"] == pytest.approx(float(unseen.mean()))
    assert found["unseen_deviation"] == pytest.approx(float(unseen.std(correction=0)))
    assert found["share_of_capital"] == trainer.champion.share


def test_fitness_is_that_of_the_trainer() -> None:
    """On the same windows, at the same price of capital, it is what evolution saw."""
    trainer = trainer_of(tiny_config("--evaluation.exploration-windows", "0"))
    free_capital(trainer, torch.Generator())
    steps = trainer.eval_env.rules.episode_steps
    starts = spaced_windows(trainer.market.splits.train, steps, 32)
    with mock.patch("training.erl_trainer.random_windows", lambda *_: starts):
        evaluated, _ = trainer.evaluate_population()
    last = SelectionStudy(trainer, has_agents=True).last
    assert last is not None and torch.equal(last.fitness, evaluated)
