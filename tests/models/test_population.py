"""A population, whose networks are rows of one stack: each agent stands for itself, and hands on genes and networks."""

import math
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.trainers import generations
from data.features.inputs import TradeInputs
from models import evolution
from models.ddpg_agent import HISTORY, LOSSES, DDPGAgent
from models.evolution import BOUNDS, EXPOSURE, GENES, HIGH, HORIZON, HURDLE, LOW, RISK, believed_genes
from models.population import ORIGINS, Population
from tests.small_market import TINY_RULES, small_market
from tests.tiny import random_batch, seeded, shake, tiny_agent, tiny_trainer
from utils.config.trader import EvolutionConfig, LearningConfig

FOLDS = 2
LEARNING = LearningConfig(hidden=4, learning_rate=0.01)


@cache
def inputs() -> TradeInputs:
    return tiny_agent(small_market()).inputs


def generators(seed: int = 0) -> dict[str, torch.Generator]:
    return {name: seeded(seed + place) for place, name in enumerate(("evolution", "networks", "sight"))}


def population_of(size: int = 4, **changes: Any) -> Population:
    """A population whose networks and moments have random numbers in all parts."""
    config, draws = EvolutionConfig(population_size=size, **changes), seeded()
    parts = inputs(), TINY_RULES, torch.device("cpu"), generators()
    gains = 0.1 + torch.rand(FOLDS, inputs().size - 1, generator=draws)
    population = Population(config, LEARNING, *parts, gains=gains, scale=1.5)
    for name, part in population.networks.tensors.items():
        if name.endswith(("_first", "_second")):
            part += 0.1 * torch.rand(part.shape, generator=draws)
    shake(population.networks, 0.5, draws)
    return population


def tensors_of(population: Population) -> dict[str, Tensor]:
    """A copy of all tensors."""
    return {name: part.detach().clone() for name, part in population.networks.tensors.items()}


def test_an_agent_is_a_view_of_its_row_and_a_clone_shares_nothing() -> None:
    population = population_of()
    population.genes[1, RISK] += 0.25
    agent, horizons = population[1], 2.0 ** population.genes[:, HORIZON]
    assert torch.equal(agent.genes, 2.0 ** population.genes[[1]]) and torch.equal(agent.acting_genes, agent.genes)
    torch.testing.assert_close(population.gammas, (1 - 1 / horizons).float())
    both = population.committee([1, 2])
    torch.testing.assert_close(both.acting_genes, population.values[[1, 2]].prod(0, keepdim=True).sqrt())
    before, clone = tensors_of(population), agent.clone()
    losses = critic_loss, actor_loss = agent.update(random_batch(inputs=population.inputs.size))
    assert (losses.critic_loss, losses.actor_loss) == (critic_loss, actor_loss)
    assert [agent.losses[name][-1] for name in LOSSES] == [*losses] and all(map(math.isfinite, losses))
    assert critic_loss > 0  # a mean square, which an actor's loss is not
    assert [len(population[row].losses["critic"]) for row in range(4)] == [0, 1, 0, 0] and not clone.losses["critic"]
    moved = torch.zeros(4, dtype=torch.bool)
    for name, part in tensors_of(population).items():
        moved |= (part != before[name]).reshape(4, -1).any(1)
        assert torch.equal(clone.networks.tensors[name], before[name][[1]]), name
    assert moved.tolist() == [False, True, False, False]


def test_batches_of_an_agent_may_wait_for_one_step() -> None:
    """Two halves are the step of the whole, in the critic; until then nothing moves."""
    whole, parts = population_of(), population_of()
    batch, before = random_batch(inputs=whole.inputs.size), tensors_of(parts)
    whole[1].update(batch)
    for (half, _), waits in zip(batch.split(2), (True, False), strict=True):
        parts[1].update(half, accumulate=waits)
        after = tensors_of(parts)
        assert all(torch.equal(part, before[name]) for name, part in after.items()) == waits
    for name in ("critic_first", "critic_steps"):
        torch.testing.assert_close(after[name], whole.networks.tensors[name], rtol=1e-4, atol=1e-6)
    assert parts[1].waiting == whole[1].waiting == 0 and len(parts[1].losses["critic"]) == 2


def test_children_take_the_networks_of_their_parent_and_who_is_its_own_parent_stays_bit_for_bit() -> None:
    population = population_of(6, mutation_strength=0.0)
    parents, elites = [0, 1, 1, 5, 0, 5], [0, 1, 5]
    networks, before = population.networks, population.networks.map(torch.clone)
    feature_groups = population.feature_groups.clone()
    population.founders = [10, 11, 12, 13, 14, 15]
    genes = torch.where(torch.tensor([[row in elites] for row in range(6)]), population.genes, population.genes.flip(0))
    population.inherit(genes, torch.tensor(parents), generators(11))
    assert population.genes is genes and population.founders == [10, 11, 11, 15, 10, 15]
    assert torch.equal(population.feature_groups[elites], feature_groups[elites])
    sees = population.feature_groups[:, population.inputs.group_of_input]
    assert torch.equal(networks.gains != 0, sees[:, None].expand(networks.gains.shape))
    doubted = population.gains[0, sees[0]] ** float(2.0 ** genes[0, evolution.DOUBT])
    torch.testing.assert_close(networks.gains[0, 0, sees[0]], doubted)
    for name, part in networks.tensors.items():
        assert torch.equal(part[elites], before.tensors[name][elites]), name
    for child in (2, 3, 4):
        parent, own_sees = parents[child], networks.gains[child, 0] != 0
        both = own_sees & (before.gains[parent, 0] != 0)
        for own, other in ((networks.online, before.online), (networks.target, before.target)):
            weights, inherited = own.critic.matrices[0][child], other.critic.matrices[0][parent]
            assert torch.equal(weights[:, both], inherited[:, both]) and not bool(weights[:, ~own_sees].any())


def test_childrens_actors_mutate_in_proportion() -> None:
    """Online and target networks by the same noise; critics, moments and elites do not."""
    strength, size = 0.2, 40
    population = population_of(size, mutation_strength=strength)
    before = tensors_of(population)
    genes = population.genes[:1].expand(size, -1).clone()
    population.inherit(genes, torch.zeros(size, dtype=torch.int64), generators(7))
    after = tensors_of(population)
    free = slice(LEARNING.hidden + 1)  # the other numbers belong to inputs, which may be masked
    steps = [(after[name] - before[name][:1])[1:, :, free] for name in ("actor", "actor_target")]
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-4, atol=1e-5)
    scale = strength * float(before["actor"][0].square().mean().sqrt())
    assert abs(float(steps[0].std()) / scale - 1) < 0.25
    assert all(torch.equal(part[0], before[name][0]) for name, part in after.items())
    assert torch.equal(after["critic_steps"][1:], before["critic_steps"][:1].expand(size - 1, -1, -1))


def test_an_evaluation_chooses_elites() -> None:
    population = population_of(5, elite_fraction=0.4)
    population.select_elites(torch.tensor([1.0, torch.nan, 3.0, 2.0, -1.0]).double())
    assert population.elites == [2, 3] and population.examined == population.trials == 5
    tied = torch.tensor([1.0, 2.0, torch.nan, 2.0, torch.inf, 1.0])
    assert evolution.ranked(tied).tolist() == [1, 3, 0, 5, 2, 4]
    assert population.fittest == {"founders": 1, "elites": 0, "children": 0}
    for best, (origin, examined) in zip((3, 4), (("elites", 8), ("children", 11)), strict=True):
        fitness = torch.zeros(5).double()
        fitness[best] = 1.0
        population.select_elites(fitness)
        assert population.elites[0] == best and population.examined == examined
        assert population.fittest[origin] == 1 and set(population.fittest) == set(ORIGINS)


def test_losses_are_floats_of_the_last_thousand_updates() -> None:
    trainer = tiny_trainer()
    list(generations(trainer, 2))
    for agent in (trainer.population[row] for row in range(1, len(trainer.population))):
        assert agent.actor_loss_history == list(agent.losses["actor"])
        assert agent.critic_loss_history == list(agent.losses["critic"])
        for losses in agent.losses.values():
            assert len(losses) == trainer.population.updates > 0
            assert all(type(loss) is float and math.isfinite(loss) for loss in losses)
        assert all(type(value) is float and math.isfinite(value) for value in agent.get_stats().values())
    full = trainer.population[0].losses["critic"]
    full.extend([0.5] * 2000)
    trainer.train_population()
    assert len(full) == HISTORY == 1000 and full[0] == 0.5 != full[-1]


def test_a_child_has_its_parents_past_and_counts_nothing_twice() -> None:
    """Of rows 0 to 3 the first has children in 2 and 3, and has skipped five steps."""
    population = population_of(4)
    kept = population[3]
    for row in range(4):
        population[row].losses["critic"].extend([float(row)] * 3)
    for optimizer in population.networks.optimizers.values():
        optimizer.skipped[0] = 5.0
    population.inherit(population.genes + 0.1, torch.tensor([0, 1, 0, 0]), generators(3))
    assert [population[row].losses["critic"][-1] for row in range(4)] == [0.0, 1.0, 0.0, 0.0]
    population[2].losses["critic"].append(9.0)
    assert population[0].losses["critic"][-1] == population[3].losses["critic"][-1] == 0.0
    for optimizer in population.networks.optimizers.values():
        assert optimizer.skipped.sum(1).tolist() == [5.0 * FOLDS, 0.0, 0.0, 0.0]
    assert torch.equal(kept.genes, population.values[[3]])


def test_an_agent_followed_in_full_has_its_own_genes() -> None:
    """Whatever it was believed before; a file keeps them."""
    agent = population_of(4).committee([1, 2])
    doubted = agent.believed(0.3, 0.2)
    assert torch.equal(doubted.genes, believed_genes(agent.genes, 0.3, 0.2))
    again = DDPGAgent.from_state(doubted.state_dict())
    for one in (doubted, again, doubted.shrunk(0.0)):
        assert torch.equal(one.believed(1.0, 1.0).genes, agent.believed(1.0, 1.0).genes)
        torch.testing.assert_close(one.shrunk(1.0).genes[:, RISK], agent.genes[:, RISK])


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
    return evolution.random_genes(size, seeded(seed)), torch.tensor(fitness, dtype=torch.float64), config, seed


@given(cases())
@settings(max_examples=100)
def test_elites_are_the_fittest_and_stay_and_children_have_genes_of_their_parents(
    case: tuple[Tensor, Tensor, EvolutionConfig, int],
) -> None:
    genes, fitness, config, seed = case
    before = genes.clone()
    bred, parents = evolution.next_generation(genes, fitness, config, seeded(seed))
    count = evolution.elite_count(config)
    elites = evolution.ranked(fitness)[:count]
    assert 1 <= count <= len(genes) and (abs(count - config.elite_fraction * len(genes)) <= 0.5 or count == 1)
    assert torch.equal(bred[elites], genes[elites])
    assert torch.equal(parents[elites], elites)
    known = [value if value == value else -torch.inf for value in fitness.tolist()]
    rest = [known[row] for row in range(len(genes)) if row not in elites.tolist()]
    assert min(known[row] for row in elites.tolist()) >= max(rest, default=-torch.inf)
    assert torch.equal(genes, before)
    if config.mutation_share == 0 or config.mutation_strength == 0:
        assert all(bool((bred[:, [gene]] == genes[:, gene]).any(1).all()) for gene in range(len(GENES)))


def test_tournaments_are_won_as_often_as_the_theory_says() -> None:
    """With replacement the best of n wins a tournament of k with chance 1 - (1 - 1/n)^k; no fitness never wins."""
    fitness = torch.tensor([0.3, torch.nan, 2.0, 0.9])
    for size in (1, 2, 5):
        wins = Counter(evolution.tournament(fitness, 20_000, size, seeded(1)).tolist())
        for place, agent in enumerate((2, 3, 0, 1)):
            chance = ((4 - place) / 4) ** size - ((3 - place) / 4) ** size
            assert abs(wins[agent] / 20_000 - chance) < 0.015


@given(seeds, st.floats(0, 1), st.floats(0.01, 3))
@settings(max_examples=60)
def test_mutation_moves_the_share_that_is_asked_for_within_the_bounds(seed: int, share: float, strength: float) -> None:
    """A step beyond a bound comes back from it, so that genes do not gather there."""
    generator = seeded(seed)
    genes = evolution.random_genes(2000, generator)
    mutated = evolution.mutate(genes, share, strength, generator)
    moved = (mutated != genes)[:, HORIZON].double().mean()
    assert abs(moved - share) <= 5.5 * (share * (1 - share) / 2000) ** 0.5 + 1e-9
    for drawn in (genes, mutated):
        assert drawn.shape == (2000, len(GENES)) and (2.0**LOW).tolist() == pytest.approx([low for low, _ in BOUNDS])
        assert bool(((drawn >= LOW) & (drawn <= HIGH)).all())
        assert torch.equal(evolution.within_bounds(drawn.clone()), drawn)
    step = 0.4 * (HIGH - LOW) * torch.rand(genes.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(evolution.within_bounds(LOW - step), LOW + step)
    torch.testing.assert_close(evolution.within_bounds(HIGH + step), HIGH - step)


def test_what_was_selected_by_noise_is_not_acted_by() -> None:
    """Genes are as far from the middle of their bounds, the hurdle from the highest, as evidence goes; that of cash by
    the evidence of cash."""
    genes = evolution.random_genes(6, seeded(1)).exp2()
    middle = torch.tensor([(low * high) ** 0.5 for low, high in BOUNDS]).double().repeat(6, 1)
    middle[:, HURDLE] = BOUNDS[HURDLE][1]
    torch.testing.assert_close(believed_genes(genes, 1.0, 1.0), genes)
    torch.testing.assert_close(believed_genes(genes, 0.0, 0.0), middle)
    half = believed_genes(genes, 0.5, 1.0)
    torch.testing.assert_close(half[:, EXPOSURE], genes[:, EXPOSURE])
    torch.testing.assert_close(half[:, RISK], (genes * middle).sqrt()[:, RISK])
