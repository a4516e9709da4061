"""A population shared out among shards gives what it gives undivided, bit for bit."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from data.market import Market
from environment.portfolio import Portfolio
from tests.small_market import TINY_RULES
from tests.tiny import TINY_EVALUATION, TINY_LEARNING, learnable_market, tiny_trainer
from training.erl_trainer import ERLTrainer
from training.run.shards import open_shards
from training.shards.shard import Choice, EliteTransitions, LocalShards, Shard, groups
from utils.config.trader import Config, EvolutionConfig
from utils.errors import ConfigError

AGENTS = 10


@pytest.fixture(scope="module")
def market() -> Market:
    return learnable_market(1)


def trainer_of(market: Market, shards: int, **changes: Any) -> ERLTrainer:
    """A trainer whose population is shared out among shards with environments of their own."""
    trainer = tiny_trainer(market, **({"evolution": EvolutionConfig(population_size=AGENTS)} | changes))
    if shards > 1:
        envs = [Portfolio.on(market, TINY_RULES) for _ in range(shards)]
        trainer.shards = LocalShards([Shard(trainer.days, env, market.splits.train) for env in envs])
    return trainer


def lived_through(trainer: ERLTrainer, generations: int) -> tuple[list[str], list[bytes]]:
    """The records and the tensors after so many generations."""
    ours = ("seconds", "memory")
    records = [
        json.dumps({key: value for key, value in record.items() if key not in ours})
        for record in trainer.run(generations)
    ]
    tensors = [
        trainer.genes,
        trainer.cash_value.weights,
        trainer.champion.traders.weights,
        *trainer.replay.data.values(),
        *({} if trainer.population.networks is None else trainer.population.networks.tensors()).values(),
    ]
    return records, [tensor.numpy().tobytes() for tensor in tensors]


@pytest.mark.parametrize("gradient_steps", [0, 2], ids=["closed forms", "networks"])
@pytest.mark.parametrize("capacity", [100_000, 60], ids=["all", "thinned"])
def test_results_do_not_depend_on_the_number_of_shards(market: Market, capacity: int, gradient_steps: int) -> None:
    """Actors act from the second generation on."""
    learning = replace(TINY_LEARNING, replay_capacity=capacity, gradient_steps=gradient_steps, warm_up=1)
    one = trainer_of(market, 1, learning=learning)
    whole = lived_through(one, 3)
    assert one.updates == 3 * gradient_steps
    if one.population.networks is not None:
        assert all(bool(part.any()) for part in one.population.networks.actor_target.parameters())
    for shards in (2, 3, 4, AGENTS):
        assert lived_through(trainer_of(market, shards, learning=learning), 3) == whole, shards


def test_a_run_goes_on_with_another_number_of_shards(market: Market) -> None:
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
    assert 30 <= trainer.replay.size <= 40
    assert len(set(trainer.replay.data["after_left"][: trainer.replay.size].tolist())) == TINY_RULES.trading_days - 1


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 12), st.integers(1, 500))
def test_a_choice_is_fair(days: int, elites: int, windows: int, most: int) -> None:
    """Each elite and window keeps its share of days, up to one; never more than asked for."""
    choice = Choice.of(torch.arange(elites), days, windows, most)
    kept = choice.is_kept(torch.arange(days)[:, None], torch.arange(elites * windows))
    total, by_lane = int(kept.sum()), kept.sum(0)
    assert total <= most and (choice.every == 1) == (kept.numel() <= most)
    assert total >= min(kept.numel(), most) / 2 - choice.every
    assert days // choice.every <= int(by_lane.min()) <= int(by_lane.max()) <= math.ceil(days / choice.every)


@given(st.integers(1, 500), st.data())
def test_rows_are_shared_out_evenly(agents: int, data: st.DataObject) -> None:
    shards = data.draw(st.integers(1, agents))
    parts = groups(agents, shards)
    assert [row for part in parts for row in range(agents)[part]] == list(range(agents))
    sizes = {part.stop - part.start for part in parts}
    assert len(parts) == shards and max(sizes) - min(sizes) <= 1


def test_lives_are_joined_in_their_order() -> None:
    parts = [
        EliteTransitions(torch.tensor(place), {"cash": torch.tensor(place, dtype=torch.float32)})
        for place in ([0, 3, 4], [1, 2, 7])
    ]
    joined = EliteTransitions.join(parts)
    assert joined.place.tolist() == joined.transitions["cash"].tolist() == [0, 1, 2, 3, 4, 7]


def test_nothing_is_lived_through_on_a_single_day(market: Market) -> None:
    rules = replace(TINY_RULES, trading_days=1)
    trainer = tiny_trainer(market, rules=rules, evaluation=replace(TINY_EVALUATION, exploration_windows=0))
    env = Portfolio.on(market, rules)
    trainer.shards = LocalShards([Shard(trainer.days, env, market.splits.train) for _ in range(2)])
    assert len(list(trainer.run(2))) == 2 and trainer.replay.size == 0


def test_shards_that_no_cluster_is_needed_for(tmp_path: Path) -> None:
    """One shard is this process's own; more than there are agents are refused before a cluster is looked for."""
    config = Config(evolution=EvolutionConfig(population_size=4))
    with open_shards(1, None, config, tmp_path, torch.device("cpu"), lambda: None) as opened:
        assert opened is None
    too_many = open_shards(5, None, config, tmp_path, torch.device("cpu"), lambda: None)
    with pytest.raises(ConfigError, match="--shards of at most 4 agents, got 5"), too_many:
        pass
