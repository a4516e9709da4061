"""Selection, crossover and mutation on small stacks: who comes from whom, and what may change."""

from __future__ import annotations

from collections import Counter
from typing import cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models.networks import AgentNetworks
from tests.tiny import fill_replay, random_world, seeded, tiny_population
from training.distillation import actor_sensitivity
from training.evolution import (
    Selection,
    counts,
    cross_average,
    cross_heads,
    inherit,
    mutate,
    plan_selection,
    tournament,
)
from utils.config.trader import EvolutionConfig, Representation
from utils.errors import ConfigError

NAMES = ("actor.weight", "actor.bias", "critics.0.weight", "critics.1.weight", "encoder.weight")
KINDS = ("networks", "targets", "exp_avg", "exp_avg_sq")
fractions = st.floats(0, 1)


def small_stacks(size: int, seed: int = 0) -> dict[str, Tensor]:
    g = seeded(seed)
    shapes = {name: (size, 1, 3) if "bias" in name else (size, 2, 3) for name in NAMES}
    return {f"{kind}.{name}": torch.randn(shapes[name], generator=g) for kind in KINDS for name in NAMES}


def clones(stacks: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: stack.clone() for name, stack in stacks.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor], rows: Tensor | slice = slice(None)) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name][rows], other[name][rows]) for name in one)


@st.composite
def configs(draw: st.DrawFn) -> EvolutionConfig:
    elite = draw(fractions)
    offspring = draw(st.floats(0, 1 - elite))
    return EvolutionConfig(
        population_size=draw(st.integers(1, 64)),
        elite_fraction=elite,
        offspring_fraction=offspring,
        mutant_fraction=draw(st.floats(0, max(0.0, 1 - elite - offspring))),
        tournament_size=draw(st.integers(1, 5)),
    )


def selection_of(config: EvolutionConfig, seed: int) -> tuple[Tensor, Selection]:
    fitness = torch.randn(config.population_size, generator=seeded(seed))
    return fitness, plan_selection(fitness, config, seeded(seed))


@settings(max_examples=150, deadline=None)
@given(configs())
def test_counts_follow_the_fractions(config: EvolutionConfig) -> None:
    size = config.population_size
    elites, offspring, mutants = counts(config)
    assert 1 <= elites <= size and offspring >= 0 and mutants >= 0
    assert elites + offspring + mutants <= size
    assert abs(elites - config.elite_fraction * size) <= 0.5 or elites == 1
    rest = size - elites
    assert abs(offspring - config.offspring_fraction * size) <= 0.5 or offspring == rest
    assert abs(mutants - config.mutant_fraction * size) <= 0.5 or mutants == rest - offspring


def test_default_fractions_of_sixteen() -> None:
    assert counts(EvolutionConfig()) == (4, 4, 4)


@pytest.mark.parametrize("fraction", [-0.5, 1.5, float("nan")])
def test_mutant_fraction_is_validated(fraction: float) -> None:
    with pytest.raises(ConfigError, match="mutant-fraction"):
        EvolutionConfig(mutant_fraction=fraction)


@settings(max_examples=100, deadline=None)
@given(configs(), st.integers(0, 1000))
def test_elites_are_the_fittest_and_keep_everything(config: EvolutionConfig, seed: int) -> None:
    """Through crossover and mutation of every kind, moments and targets included, bit for bit."""
    fitness, plan = selection_of(config, seed)
    elites, offspring, mutants = counts(config)
    assert (int(plan.is_elite.sum()), int(plan.is_mutant.sum())) == (elites, mutants)
    assert int(plan.is_child.sum()) <= offspring
    assert not bool((plan.is_elite & (plan.is_child | plan.is_mutant)).any())
    assert not bool((plan.is_child & plan.is_mutant).any())
    if elites < len(fitness):
        assert fitness[plan.is_elite].min() >= fitness[~plan.is_elite].max()
    stacks = small_stacks(config.population_size, seed)
    before = clones(stacks)
    for heirs in (inherit(stacks, plan), cross_heads(stacks, plan), cross_average(stacks, plan, seeded(seed))):
        assert equal(mutate(heirs, plan.is_mutant, 0.5, seeded(seed)), before, plan.is_elite)


@settings(max_examples=60, deadline=None)
@given(configs(), st.integers(0, 1000))
def test_nothing_modifies_its_input(config: EvolutionConfig, seed: int) -> None:
    fitness, plan = selection_of(config, seed)
    stacks = small_stacks(config.population_size, seed)
    before, fitness_before = clones(stacks), fitness.clone()
    mask = plan.is_mutant.clone()
    plan_selection(fitness, config, seeded(seed))
    inherit(stacks, plan)
    cross_heads(stacks, plan)
    cross_average(stacks, plan, seeded(seed))
    sensitivity = {name: torch.rand(stacks[f"networks.{name}"].shape) * 3 for name in NAMES if "actor" in name}
    known = clones(sensitivity)
    mutate(stacks, plan.is_mutant, 0.5, seeded(seed), sensitivity)
    assert equal(stacks, before) and torch.equal(fitness, fitness_before) and torch.equal(plan.is_mutant, mask)
    assert equal(sensitivity, known)


@settings(max_examples=40, deadline=None)
@given(configs(), st.integers(0, 1000))
def test_the_generator_decides_everything(config: EvolutionConfig, seed: int) -> None:
    def next_generation() -> dict[str, Tensor]:
        _, plan = selection_of(config, seed)
        heirs = cross_average(small_stacks(config.population_size), plan, seeded(seed))
        return mutate(heirs, plan.is_mutant, 0.5, seeded(seed + 1))

    assert equal(next_generation(), next_generation())


def test_a_population_of_one_stays_as_it_is() -> None:
    config = EvolutionConfig(population_size=1)
    plan = plan_selection(torch.tensor([float("nan")]), config, seeded())
    stacks = small_stacks(1)
    assert equal(mutate(cross_average(stacks, plan, seeded()), plan.is_mutant, 1.0, seeded()), stacks)
    assert plan.is_elite.tolist() == [True]


def test_winners_of_tournaments_are_distributed_by_rank() -> None:
    """The agent of rank i (from the worst, 0) of P wins a tournament of k with chance ((i+1)^k - i^k) / P^k."""
    fitness = torch.tensor([0.5, -3.0, 7.0, 2.0, -1.0, 9.0])
    draws, size = 6000, 3
    wins = Counter(tournament(fitness, draws, size, seeded()).tolist())
    by_rank = [wins[agent] for agent in fitness.argsort().tolist()]
    expected = [draws * ((rank + 1) ** size - rank**size) / len(fitness) ** size for rank in range(len(fitness))]
    assert by_rank == sorted(by_rank)
    assert sum((seen - wanted) ** 2 / wanted for seen, wanted in zip(by_rank, expected, strict=True)) < 25


def nan_fitness(size: int, broken: int) -> Tensor:
    fitness = torch.arange(size).float()
    fitness[size - broken :] = torch.nan
    return fitness


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 24), st.data(), st.integers(0, 1000))
def test_agents_without_a_fitness_are_no_elites(size: int, data: st.DataObject, seed: int) -> None:
    config = EvolutionConfig(population_size=size)
    broken = data.draw(st.integers(1, size - counts(config)[0]))
    plan = plan_selection(nan_fitness(size, broken), config, seeded(seed))
    assert not bool(plan.is_elite[size - broken :].any())
    entrants = tournament(torch.where(nan_fitness(size, broken).isnan(), -torch.inf, 1.0), 200, 60, seeded(seed))
    assert int(entrants.max()) < size - broken


def test_agents_without_a_fitness_never_win() -> None:
    config = EvolutionConfig(population_size=16, tournament_size=2)
    for seed in range(30):
        plan = plan_selection(nan_fitness(16, 8), config, seeded(seed))
        assert int(plan.parents.max()) < 8 and int(plan.mates.max()) < 8


def plan_of(parents: list[int], mates: list[int], mutants: list[int] | None = None) -> Selection:
    size = len(parents)
    is_mutant = torch.zeros(size, dtype=torch.bool)
    is_mutant[mutants or []] = True
    return Selection(torch.tensor(parents), torch.tensor(mates), torch.zeros(size, dtype=torch.bool), is_mutant)


def test_heirs_take_every_row_of_their_parent() -> None:
    stacks, plan = small_stacks(4), plan_of([0, 3, 0, 2], [0, 1, 0, 2])
    heirs = inherit(stacks, plan)
    assert heirs.keys() == stacks.keys()
    for name, stack in stacks.items():
        assert torch.equal(heirs[name], torch.stack([stack[parent] for parent in (0, 3, 0, 2)]))


def test_heads_are_crossed_with_their_moments() -> None:
    stacks, plan = small_stacks(4), plan_of([0, 3, 1, 2], [0, 1, 1, 0])
    heirs = cross_heads(stacks, plan)
    for name, stack in stacks.items():
        sources = (0, 1, 1, 0) if ".critics." in name else (0, 3, 1, 2)
        assert torch.equal(heirs[name], torch.stack([stack[source] for source in sources])), name


def test_a_crossed_head_acts_as_its_parent_and_judges_as_its_mate() -> None:
    population = tiny_population(3, "shared")
    stacks = population.stacks()
    actor, critic = "networks.actor.out.weight", "networks.critics.1.value_out.weight"
    heirs = cross_heads(stacks, plan_of([0, 0, 2], [0, 2, 2]))
    assert torch.equal(heirs[actor][1], stacks[actor][0]) and torch.equal(heirs[critic][1], stacks[critic][2])


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.integers(0, 1000))
def test_averages_lie_between_both_parents(size: int, seed: int) -> None:
    g = seeded(seed)
    parents, mates = torch.randint(size, (2, size), generator=g).tolist()
    plan, stacks = plan_of(parents, mates), small_stacks(size, seed)
    heirs, plain = cross_average(stacks, plan, g), inherit(stacks, plan)
    assert equal(heirs, plain, ~plan.is_child)
    shares = []
    for name, heir in heirs.items():
        mine, other = stacks[name][plan.parents], stacks[name][plan.mates]
        slack = 1e-6 * (mine.abs() + other.abs())
        assert bool((heir >= torch.minimum(mine, other) - slack).all())
        assert bool((heir <= torch.maximum(mine, other) + slack).all())
        share = ((heir - mine) * (other - mine)).flatten(1).sum(1) / (other - mine).flatten(1).square().sum(1)
        shares.append(share[plan.is_child])
    # One share a child, for all of its tensors.
    assert torch.allclose(torch.stack(shares), shares[0].expand(len(shares), -1), atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.floats(0.01, 2), st.integers(0, 1000), st.booleans())
def test_mutation_moves_only_the_actors_of_mutants(size: int, strength: float, seed: int, proximal: bool) -> None:
    g, stacks = seeded(seed), small_stacks(size, seed)
    is_mutant = torch.rand(size, generator=g) < 0.5
    sensitivity = {name: torch.rand(stacks[f"networks.{name}"].shape, generator=g) * 4 for name in NAMES[:2]}
    mutated = mutate(stacks, is_mutant, strength, g, sensitivity if proximal else None)
    assert equal(mutated, stacks, ~is_mutant)
    for name in stacks:
        moves = name.startswith(("networks.actor.", "targets.actor."))
        assert moves or torch.equal(mutated[name], stacks[name]), name
        assert not moves or bool((mutated[name] != stacks[name]).flatten(1).any(1)[is_mutant].all()), name
    for name in NAMES[:2]:
        step, target_step = (mutated[f"{kind}.{name}"] - stacks[f"{kind}.{name}"] for kind in KINDS[:2])
        assert torch.allclose(step, target_step, atol=1e-5)


def test_gaussian_steps_scale_with_the_weights() -> None:
    """The standard deviation of a step is `strength` times that of the mutant's own tensor."""
    weights = torch.randn(2, 60, 60, generator=seeded()) * torch.tensor([1.0, 30.0]).view(2, 1, 1)
    stacks = {f"{kind}.actor.weight": weights.clone() for kind in KINDS[:2]}
    step = mutate(stacks, torch.tensor([True, True]), 0.1, seeded(1))["networks.actor.weight"] - weights
    assert torch.allclose(step.flatten(1).std(1) / weights.flatten(1).std(1), torch.full((2,), 0.1), rtol=0.05)
    assert float(step[0].mean().abs()) < 0.01


def actions(networks: AgentNetworks, stacks: dict[str, Tensor], inputs: tuple[Tensor, ...]) -> Tensor:
    prefix = "networks.actor."
    weights = {name.removeprefix(prefix): stack for name, stack in stacks.items() if name.startswith(prefix)}
    with torch.no_grad():
        return cast(Tensor, torch.func.functional_call(networks.actor, weights, inputs))


def test_proximal_mutation_moves_behaviour_less() -> None:
    """At the same strength and noise: no weight moves further, and the actions move clearly less."""
    world, agents = random_world(3), 6
    population = tiny_population(agents)
    replay = fill_replay(world, population)
    sensitivity = actor_sensitivity(population, replay, world.tensors, 64, seeded(1))
    stacks = population.stacks()
    assert sensitivity.keys() == {n.removeprefix("networks.") for n in stacks if n.startswith("networks.actor.")}
    g = seeded(2)
    inputs = (
        torch.randn(agents, 50, 4, 4, generator=g),
        torch.randn(agents, 50, 6, generator=g),
        torch.zeros(agents, 50, 4, 6),
        torch.tensor([1.0, 0.0, 0.5]).expand(agents, 50, 3),
    )
    before = actions(population.networks, stacks, inputs)
    moved = {}
    for kind, known in (("gaussian", None), ("proximal", sensitivity)):
        mutated = mutate(stacks, torch.ones(agents, dtype=torch.bool), 0.2, seeded(5), known)
        step = {name: (mutated[name] - stack).abs() for name, stack in stacks.items()}
        moved[kind] = (step, float((actions(population.networks, mutated, inputs) - before).abs().mean()))
    for name, largest in moved["gaussian"][0].items():
        assert bool((moved["proximal"][0][name] <= largest + 1e-6).all())
    assert 0 < moved["proximal"][1] < 0.9 * moved["gaussian"][1]


@pytest.mark.parametrize("representation", ["independent", "shared"])
def test_weights_that_cannot_matter_are_not_sensitive(representation: Representation) -> None:
    """Behind output weights of 0 nothing reaches the action; the output layer itself still does."""
    world = random_world(4)
    population = tiny_population(3, representation)
    replay = fill_replay(world, population)
    with torch.no_grad():
        population.networks.actor.out.weight[1] = 0
    found = actor_sensitivity(population, replay, world.tensors, 64, seeded())
    shapes = {f"actor.{name}": p.shape for name, p in population.networks.actor.named_parameters()}
    assert {name: value.shape for name, value in found.items()} == shapes
    assert not bool(found["actor.hidden.weight"][1].any()) and bool(found["actor.hidden.weight"][[0, 2]].any())
    assert float(found["actor.out.weight"][1].mean()) == pytest.approx(1.0, rel=1e-4)
    assert all(bool(value.isfinite().all()) for value in found.values())


def test_sensitivity_leaves_the_population_alone() -> None:
    world, population = random_world(5), tiny_population(2)
    replay = fill_replay(world, population)
    before = clones(population.stacks())
    actor_sensitivity(population, replay, world.tensors, 64, seeded())
    assert equal(population.stacks(), before)
    assert all(p.grad is None for p in population.networks.parameters())
