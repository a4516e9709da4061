"""Children that learn the better of their parents' actions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.population import Population
from tests.tiny import World, fill_replay, order_rules, random_world, seeded, tiny_learning, tiny_population
from training.distillation import Lesson, prepare_lessons, teach
from training.evolution import Succession, inherit
from utils.config.trader import Representation

BOTH = pytest.mark.parametrize("representation", ["independent", "shared"])
FAMILY = Succession(
    parents=torch.tensor([0, 1, 0, 1]),
    mates=torch.tensor([0, 1, 1, 1]),
    is_elite=torch.tensor([True, True, False, False]),
    is_mutant=torch.zeros(4, dtype=torch.bool),
)
CHILD, PARENT, MATE = 2, 0, 1


def family(representation: Representation, steps: int) -> tuple[World, Population, list[Lesson]]:
    """Agent 2 is about to become the child of agents 0 and 1."""
    world, population = random_world(), tiny_population(4, representation)
    replay = fill_replay(world, population)
    with torch.no_grad():  # far apart from one another, so that there is something to learn
        population.networks.actor.out.bias[MATE] += 2.0
    lessons = prepare_lessons(population, FAMILY, replay, world.tensors, order_rules(world.env), steps, seeded(3))
    population.write(inherit(population.stacks(), FAMILY))
    return world, population, lessons


def action_of(population: Population, lesson: Lesson, agent: int) -> Tensor:
    agents = torch.tensor([agent])
    with torch.no_grad():
        action: Tensor = population.networks.actor(
            lesson.stocks, lesson.summary, lesson.positions, lesson.account, agents
        )
    return action


@BOTH
def test_only_the_childs_actor_moves(representation: Representation) -> None:
    _, population, lessons = family(representation, steps=3)
    before = {name: stack.clone() for name, stack in population.stacks().items()}
    teach(population, FAMILY, lessons, tiny_learning())
    for name, stack in population.stacks().items():
        others = torch.arange(4) != CHILD
        assert torch.equal(stack[others], before[name][others]), name
        if not name.startswith("networks.actor."):
            assert torch.equal(stack, before[name]), name
    assert not torch.equal(population.networks.actor.out.weight[CHILD], before["networks.actor.out.weight"][CHILD])


def test_a_lesson_shows_one_parents_action_in_each_state() -> None:
    """With a shared encoder both parents can be asked what they would do on what the child sees."""
    _, population, lessons = family("shared", steps=4)
    chosen = torch.cat([lesson.action[0] for lesson in lessons])
    by_parent, by_mate = (
        torch.cat([action_of(population, lesson, agent)[0] for lesson in lessons]) for agent in (PARENT, MATE)
    )
    from_parent = torch.isclose(chosen, by_parent, atol=1e-5).flatten(1).all(1)
    from_mate = torch.isclose(chosen, by_mate, atol=1e-5).flatten(1).all(1)
    assert (from_parent ^ from_mate).all()
    assert from_mate.any()


@BOTH
def test_a_child_comes_closer_to_what_it_is_taught(representation: Representation) -> None:
    _, population, lessons = family(representation, steps=40)
    config = tiny_learning(actor_learning_rate=1e-2)

    def distance() -> float:
        return sum(float((action_of(population, x, CHILD) - x.action).square().mean()) for x in lessons)

    before = distance()
    assert before > 0
    teach(population, FAMILY, lessons, config)
    assert distance() < 0.7 * before


def test_without_children_there_are_no_lessons() -> None:
    world, population = random_world(), tiny_population(4)
    replay = fill_replay(world, population)
    alone = Succession(FAMILY.parents, FAMILY.parents, FAMILY.is_elite, FAMILY.is_mutant)
    rules = order_rules(world.env)
    assert prepare_lessons(population, alone, replay, world.tensors, rules, 5, seeded()) == []
