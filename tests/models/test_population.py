"""A population, whose networks are rows of one stack: each agent stands for itself, and hands on genes and networks."""

import math
from collections import Counter
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.market import Market
from models.ddpg_agent import HISTORY, LOSSES
from models.evolution import (
    GENES,
    HIGH,
    LOW,
    SESSIONS,
    TARGET,
    elite_count,
    mutate,
    next_generation,
    random_genes,
    ranked,
    tournament,
    within_bounds,
)
from models.population import ORIGINS, Population
from tests.small_market import TINY_RULES, small_market
from tests.tiny import random_batch, seeded, shake, tiny_agent, tiny_trainer
from utils.config.trader import EvolutionConfig, LearningConfig
from utils.spaces import TARGET_PERCENTS

FOLDS = 2
LEARNING = LearningConfig(hidden=4, learning_rate=0.01)
STREAMS = ("evolution", "networks", "sight")


@cache
def market() -> Market:
    return small_market(days=120)


def generators(seed: int = 0) -> dict[str, torch.Generator]:
    return {name: seeded(seed + place) for place, name in enumerate(STREAMS)}


def population_of(size: int = 4, seed: int = 0, evolution: EvolutionConfig | None = None) -> Population:
    """A population whose networks and moments have random numbers in all parts."""
    config = evolution or EvolutionConfig(population_size=size)
    parts = tiny_agent(market()).inputs, TINY_RULES, torch.device("cpu"), generators(seed)
    population = Population(config, LEARNING, *parts, folds=FOLDS, scale=1.5)
    draws = seeded(seed)
    for name, part in population.networks.tensors.items():
        if name.endswith(("_first", "_second")):
            part += 0.1 * torch.rand(part.shape, generator=draws)
    shake(population.networks, 0.5, draws)
    population.reward_rate.fill_(0.1)
    return population


def tensors_of(population: Population) -> dict[str, Tensor]:
    """A copy of all tensors."""
    return {name: part.detach().clone() for name, part in population.networks.tensors.items()}


def test_an_update_of_an_agent_changes_only_its_row() -> None:
    population = population_of()
    before = tensors_of(population)
    losses = population[1].update(random_batch(inputs=population.inputs.size))
    after = tensors_of(population)
    differs = torch.stack([(part != after[name]).reshape(len(part), -1).any(1) for name, part in before.items()]).any(0)
    assert differs.tolist() == [False, True, False, False]
    assert set(losses) == set(LOSSES) and all(math.isfinite(loss) for loss in losses.values())
    assert [len(population[row].losses["critic"]) for row in range(4)] == [0, 1, 0, 0]


def test_batches_of_an_agent_may_wait_for_one_step() -> None:
    """Two halves are the step of the whole, in the critic; until then nothing moves."""
    whole, parts = population_of(), population_of()
    batch = random_batch(inputs=whole.inputs.size)
    halves = [half for half, _ in batch.split(2)]
    before = tensors_of(parts)
    parts[1].update(halves[0], accumulate=True)
    assert all(torch.equal(part, before[name]) for name, part in tensors_of(parts).items())
    parts[1].update(halves[1], accumulate=False)
    whole[1].update(batch)
    one, two = tensors_of(whole), tensors_of(parts)
    torch.testing.assert_close(one["critic_first"], two["critic_first"], rtol=1e-4, atol=1e-6)
    assert one["critic_counts"][1, 0] == two["critic_counts"][1, 0] and not torch.equal(one["critic"], before["critic"])
    assert parts[1].waiting == whole[1].waiting == 0 and len(parts[1].losses["critic"]) == 2


def test_an_agent_is_a_view_of_its_row() -> None:
    population = population_of()
    agent = population[2]
    assert agent is population[2]
    for name, part in agent.networks.tensors.items():
        assert part.data_ptr() == population.networks.tensors[name][2:].data_ptr(), name
    assert float(agent.hurdle) == pytest.approx(2.0 ** float(population.genes[2, SESSIONS]) * 0.1)
    assert float(agent.sale_target) == TARGET_PERCENTS[int(population.genes[2, TARGET])]
    population.reward_rate.fill_(0.4)
    assert float(population[2].hurdle) == pytest.approx(2.0 ** float(population.genes[2, SESSIONS]) * 0.4)


def test_a_clone_shares_nothing() -> None:
    population = population_of()
    agent = population[1]
    agent.update(random_batch(inputs=population.inputs.size))
    clone = agent.clone()
    for name, part in clone.networks.tensors.items():
        assert torch.equal(part, agent.networks.tensors[name]), name
        assert part.data_ptr() != agent.networks.tensors[name].data_ptr(), name
    clone.losses["critic"].append(1.0)
    assert len(agent.losses["critic"]) == 1 and clone.losses["actor"] == agent.losses["actor"]


def test_children_take_the_networks_of_their_parent_and_who_is_its_own_parent_stays_bit_for_bit() -> None:
    population = population_of(evolution=EvolutionConfig(population_size=6, mutation_strength=0.0), size=6)
    parents = [0, 1, 1, 5, 0, 5]
    before, feature_groups = tensors_of(population), population.feature_groups.clone()
    places = {name: part.data_ptr() for name, part in population.networks.tensors.items()}
    population.founders = [10, 11, 12, 13, 14, 15]
    genes = random_genes(6, seeded(7))
    population.inherit(genes, torch.tensor(parents), generators(11))
    after = tensors_of(population)
    assert population.genes is genes and population.founders == [10, 11, 11, 15, 10, 15]
    assert {name: part.data_ptr() for name, part in population.networks.tensors.items()} == places
    elites, children = [0, 1, 5], [2, 3, 4]
    assert torch.equal(population.feature_groups[elites], feature_groups[elites])
    assert torch.equal(after["input_mask"], population.feature_groups[:, population.inputs.group_of_input])
    for name, part in after.items():
        assert torch.equal(part[elites], before[name][elites]), name
    mask = after["input_mask"]
    for child in children:
        parent, both = parents[child], mask[child] & before["input_mask"][parents[child]]
        for kind in ("", "_target"):
            own, theirs = after[f"critic{kind}"], before[f"critic{kind}"]
            shape = population.inputs.size - 1, LEARNING.hidden
            first, other = (flat[..., : math.prod(shape)].unflatten(-1, shape) for flat in (own[child], theirs[parent]))
            assert torch.equal(first[:, both], other[:, both]) and not bool(first[:, ~mask[child]].any())


def test_childrens_actors_mutate_in_proportion() -> None:
    """Online and target networks by the same noise; critics, moments and elites do not."""
    strength, size = 0.2, 40
    population = population_of(size, evolution=EvolutionConfig(population_size=size, mutation_strength=strength))
    before = tensors_of(population)
    population.inherit(random_genes(size, seeded(3)), torch.zeros(size, dtype=torch.int64), generators(7))
    after = tensors_of(population)
    free = slice(LEARNING.hidden + 1)  # the other numbers belong to inputs, which may be masked
    steps = [(after[name] - before[name][:1])[1:, :, free] for name in ("actor", "actor_target")]
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-4, atol=1e-5)
    scale = strength * float(before["actor"][0].square().mean().sqrt())
    assert abs(float(steps[0].std()) / scale - 1) < 0.25
    assert all(torch.equal(part[0], before[name][0]) for name, part in after.items())
    assert torch.equal(after["critic_counts"][1:], before["critic_counts"][:1].expand(size - 1, -1))


def test_an_evaluation_chooses_elites() -> None:
    population = population_of(5, evolution=EvolutionConfig(population_size=5, elite_fraction=0.4))
    population.select_elites(torch.tensor([1.0, torch.nan, 3.0, 2.0, -1.0]).double())
    assert population.elites == [2, 3] and population.examined == population.trials == 5
    assert ranked(population.fitness)[:4].tolist() == [2, 3, 0, 4] and float(population.fitness[2]) == 3.0
    assert population.fittest == {"founders": 1, "elites": 0, "children": 0}
    for best, (origin, examined) in zip((3, 4), (("elites", 8), ("children", 11)), strict=True):
        fitness = torch.zeros(5).double()
        fitness[best] = 1.0
        population.select_elites(fitness)
        assert population.elites[0] == best and population.examined == examined
        assert population.fittest[origin] == 1 and set(population.fittest) == set(ORIGINS)


def test_losses_are_floats_of_the_last_thousand_updates() -> None:
    trainer = tiny_trainer()
    assert math.isnan(trainer.best_fitness)
    trainer.population[0].losses["critic"].extend([0.5] * 2000)
    *_, record = trainer.run(2)
    assert trainer.fitness_history[-1] == record["fitness"]["max"] == float(trainer.population.fitness.max())
    for agent in (trainer.population[row] for row in range(1, len(trainer.population))):
        assert agent.actor_loss_history == list(agent.losses["actor"])
        assert agent.critic_loss_history == list(agent.losses["critic"])
        for losses in agent.losses.values():
            assert len(losses) == trainer.population.updates > 0
            assert all(type(loss) is float and math.isfinite(loss) for loss in losses)
        assert all(type(value) is float and math.isfinite(value) for value in agent.get_stats().values())
    full = trainer.population[0].losses["critic"]
    assert len(full) == HISTORY == 1000 and full[0] == 0.5 != full[-1]


seeds = st.integers(0, 2**32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, EvolutionConfig, int]:
    """Genes, fitness with ties and agents without one, settings and a seed."""
    size, seed = draw(st.integers(2, 40)), draw(seeds)
    mutation = {"mutation_share": draw(st.just(0.0) | st.floats(0, 1)), "mutation_strength": draw(st.floats(0, 1))}
    chosen = {"elite_fraction": draw(st.floats(0, 1)), "tournament_size": draw(st.integers(1, 5))}
    config = EvolutionConfig(population_size=size, **chosen, **mutation)
    kinds = st.one_of(st.floats(-10, 10), st.integers(-2, 2).map(float), st.sampled_from((torch.nan, -torch.inf)))
    fitness = draw(st.lists(kinds, min_size=size, max_size=size))
    return random_genes(size, seeded(seed)), torch.tensor(fitness, dtype=torch.float64), config, seed


@given(cases())
@settings(max_examples=100)
def test_elites_are_the_fittest_and_stay_and_children_have_genes_of_their_parents(
    case: tuple[Tensor, Tensor, EvolutionConfig, int],
) -> None:
    genes, fitness, config, seed = case
    before = genes.clone(), fitness.clone()
    bred, parents = next_generation(genes, fitness, config, seeded(seed))
    count = elite_count(config)
    elites = ranked(fitness)[:count]
    assert 1 <= count <= len(genes) and (abs(count - config.elite_fraction * len(genes)) <= 0.5 or count == 1)
    assert torch.equal(bred[elites], genes[elites])
    assert torch.equal(parents[elites], elites)
    known = [value if value == value else -torch.inf for value in fitness.tolist()]
    rest = [known[row] for row in range(len(genes)) if row not in elites.tolist()]
    assert min(known[row] for row in elites.tolist()) >= max(rest, default=-torch.inf)
    assert torch.equal(genes, before[0]) and torch.equal(fitness.nan_to_num(99), before[1].nan_to_num(99))
    if config.mutation_share == 0 or config.mutation_strength == 0:
        assert all(bool((bred[:, [gene]] == genes[:, gene]).any(1).all()) for gene in range(len(GENES)))


def test_tournaments_are_won_as_often_as_the_theory_says() -> None:
    """With replacement the best of n wins a tournament of k with chance 1 - (1 - 1/n)^k; no fitness never wins."""
    fitness = torch.tensor([0.3, torch.nan, 2.0, 0.9])
    for size in (1, 2, 5):
        wins = Counter(tournament(fitness, 20_000, size, seeded(1)).tolist())
        for place, agent in enumerate((2, 3, 0, 1)):
            chance = ((4 - place) / 4) ** size - ((3 - place) / 4) ** size
            assert abs(wins[agent] / 20_000 - chance) < 0.015


def test_ties_go_to_the_lower_row() -> None:
    assert ranked(torch.tensor([1.0, 2.0, torch.nan, 2.0, torch.inf, 1.0])).tolist() == [1, 3, 0, 5, 2, 4]


def are_within_bounds(genes: Tensor) -> bool:
    is_whole = bool((genes[:, TARGET] == genes[:, TARGET].round()).all())
    return is_whole and bool(((genes >= LOW) & (genes <= HIGH)).all())


@given(seeds, st.floats(0, 1), st.floats(0, 3), st.integers(1, 40))
@settings(max_examples=60)
def test_no_draw_leaves_the_bounds(seed: int, share: float, strength: float, agents: int) -> None:
    """A step beyond a bound comes back from it, so that genes do not gather there."""
    generator = seeded(seed)
    genes = random_genes(agents, generator)
    assert genes.shape == (agents, len(GENES)) and are_within_bounds(genes)
    assert torch.equal(within_bounds(genes.clone()), genes)
    step = 0.4 * (HIGH - LOW) * torch.rand(genes.shape, generator=generator, dtype=torch.float64)
    step[:, TARGET] = step[:, TARGET].round()
    torch.testing.assert_close(within_bounds(LOW - step), LOW + step)
    torch.testing.assert_close(within_bounds(HIGH + step), HIGH - step)
    assert are_within_bounds(mutate(genes, share, strength, generator))


@given(seeds, st.floats(0.05, 0.5))
@settings(max_examples=30)
def test_mutation_moves_the_share_that_is_asked_for(seed: int, share: float) -> None:
    generator = seeded(seed)
    genes = random_genes(2000, generator)
    free = [gene for gene in range(len(GENES)) if gene != TARGET]
    moved = (mutate(genes, share, 0.1, generator) != genes)[:, free].double().mean(0)
    assert (moved - share).abs().max() < 5.5 * (share * (1 - share) / 2000) ** 0.5
