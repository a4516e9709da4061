"""Children that learn the better of their parents' actions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.population import Population
from tests.tiny import World, fill_replay, random_world, seeded, tiny_population
from training.distillation import DistillationBatch, distill, distillation_batches
from training.evolution import Selection, inherit
from utils.config.trader import Representation

BOTH = pytest.mark.parametrize("representation", ["independent", "shared"])
FAMILY = Selection(
    parents=torch.tensor([0, 1, 0, 1]),
    mates=torch.tensor([0, 1, 1, 1]),
    is_elite=torch.tensor([True, True, False, False]),
    is_mutant=torch.zeros(4, dtype=torch.bool),
)
CHILD, PARENT, MATE = 2, 0, 1


def draw_batches(world: World, population: Population, selection: Selection, steps: int) -> list[DistillationBatch]:
    replay, limits = fill_replay(world, population), world.env.limits
    return distillation_batches(population, selection, replay, world.tensors, limits, 1.0, steps, seeded(3))


def family(representation: Representation, steps: int) -> tuple[Population, list[DistillationBatch]]:
    """Agent 2 is about to become the child of agents 0 and 1."""
    world, population = random_world(), tiny_population(4, representation)
    with torch.no_grad():  # far apart from one another, so that there is something to learn
        population.networks.actor.out.bias[MATE] += 2.0
    batches = draw_batches(world, population, FAMILY, steps)
    population.write(inherit(population.stacks(), FAMILY))
    return population, batches


def action_of(population: Population, batch: DistillationBatch, agent: int) -> Tensor:
    agents = torch.tensor([agent])
    with torch.no_grad():
        action: Tensor = population.networks.actor(batch.stocks, batch.summary, batch.positions, batch.account, agents)
    return action


@BOTH
def test_only_the_childs_actor_moves(representation: Representation) -> None:
    population, batches = family(representation, steps=3)
    before = {name: stack.clone() for name, stack in population.stacks().items()}
    distill(population, FAMILY, batches, 3e-3)
    for name, stack in population.stacks().items():
        others = torch.arange(4) != CHILD
        assert torch.equal(stack[others], before[name][others]), name
        if not name.startswith("networks.actor."):
            assert torch.equal(stack, before[name]), name
    assert not torch.equal(population.networks.actor.out.weight[CHILD], before["networks.actor.out.weight"][CHILD])


def test_a_batch_holds_one_parents_action_in_each_state() -> None:
    """With a shared encoder both parents can be asked what they would do on what the child sees."""
    population, batches = family("shared", steps=4)
    chosen = torch.cat([batch.action[0] for batch in batches])
    by_parent, by_mate = (
        torch.cat([action_of(population, batch, agent)[0] for batch in batches]) for agent in (PARENT, MATE)
    )
    from_parent = torch.isclose(chosen, by_parent, atol=1e-5).flatten(1).all(1)
    from_mate = torch.isclose(chosen, by_mate, atol=1e-5).flatten(1).all(1)
    assert (from_parent ^ from_mate).all()
    assert from_mate.any()


@BOTH
def test_distillation_brings_a_child_closer_to_the_better_actions(representation: Representation) -> None:
    population, batches = family(representation, steps=40)

    def distance() -> float:
        return sum(float((action_of(population, x, CHILD) - x.action).square().mean()) for x in batches)

    before = distance()
    assert before > 0
    distill(population, FAMILY, batches, 1e-2)
    assert distance() < 0.7 * before


def test_without_children_there_is_nothing_to_distill() -> None:
    world, population = random_world(), tiny_population(4)
    alone = Selection(FAMILY.parents, FAMILY.parents, FAMILY.is_elite, FAMILY.is_mutant)
    assert draw_batches(world, population, alone, 5) == []
