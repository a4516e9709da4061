"""The stacked population: agents as rows, exact state, and no new tensors after the first update."""

from __future__ import annotations

import gc
import io
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from models.population import Population
from models.replay_buffer import ReplayBuffer
from tests.tiny import (
    CONTEXT,
    World,
    double_learner,
    double_population,
    fill_replay,
    fixed_replay,
    parameters,
    random_world,
    seeded,
    tiny_learning,
    tiny_network,
    tiny_population,
)
from training.erl_trainer import learning_rate_share
from training.evolution import cross_average, mutate, plan_selection
from training.learner import Learner
from training.rollout import roll_out
from utils.config.trader import EvolutionConfig, Representation

BOTH = pytest.mark.parametrize("representation", ["independent", "shared"])
MOMENTS = ("exp_avg", "exp_avg_sq")


def learner_of(world: World, population: Population, replay: ReplayBuffer) -> Learner:
    return Learner(population, replay, world.tensors, tiny_learning(), world.env.limits)


def trained(representation: Representation, size: int = 3, updates: int = 2) -> tuple[World, Population, ReplayBuffer]:
    world, population = random_world(), tiny_population(size, representation)
    replay = fill_replay(world, population)
    generator = seeded(7)
    for _ in range(updates):
        learner_of(world, population, replay).update(generator)
    return world, population, replay


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return cast(dict[str, Any], torch.load(file, weights_only=True))


def moments(population: Population) -> list[Tensor]:
    optimizers = (population.actor_optimizer, population.critic_optimizer)
    return [value for o in optimizers for state in o.state.values() for value in state.values()]


def assert_same(one: Population, other: Population) -> None:
    mine, theirs = parameters(one), parameters(other)
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert len(moments(one)) == len(moments(other)) > 0
    assert all(torch.equal(a, b) for a, b in zip(moments(one), moments(other), strict=True))


@BOTH
def test_loaded_state_continues_bit_for_bit(representation: Representation) -> None:
    """Two updates, saved and loaded into a population that has learned something else, then two more of both."""
    world, population, replay = trained(representation)
    other = tiny_population(3, representation, seed=5)
    learner_of(world, other, replay).update(seeded(11))
    other.load_state_dict(through_a_file(population.state_dict()))
    assert_same(population, other)
    first, second = seeded(8), seeded(8)
    for _ in range(2):
        learner_of(world, population, replay).update(first)
        learner_of(world, other, replay).update(second)
    assert_same(population, other)


def test_state_without_moments_is_restored_too() -> None:
    """A checkpoint from before the first update leaves no moments of later ones behind."""
    world, population, replay = trained("independent", updates=0)
    state = through_a_file(population.state_dict())
    learner_of(world, population, replay).update(seeded(1))
    once = parameters(population)
    population.load_state_dict(state)
    assert moments(population) == []
    learner_of(world, population, replay).update(seeded(1))
    assert all(torch.equal(value, once[name]) for name, value in parameters(population).items())


@BOTH
def test_a_copied_agent_acts_the_same(representation: Representation) -> None:
    world, population, _ = trained(representation)
    starts = world.starts(3)
    together = roll_out(world.env, population.networks, world.tensors, starts)
    for index in range(population.size):
        agent = population.agent(index)
        alone = roll_out(world.env, agent.networks, world.tensors, starts)
        assert torch.allclose(alone.equity[:, 0], together.equity[:, index], rtol=1e-6)
        opened = together.noise_free(together.summary.positions_opened)[index]
        assert torch.equal(alone.summary.positions_opened, opened)
        for name, parameter in agent.networks.named_parameters():
            source = population.networks.get_parameter(name)
            assert torch.equal(parameter[0], source[index if population.networks.is_stacked(name) else 0])


@BOTH
def test_a_copied_agent_stands_on_its_own(representation: Representation) -> None:
    """Learning changes the population, not the copy; copying overwrites the agent's own tensors."""
    world, population, replay = trained(representation)
    agent = population.agent(1)
    places = [p.data_ptr() for p in agent.networks.parameters()]
    before = [p.clone() for p in agent.networks.parameters()]
    learner_of(world, population, replay).update(seeded())
    assert all(torch.equal(p, old) for p, old in zip(agent.networks.parameters(), before, strict=True))
    population.copy_agent(1, agent)
    assert not all(torch.equal(p, old) for p, old in zip(agent.networks.parameters(), before, strict=True))
    assert [p.data_ptr() for p in agent.networks.parameters()] == places


@BOTH
def test_stacks_are_every_tensor_whose_rows_are_agents(representation: Representation) -> None:
    size = 3
    _, population, _ = trained(representation, size)
    stacks = population.stacks()
    names = [
        name
        for name, _ in population.networks.named_parameters()
        if representation == "independent" or not name.startswith("encoder.")
    ]
    assert set(stacks) == {f"{kind}.{name}" for kind in ("networks", "targets", *MOMENTS) for name in names}
    assert all(len(stack) == size for stack in stacks.values())
    for name in names:
        assert stacks[f"networks.{name}"].data_ptr() == population.networks.get_parameter(name).data_ptr()
        assert stacks[f"targets.{name}"].data_ptr() == population.targets.get_parameter(name).data_ptr()
    # Adam's moments: two tensors a parameter, and its count of steps.
    held = sum(value.numel() for value in moments(population) if value.dim() > 0)
    stacked = sum(stack.numel() for name, stack in stacks.items() if name.startswith(MOMENTS))
    encoder = sum(p.numel() for p in population.networks.encoder.parameters()) if representation == "shared" else 0
    assert held - stacked == 2 * encoder


def test_before_the_first_update_there_are_no_moments() -> None:
    stacks = tiny_population(2).stacks()
    assert {name.split(".")[0] for name in stacks} == {"networks", "targets"}


def test_targets_start_as_copies() -> None:
    population = tiny_population(2)
    for name, parameter in population.networks.named_parameters():
        target = population.targets.get_parameter(name)
        assert torch.equal(target, parameter) and target.data_ptr() != parameter.data_ptr()
        assert not target.requires_grad


@BOTH
def test_weight_decay_shrinks_critics_and_encoder_beside_the_gradient(representation: Representation) -> None:
    """theta <- theta - rate x decay x theta, queries by their own, beside the gradient's part without decay."""
    rate, decay, of_queries = 1e-3, 2.0, 0.5
    world, after = random_world(3), []
    for share in (0.0, 1.0):
        learning = tiny_learning(
            critic_learning_rate=rate, critic_weight_decay=share * decay, query_weight_decay=share * of_queries
        )
        population = tiny_population(2, representation, learning)
        before = parameters(population)
        replay = fill_replay(world, population)
        Learner(population, replay, world.tensors, learning, world.env.limits).update(seeded())
        after.append(parameters(population))
    for name, old in before.items():
        if name.startswith("networks."):
            own = of_queries if name == "networks.encoder.queries" else decay
            shrunk = 0.0 if name.startswith("networks.actor.") else rate * own * old
            torch.testing.assert_close(after[1][name], after[0][name] - shrunk, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize("tau", [0.005, 0.3, 1.0])
def test_soft_update(tau: float) -> None:
    """theta' <- tau theta + (1 - tau) theta'."""
    population = tiny_population(2)
    with torch.no_grad():
        for parameter in population.networks.parameters():
            parameter.normal_(generator=seeded(3))
    before = parameters(population)
    population.update_targets(tau)
    for name, value in parameters(population).items():
        if name.startswith("networks."):
            assert torch.equal(value, before[name])
            continue
        online = before[name.replace("targets.", "networks.", 1)]
        assert torch.allclose(value, tau * online + (1 - tau) * before[name], atol=1e-6)


def test_moments_follow_their_agent() -> None:
    """Reordering agents, then updating, is updating, then reordering: nothing of an agent stays behind."""
    world, config = random_world(), tiny_learning()
    order = torch.tensor([2, 0, 1])
    results = []
    for reorders_first in (True, False):
        population = double_population(tiny_population(3))
        fixed = fixed_replay(fill_replay(world, tiny_population(3)), 3, config)
        double_learner(world, population, fixed, config).update(seeded())
        if reorders_first:
            population.write({name: stack[order] for name, stack in population.stacks().items()})
            fixed = fixed.of(order)
        double_learner(world, population, fixed, config).update(seeded())
        rows = slice(None) if reorders_first else order
        results.append({name: stack[rows] for name, stack in population.stacks().items()})
    for name, stack in results[0].items():
        assert torch.allclose(stack, results[1][name], rtol=1e-9, atol=1e-12), name


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@BOTH
@pytest.mark.usefixtures("small_heap")
def test_generations_allocate_nothing(representation: Representation) -> None:
    """After the first update parameters, moments and buffers stay where they are, and no tensor is left over."""
    world, population, replay = trained(representation, 4, updates=1)
    learner, generator = learner_of(world, population, replay), seeded()
    evolution_config = EvolutionConfig(population_size=4)

    def generation() -> None:
        for _ in range(2):
            learner.update(generator)
        plan = plan_selection(torch.randn(4, generator=generator), evolution_config, generator)
        heirs = cross_average(population.stacks(), plan, generator)
        population.write(mutate(heirs, plan.is_mutant, 0.1, generator))

    def places() -> list[int]:
        whole = [*population.networks.parameters(), *population.targets.parameters(), *moments(population)]
        return [t.data_ptr() for t in [*whole, *replay.ring.data.values()]]

    generation()
    before, tensors = places(), live_tensors()
    for _ in range(3):
        generation()
    assert places() == before
    assert live_tensors() == tensors


@BOTH
def test_agents_begin_differently(representation: Representation) -> None:
    population = tiny_population(3, representation)
    for name in ("actor.out.weight", "critics.0.value_out.weight", "critics.1.value_out.weight"):
        weight = population.networks.get_parameter(name)
        assert not torch.equal(weight[0], weight[1]) and not torch.equal(weight[1], weight[2])
    assert population.networks.context_days == CONTEXT
    assert population.is_shared == (representation == "shared") == (tiny_network(representation) != tiny_network())


def test_learning_rates_fall_to_their_share_and_stay() -> None:
    config = tiny_learning(learning_rate_final=0.2, learning_rate_decay_generations=4)
    shares = [learning_rate_share(config, generation) for generation in range(1, 8)]
    assert shares == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_a_smaller_learning_rate_is_a_smaller_first_step() -> None:
    """Adam's first step is as long as the learning rate in each parameter that has a gradient."""
    lengths = []
    for share in (1.0, 0.25):
        world, population, replay = trained("independent", updates=0)
        before = parameters(population)
        population.scale_learning_rates(0.5)
        population.scale_learning_rates(share)
        learner_of(world, population, replay).update(seeded(1))
        after = parameters(population)
        lengths.append({name: (after[name] - before[name]).abs().max() for name in before if "networks." in name})
    for name, whole in lengths[0].items():
        torch.testing.assert_close(lengths[1][name], 0.25 * whole, rtol=2e-2, atol=1e-7, msg=name)
