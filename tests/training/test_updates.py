"""Updates that are captured once and launched: by a tape of operations in place of a CUDA graph, and by a real one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from benchmarks.learning.study import study_config
from benchmarks.speed.updates import Drawn, PlainAgent, Size, draw, plain_generation, stacked_generation
from models.ddpg_agent import LOSSES
from models.population import Learners
from models.replay_buffer import Batch
from tests.tiny import TINY_LEARNING, tiny_trainer
from tests.training.tape import taped
from training import ddpg
from training.cuda_graph import CudaGraph, Tensors

SIZE = Size(agents=3, hidden=5, batch=64, accumulate=2, updates=3, transitions=60)
GENERATIONS = 4
"""In the third one agents are bred, in the last there are other rows."""


class Captures:
    """Captures by tape, counted."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, work: Callable[[], Tensors]) -> tuple[Tensors, Callable[[], None]]:
        self.count += 1
        return taped(work)


def change(drawn: Drawn) -> None:
    """Let the agents' closed forms become others, as those of a next generation are."""
    own = drawn.learners
    rows = torch.arange(drawn.size.agents, device=own.by_fold.device).flip(0)
    worth = own.cash_value.with_values(0.5 * own.cash_value.weights.flip(0), 2 * own.cash_value.opportunity_knots)
    drawn.learners = replace(own, traders=own.traders.rows(rows), by_fold=own.by_fold[rows], cash_value=worth)


def generations(drawn: Drawn) -> list[dict[str, Tensor]]:
    """The networks and losses after each generation."""
    found, networks = [], drawn.learners.networks
    for generation in range(GENERATIONS):
        if generation == 2:
            networks.assign({name: part.flip(0) for name, part in networks.tensors.items()})
            change(drawn)
        drawn.begin()
        stacked_generation(drawn)
        tensors = {**networks.tensors, **drawn.updates.losses}
        found.append({name: part.cpu().clone() for name, part in tensors.items()})
    return found


def assert_same(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.equal(ours[name], value), name


def launching(size: Size = SIZE, seed: int = 1) -> tuple[Drawn, Captures]:
    drawn, captures = draw(size, seed=seed), Captures()
    drawn.updates.graph = CudaGraph("updates", captures)
    return drawn, captures


@pytest.mark.parametrize("accumulate", [1, 2])
def test_launches_give_what_updates_one_by_one_would(accumulate: int, caplog: pytest.LogCaptureFixture) -> None:
    """One graph, whatever is bred and drawn in between."""
    caplog.set_level(logging.INFO)
    drawn, captures = launching(replace(SIZE, accumulate=accumulate))
    found = generations(drawn)
    assert_same(found, generations(draw(drawn.size, seed=1)))
    assert captures.count == 1 and caplog.text.count("updates are captured as a CUDA graph") == 1
    assert all(bool(own[name].all()) for own in found for name in LOSSES)
    assert found[-1]["actor.counts"][:, 0].tolist() == [GENERATIONS * SIZE.updates] * SIZE.agents


def test_an_update_is_that_of_the_rows_whose_turn_it_is() -> None:
    drawn, other = draw(SIZE), draw(SIZE)
    for _ in range(2):
        orders, replayed = drawn.begin()
        stacked_generation(drawn)
        learners = replace(drawn.learners, networks=other.learners.networks)
        for order, row in zip(orders, replayed, strict=True):
            batch = Batch(drawn.updates.replay.sample(row), *drawn.outcomes(order))
            losses = ddpg.update(learners, batch, SIZE.accumulate, gamma=1.0, tau=SIZE.learning.tau)
        for name, loss in losses.items():
            assert torch.equal(drawn.updates.losses[name][-1], loss), name
        change(drawn)
    for name, part in other.learners.networks.tensors.items():
        assert torch.equal(drawn.learners.networks.tensors[name], part), name


def test_another_number_of_updates_is_captured_anew() -> None:
    drawn, captures = launching()
    generations(drawn)
    drawn.size = replace(SIZE, updates=5)
    drawn.begin()
    stacked_generation(drawn)
    assert captures.count == 2 and bool(drawn.updates.losses["reward"].all())


def test_an_update_that_reads_a_value_runs_eagerly_and_once(caplog: pytest.LogCaptureFixture) -> None:
    """What was done before the capture failed is done once."""
    drawn, captures = launching()
    learn = drawn.updates.learn

    def reading(learners: Learners, batch: Batch, accumulate: int) -> Mapping[str, Tensor]:
        losses = learn(learners, batch, accumulate)
        assert float(losses["reward"][0]) > 0
        return losses

    drawn.updates.learn = reading
    assert_same(generations(drawn), generations(draw(SIZE, seed=1)))
    assert captures.count == 1 and caplog.text.count("updates run eagerly: capturing a CUDA graph failed") == 1


def test_generations_that_launch_are_those_that_play() -> None:
    """Of a trainer, whose rollouts and updates are launched."""
    learning = replace(TINY_LEARNING, gradient_steps=4)
    one, other = tiny_trainer(seed=2, learning=learning), tiny_trainer(seed=2, learning=learning)
    captures = Captures()
    one.rollouts.graphs = CudaGraph("rollouts", taped), CudaGraph("rollouts", taped)
    one.updating.graph = CudaGraph("updates", captures)
    for ours, theirs in zip(one.run(4), other.run(4), strict=True):
        for name in ("fitness", "trading", "validation", "learning"):
            assert ours[name] == theirs[name], name
    assert captures.count == 1


def test_width_batch_and_population_scale_by_flags() -> None:
    words = "--learning.hidden 48 --learning.batch-size 40 --learning.gradient-accumulation 3 --population-size 7"
    config = study_config(words.split())
    names = ("hidden", "batch_size", "gradient_accumulation")
    learning = replace(TINY_LEARNING, **{name: getattr(config.learning, name) for name in names})
    trainer = tiny_trainer(learning=learning, evolution=config.evolution)
    (_,) = trainer.run(1)
    networks = trainer.population.networks
    assert networks is not None
    assert networks.actor.size.sizes[1] == networks.critic.reward.sizes[1] == 48
    assert len(networks.input_mask) == 7 and networks.actor_optimizer.steps.shape == (7,)
    assert trainer.updating._held["replayed"].shape == (TINY_LEARNING.gradient_steps, 40)
    *_, days, stocks = trainer.updating._held["orders"].shape
    assert days * stocks == 3 * 40
    assert networks.critic_optimizer.steps.tolist() == [TINY_LEARNING.gradient_steps] * 7


def test_an_agent_of_the_stack_learns_as_one_written_plainly_does() -> None:
    """With modules and the optimiser of torch."""
    drawn = draw(SIZE)
    networks = drawn.learners.networks
    agents = [PlainAgent(drawn.learners, agent) for agent in range(SIZE.agents)]
    for _ in range(2):
        orders, replayed = drawn.begin()
        stacked_generation(drawn)
        plain_generation(agents, drawn, orders, replayed)
    for row, agent in enumerate(agents):
        pairs = [(agent.actor[0], networks.actor.size), (agent.actor_target[0], networks.actor_target.size)]
        pairs += [(agent.critic[-1], networks.critic.continuation)]
        pairs += [
            (network, networks.critic_target.reward.map(lambda part, fold=fold: part[:, fold]))
            for fold, network in enumerate(agent.critic_target[:-1])
        ]
        for module, stacked in pairs:
            weights = [layer.weight.detach().T for layer in module if isinstance(layer, torch.nn.Linear)]
            for weight, part in zip(weights, stacked.parts[::2], strict=True):
                torch.testing.assert_close(weight, part.detach()[row], rtol=1e-3, atol=1e-5)
        for fold, (layer, slope) in enumerate(zip(agent.choice, agent.slope, strict=True)):
            choice = networks.actor.choice.detach()[row, fold]
            torch.testing.assert_close(layer.weight.detach().T, choice[:-1], rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(slope.detach(), networks.actor.slope.detach()[row, fold], rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_of_updates_gives_what_they_give_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    device = torch.device("cuda")
    eager = draw(SIZE, device)
    eager.updates.graph._capture = None
    assert_same(generations(draw(SIZE, device)), generations(eager))
    assert caplog.text.count("updates are captured as a CUDA graph") == 1
