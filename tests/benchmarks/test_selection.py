"""Diagnostics of selection: what fitness foretells, and what is played beside the champion."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.learning.selection import ALL_ORDERS, MEAN_AGENT, SelectionStudy, rank_correlation
from benchmarks.learning.unseen import UnseenPaths, training_market
from data.splits import spaced_windows
from tests.benchmarks.study_cases import tiny_config
from training.erl_trainer import ERLTrainer, build_trainer
from training.evaluation.baselines import BEST_AGENT, CHAMPION, CLOSED_FORM
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
    study, profits, champion = SelectionStudy(trainer, seed=0, genomes=0), [], []
    known = {CHAMPION: trainer.champion, ALL_ORDERS: trainer.champion.betting(1.0)}
    known |= {BEST_AGENT: trainer.best_agent, CLOSED_FORM: trainer.champion.closed_form()}
    for path in UnseenPaths(paths=2, windows=4).each(config, trainer.market.stats):
        x = trainer.days.inputs.of(path.market)
        played = study.play(path, x)
        alone = [path.play_agent(trainer.population.committee([row]), x) for row in range(4)]
        champion.append(path.play_agent(trainer.champion, x))
        profits.append([float(each.profit_percent) for each in alone])
        assert played.keys() == {*known, MEAN_AGENT}
        for name, agent in known.items():
            assert played[name] == pytest.approx(path.play_agent(agent, x).summary.profit_percent.numpy())
        assert played[MEAN_AGENT].mean() == pytest.approx(np.mean(profits[-1]))
    found, unseen = study.record(), torch.tensor(profits).mean(0)
    assert found["agents"] == 4 and found["founders"] == len(set(trainer.population.founders))
    assert found["unseen_mean"] == pytest.approx(float(unseen.mean()))
    assert found["unseen_deviation"] == pytest.approx(float(unseen.std(correction=0)))
    assert found["profit"] == pytest.approx(np.mean([float(each.profit_percent) for each in champion]))
    assert found["initial_value"] == pytest.approx(np.mean([float(each.initial_value) for each in champion]))


def test_random_genomes_are_tested_too() -> None:
    """Their fitness is out of fold, and what they earn is played with what was fitted to all training days."""
    config = tiny_config("--synthetic.drift-std", "0.03")
    trainer = trainer_of(config)
    study = SelectionStudy(trainer, seed=0, genomes=6)
    (path,) = UnseenPaths(paths=1, windows=5).each(config, trainer.market.stats)
    study.play(path, trainer.days.inputs.of(path.market))
    known, random = study.record()["random_rank_correlation"], study.groups["random"]
    assert len(random.agents) == 6 and known == rank_correlation(random.fitness, random.unseen[0])
    assert known is not None and -1 <= known <= 1


def test_fitness_is_that_of_the_trainer() -> None:
    """On the same windows it is what evolution saw."""
    trainer = trainer_of(tiny_config("--evaluation.exploration-windows", "0"))
    steps = trainer.eval_env.rules.episode_steps
    starts = spaced_windows(trainer.market.splits.train, steps, 32)
    with mock.patch("training.erl_trainer.random_windows", lambda *_: starts):
        evaluated = trainer.evaluate_population().fitness
    assert torch.equal(SelectionStudy(trainer, seed=0, genomes=0).groups["fitness"].fitness, evaluated)
