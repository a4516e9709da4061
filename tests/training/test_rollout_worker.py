"""A population that is played in groups gives bit-identical results to one that is played at once."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from environment.trading_env import TradingEnvironment
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, TINY_LEARNING, learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.rollout_worker import (
    GroupResults,
    PopulationRollouts,
    RolloutInputs,
    RolloutWorker,
    kept_windows,
    split_rows,
)
from training.run.trainer import open_rollouts
from utils.config.trader import Config, EvolutionConfig
from utils.errors import ConfigError

AGENTS = 10


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


def trainer_of(market: Market, groups: int, **changes: Any) -> ERLTrainer:
    """A trainer whose population is played in groups, as on workers of their own."""
    trainer = tiny_trainer(market, **({"evolution": EvolutionConfig(population_size=AGENTS)} | changes))
    if groups > 1:
        worker = RolloutWorker(trainer.days, TradingEnvironment.on(market, TINY_RULES), market.splits.train)

        def play(inputs: RolloutInputs) -> GroupResults:
            found: GroupResults = pickle.loads(pickle.dumps(worker.play(pickle.loads(pickle.dumps(inputs)))))
            return found

        trainer.rollouts = PopulationRollouts(play, groups=groups)
    return trainer


def lived_through(trainer: ERLTrainer, generations: int) -> tuple[list[str], list[bytes]]:
    """The records and the tensors after so many generations."""
    ours = ("seconds", "memory")
    records = [
        json.dumps({key: value for key, value in record.items() if key not in ours})
        for record in trainer.run(generations)
    ]
    population = trainer.population
    tensors = [
        population.genes,
        population.cash_value.weights,
        trainer.champion.traders.weights,
        *trainer.replay.data.values(),
        *({} if population.networks is None else population.networks.tensors).values(),
    ]
    return records, [tensor.detach().numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("gradient_steps", [0, 2], ids=["closed forms", "networks"])
@pytest.mark.parametrize("capacity", [100_000, 60], ids=["all", "thinned"])
def test_results_do_not_depend_on_the_number_of_groups(market: Market, capacity: int, gradient_steps: int) -> None:
    learning = replace(TINY_LEARNING, replay_capacity=capacity, gradient_steps=gradient_steps)
    one = trainer_of(market, 1, learning=learning)
    whole = lived_through(one, 3)
    assert one.population.updates == 3 * gradient_steps
    if one.population.networks is not None:
        assert all(bool(part.any()) for part in one.population.networks.actor_target.parameters())
    for groups in (2, 3, 4, AGENTS):
        assert lived_through(trainer_of(market, groups, learning=learning), 3) == whole, groups


def test_a_run_resumes_with_another_number_of_groups(market: Market) -> None:
    whole = lived_through(trainer_of(market, 2), 3)
    begun, resumed = trainer_of(market, 4), trainer_of(market, 1)
    records, _ = lived_through(begun, 1)
    resumed.load_state_dict(begun.state_dict())
    later, tensors = lived_through(resumed, 3)
    assert (records + later, tensors) == whole


def test_one_generation_fills_no_more_than_the_replay(market: Market) -> None:
    """What is kept of a generation comes from all of its elites, windows and days."""
    learning = replace(TINY_LEARNING, replay_capacity=40)
    trainer = trainer_of(market, 2, learning=learning)
    trainer.evaluate_population()
    assert 20 <= trainer.replay.size <= 40
    assert len(set(trainer.replay.data["after_left"][: trainer.replay.size].tolist())) == TINY_RULES.trading_days - 1


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 800))
def test_thinning_is_even(days: int, windows: int, most: int) -> None:
    """Up to the limit, each day and each window keeps as many transitions as any other, up to one."""
    day, window = kept_windows(days, windows, most)
    kept = torch.zeros(days, windows, dtype=torch.int64)
    kept[day, window] += 1
    total = int(kept.sum())
    assert total == window.numel() and int(kept.max()) == 1
    assert total <= most and total >= min(days * windows, most) / 2
    assert (total == days * windows) == (most >= days * windows)
    assert len(set(kept.sum(1)[day.flatten()].tolist())) == 1
    assert int(kept.sum(0).max()) - int(kept.sum(0).min()) <= 1
    if most >= days:
        assert day.flatten().tolist() == list(range(days))


def test_views_are_pickled_alone(market: Market) -> None:
    """Not with the whole tensor behind them."""
    trainer = trainer_of(market, 1)
    starts = torch.tensor([market.splits.train.first])
    inputs = trainer.rollout_inputs(starts, torch.rand(AGENTS, 1, dtype=torch.float64))
    one = pickle.dumps(inputs.rows(slice(3, 4)))
    assert len(one) < len(pickle.dumps(inputs)) / 3
    assert torch.equal(pickle.loads(one).by_fold, inputs.by_fold[3:4])


@given(st.integers(1, 500), st.data())
def test_rows_are_divided_evenly(agents: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, agents))
    parts = split_rows(agents, groups)
    assert [row for part in parts for row in range(agents)[part]] == list(range(agents))
    sizes = {part.stop - part.start for part in parts}
    assert len(parts) == groups and max(sizes) - min(sizes) <= 1


def test_a_single_trading_day_gives_no_transitions(market: Market) -> None:
    rules = replace(TINY_RULES, trading_days=1)
    trainer = tiny_trainer(market, rules=rules, evaluation=replace(TINY_EVALUATION, exploration_windows=0))
    trainer.rollouts.groups = 2
    assert len(list(trainer.run(2))) == 2 and trainer.replay.size == 0


def test_one_group_is_played_in_this_process(tmp_path: Path) -> None:
    """More groups than agents are refused before any worker starts."""
    config = Config(evolution=EvolutionConfig(population_size=4))
    with open_rollouts(1, None, config, tmp_path, torch.device("cpu"), lambda: None) as opened:
        assert opened is None
    too_many = open_rollouts(5, None, config, tmp_path, torch.device("cpu"), lambda: None)
    with pytest.raises(ConfigError, match="--shards of at most 4 agents, got 5"), too_many:
        pass
