"""A population of agents whose networks are rows of one stack: each stands for itself, and hands on what it learned."""

import math
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor

from data.market import Market
from models.ddpg_agent import HISTORY, LOSSES
from models.evolution import TARGET, random_genes, ranked
from models.population import ORIGINS, Outcomes, Population, RidgeRegressions, input_mask_of
from models.replay_buffer import Batch
from models.trader import Blend
from tests.small_market import TINY_RULES, small_market
from tests.tiny import INPUTS, networked, random_batch, seeded, shake, tiny_agent, tiny_trainer
from training.ddpg import update
from utils.config.trader import EvolutionConfig, LearningConfig
from utils.errors import ConfigError
from utils.spaces import TARGET_PERCENTS

FOLDS, TARGETS = 2, len(TARGET_PERCENTS)
LEARNING = LearningConfig(hidden=4, learning_rate=0.01)
CLOSED = LearningConfig(agent="closed-form")
LEARN = partial(update, gamma=1.0, tau=0.3)
STREAMS = ("evolution", "networks", "sight")
BY_STOCK, BY_ACCOUNT = (".reward", ".choice", ".slope"), (".continuation", ".size")


@cache
def market() -> Market:
    return small_market(days=120)


def generators(seed: int = 0) -> dict[str, torch.Generator]:
    return {name: seeded(seed + place) for place, name in enumerate(STREAMS)}


def random_ridge(agents: int, seed: int = 0) -> RidgeRegressions:
    draws = seeded(seed)
    weights = torch.randn(agents, INPUTS, generator=draws, dtype=torch.float64)
    by_fold = torch.randn(agents, FOLDS, INPUTS, generator=draws, dtype=torch.float64)
    return replace(RidgeRegressions.zero(agents, FOLDS, INPUTS), weights=weights, by_fold=by_fold)


def random_blend(agents: int, seed: int = 0) -> Blend:
    ridge, network, unit = torch.rand(3, agents, generator=seeded(seed), dtype=torch.float64)
    return Blend(ridge, 2 * network, torch.zeros(agents, 2).double(), 0.1 + unit)


def population_of(
    size: int = 4, seed: int = 0, learning: LearningConfig = LEARNING, evolution: EvolutionConfig | None = None
) -> Population:
    """A population with closed forms; its networks and moments have random numbers in all parts."""
    agent, config = tiny_agent(market()), evolution or EvolutionConfig(population_size=size)
    outcomes = Outcomes(torch.linspace(0.5, 1.5, TARGETS), torch.linspace(-0.1, 0.1, TARGETS))
    parts = agent.inputs, TINY_RULES, outcomes, FOLDS, torch.device("cpu"), generators(seed), LEARN
    population = Population(config, learning, *parts)
    if population.networks is not None:
        draws = seeded(seed)
        for name, part in population.networks.tensors.items():
            if "_first." in name or "_second." in name:
                part += 0.1 * torch.rand(part.shape, generator=draws)
        shake(population.networks, 0.5, draws)
    population.stand_on(random_ridge(size), agent.cash_value)
    return population


def batch_of(seed: int = 1) -> Batch:
    return random_batch(TINY_RULES, 12, FOLDS, seed=seed)


def tensors_of(population: Population) -> dict[str, Tensor]:
    """A copy of all tensors."""
    assert population.networks is not None
    return {name: part.detach().clone() for name, part in population.networks.tensors.items()}


def differing_rows(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[int]:
    """The agents any of whose numbers differ."""
    differs = torch.stack([(part != after[name]).flatten(1).any(1) for name, part in before.items() if part.dim() > 1])
    return set(differs.any(0).nonzero()[:, 0].tolist())


def test_an_update_of_an_agent_changes_only_its_row() -> None:
    population = population_of()
    before = tensors_of(population)
    losses = population.agents[1].update(batch_of(), accumulate=2)
    assert differing_rows(before, tensors_of(population)) == {1}
    assert set(losses) == set(LOSSES) == {"reward", "temporal", "actor"} and all(
        math.isfinite(loss) for loss in losses.values()
    )
    assert [len(agent.losses["reward"]) for agent in population.agents] == [0, 1, 0, 0]


def test_a_clone_shares_nothing() -> None:
    population = population_of()
    agent = population.agents[1]
    agent.update(batch_of())
    clone = agent.clone()
    assert clone.networks is not None and agent.networks is not None
    for name, part in clone.networks.tensors.items():
        assert torch.equal(part, agent.networks.tensors[name]), name
        assert part.data_ptr() != agent.networks.tensors[name].data_ptr(), name
    clone.losses["reward"].append(1.0)
    assert len(agent.losses["reward"]) == 1 and clone.losses["actor"] == agent.losses["actor"]


def bred(population: Population, parents: list[int], others: list[int] | None = None, seed: int = 7) -> None:
    """Let agents inherit from first parents and others, by default the same."""
    genes = random_genes(len(parents), seeded(seed))
    first = torch.tensor(parents)
    population.inherit(genes, first, first if others is None else torch.tensor(others), generators(seed))
    assert population.genes is genes


def test_children_inherit_from_both_parents_and_who_is_its_own_parent_stays_bit_for_bit() -> None:
    """What reads stocks comes from the first parent, what reads the account from the other: with targets and moments.

    Inputs that a child looks at no more are left out; without mutation nothing else changes.
    """
    population = population_of(evolution=EvolutionConfig(population_size=6, mutation_strength=0.0), size=6)
    parents, others = [0, 1, 1, 5, 0, 5], [0, 1, 0, 1, 4, 5]
    for agent in population.agents:
        agent.update(batch_of(seed=int(agent is population.agents[0])))
    before, feature_groups = tensors_of(population), population.feature_groups.clone()
    assert population.networks is not None
    places = {name: part.data_ptr() for name, part in population.networks.tensors.items()}
    population.founders = [10, 11, 12, 13, 14, 15]
    bred(population, parents, others)
    after = tensors_of(population)
    assert {name: part.data_ptr() for name, part in population.networks.tensors.items()} == places
    assert population.founders == [10, 11, 11, 15, 10, 15]
    elites, children = [0, 1, 5], [2, 3, 4]
    assert torch.equal(population.feature_groups[elites], feature_groups[elites])
    assert not torch.equal(population.feature_groups[children], feature_groups[parents][children])
    assert torch.equal(after["input_mask"], input_mask_of(population.feature_groups))
    for name, part in after.items():
        assert torch.equal(part[elites], before[name][elites]), name
        of_whom = others if name.endswith(BY_ACCOUNT) else parents
        for child in children:
            own, theirs = part[child], before[name][of_whom[child]]
            if name.startswith("critic") and name.endswith(".reward"):
                first = INPUTS - 1, LEARNING.hidden
                own, theirs = (flat[:, : math.prod(first)].unflatten(1, first) for flat in (own, theirs))
                both = after["input_mask"][child] & before["input_mask"][parents[child]]
                assert torch.equal(own[:, both], theirs[:, both]), name
                assert bool(own[:, both].any()) and not bool(own[:, ~both].any()), name
                rest = math.prod(first)
                assert torch.equal(part[child][:, rest:], before[name][parents[child]][:, rest:]), name
            elif name != "input_mask":
                assert torch.equal(own, theirs), (name, child)
    assert all(name.endswith((*BY_STOCK, *BY_ACCOUNT, ".counts")) for name in after if "." in name)


def test_childrens_actors_mutate_in_proportion_to_each_layer() -> None:
    """Online and target networks by the same noise; critics, moments and elites do not, nor does what is zero."""
    strength, size = 0.2, 40
    evolution = EvolutionConfig(population_size=size, mutation_strength=strength)
    population = population_of(size, learning=replace(LEARNING, hidden=16), evolution=evolution)
    networks = population.networks
    assert networks is not None
    networks.actor.slope.detach().zero_()
    before, layers = tensors_of(population), [part.detach().clone() for part in networks.actor.layers]
    bred(population, [0] * size)
    after, actor = tensors_of(population), {"actor.choice", "actor.size", "actor_target.choice", "actor_target.size"}
    changed = {name for name, part in after.items() if not torch.equal(part[1:], before[name][:1].expand_as(part[1:]))}
    sight = {"input_mask", *(f"critic{kind}.reward" for kind in ("", "_target", "_first", "_second"))}
    assert changed - sight == actor
    assert all(torch.equal(part[0], before[name][0]) for name, part in after.items())
    for layer, old in zip(networks.actor.layers, layers, strict=True):
        step = (layer.detach() - old[:1])[1:]
        scale = strength * float(old[0].square().mean().sqrt())
        assert float(step.std()) == pytest.approx(scale, rel=0.25)
    for name in ("choice", "size"):
        moved = [after[f"{kind}.{name}"] - before[f"{kind}.{name}"][:1] for kind in ("actor", "actor_target")]
        torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-5)


def test_an_evaluation_chooses_elites_and_takes_the_blend() -> None:
    """The fittest come first; whoever has no finite fitness comes last. Survivors are examined once."""
    population = population_of(5, evolution=EvolutionConfig(population_size=5, elite_fraction=0.4))
    blend = random_blend(5)
    population.evaluated(torch.tensor([1.0, torch.nan, 3.0, 2.0, -1.0]).double(), blend)
    assert population.elites == [2, 3] and population.examined == 5
    assert ranked(population.fitness)[:4].tolist() == [2, 3, 0, 4] and float(population.fitness[2]) == 3.0
    assert population.fittest == {"founders": 1, "elites": 0, "children": 0}
    for row, agent in enumerate(population.agents):
        assert agent.members is not None
        assert float(agent.members.ridge) == pytest.approx(float(blend.ridge[row]))
        assert float(agent.members.network) == pytest.approx(float(blend.network[row]))
        assert float(agent.members.start) == TARGET_PERCENTS[int(population.genes[row, TARGET])]
    for best, (origin, examined) in zip((3, 4), (("elites", 8), ("children", 11)), strict=True):
        fitness = torch.zeros(5).double()
        fitness[best] = 1.0
        population.evaluated(fitness, blend)
        assert population.elites[0] == best and population.examined == examined
        assert population.fittest[origin] == 1 and set(population.fittest) == set(ORIGINS)


def test_losses_are_floats_of_the_last_thousand_updates() -> None:
    trainer = tiny_trainer()
    assert math.isnan(trainer.best_fitness)
    trainer.population.agents[0].losses["reward"].extend([0.5] * 2000)
    *_, record = trainer.run(2)
    assert trainer.best_fitness == record["fitness"]["max"] == float(trainer.population.fitness.max())
    for agent in trainer.population.agents[1:]:
        assert agent.actor_loss_history == list(agent.losses["actor"])
        assert agent.critic_loss_history[-1] == agent.losses["reward"][-1] + agent.losses["temporal"][-1]
        for losses in agent.losses.values():
            assert len(losses) == trainer.population.updates
            assert all(type(loss) is float and math.isfinite(loss) for loss in losses)
        assert all(type(value) is float and math.isfinite(value) for value in agent.get_stats().values())
    full = trainer.population.agents[0].losses["reward"]
    assert len(full) == HISTORY == 1000 and full[0] == 0.5 != full[-1]


@pytest.mark.parametrize("learning", [CLOSED, LearningConfig(gradient_steps=0)], ids=["agent", "no steps"])
def test_agents_without_networks_are_closed_forms(learning: LearningConfig) -> None:
    population = population_of(3, learning=learning)
    assert population.networks is None and population.trials == 1
    other = population_of(3, seed=5, learning=learning)
    other.load_state_dict(population.state_dict())
    assert torch.equal(other.genes, population.genes) and "networks" not in population.state_dict()
    for agent in population.agents:
        assert agent.networks is None and agent.policy is None
        with pytest.raises(ConfigError, match="gradient-steps"):
            _ = agent.critic
        with pytest.raises(ConfigError, match="learner"):
            agent.update(batch_of())
        assert set(agent.get_stats()) == {f"{name}_loss" for name in LOSSES} | {"noise_scale"}
    with pytest.raises(ConfigError, match="learner"):
        networked(tiny_agent(market())).update(batch_of())
