"""The learner: it finds a break that is known to be best, keeps to its bounds, and goes on exactly."""

from typing import Any

import numpy as np
import pytest
import torch

from environment.fuel_breaks.fires import BurnState
from tests.fuel_breaks.run_cases import (
    CPU,
    SIDE,
    bridge_cell,
    bridge_config,
    run_config,
    trainer_of,
    two_fields,
    with_learning,
)
from training.fuel_breaks.config import BoundsConfig
from training.fuel_breaks.dqn_trainer import DQNTrainer
from training.fuel_breaks.policies import greedy, judging_environment, place
from utils.runs.state_tree import flatten
from utils.runs.stopping import PeriodicChecks

CLOCKS = ("seconds", "step_times", "collection_times")


@pytest.mark.parametrize("n_steps", [0, 1])
def test_learns_the_cell_that_stops_the_fire(n_steps: int) -> None:
    shown = [(row, turned) for row in (1, 3, 4, 7) for turned in (False, True)]
    unseen = [(row, turned) for row in (2, 5, 6) for turned in (False, True)]
    tiles = [two_fields(*case) for case in unseen]
    config = bridge_config(n_steps)
    judging = judging_environment(tiles, config.env).rewarding(0, 0)
    cells = np.flatnonzero(judging.burnable)
    by_cell = [BurnState(judging, np.arange(SIDE * SIDE) == cell).burned_cells for cell in cells]
    assert cells[int(np.argmin(by_cell))] == bridge_cell(*unseen[0]), "the bridge is the best break"
    trainer = trainer_of(config, [two_fields(*case) for case in shown], tiles[:1])
    env = type(trainer.env)(tiles, config.env)

    def found() -> list[bool]:
        cleared = place(greedy(trainer.target, CPU, trainer.symmetry), env, range(len(tiles)), 3)
        return [bool(own[bridge_cell(*case)]) for own, case in zip(cleared, unseen, strict=True)]

    assert not all(found())
    trainer.run_generation()
    assert all(found())


def same(first: dict[str, Any], second: dict[str, Any]) -> None:
    for part in first:
        (tensors, rest), (others, other_rest) = flatten(first[part]), flatten(second[part])
        assert tensors.keys() == others.keys()
        assert all(torch.equal(tensors[name], others[name]) for name in tensors), part
        assert {k: v for k, v in rest.items() if k not in CLOCKS} == {
            k: v for k, v in other_rest.items() if k not in CLOCKS
        }


@pytest.mark.parametrize("n_steps", [0, 2])
def test_goes_on_bit_for_bit(n_steps: int) -> None:
    config = with_learning(run_config(), n_steps=n_steps)
    straight, first = trainer_of(config), trainer_of(config)
    records = [straight.run_generation() for _ in range(4)]
    for _ in range(2):
        first.run_generation()
    state = first.state_dict()
    # Whatever was drawn since start-up must not matter: the state is all.
    torch.manual_seed(99)
    second = DQNTrainer(config, first.env.tiles, first.validation.tiles, CPU, lambda: None)
    second.load_state_dict(state)
    again = [second.run_generation() for _ in range(2)]
    same(straight.state_dict(), second.state_dict())
    for name in ("validation", "loss", "return_percent", "updates", "episodes", "buffers"):
        assert records[3][name] == again[1][name], name


def test_everything_is_bounded() -> None:
    bounds = BoundsConfig(
        loss_history=7, reward_history=5, experience_per_collector=9, step_times=6, collection_times=3
    )
    trainer = trainer_of(run_config(bounds=bounds))
    data = trainer.replay.ring.data
    places = {name: tensor.data_ptr() for name, tensor in data.items()}
    for _ in range(4):
        trainer.run_generation()
    lengths = {name: len(values) for name, values in trainer.histories.items()}
    assert lengths == {"losses": 7, "returns": 5, "step_times": 6, "collection_times": 3}
    assert trainer.replay.ring.size == trainer.replay.ring.capacity == 9 * 4
    assert {name: tensor.data_ptr() for name, tensor in data.items()} == places
    assert all(isinstance(loss, float) for loss in trainer.histories["losses"])


def test_the_bounds_default_to_those_of_the_system_replaced() -> None:
    assert list(vars(BoundsConfig()).values()) == [1000, 1000, 2000, 100, 20, 10, 50, 100]


def test_a_reset_empties_what_grows_and_keeps_what_was_learned() -> None:
    trainer, fresh = trainer_of(run_config()), trainer_of(run_config())
    trainer.run_generation()
    learned = {name: value.clone() for name, value in trainer.online.state_dict().items()}
    places = {name: tensor.data_ptr() for name, tensor in trainer.replay.ring.data.items()}
    assert trainer.reset_memory() >= 0
    assert trainer.replay.ring.size == 0 and not any(trainer.histories.values())
    assert not trainer.env.states and trainer.env.planning.cache_info().currsize == 0
    assert {name: tensor.data_ptr() for name, tensor in trainer.replay.ring.data.items()} == places
    assert all(torch.equal(value, learned[name]) for name, value in trainer.online.state_dict().items())
    assert (trainer.generation, trainer.episodes) == (1, 8)
    # Cleared caches are simulated again, the same.
    trainer.generator.set_state(fresh.generator.get_state())
    trainer.online.load_state_dict(fresh.online.state_dict())
    trainer.episodes = 0
    for one in (trainer, fresh):
        one.play_round()
    rings = [one.replay.ring for one in (trainer, fresh)]
    assert rings[0].size == rings[1].size > 0
    for name in rings[0].data:
        assert torch.equal(*(ring.data[name][: ring.size] for ring in rings)), name


def test_best_network_is_kept() -> None:
    trainer = trainer_of(run_config())
    scores = iter((10.0, 30.0, 20.0))
    trainer.scores["best"] = 0.0
    trainer._validate = lambda: next(scores)  # type: ignore[method-assign]
    trainer.run_generation()
    trainer.run_generation()
    kept = {name: value.clone() for name, value in trainer.target.state_dict().items()}
    trainer.run_generation()
    assert (trainer.scores["best"], trainer.scores["best_generation"]) == (30.0, 2)
    assert all(torch.equal(value, kept[name]) for name, value in trainer.best.state_dict().items())
    assert not all(torch.equal(value, kept[name]) for name, value in trainer.target.state_dict().items())


def test_memory_is_checked_as_often_as_set() -> None:
    calls: list[int] = []
    every = {"episodes": 10, "environment_steps": 50, "training_steps": 100}
    checks = PeriodicChecks(lambda: calls.append(1), every, lambda: 0.5)
    for _ in range(25):
        checks.add("environment_steps", 16)
        checks.add("training_steps", 10)
        checks.add("episodes", 1)
    assert checks.counts == {"episodes": 2, "environment_steps": 8, "training_steps": 2}
    assert len(calls) == 12
    record = checks.record()
    assert record["rss_mb"] > 0 and record["gpu_allocated_mb"] >= 0
    assert record["freed_mb"] == {"episodes": 1.0, "environment_steps": 4.0, "training_steps": 1.0}
